//! VMX taken away, by a handler that nothing masks, in the middle of what is done with it.

use shootdown_virt::vmx::{self, EntryError, LoadError, field};
use shootdown_virt::{Failure, Instruction, teardown};

use super::inside::raw_entry;
use super::{INSTRUCTIONS, UD, execute, spare, valid, vmcall, vmclear_of, vmptrld_of, vmxon_of};
use crate::arch::expected;
use crate::virt::checks::{Checks, Seen, reported};
use crate::virt::elsewhere;
use crate::virt::host::{self, VMXE, VmxCpu};
use crate::virt::hypervisor::Machine;
use crate::virt::hypervisor::guests::{self, Program};
use crate::virt::hypervisor::vmx::{Error, VmxMachine};

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
pub(super) fn nmi_vmxoff(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
    after_nmi(cpu, checks, false);
    // An entry: the VMWRITEs of HOST_RSP and HOST_RIP, and then, when they are not needed any more,
    // VMLAUNCH and VMRESUME themselves.
    expected::on_non_maskable(Some(vmxoff_in_silence));
    entries(cpu, checks, UD);
    expected::on_non_maskable(None);
    Seen::All
}

/// VMX is taken away in order: all that follows is gone, and nobody hears of it.
pub(super) fn nmi_vmxoff_expected(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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
        // The stack is at the same place in each turn: the second one has no VMWRITE to do. With a
        // VMCS that is refused (no controls) it is launched again, with a good one resumed.
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

/// The emergency clears every VMCS of the CPU, whatever the CPU was doing, and everything unwinds
/// in order: the machine can be dropped, and the next kernel (here: the next `turn_on`) finds the
/// CPU outside of VMX operation.
pub(super) fn emergency_before_entry(cpu: &VmxCpu, checks: &mut Checks) -> Seen {
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
pub(super) struct EntryLoop;

impl elsewhere::Loop for EntryLoop {
    fn run(&self, turn: &mut dyn FnMut()) -> Result<bool, &'static str> {
        let cpu = VmxCpu::find().ok_or("no VMX")?;
        cpu.on().map_err(|_| "VMXON")?;
        let start = guests::start(Program::Call);
        // What fails because the interrupt has come before the guest was whole counts too.
        let gone = match VmxMachine::new(&cpu, &start) {
            Ok(mut machine) => loop {
                // it is cleared and loaded each time, so that the interrupt finds the list in every
                // state. SAFETY: VMX is on, or was taken away, and interrupts are
                // off.
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
