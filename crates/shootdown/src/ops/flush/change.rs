//! A request to flush, the value that stands for its change from the moment it is counted, and what
//! came of it.

use core::fmt;

use crate::base::ids::{CpuId, Generation, VaRange};
use crate::ops::call::CallError;
use crate::ops::respond::Hint;
use crate::port::family;
use crate::port::platform::{KickError, Platform};
use crate::port::regime::Regime;
use crate::state::cpu::PerCpu;
use crate::state::range_log::Step;
use crate::state::space::AddressSpace;

/// What changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Entries of these addresses.
    Pages(VaRange),
    /// Anything in the space.
    Space,
}

/// A request to flush one space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What changed since the last flush that covered it.
    pub what: What,
    /// Page-table pages, not only leaves, are going away.
    pub freed_tables: bool,
}

impl Request {
    /// Leaf entries of a range changed.
    #[must_use]
    pub const fn pages(range: VaRange) -> Self {
        Self { what: What::Pages(range), freed_tables: false }
    }

    /// Anything may have changed, tables included.
    #[must_use]
    pub const fn space() -> Self {
        Self { what: What::Space, freed_tables: true }
    }

    pub(crate) fn step(self, ceiling: u32) -> Step {
        let range = match self.what {
            What::Pages(range) if range.count() <= u64::from(ceiling) => Some(range),
            What::Pages(_) | What::Space => None,
        };
        Step { range, freed_tables: self.freed_tables }
    }

    /// Counts the request: off the path on which others wait to be notified.
    pub(super) fn count<P: Platform>(self, me: &PerCpu<P>) {
        match self.what {
            What::Pages(range) => {
                me.stats.requests_pages.inc();
                if range.count() > u64::from(P::Regime::facts().ceiling) {
                    me.stats.over_ceiling.inc();
                }
            }
            What::Space => me.stats.requests_space.inc(),
        }
    }
}

/// A change of a space, or several of one space, that were counted and are pending.
/// [`complete`](Self::complete) says that every CPU has acknowledged. Dropped without that (an
/// error, a ticket that is given up, a panic), it is pending: the space stays
/// [pending](AddressSpace::is_pending) until somebody else has flushed it.
pub(crate) struct Change<'a, P: Platform> {
    pub space: &'a AddressSpace<P>,
    /// What hardware that reaches every CPU is asked for.
    pub request: Request,
    /// What CPUs are asked for.
    pub hint: Hint,
    /// What a CPU has acknowledged when it has acknowledged: the generation; or the number of a
    /// broadcast that is said to be complete too early ([`broadcast`](super::broadcast)).
    pub answer: u64,
    /// How many counted changes it stands for. None: it is somebody else's change, which is
    /// flushed for them.
    pub changes: u64,
    /// A tag for all CPUs may turn up while CPUs are asked: to be looked for when they have
    /// acknowledged.
    pub looks_again: bool,
    /// A hypervisor made CPUs forget this change alone.
    pub by_name: bool,
}

impl<P: Platform> Change<'_, P> {
    /// The newest generation that it was given.
    pub fn generation(&self) -> Generation {
        self.hint.generation
    }

    /// Becomes one change with a newer one of the same space.
    pub fn join(&mut self, mut newer: Self) {
        self.request = match (self.request.what, newer.request.what) {
            (What::Pages(before), What::Pages(range)) => Request::pages(before.merge(&range)),
            _ => newer.request,
        };
        self.hint.generation = newer.hint.generation;
        self.answer = newer.answer;
        self.hint.step = self.request.step(P::Regime::facts().ceiling);
        self.changes += core::mem::take(&mut newer.changes);
    }

    /// Every CPU has acknowledged for it. Says whether that covers something else that was pending.
    pub fn complete(mut self) -> bool {
        let changes = core::mem::take(&mut self.changes);
        let covers = !self.by_name && self.space.covers_all(self.request);
        self.space.pending.complete(self.generation(), changes, covers)
    }
}

impl<P: Platform> Drop for Change<'_, P> {
    fn drop(&mut self) {
        if self.changes == 0 {
            return;
        }
        let generation = self.generation();
        // No generation tells a CPU under a tag for all CPUs what it has missed: the next flush
        // does.
        if self.request.freed_tables || self.looks_again {
            self.space.mark_tables_pending(generation);
        }
        self.space.pending.mark_pending(generation, self.changes);
    }
}

impl<P: Platform> AddressSpace<P> {
    /// The flush of a change is done. If something else was pending that it covers, that is pending
    /// no more.
    pub(super) fn completed_by(&self, me: &PerCpu<P>, change: Change<'_, P>) {
        if change.complete() {
            me.stats.completed_by_others.inc();
        }
    }

    /// Does a flush that is done, and did not go by a hypervisor, cover all changes that were
    /// counted before it?
    pub(crate) fn covers_all(&self, request: Request) -> bool {
        // The tag is looked for after all CPUs have acknowledged. One that loads the space under a
        // tag which comes later finds that empty, and walks tables that have all those
        // changes.
        let by_name = family::strategy::<P>().is_some()
            || family::shared::<P>().is_some() && self.shared_tag().tag().is_some();
        let range = request.step(P::Regime::facts().ceiling).range;
        !by_name || range.is_none() || !P::policy().ranges
    }
}

/// A completed flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flushed {
    /// The generation the change was given.
    pub generation: Generation,
    /// How many other CPUs were interrupted for it.
    pub interrupted: u32,
}

/// Why a flush did not complete. Nothing may be freed yet; the flush may be repeated, and the next
/// flush of the space that succeeds covers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FlushError {
    /// Other CPUs are concerned and this context can't wait for them. They were notified, and the
    /// local work was done; to learn when they have acknowledged, use
    /// [`begin_flush`](crate::AddressSpace::begin_flush).
    WouldWait,
    /// A handler interrupted a call of this CPU and needed its descriptor. Nothing was done.
    Reentered,
    /// A CPU could not be interrupted.
    Kick(KickError),
    /// The platform gave up waiting for this CPU.
    Stalled(CpuId),
}

impl fmt::Display for FlushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WouldWait => {
                f.write_str("other CPUs must be waited for, and this context can't wait; begin the flush and poll its ticket")
            }
            Self::Reentered => f.write_str("a flush of this CPU is in flight; flush from task context"),
            Self::Kick(e) => e.fmt(f),
            Self::Stalled(cpu) => write!(f, "{cpu} did not answer in time; keep what is to be freed and flush again"),
        }
    }
}

impl core::error::Error for FlushError {}

impl From<CallError> for FlushError {
    fn from(e: CallError) -> Self {
        match e {
            CallError::WouldWait => Self::WouldWait,
            CallError::Reentered => Self::Reentered,
            CallError::Kick(e) => Self::Kick(e),
            CallError::Stalled(cpu) => Self::Stalled(cpu),
        }
    }
}
