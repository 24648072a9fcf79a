//! Operands that are not as an instruction needs them.

use shootdown_virt::vmx::{self, Descriptor, InstructionError, Invept, Invvpid, Vpid};
use shootdown_virt::{Failure, Fault, Instruction, may_fault};

use super::{NOT_CANONICAL, set_revision, spare, vmclear_of, vmptrld_of, vmxon_of};
use crate::crash::NOWHERE;
use crate::memory;
use crate::virt::checks::{Checks, Seen, reported};
use crate::virt::host::{self, VMXE, VmxCpu};
use crate::virt::hypervisor::frame;

/// #GP, #PF and #SS of a memory operand, and #GP of VMXON where CR0 is not as VMX needs it. The control: the same
/// instruction with an operand that is there.
pub(super) fn faults_of_operands(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let gp = Err(Failure::Fault(Fault::Protection));
    let nowhere = NOWHERE as *const u64;
    let pf = Err(Failure::Fault(Fault::Page(NOWHERE)));
    host::change_cr4(VMXE, 0);
    // SAFETY: CR0.NE decides how errors of x87 are told, of which there are none here.
    unsafe {
        let cr0 = host::cr0();
        core::arch::asm!("mov cr0, {}", in(reg) cr0 & !0x20, options(nostack));
        let got = vmxon_of(cpu.vmxon_region().get());
        core::arch::asm!("mov cr0, {}", in(reg) cr0, options(nostack));
        checks.same("VMXON with CR0.NE clear", got, gp);
    }
    // SAFETY: the operands are not read: their addresses fault.
    unsafe {
        checks.same("VMXON, not canonical", vmx::vmxon_at(NOT_CANONICAL as *const u64), gp);
        checks.same("VMXON, not mapped", vmx::vmxon_at(nowhere), pf);
        checks.same("VMXON by RBP", vmxon_by_rbp(NOT_CANONICAL), Err("#SS"));
        checks.same("VMXON by RBP, not mapped", vmxon_by_rbp(NOWHERE), Err("#PF"));
    }
    host::change_cr4(0, VMXE);
    let Some(()) = checks.ok("VMX on", cpu.on()) else { return Seen::All };
    let far = NOT_CANONICAL as *mut u64;
    let all = Descriptor::from_raw(0, 0);
    // SAFETY: as above.
    unsafe {
        checks.same("VMPTRLD, not canonical", vmx::vmptrld_at(far), gp);
        checks.same("VMPTRLD, not mapped", vmx::vmptrld_at(nowhere), pf);
        checks.same("VMCLEAR, not canonical", vmx::vmclear_at(far), gp);
        checks.same("VMCLEAR, not mapped", vmx::vmclear_at(nowhere), pf);
        checks.same("VMPTRST, not canonical", vmx::vmptrst_at(far), gp);
        checks.same("VMPTRST, not mapped", vmx::vmptrst_at(nowhere.cast_mut()), pf);
        if cpu.capabilities.ept() {
            checks.same("INVEPT, not mapped", vmx::invept_raw(2, nowhere.cast()), pf);
            checks.same("INVEPT, there", vmx::invept_raw(2, &all), Ok(()));
        }
        if cpu.capabilities.vpid() {
            checks.same("INVVPID, not mapped", vmx::invvpid_raw(2, nowhere.cast()), pf);
            checks.same("INVVPID, there", vmx::invvpid_raw(2, &all), Ok(()));
        }
    }
    let report = reported().map(|report| (report.instruction, report.operand));
    let last = if cpu.capabilities.vpid() {
        Some((Instruction::Invvpid, 2))
    } else if cpu.capabilities.ept() {
        Some((Instruction::Invept, 2))
    } else {
        Some((Instruction::Vmptrst, NOWHERE))
    };
    checks.same("report", report, last);
    checks.ok("VMXOFF", cpu.off());
    Seen::All
}

/// VMXON with an operand that is addressed by RBP, so that SS is its segment.
///
/// # Safety
/// The address faults.
unsafe fn vmxon_by_rbp(address: u64) -> Result<(), &'static str> {
    // SAFETY: the instruction faults; RBP is restored on every way out.
    unsafe {
        core::arch::asm!(
            "push rbp",
            "mov rbp, {at}",
            may_fault!("vmxon [rbp]", "41f", "42f", "43f", "44f"),
            "pop rbp",
            ".pushsection .text.unlikely.shootdown_fixup, \"ax\", @progbits",
            "41: pop rbp", "jmp {ud}",
            "42: pop rbp", "jmp {gp}",
            "43: pop rbp", "jmp {ss}",
            "44: pop rbp", "jmp {pf}",
            ".popsection",
            at = in(reg) address,
            ud = label { return Err("#UD") },
            gp = label { return Err("#GP") },
            ss = label { return Err("#SS") },
            pf = label { return Err("#PF") },
        );
    }
    Ok(())
}

/// VMXON refuses a region that is misaligned, too wide, or of another revision; the typed operand
/// can't be any of the first two.
pub(super) fn vmxon_refused(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let other = frame();
    let revision = cpu.capabilities.revision().get();
    host::change_cr4(VMXE, 0);
    let own = cpu.vmxon_region().get();
    let wide = 1 << cpu.physical_bits;
    checks.same("misaligned", vmxon_of(own + 8), Err(Failure::Invalid));
    checks.same("too wide", vmxon_of(own | wide), Err(Failure::Invalid));
    checks.same("no region is misaligned", cpu.region(own + 8).is_err(), true);
    checks.same("no region is too wide", cpu.region(own | wide).is_err(), true);
    for wrong in [revision ^ 1, revision | 1 << 31] {
        set_revision(other, wrong);
        checks.same("revision", vmxon_of(other), Err(Failure::Invalid));
    }
    set_revision(other, revision);
    checks.same("the control", vmxon_of(other), Ok(()));
    // Root operation: VMfail, which has no number without a current VMCS.
    checks.same("again", vmxon_of(own), Err(Failure::Invalid));
    checks.same(
        "a VMCS",
        vmclear_of(spare(cpu).get()).and_then(|()| vmptrld_of(spare(cpu).get())),
        Ok(()),
    );
    checks.same(
        "again, with a VMCS",
        vmxon_of(own),
        Err(Failure::Valid(InstructionError::VMXON_AGAIN)),
    );
    checks.same("no report", reported(), None);
    checks.same("VMCLEAR", vmclear_of(spare(cpu).get()), Ok(()));
    checks.ok("VMXOFF", cpu.off());
    memory::free(other);
    Seen::All
}

/// Operands that no value of their types can be.
pub(super) fn operand_types(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    checks.same("VPID 0", Vpid::new(0).is_err(), true);
    let has = cpu.capabilities.ept_vpid;
    checks.same("INVEPT", Invept::All.on(has).is_ok(), cpu.capabilities.ept());
    checks.same("INVVPID", Invvpid::All.on(has).is_ok(), cpu.capabilities.vpid());
    checks.same("a VMCS elsewhere", cpu.region(u64::MAX << 12).is_err(), true);
    Seen::All
}
