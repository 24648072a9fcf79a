//! Accessed bits: clearing them, as a kernel does that looks for pages to reclaim, and what is
//! promised of it.

use shootdown::accessed::Aged;
use shootdown::ids::VaRange;

use super::port::checked;
use super::state::with;
use super::{Kernel, Space};
use crate::engine;
use crate::mmu::Root;
use crate::oracle::Epoch;

impl Kernel {
    /// Clears the accessed bits of the pages in a range of a space's addresses, one by one; returns
    /// how many were set.
    ///
    /// # Panics
    /// When the space has ended, or `pages` is 0.
    pub fn clear_accessed(&mut self, space: Space, va: u64, pages: u64) -> u64 {
        let (library, handle, root, leaves) = with(|s| {
            let state = s.space(space);
            let (handle, root) = (state.handle.expect("checked"), state.root);
            (s.library, handle, root, s.leaves(root, va, va + (pages << 12)))
        });
        let mut young = 0;
        for leaf in leaves {
            engine::compute(with(|s| s.costs.entry_edit));
            engine::step();
            if with(|s| s.memory.clear_accessed(root, leaf.va)) != Some(true) {
                continue;
            }
            let cleared = now();
            young += 1;
            let range = VaRange::new(leaf.va, 1, leaf.size).expect("a page that is mapped");
            let aged = library
                .accessed_cleared(handle, range)
                .unwrap_or_else(|e| panic!("aging outside of task context: {e}"));
            engine::step();
            match aged {
                Aged::Pending => with(|s| s.memory.aging_told(root, leaf.slot, cleared)),
                Aged::Flushed => {
                    with(|s| s.memory.aging_told(root, leaf.slot, cleared));
                    check_everywhere(root, leaf.va);
                }
                _ => {}
            }
        }
        young
    }

    /// Is the accessed bit of the page at an address of a space set? `None` when nothing is mapped
    /// there. Takes no virtual time.
    ///
    /// # Panics
    /// When the space has ended.
    #[must_use]
    pub fn accessed(&self, space: Space, va: u64) -> Option<bool> {
        with(|s| {
            let root = s.space(space).root;
            s.memory.accessed(root, va)
        })
    }

    /// The timer's work for the library: what is pending until the next tick is done.
    pub fn tick(&mut self) {
        engine::irqs(false);
        let begun = now();
        with(|s| s.library).tick();
        if self.current().is_some() {
            check(begun);
        }
        engine::irqs(true);
    }
}

/// The oracle's time.
pub(super) fn now() -> Epoch {
    with(|s| s.memory.now())
}

/// A switch or a tick of the executing CPU that began then is over: nothing that was told before
/// may be cached still.
pub(super) fn check(begun: Epoch) {
    let checked_now = with(|s| {
        let cpu = s.executing() as usize;
        let Some((root, _)) = s.cpus[cpu].loaded else { return Ok(()) };
        let aged = s.memory.aged(root);
        if aged == Epoch::default() || s.cpus[cpu].ages_checked == Some((root, aged)) {
            return Ok(());
        }
        if aged <= begun {
            s.cpus[cpu].ages_checked = Some((root, aged));
        }
        s.mmus.of(cpu).check_ages(&s.memory, begun)
    });
    checked(checked_now);
}

/// The entries of a page are gone on every CPU that runs its space in user mode.
fn check_everywhere(root: Root, va: u64) {
    let checked_now = with(|s| {
        let since = s.memory.now();
        for cpu in 0..s.cpus.len() {
            let Some(space) = s.cpus[cpu].current else { continue };
            let number = u32::try_from(cpu).expect("at most 4096 CPUs");
            if s.spaces[space.0 as usize].root == root
                && engine::with(|e| e.is_in_user_mode(number))
            {
                s.mmus.of(cpu).check_age(&s.memory, va, since)?;
            }
        }
        Ok(())
    });
    checked(checked_now);
}
