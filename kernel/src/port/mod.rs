//! The library's seam, implemented: the kernel's half. The hardware's half is `arch::Regime`, with
//! a switch that breaks it (`sabotage`).
//!
//! Threads do not move and are not preempted here, so a pin costs nothing. Everything else is as in
//! a kernel that is used for something: kicks are real interrupts, waits have a deadline, and
//! whether one may wait is asked of the interrupt flag.

mod deadline;
mod sabotage;

use core::marker::PhantomData;

use shootdown::cpu_set::{AtomicCpuSet, CpuSet};
use shootdown::{
    CpuId, IrqsOff, KickError, PerCpu, Pinned, Platform, Policy, Slots, Stalled, System,
};
use spin::Once;

use crate::MAX_CPUS;
use crate::arch::{self, Ipi};

pub use deadline::{Deadline, passed as is_late};
pub use sabotage::sabotage;

/// The hardware, unless it is sabotaged.
pub type Hardware = sabotage::Sabotaged<arch::Regime>;

/// This kernel.
pub struct Kernel;

/// The code that holds it stays on its CPU.
pub struct Pin(PhantomData<*const ()>);

// SAFETY: threads of this kernel never move.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        arch::cpu()
    }
}

static SYSTEM: System<Kernel> = System::new();
static CPUS: [PerCpu<Kernel>; MAX_CPUS as usize] = [const { PerCpu::new() }; MAX_CPUS as usize];
static POLICY: Once<&'static Policy> = Once::new();

/// On the boot CPU, before it goes online: what the library does.
pub fn choose(policy: &'static Policy) {
    POLICY.call_once(|| policy);
}

// SAFETY: 1. one static state per CPU. 2. `Ipi::Kick` ends in `kicked`; interrupt controllers
// merge, and lose nothing. The stores before it are out first (arch's `send_ipi`). 3. There is no
// user code. 4. All are statics, or constants. 5. The tables are not split. 6. and 7. Left at their
// defaults. 9. No non-maskable handler calls the library. 10. A CPU that is not online waits to be.
unsafe impl Platform for Kernel {
    type Pin = Pin;
    type Regime = Hardware;
    type Mask = AtomicCpuSet<1>;
    type Slots = Slots<6>;
    type Tags = arch::Tags;

    fn pin() -> Pin {
        Pin(PhantomData)
    }

    fn system() -> &'static System<Self> {
        &SYSTEM
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        CPUS.get(cpu.index())
    }

    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        arch::send_ipi(Ipi::Kick, targets)
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        arch::relax();
        if is_late() { Err(Stalled) } else { Ok(()) }
    }

    fn may_wait() -> bool {
        arch::interrupts::enabled()
    }

    fn policy() -> &'static Policy {
        POLICY.get().copied().unwrap_or(&Policy::SHOOTDOWN)
    }

    fn tags() -> Option<&'static arch::Tags> {
        arch::tags()
    }

    fn ticks() -> u64 {
        arch::ticks()
    }
}

/// The body of the kick's handler; interrupts are off.
pub fn kicked() {
    let pin = Kernel::pin();
    // SAFETY: handlers run with interrupts off.
    let irqs = unsafe { IrqsOff::<Kernel>::assume(&pin) };
    // There is no non-maskable handler that calls this, so no answer asks for another kick.
    let _ = shootdown::on_kick(irqs);
}

/// Runs `work` with interrupts off, as switches want it. It leaves them off.
pub fn quietly<T>(work: impl FnOnce(IrqsOff<'_, Kernel>) -> T) -> T {
    let enabled = arch::interrupts::enabled();
    arch::interrupts::off();
    let pin = Kernel::pin();
    // SAFETY: they are off, and `work` does not turn them on.
    let result = work(unsafe { IrqsOff::assume(&pin) });
    if enabled {
        arch::interrupts::on();
    }
    result
}

/// The executing CPU loads the kernel's own tables.
pub fn leave() {
    // SAFETY: interrupts are off, and no handler of this kernel comes here.
    quietly(|irqs| unsafe { shootdown::leave::<Kernel>(irqs.pin()) });
}

/// The executing CPU runs no code of its space until it switches.
pub fn turn_lazy() {
    // SAFETY: interrupts are off, no handler of this kernel comes here, and what the callers do
    // next is wait, then switch.
    quietly(|irqs| unsafe { shootdown::enter_lazy::<Kernel>(irqs.pin()) });
}

/// The executing CPU goes offline.
pub fn go_offline() {
    // SAFETY: interrupts are off, and no handler of this kernel comes here. Until it is online
    // again the CPU waits for work and looks at the pages that the cases watch: that what it
    // sees may be stale is what they are about.
    quietly(|irqs| unsafe { shootdown::offline::<Kernel>(irqs.pin()) });
}
