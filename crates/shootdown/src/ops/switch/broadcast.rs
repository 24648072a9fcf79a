//! Switching where hardware invalidates on every CPU: a switch has nothing to catch up with.
//!
//! The CPU that changes a space's tables makes sure that no CPU has old entries under the space's
//! tag, or puts the CPUs that have some into the stale set. So a CPU keeps no slots and compares no
//! generations. It takes the space's tag, makes itself known ([`Residency::enter`]), flushes the
//! tag if it is stale here, and loads the root, in this order: an entry of the space is cached only
//! after the CPU is known, and stale entries are gone before the root is loaded.
//!
//! The CPU publishes that it has left a space only when the root is replaced and its walks are over
//! ([`Residency::left`]).
//!
//! [`Residency::enter`]: crate::residency::Residency::enter
//! [`Residency::left`]: crate::residency::Residency::left

use super::{Switched, versioned};
use crate::base::sync::{Ordering, compiler_fence, fence};
use crate::port::family::user_tag;
use crate::port::platform::{Pinned, Platform};
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::{Loaded, PerCpu};
use crate::state::residency::Strategy;
use crate::state::space::AddressSpace;

/// Makes `next`, which is not loaded, the space of this CPU.
///
/// # Safety
/// As [`switch_to`](super::switch_to).
pub(super) unsafe fn switch_to<P: Platform>(
    pin: &P::Pin,
    me: &PerCpu<P>,
    next: &AddressSpace<P>,
    strategy: Strategy,
) -> Switched {
    let cpu = pin.cpu();
    me.shared.loaded.store(Loaded::SWITCHING.0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let tag = versioned::activate(pin, me, next, || {
        next.residency.renew();
    });
    let stale = next.residency.enter(strategy, cpu);
    let early = P::Regime::facts().errata.completes_early;
    if early {
        fence(Ordering::SeqCst); // ORDERING: E1, with the fence in `AddressSpace::completed`
    }
    // What this CPU acknowledged in another space must not count for a flush of this one that is
    // under way. This CPU is in the kernel, so it may acknowledge every sync that was over before.
    let acked = if early { next.completions() } else { 0 };
    if stale {
        me.stats.stale_tag_flushes.inc();
        regime::invalidate::<P::Regime>(Invalidate::Tag(tag), Reach::Local);
        let user = user_tag::<P>(tag);
        if user != tag {
            regime::invalidate::<P::Regime>(Invalidate::Tag(user), Reach::Local);
        }
        regime::sync_here::<P::Regime>();
    }
    // SAFETY: the tables are valid (contract 2 of `switch_to`). What is cached under the tag on
    // this CPU agrees with them (the module's text).
    unsafe { P::Regime::load(next.root(), tag, true) };
    me.tag.set_tag(tag);
    // SAFETY: the root was loaded just now (contract 2 of `Regime`: no walk through the previous
    // one is left).
    unsafe { me.tag.loaded() };
    left(me, strategy);
    let order = me.order().with_lazy(false);
    let (order, spill) = if stale { (order, 0) } else { order.count_kept() };
    if spill != 0 {
        me.stats.switches_kept.add(spill);
    }
    me.set_order(order);
    me.private.space.store(core::ptr::from_ref(next).cast_mut(), Ordering::Relaxed);
    // ORDERING: Release: E2
    me.shared.acked.store(acked, Ordering::Release);
    // ORDERING: Release, with the Acquire in `remote_view`: a CPU that sees the space sees that the
    // previous one was left
    me.shared.loaded.store(next.id().get(), Ordering::Release);
    if stale {
        me.stats.switches_flushed.inc();
        Switched::Flushed
    } else {
        Switched::Kept
    }
}

/// The root of the space that `private.space` still names was replaced.
pub(super) fn left<P: Platform>(me: &PerCpu<P>, strategy: Strategy) {
    if let Some(space) = me.space() {
        space.residency.left(strategy);
    }
}
