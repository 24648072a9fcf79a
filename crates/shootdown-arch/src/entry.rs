//! What a change of a raw page-table entry demands: the part that the architectures share.
//!
//! Each architecture has a table with one row per group of bits: what setting one of them demands,
//! and what clearing one does. A change demands the greatest of what its bits demand; a bit without
//! a row is reserved or unknown, and demands a flush. Combinations that mean more than their bits
//! are in the architecture's `change`.

use shootdown::Change;

/// Where in the tables an entry is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TableLevel {
    /// The last level: every present entry is the leaf of a page.
    Last,
    /// Above it: an entry is a table, or the leaf of a larger page.
    Above,
}

/// A group of bits of an entry.
pub(crate) struct Row {
    pub bits: u64,
    pub set: Change,
    pub cleared: Change,
}

impl Row {
    /// Bits whose change demands this, in both directions.
    pub const fn any(bits: u64, change: Change) -> Self {
        Self { bits, set: change, cleared: change }
    }

    /// Bits that the hardware does not read.
    pub const fn ignored(bits: u64) -> Self {
        Self::any(bits, Change::Nothing)
    }

    /// Bits that give a right when they are set.
    pub const fn gives(bits: u64, taken: Change) -> Self {
        Self { bits, set: Change::Upgrade, cleared: taken }
    }

    /// Bits that take a right when they are set.
    pub const fn takes(bits: u64, taken: Change) -> Self {
        Self { bits, set: taken, cleared: Change::Upgrade }
    }
}

/// The greatest demand of all bits that differ.
pub(crate) fn judge(old: u64, new: u64, rows: &[Row], unknown: Change) -> Change {
    let differ = old ^ new;
    let mut rest = differ;
    let mut demand = Change::Nothing;
    for row in rows {
        debug_assert!(rows.iter().filter(|r| r.bits & row.bits != 0).count() == 1);
        rest &= !row.bits;
        if differ & new & row.bits != 0 {
            demand = demand.max(row.set);
        }
        if differ & old & row.bits != 0 {
            demand = demand.max(row.cleared);
        }
    }
    if rest == 0 { demand } else { demand.max(unknown) }
}
