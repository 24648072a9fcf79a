//! Switching under machine-wide tags: the tag comes from the allocator, not from the slot.
//!
//! If CPUs are interrupted for flushes, their slots still remember which spaces' entries a CPU has
//! and how old those are. A CPU that reaches a new generation of tags flushes everything. Its slots
//! stay correct, because the CPU has no entry older than they say. The CPU flushes before it loads
//! the space's root: otherwise an entry that it caches in between, under a tag that belonged to
//! another space before, would survive.

use core::marker::PhantomData;

use crate::base::ids::{CpuId, Tag};
use crate::port::platform::{Pinned, Platform};
use crate::port::regime::{self, Invalidate, Reach};
use crate::state::cpu::PerCpu;
use crate::state::space::AddressSpace;
use crate::tags::generations::{CpuTag, CpuTags};
use crate::tags::versioned::Versioned;

/// The CPUs of the platform.
pub(crate) struct Everyone<P>(PhantomData<P>);

impl<P> Everyone<P> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

// SAFETY: contract 1 of `Platform`.
unsafe impl<P: Platform> CpuTags for Everyone<P> {
    fn of(&self, cpu: CpuId) -> Option<&CpuTag> {
        P::slot(cpu).map(|state| &state.tag)
    }
}

/// Makes the space's tag this CPU's current tag; nothing on this CPU is cached under it that is not
/// the space's. Call it with interrupts off. It calls `fresh` as [`activate_fresh`] does.
///
/// [`activate_fresh`]: crate::tags::generations::Generations::activate_fresh
///
/// # Panics
/// When [`Platform::tags`] is `None`, which [`crate::online`] refuses.
pub(super) fn activate<P: Platform>(
    pin: &P::Pin,
    me: &PerCpu<P>,
    next: &AddressSpace<P>,
    fresh: impl FnOnce(),
) -> Tag {
    let tags = P::tags().expect("machine-wide tags have an allocator");
    let wait = || {
        let _ = P::relax(pin);
    };
    let everyone = Everyone::<P>::new();
    // SAFETY: interrupts are off (contract 1 of `switch_to`), and every switch names the same CPUs.
    // If a flush is required, it is done below, before the caller loads the space's root; then the
    // caller reports that (`CpuTag::loaded`).
    let done = unsafe { tags.activate(pin.cpu(), next.space_tag(), &everyone, wait, fresh) };
    if done.rolled_over {
        me.stats.rollovers.inc();
    }
    if done.flush {
        me.stats.rollover_flushes.inc();
        regime::invalidate::<P::Regime>(Invalidate::Everything, Reach::Local);
        regime::sync_here::<P::Regime>();
    }
    done.tag
}
