//! Owned ranges: mapped and unmapped at the speed of memory.
//!
//! Each table takes one walk, one compare-and-swap for the first entry that a range gets there, and
//! plain stores for the rest ([`super`] says why that is safe). Superpages are used where address,
//! memory and length allow.

use core::slice;

use super::detached::Detachments;
use super::format::{ADDRESS, Decoded, Format, word};
use super::memory::{ENTRIES, TableMemory};
use super::unit::{self, Part};
use super::walk::{Obstacle, Walker};
use super::{MapError, MapErrorKind, UnmapError, index, put, span};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::sync::{AtomicU64, Ordering};

/// What has to be invalidated before the range, and the memory that it led to, are used again.
#[must_use = "a device reaches the memory until this is invalidated"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped {
    /// The pages.
    pub range: IovaRange,
    /// No table went away: the walk caches may stay.
    pub leaf_only: bool,
}

impl From<Obstacle> for MapErrorKind {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::Leaf => Self::AlreadyMapped,
            Obstacle::NoMemory => Self::NoMemory,
        }
    }
}

/// How many entries of a table at `level`, from `first` on, `pages` fill.
#[inline]
pub(super) fn fit<F: Format>(pages: u64, first: usize, level: u32) -> usize {
    (pages >> (F::INDEX * level)).min((ENTRIES - first) as u64) as usize
}

impl<F: Format, M: TableMemory> Walker<'_, F, M> {
    /// Maps the pages of `range` to the memory from `phys` on, in superpages where that fits: one
    /// mapping, which is [unmapped](Self::unmap) as a whole. A device may use the pages when it
    /// returns (units that cache absent entries need an invalidation before that).
    ///
    /// The caller owns the range: no other call maps or unmaps in it at the same time.
    ///
    /// # Errors
    /// See [`MapError`]; nothing of it is mapped then. Tables that were put in place stay, empty.
    #[inline]
    pub fn map(
        &mut self,
        range: IovaRange,
        phys: PhysAddr,
        rights: Rights,
    ) -> Result<(), MapError> {
        self.map_part(range, phys, rights, Part::Whole)
    }

    /// The same for a part of a mapping that is put together from several.
    ///
    /// # Errors
    /// See [`MapError`]; nothing of this part is mapped then.
    #[inline]
    pub fn map_part(
        &mut self,
        range: IovaRange,
        phys: PhysAddr,
        rights: Rights,
        part: Part,
    ) -> Result<(), MapError> {
        self.check(range, phys)?;
        let (begins, ends) = (part.first::<F>(), part.last::<F>());
        let near = range.pages() == 1;
        if near && self.map_near(range.first(), phys, rights, begins | ends) {
            return Ok(());
        }
        let mut done = 0;
        loop {
            let phys = PhysAddr(phys.0 + (done << F::GRANULE));
            let (more, failed) = self.map_in_one_table(
                range.first() + done,
                phys,
                rights,
                range.pages() - done,
                (if done == 0 { begins } else { 0 }, ends),
            );
            done += more;
            if let Some(kind) = failed {
                return Err(self.undo(range, done, kind));
            }
            if done == range.pages() {
                return Ok(());
            }
        }
    }

    /// [`map`](Self::map) for one page, if the remembered table has its entry and nothing else is
    /// needed. False: nothing was done.
    #[inline]
    pub(crate) fn map_page_near(&self, range: IovaRange, phys: PhysAddr, rights: Rights) -> bool {
        let marks = Part::Whole.first::<F>() | Part::Whole.last::<F>();
        range.pages() == 1
            && self.check(range, phys).is_ok()
            && self.map_near(range.first(), phys, rights, marks)
    }

    /// Maps one page, if its table is remembered and the entry is empty.
    #[inline]
    fn map_near(&self, page: u64, phys: PhysAddr, rights: Rights, marks: u64) -> bool {
        let Some(slot) = self.near(page) else {
            return false;
        };
        let leaf = self.table.format.leaf(phys, rights, 0) | marks;
        // ORDERING: as in `map_in_one_table`.
        let mapped =
            slot.compare_exchange(word::EMPTY, leaf, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if mapped {
            self.table.show(slice::from_ref(slot));
        }
        mapped
    }

    /// Unmaps one page, if its table is remembered and the page is a mapping of its own; returns
    /// the memory that it led to.
    #[inline]
    pub(crate) fn unmap_near(&self, page: u64) -> Option<PhysAddr> {
        let slot = self.near(page)?;
        let entry = slot.load(Ordering::Relaxed);
        if !self.table.format.is_present(entry) || !unit::is_whole(&self.table.format, entry) {
            return None;
        }
        put(slot, word::EMPTY);
        self.table.show(slice::from_ref(slot));
        Some(PhysAddr(entry & ADDRESS))
    }

    /// Whether it can be mapped at all.
    #[inline]
    pub(super) fn check(&self, range: IovaRange, phys: PhysAddr) -> Result<(), MapError> {
        let error = |kind| Err(MapError { kind, page: range.first(), undone: None });
        if !self.table.resolves(range) {
            return error(MapErrorKind::OutOfRange);
        }
        let end =
            range.pages().checked_mul(1 << F::GRANULE).and_then(|bytes| phys.0.checked_add(bytes));
        match end {
            Some(end)
                if phys.0 & ((1 << F::GRANULE) - 1) == 0
                    && end <= 1 << self.table.format.phys_bits() =>
            {
                Ok(())
            }
            _ => error(MapErrorKind::BadAddress),
        }
    }

    /// The largest level at which the next leaf can be.
    #[inline]
    fn level_for(&self, page: u64, phys: PhysAddr, pages: u64) -> u32 {
        let format = &self.table.format;
        let mut best = 0;
        for level in 1..format.levels() {
            let all = page | phys.0 >> F::GRANULE;
            if pages < span::<F>(level) || all & (span::<F>(level) - 1) != 0 {
                break;
            }
            if format.may_be_leaf(level) {
                best = level;
            }
        }
        best
    }

    /// Maps the first pages: those in one table. Returns how many it has mapped, and why it
    /// stopped.
    #[inline]
    fn map_in_one_table(
        &mut self,
        page: u64,
        phys: PhysAddr,
        rights: Rights,
        pages: u64,
        (begins, ends): (u64, u64),
    ) -> (u64, Option<MapErrorKind>) {
        let mut level = self.level_for(page, phys, pages);
        let mut stale = word::EMPTY;
        let mut expected = word::EMPTY;
        let (table, first, plain, order) = loop {
            let table = match self.reach(page, level) {
                Ok(table) => table,
                Err(obstacle) => return (0, Some(obstacle.into())),
            };
            let first = index::<F>(page, level);
            let plain = self.table.format.leaf(phys, rights, level);
            let order = if F::SIZED && self.table.format.most_order() > 0 {
                self.order_at(&table[first..], (page, phys, pages), level)
            } else {
                0
            };
            let large =
                if order > 0 { self.table.format.enlarge(plain, level, order) } else { plain };
            let leaf = large | begins | if pages == span::<F>(level) << order { ends } else { 0 };
            // ORDERING: the decision is that the entry was empty; Release, as for all links.
            match table[first].compare_exchange(expected, leaf, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break (table, first, plain, order),
                Err(entry) => match self.table.format.decode(entry, level) {
                    Decoded::Leaf(..) => return (0, Some(MapErrorKind::AlreadyMapped)),
                    Decoded::Empty => expected = entry,
                    // Walk once more from the root. If the tombstone is still the same then, it
                    // counts as empty (see `down`).
                    Decoded::Tombstone if entry != stale => {
                        stale = entry;
                        self.forget(page, level);
                    }
                    Decoded::Tombstone => expected = entry,
                    // Smaller pages were mapped here, or still are.
                    Decoded::Table(_) | Decoded::Detached(_) => level = self.smaller(level),
                },
            }
        };
        // From here on the table stays: it has a live entry.
        if F::SIZED && self.table.format.most_order() > 0 {
            // Block by block: the rest of this block gets the value of its first entry.
            let block = &table[first..first + (1 << order)];
            let leaf = block[0].load(Ordering::Relaxed);
            block[1..].iter().for_each(|slot| put(slot, leaf));
            self.table.show(block);
            return (span::<F>(level) << order, None);
        }
        let fit = fit::<F>(pages, first, level);
        let mut failed = None;
        let mut done = 1;
        let mut entry = plain;
        for slot in &table[first + 1..first + fit] {
            let there = slot.load(Ordering::Relaxed);
            if there != word::EMPTY {
                match self.table.format.decode(there, level) {
                    // It counts as empty: the CPU that put it there finds the first entry live, or
                    // has found it.
                    Decoded::Empty | Decoded::Tombstone => {}
                    Decoded::Table(_) | Decoded::Detached(_) => break,
                    Decoded::Leaf(..) => {
                        failed = Some(MapErrorKind::AlreadyMapped);
                        break;
                    }
                }
            }
            entry += span::<F>(level) << F::GRANULE;
            put(slot, entry);
            done += 1;
        }
        let mapped = (done as u64) << (F::INDEX * level);
        if done > 1 && mapped == pages {
            put(&table[first + done - 1], entry | ends);
        }
        self.table.show(&table[first..first + done]);
        (mapped, failed)
    }

    /// The logarithm of the entries that one leaf can fill, of those from here on: no other leaf is
    /// in the way, and address, memory and length fit.
    fn order_at(
        &self,
        entries: &[AtomicU64],
        (page, phys, pages): (u64, PhysAddr, u64),
        level: u32,
    ) -> u32 {
        let aligned = (page | phys.0 >> F::GRANULE).trailing_zeros() - F::INDEX * level;
        let fits = (pages >> (F::INDEX * level)).ilog2();
        let most = aligned.min(fits).min(self.table.format.most_order());
        let is_free = |order: &u32| {
            entries[..1 << order].iter().skip(1).all(|slot| {
                let entry = slot.load(Ordering::Relaxed);
                matches!(
                    self.table.format.decode(entry, level),
                    Decoded::Empty | Decoded::Tombstone
                )
            })
        };
        (0..=most).rev().find(is_free).unwrap_or(0)
    }

    /// The next smaller size.
    fn smaller(&self, level: u32) -> u32 {
        (0..level).rev().find(|l| self.table.format.may_be_leaf(*l)).unwrap_or(0)
    }

    /// Unmaps the first `done` pages again, which this call has mapped.
    #[cold]
    fn undo(&mut self, range: IovaRange, done: u64, kind: MapErrorKind) -> MapError {
        let page = range.first() + done;
        let undone = IovaRange::new(range.first(), done);
        if let Some(undone) = undone {
            self.clear(undone, None);
        }
        MapError { kind, page, undone }
    }

    /// Unmaps the pages of `range`, which must be exactly one mapping (see `unit.rs`). Tables that
    /// become empty as a whole are taken out, as many as `detached` has room for.
    ///
    /// The caller owns the range until the returned range has been invalidated.
    ///
    /// # Errors
    /// See [`UnmapError`]; nothing of it is unmapped then.
    #[inline]
    pub fn unmap(
        &mut self,
        range: IovaRange,
        detached: &mut Detachments,
    ) -> Result<Unmapped, UnmapError> {
        if !self.table.resolves(range) {
            return Err(UnmapError::OutOfRange);
        }
        if range.pages() == 1 && self.unmap_near(range.first()).is_some() {
            return Ok(Unmapped { range, leaf_only: true });
        }
        self.check_mapped(range, true)?;
        let leaf_only = self.clear(range, Some(detached));
        Ok(Unmapped { range, leaf_only })
    }

    /// Unmaps the pages of `range`, all of which are mapped, with whole superpages, whatever
    /// mappings they belong to.
    ///
    /// The caller owns the range, as in [`unmap`](Self::unmap), and knows how it was mapped.
    ///
    /// # Errors
    /// See [`UnmapError`]; nothing of it is unmapped then.
    #[inline]
    pub fn unmap_part(
        &mut self,
        range: IovaRange,
        detached: &mut Detachments,
    ) -> Result<Unmapped, UnmapError> {
        if !self.table.resolves(range) {
            return Err(UnmapError::OutOfRange);
        }
        self.check_mapped(range, false)?;
        let leaf_only = self.clear(range, Some(detached));
        Ok(Unmapped { range, leaf_only })
    }

    /// Unmaps one page that is a mapping of its own, and returns the memory that it led to.
    ///
    /// The caller owns the page, as in [`unmap`](Self::unmap).
    ///
    /// # Errors
    /// See [`UnmapError`]; nothing has changed.
    #[inline]
    pub fn unmap_page(&mut self, page: u64) -> Result<PhysAddr, UnmapError> {
        if page > self.table.last_page() {
            return Err(UnmapError::OutOfRange);
        }
        if let Some(phys) = self.unmap_near(page) {
            return Ok(phys);
        }
        let range = IovaRange::new(page, 1).ok_or(UnmapError::OutOfRange)?;
        self.check_mapped(range, true)?;
        let (table, level) = self.locate(page);
        let slot = &table[index::<F>(page, level)];
        let phys = PhysAddr(slot.load(Ordering::Relaxed) & ADDRESS);
        put(slot, word::EMPTY);
        self.table.show(slice::from_ref(slot));
        Ok(phys)
    }

    /// Clears entries that were checked to be mapped. False: tables went away.
    #[inline]
    fn clear(&mut self, range: IovaRange, mut detached: Option<&mut Detachments>) -> bool {
        let (mut page, mut left) = (range.first(), range.pages());
        let mut leaf_only = true;
        while left > 0 {
            let (table, level) = self.locate(page);
            let first = index::<F>(page, level);
            let fit = fit::<F>(left, first, level);
            let entries = &table[first..first + fit];
            let whole = if fit == 1 << F::INDEX { detached.as_deref_mut() } else { None };
            if whole.is_some_and(|into| self.table.clear_and_detach(entries, page, level, into)) {
                leaf_only = false;
                page += span::<F>(level + 1);
                left -= span::<F>(level + 1);
                continue;
            }
            let mut cleared = 0;
            for slot in entries {
                // Smaller pages follow larger ones: go on there.
                if level > 0 && self.table.is_table(slot.load(Ordering::Relaxed), level) {
                    break;
                }
                put(slot, word::EMPTY);
                cleared += 1;
            }
            self.table.show(&entries[..cleared]);
            let pages = (cleared as u64) << (F::INDEX * level);
            page += pages;
            left -= pages;
        }
        leaf_only
    }
}
