//! Flushes: what an initiator requests, and the steps of a request.
//!
//! # The path
//! The caller has changed the tables. The initiator (1) *publishes* the stores to walkers; (2)
//! counts the change and writes its range into the log; (3) executes a fence; (4) finds the CPUs
//! that must be notified and, in a guest, hands over those that the hypervisor takes care of; (5)
//! notifies the rest; (6) does its local work while they do theirs; (7) waits. With serial policies
//! step 6 comes before step 5.
//!
//! # Which CPUs are notified
//! | state of a CPU in the set | notified? | why not |
//! |---|---|---|
//! | between two spaces | yes | |
//! | uses the space, behind | yes | |
//! | uses the space, current already | no | it caught up for an earlier request or in a switch |
//! | lazy in the space; leaf change | no | it catches up when it returns (D2) |
//! | lazy in the space; tables freed | yes | its walker could use them |
//! | in another space or none | no | it looks at the generation when it comes back (D1); no walk is under way |
//!
//! The filter may notify a CPU without need; it must never leave out one that must be notified.
//!
//! # What an acknowledgement is
//! With *pull* delivery there is no request and no acknowledgement message: a CPU has acknowledged
//! when its published state says that it makes no access through entries older than the requested
//! generation. An acknowledgement belongs to one CPU, is never taken back, and covers every request
//! up to its generation.
//!
//! # Invariants
//! I1: `flush` returns `Ok` only when every CPU of the set has acknowledged or provably looks at
//! the generation before it uses the space again. I2: after an error the caller still may not free
//! anything; it may repeat the flush. I3: nothing here allocates, and no lock is held during the
//! wait.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | F1 the generation counted (`AddressSpace::bump`) | Release | F2 | a CPU that reads the number walks the tables as they were published before |
//! | F2 the generation read (`AddressSpace::generation`) | Acquire | F1 | |
//! | D1, D2 the fence in `find`, after F1 and before the look at the set and at its CPUs | SeqCst | the fences of `switch_to` ([`switch`](crate::switch) has the table) | a CPU that comes to the space reads the new generation, or the flush sees the CPU |
//! | F3 the state of a CPU, then the generation that it has acknowledged (`is_done`) | Acquire, Acquire | F4, and the Release that ends a switch | accesses through older entries are over; in the other order the acknowledgement could belong to another stay in the space |
//! | F4 the acknowledgement stored (`respond::catch_up`, `switch_to`) | Release | F3 | the invalidation comes before it, or no access of that CPU can come between |
//!
//! If F4 were not Release, a CPU could make an access through an old entry after the flush that
//! should have ended it has returned. Without the fence of D1 and D2 the flush could miss a CPU
//! that is just loading the space, and that CPU could read the old generation.

mod acknowledge;
mod broadcast;
mod change;
mod complete;
mod everywhere;
mod paravirt;
mod shared;

use core::slice;

use crate::base::cpu_set::{Bits, Mask};
use crate::base::ids::CpuId;
use crate::base::sync::{Ordering, fence, prefetch};
use crate::ops::call;
use crate::ops::respond::{self, Hint, Push, catch_up_any, leave_set, pull, push};
use crate::ops::tree::{self, READ_AHEAD};
use crate::port::family;
use crate::port::platform::{CpuSetOf, Pinned, Platform};
use crate::port::policy::{Delivery, Lazy, Leave};
use crate::port::regime::{Invalidate, Regime};
use crate::state::cpu::{PerCpu, View};
use crate::state::range_log::Step;
use crate::state::space::AddressSpace;
use crate::tags::shared::{Phase, Uses};

use acknowledge::is_done;

pub use acknowledge::Ticket;
pub(crate) use change::Change;
pub use change::{FlushError, Flushed, Request, What};
pub(crate) use complete::{Spare, complete_together};
pub use everywhere::{flush_everything, flush_kernel};

/// When was a change counted?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Just now: no CPU has acknowledged yet.
    Now,
    /// A while ago.
    Before,
    /// So long ago that most CPUs have acknowledged: it pays to look at each, however many they
    /// are.
    LongBefore,
}

/// The CPUs that must be notified of a change, and the stale members that should leave the set.
struct Started<P: Platform> {
    /// The last invalidation that was broadcast; it must be waited for.
    issued: Option<Invalidate>,
    targets: CpuSetOf<P>,
    trim: CpuSetOf<P>,
}

impl<P: Platform> Started<P> {
    /// The hardware does all of the work, or no other CPU has the space.
    fn nobody(issued: Option<Invalidate>) -> Self {
        Self { issued, targets: CpuSetOf::<P>::EMPTY, trim: CpuSetOf::<P>::EMPTY }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Makes every CPU drop the entries that `request` says have changed in this space's tables.
    /// When it returns `Ok`, no CPU starts an access through the old entries any more, and, with
    /// `freed_tables`, no walker reaches the freed tables.
    ///
    /// The caller changes the tables before the call, and holds the lock that protects them until
    /// the call returns. A caller that releases the lock earlier first begins a
    /// [gather](crate::gather), or begins the flush with [`begin_flush`](Self::begin_flush): until
    /// the change is counted, no other CPU can know that it is pending. Any other flush of the
    /// space may run at the same time.
    ///
    /// Never in a non-maskable handler ([`context`](crate::context)).
    ///
    /// # Errors
    /// See [`FlushError`].
    pub fn flush(&self, pin: &P::Pin, request: Request) -> Result<Flushed, FlushError> {
        let me = PerCpu::<P>::here(pin);
        let policy = P::policy();
        if policy.delivery == Delivery::Push && me.call.is_busy() {
            self.mark_counted_pending(request);
            return Err(FlushError::Reentered);
        }
        let pending = self.pending_tables();
        let whole = pending.is_some();
        let request = if whole { Request::space() } else { request };
        let (change, started) = self.start(pin, me, request);
        let Started { targets, trim, .. } = started;
        let done = notify_and_wait(pin, me, slice::from_ref(&change), targets, trim);
        request.count(me);
        let interrupted = done?; // `change` is dropped: it is pending
        let generation = change.generation();
        if change.looks_again {
            self.after_asking(pin, me, request, generation);
        }
        pending.into_iter().for_each(|pending| self.completed_tables(pending));
        self.completed_by(me, change);
        Ok(Flushed { generation, interrupted })
    }

    /// Like [`flush`](Self::flush), for callers that can't wait: it notifies the other CPUs and
    /// does the local work, and the ticket says when they have acknowledged. Until then the change
    /// is [pending](Self::is_pending); if the ticket is dropped earlier, the change stays pending
    /// until a later flush or [`complete_pending`](Self::complete_pending) covers it.
    ///
    /// Never in a non-maskable handler ([`context`](crate::context)).
    ///
    /// # Errors
    /// [`FlushError::Kick`] when a CPU could not be interrupted.
    pub fn begin_flush(&self, pin: &P::Pin, request: Request) -> Result<Ticket<'_, P>, FlushError> {
        let me = PerCpu::<P>::here(pin);
        let whole = self.pending_tables().is_some();
        let request = if whole { Request::space() } else { request };
        let (change, started) = self.start(pin, me, request);
        let Started { targets, .. } = started;
        if targets.is_empty() {
            me.stats.flushes_local.inc();
        } else {
            me.stats.flushes_remote.inc();
        }
        let notified = notify(me, &targets);
        local_work(pin.cpu(), me, slice::from_ref(&change));
        request.count(me);
        notified?; // `change` is dropped: it is pending
        let generation = change.generation();
        let change = if targets.is_empty() && !change.looks_again {
            self.completed_by(me, change);
            None
        } else {
            Some(change)
        };
        Ok(Ticket { change, generation, waiting: targets })
    }

    /// Steps 1 to 4 of the path.
    fn start(&self, pin: &P::Pin, me: &PerCpu<P>, request: Request) -> (Change<'_, P>, Started<P>) {
        // The test machine would record this access, and debug builds would count other figures
        // than release builds.
        #[cfg(not(any(shootdown_traced, loom)))]
        debug_assert!(self.is_in_place(me), "{} was moved while it is loaded here", self.id());
        if family::strategy::<P>().is_none() {
            self.expect_to_notify(pin.cpu());
        }
        let mut change = self.count(request);
        let mut started = self.find(pin, me, &mut change, Counted::Now);
        if let Some(last) = started.issued {
            broadcast::complete::<P>(last);
            started.targets = self.completed(pin, me, &mut change);
        }
        (change, started)
    }

    /// Steps 1 and 2: from now on a CPU that looks at the generation catches up.
    fn count(&self, request: Request) -> Change<'_, P> {
        let step = request.step(P::Regime::facts().ceiling);
        P::Regime::publish();
        let generation = self.bump();
        let logs = P::policy().range_log && family::strategy::<P>().is_none();
        if logs {
            self.log.record(generation, step);
        }
        let hint = Hint { generation, step };
        let answer = generation.0;
        Change {
            space: self,
            request,
            hint,
            answer,
            changes: 1,
            looks_again: false,
            by_name: false,
        }
    }

    /// Steps 3 and 4.
    fn find(
        &self,
        pin: &P::Pin,
        me: &PerCpu<P>,
        change: &mut Change<'_, P>,
        counted: Counted,
    ) -> Started<P> {
        let (cpu, policy) = (pin.cpu(), P::policy());
        let Change { request, hint, .. } = *change;
        if let Some(strategy) = family::strategy::<P>() {
            return Started::nobody(self.issue(pin, me, strategy, request));
        }
        fence(Ordering::SeqCst); // ORDERING: D1, D2, with the fences in `switch_to`
        let looks_again = family::shared::<P>().is_some();
        let issued = if looks_again { self.broadcast_if_moved(me, request) } else { None };
        if issued.is_some() {
            return Started::nobody(issued);
        }
        change.looks_again = looks_again;
        // A CPU that is not seen online executes a fence after ours when it comes back, and then
        // looks at the generation.
        let mut targets = if policy.targeted { self.cpus() } else { P::system().online() };
        targets.remove(cpu);
        if targets.is_empty() && !looks_again {
            return Started::nobody(None);
        }
        if policy.targeted {
            targets = P::system().online_of(&targets);
        }
        let mut trim = CpuSetOf::<P>::EMPTY;
        let looks = policy.lazy == Lazy::CatchUp || policy.leave != Leave::AtSwitch;
        let each = counted == Counted::LongBefore || !P::policy().is_large(targets.len());
        if policy.targeted && looks && !targets.is_empty() && each {
            trim = self.filter(me, &mut targets, hint, counted);
        }
        debug_assert!(!targets.contains(cpu), "this CPU does its own work");
        let mut started = Started { issued: None, targets, trim };
        self.hand_over(me, change, &mut started);
        started
    }

    /// Prefetches the lines that notifying others will need, so that the transfers overlap.
    fn expect_to_notify(&self, cpu: CpuId) {
        if P::policy().delivery != Delivery::Pull {
            return;
        }
        let others = self.cpus();
        let mut others = others.iter().filter(|c| *c != cpu).peekable();
        if others.peek().is_some() {
            self.expect_to_change();
            for state in others.take(READ_AHEAD).filter_map(P::slot) {
                prefetch(&state.shared);
            }
        }
    }

    /// Step 4: leaves out the CPUs that need not be notified (see the module's table). Now and then
    /// it returns the stale members of the set, which are to be asked to leave it.
    #[inline(never)]
    fn filter(
        &self,
        me: &PerCpu<P>,
        targets: &mut CpuSetOf<P>,
        hint: Hint,
        counted: Counted,
    ) -> CpuSetOf<P> {
        let Hint { generation, step: Step { freed_tables, .. } } = hint;
        let policy = P::policy();
        let id = self.id().get();
        let candidates = *targets;
        // The first few are being fetched already (`expect_to_notify`).
        for state in candidates.iter().skip(READ_AHEAD).filter_map(P::slot) {
            prefetch(&state.shared);
        }
        // Can a CPU have acknowledged this change already? Not if it was counted just now and the
        // space has not changed again. With push delivery the initiator does not read acknowledged
        // generations: the request is on its way.
        let overtaken = counted != Counted::Now
            || self.generation() != generation && policy.delivery != Delivery::Push;
        let shared = family::shared::<P>().map_or(Phase::Slots, |_| self.shared_tag().phase());
        let asks_all = freed_tables && policy.leave == Leave::WhenAsked;
        let mut stale = CpuSetOf::<P>::EMPTY;
        for cpu in candidates.iter() {
            let Some(state) = P::slot(cpu) else {
                targets.remove(cpu);
                continue;
            };
            let notified = match state.remote_view(id) {
                View::Switching => true,
                // The space is moving to a global tag: a CPU that does not use that tag yet must
                // load it.
                View::Active | View::Lazy if shared != Phase::Slots => {
                    state.uses(id) != Uses::Shared
                }
                View::Active => {
                    let acknowledged = || is_done(state, id, generation.0, freed_tables);
                    let behind = !overtaken || !acknowledged();
                    if !behind {
                        me.stats.avoided_current.inc();
                    }
                    behind
                }
                View::Lazy => {
                    let notified = match policy.lazy {
                        Lazy::CatchUp => freed_tables,
                        _ => true,
                    };
                    if !notified {
                        me.stats.avoided_lazy.inc();
                    }
                    notified
                }
                View::Elsewhere => {
                    if !asks_all {
                        me.stats.avoided_elsewhere.inc();
                    }
                    stale.insert(cpu);
                    false
                }
            };
            if !notified {
                targets.remove(cpu);
            }
        }
        let count = u64::from(stale.len());
        if count == 0 || !asks_all && !self.note_stale(count) {
            return CpuSetOf::<P>::EMPTY;
        }
        stale
    }
}

/// Notifies, works and waits; returns how many CPUs were interrupted. `trim` belongs to the only
/// change of `changes`.
fn notify_and_wait<P: Platform>(
    pin: &P::Pin,
    me: &PerCpu<P>,
    changes: &[Change<'_, P>],
    mut targets: CpuSetOf<P>,
    mut trim: CpuSetOf<P>,
) -> Result<u32, FlushError> {
    let cpu = pin.cpu();
    let policy = P::policy();
    if targets.is_empty() && trim.is_empty() {
        me.stats.flushes_local.inc();
        local_work(cpu, me, changes);
        return Ok(0);
    }
    if !respond::may_wait(me) {
        // This context can't wait: notifying the others and the local work are all that can be
        // done, and they do no harm.
        let kicked = notify(me, &targets);
        local_work(cpu, me, changes);
        let done = targets.is_empty();
        let waited = if done { Ok(0) } else { Err(FlushError::WouldWait) };
        return kicked.and(waited);
    }
    let began = P::ticks();
    if !policy.overlap {
        local_work(cpu, me, changes);
    }
    if policy.delivery == Delivery::Push {
        me.stats.trims.add(u64::from(trim.len()));
        let notified = union::<P>(&targets, &trim);
        let request = Push { changes };
        let data = core::ptr::from_ref(&request).cast();
        // SAFETY: `request` lives until `posted.wait` has returned, just below.
        let posted = unsafe { call::post(me, cpu, notified, push::<P>, data) }?;
        let kicked = call::kick(me, &notified);
        if kicked.is_err() {
            posted.cancel(me);
        }
        if policy.overlap {
            local_work(cpu, me, changes);
        }
        posted.wait(pin)?;
        kicked?;
    } else if let Some(call) = as_tree(me, changes, &targets) {
        let kicked = call.kick();
        local_work(cpu, me, changes);
        call.wait(pin)?;
        kicked?;
    } else {
        if let ([Change { space, hint, .. }], true) = (changes, P::policy().is_large(targets.len()))
        {
            // Every place is taken: notify CPU by CPU, and only those that must be notified.
            trim = space.filter(me, &mut targets, *hint, Counted::Now);
        }
        pull_from(pin, me, changes, &targets, &trim)?;
    }
    me.stats.flushes_remote.inc();
    me.stats.waited(P::ticks().saturating_sub(began));
    Ok(union::<P>(&targets, &trim).len())
}

/// Notifies and waits CPU by CPU, with pull delivery.
fn pull_from<P: Platform>(
    pin: &P::Pin,
    me: &PerCpu<P>,
    changes: &[Change<'_, P>],
    targets: &CpuSetOf<P>,
    trim: &CpuSetOf<P>,
) -> Result<(), FlushError> {
    let leaving = match changes {
        [Change { space, .. }] if !trim.is_empty() => {
            me.stats.trims.add(u64::from(trim.len()));
            let data = core::ptr::from_ref(*space).cast();
            // Trimming is optional: nothing depends on it, so an error is ignored. SAFETY: the
            // space outlives the call, which is waited for below.
            unsafe { call::post(me, pin.cpu(), *trim, leave_set::<P>, data) }.ok()
        }
        _ => None,
    };
    let notified = if leaving.is_some() { union::<P>(targets, trim) } else { *targets };
    let kicked = call::kick(me, &notified);
    if P::policy().overlap {
        local_work(pin.cpu(), me, changes);
    }
    if let Some(leaving) = leaving {
        if kicked.is_err() {
            leaving.cancel(me);
        }
        let _ = leaving.wait(pin);
    }
    kicked?;
    for Change { space, hint, answer, .. } in changes {
        let (answer, freed_tables) = (*answer, hint.step.freed_tables);
        // `targets` are the CPUs that were notified for all changes together; wait for those that
        // this change concerns. A CPU that has left the space's set since then uses the space no
        // more. ORDERING: Acquire, with the Release of `Mask::remove`
        let asked = match changes {
            [_] => *targets,
            _ => space.residency.cpus.common(targets),
        };
        space
            .wait_for_acknowledgements(pin, answer, freed_tables, &asked)
            .inspect_err(|_| me.stats.stalls.inc())?;
    }
    Ok(())
}

/// Begins the flush as a large call, if there are enough targets and a place is free.
fn as_tree<'a, P: Platform>(
    me: &'a PerCpu<P>,
    changes: &[Change<'_, P>],
    targets: &CpuSetOf<P>,
) -> Option<tree::Begun<'a, P>> {
    if !P::policy().is_large(targets.len()) {
        return None;
    }
    match changes {
        [Change { space, .. }] => {
            let data = core::ptr::from_ref(*space).cast();
            // SAFETY: the space outlives the call, which `notify_and_wait` waits for.
            unsafe { tree::begin::<P>(me, targets, pull::<P>, data) }
        }
        _ => {
            let data = changes.as_ptr().cast();
            // SAFETY: `catch_up_any` does not use its data.
            unsafe { tree::begin::<P>(me, targets, catch_up_any::<P>, data) }
        }
    }
}

/// Kicks the targets of a flush that is not waited for now.
fn notify<P: Platform>(me: &PerCpu<P>, targets: &CpuSetOf<P>) -> Result<(), FlushError> {
    if targets.is_empty() {
        return Ok(());
    }
    if P::policy().delivery == Delivery::Push {
        for state in targets.iter().filter_map(P::slot) {
            state.mailbox.defer();
        }
    }
    Ok(call::kick(me, targets)?)
}

/// Step 6: the local work.
fn local_work<P: Platform>(cpu: CpuId, me: &PerCpu<P>, changes: &[Change<'_, P>]) {
    if family::strategy::<P>().is_some() {
        return; // the hardware has done it
    }
    if respond::is_switching(me) {
        // We are a handler that interrupted a switch of this CPU. The CPU may be leaving a space,
        // perhaps this one, with the old root still loaded. Or it may be loading a space, perhaps
        // this one, whose generation it has read and whose entries it keeps, under a tag that only
        // the interrupted switch knows.
        respond::forget_everything::<P>();
        return;
    }
    let here = me.loaded().id();
    let change = changes.iter().find(|change| change.space.id().get() == here);
    let Some(Change { hint, .. }) = change else { return };
    let done = respond::exclusively(cpu, me, || {
        respond::catch_up(cpu, me, Some(*hint), false, None);
    });
    if !done {
        // We are a handler that interrupted this CPU while it catches up. That run may have read
        // the generation before our change was counted, so we invalidate for our own change here.
        respond::over_flush(me);
    }
}

/// Step 6 alone, for a change of which no other CPU is notified now.
pub(crate) fn here<P: Platform>(cpu: CpuId, me: &PerCpu<P>, change: &Change<'_, P>) {
    local_work(cpu, me, core::slice::from_ref(change));
}

fn union<P: Platform>(a: &CpuSetOf<P>, b: &CpuSetOf<P>) -> CpuSetOf<P> {
    let mut both = *a;
    for (to, from) in both.words_mut().iter_mut().zip(b.words()) {
        *to |= from;
    }
    both
}
