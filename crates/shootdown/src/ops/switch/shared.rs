//! Switching to a space that has a tag for all CPUs, where other spaces have slots.
//!
//! The CPU has published that it is switching, joined the space's set, fenced (D1), and then found
//! the tag (`S2` of [`tags::shared`](crate::tags::shared)). Every flush of the space either sees
//! that and waits for it, or comes before the walks of this CPU; from the tag on, all are
//! broadcast. So what is cached under the tag is kept without a look at the generation. What its
//! slots remember of the space, if they do, grows old, and is not loaded again.

use super::{Switched, leave_set};
use crate::base::ids::{CpuId, Tag};
use crate::base::sync::Ordering;
use crate::port::platform::Platform;
use crate::port::policy::Leave;
use crate::port::regime::Regime;
use crate::state::cpu::{PerCpu, Shared};
use crate::state::space::AddressSpace;

/// Makes `next`, which is not loaded, the space of this CPU.
///
/// # Safety
/// As [`switch_to`](super::switch_to). `tag` is the space's, and was read after the fence of D1.
pub(super) unsafe fn switch_to<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    next: &AddressSpace<P>,
    tag: Tag,
) -> Switched {
    // SAFETY: the tables are valid (contract 2 of `switch_to`). What is cached under the tag agrees
    // with them (the module's text); a flush that has not returned yet invalidates what it is
    // about.
    unsafe { P::Regime::load(next.root(), tag, true) };
    if P::policy().leave == Leave::AtSwitch {
        leave_set(me, cpu);
    }
    let (order, spill) = me.order().with_lazy(false).count_kept();
    if spill != 0 {
        me.stats.switches_kept.add(spill);
    }
    me.set_order(order);
    me.private.space.store(core::ptr::from_ref(next).cast_mut(), Ordering::Relaxed);
    // ORDERING: Release, twice: the space before was left; S3: the tag was read before this says so
    me.shared.acked.store(Shared::<P>::EVERY, Ordering::Release);
    me.shared.loaded.store(next.id().get(), Ordering::Release);
    Switched::Kept
}

/// The loaded space has got a tag: this CPU runs it under that from now on. Call it with no other
/// handler of this CPU at work ([`crate::ops::serve`]).
pub(crate) fn move_over<P: Platform>(me: &PerCpu<P>, space: &AddressSpace<P>, tag: Tag) {
    // SAFETY: the space is loaded, so its tables are valid; as above for what is cached.
    unsafe { P::Regime::load(space.root(), tag, true) };
    // ORDERING: Release: S3, S4: accesses under the slot are over, and the tag was read
    me.shared.acked.store(Shared::<P>::EVERY, Ordering::Release);
}
