//! Elision: which changes of an entry need no flush.
//!
//! A TLB that still holds an entry from before a change does harm only if the old entry allows,
//! names or hides something that the new one does not. So the direction of a change decides: taking
//! away needs a flush, giving does not. What a change demands is a [`Change`]; `shootdown-arch`
//! says it of raw entries of each architecture, and [`Gather::updated`](crate::Gather::updated)
//! acts on it.
//!
//! | change of an entry | [`Change`] | what an old cached copy does |
//! |---|---|---|
//! | none that the walker reads | `Nothing` | the same |
//! | absent to present | `New` | where "nothing there" may be cached: faults |
//! | rights added | `Upgrade` | faults |
//! | only the accessed bit cleared, small leaf | `Accessed` | hides a use ([`Change::Accessed`]) |
//! | anything else | `Flush` | what it should not |
//! | anything else, and old and new must not meet | `Break` | undefined things |
//!
//! # Invariants
//! I1: what is elided forms an order: whatever a copy of any older entry allows since the last
//! flush, the newest allows too, to the same frame, with the same attributes, and no store through
//! it goes unrecorded. That is why an entry may be changed again and again by elided changes. I2:
//! an accessed bit that is clear proves nothing about what is cached, because clearing it may have
//! been elided before. I3: a fault that an elision leaves behind is met by
//! [`spurious_fault`](crate::spurious_fault), in a bounded number of turns.
//!
//! # What the kernel has to do
//! Old and new are what was really there: entries that hardware writes to (accessed, dirty) are
//! exchanged in one atomic step, and the value that came out is the old one. `New` says that an
//! absent entry was replaced; what was there *before* it was absent must have been flushed, as
//! whoever unmapped it has promised.

use core::fmt;

use crate::port::platform::Platform;
use crate::state::cpu::PerCpu;

/// What a change of one entry demands of those who may have cached the old one.
///
/// Ordered by how much is demanded: of several changes, the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Change {
    /// Nothing: no access can tell the old entry from the new.
    Nothing,
    /// Nothing now. A CPU that has cached "nothing there", or a walk that began before, may fault
    /// once.
    New,
    /// Nothing now. The old entry allows less, and a CPU that uses it faults.
    Upgrade,
    /// What the policy for accessed bits says: nothing but the accessed bit of a small leaf was
    /// taken away. Until it is flushed, a CPU with the old entry may use the page without setting
    /// the bit. Rights may have been added too.
    Accessed,
    /// A flush: the old entry allows, names or hides what the new one does not.
    Flush(Cached),
    /// The entry made invalid, a flush, and only then the new entry: no CPU may ever hold both (Arm
    /// ARM D8.16, break-before-make; SDM 3A 4.10.2.3 on changes of the page size).
    Break(Cached),
}

/// Which cached entries are concerned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cached {
    /// A leaf.
    Leaf,
    /// A table, or what was one: cached non-leaf entries too, and everything below.
    Table,
}

/// The new entry must not be written before the old one is flushed.
///
/// The range was noted all the same, so finishing the gather removes what may be cached.
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
    /// May it be left without a flush for good? (Whether [`Change::Accessed`] may is a matter of
    /// policy.)
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
