//! The mutants of the library: one step taken out of a protocol, or weakened.
//!
//! Each names a fence, an ordering, a row of a decision table, a filter, a count, an
//! acknowledgement, a wait, a quarantine or a reference. A test turns it on and expects the oracle,
//! the model checker or a property to object: a step that nobody misses is either superfluous or
//! badly tested. Steps that can be missed say why (`Mutant::equivalent`).
//!
//! This module is a part of the woven copies of the library only. The mutants themselves are in the
//! tables beside this file.

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
    /// A choice of who is notified.
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
    /// Whoever is waited for acknowledgements.
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

/// What the table says of a mutant.
pub(super) struct Row {
    name: &'static str,
    sentence: &'static str,
    place: &'static str,
    kind: Kind,
    breaks: Promise,
    unless: Option<&'static str>,
}

impl Mutant {
    const fn row(self) -> &'static Row {
        &list::ROWS[self as usize]
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The mutant of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|m| m.name() == name)
    }

    /// What is missing.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        self.row().sentence
    }

    /// What kind of step is missing.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.row().kind
    }

    /// File and function of the step.
    #[must_use]
    pub const fn place(self) -> &'static str {
        self.row().place
    }

    /// The promise that breaks without the step.
    #[must_use]
    pub const fn promise(self) -> Promise {
        self.row().breaks
    }

    /// Why nothing breaks without the step, for the few where nothing does.
    #[must_use]
    pub const fn equivalent(self) -> Option<&'static str> {
        self.row().unless
    }
}

std::thread_local! {
    static SELECTED: Cell<u32> = const { Cell::new(0) };
    static REACHED: Cell<bool> = const { Cell::new(false) };
}

/// The number of the change that is on in this thread; zero for none. The functions of the copy
/// ask.
#[inline]
#[must_use]
pub fn selected() -> u32 {
    SELECTED.get()
}

/// The changed place is come by.
#[inline]
pub fn reach() {
    REACHED.set(true);
}

/// Turns the change of this number on in this thread (zero: all off).
pub fn select(number: u32) {
    SELECTED.set(number);
    REACHED.set(false);
}

/// Turns one mutant on in this thread (or all off).
pub fn set(mutant: Option<Mutant>) {
    select(mutant.map_or(0, |mutant| mutant as u32 + 1));
}

/// Is the mutant on in this thread?
#[must_use]
pub fn active(mutant: Mutant) -> bool {
    current() == Some(mutant)
}

/// Was the step that is missing come by in this thread since it was taken out?
#[must_use]
pub fn reached() -> bool {
    REACHED.get()
}

/// The mutant that is on in this thread.
#[must_use]
pub fn current() -> Option<Mutant> {
    let at = (selected() as usize).checked_sub(1)?;
    Mutant::ALL.get(at).copied()
}
