//! A port to no hardware: one CPU, tags, and instructions that do nothing.

use std::hint::black_box;
use std::marker::PhantomData;

use shootdown_core::cpu_set::{AtomicCpuSet, CpuSet};
use shootdown_core::facts::TagScope;
use shootdown_core::{
    CpuId, Facts, Invalidate, KickError, PerCpu, Pinned, Platform, Reach, Regime, Slots, Stalled,
    System, Tag,
};

/// The port.
pub struct Bare;

/// Proof of being on the one CPU.
pub struct Pin(PhantomData<*const ()>);

static SYSTEM: System<Bare> = System::new();
static CPU: PerCpu<Bare> = PerCpu::new();
static FACTS: Facts = Facts { tag_scope: TagScope::PerCpu, tag_bits: 12, ..Facts::X86_64_MINIMUM };

// SAFETY: there is one CPU; `super::CPU` lets one thread at a time play it.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        CpuId(0)
    }
}

// SAFETY: one CPU with one state; there is nobody to kick and nothing to wait for.
unsafe impl Platform for Bare {
    type Pin = Pin;
    type Regime = Self;
    type Mask = AtomicCpuSet<1>;
    type Slots = Slots<6>;
    type Tags = shootdown_core::NoTags;

    fn pin() -> Pin {
        Pin(PhantomData)
    }

    fn system() -> &'static System<Self> {
        &SYSTEM
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        (cpu.0 == 0).then_some(&CPU)
    }

    fn kick(_: &CpuSet<1>) -> Result<(), KickError> {
        Err(KickError::NotReady)
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        Err(Stalled)
    }

    fn may_wait() -> bool {
        true
    }
}

// SAFETY: no translation is ever cached, so that none is ever stale.
unsafe impl Regime for Bare {
    type Root = u64;

    fn facts() -> &'static Facts {
        &FACTS
    }

    unsafe fn load(root: u64, tag: Tag, keep: bool) {
        black_box((root, tag, keep));
    }

    fn load_kernel() {}

    fn publish() {}

    fn invalidate(what: Invalidate, reach: Reach) {
        black_box((what, reach));
    }

    fn sync(_: Reach) {}
}
