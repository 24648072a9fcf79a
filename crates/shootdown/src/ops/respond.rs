//! The responder's decision table: what a CPU does when it is notified, or finds out, that its
//! loaded space changed.
//!
//! A CPU never executes "requests"; it *catches up*: it compares the generation its slot is current
//! to with the space's, and invalidates what lies between. A request that came with a range is a
//! hint that saves looking the range up.
//!
//! | # | condition, in order | action | slot's generation |
//! |---|---|---|---|
//! | 1 | nothing loaded | acknowledge | – |
//! | 1a | the space is loaded under a tag for all CPUs | acknowledge: who asks will broadcast | – |
//! | 1b | the space has such a tag | load it under that | – |
//! | 2 | hint for another space | leave that space's set (`call` side), acknowledge | – |
//! | 3 | hint's generation ≤ the slot's | acknowledge, without touching the space's line | – |
//! | 4 | the space's generation = the slot's | acknowledge | – |
//! | 5 | lazy; policy leaves on kick, or tables were freed (or may have been) | load the kernel's tables | old: flushed on return |
//! | 6 | lazy otherwise | acknowledge; catch up on return | old |
//! | 7 | hint covers exactly the one step missing | invalidate its range | the space's |
//! | 8 | every missed step is in the range log, together below the ceiling | replay them | the space's |
//! | 9 | otherwise | invalidate the tag | the space's |
//!
//! Rows 7 to 9 acknowledge *before* invalidating when the policy says so, no missed step freed
//! tables, and they run in the kick's handler: with interrupts off, and back in user code only
//! after the invalidation, so no access through the old entries can come between. (A non-maskable
//! handler that touches user memory must ask [`crate::user_access_ok`] first.)
//!
//! # Invariants
//! I1 (master): a slot's generation advances only after every step up to it was invalidated; with
//! an early acknowledgement, before anything on this CPU could look at it. I2: the generation is
//! read once, before the invalidation; entries filled after it see at least those table stores.

use crate::base::ids::{CpuId, Generation};
use crate::base::sync::Ordering;
use crate::ops::switch;
use crate::port::facts::SplitTables;
use crate::port::family::{self, tags_on, user_tag};
use crate::port::platform::Platform;
use crate::port::policy::{Delivery, Lazy};
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::{Loaded, PerCpu};
use crate::state::range_log::{Step, Steps};
use crate::state::space::AddressSpace;
use crate::tags::slots::Slot;

/// What a request says about the change it is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub generation: Generation,
    pub step: Step,
}

/// What the CPU did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Response {
    /// Nothing was loaded, or a lazy CPU may wait.
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
    /// One step, by far the most frequent: apart from the others, so that no array of them is
    /// filled and copied.
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

/// Brings the loaded space's slot up to the space's generation. `ack` is called exactly once, as
/// soon as this CPU makes no access through older entries.
///
/// `may_ack_early` says that interrupts are off, so that no handler of this CPU makes an access
/// between the acknowledgement and the invalidation.
pub(crate) fn catch_up<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    hint: Option<Hint>,
    may_ack_early: bool,
    ack: impl FnOnce(),
) -> Response {
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
        // Hardware invalidates here. Where it says too early that it has, to have been interrupted
        // is all that is missing.
        if P::Regime::facts().errata.completes_early {
            // ORDERING: Release, with the Acquire in `flush::acknowledge::is_done`; E2 in
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
        // The generation goes with the acknowledgement, ahead of the invalidation, because both are
        // on the line that the initiator is about to fetch: writing it later would take the line
        // away again. Until the invalidation is done, nothing on this CPU looks at it: interrupts
        // are off, and a non-maskable kick finds this CPU serving (I1).
        me.set_generation_of(slot, want);
        // ORDERING: Release, with the Acquire in `flush::acknowledge::is_done`
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
        // ORDERING: Release, with the Acquire in `flush::acknowledge::is_done`: done before it says
        // so
        me.shared.acked.store(want.0, Ordering::Release);
        ack();
    }
    Response::CaughtUp
}

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

/// Invalidates several steps under a slot's tag, which is loaded, and settles.
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

fn invalidate_tag<P: Platform>(me: &PerCpu<P>, slot: Slot) {
    P::Regime::invalidate(Invalidate::Tag(me.loaded_tag(slot)), Reach::Local);
    let split = matches!(P::Regime::facts().split_tables, SplitTables::Yes { .. });
    if split {
        me.mark_user_half_pending(slot);
    }
    me.stats.invalidated_tags.inc();
}

/// Is the CPU between two spaces? Then a (non-maskable) handler can't do anything now.
pub(crate) fn is_switching<P: Platform>(me: &PerCpu<P>) -> bool {
    me.loaded() == Loaded::SWITCHING
}

/// Forgets everything under the loaded tag without saying so: for work that can't wait for the
/// catching up it has interrupted. Over-flushing is always legal; the slot's generation stays.
pub(crate) fn over_flush<P: Platform>(me: &PerCpu<P>) {
    invalidate_tag(me, me.order().current());
    regime::sync_here::<P::Regime>();
}

/// Forgets everything under whatever tag, without saying so: for a handler that has interrupted a
/// switch. The slot that the switch goes to stays older than it is, and is caught up with when it
/// is next asked.
pub(crate) fn forget_everything<P: Platform>() {
    P::Regime::invalidate(Invalidate::Everything, Reach::Local);
    regime::sync_here::<P::Regime>();
}

/// A kick has come: asks for the lines that catching up will read, and for the one that
/// acknowledges, so that they travel together.
pub(crate) fn expect<P: Platform>(me: &PerCpu<P>) {
    // Between two spaces, one of which it names still, this CPU may have left that one's set, and
    // its owner may have freed it.
    if P::policy().delivery != Delivery::Pull || is_switching(me) {
        return;
    }
    if let Some(space) = me.space() {
        space.expect_to_catch_up(me.generation_of(me.order().current()));
    }
}
