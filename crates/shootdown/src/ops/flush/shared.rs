//! Flushes of spaces that have a global tag, or get one, where other spaces have slots.
//!
//! [`tags::shared`](crate::tags::shared) has the protocol and the argument why it misses no CPU;
//! this file has the two steps that it adds to a flush. Before CPUs are notified: if the space has
//! moved to its tag, a broadcast does all of the work. After they have acknowledged: if the space
//! has a tag by now, broadcast too, and check whether the move is over; if it has none, it may be
//! given one.

use crate::base::cpu_set::Bits;
use crate::base::ids::{Generation, Tag};
use crate::ops::flush::{Request, broadcast};
use crate::ops::respond;
use crate::port::family;
use crate::port::platform::Platform;
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::{PerCpu, View};
use crate::state::space::AddressSpace;
use crate::tags::shared::Uses;

impl<P: Platform> AddressSpace<P> {
    /// If the space has moved: broadcasts the invalidation, and returns what must be
    /// [completed](broadcast::complete).
    pub(super) fn broadcast_if_moved(
        &self,
        me: &PerCpu<P>,
        request: Request,
    ) -> Option<Invalidate> {
        let tag = self.shared_tag().moved()?;
        Some(broadcast_for(me, tag, request))
    }

    /// If the space has a global tag: makes the hardware drop what changed under it, without
    /// waiting. Returns whether the space has one.
    pub(crate) fn issue_if_shared(&self, me: &PerCpu<P>, request: Request) -> bool {
        let Some(tag) = self.shared_tag().tag() else { return false };
        me.stats.invalidations_broadcast.inc();
        broadcast::invalidate(me, tag, request, Reach::Broadcast);
        true
    }

    /// All CPUs that were notified have acknowledged.
    #[inline(never)]
    pub(super) fn after_asking(
        &self,
        pin: &P::Pin,
        me: &PerCpu<P>,
        request: Request,
        generation: Generation,
    ) {
        if let Some(tag) = self.shared_tag().after_asking() {
            broadcast::complete::<P>(broadcast_for(me, tag, request));
            let id = self.id().get();
            let uses = |cpu| P::slot(cpu).map_or(Uses::Nothing, |state| state.uses(id));
            self.shared_tag().settle(|| self.cpus(), uses);
        } else {
            self.consider(pin, me, generation);
        }
    }

    /// Now and then checks whether the space is active on so many CPUs, and flushed by so few, that
    /// it should have a global tag. `generation` is that of the flush that has just ended; if the
    /// space's generation is later, others have begun flushes meanwhile.
    #[inline(never)]
    fn consider(&self, pin: &P::Pin, me: &PerCpu<P>, generation: Generation) {
        let threshold = P::policy().shared;
        // Handlers skip this: they could wait for the allocator's lock while they interrupt its
        // holder.
        let may_wait = respond::may_wait(me);
        if !threshold.is_due(generation.0) || !may_wait {
            return;
        }
        if !self.note_alone(self.generation() == generation, threshold.alone) {
            return;
        }
        let id = self.id().get();
        let active = |cpu| P::slot(cpu).is_some_and(|state| state.remote_view(id) == View::Active);
        if !threshold.is_exceeded(self.cpus().iter().map(active)) {
            return;
        }
        let Some(tags) = family::shared::<P>() else { return };
        let wait = || {
            let _ = P::relax(pin);
        };
        let reset = || {
            P::Regime::publish();
            regime::invalidate::<P::Regime>(Invalidate::Everything, Reach::Broadcast);
            regime::sync_everywhere::<P::Regime>(Invalidate::Everything);
        };
        // SAFETY: `reset` makes every CPU drop all entries and waits for that, on this CPU.
        let tag = unsafe { tags.assign(wait, reset) };
        if let Some(Err(tag)) = tag.map(|tag| self.shared_tag().assign(tag)) {
            // SAFETY: the tag was given out just now, and the space has another: no CPU has been
            // given it.
            unsafe { tags.release(tag) };
        }
    }
}

/// Broadcasts the invalidation of what the request names under the tag.
fn broadcast_for<P: Platform>(me: &PerCpu<P>, tag: Tag, request: Request) -> Invalidate {
    me.stats.invalidations_broadcast.inc();
    broadcast::invalidate(me, tag, request, Reach::Broadcast)
}
