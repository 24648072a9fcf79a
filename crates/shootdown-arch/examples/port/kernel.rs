//! The kernel's half of the seam. The project's README shows what is below the line.
use crate::hardware::Regime;
use crate::yours;

// ---
use core::marker::PhantomData;

use shootdown::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown::gather::{Array, Gather};
use shootdown::*;

pub struct Kernel;
pub struct Pin(yours::NoPreemption, PhantomData<*const ()>);

static SYSTEM: System<Kernel> = System::new();
static CPUS: [PerCpu<Kernel>; 64] = [const { PerCpu::new() }; 64];

// SAFETY: without preemption, code stays on its CPU; the pointer keeps the guard in its thread.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        CpuId(self.0.cpu())
    }
}

// SAFETY: one static state per CPU; the interrupt ends in `kicked`, and other handlers call nothing
// here.
unsafe impl Platform for Kernel {
    type Pin = Pin;
    type Regime = Regime; // the hardware: see below
    type Mask = AtomicCpuSet<1>; // up to 64 CPUs
    type Slots = Slots<6>;
    type Tags = NoTags;

    fn pin() -> Pin {
        Pin(yours::NoPreemption::enter(), PhantomData)
    }
    fn system() -> &'static System<Self> {
        &SYSTEM
    }
    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        CPUS.get(cpu.index())
    }
    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        targets.iter().for_each(|cpu| yours::send_ipi(cpu.0));
        Ok(())
    }
    fn relax(_: &Pin) -> Result<(), Stalled> {
        core::hint::spin_loop(); // Err(Stalled) after your deadline
        Ok(())
    }
    fn may_wait() -> bool {
        yours::interrupts_enabled()
    }
}

/// The body of the handler of `send_ipi`'s interrupt.
pub fn kicked() {
    let pin = Kernel::pin();
    // SAFETY: the CPU has turned interrupts off on its way to the handler.
    let irqs = unsafe { IrqsOff::<Kernel>::assume(&pin) };
    if on_kick(irqs) == Served::Again {
        yours::send_ipi(pin.cpu().0); // only where kicks are non-maskable
    }
}

/// Unmaps up to 64 pages. No frame is freed before every CPU has forgotten it.
pub fn unmap(space: &AddressSpace<Kernel>, start: u64, pages: u64) -> Result<(), FlushError> {
    let mut gather = Gather::<Kernel, Array<yours::Frame, 64>>::new(space);
    for i in 0..pages.min(64) {
        let page = VaRange::new(start + i * 4096, 1, Stride::Page4K).expect("a page of the space");
        let frame = yours::clear_entry(page.start());
        gather.unmapped(page, frame).expect("room for 64");
    }
    // On an error the frames come back inside it, still pending: keep them and flush again.
    let frames = gather.finish(&Kernel::pin()).map_err(|(error, _still_pending)| error)?;
    frames.for_each(yours::free);
    Ok(())
}
