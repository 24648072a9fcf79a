//! Steps 5 to 7 of a flush: notifying the CPUs that were found, the local work, and the wait. For
//! one change or for many, of as many spaces: a CPU is interrupted once, whatever it has to catch
//! up with.

use crate::base::cpu_set::{Bits, Mask};
use crate::base::ids::CpuId;
use crate::ops::call;
use crate::ops::flush::remote::{Push, catch_up_any, leave_set, pull, push};
use crate::ops::flush::{Change, Counted, FlushError};
use crate::ops::{respond, serve, tree};
use crate::port::family;
use crate::port::platform::{CpuSetOf, Pinned, Platform};
use crate::port::policy::Delivery;
use crate::state::cpu::PerCpu;

/// Tells, works and waits; says how many CPUs were interrupted. `trim` belongs to the only change
/// there is.
pub(super) fn notify_and_wait<P: Platform>(
    pin: &P::Pin,
    me: &PerCpu<P>,
    changes: &[Change<'_, P>],
    mut targets: CpuSetOf<P>,
    mut trim: CpuSetOf<P>,
) -> Result<u32, FlushError> {
    let cpu = pin.cpu();
    let policy = P::policy();
    if targets.is_empty() && trim.is_empty() {
        me.stats.flushes_local.inc();
        local_work(cpu, me, changes);
        return Ok(0);
    }
    if !serve::may_wait(me) {
        // Telling the others and doing the local work is all that can be done, and does no harm.
        let kicked = notify(me, &targets);
        local_work(cpu, me, changes);
        let done = targets.is_empty();
        let waited = if done { Ok(0) } else { Err(FlushError::WouldWait) };
        return kicked.and(waited);
    }
    let began = P::ticks();
    if !policy.overlap {
        local_work(cpu, me, changes);
    }
    if policy.delivery == Delivery::Push {
        me.stats.trims.add(u64::from(trim.len()));
        let notified = union::<P>(&targets, &trim);
        let request = Push { changes };
        let data = core::ptr::from_ref(&request).cast();
        // SAFETY: `request` lives until the call was waited for, just below.
        let posted = unsafe { call::post(me, cpu, notified, push::<P>, data) }?;
        let kicked = call::kick(me, &notified);
        if kicked.is_err() {
            posted.cancel(me);
        }
        if policy.overlap {
            local_work(cpu, me, changes);
        }
        posted.wait(pin)?;
        kicked?;
    } else if let Some(call) = as_tree(me, changes, &targets) {
        let kicked = call.kick();
        local_work(cpu, me, changes);
        call.wait(pin)?;
        kicked?;
    } else {
        if let ([Change { space, hint, .. }], true) = (changes, tree::is_for::<P>(&targets)) {
            // every place is taken: CPU by CPU then, and only those that must be notified
            trim = space.filter(me, &mut targets, *hint, Counted::Now);
        }
        pull_from(pin, me, changes, &targets, &trim)?;
    }
    me.stats.flushes_remote.inc();
    me.stats.waited(P::ticks().saturating_sub(began));
    Ok(union::<P>(&targets, &trim).len())
}

/// With pull delivery, CPU by CPU.
fn pull_from<P: Platform>(
    pin: &P::Pin,
    me: &PerCpu<P>,
    changes: &[Change<'_, P>],
    targets: &CpuSetOf<P>,
    trim: &CpuSetOf<P>,
) -> Result<(), FlushError> {
    let leaving = match changes {
        [Change { space, .. }] if !trim.is_empty() => {
            me.stats.trims.add(u64::from(trim.len()));
            let data = core::ptr::from_ref(*space).cast();
            // Trimming is a courtesy: it fails without consequence.
            // SAFETY: the space outlives the call, which is waited for below.
            unsafe { call::post(me, pin.cpu(), *trim, leave_set::<P>, data) }.ok()
        }
        _ => None,
    };
    let notified = if leaving.is_some() { union::<P>(targets, trim) } else { *targets };
    let kicked = call::kick(me, &notified);
    if P::policy().overlap {
        local_work(pin.cpu(), me, changes);
    }
    if let Some(leaving) = leaving {
        if kicked.is_err() {
            leaving.cancel(me);
        }
        let _ = leaving.wait(pin);
    }
    kicked?;
    for Change { space, hint, answer, .. } in changes {
        let (answer, freed_tables) = (*answer, hint.step.freed_tables);
        // Of the CPUs that were notified for all changes together, those that this one concerns.
        // Who has left the space's set since has done with the space. ORDERING: Acquire,
        // with the Release of `Mask::remove`
        let asked = match changes {
            [_] => *targets,
            _ => space.residency.cpus.common(targets),
        };
        space
            .wait_for_acknowledgements(pin, answer, freed_tables, &asked)
            .inspect_err(|_| me.stats.stalls.inc())?;
    }
    Ok(())
}

/// The flush as a large call, if there are enough targets and a place is free.
fn as_tree<'a, P: Platform>(
    me: &'a PerCpu<P>,
    changes: &[Change<'_, P>],
    targets: &CpuSetOf<P>,
) -> Option<tree::Begun<'a, P>> {
    if !tree::is_for::<P>(targets) {
        return None;
    }
    match changes {
        [Change { space, .. }] => {
            let data = core::ptr::from_ref(*space).cast();
            // SAFETY: the space outlives the call, which `tell_and_wait` waits for.
            unsafe { tree::begin::<P>(me, targets, pull::<P>, data) }
        }
        _ => {
            let data = changes.as_ptr().cast();
            // SAFETY: the function makes no use of its data.
            unsafe { tree::begin::<P>(me, targets, catch_up_any::<P>, data) }
        }
    }
}

/// Kicks for a flush that is not waited for now.
pub(super) fn notify<P: Platform>(me: &PerCpu<P>, targets: &CpuSetOf<P>) -> Result<(), FlushError> {
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

/// Step 6.
pub(super) fn local_work<P: Platform>(cpu: CpuId, me: &PerCpu<P>, changes: &[Change<'_, P>]) {
    if family::strategy::<P>().is_some() {
        return; // hardware has done it
    }
    if respond::is_switching(me) {
        // We are a handler that interrupted this CPU on its way out of a space, perhaps this one,
        // with the old root still loaded; or into one, perhaps this one, whose generation it has
        // read and whose entries it keeps, under a tag that only the interrupted switch knows.
        respond::forget_everything::<P>();
        return;
    }
    let here = me.loaded().id();
    let change = changes.iter().find(|change| change.space.id().get() == here);
    let Some(Change { hint, .. }) = change else { return };
    let done = serve::exclusively(cpu, me, || {
        respond::catch_up(cpu, me, Some(*hint), false, || {});
    });
    if !done {
        // We are a handler that interrupted this CPU's catching up, which may have read the
        // generation before ours: see to our own change by ourselves.
        respond::over_flush(me);
    }
}

/// Step 6 alone, for a change that nobody else is notified of now.
pub(crate) fn here<P: Platform>(cpu: CpuId, me: &PerCpu<P>, change: &Change<'_, P>) {
    local_work(cpu, me, core::slice::from_ref(change));
}

pub(super) fn union<P: Platform>(a: &CpuSetOf<P>, b: &CpuSetOf<P>) -> CpuSetOf<P> {
    let mut both = *a;
    for (to, from) in both.words_mut().iter_mut().zip(b.words()) {
        *to |= from;
    }
    both
}
