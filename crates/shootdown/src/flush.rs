//! Flushes: what an initiator asks for, and its path.
//!
//! # The path
//! The caller has changed the tables. (1) *publish* the stores to walkers; (2) count the change and
//! write its range into the log; (3) fence; (4) find the CPUs that must be told; (5) tell them; (6) do
//! the local work while they do theirs; (7) wait. With serial policies 6 comes before 5.
//!
//! # Who is told
//! | state of a CPU in the set | told? | why not |
//! |---|---|---|
//! | between two spaces | yes | |
//! | the space in use, behind | yes | |
//! | the space in use, current already | no | an earlier request or a switch caught it up |
//! | the space, lazily; leaf change | no | it catches up when it returns (D2) |
//! | the space, lazily; tables freed | yes | its walker could use them |
//! | another space or none | no | it looks at the generation when it comes back (D1) |
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

use core::fmt;

use crate::call::{self, Ack, CallError};
use crate::cpu::{Loaded, PerCpu, View};
use crate::cpu_set::{Bits, WORD};
use crate::facts::SplitTables;
use crate::ids::{CpuId, Generation, VaRange};
use crate::mutant::{self, Mutant};
use crate::platform::{CpuSetOf, KickError, Pinned, Platform};
use crate::policy::{Delivery, Lazy, Leave};
use crate::range_log::Step;
use crate::regime::{Invalidate, Reach, Regime};
use crate::respond::{self, Hint};
use crate::serve;
use crate::space::AddressSpace;
use crate::switch;
use crate::sync::{Ordering, fence, prefetch};
use crate::tags::slots;
use crate::tree::{self, GROUP, READ_AHEAD};

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

    fn step(self, ceiling: u32) -> Step {
        let range = match self.what {
            What::Pages(range) if range.count() <= u64::from(ceiling) => Some(range),
            What::Pages(_) | What::Space => None,
        };
        Step { range, freed_tables: self.freed_tables }
    }

    /// Counts the request: off the path on which others wait to be told.
    fn count<P: Platform>(self, me: &PerCpu<P>) {
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

/// A completed flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flushed {
    /// The generation the change was given.
    pub generation: Generation,
    /// How many other CPUs were interrupted for it.
    pub interrupted: u32,
}

/// Why a flush did not complete. Nothing may be freed yet; the flush may be repeated, and the next flush
/// of the space that succeeds covers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FlushError {
    /// Other CPUs are concerned and this context can't wait for them. They were told, and the local work
    /// was done; to learn when they have answered, use [`AddressSpace::begin_flush`].
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

/// A flush that was begun and must be waited for.
#[must_use = "what the flush covers may be reused only when the ticket says so"]
pub struct Ticket<'a, P: Platform> {
    space: &'a AddressSpace<P>,
    generation: Generation,
    freed_tables: bool,
    waiting: CpuSetOf<P>,
}

/// The change, counted; who must be told; and who should leave the set, being there for nothing.
struct Started<P: Platform> {
    hint: Hint,
    targets: CpuSetOf<P>,
    trim: CpuSetOf<P>,
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
        let request = if owed.is_some() { Request::space() } else { request };
        let Started { hint, targets, trim } = self.start(pin.cpu(), me, request);
        let done = self.tell_and_wait(pin, me, hint, targets, trim);
        request.count(me);
        match done {
            Ok(interrupted) => {
                owed.into_iter().for_each(|owed| self.paid_tables(owed));
                Ok(Flushed { generation: hint.generation, interrupted })
            }
            Err(e) => {
                if request.freed_tables {
                    self.owe_tables(hint.generation);
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
            let waited = if targets.is_empty() { Ok(0) } else { Err(FlushError::WouldWait) };
            return kicked.and(waited);
        }
        let began = P::ticks();
        if !policy.overlap {
            self.local_work(cpu, me, hint);
        }
        if policy.delivery == Delivery::Push {
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
            posted.wait(pin).and(kicked)?;
        } else if let Some(call) = self.as_tree(me, &targets) {
            let kicked = call.kick();
            self.local_work(cpu, me, hint);
            call.wait(pin).and(kicked)?;
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
        if mutant::active(Mutant::NoWait) {
            return Ok(());
        }
        self.wait(pin, hint.generation, hint.step.freed_tables, targets)
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
            for state in targets.iter().filter_map(P::slot) {
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
        let request = if self.owed_tables().is_some() { Request::space() } else { request };
        let Started { hint, targets, .. } = self.start(cpu, me, request);
        if targets.is_empty() {
            me.stats.flushes_local.inc();
        } else {
            me.stats.flushes_remote.inc();
        }
        let told = self.tell(me, &targets);
        self.local_work(cpu, me, hint);
        request.count(me);
        if told.is_err() && request.freed_tables {
            self.owe_tables(hint.generation);
        }
        told?;
        Ok(Ticket {
            space: self,
            generation: hint.generation,
            freed_tables: request.freed_tables,
            waiting: targets,
        })
    }

    /// Steps 1 to 4 of the path.
    fn start(&self, cpu: CpuId, me: &PerCpu<P>, request: Request) -> Started<P> {
        let policy = P::policy();
        let step = request.step(P::Regime::facts().ceiling);
        self.expect_to_tell(cpu);
        P::Regime::publish();
        let generation =
            if mutant::active(Mutant::NoGenerationBump) { self.generation() } else { self.bump() };
        if policy.range_log {
            self.log.record(generation, step);
        }
        if !mutant::active(Mutant::FlushWithoutFence) {
            fence(Ordering::SeqCst); // ORDERING: D1, D2, with the fences in `switch_to`
        }
        let hint = Hint { generation, step };
        // A CPU that is not seen online comes back with a fence after ours, and looks for itself.
        let mut targets = if policy.targeted { self.cpus() } else { P::system().online() };
        targets.remove(cpu);
        if policy.targeted {
            targets = P::system().online_of(&targets);
        }
        let mut trim = CpuSetOf::<P>::EMPTY;
        if mutant::active(Mutant::FilterLosesOne) {
            let lost = targets.iter().next();
            lost.into_iter().for_each(|cpu| targets.remove(cpu));
        }
        let looks = policy.lazy == Lazy::CatchUp || policy.leave == Leave::Lazily;
        if policy.targeted && looks && !targets.is_empty() && !tree::is_for::<P>(&targets) {
            trim = self.filter(me, &mut targets, generation, request.freed_tables);
        }
        Started { hint, targets, trim }
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
        let mut stale = CpuSetOf::<P>::EMPTY;
        for cpu in candidates.iter() {
            let Some(state) = P::slot(cpu) else {
                targets.remove(cpu);
                continue;
            };
            let told = match state.remote_view(id) {
                View::Switching => true,
                View::Active => {
                    // With push delivery nobody reads acknowledged generations: the request is on its way.
                    let behind = policy.delivery == Delivery::Push
                        || !overtaken
                        || !is_done(state, id, generation, freed_tables);
                    if !behind {
                        me.stats.avoided_current.inc();
                    }
                    behind
                }
                View::Lazy => {
                    let told = match policy.lazy {
                        Lazy::CatchUp => {
                            freed_tables && !mutant::active(Mutant::FilterSkipsLazyFreed)
                        }
                        _ => true,
                    };
                    if !told {
                        me.stats.avoided_lazy.inc();
                    }
                    told
                }
                View::Elsewhere => {
                    me.stats.avoided_elsewhere.inc();
                    stale.insert(cpu);
                    false
                }
            };
            if !told {
                targets.remove(cpu);
            }
        }
        let count = u64::from(stale.len());
        if count == 0 || !self.note_stale(count) {
            return CpuSetOf::<P>::EMPTY;
        }
        me.stats.trims.add(count);
        stale
    }

    /// Step 6.
    fn local_work(&self, cpu: CpuId, me: &PerCpu<P>, hint: Hint) {
        if me.loaded().id() != self.id().get() || mutant::active(Mutant::NoLocalWork) {
            return;
        }
        let done = serve::exclusively(cpu, me, || {
            respond::catch_up(cpu, me, Some(hint), false, || {});
        });
        if !done {
            // We are a handler that interrupted this CPU's catching up, which may have read the generation
            // before ours: see to our own change by ourselves.
            respond::over_flush(me);
        }
    }

    /// Step 7, with pull delivery: group by group, in the order in which they were told.
    fn wait(
        &self,
        pin: &P::Pin,
        generation: Generation,
        freed_tables: bool,
        targets: &CpuSetOf<P>,
    ) -> Result<(), FlushError> {
        let asked = Asked { id: self.id().get(), generation, freed_tables };
        for (w, word) in targets.words().iter().enumerate().filter(|(_, word)| **word != 0) {
            for first in (0..WORD).step_by(GROUP) {
                let group = word >> first & ((1 << GROUP) - 1);
                if group != 0 {
                    asked.wait_for_group::<P>(pin, w * WORD + first, group)?;
                }
            }
        }
        Ok(())
    }
}

/// What an answer must cover.
#[derive(Clone, Copy)]
struct Asked {
    id: u64,
    generation: Generation,
    freed_tables: bool,
}

impl Asked {
    fn is_done<P: Platform>(self, state: &PerCpu<P>) -> bool {
        is_done(state, self.id, self.generation, self.freed_tables)
    }

    /// Waits for CPUs that were told at once. The last of them is probably the last to answer; when
    /// something happens to its line, the others have probably answered too, and their lines can travel
    /// together with it.
    fn wait_for_group<P: Platform>(
        self,
        pin: &P::Pin,
        first: usize,
        group: u64,
    ) -> Result<(), FlushError> {
        let cpus = |mut bits: u64| {
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.checked_sub(1)?;
                #[allow(clippy::cast_possible_truncation)] // a CPU number fits u32
                Some(CpuId(first as u32 + bit))
            })
        };
        let last = 1 << group.ilog2();
        let expect = |ahead: &mut dyn Iterator<Item = CpuId>, lines: usize| {
            for state in ahead.take(lines).filter_map(P::slot) {
                prefetch(&state.shared);
            }
        };
        for cpu in cpus(last) {
            self.wait_for::<P>(pin, cpu, || expect(&mut cpus(group ^ last), READ_AHEAD))?;
        }
        let mut ahead = cpus(group ^ last).skip(READ_AHEAD);
        for cpu in cpus(group ^ last) {
            expect(&mut ahead, 1);
            self.wait_for::<P>(pin, cpu, || {})?;
        }
        Ok(())
    }

    /// Waits for one CPU; `awake` is called when something may have happened.
    fn wait_for<P: Platform>(
        self,
        pin: &P::Pin,
        cpu: CpuId,
        awake: impl Fn(),
    ) -> Result<(), FlushError> {
        let Some(state) = P::slot(cpu) else { return Ok(()) };
        let mut turn = 0;
        while !self.is_done(state) {
            // `relax` may sleep until the line that was looked at last changes: look at the one the answer
            // comes on, and sleep only if it says what it said before the answer was missing.
            let before = state.published();
            if self.is_done(state) {
                break;
            }
            if state.published() == before {
                P::relax(pin).map_err(|_| FlushError::Stalled(cpu))?;
                prefetch(&state.shared);
                awake();
                if self.is_done(state) {
                    break;
                }
            }
            serve::serve_turn::<P>(pin, &mut turn);
        }
        Ok(())
    }
}

/// Does this CPU make no access any more through entries of space `id` older than `generation`, without
/// looking at the generation first?
///
/// The acknowledged generation and the state are two words, read in this order. If the state then names
/// the space, either the acknowledgement was that space's, or the CPU came (back) to the space after the
/// acknowledgement was read: then it looked at the generation on its way, after the initiator's fence (D1),
/// and is current whatever was read. A state older than the acknowledgement can't be seen: its Acquire
/// pairs with the fence in `switch_to`, which comes after the store of *switching* and before that of
/// `acked`.
fn is_done<P: Platform>(
    state: &PerCpu<P>,
    id: u64,
    generation: Generation,
    freed_tables: bool,
) -> bool {
    // ORDERING: Acquire, with the Release in `respond::catch_up`, and with the fence in `switch_to`
    let acked = state.shared.acked.load(Ordering::Acquire);
    match state.remote_view(id) {
        View::Elsewhere => true,
        View::Switching => false,
        View::Lazy if !freed_tables && P::policy().lazy == Lazy::CatchUp => true,
        View::Active | View::Lazy => acked >= generation.0,
    }
}

impl<P: Platform> Ticket<'_, P> {
    /// The generation the change was given.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Has everyone answered? Never waits; may be asked on any CPU, in any context.
    #[must_use]
    pub fn poll(&mut self) -> bool {
        let waiting = self.waiting;
        for cpu in waiting.iter() {
            let done = P::slot(cpu).is_none_or(|s| {
                is_done(s, self.space.id().get(), self.generation, self.freed_tables)
            });
            if !done {
                return false;
            }
            self.waiting.remove(cpu);
        }
        true
    }

    /// Waits until everyone has.
    ///
    /// # Errors
    /// The ticket, with [`FlushError::WouldWait`] or [`FlushError::Stalled`].
    pub fn wait(mut self, pin: &P::Pin) -> Result<(), (FlushError, Self)> {
        if !serve::may_wait(PerCpu::<P>::here(pin)) {
            return if self.poll() { Ok(()) } else { Err((FlushError::WouldWait, self)) };
        }
        let waiting = self.waiting;
        match self.space.wait(pin, self.generation, self.freed_tables, &waiting) {
            Ok(()) => Ok(()),
            Err(e) => Err((e, self)),
        }
    }
}

/// A pushed request.
struct Push<'a, P: Platform> {
    space: &'a AddressSpace<P>,
    hint: Hint,
}

/// Executes a pushed request on its target.
unsafe fn push<P: Platform>(cpu: CpuId, me: &PerCpu<P>, data: *const (), ack: &mut Ack<'_, P>) {
    // SAFETY: `flush` posts a `&Push<P>` that lives until the call was acknowledged.
    let request = unsafe { &*data.cast::<Push<'_, P>>() };
    if me.loaded().id() != request.space.id().get() {
        me.stats.wrong_space.inc();
        request.space.leave_in_vain(cpu, me);
        return;
    }
    if me.is_lazy(me.loaded(), me.order()) && P::policy().lazy == Lazy::LeaveOnKick {
        switch::unload(me, cpu);
        return;
    }
    let hint = request.hint;
    respond::catch_up(cpu, me, Some(hint), ack.early, || ack.fire());
}

/// The function of a large pulled flush: catch up; or leave, if here only lazily or in vain. (A large
/// set is not filtered CPU by CPU, which would cost more than it saves; instead a CPU that did not need
/// to be told sees to it that it is not told again.)
unsafe fn pull<P: Platform>(cpu: CpuId, me: &PerCpu<P>, data: *const (), ack: &mut Ack<'_, P>) {
    // SAFETY: `flush` passes the space, which lives until the call was acknowledged.
    let space = unsafe { &*data.cast::<AddressSpace<P>>() };
    if me.loaded().id() != space.id().get() {
        me.stats.wrong_space.inc();
        space.leave_in_vain(cpu, me);
    } else if me.is_lazy(me.loaded(), me.order()) {
        switch::unload(me, cpu);
    } else {
        respond::catch_up(cpu, me, None, ack.early, || ack.fire());
    }
}

/// Leaves the set of a space that is not loaded.
unsafe fn leave_set<P: Platform>(cpu: CpuId, me: &PerCpu<P>, data: *const (), _: &mut Ack<'_, P>) {
    // SAFETY: `flush` passes the space, which lives until the call was acknowledged.
    unsafe { &*data.cast::<AddressSpace<P>>() }.leave_in_vain(cpu, me);
}

fn union<P: Platform>(a: &CpuSetOf<P>, b: &CpuSetOf<P>) -> CpuSetOf<P> {
    let mut both = *a;
    for (to, from) in both.words_mut().iter_mut().zip(b.words()) {
        *to |= from;
    }
    both
}

/// Makes every CPU forget the leaf entries of a kernel range, global ones included. When tables of the
/// kernel's own half are to be freed, use [`flush_everything`]: non-leaf entries may be cached under tags
/// that are not loaded.
///
/// # Errors
/// See [`FlushError`].
pub fn flush_kernel<P: Platform>(pin: &P::Pin, range: VaRange) -> Result<(), FlushError> {
    let me = PerCpu::<P>::here(pin);
    me.stats.requests_kernel.inc();
    let what = if range.count() > u64::from(P::Regime::facts().ceiling) {
        me.stats.over_ceiling.inc();
        Invalidate::Everything
    } else {
        Invalidate::Kernel(range)
    };
    everywhere::<P>(pin, what)
}

/// Makes every CPU forget everything, global entries included.
///
/// # Errors
/// See [`FlushError`].
pub fn flush_everything<P: Platform>(pin: &P::Pin) -> Result<(), FlushError> {
    PerCpu::<P>::here(pin).stats.requests_everything.inc();
    everywhere::<P>(pin, Invalidate::Everything)
}

fn everywhere<P: Platform>(pin: &P::Pin, what: Invalidate) -> Result<(), FlushError> {
    P::Regime::publish();
    fence(Ordering::SeqCst); // ORDERING: D4, with the fence in `cpu::online`
    let mut targets = P::system().online();
    targets.insert(pin.cpu());
    call::call_on::<P, _>(pin, &targets, &|cpu| {
        let Some(me) = P::slot(cpu) else { return };
        P::Regime::invalidate(what, Reach::Local);
        let split = matches!(P::Regime::facts().split_tables, SplitTables::Yes { .. });
        if split && what != Invalidate::Everything {
            // No entry is global here, and one kernel range is cached under every tag: the loaded
            // pair was invalidated just now (its user half is owed), the others lose their memory.
            let current = (me.loaded() != Loaded::KERNEL).then(|| me.order().current());
            current.into_iter().for_each(|slot| me.owe_user_half(slot));
            if !mutant::active(Mutant::OtherTagsForgotten) {
                slots::forget_others(me.private.ids.as_ref(), current);
            }
        }
        switch::settle::<P>();
    })?;
    Ok(())
}
