//! Switching to a space that has a global tag, where other spaces have slots.
//!
//! The CPU has published that it is switching, joined the space's set, executed a fence (D1), and
//! then found the tag (`S2` of [`tags::shared`](crate::tags::shared)). Every flush of the space
//! either sees that and waits for the CPU, or comes before the walks of this CPU; once the space
//! has the tag, every flush is broadcast. So the entries under the tag are kept without a look at
//! the generation. If a slot of this CPU remembers the space, its entries grow old, and are not
//! loaded again.

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
    // with them (the module's text); a flush that has not returned yet invalidates what it changed.
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
    // ORDERING: Release, twice: the previous space was left; S3: the tag was read before the stores
    me.shared.acked.store(Shared::<P>::EVERY, Ordering::Release);
    me.shared.loaded.store(next.id().get(), Ordering::Release);
    Switched::Kept
}

/// The loaded space has got a global tag: this CPU runs the space under that tag from now on. Call
/// it where no other handler of this CPU serves (`respond::exclusively`).
pub(crate) fn move_over<P: Platform>(me: &PerCpu<P>, space: &AddressSpace<P>, tag: Tag) {
    // SAFETY: the space is loaded, so its tables are valid; the module's text covers what is
    // cached.
    unsafe { P::Regime::load(space.root(), tag, true) };
    // ORDERING: Release: S3, S4: accesses under the slot's tag are over, and the global tag was
    // read
    me.shared.acked.store(Shared::<P>::EVERY, Ordering::Release);
}
