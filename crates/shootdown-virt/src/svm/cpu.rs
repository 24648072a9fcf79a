//! Turning SVM on and off on a CPU, in order and in an emergency.

use core::fmt;

#[cfg(target_arch = "x86_64")]
use {
    super::instruction::stgi,
    super::operand::VmcbAddress,
    crate::{msr, teardown},
};

/// EFER.SVME.
const SVME: u64 = 1 << 12;
/// VM_CR.SVMDIS: EFER.SVME can't be set.
const DISABLED: u64 = 1 << 4;

/// Why SVM can't be turned on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TurnOnError {
    /// The CPU has no SVM (CPUID 8000_0001, ECX bit 2).
    NoSvm,
    /// Firmware has turned it off (VM_CR.SVMDIS).
    DisabledByFirmware,
    /// EFER.SVME is set: other code has turned SVM on already.
    OnAlready,
    /// Virtualization is being taken away.
    Gone,
}

impl fmt::Display for TurnOnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSvm => "this CPU has no SVM; look for VMX",
            Self::DisabledByFirmware => "firmware has turned SVM off; turn it on in its setup",
            Self::OnAlready => {
                "EFER.SVME is set: SVM is in use on this CPU; turn it off there first"
            }
            Self::Gone => "virtualization is being taken away",
        })
    }
}

impl core::error::Error for TurnOnError {}

/// What a CPU's SVM can do (CPUID 8000_000A).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// How many ASIDs there are, 0 included.
    pub asids: u32,
    /// Nested paging.
    pub nested_paging: bool,
    /// VMRUN can remove the entries of one ASID.
    pub flush_by_asid: bool,
    /// The exit code of an access to CR0 to CR15 says which general register it is of.
    pub decode_assists: bool,
    /// The exit saves the address of the next instruction.
    pub next_rip: bool,
}

impl Capabilities {
    /// From EBX and EDX of the leaf.
    #[must_use]
    pub const fn decode(ebx: u32, edx: u32) -> Self {
        Self {
            asids: ebx,
            nested_paging: edx & 1 << 0 != 0,
            next_rip: edx & 1 << 3 != 0,
            flush_by_asid: edx & 1 << 6 != 0,
            decode_assists: edx & 1 << 7 != 0,
        }
    }

    /// Those of the executing CPU; `None` if it has no SVM.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub fn of_this_cpu() -> Option<Self> {
        let leaves = shootdown_arch::x86_64::Leaves::of_this_cpu();
        let has = leaves.extended.ecx & 1 << 2 != 0;
        has.then(|| Self::decode(leaves.svm.ebx, leaves.svm.edx))
    }
}

const fn check(vm_cr: u64, efer: u64) -> Result<(), TurnOnError> {
    if efer & SVME != 0 {
        return Err(TurnOnError::OnAlready);
    }
    if vm_cr & DISABLED != 0 {
        return Err(TurnOnError::DisabledByFirmware);
    }
    Ok(())
}

/// Turns SVM on on this CPU.
///
/// # Errors
/// [`TurnOnError`]; nothing is changed.
///
/// # Safety
/// The CPU is at privilege level 0 and interrupts are off. The page at `host_save` is this CPU's
/// alone until [`turn_off`]: VMRUN saves the host's state in it.
#[cfg(target_arch = "x86_64")]
pub unsafe fn turn_on(host_save: VmcbAddress) -> Result<Capabilities, TurnOnError> {
    let capabilities = Capabilities::of_this_cpu().ok_or(TurnOnError::NoSvm)?;
    // SAFETY: a CPU with SVM has the registers. VM_HSAVE_PA may be written once SVME is set, and
    // has to be before the first VMRUN; the address is a page within the CPU's width.
    unsafe {
        let efer = msr::read(msr::EFER);
        check(msr::read(msr::VM_CR), efer)?;
        msr::write(msr::EFER, efer | SVME);
        msr::write(msr::VM_HSAVE_PA, host_save.get());
    }
    if teardown::has_begun() {
        // An emergency that came before the write has found nothing to do.
        // SAFETY: SVM was turned on above.
        unsafe { turn_off() };
        return Err(TurnOnError::Gone);
    }
    Ok(capabilities)
}

/// Turns SVM off on this CPU.
///
/// # Safety
/// As [`turn_on`]; the global interrupt flag is set.
#[cfg(target_arch = "x86_64")]
pub unsafe fn turn_off() {
    // SAFETY: the CPU has SVM, since it was turned on. VM_HSAVE_PA is reset while the register is
    // still there.
    unsafe {
        msr::write(msr::VM_HSAVE_PA, 0);
        msr::write(msr::EFER, msr::read(msr::EFER) & !SVME);
    }
}

/// Takes SVM away from this CPU, in any context (an NMI's included), whatever the CPU was doing:
/// before a reboot, a crash dump or another kernel. Each CPU calls it for itself. Later
/// instructions of the hypervisor's code that it interrupted fail as
/// [`Failure::Gone`](crate::Failure::Gone).
///
/// The global interrupt flag is set first, because INIT is held while it is clear.
///
/// # Safety
/// 1. The CPU is at privilege level 0, and the kernel's handlers call
///    [`fixup`](crate::extable::fixup). Outside of an NMI interrupts are off.
/// 2. NMIs that were held while the global interrupt flag was clear come as soon as it is set: in
///    an NMI the caller ensures that a second one on this CPU finds a stack of its own.
/// 3. Guests have the intercept of NMIs, where the call comes by NMI.
/// 4. After the call no guest is entered on this CPU until the steps of [`teardown::cancel`] are
///    done.
#[cfg(target_arch = "x86_64")]
pub unsafe fn emergency_off() {
    // First, so that a failure from here on, on this CPU and in the code that was interrupted, is
    // expected.
    teardown::begin();
    // SAFETY: every x86-64 CPU has EFER.
    let efer = unsafe { msr::read(msr::EFER) };
    if efer & SVME == 0 {
        return;
    }
    // SAFETY: this function's contract. SVME is set, so it does not fault.
    let _ = unsafe { stgi() };
    // SAFETY: nothing relies on SVM on this CPU any more.
    unsafe { msr::write(msr::EFER, efer & !SVME) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_has_its_error() {
        assert_eq!(check(0, 0xd00), Ok(()));
        assert_eq!(check(DISABLED, 0xd00), Err(TurnOnError::DisabledByFirmware));
        assert_eq!(check(DISABLED, SVME), Err(TurnOnError::OnAlready));
    }

    #[test]
    fn capabilities_are_the_leafs_bits() {
        // QEMU 7.2: nested paging alone of these. Bochs 2.7, Ryzen: the others too, but for decode
        // assists.
        let qemu = Capabilities::decode(16, 1);
        assert!(qemu.asids == 16 && qemu.nested_paging && !qemu.next_rip && !qemu.flush_by_asid);
        let bochs = Capabilities::decode(32768, 0b100_1001);
        assert!(bochs.next_rip && bochs.flush_by_asid && !bochs.decode_assists);
    }
}
