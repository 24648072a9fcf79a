//! The host's bits and a VMCS: updates the fields before an entry, and handles exit 28 completely.
//!
//! [`VmxControl`] decides what must be written; this file reads and writes fields.

use core::pin::Pin;

use super::field;
use super::instruction::{vmread, vmread_raw, vmwrite, vmwrite_raw};
use super::loaded::Vmcs;
use super::registers::GuestRegisters;
use crate::failure::Failure;
use crate::host_bits::{
    Accessed, CrAccess, Gpr, HostControl, InterruptsOff, Outcome, VmxControl, VmxGuest, VmxUpdate,
};

/// VM-entry control: the guest is in IA-32e mode.
const IA32E_MODE: u32 = 1 << 9;
/// EFER.LMA.
const LMA: u64 = 1 << 10;

/// Writes fields of the current VMCS.
///
/// # Safety
/// As [`vmwrite`].
unsafe fn store(update: VmxUpdate<'_>) -> Result<(), Failure> {
    for (field, write) in update.fields() {
        let encoding = u64::from(field.encoding());
        // SAFETY: the caller's promise.
        unsafe {
            let value = match write.known() {
                Some(value) => value,
                None => write.over(vmread_raw(encoding)?),
            };
            vmwrite_raw(encoding, value)?;
        }
    }
    update.written();
    Ok(())
}

impl Vmcs {
    /// Updates the fields for this CPU's CR3 and CR4. Call it before each entry. When the fields
    /// are current it costs one comparison.
    ///
    /// # Errors
    /// A field could not be written; the next call writes all of them.
    ///
    /// # Safety
    /// It is current on this CPU, `host` is this CPU's, `control` is this VMCS's, and the contract
    /// of the [instructions](super::vmwrite) holds.
    #[inline]
    pub unsafe fn refresh(
        self: Pin<&Self>,
        control: &mut VmxControl,
        host: HostControl,
        off: &InterruptsOff,
    ) -> Result<(), Failure> {
        match control.before_entry(host, off) {
            None => Ok(()),
            // SAFETY: the caller's promise.
            Some(update) => unsafe { store(update) },
        }
    }

    /// Handles exit 28, an access to a control register: registers, fields, EFER and RIP are as
    /// after the instruction.
    ///
    /// # Errors
    /// A field could not be read or written: the guest's state does not allow it to go on.
    ///
    /// # Safety
    /// As [`refresh`](Self::refresh); the guest was left by exit 28, and `registers` are its.
    pub unsafe fn control_register(
        self: Pin<&Self>,
        control: &mut VmxControl,
        registers: &mut GuestRegisters,
    ) -> Result<Accessed, Failure> {
        // SAFETY: the caller's promise.
        let qualification = unsafe { vmread(field::EXIT_QUALIFICATION)? };
        let Ok(access) = CrAccess::from_qualification(qualification) else {
            return Ok(Accessed::Unknown);
        };
        let source = match access.source() {
            // SAFETY: the caller's promise.
            Some(gpr) => unsafe { register(registers, gpr)? },
            None => 0,
        };
        // SAFETY: the caller's promise.
        let now = unsafe {
            VmxGuest {
                guest_cr0: vmread(field::GUEST_CR0)?,
                guest_cr4: vmread(field::GUEST_CR4)?,
                cr3: vmread(field::GUEST_CR3)?,
                efer: vmread(field::GUEST_EFER)?,
                code64: vmread(field::GUEST_CS_ACCESS)? >> 13 & 1 != 0,
            }
        };
        let effects = match control.handle(access, source, &now) {
            Outcome::Read { to, value } => {
                // SAFETY: the caller's promise.
                unsafe { set_register(registers, to, value)? };
                None
            }
            Outcome::Write(update, effects) => {
                // SAFETY: the caller's promise.
                unsafe { store(update)? };
                if let Some(efer) = effects.efer {
                    // SAFETY: the caller's promise.
                    let others = unsafe { vmread(field::ENTRY_CONTROLS)? } & !IA32E_MODE;
                    let mode = if efer & LMA != 0 { IA32E_MODE } else { 0 };
                    // SAFETY: the caller's promise.
                    unsafe {
                        vmwrite(field::ENTRY_CONTROLS, others | mode)?;
                        vmwrite(field::GUEST_EFER, efer)?;
                    }
                }
                Some(effects)
            }
            Outcome::Fault(fault) => return Ok(Accessed::Fault(fault)),
            Outcome::NeedsUnrestricted => return Ok(Accessed::NeedsUnrestricted),
            Outcome::Other(access) => return Ok(Accessed::Other(access)),
        };
        // SAFETY: the caller's promise.
        unsafe { self.advance()? };
        Ok(Accessed::Done(effects))
    }

    /// Goes on after the instruction that exited: advances RIP, and ends the blocking by STI and
    /// MOV SS.
    ///
    /// # Errors
    /// A field could not be read or written.
    ///
    /// # Safety
    /// It is current on this CPU, the guest was left by an exit whose instruction length is valid
    /// (SDM vol. 3C, 28.2.5), and the instruction counts as executed.
    pub unsafe fn advance(self: Pin<&Self>) -> Result<(), Failure> {
        const STI_OR_MOV_SS: u32 = 0b11;
        // SAFETY: the caller's promise.
        unsafe {
            let length = u64::from(vmread(field::EXIT_INSTRUCTION_LENGTH)?);
            vmwrite(field::GUEST_RIP, vmread(field::GUEST_RIP)?.wrapping_add(length))?;
            let blocked = vmread(field::GUEST_INTERRUPTIBILITY)?;
            if blocked & STI_OR_MOV_SS != 0 {
                vmwrite(field::GUEST_INTERRUPTIBILITY, blocked & !STI_OR_MOV_SS)?;
            }
        }
        Ok(())
    }
}

/// A general register of the guest.
///
/// # Safety
/// As [`vmread`].
unsafe fn register(registers: &mut GuestRegisters, gpr: Gpr) -> Result<u64, Failure> {
    match registers.gpr(gpr) {
        Some(register) => Ok(*register),
        // SAFETY: the caller's promise.
        None => unsafe { vmread(field::GUEST_RSP) },
    }
}

/// # Safety
/// As [`vmwrite`].
unsafe fn set_register(
    registers: &mut GuestRegisters,
    gpr: Gpr,
    value: u64,
) -> Result<(), Failure> {
    match registers.gpr(gpr) {
        Some(register) => {
            *register = value;
            Ok(())
        }
        // SAFETY: the caller's promise.
        None => unsafe { vmwrite(field::GUEST_RSP, value) },
    }
}
