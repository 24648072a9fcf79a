//! What a kernel for x86-64 links of the core: a flush of pages, a switch, and the handler of the
//! interrupt, for up to 256 CPUs, with the facts of hardware found at boot. `cargo xtask size`
//! builds it and measures its text, and the state of a CPU.
//!
//! Everything that is the port's own (registers, the interrupt controller, preemption) is foreign
//! here, so that what is measured is the core.

#![no_std]

use core::marker::PhantomData;

use shootdown::cpu_set::{AtomicCpuSet, CpuSet};
#[cfg(feature = "invlpgb")]
use shootdown::tags::broadcast::SharedTags;
use shootdown::{
    AddressSpace, CpuId, Facts, FlushError, Invalidate, IrqsOff, KickError, NoTags, PerCpu, Pinned,
    Platform, Reach, Regime, Request, Served, Slots, Stalled, Stride, Switched, System, Tag,
    VaRange, enter_lazy, on_kick, switch_to,
};

const CPUS: usize = 256;

#[unsafe(no_mangle)]
static PROBE_SYSTEM: System<Kernel> = System::new();
#[unsafe(no_mangle)]
static PROBE_CPUS: [PerCpu<Kernel>; CPUS] = [const { PerCpu::new() }; CPUS];

// The port, which is linked elsewhere.
#[allow(improper_ctypes)] // nothing is ever linked
unsafe extern "C" {
    /// Found at boot, and not changed since.
    safe static PORT_FACTS: Facts;
    safe fn port_cpu() -> u32;
    safe fn port_kick(targets: &CpuSet<4>) -> bool;
    safe fn port_relax() -> bool;
    safe fn port_may_wait() -> bool;
    safe fn port_load(root: u64, tag: u16, keep: bool);
    safe fn port_load_kernel();
    safe fn port_invalidate(what: &Invalidate, everywhere: bool);
    safe fn port_sync();
    safe fn port_panic() -> !;
    #[cfg(feature = "invlpgb")]
    safe fn port_shared_tags() -> Option<&'static SharedTags>;
}

struct Kernel;
struct Pin(PhantomData<*mut ()>);

// SAFETY: nothing runs.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        CpuId(port_cpu())
    }
}

// SAFETY: nothing runs.
unsafe impl Platform for Kernel {
    type Pin = Pin;
    type Regime = Hardware;
    type Mask = AtomicCpuSet<4>;
    type Slots = Slots<6>;
    type Tags = NoTags;

    fn pin() -> Pin {
        Pin(PhantomData)
    }

    fn system() -> &'static System<Self> {
        &PROBE_SYSTEM
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        PROBE_CPUS.get(cpu.index())
    }

    fn kick(targets: &CpuSet<4>) -> Result<(), KickError> {
        if port_kick(targets) { Ok(()) } else { Err(KickError::NotReady) }
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        if port_relax() { Ok(()) } else { Err(Stalled) }
    }

    fn may_wait() -> bool {
        port_may_wait()
    }

    #[cfg(feature = "invlpgb")]
    fn shared_tags() -> Option<&'static SharedTags> {
        port_shared_tags()
    }
}

struct Hardware;

// SAFETY: nothing runs.
unsafe impl Regime for Hardware {
    type Root = u64;

    fn facts() -> &'static Facts {
        &PORT_FACTS
    }

    unsafe fn load(root: u64, tag: Tag, keep: bool) {
        port_load(root, tag.0, keep);
    }

    fn load_kernel() {
        port_load_kernel();
    }

    fn publish() {}

    fn invalidate(what: Invalidate, reach: Reach) {
        port_invalidate(&what, reach == Reach::Broadcast);
    }

    fn sync(_: Reach) {
        port_sync();
    }
}

/// A flush of some pages.
#[unsafe(no_mangle)]
fn probe_flush(
    space: &AddressSpace<Kernel>,
    from: u64,
    pages: u64,
    tables: bool,
) -> Result<(), FlushError> {
    let Ok(range) = VaRange::new(from, pages, Stride::Page4K) else { port_panic() };
    let request = Request { freed_tables: tables, ..Request::pages(range) };
    space.flush(&Kernel::pin(), request).map(drop)
}

/// A switch, with interrupts off.
#[unsafe(no_mangle)]
fn probe_switch(next: Option<&'static AddressSpace<Kernel>>) -> Option<Switched> {
    let pin = Kernel::pin();
    match next {
        // SAFETY: nothing runs.
        Some(next) => Some(unsafe { switch_to(&pin, next) }),
        None => {
            // SAFETY: nothing runs.
            unsafe { enter_lazy::<Kernel>(&pin) };
            None
        }
    }
}

/// The interrupt.
#[unsafe(no_mangle)]
fn probe_interrupt() -> Served {
    let pin = Kernel::pin();
    // SAFETY: nothing runs.
    on_kick(unsafe { IrqsOff::<Kernel>::assume(&pin) })
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    port_panic()
}
