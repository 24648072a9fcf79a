//! Walks: from the root to the table that has an entry. A walk puts tables where there are none.
//!
//! A CPU maps and unmaps through a [`Walker`]. It remembers the few tables that it reached last, so
//! that pages near to them are found without a walk. Where tables are larger than 4 KiB it works at
//! one chunk of them at a time.

use core::fmt;

use super::epoch_slot::EpochSlot;
use super::format::{Decoded, Format};
use super::memory::{ENTRIES, Table, TableMemory};
use super::{IoPageTable, chunk, chunk_bits, index, span};
use crate::addr::{PhysAddr, Rights};
use crate::sync::{AtomicU64, Ordering};

/// Why a walk ended before it reached its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// A leaf covers the page.
    Leaf,
    /// There is no memory for a table.
    NoMemory,
}

/// What a page translates to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// Where the page is.
    pub phys: PhysAddr,
    /// What a device may do.
    pub rights: Rights,
    /// The level of the leaf: 0 for a page of the granule; each level above covers as many times
    /// more as a table has entries (4 KiB, 2 MiB, 1 GiB).
    pub level: u32,
    /// How often it is used, if it is counted; 0 otherwise.
    pub uses: u64,
}

/// A CPU's access to a page table: [`IoPageTable::walker`]. It maps and unmaps, and remembers the
/// tables that it used lately.
///
/// While it lives a few page-table pages may be kept from being freed, and nothing else is held up,
/// so a CPU may keep it for any time.
pub struct Walker<'t, F: Format, M: TableMemory> {
    pub(super) table: &'t IoPageTable<F, M>,
    epoch_slot: &'t EpochSlot,
    /// Leaves the epoch slot when dropped.
    leaves: bool,
}

impl<'t, F: Format, M: TableMemory> Walker<'t, F, M> {
    /// # Safety
    /// The caller has the epoch slot, and no other walker has it as long as this one lives.
    #[inline]
    pub(super) unsafe fn sit(
        table: &'t IoPageTable<F, M>,
        epoch_slot: &'t EpochSlot,
        leaves: bool,
    ) -> Self {
        Self { table, epoch_slot, leaves }
    }

    /// The table that it works at.
    pub fn table(&self) -> &IoPageTable<F, M> {
        self.table
    }

    /// The translation of `page` by the tables, as the hardware would walk them; `None` if a device
    /// would fault.
    pub fn translate(&mut self, page: u64) -> Option<Translation> {
        if page > self.table.last_page() {
            return None;
        }
        let (table, level) = self.locate(page);
        let entry = table[index::<F>(page, level)].load(Ordering::Acquire);
        let Decoded::Leaf(phys, rights) = self.table.format.decode(entry, level) else {
            return None;
        };
        let order = if F::SIZED { self.table.format.order(entry, level) } else { 0 };
        let pages = span::<F>(level) << order;
        let phys = PhysAddr(phys.0 + ((page % pages) << F::GRANULE));
        let uses = if F::is_counted(entry) { self.uses(page, entry) } else { 0 };
        Some(Translation { phys, rights, level, uses })
    }

    /// The number of walks from the root so far.
    pub(super) fn walks(&self) -> u64 {
        // SAFETY: the epoch slot is ours.
        unsafe { self.epoch_slot.walks() }
    }

    /// Drops the memory of all tables, so that those that are out of the tree can be freed: for a
    /// CPU that has not mapped for some time.
    pub fn let_go(&mut self) {
        // SAFETY: the epoch slot is ours, and the borrows of what `reach` and `locate` have
        // returned have ended.
        unsafe { self.epoch_slot.let_go() };
    }

    /// The leaf table that covers `page`, if it is remembered.
    #[inline]
    fn leaf(&self, page: u64) -> Option<PhysAddr> {
        // SAFETY: the epoch slot is ours.
        unsafe { self.epoch_slot.leaf(page, chunk_bits::<F>(0)) }
    }

    /// The table above leaf tables that covers `page`, and its level, if it is remembered.
    #[inline]
    fn above(&self, page: u64) -> Option<(PhysAddr, u32)> {
        // SAFETY: the epoch slot is ours.
        let (first, level, table) = unsafe { self.epoch_slot.above() };
        ((page ^ first) >> chunk_bits::<F>(level) == 0).then_some((table, level))
    }

    /// # Safety
    /// The epoch slot holds it (I2 of `epoch_slot`).
    #[inline]
    unsafe fn at(&self, table: PhysAddr) -> &'t Table {
        // SAFETY: as promised.
        unsafe { self.table.memory.table(table) }
    }

    /// The table at `level` that covers `page`, if it is remembered.
    #[inline]
    fn remembered(&self, page: u64, level: u32) -> Option<&'t Table> {
        let table = match level {
            0 => self.leaf(page)?,
            _ => self.above(page).filter(|(_, there)| *there == level)?.0,
        };
        // SAFETY: the epoch slot holds it.
        Some(unsafe { self.at(table) })
    }

    /// The entry of `page` in its leaf table, if that is remembered. Its value is valid only if it
    /// is a leaf: the table may be out of the tree.
    #[inline]
    pub(super) fn near(&self, page: u64) -> Option<&'t AtomicU64> {
        self.remembered(page, 0).map(|table| &table[index::<F>(page, 0)])
    }

    /// The leaf table that covers `page`, which the caller knows to be remembered.
    #[inline]
    pub(super) fn held(&self, page: u64) -> PhysAddr {
        self.leaf(page).unwrap_or(PhysAddr(0))
    }

    /// The table at `level` that covers `page`; it is put there if there is none. Valid until the
    /// next call of this or [`locate`](Self::locate).
    #[inline]
    pub(super) fn reach(&mut self, page: u64, level: u32) -> Result<&'t Table, Obstacle> {
        match self.remembered(page, level) {
            Some(table) => Ok(table),
            None => self.walk(page, Some(level)).map(|(table, _)| table),
        }
    }

    /// The table where the walk for `page` ends: its entry there is no table. No table is put.
    /// Valid until the next call of this or [`reach`](Self::reach).
    #[inline]
    pub(super) fn locate(&mut self, page: u64) -> (&'t Table, u32) {
        let near = self.leaf(page).map(|table| (table, 0));
        for (table, level) in near.into_iter().chain(self.above(page)) {
            // SAFETY: the epoch slot holds it.
            let table = unsafe { self.at(table) };
            let entry = table[index::<F>(page, level)].load(Ordering::Acquire);
            // Any other value may be out of date: the table may be out of the tree.
            if matches!(self.table.format.decode(entry, level), Decoded::Leaf(..)) {
                return (table, level);
            }
        }
        match self.walk(page, None) {
            Ok(found) => found,
            Err(_) => unreachable!("only walks that install meet obstacles"),
        }
    }

    /// Drops the memory of the table at `level` that covers `page`: its content shows that the tree
    /// has changed.
    pub(super) fn forget(&mut self, page: u64, level: u32) {
        // SAFETY: the epoch slot is ours.
        unsafe { self.epoch_slot.forget(page, level, chunk_bits::<F>(0)) };
    }

    /// Walks from the root to the table at level `install`, or to where the walk ends.
    #[cold]
    fn walk(&mut self, page: u64, install: Option<u32>) -> Result<(&'t Table, u32), Obstacle> {
        // SAFETY: the epoch slot is ours.
        unsafe { self.epoch_slot.begin() };
        let mut stale = None;
        let found = loop {
            match self.descend(page, install, &mut stale) {
                Ok(None) => {}
                Ok(Some(found)) => break Ok(found),
                Err(obstacle) => break Err(obstacle),
            }
        };
        match found {
            Ok((phys, level)) => {
                let at = (phys, level, chunk_bits::<F>(level));
                // SAFETY: the epoch slot is ours; what `reach` and `locate` have returned before is
                // not used any more.
                unsafe { self.epoch_slot.end_at(page, chunk_bits::<F>(0), at) };
                // SAFETY: it was reached while the walk was posted, and is held since.
                Ok((unsafe { self.at(phys) }, level))
            }
            Err(obstacle) => {
                self.epoch_slot.end();
                Err(obstacle)
            }
        }
    }

    /// One attempt. `None`: walk again from the root, with the tombstone that was seen (see
    /// [`down`](Self::down)).
    fn descend(
        &self,
        page: u64,
        install: Option<u32>,
        stale: &mut Option<u64>,
    ) -> Result<Option<(PhysAddr, u32)>, Obstacle> {
        let mut level = self.table.format.levels() - 1;
        let mut phys = self.table.root;
        loop {
            let chunk = chunk(phys, self.table.number(page, level));
            if install == Some(level) {
                return Ok(Some((chunk, level)));
            }
            // SAFETY: the walk is posted, and this was reached from the root since.
            let table = unsafe { self.table.memory.table(chunk) };
            let below = match install {
                Some(_) => self.down(table, index::<F>(page, level), level, stale)?,
                None => match self.peek(table, index::<F>(page, level), level) {
                    Some(below) => Some(below),
                    None => return Ok(Some((chunk, level))),
                },
            };
            match below {
                Some(below) => phys = below,
                None => return Ok(None),
            }
            level -= 1;
        }
    }

    /// The table below this entry, if there is one.
    fn peek(&self, table: &Table, index: usize, level: u32) -> Option<PhysAddr> {
        // ORDERING: Acquire, with the Release of the CPU that linked the table: its entries are
        // seen.
        let entry = table[index].load(Ordering::Acquire);
        match self.table.format.decode(entry, level) {
            Decoded::Table(below) => {
                // The walker remembers the table, and later mappings near it rely on this entry.
                self.table.rely_on_found(&table[index], entry, level);
                Some(below)
            }
            _ => None,
        }
    }

    /// The table below this entry; it is put there if there is none. If that table is being
    /// retired, the retirement is called off.
    ///
    /// `None`: the entry is a tombstone that was not seen before. The next walk from the root calls
    /// off the retirement that it belongs to, if that still goes on. If the walk then finds the
    /// same tombstone, it counts as empty.
    fn down(
        &self,
        table: &Table,
        index: usize,
        level: u32,
        stale: &mut Option<u64>,
    ) -> Result<Option<PhysAddr>, Obstacle> {
        let (all, slot) = (self.table, &table[index]);
        loop {
            // ORDERING: Acquire, with the Release of the CPU that linked the table: its entries are
            // seen. And if a tombstone was seen before, the mark of its retirement is seen.
            let entry = slot.load(Ordering::Acquire);
            match all.format.decode(entry, level) {
                Decoded::Leaf(..) => return Err(Obstacle::Leaf),
                Decoded::Table(below) => {
                    if entry & F::RETIRING != 0 && !all.call_off(slot, entry) {
                        continue;
                    }
                    all.rely_on(slot, entry & !F::RETIRING, level);
                    return Ok(Some(below));
                }
                Decoded::Detached(below) => {
                    if all.put_back(slot, entry, below, level) {
                        return Ok(Some(below));
                    }
                }
                Decoded::Tombstone if *stale != Some(entry) => {
                    *stale = Some(entry);
                    return Ok(None);
                }
                Decoded::Empty | Decoded::Tombstone => {
                    let below = all.new_table().ok_or(Obstacle::NoMemory)?;
                    let linked = all.format.table(below, level);
                    // ORDERING: Release, with the Acquire of walks: they see that the new table is
                    // empty. Without it a walk may find old contents of the page.
                    let link =
                        slot.compare_exchange(entry, linked, Ordering::AcqRel, Ordering::Acquire);
                    if link.is_ok() {
                        all.rely_on(slot, linked, level);
                        return Ok(Some(below));
                    }
                    // SAFETY: just allocated, and no other CPU has seen it.
                    unsafe { all.free_table(below) };
                }
            }
        }
    }
}

impl<F: Format, M: TableMemory> Drop for Walker<'_, F, M> {
    #[inline]
    fn drop(&mut self) {
        if self.leaves {
            self.epoch_slot.leave();
        }
    }
}

impl<F: Format, M: TableMemory> fmt::Debug for Walker<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walker").field("walks", &self.walks()).finish_non_exhaustive()
    }
}

const _: () = assert!(ENTRIES.is_power_of_two());
