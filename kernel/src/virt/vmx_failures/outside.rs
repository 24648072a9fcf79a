//! Every instruction where VMX is off: #UD.

use shootdown_virt::Instruction;
use shootdown_virt::vmx::{self};

use super::{INSTRUCTIONS, UD, all_undefined, execute, spare, vmclear_of, vmxon_of};
use crate::virt::checks::{Checks, Seen, reported};
use crate::virt::host::{self, VMXE, VmxCpu};

/// Before VMXON, with CR4.VMXE clear and set. The control: with VMX on they succeed.
pub(super) fn outside(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    // The two are of a VMCS, which has to be made with VMX on.
    spare(cpu);
    for vmxe in [false, true] {
        host::change_cr4(if vmxe { VMXE } else { 0 }, if vmxe { 0 } else { VMXE });
        all_undefined(cpu, checks, UD);
        for resume in [0, 1] {
            let mut registers = vmx::GuestRegisters::default();
            let mut host_rsp = 0;
            // SAFETY: nothing is current; the VMWRITE of HOST_RSP, which comes first, faults.
            let code = unsafe { vmx::enter(&mut registers, &mut host_rsp, resume) };
            checks.same("entry: VMWRITE of HOST_RSP", code, 18);
        }
    }
    host::change_cr4(0, VMXE);
    checks.same("VMXON with CR4.VMXE clear", vmxon_of(cpu.vmxon_region().get()), Err(UD));

    let Some(()) = checks.ok("VMXON", cpu.on()) else { return Seen::All };
    for instruction in INSTRUCTIONS.into_iter().filter(|i| *i != Instruction::Vmxoff) {
        let wanted = if instruction == Instruction::Vmfunc { Err(UD) } else { Ok(()) };
        // INVEPT and INVVPID where the CPU has them.
        let has = match instruction {
            Instruction::Invept => cpu.capabilities.ept(),
            Instruction::Invvpid => cpu.capabilities.vpid(),
            _ => true,
        };
        if has {
            checks.same(instruction.name(), execute(instruction, cpu), wanted);
        }
    }
    checks.same("VMCLEAR", vmclear_of(spare(cpu).get()), Ok(()));
    checks.ok("VMXOFF", cpu.off());
    reported();
    Seen::All
}
