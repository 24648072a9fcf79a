//! What the targets of a flush run.

use crate::base::ids::CpuId;
use crate::ops::call::Ack;
use crate::ops::flush::Change;
use crate::ops::respond;
use crate::ops::switch;
use crate::port::platform::Platform;
use crate::port::policy::Lazy;
use crate::state::cpu::PerCpu;
use crate::state::space::AddressSpace;

/// A pushed request.
pub(super) struct Push<'a, P: Platform> {
    pub(super) changes: &'a [Change<'a, P>],
}

/// Executes a pushed request on its target.
pub(super) unsafe fn push<P: Platform>(
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
    respond::catch_up(cpu, me, Some(*hint), ack.early, || ack.fire());
}

/// The function of a large pulled flush: catch up; or leave, if here only lazily or as a stale
/// member. (A large set is not filtered CPU by CPU, which would cost more than it saves; instead a
/// CPU that did not need to be notified sees to it that it is not notified again.)
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
        space.leave_stale(cpu, me);
    } else if me.is_lazy(me.loaded(), me.order()) {
        switch::unload(me, cpu);
    } else {
        respond::catch_up(cpu, me, None, ack.early, || ack.fire());
    }
}

/// The function of a large pulled flush of many spaces: catch up, whichever is loaded.
pub(super) unsafe fn catch_up_any<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    _: *const (),
    ack: &mut Ack<'_, P>,
) {
    respond::catch_up(cpu, me, None, ack.early, || ack.fire());
}

/// Leaves the set of a space that is not loaded.
pub(super) unsafe fn leave_set<P: Platform>(
    cpu: CpuId,
    me: &PerCpu<P>,
    data: *const (),
    _: &mut Ack<'_, P>,
) {
    // SAFETY: `flush` passes the space, which lives until the call was acknowledged.
    unsafe { &*data.cast::<AddressSpace<P>>() }.leave_stale(cpu, me);
}
