//! Flushes that concern every CPU: flushes of kernel ranges, and of everything.

use crate::base::cpu_set::Bits;
use crate::base::ids::{Tag, VaRange};
use crate::base::sync::{Ordering, fence};
use crate::ops::call;
use crate::ops::flush::FlushError;
use crate::ops::flush::paravirt::hand_over_everywhere;
use crate::ops::respond;
use crate::port::facts::SplitTables;
use crate::port::family::{self, tags_on};
use crate::port::platform::{Pinned, Platform};
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::{Loaded, PerCpu};
use crate::tags::slots;

/// Makes every CPU drop the leaf entries of a kernel range, global ones included. To free tables of
/// the kernel's own half, use [`flush_everything`]: CPUs may have cached non-leaf entries under
/// tags that are not loaded.
///
/// After a [`flush_everything`] that failed, this function flushes everything too, until one such
/// flush has succeeded: walk caches still hold the tables that were unlinked, and their leaves may
/// map the range.
///
/// Never in a non-maskable handler ([`context`](crate::context)).
///
/// # Errors
/// See [`FlushError`].
pub fn flush_kernel<P: Platform>(pin: &P::Pin, range: VaRange) -> Result<(), FlushError> {
    let me = PerCpu::<P>::here(pin);
    me.stats.requests_kernel.inc();
    let what = if range.count() > u64::from(P::Regime::facts().ceiling) {
        me.stats.over_ceiling.inc();
        Invalidate::Everything
    } else if P::system().everything_is_pending() {
        Invalidate::Everything
    } else {
        Invalidate::Kernel(range)
    };
    // A freed table is still in walk caches, which a CPU in user mode uses too, so isolated CPUs
    // can't be left alone then.
    let waits = !P::system().everything_is_pending();
    everywhere::<P>(pin, what, waits)
}

/// Makes every CPU drop all entries, global ones included. Never in a non-maskable handler
/// ([`context`](crate::context)).
///
/// # Errors
/// See [`FlushError`]. The caller must not free tables that it unlinked before, nor what they map,
/// until a later call has succeeded.
pub fn flush_everything<P: Platform>(pin: &P::Pin) -> Result<(), FlushError> {
    PerCpu::<P>::here(pin).stats.requests_everything.inc();
    everywhere::<P>(pin, Invalidate::Everything, false)
}

/// `isolated_wait`: isolated CPUs are left alone, and invalidate when they next enter the kernel.
fn everywhere<P: Platform>(
    pin: &P::Pin,
    what: Invalidate,
    isolated_wait: bool,
) -> Result<(), FlushError> {
    let failed = P::system().failed_flushes();
    let result = reach_all::<P>(pin, what, isolated_wait);
    if what == Invalidate::Everything {
        P::system().settle_everything(failed, result.is_ok());
    }
    result
}

fn reach_all<P: Platform>(
    pin: &P::Pin,
    what: Invalidate,
    isolated_wait: bool,
) -> Result<(), FlushError> {
    P::Regime::publish();
    let change = if isolated_wait { P::system().count_kernel_change() } else { None };
    // ORDERING: D4, with the fence in `cpu::online`; Q1, with the fence in `isolated::from_user`
    fence(Ordering::SeqCst);
    let mut targets = P::system().online();
    if family::reaches_everyone::<P>() {
        PerCpu::<P>::here(pin).stats.invalidations_broadcast.inc();
        regime::invalidate::<P::Regime>(what, Reach::Broadcast);
        regime::sync_everywhere::<P::Regime>(what);
        if P::Regime::facts().errata.completes_early {
            // The CPUs only have to be interrupted once.
            call::call_on::<P, _>(pin, &targets, &|_| ())?;
        }
        return Ok(());
    }
    targets.remove(pin.cpu());
    let me = PerCpu::<P>::here(pin);
    // We are a handler that interrupted a switch: only the switch knows which tag it loads next.
    let what = if respond::is_switching(me) { Invalidate::Everything } else { what };
    if change.is_some() {
        let isolated = P::system().leave_isolated_alone(&mut targets);
        me.stats.avoided_isolated.add(u64::from(isolated));
    }
    hand_over_everywhere(me, what, &mut targets);
    targets.insert(pin.cpu());
    call::call_on::<P, _>(pin, &targets, &|cpu| {
        let Some(me) = P::slot(cpu) else { return };
        P::Regime::invalidate(what, Reach::Local);
        let split = matches!(P::Regime::facts().split_tables, SplitTables::Yes { .. });
        if split && what != Invalidate::Everything {
            // No entry is global here, and one kernel range is cached under every tag. The loaded
            // pair of tags was invalidated just now (its user half is pending); the other slots are
            // emptied, so their tags are flushed when they are loaded again.
            let current = (me.loaded() != Loaded::KERNEL).then(|| me.order().current());
            current.into_iter().for_each(|slot| me.mark_user_half_pending(slot));
            slots::forget_others(me.private.ids.as_ref(), current);
            if current.is_some() && tags_on::<P>() {
                // The kernel's own tables have no slot, so the entries cached under their tag could
                // be kept when they are loaded. Invalidate them now.
                P::Regime::invalidate(Invalidate::Tag(Tag::KERNEL), Reach::Local);
            }
        }
        regime::sync_here::<P::Regime>();
        if let Some(change) = change {
            me.isolated.forgot(change);
        }
    })?;
    Ok(())
}
