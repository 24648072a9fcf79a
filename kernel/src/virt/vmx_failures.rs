//! Every VMX instruction with every failure that can be provoked: each comes back as the value that the manual says.

use shootdown_virt::vmx::{
    self, Descriptor, EntryError, Hypercall, InstructionError, Invept, Invvpid, LoadError,
    RegionAddress, TurnOnError, Vpid, field,
};
use shootdown_virt::{Failure, Fault, Instruction, may_fault, teardown};

use super::Case;
use super::checks::{Checks, Seen, reported};
use super::elsewhere;
use super::host::{self, VMXE, VmxCpu};
use super::hypervisor::guests::{self, Program};
use super::hypervisor::vmx::{Error, VmxMachine};
use super::hypervisor::{Machine, frame};
use crate::arch::expected;
use crate::crash::NOWHERE;
use crate::memory;

/// All of them.
pub const CASES: &[Case<VmxCpu>] = &[
    Case::new("outside", outside),
    Case::new("nmi-vmxoff", nmi_vmxoff),
    Case::new("nmi-vmxoff-expected", nmi_vmxoff_expected),
    Case::new("nmi-emergency-entry", emergency_before_entry),
    Case::new("nmi-from-elsewhere", |_, checks| elsewhere::taken_away(&EntryLoop, checks)),
    Case::new("faults-of-operands", faults_of_operands),
    Case::new("vmxon-refused", vmxon_refused),
    Case::new("turn-on", turn_on),
    Case::new("no-current-vmcs", no_current_vmcs),
    Case::new("numbers", numbers),
    Case::new("read-only-field", read_only_field),
    Case::new("launch-state", launch_state),
    Case::new("invalid-vmcs", invalid_vmcs),
    Case::new("operand-types", operand_types),
];

const UD: Failure = Failure::Fault(Fault::UndefinedOpcode);

/// Not canonical with 48 bits of linear address or with 57.
const NOT_CANONICAL: u64 = 0x8000_0000_0000_0000;

fn valid(number: u32) -> Failure {
    Failure::Valid(InstructionError::from_number(number))
}

/// Each instruction but for entries, VMXON and VMCALL. The order matters: VMCLEAR comes before what needs a current VMCS.
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

/// Executes one, with operands that nothing is wrong with; where it succeeds it changes nothing that a case relies on.
fn execute(instruction: Instruction, cpu: &VmxCpu) -> Result<(), Failure> {
    // SAFETY: privilege level 0, the handlers ask `fixup`, interrupts are off; the regions are the CPU's, and no guest relies
    // on what is invalidated or written.
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
    // SAFETY: nothing runs this kernel by VMX in the machines that the suite is for; a hypervisor that does gives the number
    // no meaning.
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

/// Before VMXON, with CR4.VMXE clear and set. The control: with VMX on they succeed.
fn outside(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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

/// An NMI: `int 2` raises one between two instructions.
fn raise_nmi() {
    // SAFETY: the handler is the kernel's, and returns where somebody expects it.
    unsafe { core::arch::asm!("int 2") };
}

/// What the NMIs below do: VMX off, and nothing said about it.
fn vmxoff_in_silence() {
    // SAFETY: as in `execute`. The bit is cleared behind the copy, as an emergency does.
    unsafe {
        let _ = vmx::vmxoff();
        let cr4 = host::cr4_register() & !VMXE;
        shootdown_arch::x86_64::write_cr4(shootdown_arch::x86_64::Cr4::from_bits(cr4));
    }
}

/// Each wrapper comes after an NMI that has turned VMX off; `gone`: in the order of an emergency.
fn after_nmi(cpu: &VmxCpu, checks: &mut Checks, gone: bool) {
    let wanted = if gone { Failure::Gone } else { UD };
    expected::on_non_maskable(Some(if gone { host::vmx_emergency } else { vmxoff_in_silence }));
    for instruction in INSTRUCTIONS {
        if checks.ok("VMX on", cpu.resume()).is_none() {
            break;
        }
        let own = spare(cpu).get();
        checks.same("a VMCS", vmclear_of(own).and_then(|()| vmptrld_of(own)), Ok(()));
        // The control: without the NMI it succeeds (VMFUNC is a guest's).
        if !matches!(instruction, Instruction::Vmxoff | Instruction::Vmfunc) {
            checks.same(instruction.name(), execute(instruction, cpu), Ok(()));
        }
        reported();
        raise_nmi();
        checks.same(instruction.name(), execute(instruction, cpu), Err(wanted));
        checks.same("report", reported().is_some(), !gone);
    }
    checks.ok("VMX on", cpu.resume());
    raise_nmi();
    checks.same("VMCALL", vmcall(), Err(wanted));
    checks.same("VMXON", vmxon_of(cpu.vmxon_region().get()), Err(wanted));
    expected::on_non_maskable(None);
    host::after_emergency();
}

/// VMX is off after an NMI, and nobody has said so: a defect, which the hook hears of.
fn nmi_vmxoff(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    after_nmi(cpu, checks, false);
    // An entry: the VMWRITEs of HOST_RSP and HOST_RIP, and then, when they are not needed any more, VMLAUNCH and
    // VMRESUME themselves.
    expected::on_non_maskable(Some(vmxoff_in_silence));
    entries(cpu, checks, UD);
    expected::on_non_maskable(None);
    Seen::All
}

/// VMX is taken away in order: all that follows is gone, and nobody hears of it.
fn nmi_vmxoff_expected(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    after_nmi(cpu, checks, true);
    expected::on_non_maskable(Some(host::vmx_emergency));
    entries(cpu, checks, Failure::Gone);
    expected::on_non_maskable(None);
    Seen::All
}

/// Entries after an NMI has turned VMX off.
fn entries(cpu: &VmxCpu, checks: &mut Checks, wanted: Failure) {
    for launched in [false, true] {
        let Some(()) = checks.ok("VMX on", cpu.resume()) else { return };
        let Some(mut machine) =
            checks.ok("a guest", VmxMachine::new(cpu, &guests::start(Program::Call)))
        else {
            return;
        };
        checks.ok("fields", machine.prepare());
        // The stack is at the same place in each turn: the second one has no VMWRITE to do. With a VMCS that is refused
        // (no controls) it is launched again, with a good one resumed.
        if !launched {
            // SAFETY: the VMCS is current; VMLAUNCH refuses it.
            checks.ok("pin controls", unsafe { vmx::vmwrite(field::PIN_CONTROLS, 0) });
        }
        let mut got = [Ok(()); 2];
        for (turn, got) in got.iter_mut().enumerate() {
            if turn == 1 {
                raise_nmi();
            }
            *got = machine.enter_raw().map(drop);
        }
        let first = if launched { Ok(()) } else { Err(EntryError::Failed(valid(7))) };
        let name = if launched { "VMRESUME" } else { "VMLAUNCH" };
        checks.same(name, got[0], first);
        checks.same(name, got[1], Err(EntryError::Failed(wanted)));
        checks.ok("VMX on", cpu.resume());
        drop(machine);
        checks.ok("VMXOFF", cpu.off());
        reported();
    }
}

/// The emergency clears every VMCS of the CPU, whatever the CPU was doing, and everything unwinds in order: the machine
/// can be dropped, and the next kernel (here: the next `turn_on`) finds the CPU outside of VMX operation.
fn emergency_before_entry(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let Some(()) = checks.ok("VMX on", cpu.on()) else { return Seen::All };
    let start = guests::start(Program::Call);
    let (first, second) = (VmxMachine::new(cpu, &start), VmxMachine::new(cpu, &start));
    let (Some(first), Some(mut second)) =
        (checks.ok("a guest", first), checks.ok("another", second))
    else {
        return Seen::All;
    };
    checks.ok("fields", second.prepare());
    checks.same("it runs", second.enter_raw().map(|reason| reason.basic()), Ok(18));
    expected::on_non_maskable(Some(host::vmx_emergency));
    raise_nmi();
    expected::on_non_maskable(None);
    checks.same("CR4.VMXE", host::cr4_register() & VMXE, 0);
    checks.same("flag", teardown::has_begun(), true);
    let next = second.enter_raw();
    checks.same("next entry", next.map(drop), Err(EntryError::Failed(Failure::Gone)));
    // SAFETY: VMX is off; the read is 0.
    checks.same("a read", unsafe { vmx::vmread_or_zero(field::GUEST_CR4) }, 0);
    checks.holds("list", !cpu.loaded.is_empty(), format_args!("empty before it was unwound"));
    // The emergency has cleared both: what was launched is not any more, and is launched anew.
    checks.ok("VMX on", cpu.resume());
    let region = second.vmcs.region().get();
    checks.same("VMPTRLD", vmptrld_of(region), Ok(()));
    checks.same("VMRESUME", raw_entry(1), Err(Some(5)));
    checks.ok("load", second.load());
    checks.same("launched", second.vmcs.is_launched(), false);
    checks.same("it runs again", second.enter_raw().map(|reason| reason.basic()), Ok(18));
    drop(first);
    drop(second);
    checks.same("list", cpu.loaded.is_empty(), true);
    checks.ok("VMXOFF", cpu.off());
    Seen::All
}

/// The loop of `elsewhere`.
struct EntryLoop;

impl elsewhere::Loop for EntryLoop {
    fn run(&self, turn: &mut dyn FnMut()) -> Result<bool, &'static str> {
        let cpu = VmxCpu::find().ok_or("no VMX")?;
        cpu.on().map_err(|_| "VMXON")?;
        let start = guests::start(Program::Call);
        // What fails because the interrupt has come before the guest was whole counts too.
        let gone = match VmxMachine::new(&cpu, &start) {
            Ok(mut machine) => loop {
                // it is cleared and loaded each time, so that the interrupt finds the list in every state.
                // SAFETY: VMX is on, or was taken away, and interrupts are off.
                let cleared = unsafe { machine.vmcs.as_ref().clear(cpu.loaded) };
                let loaded = cleared.map_err(Error::Load).and_then(|()| machine.load());
                let entered = loaded.and_then(|()| machine.enter());
                match entered {
                    Ok(_) => turn(),
                    Err(
                        Error::Entry(EntryError::Failed(failure))
                        | Error::Vmcs(failure)
                        | Error::Load(LoadError::Failed(failure)),
                    ) => {
                        break failure == Failure::Gone;
                    }
                    Err(_) => break false,
                }
            },
            Err(_) => false,
        };
        let clean = cpu.loaded.is_empty() && host::cr4_register() & VMXE == 0;
        cpu.free();
        Ok(gone && clean)
    }

    fn emergency(&self) -> expected::Handler {
        host::vmx_emergency
    }
}

/// #GP, #PF and #SS of a memory operand, and #GP of VMXON where CR0 is not as VMX needs it. The control: the same
/// instruction with an operand that is there.
fn faults_of_operands(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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

/// VMXON refuses a region that is misaligned, too wide, or of another revision; the typed operand can't be any of the
/// first two.
fn vmxon_refused(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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

/// `turn_on` and `turn_off` say what is in the way, and change nothing then.
fn turn_on(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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
fn no_current_vmcs(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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
fn numbers(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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
fn read_only_field(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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
fn raw_entry(resume: u64) -> Result<(), Option<u32>> {
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
fn launch_state(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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

/// Numbers 7 and 8, exits 33 and 34: what is wrong with the VMCS. The control: the same VMCS mended.
fn invalid_vmcs(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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

/// Operands that no value of their types can be.
fn operand_types(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    checks.same("VPID 0", Vpid::new(0).is_err(), true);
    let has = cpu.capabilities.ept_vpid;
    checks.same("INVEPT", Invept::All.on(has).is_ok(), cpu.capabilities.ept());
    checks.same("INVVPID", Invvpid::All.on(has).is_ok(), cpu.capabilities.vpid());
    checks.same("a VMCS elsewhere", cpu.region(u64::MAX << 12).is_err(), true);
    Seen::All
}
