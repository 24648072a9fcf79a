//! VMX is on: what fails for want of a VMCS, for its state, or by a number.

use shootdown_virt::vmx::{self, Descriptor, EntryError, TurnOnError, field};
use shootdown_virt::{Failure, Instruction, may_fault};

use super::{
    NOT_CANONICAL, UD, set_revision, spare, valid, vmcall, vmclear_of, vmptrld_of, vmxon_of,
};
use crate::memory;
use crate::virt::checks::{Checks, Seen, reported};
use crate::virt::host::{self, VMXE, VmxCpu};
use crate::virt::hypervisor::frame;
use crate::virt::hypervisor::guests::{self, Program};
use crate::virt::hypervisor::vmx::VmxMachine;

/// `turn_on` and `turn_off` say what is in the way, and change nothing then.
pub(super) fn turn_on(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let before = host::cr4_register();
    host::change_cr4(VMXE, 0);
    checks.same("VMXE is set", cpu.on(), Err(TurnOnError::OnAlready));
    host::change_cr4(0, VMXE);
    set_revision(cpu.vmxon_region().get(), cpu.capabilities.revision().get() ^ 1);
    checks.same("revision", cpu.on(), Err(TurnOnError::Vmxon(Failure::Invalid)));
    set_revision(cpu.vmxon_region().get(), cpu.capabilities.revision().get());
    checks.same("nothing is half on", host::cr4_register(), before);
    checks.ok("the control", cpu.on());
    checks.same("again", cpu.on(), Err(TurnOnError::OnAlready));
    if let Some(machine) = checks.ok("a guest", VmxMachine::new(cpu, &guests::start(Program::Call)))
    {
        checks.same("off, loaded", cpu.off(), Err(vmx::TurnOffError::StillLoaded));
        drop(machine);
    }
    checks.ok("off", cpu.off());
    checks.same("CR4", host::cr4_register(), before);
    let off = cpu.off();
    checks.same("off again", off, Err(vmx::TurnOffError::Vmxoff(UD)));
    reported();
    Seen::All
}

/// VMfailInvalid: there is no current VMCS for a number.
pub(super) fn no_current_vmcs(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let Some(()) = checks.ok("VMX on", cpu.on()) else { return Seen::All };
    let invalid = Err(Failure::Invalid);
    let bad = Descriptor::from_raw(0xdead_0000, 0);
    // SAFETY: as in `execute`.
    unsafe {
        checks.same("VMPTRST", vmx::vmptrst(), Ok(None));
        checks.same("VMREAD", vmx::vmread(field::EXIT_REASON), Err(Failure::Invalid));
        checks.same("VMWRITE", vmx::vmwrite(field::GUEST_RIP, 0), invalid);
        if cpu.capabilities.ept() {
            checks.same("INVEPT", vmx::invept_raw(0, &bad), invalid);
        }
        if cpu.capabilities.vpid() {
            checks.same("INVVPID", vmx::invvpid_raw(4, &bad), invalid);
        }
        let (mut registers, mut host_rsp) = (vmx::GuestRegisters::default(), 0);
        let code = vmx::enter(&mut registers, &mut host_rsp, 0);
        checks.same("entry: VMWRITE of HOST_RSP", code, 17);
    }
    checks.same("VMXON", vmxon_of(cpu.vmxon_region().get()), invalid);
    checks.same("VMCLEAR", vmclear_of(8), invalid);
    checks.same("VMPTRLD", vmptrld_of(8), invalid);
    checks.same("VMCALL", vmcall(), invalid);
    // The control: with one, they have numbers.
    let own = spare(cpu).get();
    checks.same("VMCLEAR", vmclear_of(own), Ok(()));
    checks.same("VMPTRLD", vmptrld_of(own), Ok(()));
    // SAFETY: as above.
    checks.same("VMPTRST", unsafe { vmx::vmptrst() }, Ok(Some(own)));
    checks.same("VMCLEAR", vmclear_of(8), Err(valid(2)));
    checks.same("VMCLEAR", vmclear_of(own), Ok(()));
    checks.ok("VMXOFF", cpu.off());
    reported();
    Seen::All
}

/// VMfailValid: each number with the instruction that it is of.
pub(super) fn numbers(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let Some(()) = checks.ok("VMX on", cpu.on()) else { return Seen::All };
    let own = spare(cpu).get();
    let vmxon = cpu.vmxon_region().get();
    let wide = 1 << cpu.physical_bits;
    checks.same("VMCLEAR", vmclear_of(own), Ok(()));
    checks.same("VMPTRLD", vmptrld_of(own), Ok(()));
    for address in [own + 8, own | wide] {
        checks.same("VMCLEAR of no page", vmclear_of(address), Err(valid(2)));
        checks.same("VMPTRLD of no page", vmptrld_of(address), Err(valid(9)));
    }
    checks.same("VMCLEAR of the VMXON region", vmclear_of(vmxon), Err(valid(3)));
    checks.same("VMPTRLD of the VMXON region", vmptrld_of(vmxon), Err(valid(10)));
    let other = frame();
    set_revision(other, cpu.capabilities.revision().get() ^ 1);
    checks.same("VMPTRLD of another revision", vmptrld_of(other), Err(valid(11)));
    memory::free(other);
    checks.same("VMXON", vmxon_of(vmxon), Err(valid(15)));
    // Bits above 31 count, in 64-bit mode.
    const NO_FIELD: u64 = 0x7ffe;
    const HIGH: u64 = 1 << 40;
    // SAFETY: as in `execute`.
    unsafe {
        for field in [NO_FIELD, u64::from(field::GUEST_RIP.encoding()) | HIGH] {
            reported();
            checks.same("VMREAD of no field", vmx::vmread_raw(field), Err(valid(12)));
            let heard = reported().map(|report| (report.instruction, report.operand));
            checks.same("report", heard, Some((Instruction::Vmread, field)));
            checks.same("VMWRITE of no field", vmx::vmwrite_raw(field, 0), Err(valid(12)));
        }
        checks.same(
            "VMWRITE, the control",
            vmx::vmwrite(field::GUEST_RIP, 0x1234_5678_9abc),
            Ok(()),
        );
        checks.same("VMREAD, the control", vmx::vmread(field::GUEST_RIP), Ok(0x1234_5678_9abc));
        checks.same("VMWRITE, 32 bits", vmx::vmwrite(field::EXCEPTION_BITMAP, 1 << 18), Ok(()));
        checks.same("VMREAD, 32 bits", vmx::vmread(field::EXCEPTION_BITMAP), Ok(1 << 18));
        checks.same("VMWRITE, 16 bits", vmx::vmwrite(field::GUEST_CS_SELECTOR, 0xabcd), Ok(()));
        checks.same("VMREAD, 16 bits", vmx::vmread(field::GUEST_CS_SELECTOR), Ok(0xabcd));
        let invept = |kind, low| {
            let descriptor = Descriptor::from_raw(low, 0);
            vmx::invept_raw(kind, &descriptor)
        };
        let invvpid = |kind, low, high| {
            let descriptor = Descriptor::from_raw(low, high);
            vmx::invvpid_raw(kind, &descriptor)
        };
        if cpu.capabilities.ept() {
            checks.same("INVEPT of type 0", invept(0, 0), Err(valid(28)));
            checks.same("INVEPT of type 3", invept(3, 0), Err(valid(28)));
            // Memory type 1 is none.
            checks.same("INVEPT of no EPTP", invept(1, 0x1001), Err(valid(28)));
            checks.same("INVEPT, the control", invept(2, 0), Ok(()));
        }
        if cpu.capabilities.vpid() {
            checks.same("INVVPID of type 4", invvpid(4, 1, 0), Err(valid(28)));
            checks.same("INVVPID of VPID 0", invvpid(1, 0, 0), Err(valid(28)));
            checks.same("INVVPID, reserved bits", invvpid(1, 0x1_0001, 0), Err(valid(28)));
            checks.same("INVVPID, not canonical", invvpid(0, 1, NOT_CANONICAL), Err(valid(28)));
            checks.same("INVVPID, the control", invvpid(0, 1, 0x1000), Ok(()));
        }
    }
    checks.same("VMCLEAR", vmclear_of(own), Ok(()));
    checks.ok("VMXOFF", cpu.off());
    reported();
    Seen::All
}

/// Number 13, or success where the CPU writes all fields.
pub(super) fn read_only_field(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let Some(()) = checks.ok("VMX on", cpu.on()) else { return Seen::All };
    let own = spare(cpu).get();
    checks.same("VMCS", vmclear_of(own).and_then(|()| vmptrld_of(own)), Ok(()));
    let reason = u64::from(field::EXIT_REASON.encoding());
    // SAFETY: as in `execute`.
    let got = unsafe { vmx::vmwrite_raw(reason, 7) };
    let all = cpu.capabilities.writes_all_fields();
    checks.same("VMWRITE", got, if all { Ok(()) } else { Err(valid(13)) });
    checks.same("VMCLEAR", vmclear_of(own), Ok(()));
    checks.ok("VMXOFF", cpu.off());
    reported();
    if all {
        Seen::Nothing("this CPU writes read-only fields too (IA32_VMX_MISC, bit 29)")
    } else {
        Seen::All
    }
}

/// The number that VMfailValid left.
fn number() -> Option<u32> {
    // SAFETY: a VMCS is current.
    unsafe { vmx::vmread(field::INSTRUCTION_ERROR) }.ok()
}

/// An entry into the current VMCS whatever its launch state is.
pub(super) fn raw_entry(resume: u64) -> Result<(), Option<u32>> {
    let (mut registers, mut host_rsp) = (vmx::GuestRegisters::default(), 0);
    // SAFETY: the VMCS is one of the hypervisor's; HOST_RSP is written anew each time.
    match unsafe { vmx::enter(&mut registers, &mut host_rsp, resume) } {
        0 => Ok(()),
        1 => Err(number()),
        _ => Err(None),
    }
}

/// VMLAUNCH while events are blocked by MOV SS, which is refused before anything is looked at.
fn launch_behind_mov_ss() -> Option<u32> {
    // SAFETY: SS is loaded with what it holds; the entry is refused.
    unsafe {
        core::arch::asm!(
            "mov ax, ss",
            "mov ss, ax",
            may_fault!("vmlaunch"),
            lateout("rax") _,
            ud = label { return None },
            gp = label { return None },
            ss = label { return None },
            pf = label { return None },
        );
    }
    number()
}

/// Numbers 4, 5, 26: VMLAUNCH and VMRESUME in the wrong state.
pub(super) fn launch_state(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let Some(()) = checks.ok("VMX on", cpu.on()) else { return Seen::All };
    let Some(mut machine) =
        checks.ok("a guest", VmxMachine::new(cpu, &guests::start(Program::Call)))
    else {
        return Seen::All;
    };
    checks.ok("fields", machine.prepare());
    checks.same("VMRESUME before VMLAUNCH", raw_entry(1), Err(Some(5)));
    checks.same("VMLAUNCH behind MOV SS", launch_behind_mov_ss(), Some(26));
    checks.same("VMLAUNCH", raw_entry(0), Ok(()));
    checks.same("VMLAUNCH again", raw_entry(0), Err(Some(4)));
    checks.same("VMRESUME", raw_entry(1), Ok(()));
    drop(machine);
    checks.ok("VMXOFF", cpu.off());
    reported();
    Seen::All
}

/// Numbers 7 and 8, exits 33 and 34: what is wrong with the VMCS. The control: the same VMCS
/// mended.
pub(super) fn invalid_vmcs(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let Some(()) = checks.ok("VMX on", cpu.on()) else { return Seen::All };
    let Some(mut machine) =
        checks.ok("a guest", VmxMachine::new(cpu, &guests::start(Program::Call)))
    else {
        return Seen::All;
    };
    checks.ok("fields", machine.prepare());
    let list = frame();
    // An MSR that no list may load: IA32_FS_BASE (SDM vol. 3C, 27.4).
    // SAFETY: the frame is new.
    unsafe { memory::at(list).cast::<[u64; 2]>().write([0xc000_0100, 0]) };
    let mut with = |checks: &mut Checks, what: &str, field: u32, value: u64, wanted| {
        let field = u64::from(field);
        // SAFETY: the VMCS is current; the entry is refused.
        unsafe {
            let before = vmx::vmread_raw(field);
            checks.same(what, vmx::vmwrite_raw(field, value), Ok(()));
            checks.same(what, machine.enter_raw().map(drop), Err(wanted));
            checks.same(what, machine.vmcs.is_launched(), false);
            checks.same(what, vmx::vmwrite_raw(field, before.unwrap_or(0)), Ok(()));
        }
    };
    let failed = |number| EntryError::Failed(valid(number));
    with(checks, "controls", field::PIN_CONTROLS.encoding(), 0, failed(7));
    let cr4 = host::cr4_register() & !VMXE;
    with(checks, "HOST_CR4 without VMXE", field::HOST_CR4.encoding(), cr4, failed(8));
    with(checks, "HOST_TR", field::HOST_TR_SELECTOR.encoding(), 0, failed(8));
    let guest = EntryError::GuestState { qualification: 0 };
    with(checks, "GUEST_CR4 without VMXE", field::GUEST_CR4.encoding(), 0x20, guest);
    with(checks, "RFLAGS", field::GUEST_RFLAGS.encoding(), 0, guest);
    // SAFETY: the VMCS is current; the entry is refused.
    let listed = unsafe { vmx::vmwrite(field::ENTRY_MSR_LOAD, list) };
    checks.same("list", listed, Ok(()));
    let count = field::ENTRY_MSR_LOAD_COUNT.encoding();
    with(checks, "a list of MSRs", count, 1, EntryError::MsrLoading { entry: 1 });
    checks.same("mended", machine.enter_raw().map(|reason| reason.basic()), Ok(18));
    drop(machine);
    memory::free(list);
    checks.ok("VMXOFF", cpu.off());
    reported();
    Seen::All
}
