//! What the targets of a flush run.

use crate::call::Ack;
use crate::cpu::PerCpu;
use crate::ids::CpuId;
use crate::platform::Platform;
use crate::policy::Lazy;
use crate::respond::{self, Hint};
use crate::space::AddressSpace;
use crate::switch;

/// A pushed request.
pub(super) struct Push<'a, P: Platform> {
    pub(super) space: &'a AddressSpace<P>,
    pub(super) hint: Hint,
}

/// Executes a pushed request on its target.
pub(super) unsafe fn push<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    data: *const (),
    ack: &mut Ack<'_, P>,
) {
    // SAFETY: `flush` posts a `&Push<P>` that lives until the call was acknowledged.
    let request = unsafe { &*data.cast::<Push<'_, P>>() };
    if me.loaded().id() != request.space.id().get() && !without!(PushIgnoresSpace) {
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
pub(super) unsafe fn pull<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    data: *const (),
    ack: &mut Ack<'_, P>,
) {
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
pub(super) unsafe fn leave_set<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    data: *const (),
    _: &mut Ack<'_, P>,
) {
    // SAFETY: `flush` passes the space, which lives until the call was acknowledged.
    unsafe { &*data.cast::<AddressSpace<P>>() }.leave_in_vain(cpu, me);
}
