//! What caches have.

use shootdown_dma::{IovaRange, Rights};

pub use crate::oracle::devices::Cached;

impl Cached {
    /// Does it allow something that `rights` do not? (`reads_too`: the format can't tell writing
    /// from both.)
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

/// A path that is known: the table that decodes the pages from `first` on, at this level, for a
/// domain.
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
