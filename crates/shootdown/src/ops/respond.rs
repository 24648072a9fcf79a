//! The responder: what a CPU does when it is kicked, when it waits for others, and when it finds by
//! itself that its loaded space has changed.
//!
//! Nothing here allocates, takes a lock, or waits, so it may run in any interrupt handler. A
//! handler that interrupts another run of itself on the same CPU leaves its work to that run.
//!
//! # What a kick does
//! [`on_kick`] serves, in this order: large calls ([`tree::drain`]), the loaded space
//! ([`catch_up`]), posted calls ([`call::drain`]). [`poll`] does the same, and so does a wait loop
//! (every turn looks for calls, every eighth also at the space), so that two CPUs that wait for
//! each other both make progress.
//!
//! # What catching up does
//! A CPU never executes "requests"; it *catches up*: it compares the generation up to which its
//! slot is current with the space's generation, and invalidates what changed in between. A request
//! that carries a range is a hint that saves reading the log.
//!
//! | # | condition, in order | action | slot's generation |
//! |---|---|---|---|
//! | 1 | nothing loaded | acknowledge | – |
//! | 1a | the space is loaded under a global tag | acknowledge: the initiator will broadcast | – |
//! | 1b | the space has a global tag | load the space under it | – |
//! | 1c | hardware invalidates on every CPU | acknowledge; where it reports completion too early, the number of the last broadcast | – |
//! | 2 | hint for another space | leave that space's set (`call` side), acknowledge | – |
//! | 3 | hint's generation ≤ the slot's | acknowledge, without touching the space's line | – |
//! | 4 | the space's generation = the slot's | acknowledge | – |
//! | 5 | lazy; policy leaves on kick, or tables were freed (or may have been) | load the kernel's tables | old: flushed on return |
//! | 6 | lazy otherwise | acknowledge; catch up on return | old |
//! | 7 | hint covers exactly the one step missing | invalidate its range | the space's |
//! | 8 | every missed step is in the range log, together below the ceiling | replay them | the space's |
//! | 9 | otherwise | invalidate the tag | the space's |
//!
//! Rows 7 to 9 acknowledge *before* they invalidate when the policy allows it, no missed step freed
//! tables, and they run in the kick's handler: interrupts are off, and user code runs again only
//! after the invalidation, so no access through the old entries can come between. (A non-maskable
//! handler that touches user memory must call [`crate::user_access_ok`] first.)
//!
//! # Invariants
//! I1 (master): a slot's generation advances only after every step up to it was invalidated; with
//! an early acknowledgement it advances before, while nothing on this CPU can read it. I2: the
//! generation is read once, before the invalidation; entries filled after it see at least those
//! table stores.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | F2 the space's generation read | Acquire | F1 in [`flush`](crate::flush) | walks after the invalidation see the tables of that generation |
//! | F4 the acknowledgement stored | Release | F3 in [`flush`](crate::flush) | the invalidation comes before it, or no access of this CPU can come between |
//! | E2 the number of a sync acknowledged | Release | E2 in `flush/broadcast.rs` | the CPU has been in the kernel since that sync |
//! | `serving`, `again` | compiler fences | this CPU's handlers | one CPU synchronizes with its own handlers: program order is enough |

use crate::base::ids::{CpuId, Generation};
use crate::base::sync::{AtomicBool, Ordering, compiler_fence};
use crate::ops::call::{self, Ack};
use crate::ops::flush::Change;
use crate::ops::{switch, tree};
use crate::port::context::IrqsOff;
use crate::port::facts::SplitTables;
use crate::port::family::{self, tags_on, user_tag};
use crate::port::platform::{Pinned, Platform, Stalled};
use crate::port::policy::{Delivery, Lazy};
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::{Loaded, PerCpu, Rare};
use crate::state::range_log::{Step, Steps};
use crate::state::space::AddressSpace;
use crate::tags::slots::Slot;

/// Is a kick acknowledged?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an unanswered kick must be repeated before user code runs"]
pub enum Served {
    /// Yes, or it will be acknowledged before this CPU runs user code.
    Done,
    /// No: a non-maskable handler interrupted a switch. Raise a maskable interrupt on this CPU that
    /// calls [`on_kick`] again.
    Again,
}

/// The body of the interrupt handler that [`Platform::kick`] raises. Interrupts are off, so that no
/// handler makes an access between an early acknowledgement and the invalidation. For a call from a
/// non-maskable handler, see [`Served::Again`].
pub fn on_kick<P: Platform>(irqs: IrqsOff<'_, P>) -> Served {
    let me = PerCpu::<P>::here(irqs.pin());
    me.stats.kicks_received.inc();
    expect(me);
    serve(irqs.pin(), me, Occasion::Kick)
}

/// Serves what others wait for, if there is anything: for lock spins, wait loops, and kernels that
/// poll. It is safe with interrupts on too: a handler that comes in between leaves its work to this
/// call. Non-maskable handlers may call it, see [`Served::Again`].
pub fn poll<P: Platform>(pin: &P::Pin) -> Served {
    serve(pin, PerCpu::<P>::here(pin), Occasion::Poll)
}

/// May code in a non-maskable handler touch user memory of `space` on this CPU now?
///
/// It may not while a switch, or an invalidation that was already acknowledged, is under way.
#[must_use]
pub fn user_access_ok<P: Platform>(pin: &P::Pin, space: &AddressSpace<P>) -> bool {
    let me = PerCpu::<P>::here(pin);
    let loaded = me.loaded();
    loaded.id() == space.id().get()
        && !me.is_lazy(loaded, me.order())
        && !me.rare.serving.load(Ordering::Relaxed)
}

/// One turn of a wait loop: calls [`Platform::relax`], then serves others.
///
/// Every turn looks for posted functions and large calls. It does not look at the generation of the
/// own space: all initiators of the space write that line, and a CPU with interrupts on is kicked
/// anyway. A CPU that waits with interrupts off reads it on every eighth turn.
pub(crate) fn wait_turn<P: Platform>(pin: &P::Pin, turn: &mut u32) -> Result<(), Stalled> {
    let relaxed = P::relax(pin);
    serve_turn::<P>(pin, turn);
    relaxed
}

/// The serving half of a turn.
pub(crate) fn serve_turn<P: Platform>(pin: &P::Pin, turn: &mut u32) {
    *turn = turn.wrapping_add(1);
    let polls = *turn % 8 == 0;
    let occasion = if polls { Occasion::Poll } else { Occasion::Turn };
    let _ = serve(pin, PerCpu::<P>::here(pin), occasion);
}

/// May this CPU wait for others? Not while it serves some: they could be waiting for it.
pub(crate) fn may_wait<P: Platform>(me: &PerCpu<P>) -> bool {
    P::may_wait() && !me.rare.serving.load(Ordering::Relaxed)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// An interrupt, with interrupts off: nothing on this CPU comes between an acknowledgement and
    /// the invalidation.
    Kick,
    /// Task context, perhaps with interrupts on.
    Poll,
    /// A turn of a wait loop.
    Turn,
}

fn serve<P: Platform>(pin: &P::Pin, me: &PerCpu<P>, occasion: Occasion) -> Served {
    // If this CPU leaves a space while it serves others, that run serves once more when it ends.
    // Only a switch, which has interrupts off, makes a non-maskable handler return `Again`.
    let leaves = me.rare.serving.load(Ordering::Relaxed);
    if is_switching(me) && !leaves {
        return Served::Again;
    }
    let cpu = pin.cpu();
    exclusively(cpu, me, || {
        let ran = everything(cpu, me, occasion);
        if let (Occasion::Kick, Some(Response::Current), 0) = (occasion, ran.1, ran.0) {
            me.stats.coalesced.inc();
        }
    });
    Served::Done
}

/// Serves everything that others wait for.
fn everything<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    occasion: Occasion,
) -> (u64, Option<Response>) {
    let early = occasion == Occasion::Kick;
    let catch_up = || catch_up(cpu, me, None, early, None);
    // With pull delivery the kick itself is the request; with push only a deferred flush is pulled.
    let pulls = P::policy().delivery == Delivery::Pull;
    // Large calls first: most of them are flushes, whose function catches up by itself.
    let ran = match P::system().trees_in_flight() {
        0 => 0,
        active => tree::drain(cpu, me, early, active),
    };
    let mut caught_up = (pulls && occasion != Occasion::Turn).then(catch_up);
    let ran = ran + call::drain(cpu, me, early);
    if !pulls && me.mailbox.take_deferred() {
        caught_up = Some(catch_up());
    }
    (ran, caught_up)
}

/// Runs `work`, unless this CPU is in the middle of such work already. In that case it returns
/// `false`, and the interrupted work serves everything once more when it ends.
///
/// When `work` unwinds, the CPU counts as no longer serving, and the next run serves what was left.
///
/// One CPU synchronizes with its own handlers here: program order is enough, and compiler fences
/// keep it.
pub(crate) fn exclusively<P: Platform>(cpu: CpuId, me: &PerCpu<P>, work: impl FnOnce()) -> bool {
    let Rare { serving, again, .. } = &me.rare;
    if serving.load(Ordering::Relaxed) {
        again.store(true, Ordering::Relaxed);
        return false;
    }
    let at_work = Serving::begin(serving);
    work();
    drop(at_work);
    // A handler that came while `serving` was set has set `again`; a handler that comes later
    // serves by itself.
    while again.load(Ordering::Relaxed) {
        again.store(false, Ordering::Relaxed);
        let _at_work = Serving::begin(serving);
        everything(cpu, me, Occasion::Poll);
    }
    true
}

/// Marks this CPU as serving, until the value is dropped.
struct Serving<'a>(&'a AtomicBool);

impl<'a> Serving<'a> {
    fn begin(serving: &'a AtomicBool) -> Self {
        serving.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(serving)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.0.store(false, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }
}

/// What a request says about its change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub generation: Generation,
    pub step: Step,
}

/// What the CPU did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Response {
    /// Nothing was loaded, or the CPU is lazy and may wait.
    Nothing,
    /// It was current already.
    Current,
    /// It left the space.
    Left,
    /// It invalidated.
    CaughtUp,
}

/// What to invalidate.
#[allow(clippy::large_enum_variant)] // lives on the stack for the length of one acknowledgement
enum Plan {
    /// One step, by far the most frequent case. It has a variant of its own so that no array of
    /// steps is filled and copied.
    Step(Step),
    /// These steps.
    Steps(Steps),
    /// The whole tag.
    Tag { freed_tables: bool },
}

impl Plan {
    fn freed_tables(&self) -> bool {
        match self {
            Self::Step(step) => step.freed_tables,
            Self::Steps(steps) => steps.freed_tables(),
            Self::Tag { freed_tables } => *freed_tables,
        }
    }
}

/// Brings the loaded space's slot up to the space's generation. Fires `to` exactly once, as soon as
/// this CPU makes no access through older entries.
///
/// `may_ack_early` says that interrupts are off, so that no handler of this CPU makes an access
/// between the acknowledgement and the invalidation.
#[inline(never)]
pub(crate) fn catch_up<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    hint: Option<Hint>,
    may_ack_early: bool,
    to: Option<&mut Ack<'_, P>>,
) -> Response {
    let ack = || {
        if let Some(to) = to {
            to.fire();
        }
    };
    let Some(space) = me.space() else {
        ack();
        return Response::Nothing;
    };
    if family::shared::<P>().is_some() {
        if me.runs_shared() {
            ack();
            return Response::Current;
        }
        if let Some(tag) = space.shared_tag().tag() {
            switch::move_over(me, space, tag);
            ack();
            return Response::CaughtUp;
        }
    }
    let order = me.order();
    let slot = order.current();
    let have = me.generation_of(slot);
    let broadcast = family::strategy::<P>().is_some();
    if !broadcast && hint.is_some_and(|h| h.generation.0 <= have.0) {
        ack();
        return Response::Current;
    }
    if broadcast {
        // The hardware invalidates on this CPU. Where it reports completion too early, the CPU only
        // has to have been interrupted.
        if P::Regime::facts().errata.completes_early {
            // ORDERING: F4: Release, with the Acquire in `flush::acknowledge::is_done`; E2 in
            // `flush::broadcast`
            me.shared.acked.store(space.completions(), Ordering::Release);
        }
        ack();
        return Response::Current;
    }
    let policy = P::policy();
    let want = space.generation();
    if want == have {
        ack();
        return Response::Current;
    }
    let plan = plan(me, space, hint, have, want);
    let freed_tables = plan.freed_tables();
    if me.is_lazy(me.loaded(), order) {
        if policy.lazy == Lazy::CatchUp && !freed_tables {
            ack();
            return Response::Nothing;
        }
        switch::unload(me, cpu);
        ack();
        return Response::Left;
    }

    let early = may_ack_early && policy.early_ack && !freed_tables;
    let mut ack = Some(ack);
    if early {
        // The generation is stored with the acknowledgement, ahead of the invalidation, because
        // both are on the line that the initiator is about to fetch: a later store would take the
        // line away again. Until the invalidation is done, nothing on this CPU reads the
        // generation: interrupts are off, and a non-maskable kick finds this CPU serving (I1).
        me.set_generation_of(slot, want);
        // ORDERING: F4: Release, with the Acquire in `flush::acknowledge::is_done`
        me.shared.acked.store(want.0, Ordering::Release);
        if let Some(ack) = ack.take() {
            ack();
        }
        me.stats.early_acks.inc();
    }
    match &plan {
        Plan::Step(step) => invalidate_step(me, slot, *step),
        Plan::Steps(steps) => {
            for step in steps.as_slice() {
                invalidate_step(me, slot, *step);
            }
            if steps.as_slice().len() > 1 {
                me.stats.replayed.inc();
            }
        }
        Plan::Tag { .. } => invalidate_tag(me, slot),
    }
    regime::sync_here::<P::Regime>();
    if let Some(ack) = ack {
        me.set_generation_of(slot, want);
        // ORDERING: F4: Release, with the Acquire in `flush::acknowledge::is_done`: the
        // invalidation comes before the acknowledgement
        me.shared.acked.store(want.0, Ordering::Release);
        ack();
    }
    Response::CaughtUp
}

#[inline(never)]
fn plan<P: Platform>(
    me: &PerCpu<P>,
    space: &AddressSpace<P>,
    hint: Option<Hint>,
    have: Generation,
    want: Generation,
) -> Plan {
    let policy = P::policy();
    let exact = hint.filter(|h| h.generation == want && have.0 + 1 == want.0);
    if let Some(Hint { step, .. }) = exact {
        if policy.ranges && step.range.is_some() {
            return Plan::Step(step);
        }
        return Plan::Tag { freed_tables: step.freed_tables };
    }
    let log = if policy.range_log { space.log.read(have, want) } else { None };
    let Some(steps) = log else {
        if hint.is_some_and(|h| h.step.range.is_some()) {
            me.stats.escalations.inc();
        }
        return Plan::Tag { freed_tables: true };
    };
    let ceiling = u64::from(P::Regime::facts().ceiling);
    match steps.strides() {
        Some(strides) if policy.ranges && strides <= ceiling => return Plan::Steps(steps),
        Some(_) => me.stats.escalations.inc(),
        None => {}
    }
    Plan::Tag { freed_tables: steps.freed_tables() }
}

/// Invalidates several steps under a slot's tag, which is loaded, and syncs.
pub(crate) fn invalidate_steps<P: Platform>(me: &PerCpu<P>, slot: Slot, steps: &Steps) {
    for step in steps.as_slice() {
        invalidate_step(me, slot, *step);
    }
    regime::sync_here::<P::Regime>();
}

fn invalidate_step<P: Platform>(me: &PerCpu<P>, slot: Slot, step: Step) {
    let Some(range) = step.range else {
        invalidate_tag(me, slot);
        return;
    };
    let tag = me.loaded_tag(slot);
    let leaf_only = !step.freed_tables;
    P::Regime::invalidate(Invalidate::Range { tag, range, leaf_only }, Reach::Local);
    match P::Regime::facts().split_tables {
        SplitTables::No => {}
        SplitTables::Yes { invalidate_other_tag: true } if tags_on::<P>() => {
            let tag = user_tag::<P>(tag);
            P::Regime::invalidate(Invalidate::Range { tag, range, leaf_only }, Reach::Local);
        }
        SplitTables::Yes { .. } => me.mark_user_half_pending(slot),
    }
    me.stats.invalidated_ranges.inc();
    me.stats.invalidated_strides.add(range.count());
}

#[inline(never)]
fn invalidate_tag<P: Platform>(me: &PerCpu<P>, slot: Slot) {
    P::Regime::invalidate(Invalidate::Tag(me.loaded_tag(slot)), Reach::Local);
    let split = matches!(P::Regime::facts().split_tables, SplitTables::Yes { .. });
    if split {
        me.mark_user_half_pending(slot);
    }
    me.stats.invalidated_tags.inc();
}

/// Is the CPU between two spaces? Then a (non-maskable) handler can't serve anything now.
pub(crate) fn is_switching<P: Platform>(me: &PerCpu<P>) -> bool {
    me.loaded() == Loaded::SWITCHING
}

/// Invalidates everything under the loaded tag without an acknowledgement, for a handler that can't
/// wait for the catching up that it has interrupted. It is always correct to invalidate more; the
/// slot's generation stays.
pub(crate) fn over_flush<P: Platform>(me: &PerCpu<P>) {
    invalidate_tag(me, me.order().current());
    regime::sync_here::<P::Regime>();
}

/// Invalidates everything under every tag without an acknowledgement, for a handler that has
/// interrupted a switch. The slot that the switch loads keeps a generation older than its entries,
/// so it catches up at the next request.
pub(crate) fn forget_everything<P: Platform>() {
    P::Regime::invalidate(Invalidate::Everything, Reach::Local);
    regime::sync_here::<P::Regime>();
}

/// A kick has come: prefetches the lines that catching up will read, and the line of the
/// acknowledgement, so that the transfers overlap.
pub(crate) fn expect<P: Platform>(me: &PerCpu<P>) {
    // Between two spaces, `private.space` still names one of them. This CPU may have left that
    // space's set already, and its owner may have freed it.
    if P::policy().delivery != Delivery::Pull || is_switching(me) {
        return;
    }
    if let Some(space) = me.space() {
        space.expect_to_catch_up(me.generation_of(me.order().current()));
    }
}

/// A pushed request.
pub(crate) struct Push<'a, P: Platform> {
    pub(crate) changes: &'a [Change<'a, P>],
}

/// Executes a pushed request on its target.
pub(crate) unsafe fn push<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    data: *const (),
    ack: &mut Ack<'_, P>,
) {
    // SAFETY: `flush` posts a `&Push<P>` that lives until the call was acknowledged.
    let Push { changes } = unsafe { &*data.cast::<Push<'_, P>>() };
    let here = me.loaded().id();
    let loaded = changes.iter().find(|change| change.space.id().get() == here);
    let Some(Change { hint, .. }) = loaded else {
        me.stats.wrong_space.inc();
        if let [Change { space, .. }] = changes {
            space.leave_stale(cpu, me);
        }
        return;
    };
    if me.is_lazy(me.loaded(), me.order()) && P::policy().lazy == Lazy::LeaveOnKick {
        switch::unload(me, cpu);
        return;
    }
    catch_up(cpu, me, Some(*hint), ack.early, Some(ack));
}

/// The function of a large pulled flush: catch up; or leave the space, if the CPU is only lazy in
/// it or a stale member. (A large set is not filtered CPU by CPU, which would cost more than it
/// saves. Instead a CPU that did not need the notification leaves, so that it is not notified
/// again.)
pub(crate) unsafe fn pull<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    data: *const (),
    ack: &mut Ack<'_, P>,
) {
    // SAFETY: `flush` passes the space, which lives until the call was acknowledged.
    let space = unsafe { &*data.cast::<AddressSpace<P>>() };
    if me.loaded().id() != space.id().get() {
        me.stats.wrong_space.inc();
        space.leave_stale(cpu, me);
    } else if me.is_lazy(me.loaded(), me.order()) {
        switch::unload(me, cpu);
    } else {
        catch_up(cpu, me, None, ack.early, Some(ack));
    }
}

/// The function of a large pulled flush of many spaces: catch up with whichever space is loaded.
pub(crate) unsafe fn catch_up_any<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    _: *const (),
    ack: &mut Ack<'_, P>,
) {
    catch_up(cpu, me, None, ack.early, Some(ack));
}

/// Leaves the set of a space that is not loaded.
pub(crate) unsafe fn leave_set<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    data: *const (),
    _: &mut Ack<'_, P>,
) {
    // SAFETY: `flush` passes the space, which lives until the call was acknowledged.
    unsafe { &*data.cast::<AddressSpace<P>>() }.leave_stale(cpu, me);
}
