//! What a CPU forgets by itself when it comes by: on a switch to the space that it has, on a tick,
//! on its way in from isolated user mode.
//!
//! Two kinds of change are left to this, and nobody is notified of them: entries whose
//! [accessed bits](crate::accessed) were cleared (their rows A1 to A3), and pages that were
//! [lazily unmapped](crate::lazy_unmap). A switch to another space asks [`must_flush`] of the slot
//! that it is about to use.

use crate::base::ids::CpuId;
use crate::base::sync::Ordering;
use crate::ops::respond;
use crate::port::context::IrqsOff;
use crate::port::family;
use crate::port::platform::Platform;
use crate::port::policy::Accessed;
use crate::state::cpu::{Ages, PerCpu};
use crate::state::space::AddressSpace;
use crate::tags::slots::Slot;

impl<P: Platform> Ages<P> {
    /// A flag that was raised counts for all slots.
    fn collect(&self) {
        // ORDERING: A2, with the fence of whoever raised it
        if self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::Acquire) {
            self.due_slots.store(u32::MAX, Ordering::Relaxed);
        }
    }
}

/// The space's number now.
pub(crate) fn number<P: Platform>(space: &AddressSpace<P>) -> u64 {
    space.ages().load(Ordering::Acquire) // ORDERING: A1
}

/// Are entries of the small or of the large pages dropped like this?
fn in_force<P: Platform>(accessed: Accessed) -> bool {
    let policy = P::policy().accessed;
    policy.small == accessed || policy.large == accessed
}

/// The executing CPU is about to use what a slot holds of `space`; with `empty` it is flushed in
/// any case. Says whether it must be, and takes it that it will. `joined`: this CPU was not in the
/// space's set, and nobody told it anything. Call it with interrupts off, after the fence of D1.
pub(crate) fn must_flush<P: Platform>(
    me: &PerCpu<P>,
    space: &AddressSpace<P>,
    slot: Slot,
    joined: bool,
    empty: bool,
) -> bool {
    let mut must = false;
    if in_force::<P>(Accessed::AtSwitch) {
        me.ages.collect();
        let (due, bit) = (me.ages.due_slots.load(Ordering::Relaxed), 1 << slot.0);
        must |= due & bit != 0 || joined;
        if due & bit != 0 {
            me.ages.due_slots.store(due & !bit, Ordering::Relaxed);
        }
    }
    if in_force::<P>(Accessed::Generation) {
        let now = number(space);
        // A slot that changes hands has the number of the space before.
        if now != 0 || empty {
            let seen = &me.ages.seen.as_ref()[slot.index()];
            let before = seen.load(Ordering::Relaxed);
            if before != now {
                must = true;
                seen.store(now, Ordering::Relaxed);
            }
        }
    }
    if must && !empty {
        me.stats.accessed_flushes.inc();
    }
    must
}

/// As [`must_flush`], for the loaded space, and does it. Call it with interrupts off.
pub(crate) fn honour<P: Platform>(me: &PerCpu<P>, space: &AddressSpace<P>) {
    if family::strategy::<P>().is_some() || family::shared::<P>().is_some() && me.runs_shared() {
        return;
    }
    let slot = me.order().current();
    if must_flush(me, space, slot, false, false) {
        respond::over_flush(me);
    }
}

/// Do CPUs look at the generation of the space they run?
pub(crate) fn forgets_by_itself<P: Platform>() -> bool {
    family::strategy::<P>().is_none() && family::shared::<P>().is_none()
}

/// The executing CPU comes by: it forgets what it missed of the space it has loaded. With
/// interrupts off.
pub(crate) fn come_by<P: Platform>(cpu: CpuId, me: &PerCpu<P>, space: &AddressSpace<P>) {
    if P::policy().lazy_unmap.is_none() || !forgets_by_itself::<P>() {
        return;
    }
    if me.generation_of(me.order().current()) == space.generation() {
        return;
    }
    let caught_up = respond::exclusively(cpu, me, || {
        respond::catch_up(cpu, me, None, false, None);
    });
    if !caught_up {
        // We have interrupted this CPU's catching up, which may have read the generation before.
        respond::over_flush(me);
    }
    me.stats.lazily_swept.inc();
}

/// As [`come_by`], where the CPU may be on its way from one space to another, or run nothing of it.
pub(crate) fn come_by_chance<P: Platform>(cpu: CpuId, me: &PerCpu<P>) {
    if respond::is_switching(me) || me.is_lazy(me.loaded(), me.order()) {
        return;
    }
    if let Some(space) = me.space() {
        come_by(cpu, me, space);
    }
}

/// The timer has interrupted this CPU: entries whose accessed bits were cleared go now, and those
/// of pages that were unmapped [lazily](crate::lazy_unmap), so that their staleness is bounded on
/// CPUs that switch rarely. Never in a non-maskable handler ([`context`](crate::context)).
pub fn tick<P: Platform>(irqs: IrqsOff<'_, P>) {
    let me = PerCpu::<P>::here(irqs.pin());
    let loaded = me.loaded();
    if respond::is_switching(me) || me.is_lazy(loaded, me.order()) {
        return; // the switch sees to it; a lazy CPU uses no entry until it does
    }
    if let Some(space) = me.space() {
        honour(me, space);
        come_by(irqs.cpu(), me, space);
    }
}
