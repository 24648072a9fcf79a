//! Tables that have become empty: taken out of the tree, put back if they are wanted after all, and freed.
//!
//! The protocol is told in [`super`]. Here is what it takes beside compare-and-swaps: a lock that is only tried, never waited
//! for, so that one at a time tombstones and one at a time frees. Mapping does not know of it, and whoever does not get
//! it leaves the work to the next time.
//!
//! What waits to be freed costs no memory: it hangs in lists through the dead tables' own first words, which stay tombstones.

use core::fmt;
use core::mem::MaybeUninit;

use super::format::{ADDRESS, Decoded, Format, word};
use super::memory::{ENTRIES, Table, TableMemory};
use super::seat::Seat;
use super::walk::Walker;
use super::{IoPageTable, index, put, span};
use crate::addr::{IovaRange, PhysAddr};
use crate::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell};

/// A table that was taken out. Its range is to be invalidated, with table entries; then [`IoPageTable::finish`] is told.
///
/// Forgetting it loses a page until the whole table is freed.
#[must_use = "the table's page is freed when this is invalidated and finished"]
#[derive(PartialEq, Eq, Debug)]
pub struct Detached {
    parent: PhysAddr,
    slot: u16,
    /// The level of the parent.
    level: u8,
    table: PhysAddr,
    first: u64,
}

impl Detached {
    /// What is to be invalidated: everything below the entry that led to the table.
    #[must_use]
    pub fn range(&self) -> IovaRange {
        let pages = span(self.level.into());
        // Page 0 is nobody's; the entry is covered by any of its pages.
        let (first, pages) = if self.first == 0 { (1, pages - 1) } else { (self.first, pages) };
        match IovaRange::new(first, pages) {
            Some(range) => range,
            None => unreachable!("tables cover two pages at least, and end before 2^52"),
        }
    }
}

/// Tables that were taken out: as many as there is room for.
///
/// An empty one costs nothing to make.
pub struct Detachments {
    /// The first `len` of them are there.
    tables: [MaybeUninit<Detached>; Self::ROOM],
    len: usize,
}

impl Detachments {
    /// For how many tables there is room.
    pub const ROOM: usize = 16;

    /// None yet.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self { tables: [const { MaybeUninit::uninit() }; Self::ROOM], len: 0 }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Is there no more room?
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len == Self::ROOM
    }

    /// The one that came last.
    pub fn pop(&mut self) -> Option<Detached> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: it is there, and now it is not counted any more.
        Some(unsafe { self.tables[self.len].assume_init_read() })
    }

    /// All of them, to be looked at.
    pub fn iter(&self) -> impl Iterator<Item = &Detached> {
        // SAFETY: as many are there.
        self.tables[..self.len].iter().map(|table| unsafe { table.assume_init_ref() })
    }

    fn push(&mut self, detached: Detached) {
        self.tables[self.len].write(detached);
        self.len += 1;
    }
}

impl Default for Detachments {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Detachments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What the lock protects.
struct State {
    /// Where the next sweep begins.
    sweep: u64,
    /// Burials so far. (Their tombstones have 40 bits for it: nobody remembers one for so long.)
    burials: u64,
    /// Dead tables whose walkers are waited for: the first of a list, or 0.
    waiting: u64,
    /// Dead tables that nobody walks, but may hold.
    held: u64,
}

pub(super) struct Reclaim {
    busy: AtomicBool,
    state: UnsafeCell<State>,
    /// Dead tables that were just finished: the first of a list that grows by compare-and-swap.
    fresh: AtomicU64,
}

// SAFETY: the state belongs to whoever has the lock.
unsafe impl Sync for Reclaim {}
// SAFETY: as above; it has no part that belongs to a thread.
unsafe impl Send for Reclaim {}

impl Reclaim {
    pub fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            state: UnsafeCell::new(State { sweep: 0, burials: 0, waiting: 0, held: 0 }),
            fresh: AtomicU64::new(0),
        }
    }

    /// Does `f` alone; `None` if somebody else is at it.
    fn alone<R>(&self, f: impl FnOnce(&mut State) -> R) -> Option<R> {
        // ORDERING: Acquire, with the Release below: sees what the last one did.
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: the flag was clear and is set now.
        let result = self.state.with_mut(|state| f(unsafe { &mut *state }));
        self.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// Every dead table, when nobody else is there.
    pub fn for_each_dead<M: TableMemory>(&self, memory: &M, mut f: impl FnMut(PhysAddr)) {
        let fresh = self.fresh.swap(0, Ordering::Acquire);
        self.alone(|state| {
            for list in [fresh, state.waiting, state.held] {
                each(memory, list, &mut f);
            }
        });
    }
}

/// Goes along a list of dead tables, whose links may be used up as it goes.
fn each<M: TableMemory>(memory: &M, mut at: u64, mut f: impl FnMut(PhysAddr)) {
    while at != 0 {
        let page = PhysAddr(at);
        // SAFETY: dead tables are not freed before `f`.
        at = unsafe { memory.table(page) }[0].load(Ordering::Relaxed) & ADDRESS;
        f(page);
    }
}

/// Hangs a dead table before a list.
fn hang<M: TableMemory>(memory: &M, page: PhysAddr, list: &mut u64) {
    // SAFETY: dead, and not freed yet.
    let table = unsafe { memory.table(page) };
    table[0].store(word::TOMBSTONE | word::DEAD | *list, Ordering::Relaxed);
    *list = page.0;
}

impl<F: Format, M: TableMemory> IoPageTable<F, M> {
    /// Takes out the leaf tables that cover pages of `range`, as far as they are empty, and as long as `detached` has room.
    /// `None`: somebody else is at it; otherwise how many it has taken out.
    ///
    /// The way to keep up with page-wise unmapping at no cost in invalidations: call it for the ranges of a batch, invalidate
    /// all of the batch at once (with table entries, if there is any), and then [finish](Self::finish) what it gave.
    pub fn reclaim(&self, range: IovaRange, detached: &mut Detachments) -> Option<usize> {
        if self.format.levels() == 1 || !self.resolves(range) {
            return Some(0);
        }
        self.reclaim.alone(|state| {
            let before = detached.len();
            let mut first = range.first() & !(span(1) - 1);
            while first <= range.last() && !detached.is_full() {
                let gone = self.parent_of(first, 1).and_then(|(parent, _)| {
                    self.detach(parent, index(first, 1), 1, first, &mut state.burials)
                });
                if let Some(gone) = gone {
                    detached.push(gone);
                }
                first += span(1);
            }
            detached.len() - before
        })
    }

    /// Looks at the next `budget` tables in turn, and takes out those that are empty, as long as `detached` has room. Each one is to be
    /// invalidated and finished. `None`: somebody else is at it; otherwise how many it has taken out.
    ///
    /// One table costs a look at its entries up to the first live one, or 512 compare-and-swaps. Unlike
    /// [`reclaim`](Self::reclaim) it also finds tables of tables, and what that had no room for.
    pub fn sweep(&self, budget: usize, detached: &mut Detachments) -> Option<usize> {
        self.reclaim.alone(|state| {
            let before = detached.len();
            let mut sweep =
                Sweep { from: state.sweep, budget, burials: &mut state.burials, detached };
            let top = self.format.levels() - 1;
            let finished = self.sweep_below(self.root, top, 0, &mut sweep);
            state.sweep = if finished { 0 } else { sweep.from };
            detached.len() - before
        })
    }

    /// Sweeps the tables below this one. False: out of budget, or of room.
    fn sweep_below(&self, phys: PhysAddr, level: u32, base: u64, sweep: &mut Sweep<'_>) -> bool {
        // SAFETY: in the tree, and only freed under the lock, which we have.
        let table = unsafe { self.memory.table(phys) };
        let skip = if sweep.from > base { ((sweep.from - base) / span(level)) as usize } else { 0 };
        for (n, slot) in table.iter().enumerate().skip(skip) {
            let first = base + n as u64 * span(level);
            let Decoded::Table(below) = self.format.decode(slot.load(Ordering::Acquire), level)
            else {
                continue;
            };
            if level > 1 && !self.sweep_below(below, level - 1, first, sweep) {
                return false;
            }
            if sweep.budget == 0 || sweep.detached.is_full() {
                sweep.from = first;
                return false;
            }
            sweep.budget -= 1;
            if let Some(gone) = self.detach(phys, n, level, first, sweep.burials) {
                sweep.detached.push(gone);
            }
        }
        true
    }

    /// Takes out the table below this entry if it is empty. We have the lock.
    fn detach(
        &self,
        parent: PhysAddr,
        n: usize,
        level: u32,
        first: u64,
        burials: &mut u64,
    ) -> Option<Detached> {
        // SAFETY: in the tree, and only freed under the lock, which we have; and so with the table below.
        let slot = &unsafe { self.memory.table(parent) }[n];
        let mut entry = slot.load(Ordering::Acquire);
        let Decoded::Table(below) = self.format.decode(entry, level) else {
            return None;
        };
        if entry & F::PENDING != 0 && !without!(PendingIgnored) {
            return None;
        }
        // SAFETY: see above.
        let table = unsafe { self.memory.table(below) };
        // Most are not empty: see that without writing.
        if !table.iter().all(|slot| word::is_vacant(slot.load(Ordering::Relaxed))) {
            return None;
        }
        // ORDERING: Release, and so are the tombstones: who sees one of them sees the mark.
        while let Err(other) =
            slot.compare_exchange(entry, entry | F::BURYING, Ordering::AcqRel, Ordering::Acquire)
        {
            entry = other; // it was written back
        }
        *burials += 1;
        let tomb = word::tombstone(*burials);
        if self.entomb(table, tomb) && self.unlink(slot, below, level, F::BURYING) {
            return Some(Detached {
                parent,
                slot: n as u16,
                level: level as u8,
                table: below,
                first,
            });
        }
        for slot in table {
            if without!(RollbackStores) && slot.load(Ordering::Relaxed) == tomb {
                put(slot, word::EMPTY);
            }
            // Where something is mapped by now it stays.
            let _ = slot.compare_exchange(tomb, word::EMPTY, Ordering::AcqRel, Ordering::Relaxed);
        }
        let mut entry = slot.load(Ordering::Acquire);
        while entry & F::BURYING != 0 && !self.call_off(slot, entry) {
            entry = slot.load(Ordering::Acquire);
        }
        None
    }

    /// Makes all entries of an empty table tombstones. False: it is not empty.
    fn entomb(&self, table: &Table, tomb: u64) -> bool {
        for (n, slot) in table.iter().enumerate() {
            if n == 1 && without!(TombstoneSkipped) {
                continue;
            }
            let mut entry = word::EMPTY;
            // ORDERING: Acquire, with the Release of who cleared the entry: it is done with the table.
            while let Err(other) =
                slot.compare_exchange(entry, tomb, Ordering::AcqRel, Ordering::Acquire)
            {
                if !word::is_vacant(other) {
                    if without!(LiveEntryEntombed) {
                        break;
                    }
                    return false;
                }
                entry = other; // from an earlier burial
            }
        }
        true
    }

    /// Makes the entry that leads to an entombed table *detached*. False: it has lost its mark. We have the lock.
    fn unlink(&self, slot: &AtomicU64, below: PhysAddr, level: u32, mark: u64) -> bool {
        let mut entry = slot.load(Ordering::Acquire);
        loop {
            debug_assert_eq!(self.format.decode(entry, level), Decoded::Table(below));
            if entry & mark != mark && !without!(CallOffIgnored) {
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

    /// Takes off the mark that the table below is about to be taken out. False: the entry has changed.
    pub(super) fn call_off(&self, slot: &AtomicU64, entry: u64) -> bool {
        let kept = entry & !F::BURYING;
        slot.compare_exchange(entry, kept, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Clears all the entries of a table, which are mapped and the caller's, and takes it out. False: nothing was done.
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
                let n = index(page, level + 1);
                // SAFETY: in the tree, and only freed under the lock.
                let slot = &unsafe { self.memory.table(parent) }[n];
                let entry = slot.load(Ordering::Acquire);
                let leaves = level == 0
                    || entries.iter().all(|e| !self.is_table(e.load(Ordering::Relaxed), level));
                if !leaves || (entry & F::PENDING != 0 && !without!(PendingIgnored)) {
                    return false;
                }
                state.burials += 1;
                let tomb = word::tombstone(state.burials);
                let dead = if without!(DeadTableOpen) { word::EMPTY } else { tomb };
                for slot in entries {
                    put(slot, dead);
                }
                self.show(entries);
                self.unlink(slot, below, level + 1, 0);
                let first = page & !(span(level + 1) - 1);
                let level = level as u8 + 1;
                detached.push(Detached { parent, slot: n as u16, level, table: below, first });
                true
            })
            .unwrap_or(false)
    }

    /// The table at `level` that covers `page`, and the one below it there. We have the lock.
    fn parent_of(&self, page: u64, level: u32) -> Option<(PhysAddr, PhysAddr)> {
        let mut phys = self.root;
        let mut at = self.format.levels() - 1;
        loop {
            // SAFETY: in the tree, and only freed under the lock, which we have.
            let entry = unsafe { self.memory.table(phys) }[index(page, at)].load(Ordering::Acquire);
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

    /// Puts a detached table back where it was, empty. False: the entry is another by now.
    pub(super) fn put_back(
        &self,
        slot: &AtomicU64,
        entry: u64,
        below: PhysAddr,
        level: u32,
    ) -> bool {
        // SAFETY: our walk is posted, and the table was named here since.
        let table = unsafe { self.memory.table(below) };
        // All are the same, if it is detached still.
        let tomb = table[0].load(Ordering::Acquire);
        let linked = self.format.table(below, level) | F::PENDING;
        // ORDERING: Acquire, with the Release of `unlink`: what is stored here comes after the tombstones.
        if slot.compare_exchange(entry, linked, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        self.rely_on(slot, linked, level);
        for slot in table {
            if without!(RevivalStores) && slot.load(Ordering::Relaxed) == tomb {
                put(slot, word::EMPTY);
            }
            // Others may have mapped there by now, knowing that the tombstone means nothing.
            let _ = slot.compare_exchange(tomb, word::EMPTY, Ordering::AcqRel, Ordering::Relaxed);
        }
        true
    }

    /// Takes note that the invalidation of a table that was taken out is complete. Its page is freed when nobody walks it
    /// any more, now or by a later call of this or [`collect`](Self::collect); unless the table was put back.
    ///
    /// # Safety
    /// Since the table was taken out its [range](Detached::range) was invalidated, with table entries, in every IOMMU that may have
    /// walked it; and that is complete.
    pub unsafe fn finish(&self, detached: Detached) {
        let Detached { parent, slot, level, table, .. } = detached;
        let level = level.into();
        // SAFETY: its entry is not empty before this is done, and only empty tables are taken out.
        let slot = &unsafe { self.memory.table(parent) }[slot as usize];
        // ORDERING: Release, with the Acquire of who puts another table there.
        let away = slot.compare_exchange(
            word::detached(table.0),
            word::EMPTY,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        if let (Err(mut entry), false) = (away, without!(RevivalOverlooked)) {
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
            // ORDERING: Release, with the Acquire of `collect`: it comes after the table was taken out.
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

    /// Frees what nobody walks any more of the tables that are [finished](Self::finish); how many.
    pub fn collect(&self) -> usize {
        self.reclaim
            .alone(|state| {
                // Those that are waited for, then those that came since, which often need not wait.
                let freed = self.collect_waiting(state);
                if state.waiting == 0 {
                    // ORDERING: Acquire, with the Release of `finish`.
                    state.waiting = self.reclaim.fresh.swap(0, Ordering::Acquire);
                    if state.waiting != 0 {
                        self.all_seats().for_each(Seat::await_walk);
                        return freed + self.collect_waiting(state);
                    }
                }
                freed
            })
            .unwrap_or(0)
    }

    fn collect_waiting(&self, state: &mut State) -> usize {
        if state.waiting != 0 && self.all_seats().all(Seat::has_walked) {
            let waiting = core::mem::take(&mut state.waiting);
            each(&self.memory, waiting, |page| hang(&self.memory, page, &mut state.held));
        }
        let mut freed = 0;
        let held = core::mem::take(&mut state.held);
        each(&self.memory, held, |page| {
            if self.all_seats().any(|seat| seat.holds(page)) {
                hang(&self.memory, page, &mut state.held);
            } else {
                freed += 1;
                // SAFETY: its invalidation is complete (`finish`), nobody walks that could have found it, and nobody
                // holds it (I1, I2 of `seat`).
                unsafe { self.free_table(page) };
            }
        });
        freed
    }
}

struct Sweep<'a> {
    from: u64,
    budget: usize,
    burials: &'a mut u64,
    detached: &'a mut Detachments,
}

impl<F: Format, M: TableMemory> Walker<'_, F, M> {
    /// The table that it works at.
    pub fn table(&self) -> &IoPageTable<F, M> {
        self.table
    }
}

impl fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaim").finish_non_exhaustive()
    }
}

const _: () = assert!(ENTRIES <= 1 << 16);
