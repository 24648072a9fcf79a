//! Pending changes: notifying CPUs of changes that were counted before, and which flush covers
//! which change ([`pending`](crate::state::pending) has the argument, [`change`](super::change) the
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
    /// Makes every CPU drop the entries that others have changed in this space and not flushed yet:
    /// those of changes that were put off, of flushes under way, and of flushes that failed. When
    /// it returns `Ok`, no CPU starts an access through an entry that was changed, under the table
    /// lock, before the call.
    ///
    /// Call it before you rely on an entry that other code has cleared or narrowed: when the code
    /// that protects, moves, discards, copies (fork) or writes back a page finds the entry in that
    /// state. When nothing is pending, the call only loads from two lines. Call it with the table
    /// lock held, or after it was held; CPUs that wait for that lock must [serve](crate::poll)
    /// others. Never in a non-maskable handler ([`context`](crate::context)).
    ///
    /// # Errors
    /// See [`FlushError`]. The changes are still pending then.
    pub fn complete_pending(&self, pin: &P::Pin) -> Result<(), FlushError> {
        self.complete_besides(pin, 0)
    }

    /// May entries of this space have been changed whose flush is not done? When it is called under
    /// the table lock, the result covers every entry that is changed already. Use it to choose a
    /// fast path; the slow path calls [`complete_pending`](Self::complete_pending).
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.others_are_open(0) || self.has_outstanding(0)
    }

    /// Like [`Self::complete_pending`], for a caller that has `own` gathers open.
    pub(crate) fn complete_besides(&self, pin: &P::Pin, own: u64) -> Result<(), FlushError> {
        let me = PerCpu::<P>::here(pin);
        let nested = self.nests(me, own);
        if nested || self.pending_tables().is_some() {
            return self.flush(pin, Request::space()).map(drop);
        }
        let Some(pending) = self.outstanding(0) else {
            return Ok(());
        };
        // It is not known here who made the change, nor of what; the log may know the last one. A
        // caller that frees tables waits for lazy CPUs in its own flush, and the invalidation of
        // the whole tag covers the non-leaf entries.
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

    /// Are other gathers open? Then the caller must flush the whole space.
    pub(crate) fn nests(&self, me: &PerCpu<P>, own: u64) -> bool {
        let nested = self.pending.others_are_open(own);
        if nested {
            me.stats.escalated_gathers.inc();
        }
        nested
    }

    /// The generation up to which the space must be flushed, if it must be, not counting `own`
    /// changes that the caller has in flight.
    fn outstanding(&self, own: u64) -> Option<Generation> {
        self.pending.outstanding(own, || self.generation())
    }

    /// Is a change pending, not counting `own` changes that the caller has in flight?
    pub(crate) fn has_outstanding(&self, own: u64) -> bool {
        self.outstanding(own).is_some()
    }

    /// May others have changes that are not flushed yet? `own` is the number of changes that the
    /// caller has in flight. Call it under the table lock.
    pub(crate) fn is_pending_besides(&self, own: u64) -> bool {
        self.has_outstanding(own)
            || self.pending.others_are_open(0)
            || self.pending_tables().is_some()
    }

    /// Have all CPUs acknowledged this generation?
    pub(crate) fn has_completed(&self, generation: Generation) -> bool {
        self.pending.has_completed(generation)
    }

    /// Counts a change that was unmapped for a batch, and leaves the notification for later.
    pub(crate) fn put_off(&self, range: VaRange) -> Change<'_, P> {
        let change = self.count(Request::pages(range));
        self.pending.put_off(change.generation());
        change
    }

    /// Counts a change that was not counted yet, and leaves it pending.
    pub(crate) fn mark_counted_pending(&self, request: Request) {
        drop(self.count(request));
    }
}

/// Which CPUs a completion does not interrupt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spare {
    /// None. Of a large set, the CPUs are notified without a look at each.
    Nobody,
    /// CPUs that are current already, however many targets there are.
    Current,
    /// Those, and isolated CPUs, which stay in user mode for long. If an isolated CPU has not
    /// acknowledged yet, nothing is completed.
    Isolated,
}

/// How many CPUs took part in a completion.
pub(crate) struct Completion {
    pub interrupted: u32,
    /// How many CPUs were spared. If it is not 0, nothing is completed.
    pub spared: u32,
}

/// Steps 3 to 7 for changes of different spaces that were counted before: a CPU that any of them
/// concerns is interrupted once, and broadcast invalidations are waited for once. When it returns
/// `Ok` and no CPU was spared, the changes may be completed.
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
