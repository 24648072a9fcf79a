//! Elision: which changes of an entry need no flush.
//!
//! A TLB that still holds an entry from before a change does harm only if the old entry allows,
//! names or hides something that the new one does not. So the direction of a change decides: a
//! change that takes something away needs a flush, a change that only adds does not. A [`Change`]
//! says what a change requires; `shootdown-arch` computes it from raw entries of each architecture,
//! and [`Gather::updated`](crate::Gather::updated) acts on it.
//!
//! | change of an entry | [`Change`] | effect of an old cached copy |
//! |---|---|---|
//! | none that the walker reads | `Nothing` | the same as the new one |
//! | absent to present | `New` | faults, where "nothing there" may be cached |
//! | rights added | `Upgrade` | faults |
//! | only the accessed bit cleared, small leaf | `Accessed` | hides a use ([`Change::Accessed`]) |
//! | anything else | `Flush` | allows what it should not |
//! | anything else, and no CPU may hold both old and new | `Break` | undefined behaviour of the hardware |
//!
//! # Invariants
//! I1: elided changes are ordered: whatever a copy of any older entry allows since the last flush,
//! the newest entry allows too, to the same frame, with the same attributes, and no store through
//! the copy goes unrecorded. So elided changes may change an entry again and again. I2: an accessed
//! bit that is clear proves nothing about what is cached, because a clearing of it may have been
//! elided before. I3: [`spurious_fault`](crate::spurious_fault) resolves the faults that an elision
//! leaves behind, in a bounded number of retries.
//!
//! # What the kernel has to do
//! The old and the new entry must be the values that were really in the table: the kernel exchanges
//! entries that hardware writes to (accessed, dirty) in one atomic step, and the value that the
//! exchange returns is the old one. `New` says that an absent entry was replaced. The entry that
//! was there *before* must have been flushed already, which is the duty of the code that unmapped
//! it.

use core::fmt;

use crate::port::platform::Platform;
use crate::state::cpu::PerCpu;

/// What a change of one entry requires of CPUs that may have cached the old entry.
///
/// The order is by how much is required: for several changes, take the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Change {
    /// Nothing: no access can tell the old entry from the new.
    Nothing,
    /// Nothing now. A CPU that has cached "nothing there", or whose walk began before the change,
    /// may fault once.
    New,
    /// Nothing now. The old entry allows less, and a CPU that uses it faults.
    Upgrade,
    /// What the policy for accessed bits says: only the accessed bit of a small leaf was taken
    /// away. Until it is flushed, a CPU with the old entry may use the page without setting the
    /// bit. Rights may have been added too.
    Accessed,
    /// A flush: the old entry allows, names or hides what the new one does not.
    Flush(Cached),
    /// The kernel makes the entry invalid, flushes, and only then writes the new entry: no CPU may
    /// ever hold both (Arm ARM D8.16, break-before-make; SDM 3A 4.10.2.3 on changes of the page
    /// size).
    Break(Cached),
}

/// Which cached entries are concerned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cached {
    /// A leaf.
    Leaf,
    /// A table, or an entry that was one: cached non-leaf entries too, and everything below.
    Table,
}

/// The new entry must not be written before the old one is flushed.
///
/// The gather has recorded the range all the same, so finishing it invalidates what may be cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BreakFirst;

impl fmt::Display for BreakFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "old and new entry must not be cached together: write an invalid entry, flush, then write the new one",
        )
    }
}

impl core::error::Error for BreakFirst {}

impl Change {
    /// May the change stay without a flush for good? (For [`Change::Accessed`] the policy decides.)
    #[must_use]
    pub const fn is_elided(self) -> bool {
        matches!(self, Self::Nothing | Self::New | Self::Upgrade)
    }

    /// Counts an elided change.
    pub(crate) fn count<P: Platform>(self, pin: &P::Pin) {
        let stats = &PerCpu::<P>::here(pin).stats;
        match self {
            Self::New => stats.elided_new.inc(),
            Self::Upgrade => stats.elided_upgrades.inc(),
            Self::Nothing | Self::Accessed | Self::Flush(_) | Self::Break(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_changes_the_greatest_is_demanded() {
        let order = [
            Change::Nothing,
            Change::New,
            Change::Upgrade,
            Change::Accessed,
            Change::Flush(Cached::Leaf),
            Change::Flush(Cached::Table),
            Change::Break(Cached::Leaf),
            Change::Break(Cached::Table),
        ];
        assert!(order.is_sorted());
        assert_eq!(order.map(Change::is_elided).iter().filter(|e| **e).count(), 3);
    }
}
