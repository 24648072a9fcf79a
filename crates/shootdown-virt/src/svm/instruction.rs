//! The SVM instructions but for VMRUN (`entry.rs`).
//!
//! SVM has no VMfail: an instruction succeeds or faults, so there is not even a jump on the
//! successful path. APM vol. 3, chapter 4 ("System instruction reference"), describes each. SKINIT
//! is left out: it resets the CPU and starts a loader, so a kernel that uses this crate would not
//! run on.
//!
//! # Safety of all of them
//! 1. The CPU is at privilege level 0.
//! 2. The kernel's handlers of #UD, #GP, #SS and #PF call [`fixup`](crate::extable::fixup).

use super::operand::{Asid, VmcbAddress};
use crate::failure::{Failure, Instruction};
use crate::may_fault;
use crate::slow::{self, NO_MEMORY, execute, memory};
use crate::vmx::Hypercall;
use shootdown_arch::x86_64::LinearAddress;

/// VMLOAD: loads FS, GS, TR, LDTR, KernelGsBase and the MSRs of system calls from a VMCB.
///
/// # Errors
/// #UD with EFER.SVME clear.
///
/// # Safety
/// As the module says; running on with this state is sound.
#[inline(always)]
pub unsafe fn vmload(vmcb: VmcbAddress) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { vmload_raw(vmcb.get()) }
}

/// VMLOAD from this physical address.
///
/// # Errors
/// As [`vmload`]; #GP for an address that is misaligned or too wide.
///
/// # Safety
/// As [`vmload`].
#[inline(always)]
pub unsafe fn vmload_raw(address: u64) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { execute!("vmload rax", Vmload, address, NO_MEMORY, in("rax") address,) };
    Ok(())
}

/// VMSAVE: stores FS, GS, TR, LDTR, KernelGsBase and the MSRs of system calls to a VMCB.
///
/// # Errors
/// #UD with EFER.SVME clear.
///
/// # Safety
/// As the module says; the memory is a VMCB's, which no other code uses meanwhile.
#[inline(always)]
pub unsafe fn vmsave(vmcb: VmcbAddress) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { vmsave_raw(vmcb.get()) }
}

/// VMSAVE to this physical address.
///
/// # Errors
/// As [`vmsave`]; #GP for an address that is misaligned or too wide.
///
/// # Safety
/// As [`vmsave`].
#[inline(always)]
pub unsafe fn vmsave_raw(address: u64) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { execute!("vmsave rax", Vmsave, address, NO_MEMORY, in("rax") address,) };
    Ok(())
}

/// STGI: sets the global interrupt flag. What was held is taken: interrupts, NMI, INIT.
///
/// # Errors
/// #UD with EFER.SVME clear.
///
/// # Safety
/// As the module says.
#[inline(always)]
pub unsafe fn stgi() -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { execute!("stgi", Stgi, 0, NO_MEMORY,) };
    Ok(())
}

/// CLGI: clears the global interrupt flag. Interrupts, NMI and INIT are held until [`stgi`].
///
/// # Errors
/// #UD with EFER.SVME clear.
///
/// # Safety
/// As the module says; the caller sets the flag again soon.
#[inline(always)]
pub unsafe fn clgi() -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { execute!("clgi", Clgi, 0, NO_MEMORY,) };
    Ok(())
}

/// INVLPGA: removes this CPU's entries for one linear address under one ASID. A change of
/// guest-physical translations needs [`TlbControl`](super::TlbControl) instead.
///
/// # Errors
/// #UD with EFER.SVME clear. (The CPU accepts an ASID that it does not have, without an error.)
///
/// # Safety
/// As the module says.
#[inline(always)]
pub unsafe fn invlpga(address: LinearAddress, asid: Asid) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe { invlpga_raw(address.get(), asid.get()) }
}

/// INVLPGA of any address under any ASID, 0 (the host's) included.
///
/// # Errors
/// As [`invlpga`].
///
/// # Safety
/// As [`invlpga`].
#[inline(always)]
pub unsafe fn invlpga_raw(address: u64, asid: u32) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    unsafe {
        execute!("invlpga rax, ecx", Invlpga, address, NO_MEMORY,
            in("rax") address, in("ecx") asid,);
    }
    Ok(())
}

/// VMMCALL, in a guest: calls the hypervisor, which may change the four registers and nothing else.
///
/// # Errors
/// #UD where the hypervisor does not intercept it, and in the host always.
///
/// # Safety
/// As the module says, but in a guest; what the hypervisor does when it is called so is sound.
#[inline(always)]
pub unsafe fn vmmcall(registers: &mut Hypercall) -> Result<(), Failure> {
    let at: *mut Hypercall = registers;
    // RBX can't be an operand: it is saved by hand.
    // SAFETY: this function's contract. RBX and RSP are what they were at every label: the fix-ups
    // are entered behind the PUSH, so they go by way of local labels that undo it.
    unsafe {
        core::arch::asm!(
            "push rbx",
            "mov rax, [rdi]",
            "mov rbx, [rdi + 8]",
            "mov rcx, [rdi + 16]",
            "mov rdx, [rdi + 24]",
            may_fault!("vmmcall", "44f", "45f", "46f", "47f"),
            "mov [rdi], rax",
            "mov [rdi + 8], rbx",
            "mov [rdi + 16], rcx",
            "mov [rdi + 24], rdx",
            "pop rbx",
            ".pushsection .text.unlikely.shootdown_fixup, \"ax\", @progbits",
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
            ud = label { return Err(slow::undefined(Instruction::Vmmcall, 0, slow::here())) },
            gp = label { return Err(slow::protection(Instruction::Vmmcall, 0, slow::here())) },
            ss = label { return Err(slow::stack(Instruction::Vmmcall, 0, slow::here())) },
            pf = label {
                return Err(slow::page(Instruction::Vmmcall, 0, memory(at.cast_const()), slow::here()))
            },
        );
    }
    Ok(())
}
