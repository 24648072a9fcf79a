//! Guests by SVM: they run, the host's bits are in force while they do, and a machine check reaches
//! the host.

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use shootdown_virt::host_bits::EXCEPTION_INTERCEPT;
use shootdown_virt::svm::ExitCode;
use shootdown_virt::vmx::GuestRegisters;

use super::Case;
use super::checks::{Checks, Seen, pattern, turned_over};
use super::host::{self, HANDLER_XCR0, MACHINE_CHECKS, SvmCpu};
use super::hypervisor::guests::{self, HEARD, Program};
use super::hypervisor::svm::SvmMachine;
use super::hypervisor::{self, Exit, Machine, Mode};
use crate::arch::{self, expected};
use crate::port::Deadline;
use crate::say;

/// All of them.
pub const CASES: &[Case<SvmCpu>] = &[
    Case::new("guest-16", |cpu, checks| hello(cpu, checks, Mode::Real, "16 bits\n")),
    Case::new("guest-32", |cpu, checks| hello(cpu, checks, Mode::Protected, "32 bits\n")),
    Case::new("guest-64", |cpu, checks| hello(cpu, checks, Mode::Long, "64 bits\n")),
    Case::new("registers", registers),
    Case::new("exception-intercept", exception_intercept),
    Case::new("cr4-intercepts", cr4_intercepts),
    Case::new("efer-hidden", efer_hidden),
    Case::new("mce-on-later", mce_on_later),
    Case::new("host-cr4-survives", host_cr4_survives),
    Case::new("machine-check", |cpu, checks| machine_check(cpu, checks, false)),
];

/// The negative control of `machine-check`: the machine does not survive it.
pub const WITHOUT_HOST_BITS: &[Case<SvmCpu>] =
    &[Case::new("machine-check", |cpu, checks| machine_check(cpu, checks, true))];

const MCE: u64 = 1 << 6;
const TSD: u64 = 1 << 2;
const PCE: u64 = 1 << 8;

/// Milliseconds within which somebody raises a machine check, if anybody does. A clock that counts
/// instructions goes slowly where a guest spins.
const PATIENCE: u32 = 100;

/// A machine, with SVM on.
fn machine(cpu: &SvmCpu, checks: &mut Checks, program: Program) -> Option<SvmMachine> {
    checks.ok("SVM on", cpu.on())?;
    checks.ok("a guest", SvmMachine::new(cpu, &guests::start(program)))
}

fn done(cpu: &SvmCpu, machine: SvmMachine) -> Seen {
    drop(machine);
    cpu.off();
    Seen::All
}

/// What the guest prints, and how it ends.
fn hello(cpu: &SvmCpu, checks: &mut Checks, mode: Mode, wanted: &str) -> Seen {
    let Some(mut machine) = machine(cpu, checks, Program::Hello(mode)) else { return Seen::All };
    let mut console = String::new();
    let end = hypervisor::run(&mut machine, |rax, _| {
        console.push(char::from(rax as u8));
        true
    });
    checks.same("end", end.ok(), Some(Exit::Call));
    checks.same("console", console.as_str(), wanted);
    done(cpu, machine)
}

/// Every register goes in, and comes out; RAX and CR2 by way of the VMCB.
fn registers(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    let Some(mut machine) = machine(cpu, checks, Program::Registers) else { return Seen::All };
    let before = pattern();
    *machine.registers() = before;
    machine.vmcb.save.rax = before.rax;
    machine.vmcb.save.cr2 = before.cr2;
    checks.ok("fields", machine.prepare());
    checks.same("exit", machine.enter_raw(), Ok(ExitCode::VMMCALL));
    let cr2 = machine.vmcb.save.cr2;
    let after = GuestRegisters { cr2, ..*machine.registers() };
    let wanted = turned_over(before);
    let loaded = after.r15 == wanted.r15;
    checks.same("registers", GuestRegisters { r15: wanted.r15, ..after }, wanted);
    done(cpu, machine);
    if !loaded && after.r15 == 0 {
        return Seen::Nothing("VMRUN does not load CR2 here");
    }
    checks.same("CR2 that the guest reads", after.r15, wanted.r15);
    Seen::All
}

/// An exception that is intercepted exits; one that is not is the guest's, whose handler tells by a
/// hypercall.
fn exception_intercept(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    let undefined = ExitCode::EXCEPTION.bits() + 6;
    for (intercepts, wanted) in [(1 << 6, undefined), (0, ExitCode::VMMCALL.bits())] {
        let Some(mut machine) = machine(cpu, checks, Program::Undefined) else { return Seen::All };
        machine.vmcb.control.exceptions = intercepts;
        checks.ok("fields", machine.prepare());
        checks.same("exit", machine.enter_raw().map(ExitCode::bits), Ok(wanted));
        done(cpu, machine);
    }
    Seen::All
}

/// The guest reads what it wrote, and runs with the host's MCE. The control, without the
/// intercepts: it reads and clears the real one.
fn cr4_intercepts(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    for intercepted in [true, false] {
        let Some(mut machine) = machine(cpu, checks, Program::Control) else { return Seen::All };
        if !intercepted {
            machine.vmcb.control.cr_reads = 0;
            machine.vmcb.control.cr_writes = 0;
        }
        let (mut told, mut effective) = (Vec::new(), Vec::new());
        while let Ok(exit) = hypervisor::Machine::enter(&mut machine) {
            let registers = *hypervisor::Machine::registers(&mut machine);
            if exit != Exit::Call || registers.rax == 0 {
                checks.same("end", exit, Exit::Call);
                break;
            }
            told.push(registers.rbx);
            effective.push(machine.vmcb.save.cr4);
        }
        let (reads, runs) = if intercepted {
            ([0x20, 0x20, 0x24, 0x60], [0x60, 0x60, 0x64, 0x60])
        } else {
            // It sees the host's MCE, and clears it for itself.
            ([0x60, 0x20, 0x24, 0x60], [0x60, 0x20, 0x24, 0x60])
        };
        checks.same("what the guest reads", told.as_slice(), &reads);
        checks.same("what it runs with", effective.as_slice(), &runs);
        done(cpu, machine);
    }
    Seen::All
}

/// The guest does not see EFER.SVME, and what it writes does not clear it.
fn efer_hidden(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    let Some(mut machine) = machine(cpu, checks, Program::Efer) else { return Seen::All };
    let mut told = Vec::new();
    let end = hypervisor::run(&mut machine, |_, rbx| {
        told.push(rbx);
        true
    });
    checks.same("end", end.ok(), Some(Exit::Call));
    checks.same("what the guest reads", told.as_slice(), &[0x500, 0x501]);
    checks.same("what it runs with", machine.vmcb.save.efer, 0x1501);
    done(cpu, machine)
}

/// A host that turns MCE on after the guest was made: the guest runs with it from the next entry
/// on. The control has the value of when the guest was made.
fn mce_on_later(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    host::change_cr4(0, MCE);
    let Some(mut machine) = machine(cpu, checks, Program::Call) else { return Seen::All };
    let enter = |checks: &mut Checks, machine: &mut SvmMachine, prepare: bool| {
        if prepare {
            checks.ok("fields", machine.prepare());
        }
        checks.same("it runs", machine.enter_raw().map(ExitCode::bits), Ok(0x81));
        machine.vmcb.save.cr4 & MCE
    };
    let got = enter(checks, &mut machine, true);
    checks.same("the host has it off", got, 0);
    host::change_cr4(MCE, 0);
    let got = enter(checks, &mut machine, false);
    checks.same("without the check", got, 0);
    let got = enter(checks, &mut machine, true);
    checks.same("with the check", got, MCE);
    done(cpu, machine)
}

/// The host changes its CR4 after the guest was made: VMRUN saves the host's, so no exit undoes it.
fn host_cr4_survives(cpu: &SvmCpu, checks: &mut Checks) -> Seen {
    let Some(mut machine) = machine(cpu, checks, Program::Call) else { return Seen::All };
    checks.ok("fields", machine.prepare());
    checks.same("it runs", machine.enter_raw().map(ExitCode::bits), Ok(0x81));
    let before = host::cr4();
    host::change_cr4(TSD | PCE, 0);
    checks.same("it runs on", machine.enter_raw().map(ExitCode::bits), Ok(0x81));
    checks.same("the host's", host::cr4_register(), before | TSD | PCE);
    host::change_cr4(0, TSD | PCE);
    done(cpu, machine)
}

/// A machine check comes while a guest runs that has cleared its MCE: the host hears of it, and
/// both go on. Somebody outside raises it when the line `inject:` is printed. Without `HostBits`
/// the guest runs with MCE clear, and the machine is reset.
fn machine_check(cpu: &SvmCpu, checks: &mut Checks, without: bool) -> Seen {
    let Some(mut machine) = machine(cpu, checks, Program::Quiet) else { return Seen::All };
    machine.without_host_bits = without;
    checks.same(
        "it would exit",
        machine.vmcb.control.exceptions & EXCEPTION_INTERCEPT,
        EXCEPTION_INTERCEPT,
    );
    expected::on_machine_check(Some(host::machine_check));
    let (before, own) = (MACHINE_CHECKS.load(Relaxed), host::extended().xcr0);
    let deadline = Deadline::in_ms(u64::from(PATIENCE) / 2);
    // Nothing else would end a guest that waits in vain.
    arch::interrupt_after_ms(PATIENCE);
    let mut heard = 0;
    let end = hypervisor::run(&mut machine, |rax, _| {
        if rax == HEARD {
            // The guest's handler has it, on an emulator that ignores the intercept: it hands it
            // on.
            heard += 1;
            host::machine_check();
        } else {
            say!("inject: a machine check on CPU 0, while its guest spins with CR4.MCE clear");
        }
        true
    });
    drop(deadline);
    arch::interrupt_never();
    expected::on_machine_check(None);
    let checked = MACHINE_CHECKS.load(Relaxed) - before;
    if checked == 0 {
        checks.same("it was waited for", end.ok(), Some(Exit::Interrupt));
        done(cpu, machine);
        return Seen::Nothing("nobody raised a machine check");
    }
    checks.same("the guest goes on", end.ok(), Some(Exit::Call));
    checks.same("once", checked, 1);
    checks.same("XCR0 of the handler", HANDLER_XCR0.load(Relaxed), own);
    checks.same("what the guest reads", machine.control.cr4() & MCE, 0);
    checks.same("what it runs with", machine.vmcb.save.cr4 & MCE, MCE);
    done(cpu, machine);
    if heard > 0 {
        say!("virt: the machine check came to the guest's handler: intercept 18 is ignored here");
    }
    Seen::All
}
