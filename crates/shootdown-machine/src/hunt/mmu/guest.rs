//! CPUs that do not walk, and what a hypervisor does to them.

use shootdown::{Reach, Tag};

use super::{Loaded, Mmu, Tables};
use crate::hostile::{Invalidation, Pages, TableId};
use crate::hunt::guest::Forget;
use crate::hunt::memory::SharedMemory;

impl Mmu {
    /// What was loaded before [`Self::halt`] is loaded again, by the hypervisor.
    pub fn reload(&mut self, memory: &SharedMemory, cpu: u8, root: TableId, tag: Tag) {
        self.hash = None;
        self.loaded[cpu as usize] = Some(Loaded { root, tag });
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        hostile
            .load(&tables, usize::from(cpu), Some(root), tag, true)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    pub fn halt(&mut self, memory: &SharedMemory, cpu: u8) {
        self.hash = None;
        self.loaded[cpu as usize] = None;
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        hostile
            .load(&tables, usize::from(cpu), None, Tag(0), true)
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// The hypervisor makes a CPU forget, and waits until that is over.
    pub fn forget_on(&mut self, memory: &SharedMemory, cpu: u8, what: Forget) {
        self.hash = None;
        let what = match what {
            Forget::Pages { first, last } => Invalidation::tlbi_va_any_last(Pages { first, last }),
            Forget::Everything => Invalidation::everything(),
        };
        let at = usize::from(cpu);
        let Self { hostile, entries, .. } = self;
        let tables = Tables { memory, entries, shape: hostile.rules().shape };
        hostile.invalidate(&tables, at, what, Reach::Local).unwrap_or_else(|e| panic!("{e}"));
        hostile.sync(at);
        hostile.context_sync(&tables, at).unwrap_or_else(|e| panic!("{e}"));
    }
}
