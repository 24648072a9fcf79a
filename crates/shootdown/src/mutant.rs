//! Test-only switches that take one step out of a protocol, or weaken it.
//!
//! Each names a fence, an ordering, a row of a decision table, a filter, a count, an acknowledgement, a
//! wait, a quarantine or a reference. A test turns it on and expects the oracle, the model checker or a
//! property to object: a step that nobody misses is either superfluous or badly tested. Steps that can be
//! missed say why (`Mutant::equivalent`).
//!
//! They are all declared in one table, [`list`](Mutant::ALL). Only the builds that are tested for it have
//! them (see `without.rs`).

mod list;

use core::cell::Cell;

pub use list::Mutant;

/// What kind of step is missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A fence.
    Fence,
    /// A memory ordering, weakened to `Relaxed`, or two accesses in the wrong order.
    Ordering,
    /// A row of a decision table (switch, respond, call, tree, user half), or a condition of it.
    Row,
    /// A choice of who is told.
    Filter,
    /// A count that must go up, or go along.
    Bump,
    /// Saying that something is done.
    Ack,
    /// Waiting until something is done.
    Wait,
    /// What holds things back until they may be reused.
    Quarantine,
    /// A name, a membership or a right that says who uses what.
    Reference,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Fence,
        Self::Ordering,
        Self::Row,
        Self::Filter,
        Self::Bump,
        Self::Ack,
        Self::Wait,
        Self::Quarantine,
        Self::Reference,
    ];

    /// The kind's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::Ordering => "ordering",
            Self::Row => "row",
            Self::Filter => "filter",
            Self::Bump => "bump",
            Self::Ack => "acknowledgement",
            Self::Wait => "wait",
            Self::Quarantine => "quarantine",
            Self::Reference => "reference",
        }
    }
}

/// What the missing step should break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Promise {
    /// When a flush returns, nobody starts an access through the old translation.
    Revocation,
    /// Frame, table page, range and tag are not reused before the invalidation is complete.
    Reuse,
    /// A slot at generation *g* never holds entries older than *g*.
    Master,
    /// Whoever is waited for answers.
    Progress,
    /// A call that was acknowledged has run, and its effects are seen.
    Calls,
    /// What could not be done is said.
    Errors,
    /// A page in use is seen as used, within the bound of the policy.
    Accessed,
    /// What was unmapped lazily is used no longer than the policy allows.
    Deferred,
}

impl Promise {
    /// The promise's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Revocation => "revocation",
            Self::Reuse => "reuse",
            Self::Master => "master-invariant",
            Self::Progress => "progress",
            Self::Calls => "calls",
            Self::Errors => "errors",
            Self::Accessed => "accessed",
            Self::Deferred => "deferred",
        }
    }
}

std::thread_local! {
    static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    static REACHED: Cell<bool> = const { Cell::new(false) };
}

/// Is the mutant on in this thread?
#[inline]
#[must_use]
pub fn active(mutant: Mutant) -> bool {
    let active = ACTIVE.get() == Some(mutant);
    if active {
        REACHED.set(true);
    }
    active
}

/// Turns one mutant on in this thread (or all off).
pub fn set(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
    REACHED.set(false);
}

/// Was the step that is missing come by in this thread since it was taken out?
#[must_use]
pub fn reached() -> bool {
    REACHED.get()
}

/// The mutant that is on in this thread.
#[must_use]
pub fn current() -> Option<Mutant> {
    ACTIVE.get()
}
