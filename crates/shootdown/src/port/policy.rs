//! Which mechanisms are in force.
//!
//! A policy is configuration of the same code, never a second implementation. Kernels take
//! [`Policy::SHOOTDOWN`]; the others exist so that what each mechanism gains can be measured, and
//! carry the name of the system whose choices they repeat.

use core::fmt;

use crate::base::ids::Stride;
use crate::port::facts::{Broadcast, Facts};

/// Which tag slot is reused for a new space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Victim {
    /// Takes the slots in turn (what Linux does).
    RoundRobin,
    /// Takes the slot whose space ran longest ago.
    LeastRecent,
}

/// What a CPU does with the space it has loaded when it starts to run a kernel thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lazy {
    /// Nothing special: it is interrupted like any other CPU, and flushes.
    Off,
    /// It is interrupted once, leaves the space, and is not interrupted again.
    LeaveOnKick,
    /// It is not interrupted for leaf changes at all and catches up when it returns.
    CatchUp,
}

/// How a remote CPU learns what to invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Delivery {
    /// One posted request per target; the target executes exactly that request.
    Push,
    /// Nothing is posted: the target compares generations and catches up with the newest, reading
    /// what changed from the space's range log; its published generation is the acknowledgement.
    Pull,
}

/// When a CPU takes itself out of the set of a space it no longer has loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Leave {
    /// On every switch away.
    AtSwitch,
    /// When it loads the kernel's own tables, or a trim asks for it.
    Lazily,
    /// When it is found elsewhere and asked: by a trim, or by a flush for freed tables, which asks
    /// all CPUs of the set (Linux since 6.14). Correctness does not require asking CPUs that are
    /// elsewhere: a CPU that has another root loaded has no walk under way in the old tables, and
    /// before it loads their root again it finds out that tables were freed.
    WhenAsked,
}

/// When entries whose accessed bit was cleared are invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Accessed {
    /// At once, on every CPU.
    Immediate,
    /// At each CPU's next switch or tick, because a flag of that CPU says so.
    AtSwitch,
    /// At each CPU's next switch or tick, because a number of the space has grown.
    Generation,
    /// When the TLB evicts them.
    Never,
}

/// The choice for accessed bits, by the size of the entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AccessedPolicy {
    /// Entries of 4 KiB pages.
    pub small: Accessed,
    /// Entries of larger pages.
    pub large: Accessed,
}

impl AccessedPolicy {
    /// The same for all sizes.
    #[must_use]
    pub const fn all(accessed: Accessed) -> Self {
        Self { small: accessed, large: accessed }
    }

    /// The choice for entries of this size.
    #[must_use]
    pub const fn of(self, stride: Stride) -> Accessed {
        match stride {
            Stride::Page4K => self.small,
            _ => self.large,
        }
    }
}

/// Which CPUs an invalidation must reach, and how that is decided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Strategy {
    /// Every invalidation is broadcast.
    Always,
    /// Local for the only CPU that ever ran the space.
    Sticky,
    /// Local for the only CPU that runs the space now; others flush the tag when they come back.
    Active,
    /// Local for the only CPU that may hold entries; CPUs can be asked to leave.
    Trim,
}

/// When a space gets a global tag: a policy value.
///
/// A broadcast concerns every CPU, while interrupts concern only the CPUs that run the space: if
/// those are few, interrupts are cheaper. Counting them costs a look at each, so it is done now and
/// then. And where several CPUs flush the space at the same time, one acknowledgement covers
/// several flushes, while broadcasts wait for each other: then interrupts are cheaper even for many
/// CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threshold {
    /// A space that is active on more CPUs than this gets a tag.
    pub above: u32,
    /// The CPUs are counted once in this many flushes; 0 means never.
    pub every: u32,
    /// This many counts in a row must have found no other CPU flushing the space; 0 means that
    /// others do not matter.
    pub alone: u32,
}

impl Threshold {
    /// Active on more than 3 CPUs, looked at in one flush of 32 (Linux 6.15).
    pub const LINUX_6_15: Self = Self { above: 3, every: 32, alone: 0 };

    /// Active on more than two CPUs, and flushed by one at a time: as measured
    /// (docs/src/results.md, `threshold`). Of flushes that three CPUs begin together, the last
    /// finds no other; for 32 such counts in a row the chance is one in 10^15.
    pub const MEASURED: Self = Self { above: 2, every: 32, alone: 32 };

    /// Never.
    pub const NEVER: Self = Self { above: u32::MAX, every: 0, alone: 0 };

    /// Is the space considered in the `nth` flush? The steps are not equal: if CPUs flush in turn,
    /// equal steps would always choose the same CPU.
    #[must_use]
    pub const fn is_due(self, nth: u64) -> bool {
        // Steele and others 2014: an odd number near 2^64 divided by the golden ratio scatters a
        // counter.
        self.every != 0 && (nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % self.every as u64 == 0
    }

    /// Is the space active on enough CPUs? It looks at no more of them than it must.
    pub fn is_exceeded(self, active: impl IntoIterator<Item = bool>) -> bool {
        let above = self.above as usize;
        active.into_iter().filter(|active| *active).nth(above).is_some()
    }
}

/// How long unmappings may be pending, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LazyUnmap {
    /// Changes that have been pending for longer are completed by the next
    /// [`poll`](crate::LazyUnmapping::poll); in the unit of its `now`.
    pub max_age: u64,
    /// How much a [`LazyUnmapping`](crate::LazyUnmapping) may have pending, in pages of 4 KiB.
    pub max_pages: u64,
}

impl LazyUnmap {
    /// Two ticks of a timer with 250 a second, in nanoseconds: LATR's choice, after which every CPU
    /// with a tick has caught up. 512 pages are what one table maps, and little memory.
    pub const TWO_TICKS: Self = Self { max_age: 8_000_000, max_pages: 512 };
}

/// A set of mechanisms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Use hardware tags when the machine has them.
    pub tags: bool,
    /// How many of a CPU's tag slots to use; more than the platform's slot count means all of
    /// them.
    pub slots: u8,
    /// Which slot is reused.
    pub victim: Victim,
    /// Lazy mode.
    pub lazy: Lazy,
    /// Invalidate exact ranges up to the ceiling; otherwise every flush is full.
    pub ranges: bool,
    /// Interrupt only CPUs that have the space loaded; otherwise every online CPU.
    pub targeted: bool,
    /// Notify remote CPUs first and work while they work; otherwise local work comes first.
    pub overlap: bool,
    /// How requests reach remote CPUs.
    pub delivery: Delivery,
    /// Keep and replay the log of recent ranges.
    pub range_log: bool,
    /// Acknowledge before invalidating where no access can come between (leaf changes, interrupt
    /// context).
    pub early_ack: bool,
    /// Calls to more CPUs than this are sent and acknowledged as a tree; 0 means never.
    pub tree_above: u16,
    /// When CPUs leave a space's set.
    pub leave: Leave,
    /// The lazy flag shares a line with what others read (`true`), or is on the private line, so
    /// that a remote read of it takes the private line away (`false`, as before Linux 5.13).
    pub split_lazy_line: bool,
    /// Where hardware invalidates by machine-wide tags on every CPU at once: how the library
    /// decides that a broadcast is not needed. With `None`, the CPUs concerned are interrupted, as
    /// elsewhere.
    pub broadcast: Option<Strategy>,
    /// Where hardware can invalidate on all CPUs by a tag although each CPU has tags of its own:
    /// which spaces get a global tag.
    pub shared: Threshold,
    /// In a guest: a flush that must notify at least this many CPUs is handed to the hypervisor
    /// ([`crate::Platform::flush_remote`]); 0 means that none is.
    pub hypercall_from: u16,
    /// When entries whose accessed bits were cleared are invalidated.
    pub accessed: AccessedPolicy,
    /// How long unmappings that the kernel gives to a [`LazyUnmapping`](crate::LazyUnmapping) may
    /// stay without a notification; `None`: they may not.
    pub lazy_unmap: Option<LazyUnmap>,
}

/// A policy that this hardware can't serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PolicyError {
    /// A hypervisor turns local invalidations into broadcasts, so a strategy that chooses local
    /// ones gains nothing.
    LocalUpgraded(Strategy),
    /// An entry may survive an invalidation, and only flushes by broadcast invalidate twice.
    SurvivesOnce,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalUpgraded(strategy) => write!(
                f,
                "the hypervisor makes every local invalidation a broadcast: strategy {strategy:?} gains nothing; set broadcast to Strategy::Always"
            ),
            Self::SurvivesOnce => f.write_str(
                "survives_once is set: only flushes by broadcast invalidate twice; turn tags on and set broadcast to a strategy",
            ),
        }
    }
}

impl core::error::Error for PolicyError {}

impl Policy {
    /// All mechanisms of this project. The default.
    pub const SHOOTDOWN: Self = Self {
        tags: true,
        slots: 6,
        victim: Victim::LeastRecent,
        lazy: Lazy::CatchUp,
        ranges: true,
        targeted: true,
        overlap: true,
        delivery: Delivery::Pull,
        range_log: true,
        early_ack: true,
        // One page, one flush at a time: a loop over 80 CPUs takes 2.2 us, the tree 3.3; 96 take
        // 4.3 and 3.5 (docs/src/results.md, `scale`).
        tree_above: 80,
        leave: Leave::Lazily,
        split_lazy_line: true,
        // The strategy that measures best (docs/src/results.md, `broadcast`): threads move, and
        // only this strategy stops counting the CPUs where they were. It costs a broadcast whenever
        // tables are freed.
        broadcast: Some(Strategy::Active),
        shared: Threshold::MEASURED,
        hypercall_from: 0,
        // A small page that looks unused for one tick more costs little, and its bit is cleared
        // often. A large page that is reclaimed by mistake costs hundreds of pages, stays cached
        // for long, and its bit is cleared rarely.
        accessed: AccessedPolicy { small: Accessed::Generation, large: Accessed::Immediate },
        // Off: a kernel must be prepared for it.
        lazy_unmap: None,
    };

    /// No tags, every CPU interrupted, full flushes, one step after the other.
    pub const NAIVE: Self = Self {
        tags: false,
        slots: 1,
        victim: Victim::RoundRobin,
        lazy: Lazy::Off,
        ranges: false,
        targeted: false,
        overlap: false,
        delivery: Delivery::Push,
        range_log: false,
        early_ack: false,
        tree_above: 0,
        leave: Leave::AtSwitch,
        split_lazy_line: true,
        broadcast: None,
        shared: Threshold::NEVER,
        hypercall_from: 0,
        accessed: AccessedPolicy { small: Accessed::Never, large: Accessed::Immediate },
        lazy_unmap: None,
    };

    /// Generations and lazy mode, local before remote, no tags.
    pub const LINUX_4_13: Self = Self {
        ranges: true,
        targeted: true,
        lazy: Lazy::LeaveOnKick,
        split_lazy_line: false,
        ..Self::NAIVE
    };

    /// 4.13 with per-CPU tags.
    pub const LINUX_4_14: Self = Self { tags: true, slots: 6, ..Self::LINUX_4_13 };

    /// 4.14 with overlapped flushes, no interrupts to lazy CPUs, and the lazy flag on a line of its
    /// own.
    pub const LINUX_5_13: Self =
        Self { overlap: true, lazy: Lazy::CatchUp, split_lazy_line: true, ..Self::LINUX_4_14 };

    /// 5.13 with CPU sets that are left when asked, and global tags where x86 hardware invalidates
    /// by them.
    pub const LINUX_6_15: Self =
        Self { leave: Leave::WhenAsked, shared: Threshold::LINUX_6_15, ..Self::LINUX_5_13 };

    /// Machine-wide tags, and every invalidation broadcast by the hardware.
    pub const ARM64_MAINLINE: Self = Self {
        broadcast: Some(Strategy::Always),
        accessed: AccessedPolicy::all(Accessed::Generation),
        ..Self::LINUX_5_13
    };

    /// Is a call to this many CPUs sent and acknowledged as a tree?
    #[must_use]
    pub const fn is_large(&self, cpus: u32) -> bool {
        self.tree_above != 0 && cpus > self.tree_above as u32
    }

    /// Checks that the policy can serve hardware with these facts.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub const fn check(&self, facts: &Facts) -> Result<(), PolicyError> {
        if facts.errata.survives_once && (self.broadcast.is_none() || !self.tags) {
            return Err(PolicyError::SurvivesOnce);
        }
        match (facts.broadcast, self.broadcast) {
            (Broadcast::Tlbi { .. }, Some(Strategy::Always) | None) => Ok(()),
            (Broadcast::Tlbi { .. }, Some(strategy)) if facts.hypervisor_may_upgrade => {
                Err(PolicyError::LocalUpgraded(strategy))
            }
            _ => Ok(()),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::SHOOTDOWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::facts::TagScope;

    #[test]
    fn local_invalidations_that_a_hypervisor_upgrades_are_refused_as_a_strategy() {
        let arm = Facts {
            tag_scope: TagScope::System,
            tag_bits: 16,
            broadcast: Broadcast::Tlbi { ranges: true },
            ..Facts::X86_64_MINIMUM
        };
        let guest = Facts { hypervisor_may_upgrade: true, ..arm };
        for strategy in [Strategy::Sticky, Strategy::Active, Strategy::Trim] {
            let policy = Policy { broadcast: Some(strategy), ..Policy::SHOOTDOWN };
            assert_eq!(policy.check(&arm), Ok(()));
            assert_eq!(policy.check(&guest), Err(PolicyError::LocalUpgraded(strategy)));
        }
        assert_eq!(Policy::ARM64_MAINLINE.check(&guest), Ok(()));
        assert_eq!(Policy { broadcast: None, ..Policy::SHOOTDOWN }.check(&guest), Ok(()));
        let x86 = Facts { hypervisor_may_upgrade: true, ..Facts::X86_64_MINIMUM };
        assert_eq!(Policy::SHOOTDOWN.check(&x86), Ok(()));
    }
}
