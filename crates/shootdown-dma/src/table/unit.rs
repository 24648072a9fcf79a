//! The extent of a mapping: a mapping is unmapped as a whole, or not at all.
//!
//! # The problem
//! A driver that unmaps with a wrong address or length takes away half of a buffer that a device
//! still uses, leaves the other half mapped for ever, or gives back addresses that belong to
//! another user.
//!
//! # The protocol
//! A *mapping* is what one call of [`Walker::map`] has mapped, or several calls of
//! [`Walker::map_part`] from the one that [begins](Part::Begin) it to the one that
//! [ends](Part::End) it. Two marks in the leaves show its extent: its first leaf has
//! [`BEGINS`](Format::BEGINS), its last [`ENDS`](Format::ENDS), a single leaf both, and those
//! between none. Superpages are leaves like others. [`Walker::unmap`] accepts exactly one mapping:
//!
//! | requested | found | error |
//! |---|---|---|
//! | the middle, or the tail | the first leaf has no *begins* | [`UnmapError::Inside`] |
//! | the head: shorter | the last leaf has no *ends* | [`UnmapError::Inside`] |
//! | longer, and another mapping follows | a leaf but the last has *ends* | [`UnmapError::Several`] |
//! | longer, and nothing follows; twice | a page is not mapped | [`UnmapError::NotMapped`] |
//! | half of a superpage | the leaf is larger than what is left | [`UnmapError::PartOfSuperpage`] |
//! | a page that several users share | the leaf is counted | [`UnmapError::Counted`] |
//!
//! So the check reads only entries of the range, and for a single page both marks come with the
//! entry that is loaded anyway. All entries are checked before any is cleared.
//!
//! Ranges that are put together from parts without either end ([`Part::Middle`]: the links of a
//! reservation) are recorded by their user, and only [`Walker::unmap_part`] accepts them. Each
//! counted page is a mapping of its own.

use super::format::{ADDRESS, Decoded, Format};
use super::memory::TableMemory;
use super::walk::Walker;
use super::{UnmapError, index, span};
use crate::addr::IovaRange;
use crate::sync::{AtomicU64, Ordering};

/// Which part of a mapping a call maps; see `unit.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// The first.
    Begin,
    /// Neither the first nor the last.
    Middle,
    /// The last.
    End,
}

impl Part {
    /// The part that is the first, or the last, or both.
    #[must_use]
    pub const fn new(first: bool, last: bool) -> Self {
        match (first, last) {
            (true, true) => Self::Whole,
            (true, false) => Self::Begin,
            (false, false) => Self::Middle,
            (false, true) => Self::End,
        }
    }

    /// The mark of the first leaf.
    #[inline]
    pub(super) fn first<F: Format>(self) -> u64 {
        if matches!(self, Self::Whole | Self::Begin) { F::BEGINS } else { 0 }
    }

    /// The mark of the last leaf.
    #[inline]
    pub(super) fn last<F: Format>(self) -> u64 {
        if matches!(self, Self::Whole | Self::End) { F::ENDS } else { 0 }
    }
}

/// The marks of an owned leaf that concern the extent of its mapping.
#[inline]
pub(super) const fn marks<F: Format>() -> u64 {
    F::BEGINS | F::ENDS
}

/// Whether it is an owned leaf that is a mapping of its own.
#[inline]
pub(super) fn is_whole<F: Format>(format: &F, entry: u64) -> bool {
    if F::SIZED && format.order(entry, 0) != 0 {
        return false; // one leaf, and several pages
    }
    let marks = marks::<F>();
    entry & (F::COUNTED | marks) == marks
}

impl<F: Format, M: TableMemory> Walker<'_, F, M> {
    /// Checks that all of it is mapped, in whole leaves that are not counted, and with `whole` that
    /// it is exactly one mapping.
    #[inline]
    pub(crate) fn check_mapped(&mut self, range: IovaRange, whole: bool) -> Result<(), UnmapError> {
        if F::SIZED && self.table.format.most_order() > 0 {
            return self.check_blocks(range, whole);
        }
        let (mut page, mut left) = (range.first(), range.pages());
        loop {
            let (table, level) = self.locate(page);
            let first = index::<F>(page, level);
            let fit = super::range::fit::<F>(left, first, level);
            let entries = &table[first..first + fit];
            // The marks that the first and the last of them should have.
            let begins = if whole && page == range.first() { F::BEGINS } else { 0 };
            let last = (fit as u64) << (F::INDEX * level) == left;
            let ends = if whole && last { F::ENDS } else { 0 };
            let good = self.count_good(entries, level, whole, (begins, ends));
            let cut = page & (span::<F>(level) - 1) != 0;
            if good == 0 || cut {
                let entry = table[first].load(Ordering::Relaxed);
                return Err(self.why_not(range, page, entry, level));
            }
            let pages = (good as u64) << (F::INDEX * level);
            if pages == left {
                return Ok(());
            }
            page += pages;
            left -= pages;
        }
    }

    /// The same where a leaf may fill several entries: leaf by leaf. All entries of one have the
    /// same marks.
    fn check_blocks(&mut self, range: IovaRange, whole: bool) -> Result<(), UnmapError> {
        let mut page = range.first();
        loop {
            let (table, level) = self.locate(page);
            let entry = table[index::<F>(page, level)].load(Ordering::Relaxed);
            let format = &self.table.format;
            let leaf = format.is_present(entry) && !format.is_table(entry, level);
            let order = if leaf { format.order(entry, level) } else { 0 };
            let pages = span::<F>(level) << order;
            let last = page + (pages - 1);
            let cut = page & (pages - 1) != 0 || last > range.last();
            let should = if page == range.first() { F::BEGINS } else { 0 }
                | if last == range.last() { F::ENDS } else { 0 };
            let marked = !whole || entry & marks::<F>() == should;
            if !leaf || F::is_counted(entry) || cut || !marked {
                return Err(self.why_not(range, page, entry, level));
            }
            if last >= range.last() {
                return Ok(());
            }
            page = last + 1;
        }
    }

    /// How many of these entries, from the first on, are leaves that may be cleared.
    #[inline]
    fn count_good(
        &self,
        entries: &[AtomicU64],
        level: u32,
        whole: bool,
        (begins, ends): (u64, u64),
    ) -> usize {
        let format = &self.table.format;
        let ignored = if whole { 0 } else { marks::<F>() };
        // Most are like the first except for the address, which does not matter here.
        let kind = |entry: u64| entry & !(ADDRESS | F::HARDWARE | F::WRITTEN_BACK | ignored);
        let is_good = |entry: u64| {
            let marked = entry & marks::<F>() & !ignored != 0;
            format.is_present(entry)
                && !format.is_table(entry, level)
                && !F::is_counted(entry)
                && !marked
        };
        let [head, rest @ ..] = entries else { return 0 };
        let like = head.load(Ordering::Relaxed);
        let head_ends = if rest.is_empty() { ends } else { 0 };
        let like = kind(like) ^ begins ^ head_ends;
        if !is_good(like) {
            return 0;
        }
        let as_good = |slot: &&AtomicU64| {
            let entry = slot.load(Ordering::Relaxed);
            kind(entry) == like || is_good(entry)
        };
        let [inner @ .., tail] = rest else { return 1 };
        let good = 1 + inner.iter().take_while(as_good).count();
        if good < entries.len() - 1 {
            return good;
        }
        let entry = tail.load(Ordering::Relaxed);
        good + usize::from(is_good(kind(entry) ^ ends))
    }

    /// Why `page`, the first page of the range that fails the check, can't be unmapped.
    #[cold]
    fn why_not(&mut self, range: IovaRange, page: u64, entry: u64, level: u32) -> UnmapError {
        match self.table.format.decode(entry, level) {
            Decoded::Leaf(..) if F::is_counted(entry) => return UnmapError::Counted { page },
            Decoded::Leaf(..) => {}
            _ => return UnmapError::NotMapped { page },
        }
        let pages = span::<F>(level) << self.table.format.order(entry, level);
        let next = page + pages;
        if page & (pages - 1) != 0 || next > range.last() + 1 {
            return UnmapError::PartOfSuperpage { page };
        }
        // A whole leaf, with other marks than it should have.
        let begins = entry & F::BEGINS != 0;
        if begins != (page == range.first()) {
            return if begins { UnmapError::Several { page } } else { UnmapError::Inside { page } };
        }
        // The mapping ends too early, or not at all.
        match self.translate(next) {
            _ if next > range.last() => UnmapError::Inside { page },
            Some(_) => UnmapError::Several { page: next },
            None => UnmapError::NotMapped { page: next },
        }
    }
}
