//! CPUs up and down, by PSCI (Arm DEN 0022).
//!
//! Who answers is told by an instruction: HVC where there is a hypervisor or an emulator that plays
//! one, SMC where there is firmware. QEMU's `virt` answers HVC, and with `virtualization=on` SMC,
//! because HVC is the guest's own then; whether the CPUs have EL2 decides.

use aarch64_cpu::registers::{ID_AA64PFR0_EL1, Readable};
use smccc::psci::{self, AffinityState, LowestAffinityLevel, error::Error};
use smccc::{Hvc, Smc};

unsafe extern "C" {
    /// Where PSCI is to enter a CPU: a word of `boot.s` with a physical address.
    static SECONDARY_ENTRY: u64;
}

fn by_smc() -> bool {
    ID_AA64PFR0_EL1.get() >> 8 & 0xf != 0 // field EL2
}

/// Starts the CPU of this affinity, as this number.
///
/// # Errors
/// What PSCI says: there is no such CPU, it runs already, and others.
pub(super) fn start(affinity: u64, number: usize) -> Result<(), Error> {
    // SAFETY: a constant of `boot.s`.
    let entry = unsafe { SECONDARY_ENTRY };
    let context = number as u64;
    if by_smc() {
        psci::cpu_on::<Smc>(affinity, entry, context)
    } else {
        psci::cpu_on::<Hvc>(affinity, entry, context)
    }
}

/// Turns this CPU off. Comes back only if PSCI refuses, with what it said.
pub(super) fn stop() -> Error {
    let refused = if by_smc() { psci::cpu_off::<Smc>() } else { psci::cpu_off::<Hvc>() };
    refused.err().unwrap_or(Error::InternalFailure)
}

/// Has this CPU stopped, in the eyes of PSCI?
pub(super) fn is_off(affinity: u64) -> bool {
    let all = LowestAffinityLevel::All;
    let state = if by_smc() {
        psci::affinity_info::<Smc>(affinity, all)
    } else {
        psci::affinity_info::<Hvc>(affinity, all)
    };
    state == Ok(AffinityState::Off)
}

/// Resets the machine.
pub(super) fn system_reset() -> ! {
    // It does not return, or there is nobody to reset it.
    let _ = if by_smc() { psci::system_reset::<Smc>() } else { psci::system_reset::<Hvc>() };
    system_off()
}

/// Turns the machine off.
pub(super) fn system_off() -> ! {
    // It does not return, or there is nobody to turn it off.
    let _ = if by_smc() { psci::system_off::<Smc>() } else { psci::system_off::<Hvc>() };
    loop {
        super::interrupts::off();
        super::interrupts::wait();
    }
}
