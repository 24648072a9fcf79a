//! Every VMX instruction with every failure that can be provoked: each comes back as the value that
//! the manual says.

mod inside;
mod nmi;
mod operands;
mod outside;

use shootdown_virt::vmx::{
    self, Hypercall, InstructionError, Invept, Invvpid, RegionAddress, field,
};
use shootdown_virt::{Failure, Fault, Instruction};

use super::Case;
use crate::memory;
use crate::virt::checks::{Checks, reported};
use crate::virt::elsewhere;
use crate::virt::host::VmxCpu;
use crate::virt::hypervisor::frame;

/// All of them.
pub const CASES: &[Case<VmxCpu>] = &[
    Case::new("outside", outside::outside),
    Case::new("nmi-vmxoff", nmi::nmi_vmxoff),
    Case::new("nmi-vmxoff-expected", nmi::nmi_vmxoff_expected),
    Case::new("nmi-emergency-entry", nmi::emergency_before_entry),
    Case::new("nmi-from-elsewhere", |_, checks| elsewhere::taken_away(&nmi::EntryLoop, checks)),
    Case::new("faults-of-operands", operands::faults_of_operands),
    Case::new("vmxon-refused", operands::vmxon_refused),
    Case::new("turn-on", inside::turn_on),
    Case::new("no-current-vmcs", inside::no_current_vmcs),
    Case::new("numbers", inside::numbers),
    Case::new("read-only-field", inside::read_only_field),
    Case::new("launch-state", inside::launch_state),
    Case::new("invalid-vmcs", inside::invalid_vmcs),
    Case::new("operand-types", operands::operand_types),
];

const UD: Failure = Failure::Fault(Fault::UndefinedOpcode);

/// Not canonical with 48 bits of linear address or with 57.
const NOT_CANONICAL: u64 = 0x8000_0000_0000_0000;

fn valid(number: u32) -> Failure {
    Failure::Valid(InstructionError::from_number(number))
}

/// Each instruction but for entries, VMXON and VMCALL. The order matters: VMCLEAR comes before what
/// needs a current VMCS.
const INSTRUCTIONS: [Instruction; 9] = [
    Instruction::Vmxoff,
    Instruction::Vmclear,
    Instruction::Vmptrld,
    Instruction::Vmptrst,
    Instruction::Vmread,
    Instruction::Vmwrite,
    Instruction::Invept,
    Instruction::Invvpid,
    Instruction::Vmfunc,
];

/// Executes one, with operands that nothing is wrong with; where it succeeds it changes nothing
/// that a case relies on.
fn execute(instruction: Instruction, cpu: &VmxCpu) -> Result<(), Failure> {
    // SAFETY: privilege level 0, the handlers ask `fixup`, interrupts are off; the regions are the
    // CPU's, and no guest relies on what is invalidated or written.
    unsafe {
        match instruction {
            Instruction::Vmxoff => vmx::vmxoff(),
            Instruction::Vmclear => vmx::vmclear(spare(cpu)),
            Instruction::Vmptrld => vmx::vmptrld(spare(cpu)),
            Instruction::Vmptrst => vmx::vmptrst().map(drop),
            Instruction::Vmread => vmx::vmread(field::GUEST_RIP).map(drop),
            Instruction::Vmwrite => vmx::vmwrite(field::GUEST_RIP, 7),
            Instruction::Invept => vmx::invept(Invept::All),
            Instruction::Invvpid => vmx::invvpid(Invvpid::All),
            Instruction::Vmfunc => vmx::vmfunc(0, 0),
            other => unreachable!("{other} is not in the list"),
        }
    }
}

/// A VMCS that no guest has: its region holds the revision from `with_spare` on.
fn spare(cpu: &VmxCpu) -> RegionAddress {
    use core::sync::atomic::{AtomicU64, Ordering};
    static SPARE: AtomicU64 = AtomicU64::new(0);
    if SPARE.load(Ordering::Relaxed) == 0 {
        SPARE.store(region(cpu), Ordering::Relaxed);
    }
    cpu.region(SPARE.load(Ordering::Relaxed)).expect("a frame")
}

/// A frame with the CPU's revision.
fn region(cpu: &VmxCpu) -> u64 {
    let region = frame();
    set_revision(region, cpu.capabilities.revision().get());
    region
}

fn set_revision(region: u64, revision: u32) {
    // SAFETY: the frame is the case's.
    unsafe { memory::at(region).cast::<u32>().write(revision) };
}

/// A frame's address in a place that an instruction can read it from.
fn vmptrld_of(address: u64) -> Result<(), Failure> {
    // SAFETY: as in `execute`; what is not a region is refused.
    unsafe { vmx::vmptrld_at(&raw const address) }
}

fn vmclear_of(address: u64) -> Result<(), Failure> {
    // SAFETY: as in `execute`.
    unsafe { vmx::vmclear_at(&raw const address) }
}

fn vmxon_of(address: u64) -> Result<(), Failure> {
    // SAFETY: as in `execute`.
    unsafe { vmx::vmxon_at(&raw const address) }
}

fn vmcall() -> Result<(), Failure> {
    // SAFETY: nothing runs this kernel by VMX in the machines that the suite is for; a hypervisor
    // that does gives the number no meaning.
    unsafe { vmx::vmcall(&mut Hypercall { rax: 0xffff_ffff, rbx: 1, rcx: 2, rdx: 3 }) }
}

/// All that are not entries fail by #UD, and the hook has heard of each with its name.
fn all_undefined(cpu: &VmxCpu, checks: &mut Checks, wanted: Failure) {
    for instruction in INSTRUCTIONS {
        reported();
        checks.same(instruction.name(), execute(instruction, cpu), Err(wanted));
        let heard = reported().map(|report| (report.instruction, report.failure));
        let silent = wanted == Failure::Gone;
        checks.same("report", heard, (!silent).then_some((instruction, wanted)));
    }
    checks.same("VMCALL", vmcall(), Err(wanted));
}
