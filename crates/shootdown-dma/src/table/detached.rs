//! Tables that were taken out: what is deferred for each.

use core::fmt;
use core::mem::MaybeUninit;

use crate::addr::{IovaRange, PhysAddr};

/// A table that was taken out. Invalidate its range, with table entries; then call
/// [`IoPageTable::finish`](super::IoPageTable::finish).
///
/// Forgetting it loses a page until the whole table is freed.
#[must_use = "the table's page is freed when this is invalidated and finished"]
#[derive(PartialEq, Eq, Debug)]
pub struct Detached {
    pub(super) parent: PhysAddr,
    pub(super) slot: u32,
    /// The level of the parent.
    pub(super) level: u8,
    pub(super) table: PhysAddr,
    pub(super) first: u64,
    /// How many pages the entry covers, as a logarithm.
    pub(super) bits: u8,
}

impl Detached {
    /// The range to invalidate: everything below the entry that led to the table.
    #[must_use]
    pub fn range(&self) -> IovaRange {
        let pages = 1u64 << self.bits;
        // Page 0 is never used; the entry is covered by any of its pages.
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

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is no more room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len == Self::ROOM
    }

    /// Takes the one that came last.
    pub fn pop(&mut self) -> Option<Detached> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: it is there, and now it is not counted any more.
        Some(unsafe { self.tables[self.len].assume_init_read() })
    }

    /// All of them, by reference.
    pub fn iter(&self) -> impl Iterator<Item = &Detached> {
        // SAFETY: as many are there.
        self.tables[..self.len].iter().map(|table| unsafe { table.assume_init_ref() })
    }

    pub(super) fn push(&mut self, detached: Detached) {
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
