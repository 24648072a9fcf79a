//! The VMX instructions but for the two that enter a guest (`entry.rs`).
//!
//! Each function executes one instruction and returns its result: `Ok`, or the [`Failure`]. The
//! successful path contains the instruction and one conditional jump that is not taken (`jna`: CF
//! or ZF); everything else is out of line. SDM vol. 3C, chapter 31, describes each instruction.
//!
//! The functions that take typed operands can't be made to fail by an operand. Those whose name
//! ends in `_raw` or `_at` take what the instruction takes, and are for tests, for nested
//! virtualization, and for fields that [`field`](super::field) does not list.
//!
//! # Safety of all of them
//! 1. The CPU is at privilege level 0.
//! 2. The kernel's handlers of #UD, #GP, #SS and #PF call [`fixup`](crate::extable::fixup).
//! 3. The caller stays on this CPU between instructions that belong together: the current VMCS is
//!    the CPU's.

use core::arch::asm;
use core::mem::MaybeUninit;

use super::InstructionError;
use super::field::{self, Field, ReadWrite, Value, Width};
use super::operand::{Descriptor, Invept, Invvpid, RegionAddress};
use crate::failure::{Failure, Instruction};
use crate::may_fault;
use crate::slow::{self, NO_MEMORY, execute, memory};

/// VMXON: enters VMX root operation.
///
/// A failure is returned and never reported: [`turn_on`](super::turn_on) checks first what can be
/// checked.
///
/// # Errors
/// [`Failure::Invalid`] for a region that the CPU refuses; [`InstructionError::VMXON_AGAIN`] (or
/// `Invalid` without a current VMCS) in VMX operation; #UD with CR4.VMXE clear; #GP where CR0, CR4
/// or firmware forbid it.
///
/// # Safety
/// As the module says; the region is this CPU's alone until VMXOFF, and holds the CPU's revision.
#[inline(always)]
pub unsafe fn vmxon(region: RegionAddress) -> Result<(), Failure> {
    let operand = region.get();
    // SAFETY: this function's contract.
    unsafe { vmxon_at(&raw const operand) }
}

/// VMXON of the region whose physical address is at `operand`.
///
/// # Errors
/// As [`vmxon`], and the faults of the memory operand.
///
/// # Safety
/// As [`vmxon`].
#[inline(always)]
pub unsafe fn vmxon_at(operand: *const u64) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe {
        execute!(or_fail "vmxon [{0}]", Vmxon, operand as u64, memory(operand), in(reg) operand,)
    };
    Ok(())
}

/// VMXOFF: leaves VMX operation.
///
/// # Errors
/// #UD outside of VMX operation; number 23 under the dual-monitor treatment of SMIs.
///
/// # Safety
/// As the module says; no VMCS is active on this CPU ([`vmclear`] each first), or its memory is not
/// used again.
#[inline(always)]
pub unsafe fn vmxoff() -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { execute!(or_fail "vmxoff", Vmxoff, 0, NO_MEMORY,) };
    Ok(())
}

/// VMCLEAR: writes a VMCS back to its memory, makes it inactive, and its launch state clear.
///
/// # Errors
/// #UD outside of VMX operation; [`InstructionError::VMCLEAR_VMXON_REGION`].
///
/// # Safety
/// As the module says; the region is a VMCS's, whose CPU this is, or was never active.
#[inline(always)]
pub unsafe fn vmclear(region: RegionAddress) -> Result<(), Failure> {
    let operand = region.get();
    // SAFETY: this function's contract.
    unsafe { vmclear_at(&raw const operand) }
}

/// VMCLEAR of the region whose physical address is at `operand`.
///
/// # Errors
/// As [`vmclear`], [`InstructionError::VMCLEAR_ADDRESS`], and the faults of the memory operand.
///
/// # Safety
/// As [`vmclear`].
#[inline(always)]
pub unsafe fn vmclear_at(operand: *const u64) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe {
        execute!(or_fail "vmclear [{0}]", Vmclear, operand as u64, memory(operand), in(reg) operand,)
    };
    Ok(())
}

/// VMPTRLD: makes a VMCS active and current on this CPU.
///
/// # Errors
/// #UD outside of VMX operation; [`InstructionError::VMPTRLD_VMXON_REGION`],
/// [`InstructionError::VMPTRLD_REVISION`].
///
/// # Safety
/// As the module says; the region is a VMCS's that is active on no other CPU.
#[inline(always)]
pub unsafe fn vmptrld(region: RegionAddress) -> Result<(), Failure> {
    let operand = region.get();
    // SAFETY: this function's contract.
    unsafe { vmptrld_at(&raw const operand) }
}

/// VMPTRLD of the region whose physical address is at `operand`.
///
/// # Errors
/// As [`vmptrld`], [`InstructionError::VMPTRLD_ADDRESS`], and the faults of the memory operand.
///
/// # Safety
/// As [`vmptrld`].
#[inline(always)]
pub unsafe fn vmptrld_at(operand: *const u64) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe {
        execute!(or_fail "vmptrld [{0}]", Vmptrld, operand as u64, memory(operand), in(reg) operand,)
    };
    Ok(())
}

/// VMPTRST: the physical address of the current VMCS; `None` if there is none.
///
/// # Errors
/// #UD outside of VMX operation.
///
/// # Safety
/// As the module says.
#[inline(always)]
pub unsafe fn vmptrst() -> Result<Option<u64>, Failure> {
    let mut address = MaybeUninit::<u64>::uninit();
    // SAFETY: this function's contract; the operand is writable.
    unsafe { vmptrst_at(address.as_mut_ptr())? };
    // SAFETY: VMPTRST succeeded, so it has stored eight bytes.
    let address = unsafe { address.assume_init() };
    Ok((address != u64::MAX).then_some(address))
}

/// VMPTRST to `operand`: all ones if there is no current VMCS.
///
/// # Errors
/// As [`vmptrst`], and the faults of the memory operand.
///
/// # Safety
/// As [`vmptrst`]; where `operand` can be written, it may be.
#[inline(always)]
pub unsafe fn vmptrst_at(operand: *mut u64) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe {
        execute!(or_fail "vmptrst [{0}]", Vmptrst, operand as u64, memory(operand), in(reg) operand,)
    };
    Ok(())
}

/// VMREAD of a field of the current VMCS.
///
/// # Errors
/// #UD outside of VMX operation; [`Failure::Invalid`] without a current VMCS;
/// [`InstructionError::UNSUPPORTED_FIELD`].
///
/// # Safety
/// As the module says.
#[inline(always)]
pub unsafe fn vmread<W: Width, A>(field: Field<W, A>) -> Result<Value<W>, Failure> {
    // SAFETY: this function's contract.
    unsafe { vmread_raw(u64::from(field.encoding())) }.map(|raw| field.of(raw))
}

/// VMREAD for handlers of exits that read many fields: it returns 0 instead of a failure. While
/// virtualization is taken away every read returns 0; the next entry returns [`Failure::Gone`]. Any
/// other failure has been reported to the [hook](crate::set_hook), which panics unless the kernel
/// has set another.
///
/// # Safety
/// As the module says.
#[inline(always)]
#[must_use]
pub unsafe fn vmread_or_zero<W: Width, A>(field: Field<W, A>) -> Value<W> {
    // SAFETY: this function's contract.
    field.of(unsafe { vmread_raw(u64::from(field.encoding())) }.unwrap_or(0))
}

/// VMREAD of the field with this encoding, all 64 bits of which count.
///
/// # Errors
/// As [`vmread`].
///
/// # Safety
/// As [`vmread`].
#[cfg(not(feature = "nightly"))]
#[inline(always)]
pub unsafe fn vmread_raw(encoding: u64) -> Result<u64, Failure> {
    let mut value = MaybeUninit::<u64>::uninit();
    let to = value.as_mut_ptr();
    // SAFETY: this function's contract; the memory operand is this function's own.
    unsafe {
        execute!(or_fail "vmread [{1}], {0}", Vmread, encoding, memory(to), in(reg) encoding, in(reg) to,)
    };
    // SAFETY: VMREAD succeeded, so it has stored eight bytes.
    Ok(unsafe { value.assume_init() })
}

/// VMREAD of the field with this encoding, all 64 bits of which count, to a register.
///
/// # Errors
/// As [`vmread`].
///
/// # Safety
/// As [`vmread`].
#[cfg(feature = "nightly")]
#[inline(always)]
pub unsafe fn vmread_raw(encoding: u64) -> Result<u64, Failure> {
    let value: u64;
    // SAFETY: this function's contract.
    unsafe {
        execute!(or_fail "vmread {1}, {0}", Vmread, encoding, NO_MEMORY, in(reg) encoding, lateout(reg) value,);
    }
    Ok(value)
}

/// VMWRITE of a field of the current VMCS.
///
/// # Errors
/// #UD outside of VMX operation; [`Failure::Invalid`] without a current VMCS;
/// [`InstructionError::UNSUPPORTED_FIELD`].
///
/// # Safety
/// As the module says, and with this value in the field an entry into the guest and an exit from it
/// are sound: fields of the host's state become this CPU's, tables of the guest reach memory.
#[inline(always)]
pub unsafe fn vmwrite<W: Width>(
    field: Field<W, ReadWrite>,
    value: Value<W>,
) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { vmwrite_raw(u64::from(field.encoding()), field.raw(value)) }
}

/// VMWRITE of the field with this encoding, all 64 bits of which count.
///
/// # Errors
/// As [`vmwrite`], and [`InstructionError::READ_ONLY_FIELD`] unless the CPU
/// [writes all fields](super::Capabilities::writes_all_fields).
///
/// # Safety
/// As [`vmwrite`].
#[inline(always)]
pub unsafe fn vmwrite_raw(encoding: u64, value: u64) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe {
        execute!(or_fail "vmwrite {0}, {1}", Vmwrite, encoding, NO_MEMORY, in(reg) encoding, in(reg) value,);
    }
    Ok(())
}

/// INVEPT: removes guest-physical and combined entries of this CPU.
///
/// # Errors
/// #UD outside of VMX operation or where the CPU has no EPT;
/// [`InstructionError::INVALIDATION_OPERAND`] where it has no such type ([`Invept::on`] chooses one
/// that it has).
///
/// # Safety
/// As the module says.
#[inline(always)]
pub unsafe fn invept(operation: Invept) -> Result<(), Failure> {
    let descriptor = operation.descriptor();
    // SAFETY: this function's contract.
    unsafe { invept_raw(operation.kind(), &raw const descriptor) }
}

/// INVEPT of this type, with the descriptor at `descriptor`.
///
/// # Errors
/// As [`invept`], and the faults of the memory operand.
///
/// # Safety
/// As [`invept`].
#[inline(always)]
pub unsafe fn invept_raw(kind: u64, descriptor: *const Descriptor) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe {
        execute!(or_fail "invept {0}, [{1}]", Invept, kind, memory(descriptor), in(reg) kind, in(reg) descriptor,);
    }
    Ok(())
}

/// INVVPID: removes linear and combined entries of this CPU.
///
/// # Errors
/// #UD outside of VMX operation or where the CPU has no VPIDs;
/// [`InstructionError::INVALIDATION_OPERAND`] where it has no such type ([`Invvpid::on`] chooses
/// one that it has).
///
/// # Safety
/// As the module says.
#[inline(always)]
pub unsafe fn invvpid(operation: Invvpid) -> Result<(), Failure> {
    let descriptor = operation.descriptor();
    // SAFETY: this function's contract.
    unsafe { invvpid_raw(operation.kind(), &raw const descriptor) }
}

/// INVVPID of this type, with the descriptor at `descriptor`.
///
/// # Errors
/// As [`invvpid`], and the faults of the memory operand.
///
/// # Safety
/// As [`invvpid`].
#[inline(always)]
pub unsafe fn invvpid_raw(kind: u64, descriptor: *const Descriptor) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe {
        execute!(or_fail "invvpid {0}, [{1}]", Invvpid, kind, memory(descriptor),
            in(reg) kind, in(reg) descriptor,);
    }
    Ok(())
}

/// VMFUNC, in a guest: function 0 switches to the EPT pointer at this index of the list.
///
/// # Errors
/// #UD where the hypervisor has not enabled the function, and outside of a guest always. (An index
/// that the hypervisor has not filled exits to it; the guest does not notice.)
///
/// # Safety
/// As the module says, but in a guest; what the other EPT maps is sound to go on with.
#[inline(always)]
pub unsafe fn vmfunc(function: u32, index: u32) -> Result<(), Failure> {
    // VMFUNC has no VMfail and leaves the flags as they are: there is nothing to test.
    // SAFETY: this function's contract.
    unsafe {
        execute!("vmfunc", Vmfunc, u64::from(function), NO_MEMORY,
            in("eax") function, in("ecx") index,);
    }
    Ok(())
}

/// The registers of a hypercall. The hypervisor defines the meaning of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Hypercall {
    /// RAX: commonly the number, and the result.
    pub rax: u64,
    /// RBX.
    pub rbx: u64,
    /// RCX.
    pub rcx: u64,
    /// RDX.
    pub rdx: u64,
}

/// VMCALL, in a guest: calls the hypervisor, which may change the four registers and nothing else.
///
/// # Errors
/// #UD where there is no hypervisor that runs guests by VMX; in VMX root operation VMfail, with
/// number 1 (or 19, 20, 22, 24 under the dual-monitor treatment).
///
/// # Safety
/// As the module says, but in a guest; what the hypervisor does when it is called so is sound.
#[inline(always)]
pub unsafe fn vmcall(registers: &mut Hypercall) -> Result<(), Failure> {
    let at: *mut Hypercall = registers;
    // RBX can't be an operand: it is saved by hand. The hypervisor leaves the flags, so the
    // comparison clears CF and ZF before; in root operation VMCALL sets one of them.
    // SAFETY: this function's contract. RBX and RSP are what they were at every label: the fix-ups
    // are entered behind the PUSH, so they go by way of local labels that undo it.
    unsafe {
        asm!(
            "push rbx",
            "mov rax, [rdi]",
            "mov rbx, [rdi + 8]",
            "mov rcx, [rdi + 16]",
            "mov rdx, [rdi + 24]",
            "cmp rsp, 0",
            may_fault!("vmcall", "44f", "45f", "46f", "47f"),
            "jna 43f",
            "mov [rdi], rax",
            "mov [rdi + 8], rbx",
            "mov [rdi + 16], rcx",
            "mov [rdi + 24], rdx",
            "pop rbx",
            ".pushsection .text.unlikely.shootdown_fixup, \"ax\", @progbits",
            "43: pop rbx",
            "jmp {fail}",
            "44: pop rbx",
            "jmp {ud}",
            "45: pop rbx",
            "jmp {gp}",
            "46: pop rbx",
            "jmp {ss}",
            "47: pop rbx",
            "jmp {pf}",
            ".popsection",
            in("rdi") at,
            lateout("rax") _,
            lateout("rcx") _,
            lateout("rdx") _,
            fail = label { return Err(slow::failed(Instruction::Vmcall, 0, slow::here())) },
            ud = label { return Err(slow::undefined(Instruction::Vmcall, 0, slow::here())) },
            gp = label { return Err(slow::protection(Instruction::Vmcall, 0, slow::here())) },
            ss = label { return Err(slow::stack(Instruction::Vmcall, 0, slow::here())) },
            pf = label {
                return Err(slow::page(Instruction::Vmcall, 0, memory(at.cast_const()), slow::here()))
            },
        );
    }
    Ok(())
}

/// The number that VMfailValid left, if there is a current VMCS that holds it. This function
/// reports no failure of its own, because the reporting of failures uses it.
///
/// # Safety
/// As the module says, after an instruction of VMX that failed.
pub(crate) unsafe fn error_number() -> Option<InstructionError> {
    let mut word = u64::MAX;
    let at = &raw mut word;
    // SAFETY: this function's contract; the operand is this function's own.
    unsafe {
        asm!(
            may_fault!("vmptrst [{0}]"),
            in(reg) at,
            ud = label { return None },
            gp = label { return None },
            ss = label { return None },
            pf = label { return None },
            options(nostack)
        );
    }
    // SAFETY: `word` is initialized; the instruction may have written it.
    if unsafe { at.read_volatile() } == u64::MAX {
        return None;
    }
    // SAFETY: as above.
    unsafe {
        asm!(
            may_fault!("vmread [{0}], {1}"),
            "jna {fail}",
            in(reg) at,
            in(reg) u64::from(field::INSTRUCTION_ERROR.encoding()),
            fail = label { return None },
            ud = label { return None },
            gp = label { return None },
            ss = label { return None },
            pf = label { return None },
            options(nostack)
        );
    }
    #[allow(clippy::cast_possible_truncation, reason = "a field of 32 bits")]
    // SAFETY: as above.
    Some(InstructionError::from_number(unsafe { at.read_volatile() } as u32))
}
