//! What a CPU invalidates without being notified: on a switch to the space that it has loaded, on a
//! tick, on its way in from isolated user mode.
//!
//! Two kinds of change are handled like this, and no CPU is notified of them: entries whose
//! [accessed bits](crate::accessed) were cleared (their rows A1 to A3), and pages that were [lazily
//! unmapped](crate::lazy_unmap). A switch to another space calls [`must_flush`] for the slot that
//! it is about to use.

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
    /// Collects the flag: if it was raised, all slots must be flushed.
    fn collect(&self) {
        // ORDERING: A2, with the fence of the CPU that raised it
        if self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::Acquire) {
            self.due_slots.store(u32::MAX, Ordering::Relaxed);
        }
    }
}

/// The number of clearings of accessed bits in the space so far.
pub(crate) fn number<P: Platform>(space: &AddressSpace<P>) -> u64 {
    space.ages().load(Ordering::Acquire) // ORDERING: A1
}

/// Is this method in use, for small or for large pages?
fn in_force<P: Platform>(accessed: Accessed) -> bool {
    let policy = P::policy().accessed;
    policy.small == accessed || policy.large == accessed
}

/// The executing CPU is about to use what a slot holds of `space`. Returns whether the slot must be
/// flushed first, and records that the caller does so. `empty`: the caller flushes the slot in any
/// case. `joined`: this CPU was not in the space's set, so no flag was raised for it. Call it with
/// interrupts off, after the fence of D1.
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
        // A slot that is given to another space still has the number of the previous one.
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

/// Does for the loaded space what [`must_flush`] requires. Call it with interrupts off.
pub(crate) fn honour<P: Platform>(me: &PerCpu<P>, space: &AddressSpace<P>) {
    if family::strategy::<P>().is_some() || family::shared::<P>().is_some() && me.runs_shared() {
        return;
    }
    let slot = me.order().current();
    if must_flush(me, space, slot, false, false) {
        respond::over_flush(me);
    }
}

/// Do CPUs compare generations of the space that they run, so that they can catch up by themselves?
pub(crate) fn forgets_by_itself<P: Platform>() -> bool {
    family::strategy::<P>().is_none() && family::shared::<P>().is_none()
}

/// Invalidates what the executing CPU has missed of the space that it has loaded. Call it with
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
        // We have interrupted a catching up of this CPU, which may have read an older generation.
        respond::over_flush(me);
    }
    me.stats.lazily_swept.inc();
}

/// Like [`come_by`], where the CPU may be between two spaces, be lazy, or have no space loaded.
pub(crate) fn come_by_chance<P: Platform>(cpu: CpuId, me: &PerCpu<P>) {
    if respond::is_switching(me) || me.is_lazy(me.loaded(), me.order()) {
        return;
    }
    if let Some(space) = me.space() {
        come_by(cpu, me, space);
    }
}

/// To be called from the timer interrupt: invalidates entries whose accessed bits were cleared, and
/// entries of pages that were unmapped [lazily](crate::lazy_unmap), so that their staleness is
/// bounded on CPUs that switch rarely. Never in a non-maskable handler
/// ([`context`](crate::context)).
pub fn tick<P: Platform>(irqs: IrqsOff<'_, P>) {
    let me = PerCpu::<P>::here(irqs.pin());
    let loaded = me.loaded();
    if respond::is_switching(me) || me.is_lazy(loaded, me.order()) {
        return; // the switch invalidates; a lazy CPU uses no entry until then
    }
    if let Some(space) = me.space() {
        honour(me, space);
        come_by(irqs.cpu(), me, space);
    }
}
