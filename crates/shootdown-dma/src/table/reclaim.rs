//! Tables that have become empty: taken out of the tree, and put back if they are needed again.
//!
//! [`super`] describes the protocol.

use super::detached::{Detached, Detachments};
use super::format::{Decoded, Format, word};
use super::memory::TableMemory;
use super::{IoPageTable, chunks, put, span};
use crate::addr::PhysAddr;
use crate::sync::{AtomicU64, Ordering};

impl<F: Format, M: TableMemory> IoPageTable<F, M> {
    /// Looks at the next `budget` tables in turn, and takes out those that are empty, as long as
    /// `detached` has room. The caller must invalidate and finish each of them. `None`: another CPU
    /// sweeps; otherwise how many it has taken out.
    ///
    /// One table costs reading its entries up to the first live one, or 512 compare-and-swaps.
    /// Tables of tables are included.
    pub fn sweep(&self, budget: usize, detached: &mut Detachments) -> Option<usize> {
        self.reclaim.alone(|state| {
            let before = detached.len();
            let mut sweep =
                Sweep { from: state.sweep, budget, retirements: &mut state.retirements, detached };
            let top = self.format.levels() - 1;
            let finished = self.sweep_below(self.root, top, 0, &mut sweep);
            state.sweep = if finished { 0 } else { sweep.from };
            detached.len() - before
        })
    }

    /// Sweeps the tables below this one. False: the budget, or the room, is used up.
    fn sweep_below(&self, phys: PhysAddr, level: u32, base: u64, sweep: &mut Sweep<'_>) -> bool {
        let skip = (sweep.from.saturating_sub(base) / span::<F>(level)) as usize;
        // SAFETY: it is in the tree, and only freed under the lock, which the caller has.
        let all = unsafe { self.chunks_of(phys, self.chunks_at(level)) }.flatten().enumerate();
        for (n, slot) in all.skip(skip) {
            let first = base + n as u64 * span::<F>(level);
            let Decoded::Table(below) = self.format.decode(slot.load(Ordering::Acquire), level)
            else {
                continue;
            };
            if level > 1 && !self.sweep_below(below, level - 1, first, sweep) {
                return false;
            }
            if sweep.budget == 0 || sweep.detached.is_full() {
                // The tables below this one were looked at: the next sweep starts at its end.
                let below = if level > 1 { span::<F>(level) - 1 } else { 0 };
                sweep.from = first + below;
                return false;
            }
            sweep.budget -= 1;
            if let Some(gone) = self.detach(phys, n, level, first, sweep.retirements) {
                sweep.detached.push(gone);
            }
        }
        true
    }

    /// Takes out the table below this entry if it is empty. The caller has the lock.
    fn detach(
        &self,
        parent: PhysAddr,
        n: usize,
        level: u32,
        first: u64,
        retirements: &mut u64,
    ) -> Option<Detached> {
        // SAFETY: it is in the tree, and only freed under the lock, which the caller has; the same
        // holds for the table below.
        let slot = unsafe { self.slot(parent, n) };
        let mut entry = slot.load(Ordering::Acquire);
        let Decoded::Table(below) = self.format.decode(entry, level) else {
            return None;
        };
        if entry & F::PENDING != 0 {
            return None;
        }
        // SAFETY: see above.
        let table = || unsafe { self.chunks_of(below, chunks::<F>()) }.flatten();
        // Most are not empty: find that without writing.
        if !table().all(|slot| word::is_vacant(slot.load(Ordering::Relaxed))) {
            return None;
        }
        // ORDERING: Release, and so are the tombstones: a CPU that sees one of them sees the mark.
        // Without it that CPU could map into the table without calling off the retirement.
        while let Err(other) =
            slot.compare_exchange(entry, entry | F::RETIRING, Ordering::AcqRel, Ordering::Acquire)
        {
            entry = other; // it was written back
        }
        *retirements += 1;
        let tomb = word::tombstone(*retirements);
        if self.entomb(table(), tomb) && self.unlink(slot, below, level, F::RETIRING) {
            return Some(Detached {
                parent,
                slot: n as u32,
                level: level as u8,
                table: below,
                first,
                bits: (F::INDEX * level) as u8,
            });
        }
        for slot in table() {
            // An entry that is mapped by now stays.
            let _ = slot.compare_exchange(tomb, word::EMPTY, Ordering::AcqRel, Ordering::Relaxed);
        }
        let mut entry = slot.load(Ordering::Acquire);
        while entry & F::RETIRING != 0 && !self.call_off(slot, entry) {
            entry = slot.load(Ordering::Acquire);
        }
        None
    }

    /// Makes all entries of an empty table tombstones. False: it is not empty.
    fn entomb<'a>(&self, table: impl Iterator<Item = &'a AtomicU64>, tomb: u64) -> bool {
        for slot in table {
            let mut entry = word::EMPTY;
            // ORDERING: Acquire, with the Release of the CPU that cleared the entry, which does not
            // use the table any more.
            while let Err(other) =
                slot.compare_exchange(entry, tomb, Ordering::AcqRel, Ordering::Acquire)
            {
                if !word::is_vacant(other) {
                    return false;
                }
                entry = other; // from an earlier retirement
            }
        }
        true
    }

    /// Makes the entry that leads to an entombed table *detached*. False: the entry has lost its
    /// mark. The caller has the lock.
    fn unlink(&self, slot: &AtomicU64, below: PhysAddr, level: u32, mark: u64) -> bool {
        let mut entry = slot.load(Ordering::Acquire);
        loop {
            debug_assert_eq!(self.format.decode(entry, level), Decoded::Table(below));
            if entry & mark != mark {
                return false;
            }
            // ORDERING: Release, with the Acquire of `put_back`: it sees all tombstones.
            match slot.compare_exchange(
                entry,
                word::detached(below.0),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(other) => entry = other,
            }
        }
        self.show(core::slice::from_ref(slot));
        true
    }

    /// Clears the mark that the table below is about to be taken out. False: the entry has changed.
    pub(super) fn call_off(&self, slot: &AtomicU64, entry: u64) -> bool {
        let kept = entry & !F::RETIRING;
        slot.compare_exchange(entry, kept, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Clears all the entries of a table, which are mapped and belong to the caller, and takes it
    /// out. False: nothing was done.
    #[cold]
    pub(super) fn clear_and_detach(
        &self,
        entries: &[AtomicU64],
        page: u64,
        level: u32,
        detached: &mut Detachments,
    ) -> bool {
        if level + 1 == self.format.levels() || detached.is_full() {
            return false;
        }
        self.reclaim
            .alone(|state| {
                let Some((parent, below)) = self.parent_of(page, level + 1) else {
                    return false;
                };
                let n = self.number(page, level + 1);
                // SAFETY: it is in the tree, and only freed under the lock.
                let slot = unsafe { self.slot(parent, n) };
                let entry = slot.load(Ordering::Acquire);
                let leaves = level == 0
                    || entries.iter().all(|e| !self.is_table(e.load(Ordering::Relaxed), level));
                if !leaves || entry & F::PENDING != 0 {
                    return false;
                }
                state.retirements += 1;
                let tomb = word::tombstone(state.retirements);
                for slot in entries {
                    put(slot, tomb);
                }
                self.show(entries);
                self.unlink(slot, below, level + 1, 0);
                let first = page & !(span::<F>(level + 1) - 1);
                let level = level as u8 + 1;
                let (slot, bits) = (n as u32, F::INDEX as u8 * level);
                detached.push(Detached { parent, slot, level, table: below, first, bits });
                true
            })
            .unwrap_or(false)
    }

    /// The table at `level` that covers `page`, and the one below it there. The caller has the
    /// lock.
    fn parent_of(&self, page: u64, level: u32) -> Option<(PhysAddr, PhysAddr)> {
        let mut phys = self.root;
        let mut at = self.format.levels() - 1;
        loop {
            // SAFETY: it is in the tree, and only freed under the lock, which the caller has.
            let entry = unsafe { self.slot(phys, self.number(page, at)) }.load(Ordering::Acquire);
            let Decoded::Table(below) = self.format.decode(entry, at) else {
                return None;
            };
            if at == level {
                return Some((phys, below));
            }
            (phys, at) = (below, at - 1);
        }
    }

    #[inline]
    pub(super) fn is_table(&self, entry: u64, level: u32) -> bool {
        matches!(self.format.decode(entry, level), Decoded::Table(_))
    }

    /// Puts a detached table back where it was, empty. False: the entry has changed.
    pub(super) fn put_back(
        &self,
        slot: &AtomicU64,
        entry: u64,
        below: PhysAddr,
        level: u32,
    ) -> bool {
        // SAFETY: our walk is posted, and the entry has named the table since.
        let table = unsafe { self.chunks_of(below, chunks::<F>()) }.flatten();
        // SAFETY: as above. All entries are the same, if the table is still detached.
        let tomb = unsafe { self.slot(below, 0) }.load(Ordering::Acquire);
        let linked = self.format.table(below, level) | F::PENDING;
        // ORDERING: Acquire, with the Release of `unlink`: what is stored here comes after the
        // tombstones.
        if slot.compare_exchange(entry, linked, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        self.rely_on(slot, linked, level);
        for slot in table {
            // Other CPUs may have mapped there by now, since the tombstone counts as empty.
            let _ = slot.compare_exchange(tomb, word::EMPTY, Ordering::AcqRel, Ordering::Relaxed);
        }
        true
    }
}

struct Sweep<'a> {
    from: u64,
    budget: usize,
    retirements: &'a mut u64,
    detached: &'a mut Detachments,
}
