//! Tables that were invalidated: freed when no walker of ours uses them any more.
//!
//! They wait in three lists. *Fresh* tables were just finished. *Waiting* tables were fresh when
//! all epoch slots were read, and wait for the walks that were posted then. *Held* tables have
//! passed that, and are freed when no epoch slot holds them. The lists are linked through the first
//! words of the dead tables, which stay tombstones: waiting costs no memory.
//!
//! One CPU at a time does this and retires tables (`reclaim`), under a lock that is only tried,
//! never waited for. Mapping does not take the lock, and a CPU that does not get it leaves the work
//! to the next call.

use core::fmt;

use super::detached::Detached;
use super::epoch_slot::EpochSlot;
use super::format::{ADDRESS, Format, word};
use super::memory::{CHUNK, TableMemory};
use super::{IoPageTable, chunks};
use crate::addr::PhysAddr;
use crate::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell};

/// What the lock protects.
pub(super) struct State {
    /// Where the next sweep begins.
    pub sweep: u64,
    /// Retirements so far. (Their tombstones have 40 bits for it: no CPU remembers one for that
    /// long.)
    pub retirements: u64,
    /// Dead tables that wait for walks: the first of a list, or 0.
    waiting: u64,
    /// Dead tables that no walk uses, but that a slot may hold.
    held: u64,
}

pub(super) struct Reclaim {
    busy: AtomicBool,
    state: UnsafeCell<State>,
    /// Dead tables that were just finished: the first of a list that grows by compare-and-swap.
    fresh: AtomicU64,
}

// SAFETY: the state belongs to the holder of the lock.
unsafe impl Sync for Reclaim {}
// SAFETY: as above; it has no part that belongs to a thread.
unsafe impl Send for Reclaim {}

impl Reclaim {
    pub fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            state: UnsafeCell::new(State { sweep: 0, retirements: 0, waiting: 0, held: 0 }),
            fresh: AtomicU64::new(0),
        }
    }

    /// Calls `f` alone; `None` if another CPU has the lock.
    pub fn alone<R>(&self, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        // ORDERING: Acquire, with the Release below: sees what the last holder did.
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: the flag was clear and is set now.
        let result = self.state.with_mut(|state| f(unsafe { &mut *state }));
        self.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// Calls `f` for every dead table, when no other user is left.
    pub fn for_each_dead<M: TableMemory>(&self, memory: &M, mut f: impl FnMut(PhysAddr)) {
        let fresh = self.fresh.swap(0, Ordering::Acquire);
        self.alone(|state| {
            for list in [fresh, state.waiting, state.held] {
                each(memory, list, &mut f);
            }
        });
    }
}

/// Walks a list of dead tables; `f` may free each of them.
fn each<M: TableMemory>(memory: &M, mut at: u64, mut f: impl FnMut(PhysAddr)) {
    while at != 0 {
        let page = PhysAddr(at);
        // SAFETY: dead tables are not freed before `f`.
        at = unsafe { memory.table(page) }[0].load(Ordering::Relaxed) & ADDRESS;
        f(page);
    }
}

/// Puts a dead table at the front of a list.
fn hang<M: TableMemory>(memory: &M, page: PhysAddr, list: &mut u64) {
    // SAFETY: dead, and not freed yet.
    let table = unsafe { memory.table(page) };
    table[0].store(word::TOMBSTONE | word::DEAD | *list, Ordering::Relaxed);
    *list = page.0;
}

impl<F: Format, M: TableMemory> IoPageTable<F, M> {
    /// Records that the invalidation of a table that was taken out is complete. Its page is freed
    /// when no walk uses it any more, now or by a later call of this or [`collect`](Self::collect);
    /// unless the table was put back.
    ///
    /// # Safety
    /// Since the table was taken out its [range](Detached::range) was invalidated, with table
    /// entries, in every IOMMU that may have walked it; and that is complete.
    pub unsafe fn finish(&self, detached: Detached) {
        let Detached { parent, slot, level, table, .. } = detached;
        let level = level.into();
        // SAFETY: its entry is not empty before this is done, and only empty tables are taken out.
        let slot = unsafe { self.slot(parent, slot as usize) };
        // ORDERING: Release, with the Acquire of the CPU that puts another table there.
        let away = slot.compare_exchange(
            word::detached(table.0),
            word::EMPTY,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if let Err(mut entry) = away {
            // It was put back. When the mark is gone it can be taken out again.
            self.rely_on(slot, entry, level);
            while let Err(other) = slot.compare_exchange(
                entry,
                entry & !F::PENDING,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                entry = other;
            }
            return;
        }
        let mut fresh = self.reclaim.fresh.load(Ordering::Relaxed);
        loop {
            let mut list = fresh;
            hang(&self.memory, table, &mut list);
            // ORDERING: Release, with the Acquire of `collect`: it comes after the table was taken
            // out.
            match self.reclaim.fresh.compare_exchange(
                fresh,
                list,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(other) => fresh = other,
            }
        }
        self.collect();
    }

    /// Frees those of the [finished](Self::finish) tables that no walk uses any more; returns how
    /// many.
    pub fn collect(&self) -> usize {
        self.reclaim
            .alone(|state| {
                // First those that wait, then those that came since, which often need not wait.
                let freed = self.collect_waiting(state);
                if state.waiting == 0 {
                    // ORDERING: Acquire, with the Release of `finish`.
                    state.waiting = self.reclaim.fresh.swap(0, Ordering::Acquire);
                    if state.waiting != 0 {
                        self.all_epoch_slots().for_each(EpochSlot::await_walk);
                        return freed + self.collect_waiting(state);
                    }
                }
                freed
            })
            .unwrap_or(0)
    }

    fn collect_waiting(&self, state: &mut State) -> usize {
        if state.waiting != 0 && self.all_epoch_slots().all(EpochSlot::has_walked) {
            let waiting = core::mem::take(&mut state.waiting);
            each(&self.memory, waiting, |page| hang(&self.memory, page, &mut state.held));
        }
        let mut freed = 0;
        let held = core::mem::take(&mut state.held);
        each(&self.memory, held, |page| {
            if self
                .all_epoch_slots()
                .any(|epoch_slot| epoch_slot.holds(page, chunks::<F>() as u64 * CHUNK))
            {
                hang(&self.memory, page, &mut state.held);
            } else {
                freed += 1;
                // SAFETY: its invalidation is complete (`finish`), no walk is left that could have
                // found it, and no slot holds it (I1, I2 of `epoch_slot`).
                unsafe { self.free_table(page) };
            }
        });
        freed
    }
}

impl fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaim").finish_non_exhaustive()
    }
}
