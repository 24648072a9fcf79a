//! Kernel mappings, shared by all spaces, and walks ahead of any use.
//!
//! Without split tables kernel pages are global: one entry serves all tags. With them none is, and
//! the same page may be cached under the tag of every space a CPU remembers; the library's kernel
//! flush has to reach all of those.

use shootdown::facts::SplitTables;
use shootdown::ids::Stride;

use super::Kernel;
use super::port::checked;
use super::state::with;
use crate::engine;
use crate::mmu::{Access, KERNEL_BASE, KERNEL_BYTES, Perms, Root, Trap};

const PAGE: u64 = Stride::Page4K.bytes();

impl Kernel {
    /// Maps `pages` kernel pages, seen by every CPU; returns where.
    ///
    /// # Panics
    /// When the kernel's window or memory is used up.
    pub fn map_kernel(&mut self, pages: u64) -> u64 {
        self.begin_call();
        with(|s| {
            let va = KERNEL_BASE + s.kernel_used;
            s.kernel_used += pages * PAGE;
            assert!(s.kernel_used <= KERNEL_BYTES, "the kernel's window is used up");
            let global = s.facts.split_tables == SplitTables::No;
            let perms = Perms { global, ..Perms::KERNEL_RW };
            for page in 0..pages {
                let frame = s.memory.alloc(Stride::Page4K).unwrap_or_else(|e| panic!("{e}"));
                s.memory
                    .map(Root::KERNEL, va + page * PAGE, frame, Stride::Page4K, perms)
                    .unwrap_or_else(|e| panic!("{e}"));
            }
            va
        })
    }

    /// Unmaps kernel pages, makes every CPU forget them, and frees their frames. The tables stay.
    pub fn unmap_kernel(&mut self, va: u64, pages: u64) {
        self.begin_call();
        let gone: Vec<_> = with(|s| {
            (0..pages).filter_map(|page| s.memory.unmap(Root::KERNEL, va + page * PAGE)).collect()
        });
        self.flush_kernel(va, pages);
        with(|s| {
            for page in gone {
                s.memory.free(page.frame).unwrap_or_else(|e| panic!("{e}"));
            }
        });
    }

    /// Accesses one word in each of `pages` pages from kernel mode, kernel pages or pages of the
    /// loaded space; returns how many are mapped. Faults are not handled.
    pub fn touch_kernel(&mut self, va: u64, pages: u64, write: bool) -> u64 {
        let kind = if write { Access::KernelWrite } else { Access::KernelRead };
        let mut mapped = 0;
        for page in 0..pages {
            engine::step();
            let (result, cost) = with(|s| {
                let cpu = s.executing() as usize;
                let result = s.mmus.of(cpu).translate(&mut s.memory, va + page * PAGE, kind);
                (result, s.costs.dependent)
            });
            match result {
                Ok(_) => mapped += 1,
                Err(Trap::Fault(_)) => {}
                Err(Trap::Violation(violation)) => checked(Err(violation)),
            }
            engine::charge(cost);
        }
        mapped
    }

    /// Runs `body` with interrupts off, as under a lock that an interrupt handler takes too.
    ///
    /// # Panics
    /// When `body` flushes: that needs interrupts on.
    pub fn with_interrupts_off<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        let was = engine::irqs(false);
        let result = body(self);
        engine::irqs(was);
        result
    }

    /// The CPU walks to an address of what it has loaded, ahead of any use, and caches what it
    /// finds, as hardware may do at any time. Returns whether something is mapped there and was
    /// not cached.
    pub fn speculate(&mut self, va: u64) -> bool {
        engine::step();
        checked(with(|s| {
            let cpu = s.executing() as usize;
            s.mmus.of(cpu).speculate(&mut s.memory, va)
        }))
    }
}
