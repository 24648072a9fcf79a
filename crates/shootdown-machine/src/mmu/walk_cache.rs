//! Walk caches: non-leaf entries that a CPU remembers, so that a walk need not start at the root.
//!
//! Three of them, for entries of level 3 (PML4E), 2 (PDPTE) and 1 (PDE). An entry answers for all
//! addresses it leads to. It goes on leading to its table whatever becomes of the table entry it
//! was made from, or of the table.

use shootdown::VaRange;

use crate::mmu::addr::{Frame, SlotId, TableId, stride_in, va_of, vpn};
use crate::mmu::array::{Entries, Entry, KEY_PAGE_BITS, context_of, key};
use crate::mmu::geometry::Array;
use crate::mmu::tags::Contexts;
use crate::oracle::Epoch;

/// The walk caches of one CPU, top level first.
#[derive(Debug)]
pub(crate) struct WalkCaches {
    caches: [Option<Entries>; 3],
}

/// Which cache holds entries of this level, and how many address bits an entry leaves open.
const fn place(level: u8) -> (usize, u32) {
    (3 - level as usize, 9 * level as u32)
}

impl WalkCaches {
    pub(crate) fn new(entries: [u16; 3]) -> Self {
        Self {
            caches: entries.map(|n| {
                (n != 0).then(|| Entries::new(Array { entries: n, ways: 0, holds: [false; 3] }))
            }),
        }
    }

    /// The entry nearest to the leaf: its level and itself.
    pub(crate) fn deepest(&mut self, va: u64, context: u32) -> Option<(u8, &mut Entry)> {
        for level in 1..=3 {
            let (i, shift) = place(level);
            if let Some(cache) = &mut self.caches[i]
                && let Some(at) = cache.find(key(vpn(va) >> shift, 0, context))
            {
                return self.caches[i].as_mut().map(|cache| (level, cache.at(at)));
            }
        }
        None
    }

    /// Remembers that entry `slot` of this level leads to `next`.
    pub(crate) fn insert(
        &mut self,
        va: u64,
        level: u8,
        context: u32,
        (slot, next): (SlotId, TableId),
        now: Epoch,
        alive: &Contexts,
    ) {
        let (i, shift) = place(level);
        if let Some(cache) = &mut self.caches[i] {
            let entry = Entry { frame: Frame(next.0), rights: 0, slot, filled: now, verified: now };
            cache.insert(key(vpn(va) >> shift, 0, context), entry, alive);
        }
    }

    /// Drops what lies on the path of an address.
    pub(crate) fn drop_path(&mut self, va: u64, context: u32) {
        for level in 1..=3 {
            let (i, shift) = place(level);
            if let Some(cache) = &mut self.caches[i] {
                cache.remove(key(vpn(va) >> shift, 0, context));
            }
        }
    }

    /// Drops what lies on the path of the first address of any stride of a range.
    pub(crate) fn drop_paths(&mut self, range: VaRange, context: u32) {
        for level in 1..=3 {
            let (i, shift) = place(level);
            if let Some(cache) = &mut self.caches[i] {
                cache.retain(|k| {
                    let first = va_of((k & KEY_PAGE_BITS) << shift);
                    let last = first + ((1 << (shift + 12)) - 1);
                    context_of(k) != context || !stride_in(first, last, range)
                });
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        for cache in self.caches.iter_mut().flatten() {
            cache.retain(|_| false);
        }
    }

    pub(crate) fn for_each(&self, mut f: impl FnMut(u64, &Entry)) {
        for cache in self.caches.iter().flatten() {
            cache.for_each(&mut f);
        }
    }
}
