//! Changes that are pending: notifying CPUs of what was counted before, and whose flush covers
//! whose change ([`pending`](crate::state::pending) has the argument, [`change`](super::change) the
//! value that stands for a counted change).

use crate::base::cpu_set::Bits;
use crate::base::ids::{Generation, VaRange};
use crate::ops::flush::{Change, Counted, FlushError, Request, Started, What, broadcast};
use crate::ops::flush::{notify_and_wait, union};
use crate::ops::respond::Hint;
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::policy::Delivery;
use crate::port::regime::Regime;
use crate::state::cpu::PerCpu;
use crate::state::space::AddressSpace;

impl<P: Platform> AddressSpace<P> {
    /// Sees to it that what the tables say is all that CPUs can do: makes every CPU forget what
    /// others have changed in this space and not flushed yet, what their flushes under way are
    /// about, and what a failed flush has left. When it returns `Ok`, no CPU starts an access
    /// through an entry that was changed, under the table lock, before the call.
    ///
    /// For whoever relies on an entry that somebody else has cleared or narrowed: who protects,
    /// moves, discards, copies (fork) or writes back a page and finds it in that state. Nothing is
    /// done, beyond loads from two lines, when nothing is pending. Call it with the table lock
    /// held, or after it was; waiters for that lock must [serve](crate::poll). Never in a
    /// non-maskable handler ([`context`](crate::context)).
    ///
    /// # Errors
    /// See [`FlushError`]. It is pending still.
    pub fn complete_pending(&self, pin: &P::Pin) -> Result<(), FlushError> {
        self.complete_besides(pin, 0)
    }

    /// May somebody have changed entries of this space whose flush is not done? Under the table
    /// lock: of entries that are changed already. Who asks before a short way round
    /// calls [`complete_pending`](Self::complete_pending) on the long one.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.others_are_open(0) || self.has_outstanding(0)
    }

    /// As [`Self::complete_pending`], by someone who has so many gathers open.
    pub(crate) fn complete_besides(&self, pin: &P::Pin, own: u64) -> Result<(), FlushError> {
        let me = PerCpu::<P>::here(pin);
        let nested = self.nests(me, own);
        if nested || self.pending_tables().is_some() {
            return self.flush(pin, Request::space()).map(drop);
        }
        let Some(pending) = self.outstanding(0) else {
            return Ok(());
        };
        // Whose change it is, and of what, is not known here; the log may know the last one. Who
        // frees tables waits for lazy CPUs by itself; what leads to the tables goes with the whole
        // tag.
        let request = Request { what: What::Space, freed_tables: false };
        let whole = request.step(P::Regime::facts().ceiling);
        let log = self.log.read(Generation(pending.0.saturating_sub(1)), pending);
        let step = log.and_then(|log| log.as_slice().first().copied());
        let step = step.filter(|step| !step.freed_tables).unwrap_or(whole);
        let hint = Hint { generation: pending, step };
        let (space, answer, changes) = (self, pending.0, 0);
        let change =
            Change { space, request, hint, answer, changes, looks_again: false, by_name: false };
        let mut change = [change];
        complete_together(pin, me, &mut change, Spare::Nobody)?;
        let [change] = change;
        if !change.by_name && self.covers_all(change.request) {
            self.pending.mark_complete(pending);
        }
        me.stats.completed.inc();
        Ok(())
    }

    /// Are other gathers open? Then a flush of everything is called for.
    pub(crate) fn nests(&self, me: &PerCpu<P>, own: u64) -> bool {
        let nested = self.pending.others_are_open(own);
        if nested {
            me.stats.escalated_gathers.inc();
        }
        nested
    }

    /// The generation up to which must be flushed, if any must, besides so many changes in flight
    /// of the caller's own.
    fn outstanding(&self, own: u64) -> Option<Generation> {
        self.pending.outstanding(own, || self.generation())
    }

    /// Is a change in flight, besides so many of the caller's own, or pending?
    pub(crate) fn has_outstanding(&self, own: u64) -> bool {
        self.outstanding(own).is_some()
    }

    /// May others have changes that are not flushed yet? `own`: how many the caller has in flight.
    /// Under the table lock.
    pub(crate) fn is_pending_besides(&self, own: u64) -> bool {
        self.has_outstanding(own)
            || self.pending.others_are_open(0)
            || self.pending_tables().is_some()
    }

    /// Has every CPU acknowledged for this generation?
    pub(crate) fn has_completed(&self, generation: Generation) -> bool {
        self.pending.has_completed(generation)
    }

    /// A change was unmapped for a batch: counts it, and leaves the notifying for later.
    pub(crate) fn put_off(&self, range: VaRange) -> Change<'_, P> {
        let change = self.count(Request::pages(range));
        self.pending.put_off(change.generation());
        change
    }

    /// A change was not even counted: it is now, and pending.
    pub(crate) fn mark_counted_pending(&self, request: Request) {
        drop(self.count(request));
    }
}

/// Who is not interrupted for a completion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spare {
    /// Of many CPUs, none is looked at first.
    Nobody,
    /// CPUs that are current, of however many.
    Current,
    /// These, and isolated CPUs, which are in user mode for long. If one has not acknowledged yet,
    /// nothing is completed.
    Isolated,
}

/// Who took part in a completion.
pub(crate) struct Completion {
    pub interrupted: u32,
    /// If any were, nothing is completed.
    pub spared: u32,
}

/// Steps 3 to 7 for changes that were counted before, of different spaces: the CPUs that any of
/// them concerns are interrupted once, and hardware that removes entries everywhere is waited for
/// once. When it returns `Ok` and nobody was spared, they may be completed.
pub(crate) fn complete_together<P: Platform>(
    pin: &P::Pin,
    me: &PerCpu<P>,
    changes: &mut [Change<'_, P>],
    spare: Spare,
) -> Result<Completion, FlushError> {
    if P::policy().delivery == Delivery::Push && me.call.is_busy() {
        return Err(FlushError::Reentered);
    }
    let mut targets = CpuSetOf::<P>::EMPTY;
    let mut last = None;
    let counted = if spare == Spare::Nobody { Counted::Before } else { Counted::LongBefore };
    for change in changes.iter_mut() {
        let started: Started<P> = change.space.find(pin, me, change, counted);
        targets = union::<P>(&targets, &started.targets);
        last = started.issued.or(last);
    }
    if let Some(last) = last {
        broadcast::complete::<P>(last);
        for change in changes.iter_mut() {
            let space = change.space;
            targets = union::<P>(&targets, &space.completed(pin, me, change));
        }
    }
    let spared =
        if spare == Spare::Isolated { P::system().leave_isolated_alone(&mut targets) } else { 0 };
    me.stats.avoided_isolated.add(u64::from(spared));
    let interrupted = notify_and_wait(pin, me, changes, targets, CpuSetOf::<P>::EMPTY)?;
    let completion = Completion { interrupted, spared };
    if spared != 0 {
        return Ok(completion);
    }
    for Change { space, request, hint, .. } in changes.iter().filter(|c| c.looks_again) {
        space.after_asking(pin, me, *request, hint.generation);
    }
    Ok(completion)
}
