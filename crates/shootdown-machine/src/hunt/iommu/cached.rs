//! What caches have.

use shootdown_dma::{IovaRange, PhysAddr, Rights};

/// A cached translation of `pages` pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cached {
    /// The tag of the domain that it is for.
    pub domain: u16,
    /// Page number of the first.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// Physical address of the first, in bytes.
    pub to: u64,
    /// The device may read.
    pub reads: bool,
    /// The device may write.
    pub writes: bool,
}

impl Cached {
    /// Is it used for any of these addresses?
    #[must_use]
    pub const fn overlaps(&self, range: IovaRange) -> bool {
        self.first <= range.last() && range.first() < self.first + self.pages
    }

    /// The end of the memory that it leads to.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.to + (self.pages << 12)
    }

    /// Does it lead to this page of memory?
    #[must_use]
    pub fn reaches(&self, page: PhysAddr) -> bool {
        (self.to..self.end()).contains(&page.0)
    }

    /// Does it allow something that `rights` do not? (`reads_too`: the format can't tell writing from both.)
    #[must_use]
    pub const fn exceeds(&self, rights: Rights, reads_too: bool) -> bool {
        (self.writes && !rights.writes()) || (self.reads && !rights.reads() && !reads_too)
    }

    /// What is left when this range is taken out of it.
    pub(super) fn without(self, range: IovaRange) -> impl Iterator<Item = Self> {
        let end = self.first + self.pages;
        let below = (self.first, range.first().clamp(self.first, end));
        let above = ((range.last() + 1).clamp(self.first, end), end);
        [below, above].into_iter().filter(|(from, to)| from < to).map(move |(from, to)| Self {
            first: from,
            pages: to - from,
            to: self.to + ((from - self.first) << 12),
            ..self
        })
    }
}

/// A path that is known: the table that decodes the pages from `first` on, at this level, for a domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Walk {
    /// The tag of the domain.
    pub domain: u16,
    /// Of the table.
    pub level: u8,
    /// The first page that it decodes.
    pub first: u64,
    /// Where it is.
    pub table: u64,
}
