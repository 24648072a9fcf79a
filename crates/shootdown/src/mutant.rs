//! Test-only switches that take one step out of a protocol.
//!
//! Each names a step without which a promise breaks; a test turns it on and expects the oracle, the
//! model checker or a property to object. In ordinary builds `active` is the constant `false`.

/// One removed or weakened step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Mutant {
    /// The switcher publishes that it is switching, but without the fence before it reads the
    /// generation (pair D1, switcher side).
    SwitchWithoutFence,
    /// The switcher reads the generation before it publishes that it is switching.
    SwitchReadsGenerationFirst,
    /// The flusher reads the CPU set without the fence after the generation (pairs D1 and D2).
    FlushWithoutFence,
    /// Leaving lazy mode does not fence before it reads the generation (pair D2, lazy side).
    LazyExitWithoutFence,
    /// Leaving lazy mode trusts the entries it has.
    LazyExitTrusts,
    /// A remembered tag is kept without looking at its generation.
    SlotTrusts,
    /// A new space takes a slot and keeps the old space's entries.
    EvictionKeeps,
    /// A CPU that is switching counts as "not running the space".
    FilterSkipsSwitching,
    /// A lazy CPU is left alone although tables are freed.
    FilterSkipsLazyFreed,
    /// A CPU in the set is left out of the targets.
    FilterLosesOne,
    /// The change is not counted.
    NoGenerationBump,
    /// The initiator does not wait.
    NoWait,
    /// The initiator does no local work.
    NoLocalWork,
    /// The responder acknowledges and does not invalidate.
    RespondWithoutInvalidate,
    /// The responder invalidates only its request's range although it is further behind.
    PartialOverMissedStep,
    /// A responder several steps behind replays only the newest step.
    ReplayOnlyNewest,
    /// Acknowledges early although tables are freed.
    EarlyAckFreed,
    /// The call is acknowledged before its function ran.
    AckBeforeCall,
    /// A tree's group is reported complete by its first CPU.
    TreeFirstReports,
    /// The user half is not invalidated on return to user mode.
    UserHalfForgotten,
    /// A kernel flush under split tables forgets the tags that are not loaded.
    OtherTagsForgotten,
    /// A gather hands back its frames without having flushed.
    GatherWithoutFlush,
    /// A gather forgets that tables were freed.
    GatherForgetsTables,
    /// A CPU coming online keeps what its TLB held.
    OnlineKeeps,
}

#[cfg(any(shootdown_traced, loom))]
mod imp {
    use super::Mutant;
    use core::cell::Cell;

    std::thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Is the mutant on in this thread?
    #[inline]
    pub fn active(mutant: Mutant) -> bool {
        ACTIVE.get() == Some(mutant)
    }

    /// Turns one mutant on in this thread (or all off).
    pub fn set(mutant: Option<Mutant>) {
        ACTIVE.set(mutant);
    }
}

#[cfg(any(shootdown_traced, loom))]
pub use imp::{active, set};

/// Is the mutant on? Never, in this build.
#[cfg(not(any(shootdown_traced, loom)))]
#[inline]
pub(crate) const fn active(_: Mutant) -> bool {
    false
}
