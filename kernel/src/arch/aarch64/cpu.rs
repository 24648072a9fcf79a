//! This CPU: its number, its clock, a turn of a waiting loop, why it took an exception.

use core::arch::asm;

use aarch64_cpu::registers::{
    CNTFRQ_EL0, CNTVCT_EL0, ELR_EL1, ESR_EL1, FAR_EL1, MPIDR_EL1, Readable, TPIDR_EL1,
};
use shootdown::CpuId;

/// The executing CPU: TPIDR_EL1 has the number that it was started with.
#[must_use]
pub fn cpu() -> CpuId {
    CpuId(TPIDR_EL1.get() as u32)
}

/// Affinity fields of MPIDR_EL1: what PSCI and the GIC call this CPU.
pub(super) fn affinity() -> u64 {
    MPIDR_EL1.get() & 0xff_00ff_ffff
}

/// One turn of a wait loop. `core::hint::spin_loop` is an ISB on this architecture, on which an
/// emulator that runs the CPUs in turn goes on with the same one; YIELD lets the next one run.
pub fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) };
}

/// The virtual counter.
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: ISB changes nothing; without it the counter may be read early.
    unsafe { asm!("isb", options(nomem, nostack, preserves_flags)) };
    CNTVCT_EL0.get()
}

/// Has this CPU performance counters, the one of cycles among them (ID_AA64DFR0_EL1.PMUVer)?
pub(super) fn has_pmu() -> bool {
    let features: u64;
    // SAFETY: reading an ID register changes nothing.
    unsafe {
        asm!("mrs {}, id_aa64dfr0_el1", out(reg) features, options(nomem, nostack, preserves_flags));
    }
    !matches!(features >> 8 & 0xf, 0 | 0xf)
}

/// Turns this CPU's counter of cycles on, where it has one; says whether [`count`] may be asked.
pub fn start_counting() -> bool {
    if !has_pmu() {
        return false;
    }
    // SAFETY: the counter is the kernel's: E of PMCR_EL0, C of PMCNTENSET_EL0, every exception
    // level counted.
    unsafe {
        asm!(
            "msr pmccfiltr_el0, xzr",
            "msr pmcntenset_el0, {cycles}",
            "mrs {old}, pmcr_el0",
            "orr {old}, {old}, #1",
            "msr pmcr_el0, {old}",
            "isb",
            cycles = in(reg) 1u64 << 31,
            old = out(reg) _,
            options(nostack),
        );
    }
    true
}

/// Cycles of this CPU; on an emulator that counts instructions, those. Call [`start_counting`]
/// before.
#[must_use]
pub fn count() -> u64 {
    let cycles: u64;
    // SAFETY: reading the counter changes nothing; ISB, so that it is not read early.
    unsafe {
        asm!("isb", "mrs {}, pmccntr_el0", out(reg) cycles, options(nomem, nostack, preserves_flags));
    }
    cycles
}

/// How fast [`ticks`] grow.
#[must_use]
pub fn ticks_per_ms() -> u64 {
    (CNTFRQ_EL0.get() / 1000).max(1)
}

/// ESR_EL1: why the last exception was taken.
pub(super) fn syndrome() -> u64 {
    ESR_EL1.get()
}

/// ELR_EL1: where the last exception came from.
pub(super) fn return_address() -> u64 {
    ELR_EL1.get()
}

/// FAR_EL1: the address of the last abort.
pub(super) fn fault_address() -> u64 {
    FAR_EL1.get()
}

/// Everything stored to memory before is seen by devices before they see what is stored to their
/// registers after.
pub fn barrier_for_devices() {
    // SAFETY: a barrier.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

/// Writes memory back from the caches, line by line, for devices that don't look into them.
pub fn write_back(at: *const u8, bytes: usize) {
    let ctr: u64;
    // SAFETY: reading CTR_EL0 changes nothing.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) ctr, options(nomem, nostack, preserves_flags)) };
    // The smallest line of the data caches: log2 of words.
    let line = 4usize << (ctr >> 16 & 0xf);
    let start = at.addr() / line * line;
    for line in (start..at.addr() + bytes).step_by(line) {
        // SAFETY: cleaning a line changes no data.
        unsafe { asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    barrier_for_devices();
}
