//! Interrupts between CPUs: SGIs of a GICv3.
//!
//! Each CPU has a redistributor, which `virt` numbers as the device tree numbers CPUs; an SGI is
//! one write to ICC_SGI1R_EL1 for each CPU.
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | G1 stores before an SGI | DSB ISHST | G2 | a write to a system register is not ordered after stores to memory (GIC specification, Arm IHI 0069, 12.1.6) |
//! | G2 loads of the interrupt's handler | ISB after the acknowledgement | G1 | nor are loads after the read of one: several interrupts may be acknowledged after one exception, and what was loaded early is older than the last of them |

use core::arch::asm;
use core::ptr::NonNull;

use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicV3, Group, SgiTarget, SgiTargetGroup};
use arm_gic::{IntId, InterruptGroup, UniqueMmioPointer};
use spin::Mutex;

use super::PHYSICAL_BASE;
use crate::arch::Ipi;

/// Where `virt` has the distributor and the redistributors.
const DISTRIBUTOR: u64 = 0x0800_0000;
const REDISTRIBUTORS: u64 = 0x080a_0000;

const KICK: IntId = IntId::sgi(1);
const WAKE: IntId = IntId::sgi(2);
/// The virtual timer: interrupt 27 on every machine (Arm's Base System Architecture).
const TIMER: IntId = IntId::ppi(11);

struct Gic(GicV3<'static>);
// SAFETY: registers of the machine, which any CPU may access, one at a time by the lock around it.
unsafe impl Send for Gic {}

/// Taken when CPUs come up only, interrupts off; no handler needs it.
static GIC: Mutex<Option<Gic>> = Mutex::new(None);

/// Sets up the interrupt controller for so many CPUs. On the first CPU, once.
///
/// # Errors
/// There is none, or one without redistributors.
pub(super) fn set_up(cpus: usize) -> Result<(), &'static str> {
    let at = |physical: u64| (PHYSICAL_BASE + physical) as usize;
    let distributor = NonNull::new(at(DISTRIBUTOR) as *mut Gicd).expect("not 0");
    let redistributors = NonNull::new(at(REDISTRIBUTORS) as *mut GicrSgi).expect("not 0");
    // SAFETY: the boot tables map both as device memory, and nothing else of this image touches
    // them.
    let gic = unsafe { GicV3::new(UniqueMmioPointer::new(distributor), redistributors, cpus) };
    let mut gic = gic.map_err(|_| "no GICv3: run QEMU with -M virt,gic-version=3")?;
    gic.setup(0);
    *GIC.lock() = Some(Gic(gic));
    Ok(())
}

/// Makes this CPU take interrupts, once its interrupts are on.
pub(super) fn join(cpu: usize) {
    let mut gic = GIC.lock();
    let Gic(gic) = gic.as_mut().expect("set up by the first CPU");
    gic.init_cpu(cpu);
    let known = "a redistributor for each CPU";
    for id in [KICK, WAKE, TIMER] {
        gic.set_group(id, Some(cpu), Group::Group1NS).expect(known);
        gic.set_interrupt_priority(id, Some(cpu), 0x80).expect(known);
        gic.enable_interrupt(id, Some(cpu), true).expect(known);
    }
    GicCpuInterface::set_priority_mask(0xff);
    GicCpuInterface::enable_group1(true);
}

/// Raises an SGI on one CPU. Never waits. An affinity that no SGI can name is left out;
/// [`super::smp`] starts none such.
pub(super) fn raise(ipi: Ipi, affinity: u64) {
    let byte = |n: u32| (affinity >> (8 * n)) as u8;
    let target = SgiTarget::List {
        affinity3: byte(4),
        affinity2: byte(2),
        affinity1: byte(1),
        target_list: 1u16.checked_shl(byte(0).into()).unwrap_or(0),
    };
    let id = match ipi {
        Ipi::Kick => KICK,
        Ipi::Wake => WAKE,
    };
    // SAFETY: a barrier. ORDERING: [G1].
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
    GicCpuInterface::send_sgi(id, target, SgiTargetGroup::CurrentGroup1).expect("an SGI's number");
    // SAFETY: a barrier: the interrupt is under way when this returns.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

/// An interrupt was taken: everything that is pending is acknowledged and handled.
pub(super) fn interrupted() {
    while let Some(id) = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1) {
        // SAFETY: a barrier. ORDERING: [G2].
        unsafe { asm!("isb", options(nostack, preserves_flags)) };
        if id == TIMER {
            super::timer::silence();
        }
        // Before the work, so that a kick which arrives meanwhile is a new one.
        GicCpuInterface::end_interrupt(id, InterruptGroup::Group1);
        if id == KICK {
            crate::port::kicked();
        }
    }
}
