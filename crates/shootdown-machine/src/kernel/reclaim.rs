//! Reclaim: pages of many spaces go in one batch.

use shootdown::ids::VaRange;

use super::memory::page_of;
use super::state::with;
use super::{Kernel, Space};
use crate::engine;
use crate::mmu::Root;
use crate::oracle::{Event, FlushToken};
use crate::time::Time;

/// What a batch will make every CPU forget of one space.
struct Going {
    root: Root,
    range: VaRange,
    token: FlushToken,
}

impl Kernel {
    /// Unmaps single pages of any spaces: clears one entry after the other, `look` being spent on
    /// each, then has the CPUs concerned told once, and frees the frames. Says how many were
    /// mapped. The pages count as clean.
    pub fn reclaim(&mut self, mappings: &[(Space, u64)], look: Time) -> u64 {
        let (library, edit) = with(|s| (s.library, s.costs.entry_edit));
        let handles: Vec<_> = mappings
            .iter()
            .map(|(space, _)| with(|s| s.space(*space).handle.expect("checked")))
            .collect();
        let mut going: Vec<Going> = Vec::new();
        let mut clear = |index: usize| {
            let (space, va) = mappings[index];
            engine::compute(look);
            engine::step();
            self.act();
            let (root, page) = with(|s| {
                let root = s.space(space).root;
                (root, s.memory.unmap(root, va))
            });
            let page = page?;
            let mine = page_of(page.va, page.size);
            let before = going.iter().position(|g| g.root == root);
            let range = before.map_or(mine, |i| going.swap_remove(i).range.merge(&mine));
            let token = with(|s| s.memory.flush_begins(root, Some(range), false));
            engine::note(Event::FlushBegins {
                root: Some(root),
                range: Some(mine),
                freed_tables: false,
            });
            going.push(Going { root, range, token });
            engine::compute(edit);
            Some((mine, page))
        };
        let freed = library
            .reclaim(&handles, &mut clear)
            .unwrap_or_else(|e| panic!("a memory call outside of task context: {e}"));
        for Going { token, .. } in going {
            self.returned(token);
        }
        let cleared = freed.len() as u64;
        self.free(freed);
        cleared
    }
}
