//! A request to flush, the value that stands for its change from the moment it is counted, and the
//! result of the flush.

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

    /// Anything in the space may have changed, tables included.
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

    /// Counts the request in the statistics, after the other CPUs have been notified.
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
/// [`complete`](Self::complete) records that every CPU has acknowledged. A change that is dropped
/// without that (an error, a dropped ticket, a panic) stays pending: the space is
/// [pending](AddressSpace::is_pending) until another flush covers it.
pub(crate) struct Change<'a, P: Platform> {
    pub space: &'a AddressSpace<P>,
    /// What hardware that reaches every CPU is asked to invalidate.
    pub request: Request,
    /// What the CPUs are asked to invalidate.
    pub hint: Hint,
    /// The number that an acknowledgement must reach: the generation, or, where hardware reports
    /// completion too early, the number of a broadcast ([`broadcast`](super::broadcast)).
    pub answer: u64,
    /// How many counted changes it stands for. 0: the changes of others, which the caller flushes
    /// for them.
    pub changes: u64,
    /// The space may get a global tag while CPUs are being notified: look for it when they have
    /// acknowledged.
    pub looks_again: bool,
    /// The hypervisor made CPUs drop the entries of this change alone.
    pub by_name: bool,
}

impl<P: Platform> Change<'_, P> {
    /// The newest generation that the change was given.
    pub fn generation(&self) -> Generation {
        self.hint.generation
    }

    /// Joins a newer change of the same space into this one.
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

    /// Every CPU has acknowledged this change. Returns whether that covers something else that was
    /// pending.
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
        // A CPU under a global tag does not compare generations, so it can't find out by itself
        // what it has missed; the next flush must invalidate it.
        if self.request.freed_tables || self.looks_again {
            self.space.mark_tables_pending(generation);
        }
        self.space.pending.mark_pending(generation, self.changes);
    }
}

impl<P: Platform> AddressSpace<P> {
    /// The flush of a change is done. If it covers something else that was pending, that is
    /// complete too.
    pub(super) fn completed_by(&self, me: &PerCpu<P>, change: Change<'_, P>) {
        if change.complete() {
            me.stats.completed_by_others.inc();
        }
    }

    /// Does a flush that is done, and was not done by a hypervisor, cover all changes that were
    /// counted before it?
    pub(crate) fn covers_all(&self, request: Request) -> bool {
        // The tag is read after all CPUs have acknowledged. If the space gets a tag later, a CPU
        // that loads the space under it finds no entries, and walks tables that contain all those
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
    /// The generation that the change was given.
    pub generation: Generation,
    /// How many other CPUs were interrupted for it.
    pub interrupted: u32,
}

/// Why a flush did not complete. The caller may not free anything yet; it may repeat the flush, and
/// the next flush of the space that succeeds covers the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FlushError {
    /// Other CPUs are concerned and this context can't wait for them. They were notified, and the
    /// local work was done. To learn when they have acknowledged, use
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
            Self::Stalled(cpu) => write!(f, "{cpu} did not acknowledge in time; keep what is to be freed and flush again"),
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
