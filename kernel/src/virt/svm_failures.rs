//! Every SVM instruction with every failure that can be provoked: each comes back as the value that
//! the manual says.

use shootdown_arch::x86_64::{LinearAddress, LinearWidth};
use shootdown_virt::svm::{
    self, Asid, EntryError, OperandError, TlbControl, TurnOnError, VmcbAddress,
};
use shootdown_virt::vmx::Hypercall;
use shootdown_virt::{Failure, Fault, Instruction, may_fault, teardown};

use super::Case;
use super::checks::{Checks, Seen, reported};
use super::elsewhere;
use super::host::{self, SvmCpu};
use super::hypervisor::guests::{self, Program};
use super::hypervisor::svm::{Error, SvmMachine};
use super::hypervisor::{Machine, frame};
use crate::arch::expected;
use crate::memory;

/// All of them.
pub const CASES: &[Case<SvmCpu>] = &[
    Case::new("outside", outside),
    Case::new("nmi-svme-off", |cpu, checks| after_nmi(cpu, checks, false)),
    Case::new("nmi-svme-off-expected", |cpu, checks| after_nmi(cpu, checks, true)),
    Case::new("nmi-from-elsewhere", |_, checks| elsewhere::taken_away(&EntryLoop, checks)),
    Case::new("addresses", addresses),
    Case::new("turn-on", turn_on),
    Case::new("invalid-vmcb", invalid_vmcb),
    Case::new("gif", gif),
    Case::new("host-save-area", host_save_area),
    Case::new("operand-types", operand_types),
];

const UD: Failure = Failure::Fault(Fault::UndefinedOpcode);
const GP: Failure = Failure::Fault(Fault::Protection);

/// Each instruction but for VMRUN and VMMCALL. The order matters: what VMLOAD loads was saved
/// before.
const INSTRUCTIONS: [Instruction; 5] = [
    Instruction::Vmsave,
    Instruction::Vmload,
    Instruction::Clgi,
    Instruction::Stgi,
    Instruction::Invlpga,
];

/// Executes one, with operands that nothing is wrong with.
fn execute(instruction: Instruction, cpu: &SvmCpu) -> Result<(), Failure> {
    let address = LinearAddress::new(0x1000, LinearWidth::Bits48).expect("canonical");
    let asid = Asid::new(1, cpu.capabilities.asids).expect("there is more than the host's");
    // SAFETY: privilege level 0, the handlers ask `fixup`, interrupts are off; the page is the
    // CPU's, and holds this CPU's state when it is loaded.
    unsafe {
        match instruction {
            Instruction::Vmsave => svm::vmsave(cpu.host_state()),
            Instruction::Vmload => svm::vmload(cpu.host_state()),
            Instruction::Clgi => svm::clgi(),
            Instruction::Stgi => svm::stgi(),
            Instruction::Invlpga => svm::invlpga(address, asid),
            other => unreachable!("{other} is not in the list"),
        }
    }
}

fn vmmcall() -> Result<(), Failure> {
    // SAFETY: no hypervisor gives the number a meaning.
    unsafe { svm::vmmcall(&mut Hypercall { rax: 0xffff_ffff, rbx: 1, rcx: 2, rdx: 3 }) }
}

fn vmrun(address: u64) -> Result<(), Failure> {
    // SAFETY: it faults: SVM is off, or the address is none of a VMCB.
    unsafe { svm::vmrun_raw(address) }
}

/// With EFER.SVME clear. The control: with it set they succeed, but for VMMCALL, which is a
/// guest's.
fn outside(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    for instruction in INSTRUCTIONS {
        reported();
        checks.same(instruction.name(), execute(instruction, cpu), Err(UD));
        let heard = reported().map(|report| (report.instruction, report.failure));
        checks.same("report", heard, Some((instruction, UD)));
    }
    checks.same("VMRUN", vmrun(cpu.host_state().get()), Err(UD));
    checks.same("VMRUN is not reported", reported(), None);
    checks.same("VMMCALL", vmmcall(), Err(UD));
    let Some(()) = checks.ok("SVM on", cpu.on()) else { return Seen::All };
    for instruction in INSTRUCTIONS {
        checks.same(instruction.name(), execute(instruction, cpu), Ok(()));
    }
    checks.same("VMMCALL in the host", vmmcall(), Err(UD));
    cpu.off();
    reported();
    Seen::All
}

fn raise_nmi() {
    // SAFETY: the handler is the kernel's, and returns where somebody expects it.
    unsafe { core::arch::asm!("int 2") };
}

/// SVM off, and nothing said about it.
fn svme_off_in_silence() {
    // SAFETY: the case runs no guest before SVM is on again.
    unsafe { svm::turn_off() };
}

/// SVM off in the order of an emergency.
fn emergency() {
    // SAFETY: as above.
    unsafe { svm::emergency_off() };
}

/// Each wrapper comes after an NMI that has turned SVM off; `gone`: in the order of an emergency.
fn after_nmi(cpu: &SvmCpu, checks: &mut Checks, gone: bool) -> Seen {
    let wanted = if gone { Failure::Gone } else { UD };
    expected::on_non_maskable(Some(if gone { emergency } else { svme_off_in_silence }));
    for instruction in INSTRUCTIONS {
        teardown::cancel();
        let Some(()) = checks.ok("SVM on", cpu.on()) else { return Seen::All };
        // What VMLOAD loads was saved before.
        // SAFETY: as in `execute`.
        checks.same("VMSAVE", unsafe { svm::vmsave(cpu.host_state()) }, Ok(()));
        checks.same(instruction.name(), execute(instruction, cpu), Ok(()));
        // SAFETY: as in `execute`. An NMI of `int` comes with the global flag clear too, and CLGI
        // was one of them.
        checks.same("STGI", unsafe { svm::stgi() }, Ok(()));
        reported();
        raise_nmi();
        checks.same(instruction.name(), execute(instruction, cpu), Err(wanted));
        checks.same("report", reported().is_some(), !gone);
    }
    teardown::cancel();
    checks.ok("SVM on", cpu.on());
    if let Some(mut machine) =
        checks.ok("a guest", SvmMachine::new(cpu, &guests::start(Program::Call)))
    {
        checks.ok("fields", machine.prepare());
        checks.same("it runs", machine.enter_raw().map(|code| code.bits()), Ok(0x81));
        raise_nmi();
        let got = machine.enter_raw().map(drop);
        checks.same("entry", got, Err(EntryError::Failed(wanted)));
        let vmrun = vmrun(cpu.host_state().get());
        checks.same("VMRUN", vmrun, Err(wanted));
    }
    expected::on_non_maskable(None);
    teardown::cancel();
    checks.ok("SVM on", cpu.on());
    cpu.off();
    reported();
    Seen::All
}

/// The loop of `elsewhere`.
struct EntryLoop;

impl elsewhere::Loop for EntryLoop {
    fn run(&self, turn: &mut dyn FnMut()) -> Result<bool, &'static str> {
        let cpu = SvmCpu::find().ok_or("no SVM")?;
        cpu.on().map_err(|_| "SVM is on")?;
        let gone = match SvmMachine::new(&cpu, &guests::start(Program::Call)) {
            Ok(mut machine) => loop {
                match machine.enter() {
                    Ok(_) => turn(),
                    Err(Error::Entry(EntryError::Failed(failure))) => {
                        break failure == Failure::Gone;
                    }
                    Err(_) => break false,
                }
            },
            Err(_) => false,
        };
        let clean = host::efer() & 1 << 12 == 0;
        cpu.free();
        Ok(gone && clean)
    }

    fn emergency(&self) -> expected::Handler {
        emergency
    }
}

/// #GP for an address that is misaligned or too wide; the typed operand can't be either.
fn addresses(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    let Some(()) = checks.ok("SVM on", cpu.on()) else { return Seen::All };
    let page = cpu.host_state().get();
    for wrong in [page + 8, 1 << cpu.physical_bits, 1 << 63] {
        // SAFETY: as in `execute`; the address is refused.
        unsafe {
            checks.same("VMSAVE", svm::vmsave_raw(wrong), Err(GP));
            checks.same("VMLOAD", svm::vmload_raw(wrong), Err(GP));
        }
        let report = reported().map(|report| (report.instruction, report.operand));
        checks.same("report", report, Some((Instruction::Vmload, wrong)));
        checks.same("VMRUN", vmrun(wrong), Err(GP));
        let typed = VmcbAddress::new(wrong, cpu.physical_bits);
        checks.same("no VMCB", typed.is_err(), true);
    }
    // SAFETY: as in `execute`.
    checks.same("the control", unsafe { svm::vmsave_raw(page) }, Ok(()));
    cpu.off();
    Seen::All
}

/// `turn_on` says what is in the way.
fn turn_on(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    checks.ok("on", cpu.on());
    checks.same("again", cpu.on(), Err(TurnOnError::OnAlready));
    cpu.off();
    checks.same("SVME", host::efer() & 1 << 12, 0);
    checks.ok("on again", cpu.on());
    cpu.off();
    Seen::All
}

/// VMEXIT_INVALID: what is wrong with the VMCB; what it was to flush is still pending. The control:
/// the same VMCB mended.
fn invalid_vmcb(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    let Some(()) = checks.ok("SVM on", cpu.on()) else { return Seen::All };
    let Some(mut machine) =
        checks.ok("a guest", SvmMachine::new(cpu, &guests::start(Program::Call)))
    else {
        return Seen::All;
    };
    checks.ok("fields", machine.prepare());
    type Spoil = fn(&mut svm::Vmcb);
    let spoils: [(&str, Spoil); 4] = [
        ("no intercept of VMRUN", |vmcb| vmcb.control.intercepts_svm &= !svm::intercept::VMRUN),
        ("EFER.SVME clear", |vmcb| vmcb.save.efer &= !(1 << 12)),
        ("reserved bits of CR4", |vmcb| vmcb.save.cr4 |= 1 << 40),
        ("ASID 0", |vmcb| *vmcb = svm::Vmcb::new()),
    ];
    for (what, spoil) in spoils {
        let before = *machine.vmcb;
        spoil(machine.vmcb);
        let flush = machine.vmcb.flush(TlbControl::AllAsids, false);
        checks.same(what, flush, Ok(()));
        checks.same(what, machine.enter_raw().map(drop), Err(EntryError::Invalid));
        checks.same("the flush is still pending", machine.vmcb.pending_flush(), 1);
        *machine.vmcb = before;
    }
    checks.same("a flush is pending", machine.vmcb.pending_flush(), 1);
    checks.same("mended", machine.enter_raw().map(|code| code.bits()), Ok(0x81));
    checks.same("the flush is done", machine.vmcb.pending_flush(), 0);
    drop(machine);
    cpu.off();
    Seen::All
}

static NMIS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// With the global interrupt flag clear an NMI is held; STGI lets it in.
fn gif(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    use core::sync::atomic::Ordering::Relaxed;
    let Some(()) = checks.ok("SVM on", cpu.on()) else { return Seen::All };
    NMIS.store(0, Relaxed);
    expected::on_non_maskable(Some(|| {
        NMIS.fetch_add(1, Relaxed);
    }));
    let send = || crate::arch::send_nmi(crate::arch::cpu());
    let soon = || (0..10_000).for_each(|_| core::hint::spin_loop());
    checks.ok("NMI", send());
    soon();
    checks.same("the control", NMIS.load(Relaxed), 1);
    // SAFETY: as in `execute`.
    checks.same("CLGI", unsafe { svm::clgi() }, Ok(()));
    checks.ok("NMI", send());
    soon();
    let held = NMIS.load(Relaxed);
    // SAFETY: as in `execute`.
    checks.same("STGI", unsafe { svm::stgi() }, Ok(()));
    soon();
    checks.same("held", held, 1);
    checks.same("let in", NMIS.load(Relaxed), 2);
    // An emergency that comes while the flag is clear (by a machine check) sets it: INIT and NMI
    // get through. SAFETY: as in `execute`.
    checks.same("CLGI", unsafe { svm::clgi() }, Ok(()));
    emergency();
    checks.ok("NMI", send());
    soon();
    checks.same("after an emergency", NMIS.load(Relaxed), 3);
    teardown::cancel();
    expected::on_non_maskable(None);
    Seen::All
}

/// #GP for a page of the host's state that is none.
fn host_save_area(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    const VM_HSAVE_PA: u32 = 0xc001_0117;
    let Some(()) = checks.ok("SVM on", cpu.on()) else { return Seen::All };
    let page = frame();
    let control = wrmsr(VM_HSAVE_PA, page);
    let got = wrmsr(VM_HSAVE_PA, page + 8);
    cpu.off();
    memory::free(page);
    checks.same("the control", control, Ok(()));
    if got.is_ok() {
        return Seen::Nothing("VM_HSAVE_PA takes any address here, and is not used");
    }
    checks.same("misaligned", got, Err("#GP"));
    Seen::All
}

/// WRMSR that may fault.
fn wrmsr(number: u32, value: u64) -> Result<(), &'static str> {
    // SAFETY: VM_HSAVE_PA is written before it is used.
    unsafe {
        core::arch::asm!(
            may_fault!("wrmsr"),
            in("ecx") number, in("eax") value as u32, in("edx") (value >> 32) as u32,
            ud = label { return Err("#UD") },
            gp = label { return Err("#GP") },
            ss = label { return Err("#SS") },
            pf = label { return Err("#PF") },
            options(nostack)
        );
    }
    Ok(())
}

/// Operands that the CPU would take without a word, and no value of their types can be.
fn operand_types(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    let count = cpu.capabilities.asids;
    checks.same("ASID 0", Asid::new(0, count), Err(OperandError::HostAsid));
    let beyond = Err(OperandError::NoSuchAsid { asid: count, count });
    checks.same("an ASID beyond", Asid::new(count, count), beyond);
    let flush = TlbControl::ThisAsid.bits(cpu.capabilities.flush_by_asid);
    checks.same("a flush by ASID", flush.is_ok(), cpu.capabilities.flush_by_asid);
    Seen::All
}
