//! Guests by VMX: they run, and the host's bits are in force while they do.

use alloc::string::String;
use alloc::vec::Vec;

use shootdown_virt::vmx::{self, ExitReason, field};

use super::Case;
use super::checks::{Checks, Seen, pattern, turned_over};
use super::host::{self, VMXE, VmxCpu};
use super::hypervisor::guests::{self, Program};
use super::hypervisor::vmx::VmxMachine;
use super::hypervisor::{self, Exit, Machine, Mode};

/// All of them.
pub const CASES: &[Case<VmxCpu>] = &[
    Case::new("guest-16", |cpu, checks| hello(cpu, checks, Mode::Real, "16 bits\n")),
    Case::new("guest-32", |cpu, checks| hello(cpu, checks, Mode::Protected, "32 bits\n")),
    Case::new("guest-64", |cpu, checks| hello(cpu, checks, Mode::Long, "64 bits\n")),
    Case::new("registers", registers),
    Case::new("exception-bitmap", exception_bitmap),
    Case::new("cr4-shadow", cr4_shadow),
    Case::new("host-cr4-survives", host_cr4_survives),
    Case::new("mce-on-later", mce_on_later),
    Case::new("machine-check", |_, _| {
        Seen::Nothing("nothing raises a machine check in a machine with VMX here")
    }),
];

const MCE: u64 = 1 << 6;
const TSD: u64 = 1 << 2;
const PCE: u64 = 1 << 8;

/// A machine, with VMX on.
fn machine(cpu: &VmxCpu, checks: &mut Checks, program: Program) -> Option<VmxMachine> {
    checks.ok("VMX on", cpu.on())?;
    checks.ok("a guest", VmxMachine::new(cpu, &guests::start(program)))
}

fn done(cpu: &VmxCpu, checks: &mut Checks, machine: VmxMachine) -> Seen {
    drop(machine);
    checks.ok("VMXOFF", cpu.off());
    Seen::All
}

/// What the guest prints, and how it ends.
fn hello(cpu: &VmxCpu, checks: &mut Checks, mode: Mode, wanted: &str) -> Seen {
    let Some(mut machine) = machine(cpu, checks, Program::Hello(mode)) else { return Seen::All };
    let mut console = String::new();
    let end = hypervisor::run(&mut machine, |rax, _| {
        console.push(char::from(rax as u8));
        true
    });
    checks.same("end", end.ok(), Some(Exit::Call));
    checks.same("console", console.as_str(), wanted);
    done(cpu, checks, machine)
}

/// Every register goes in, and comes out.
fn registers(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let Some(mut machine) = machine(cpu, checks, Program::Registers) else { return Seen::All };
    *machine.registers() = pattern();
    checks.ok("fields", machine.prepare());
    checks.same("exit", machine.enter_raw().map(ExitReason::basic), Ok(ExitReason::VMCALL));
    checks.same("registers", *machine.registers(), turned_over(pattern()));
    done(cpu, checks, machine)
}

/// An exception that the bitmap names exits; one that it does not is the guest's, whose handler
/// tells by a hypercall.
fn exception_bitmap(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    for (bitmap, wanted) in [(1 << 6, ExitReason::EXCEPTION_OR_NMI), (0, ExitReason::VMCALL)] {
        let Some(mut machine) = machine(cpu, checks, Program::Undefined) else { return Seen::All };
        // SAFETY: the VMCS is current.
        checks.ok("bitmap", unsafe { vmx::vmwrite(field::EXCEPTION_BITMAP, bitmap) });
        checks.ok("fields", machine.prepare());
        checks.same("exit", machine.enter_raw().map(ExitReason::basic), Ok(wanted));
        done(cpu, checks, machine);
    }
    Seen::All
}

/// The guest reads what it wrote, and runs with the host's MCE; VMXE is not its to see.
fn cr4_shadow(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    let Some(mut machine) = machine(cpu, checks, Program::Control) else { return Seen::All };
    let mut told = Vec::new();
    let mut effective = Vec::new();
    let end = hypervisor::run(&mut machine, |_, rbx| {
        told.push(rbx);
        // SAFETY: the VMCS is current.
        effective.push(unsafe { vmx::vmread_or_zero(field::GUEST_CR4) });
        true
    });
    checks.same("end", end.ok(), Some(Exit::Call));
    checks.same("what the guest reads", told.as_slice(), &[0x20, 0x20, 0x24, 0x60]);
    let own = VMXE | MCE;
    let wanted = [0x20, 0x20, 0x24, 0x20].map(|guest| guest | own);
    checks.same("what it runs with", effective.as_slice(), &wanted);
    done(cpu, checks, machine)
}

/// The host changes its CR4 after the guest was made: an exit does not undo it. The control writes
/// HOST_CR4 once.
fn host_cr4_survives(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    for once in [true, false] {
        let Some(mut machine) = machine(cpu, checks, Program::Call) else { return Seen::All };
        checks.ok("fields", machine.prepare());
        checks.same("it runs", machine.enter_raw().map(ExitReason::basic), Ok(18));
        let before = host::cr4();
        host::change_cr4(TSD | PCE, MCE);
        let wanted = host::cr4();
        if !once {
            checks.ok("fields", machine.prepare());
        }
        // It is still at its VMCALL, which exits once more.
        checks.same("it runs on", machine.enter_raw().map(ExitReason::basic), Ok(18));
        // The exit has loaded HOST_CR4: the old one, which is the defect, or this CPU's.
        let got = host::cr4_register();
        if once {
            checks.same("HOST_CR4 written once", got, before);
            // The register again, as the copy says.
            host::restore_cr4();
        } else {
            checks.same("HOST_CR4 compared", got, wanted);
        }
        host::change_cr4(before & MCE, TSD | PCE);
        checks.same("CR4 as before", host::cr4_register(), before);
        done(cpu, checks, machine);
    }
    Seen::All
}

/// A host that turns MCE on after the guest was made: the guest runs with it from the next entry
/// on. The control has the value of when the guest was made.
fn mce_on_later(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    host::change_cr4(0, MCE);
    let Some(mut machine) = machine(cpu, checks, Program::Call) else { return Seen::All };
    let enter = |checks: &mut Checks, machine: &mut VmxMachine, prepare: bool| {
        if prepare {
            checks.ok("fields", machine.prepare());
        }
        checks.same("it runs", machine.enter_raw().map(ExitReason::basic), Ok(18));
        // SAFETY: the VMCS is current; what an exit saves in the field is what the guest ran with.
        unsafe { vmx::vmread_or_zero(field::GUEST_CR4) & MCE }
    };
    let got = enter(checks, &mut machine, true);
    checks.same("the host has it off", got, 0);
    host::change_cr4(MCE, 0);
    let got = enter(checks, &mut machine, false);
    checks.same("without the check", got, 0);
    // That exit has loaded the HOST_CR4 of before: put this CPU's back.
    host::restore_cr4();
    let got = enter(checks, &mut machine, true);
    checks.same("with the check", got, MCE);
    checks.same("the host's", host::cr4_register() & MCE, MCE);
    done(cpu, checks, machine)
}
