//! Flushes where hardware invalidates on every CPU.
//!
//! The caller has changed the tables. (1) *publish* the stores to walkers; (2) count the change;
//! (3) decide how far the invalidation must reach ([`Residency::extent`], which fences first), and
//! read the space's tag after that; (4) invalidate, and wait until the hardware has done it.
//!
//! | reach | when | what is waited for |
//! |---|---|---|
//! | none | no CPU can use an entry before it flushes | nothing |
//! | local | only this CPU can | this CPU's own sync |
//! | broadcast | otherwise | the hardware, for every CPU |
//!
//! Nobody is interrupted, and such a flush does not fail, except where hardware says too early that
//! it is done: then the CPUs that have the space loaded are interrupted after the sync, which ends
//! their accesses.
//!
//! # Hardware that says too early that it is done
//! What is missing is that each CPU comes into the kernel once after the sync. A generation does
//! not say that: it is counted before the invalidation. So each sync of a space is numbered when it
//! is over ([`AddressSpace::count_completion`]), and a CPU that serves a kick, or switches to the
//! space, acknowledges the number that it finds. Who was interrupted in another space, and has come
//! back since, has acknowledged by coming back.
//!
//! | pair | the flush | the CPU | what it guarantees |
//! |---|---|---|---|
//! | E1 | sync; number; **fence**; who has the space loaded | store *switching*; **fence**; load the number | the CPU is interrupted, or acknowledges; or it came after the sync |
//! | E2 | sync; number (Release) | load the number (Acquire); acknowledge (Release) | who acknowledges a number comes after its sync |
//!
//! The tag is read last. A space that gets another tag after that was looked at runs under it only
//! on CPUs that see the stores (P1 in `state/residency.rs`); the old number may be another space's
//! by then, which loses entries and no more.
//!
//! [`Residency::extent`]: crate::residency::Residency::extent

use crate::base::cpu_set::Bits;
use crate::base::ids::{CpuId, Tag};
use crate::base::sync::{Ordering, fence};
use crate::ops::call;
use crate::ops::flush::{Change, Request};
use crate::ops::respond;
use crate::ops::respond::leave_set;
use crate::port::family::{self, user_tag};
use crate::port::platform::{CpuSetOf, Pinned, Platform};
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::{PerCpu, View};
use crate::state::residency::{Extent, Strategy};
use crate::state::space::AddressSpace;

impl<P: Platform> AddressSpace<P> {
    /// The broadcast for a change of the space is complete. Says which CPUs are to be interrupted
    /// because hardware says so too early.
    pub(super) fn completed(
        &self,
        pin: &P::Pin,
        me: &PerCpu<P>,
        change: &mut Change<'_, P>,
    ) -> CpuSetOf<P> {
        let Some(strategy) = family::strategy::<P>() else { return CpuSetOf::<P>::EMPTY };
        if strategy == Strategy::Trim {
            self.trim(pin, me);
        }
        if P::Regime::facts().errata.completes_early {
            change.answer = self.count_completion();
            fence(Ordering::SeqCst); // ORDERING: E1, with the fence in `switch::broadcast`
            self.runs_on(pin.cpu())
        } else {
            CpuSetOf::<P>::EMPTY
        }
    }

    /// Makes hardware drop what changed, as far as it must reach. What must be waited for on every
    /// CPU is returned, and the caller waits, or does not.
    pub(crate) fn issue(
        &self,
        pin: &P::Pin,
        me: &PerCpu<P>,
        strategy: Strategy,
        request: Request,
    ) -> Option<Invalidate> {
        let extent = self.extent(pin.cpu(), me, strategy, request.freed_tables);
        // A space without a tag never ran.
        let Some(tag) = self.tag().filter(|_| extent != Extent::None) else {
            me.stats.invalidations_none.inc();
            return None;
        };
        if extent == Extent::Broadcast {
            me.stats.invalidations_broadcast.inc();
            return Some(invalidate(me, tag, request, Reach::Broadcast));
        }
        me.stats.invalidations_local.inc();
        invalidate(me, tag, request, Reach::Local);
        regime::sync_here::<P::Regime>();
        None
    }

    fn extent(&self, cpu: CpuId, me: &PerCpu<P>, strategy: Strategy, freed_tables: bool) -> Extent {
        let here = || me.loaded().id() == self.id().get();
        let was_here = here();
        let extent = self.residency.extent(strategy, cpu, was_here, freed_tables);
        // A handler in between may have left the space, and then it was not this CPU that was
        // counted.
        if strategy == Strategy::Active && was_here && !here() { Extent::Broadcast } else { extent }
    }

    /// Other CPUs that have the space loaded, or are on their way.
    fn runs_on(&self, cpu: CpuId) -> CpuSetOf<P> {
        let mut runs = P::system().online_of(&self.cpus());
        runs.remove(cpu);
        for cpu in self.cpus().iter() {
            let state = P::slot(cpu);
            if state.is_none_or(|s| s.remote_view(self.id().get()) == View::Elsewhere) {
                runs.remove(cpu);
            }
        }
        runs
    }

    /// This CPU, which is elsewhere, flushes the space's tag and leaves the set, where that means
    /// something.
    pub(crate) fn trim_here(&self, cpu: CpuId) {
        if family::strategy::<P>() != Some(Strategy::Trim) {
            return;
        }
        if let Some(tag) = self.tag() {
            regime::invalidate::<P::Regime>(Invalidate::Tag(tag), Reach::Local);
            let user = user_tag::<P>(tag);
            if user != tag {
                regime::invalidate::<P::Regime>(Invalidate::Tag(user), Reach::Local);
            }
            regime::sync_here::<P::Regime>();
        }
        self.residency.trimmed(cpu);
    }

    /// Now and then asks the members of the set that are elsewhere to flush the tag and leave it. A
    /// courtesy: it fails without consequence.
    fn trim(&self, pin: &P::Pin, me: &PerCpu<P>) {
        if !self.note_stale(1) || !respond::may_wait(me) {
            return;
        }
        let mut idle = P::system().online_of(&self.cpus());
        for cpu in self.cpus().iter() {
            let state = P::slot(cpu);
            if state.is_none_or(|s| s.remote_view(self.id().get()) != View::Elsewhere) {
                idle.remove(cpu);
            }
        }
        if idle.contains(pin.cpu()) {
            idle.remove(pin.cpu());
            self.leave_stale(pin.cpu(), me);
        }
        if idle.is_empty() {
            return;
        }
        me.stats.trims.add(u64::from(idle.len()));
        let data = core::ptr::from_ref(self).cast();
        // SAFETY: the space outlives the call, which is waited for here.
        let Ok(leaving) = (unsafe { call::post(me, pin.cpu(), idle, leave_set::<P>, data) }) else {
            return;
        };
        if call::kick(me, &idle).is_err() {
            leaving.cancel(me);
        }
        let _ = leaving.wait(pin);
    }
}

/// Waits until `last`, and all that this CPU has broadcast before it, is done. On the CPU that
/// issued it.
pub(super) fn complete<P: Platform>(last: Invalidate) {
    regime::sync_everywhere::<P::Regime>(last);
}

/// Removes what the request names; returns the last of what was removed.
#[inline(never)]
pub(super) fn invalidate<P: Platform>(
    me: &PerCpu<P>,
    tag: Tag,
    request: Request,
    reach: Reach,
) -> Invalidate {
    let step = request.step(P::Regime::facts().ceiling);
    let range = step.range.filter(|_| P::policy().ranges);
    let leaf_only = !step.freed_tables;
    let what = |tag| match range {
        Some(range) => Invalidate::Range { tag, range, leaf_only },
        None => Invalidate::Tag(tag),
    };
    match range {
        Some(range) => {
            me.stats.invalidated_ranges.inc();
            me.stats.invalidated_strides.add(range.count());
        }
        None => me.stats.invalidated_tags.inc(),
    }
    regime::invalidate::<P::Regime>(what(tag), reach);
    let user = user_tag::<P>(tag);
    if user != tag {
        regime::invalidate::<P::Regime>(what(user), reach);
    }
    what(user)
}
