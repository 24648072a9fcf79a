//! Turning VMX on and off on a CPU, in order and in an emergency.
//!
//! # Invariants
//! - C1: [`turn_on`] leaves CR4 as it found it when it fails.
//! - C2: [`emergency_off`] uses nothing that the interrupted code may be in the middle of changing:
//!   it reads CR4 from the register, and the list of loaded VMCSs is whole at every instruction
//!   (`loaded.rs`, L1).

use core::fmt;

use super::capability::Capabilities;
use crate::failure::Failure;
use crate::host_bits::FixedBits;

#[cfg(target_arch = "x86_64")]
use {
    super::instruction::{vmclear, vmxoff, vmxon},
    super::loaded::LoadedList,
    super::operand::RegionAddress,
    crate::{msr, teardown},
    shootdown_arch::x86_64::read_cr4,
};

/// CR4.VMXE.
const VMXE: u64 = 1 << 13;

/// IA32_FEATURE_CONTROL: nothing in it can be changed any more until the next reset.
const LOCKED: u64 = 1 << 0;
/// IA32_FEATURE_CONTROL: VMXON is permitted outside of SMX operation.
const OUTSIDE_SMX: u64 = 1 << 2;

/// Why VMX can't be turned on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TurnOnError {
    /// The CPU has no VMX (CPUID.1:ECX\[5\]).
    NoVmx,
    /// Firmware has locked IA32_FEATURE_CONTROL with VMX off.
    DisabledByFirmware,
    /// Firmware has left IA32_FEATURE_CONTROL unlocked, which VMXON refuses.
    Unlocked,
    /// CR4.VMXE is set: other code has turned VMX on already.
    OnAlready,
    /// CR0 has bits that VMX operation forbids, or lacks some that it needs: these.
    Cr0(u64),
    /// CR4 has bits that VMX operation forbids, or lacks some that it needs: these.
    Cr4(u64),
    /// VMXON failed: the region does not hold the CPU's revision, or the CPU is not in the state
    /// that it reports.
    Vmxon(Failure),
}

impl fmt::Display for TurnOnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVmx => f.write_str("this CPU has no VMX; look for SVM"),
            Self::DisabledByFirmware => {
                f.write_str("firmware has turned VMX off; turn it on in its setup")
            }
            Self::Unlocked => {
                f.write_str("IA32_FEATURE_CONTROL is not locked; permit VMX in it (permit_vmx)")
            }
            Self::OnAlready => {
                f.write_str("CR4.VMXE is set: VMX is in use on this CPU; turn it off there first")
            }
            Self::Cr0(bits) => write!(f, "bits {bits:#x} of CR0 are not as VMX operation needs"),
            Self::Cr4(bits) => write!(f, "bits {bits:#x} of CR4 are not as VMX operation needs"),
            Self::Vmxon(failure) => write!(f, "VMXON: {failure}"),
        }
    }
}

impl core::error::Error for TurnOnError {}

/// The bits that VMX operation does not accept.
const fn wrong(fixed: FixedBits, value: u64) -> u64 {
    fixed.missing(value) | fixed.unsupported(value)
}

/// What [`turn_on`] looks at before it executes VMXON.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preconditions {
    /// CPUID.1:ECX.
    pub cpuid_1_ecx: u32,
    /// IA32_FEATURE_CONTROL.
    pub feature_control: u64,
    /// CR0.
    pub cr0: u64,
    /// CR4.
    pub cr4: u64,
}

impl Preconditions {
    /// Is there VMX at all?
    #[must_use]
    pub const fn has_vmx(&self) -> bool {
        self.cpuid_1_ecx & 1 << 5 != 0
    }

    /// Would VMXON be permitted, once CR4.VMXE is set?
    ///
    /// # Errors
    /// The first obstacle.
    pub const fn check(&self, capabilities: &Capabilities) -> Result<(), TurnOnError> {
        if !self.has_vmx() {
            return Err(TurnOnError::NoVmx);
        }
        if self.feature_control & LOCKED == 0 {
            return Err(TurnOnError::Unlocked);
        }
        if self.feature_control & OUTSIDE_SMX == 0 {
            return Err(TurnOnError::DisabledByFirmware);
        }
        if self.cr4 & VMXE != 0 {
            return Err(TurnOnError::OnAlready);
        }
        let cr0 = wrong(capabilities.cr0, self.cr0);
        if cr0 != 0 {
            return Err(TurnOnError::Cr0(cr0));
        }
        let cr4 = wrong(capabilities.cr4, self.cr4 | VMXE);
        if cr4 != 0 {
            return Err(TurnOnError::Cr4(cr4));
        }
        Ok(())
    }
}

/// Permits VMX in IA32_FEATURE_CONTROL and locks it, where firmware has not: once for each CPU
/// after a reset.
///
/// # Safety
/// The CPU is at privilege level 0 and has VMX.
#[cfg(target_arch = "x86_64")]
pub unsafe fn permit_vmx() {
    // SAFETY: every CPU with VMX has the register; it is written only while it is not locked.
    unsafe {
        let now = msr::read(msr::FEATURE_CONTROL);
        if now & LOCKED == 0 {
            msr::write(msr::FEATURE_CONTROL, now | OUTSIDE_SMX | LOCKED);
        }
    }
}

/// Enters VMX root operation on this CPU.
///
/// `set_vmxe` changes CR4.VMXE of this CPU, and the kernel's copy of CR4 if it keeps one
/// ([`Cr4Copy`](crate::host_bits::Cr4Copy)).
///
/// # Errors
/// [`TurnOnError`]; CR4 is as it was.
///
/// # Safety
/// The CPU is at privilege level 0, interrupts are off, and the kernel's handlers call
/// [`fixup`](crate::extable::fixup). The page at `region` holds the CPU's
/// [revision](Capabilities::revision) in its first four bytes and is this CPU's alone until
/// [`turn_off`].
#[cfg(target_arch = "x86_64")]
pub unsafe fn turn_on(
    region: RegionAddress,
    capabilities: &Capabilities,
    mut set_vmxe: impl FnMut(bool),
) -> Result<(), TurnOnError> {
    #[allow(unused_unsafe, reason = "the intrinsic is safe from Rust 1.94 on")]
    // SAFETY: every x86-64 CPU has CPUID.
    let cpuid_1_ecx = unsafe { core::arch::x86_64::__cpuid(1) }.ecx;
    let mut now = Preconditions { cpuid_1_ecx, feature_control: 0, cr0: 0, cr4: 0 };
    if !now.has_vmx() {
        return Err(TurnOnError::NoVmx);
    }
    // SAFETY: a CPU with VMX has the register; reading it and CR0 and CR4 has no effect.
    unsafe {
        now.feature_control = msr::read(msr::FEATURE_CONTROL);
        now.cr0 = msr::cr0();
        now.cr4 = read_cr4().bits();
    }
    now.check(capabilities)?;
    set_vmxe(true);
    // SAFETY: this function's contract. An emergency that came before CR4.VMXE was set has found
    // nothing to do.
    let done = unsafe {
        vmxon(region).and_then(|()| {
            if !teardown::has_begun() {
                return Ok(());
            }
            let _ = vmxoff();
            Err(Failure::Gone)
        })
    };
    done.map_err(|failure| {
        set_vmxe(false); // C1
        TurnOnError::Vmxon(failure)
    })
}

/// Why VMX stays on.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TurnOffError {
    /// A VMCS is still loaded on this CPU: [clear](super::Vmcs::clear) each first.
    StillLoaded,
    /// VMXOFF failed.
    Vmxoff(Failure),
}

#[cfg(target_arch = "x86_64")]
impl fmt::Display for TurnOffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StillLoaded => f.write_str("a VMCS is loaded on this CPU; clear each first"),
            Self::Vmxoff(failure) => write!(f, "VMXOFF: {failure}"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl core::error::Error for TurnOffError {}

/// Leaves VMX operation on this CPU.
///
/// # Errors
/// [`TurnOffError`]; CR4.VMXE is as it was, unless an emergency has cleared it ([`Failure::Gone`]).
///
/// # Safety
/// As [`turn_on`]; `loaded` is this CPU's list.
#[cfg(target_arch = "x86_64")]
pub unsafe fn turn_off(
    loaded: &LoadedList,
    set_vmxe: impl FnOnce(bool),
) -> Result<(), TurnOffError> {
    if !loaded.is_empty() {
        return Err(TurnOffError::StillLoaded);
    }
    // SAFETY: this function's contract; no VMCS is active.
    unsafe { vmxoff() }.map_err(TurnOffError::Vmxoff)?;
    set_vmxe(false);
    Ok(())
}

/// Takes VMX away from this CPU, in any context (an NMI's included), whatever the CPU was doing:
/// before a reboot, a crash dump or another kernel. Each CPU calls it for itself. Later
/// instructions of the hypervisor's code that it interrupted fail as [`Failure::Gone`].
///
/// # Safety
/// 1. The CPU is at privilege level 0, and the kernel's handlers call
///    [`fixup`](crate::extable::fixup). `loaded` is this CPU's list. Outside of an NMI interrupts
///    are off.
/// 2. Instructions fault here on purpose, and the IRET of their handler ends the blocking of NMIs:
///    in an NMI the caller ensures that a second NMI on this CPU finds a stack of its own, or that
///    none comes.
/// 3. Guests have NMI exiting, where the call comes by NMI.
/// 4. After the call no guest is entered on this CPU until the steps of [`teardown::cancel`] are
///    done.
#[cfg(target_arch = "x86_64")]
pub unsafe fn emergency_off(loaded: &LoadedList) {
    // First, so that a failure from here on, on this CPU and in the code that was interrupted, is
    // expected.
    teardown::begin();
    // SAFETY: privilege level 0. The register itself (C2): a copy may be in the middle of a change.
    let cr4 = unsafe { read_cr4() }.bits();
    if cr4 & VMXE == 0 {
        return;
    }
    // SAFETY: the list is this CPU's; in an NMI, and otherwise with interrupts off, no code changes
    // it meanwhile.
    for region in unsafe { loaded.each() } {
        // SAFETY: this CPU's VMCSs. A failure means that VMX operation has ended, or had not begun.
        let _ = unsafe { vmclear(region) };
    }
    // SAFETY: no VMCS is active. This function can't know whether VMX operation was on: a fault
    // here is as good as success.
    let _ = unsafe { vmxoff() };
    // SAFETY: outside of VMX operation the bit may be cleared, and nothing relies on it. A CPU that
    // is still in VMX operation (SMM can forbid VMXOFF) refuses by #GP, and nothing more can be
    // done.
    unsafe {
        core::arch::asm!(
            crate::may_fault!("mov cr4, {0}"),
            in(reg) cr4 & !VMXE,
            ud = label {}, gp = label {}, ss = label {}, pf = label {},
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Bochs's Haswell has them.
    fn capabilities() -> Capabilities {
        Capabilities::gather(|number| match number {
            0x486 => 0x8000_0021,
            0x487 => 0xffff_ffff,
            0x488 => 0x2000,
            0x489 => 0x17_27ff,
            _ => 0,
        })
    }

    const READY: Preconditions =
        Preconditions { cpuid_1_ecx: 1 << 5, feature_control: 5, cr0: 0x8001_0033, cr4: 0x6a0 };

    #[test]
    fn each_obstacle_has_its_error() {
        let check = |now: Preconditions| now.check(&capabilities());
        assert_eq!(check(READY), Ok(()));
        assert_eq!(check(Preconditions { cpuid_1_ecx: 0, ..READY }), Err(TurnOnError::NoVmx));
        let unlocked = Preconditions { feature_control: 4, ..READY };
        assert_eq!(check(unlocked), Err(TurnOnError::Unlocked));
        // Bit 1 permits VMX inside of SMX alone.
        let disabled = Preconditions { feature_control: 3, ..READY };
        assert_eq!(check(disabled), Err(TurnOnError::DisabledByFirmware));
        let on = Preconditions { cr4: 0x26a0, ..READY };
        assert_eq!(check(on), Err(TurnOnError::OnAlready));
        let no_ne = Preconditions { cr0: 0x8001_0013, ..READY };
        assert_eq!(check(no_ne), Err(TurnOnError::Cr0(0x20)));
        let unknown = Preconditions { cr4: 0x80_06a0, ..READY };
        assert_eq!(check(unknown), Err(TurnOnError::Cr4(0x80_0000)));
    }
}
