//! Flushes where hardware invalidates on every CPU.
//!
//! The caller has changed the tables. The initiator (1) *publishes* the stores to walkers; (2)
//! counts the change; (3) decides how far the invalidation must reach ([`Residency::extent`], which
//! executes a fence first), and reads the space's tag after that; (4) invalidates, and waits until
//! the hardware has done it.
//!
//! | reach | when | what is waited for |
//! |---|---|---|
//! | none | no CPU can use an entry before it flushes | nothing |
//! | local | only this CPU can | this CPU's own sync |
//! | broadcast | otherwise | the hardware, for every CPU |
//!
//! No CPU is interrupted, and such a flush does not fail, except where hardware reports completion
//! too early: then the CPUs that have the space loaded are interrupted after the sync, which ends
//! their accesses.
//!
//! # Hardware that reports completion too early
//! On such hardware each CPU must also enter the kernel once after the sync. A generation can't
//! tell whether it has, because it is counted before the invalidation. So each sync of a space gets
//! a number when it is over ([`AddressSpace::count_completion`]), and a CPU that serves a kick, or
//! switches to the space, acknowledges the number that it reads. A CPU that was interrupted in
//! another space, and has come back since, acknowledged when it came back.
//!
//! | pair | the flush | the CPU | what it guarantees |
//! |---|---|---|---|
//! | E1 | sync; number; **fence**; which CPUs have the space loaded | store *switching*; **fence**; load the number | the CPU is interrupted, or acknowledges; or it came after the sync |
//! | E2 | sync; number (Release) | load the number (Acquire); acknowledge (Release) | a CPU that acknowledges a number comes after its sync |
//!
//! The initiator reads the tag last. If the space gets another tag after that, it runs under the
//! new tag only on CPUs that see the stores (P1 in `state/residency.rs`). The old number may belong
//! to another space by then; that space loses entries, which is harmless.
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
    /// The broadcast for a change of the space is complete. Returns which CPUs must be interrupted
    /// because the hardware reports that too early.
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

    /// Makes the hardware drop what changed, as far as the invalidation must reach. Returns the
    /// last broadcast, if there was one; the caller decides whether to wait for it.
    pub(crate) fn issue(
        &self,
        pin: &P::Pin,
        me: &PerCpu<P>,
        strategy: Strategy,
        request: Request,
    ) -> Option<Invalidate> {
        let extent = self.extent(pin.cpu(), me, strategy, request.freed_tables);
        // A space without a tag has never run.
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
        // A handler may have left the space in between; then the CPU that was counted as active is
        // another one.
        if strategy == Strategy::Active && was_here && !here() { Extent::Broadcast } else { extent }
    }

    /// Other CPUs that have the space loaded, or are loading it.
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

    /// This CPU, which is elsewhere, flushes the space's tag and leaves the set, where the strategy
    /// uses the set.
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

    /// Now and then asks stale members of the set to flush the tag and leave it. This is optional:
    /// nothing depends on it, so errors are ignored.
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

/// Waits until `last`, and everything that this CPU has broadcast before it, is complete. The CPU
/// that issued `last` calls it.
pub(super) fn complete<P: Platform>(last: Invalidate) {
    regime::sync_everywhere::<P::Regime>(last);
}

/// Invalidates what the request names; returns the last invalidation issued.
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
