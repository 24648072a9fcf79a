//! Flushes: what an initiator asks for, and its path.
//!
//! # The path
//! The caller has changed the tables. (1) *publish* the stores to walkers; (2) count the change and
//! write its range into the log; (3) fence; (4) find the CPUs that must be told, and in a guest hand those over that
//! the hypervisor sees to; (5) tell the rest; (6) do the local work while they do theirs; (7) wait. With serial
//! policies 6 comes before 5.
//!
//! # Who is told
//! | state of a CPU in the set | told? | why not |
//! |---|---|---|
//! | between two spaces | yes | |
//! | the space in use, behind | yes | |
//! | the space in use, current already | no | an earlier request or a switch caught it up |
//! | the space, lazily; leaf change | no | it catches up when it returns (D2) |
//! | the space, lazily; tables freed | yes | its walker could use them |
//! | another space or none | no | it looks at the generation when it comes back (D1); no walk is under way |
//!
//! A filter may err towards telling, never the other way.
//!
//! # How an answer looks
//! With *pull* delivery there is no request and no acknowledgement message: a CPU has answered when
//! its published state says that it makes no access through entries older than the generation asked
//! for. That answer is per CPU, never taken back, and covers every request up to it.
//!
//! # Invariants
//! I1: `flush` returns `Ok` only when every CPU of the set has answered or provably looks at the
//! generation before it uses the space again. I2: a flush that returns an error has not freed the
//! caller from anything; it may be repeated. I3: nothing here allocates; nothing is held while waiting.

mod answer;
mod broadcast;
mod everywhere;
mod paravirt;
mod remote;
mod request;
mod shared;

use crate::call;
use crate::cpu::{PerCpu, View};
use crate::cpu_set::Bits;
use crate::ids::{CpuId, Generation};
use crate::platform::{CpuSetOf, Pinned, Platform};
use crate::policy::{Delivery, Lazy, Leave};
use crate::regime::Regime;
use crate::respond::{self, Hint};
use crate::serve;
use crate::space::AddressSpace;
use crate::sync::{Ordering, fence, prefetch};
use crate::tags::current;
use crate::tags::shared::{Phase, Uses};
use crate::tree::{self, READ_AHEAD};

use answer::is_done;
use remote::{Push, leave_set, pull, push};

pub use answer::Ticket;
pub use everywhere::{flush_everything, flush_kernel};
pub use request::{FlushError, Flushed, Request, What};

/// The change, counted; who must be told; and who should leave the set, being there for nothing.
struct Started<P: Platform> {
    hint: Hint,
    targets: CpuSetOf<P>,
    trim: CpuSetOf<P>,
    /// A tag for all CPUs may turn up while CPUs are asked: to be looked for when they have answered.
    looks_again: bool,
}

impl<P: Platform> AddressSpace<P> {
    /// Makes every CPU forget what `request` says has changed in this space's tables. When it returns
    /// `Ok`, no CPU starts an access through the old entries any more, and, with `freed_tables`, no
    /// walker reaches the freed tables.
    ///
    /// The tables are changed before the call. Any other flush of the space may run at the same time.
    ///
    /// # Errors
    /// See [`FlushError`].
    pub fn flush(&self, pin: &P::Pin, request: Request) -> Result<Flushed, FlushError> {
        let me = PerCpu::<P>::here(pin);
        let policy = P::policy();
        if policy.delivery == Delivery::Push && me.call.is_busy() {
            return Err(FlushError::Reentered);
        }
        let owed = self.owed_tables();
        let whole = owed.is_some() && !without!(OwedIgnored);
        let request = if whole { Request::space() } else { request };
        let Started { hint, targets, trim, looks_again } = self.start(pin, me, request);
        let done = self.tell_and_wait(pin, me, hint, targets, trim);
        request.count(me);
        match done {
            Ok(interrupted) => {
                if looks_again {
                    self.after_asking(pin, me, request, hint.generation);
                }
                owed.into_iter().for_each(|owed| self.paid_tables(owed));
                Ok(Flushed { generation: hint.generation, interrupted })
            }
            Err(e) => {
                // No generation tells a CPU under a tag for all CPUs what it has missed: the next flush does it.
                let shared = looks_again && !without!(SharedFlushNotOwed);
                if (request.freed_tables || shared) && !without!(OwedForgotten) {
                    self.owe_tables(hint.generation);
                }
                if without!(OwedPaidByFailure) {
                    self.paid_tables(hint.generation.0);
                }
                Err(e)
            }
        }
    }

    /// Steps 5 to 7; says how many CPUs were interrupted.
    fn tell_and_wait(
        &self,
        pin: &P::Pin,
        me: &PerCpu<P>,
        hint: Hint,
        mut targets: CpuSetOf<P>,
        mut trim: CpuSetOf<P>,
    ) -> Result<u32, FlushError> {
        let cpu = pin.cpu();
        let policy = P::policy();
        if targets.is_empty() && trim.is_empty() {
            me.stats.flushes_local.inc();
            self.local_work(cpu, me, hint);
            return Ok(0);
        }
        if !serve::may_wait(me) {
            // Telling the others and doing the local work is all that can be done, and does no harm.
            let kicked = self.tell(me, &targets);
            self.local_work(cpu, me, hint);
            let done = targets.is_empty() || without!(WouldWaitIsOk);
            let waited = if done { Ok(0) } else { Err(FlushError::WouldWait) };
            return kicked.and(waited);
        }
        let began = P::ticks();
        if !policy.overlap {
            self.local_work(cpu, me, hint);
        }
        if policy.delivery == Delivery::Push {
            me.stats.trims.add(u64::from(trim.len()));
            let told = union::<P>(&targets, &trim);
            let request = Push { space: self, hint };
            let data = core::ptr::from_ref(&request).cast();
            // SAFETY: `request` lives until the call was waited for, just below.
            let posted = unsafe { call::post(me, cpu, told, push::<P>, data) }?;
            let kicked = call::kick(me, &told);
            if kicked.is_err() {
                posted.cancel(me);
            }
            if policy.overlap {
                self.local_work(cpu, me, hint);
            }
            posted.wait(pin)?;
            if !without!(PushErrorForgotten) {
                kicked?;
            }
        } else if let Some(call) = self.as_tree(me, &targets) {
            let kicked = call.kick();
            self.local_work(cpu, me, hint);
            if !without!(NoWaitTree) {
                call.wait(pin)?;
            }
            if !without!(TreeErrorForgotten) {
                kicked?;
            }
        } else {
            if tree::is_for::<P>(&targets) {
                // every place is taken: CPU by CPU then, and only those that must be told
                trim = self.filter(me, &mut targets, hint.generation, hint.step.freed_tables);
            }
            self.pull_from(pin, me, hint, &targets, &trim)?;
        }
        me.stats.flushes_remote.inc();
        me.stats.waited(P::ticks().saturating_sub(began));
        Ok(union::<P>(&targets, &trim).len())
    }

    /// Steps 5 to 7 with pull delivery, CPU by CPU.
    fn pull_from(
        &self,
        pin: &P::Pin,
        me: &PerCpu<P>,
        hint: Hint,
        targets: &CpuSetOf<P>,
        trim: &CpuSetOf<P>,
    ) -> Result<(), FlushError> {
        let data = core::ptr::from_ref(self).cast();
        let leaving = if trim.is_empty() {
            None
        } else {
            me.stats.trims.add(u64::from(trim.len()));
            // Trimming is a courtesy: it fails without consequence.
            // SAFETY: the space outlives the call, which is waited for below.
            unsafe { call::post(me, pin.cpu(), *trim, leave_set::<P>, data) }.ok()
        };
        let told = if leaving.is_some() { union::<P>(targets, trim) } else { *targets };
        let kicked = call::kick(me, &told);
        if P::policy().overlap {
            self.local_work(pin.cpu(), me, hint);
        }
        if let Some(leaving) = leaving {
            if kicked.is_err() {
                leaving.cancel(me);
            }
            let _ = leaving.wait(pin);
        }
        kicked?;
        if without!(NoWait) {
            return Ok(());
        }
        self.wait_for_answers(pin, hint.generation, hint.step.freed_tables, targets)
            .inspect_err(|_| me.stats.stalls.inc())
    }

    /// The flush as a large call, if there are enough targets and a place is free.
    fn as_tree<'a>(&self, me: &'a PerCpu<P>, targets: &CpuSetOf<P>) -> Option<tree::Begun<'a, P>> {
        if !tree::is_for::<P>(targets) {
            return None;
        }
        // SAFETY: the space outlives the call, which `flush` waits for.
        unsafe { tree::begin::<P>(me, targets, pull::<P>, core::ptr::from_ref(self).cast()) }
    }

    /// Kicks for a flush that is not waited for now.
    fn tell(&self, me: &PerCpu<P>, targets: &CpuSetOf<P>) -> Result<(), FlushError> {
        if targets.is_empty() {
            return Ok(());
        }
        if P::policy().delivery == Delivery::Push {
            for state in targets.iter().filter_map(P::slot).filter(|_| !without!(DeferForgotten)) {
                state.mailbox.defer();
            }
        }
        Ok(call::kick(me, targets)?)
    }

    /// As [`flush`](Self::flush), for callers that can't wait: the others are told and the local work
    /// is done, and the ticket says when they have answered.
    ///
    /// # Errors
    /// [`FlushError::Kick`] when a CPU could not be interrupted.
    pub fn begin_flush(&self, pin: &P::Pin, request: Request) -> Result<Ticket<'_, P>, FlushError> {
        let cpu = pin.cpu();
        let me = PerCpu::<P>::here(pin);
        let whole = self.owed_tables().is_some() && !without!(BeginOwedIgnored);
        let request = if whole { Request::space() } else { request };
        let Started { hint, targets, looks_again, .. } = self.start(pin, me, request);
        if targets.is_empty() {
            me.stats.flushes_local.inc();
        } else {
            me.stats.flushes_remote.inc();
        }
        let told = self.tell(me, &targets);
        self.local_work(cpu, me, hint);
        request.count(me);
        let owes = request.freed_tables || looks_again && !without!(SharedBeginNotOwed);
        if told.is_err() && owes && !without!(BeginOwedForgotten) {
            self.owe_tables(hint.generation);
        }
        told?;
        Ok(Ticket {
            space: self,
            generation: hint.generation,
            freed_tables: request.freed_tables,
            waiting: targets,
            looks_again: looks_again.then_some(request),
        })
    }

    /// Steps 1 to 4 of the path.
    fn start(&self, pin: &P::Pin, me: &PerCpu<P>, request: Request) -> Started<P> {
        let (cpu, policy) = (pin.cpu(), P::policy());
        let step = request.step(P::Regime::facts().ceiling);
        let strategy = current::strategy::<P>();
        if strategy.is_none() {
            self.expect_to_tell(cpu);
        }
        let looks_again = current::shared::<P>().is_some();
        let early = without!(SharedBroadcastEarly) && looks_again;
        let early = early && self.broadcast_if_moved(me, request);
        if !without!(FlushWithoutPublish) {
            P::Regime::publish();
        }
        let generation = if without!(NoGenerationBump) { self.generation() } else { self.bump() };
        if let Some(strategy) = strategy {
            let targets = self.broadcast(pin, me, strategy, request);
            let hint = Hint { generation, step };
            return Started { hint, targets, trim: CpuSetOf::<P>::EMPTY, looks_again: false };
        }
        if policy.range_log && !without!(RecordForgotten) {
            self.log.record(generation, step);
        }
        if !without!(FlushWithoutFence) {
            fence(Ordering::SeqCst); // ORDERING: D1, D2, with the fences in `switch_to`
        }
        let hint = Hint { generation, step };
        if early || looks_again && self.broadcast_if_moved(me, request) {
            let none = CpuSetOf::<P>::EMPTY;
            return Started { hint, targets: none, trim: none, looks_again: false };
        }
        // A CPU that is not seen online comes back with a fence after ours, and looks for itself.
        let mut targets = if policy.targeted { self.cpus() } else { P::system().online() };
        targets.remove(cpu);
        if policy.targeted {
            targets = P::system().online_of(&targets);
        }
        let mut trim = CpuSetOf::<P>::EMPTY;
        if without!(FilterLosesOne) {
            let lost = targets.iter().next();
            lost.into_iter().for_each(|cpu| targets.remove(cpu));
        }
        let looks = policy.lazy == Lazy::CatchUp || policy.leave != Leave::AtSwitch;
        if policy.targeted && looks && !targets.is_empty() && !tree::is_for::<P>(&targets) {
            trim = self.filter(me, &mut targets, generation, request.freed_tables);
        }
        debug_assert!(!targets.contains(cpu), "this CPU does its own work");
        let mut started = Started { hint, targets, trim, looks_again };
        self.hand_over(me, request, &mut started);
        started
    }

    /// Asks for the lines that telling others will need, so that they travel together.
    fn expect_to_tell(&self, cpu: CpuId) {
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

    /// Step 4: leaves out those who need not be told (see the module's table). Now and then returns those
    /// that are in the set for nothing, to be asked to leave it.
    fn filter(
        &self,
        me: &PerCpu<P>,
        targets: &mut CpuSetOf<P>,
        generation: Generation,
        freed_tables: bool,
    ) -> CpuSetOf<P> {
        let policy = P::policy();
        let id = self.id().get();
        let candidates = *targets;
        // The first few are on their way already (`expect_to_tell`).
        for state in candidates.iter().skip(READ_AHEAD).filter_map(P::slot) {
            prefetch(&state.shared);
        }
        // Only where the space changed again since can a CPU have answered for this change already.
        let overtaken = self.generation() != generation;
        let shared = current::shared::<P>().map_or(Phase::Slots, |_| self.shared_tag().phase());
        let asks_all = freed_tables && policy.leave == Leave::WhenAsked;
        let mut stale = CpuSetOf::<P>::EMPTY;
        for cpu in candidates.iter() {
            let Some(state) = P::slot(cpu) else {
                targets.remove(cpu);
                continue;
            };
            let told = match state.remote_view(id) {
                View::Switching => true,
                // To be told to load the tag, or nothing.
                View::Active | View::Lazy if shared != Phase::Slots => {
                    state.uses(id) != Uses::Shared && !without!(FilterForgetsSlots)
                }
                View::Active => {
                    // With push delivery nobody reads acknowledged generations: the request is on its way.
                    let answered = || {
                        without!(FilterTrustsOvertaken)
                            || is_done(state, id, generation, freed_tables)
                    };
                    let behind = (policy.delivery == Delivery::Push || !overtaken || !answered())
                        && !without!(FilterSkipsActive);
                    if !behind {
                        me.stats.avoided_current.inc();
                    }
                    behind
                }
                View::Lazy => {
                    let told = match policy.lazy {
                        Lazy::CatchUp => freed_tables && !without!(FilterSkipsLazyFreed),
                        _ => true,
                    };
                    if !told {
                        me.stats.avoided_lazy.inc();
                    }
                    told
                }
                View::Elsewhere => {
                    if !asks_all {
                        me.stats.avoided_elsewhere.inc();
                    }
                    stale.insert(cpu);
                    if without!(RemoteRemoval) {
                        crate::cpu_set::Mask::remove(&self.presence.cpus, cpu);
                    }
                    false
                }
            };
            if !told {
                targets.remove(cpu);
            }
        }
        let count = u64::from(stale.len());
        if count == 0 || !asks_all && !self.note_stale(count) {
            return CpuSetOf::<P>::EMPTY;
        }
        stale
    }

    /// Step 6.
    fn local_work(&self, cpu: CpuId, me: &PerCpu<P>, hint: Hint) {
        if current::strategy::<P>().is_some() {
            return; // hardware has done it
        }
        if respond::is_switching(me) && !without!(UnloadingWorkForgotten) {
            // We are a handler that interrupted this CPU on its way out of a space, perhaps this one, with
            // the old root still loaded.
            respond::over_flush(me);
            return;
        }
        if me.loaded().id() != self.id().get() || without!(NoLocalWork) {
            return;
        }
        let done = serve::exclusively(cpu, me, || {
            respond::catch_up(cpu, me, Some(hint), false, || {});
        });
        if !done && !without!(NestedWorkForgotten) {
            // We are a handler that interrupted this CPU's catching up, which may have read the generation
            // before ours: see to our own change by ourselves.
            respond::over_flush(me);
        }
    }
}

fn union<P: Platform>(a: &CpuSetOf<P>, b: &CpuSetOf<P>) -> CpuSetOf<P> {
    let mut both = *a;
    for (to, from) in both.words_mut().iter_mut().zip(b.words()) {
        *to |= from;
    }
    both
}
