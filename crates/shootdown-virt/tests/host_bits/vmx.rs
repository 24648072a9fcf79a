//! VMX of the hardware: VM entry, what a guest does, VM exit (SDM 3C 25.1.3, 25.3, 26.2, 26.3,
//! 27.5).

use std::collections::HashMap;

use shootdown_virt::host_bits::{
    CrAccess, CrField, EXCEPTION_INTERCEPT, FixedBits, GuestControl, HostBits, HostControl,
    MachineCheck, MachineCheckTime, Outcome, VmxControl, VmxGuest, VmxOptions, VmxRules, VmxUpdate,
};
use shootdown_virt::vmx::ExitReason;

use crate::oracle::{self, Faults, bit};
use crate::{CPUS, Cpu, Instruction, Op, VCPUS, off};

/// FIXED0 and FIXED1 of CR4.
fn fixed_cr4() -> [u64; 2] {
    [bit::VMXE, oracle::cr4_has() | bit::VMXE]
}

const FIXED_CR0: [u64; 2] = [0x8000_0021, 0xffff_ffff];

/// The control registers of guest mode, and the fields by their encodings.
struct Vmcs {
    fields: HashMap<u32, u64>,
    efer: u64,
}

impl Vmcs {
    /// What was never written is noise.
    fn get(&self, encoding: u32) -> u64 {
        self.fields.get(&encoding).copied().unwrap_or(0x5a5a_5a5a_5a5a_5a5a)
    }
}

/// A CPU in guest mode.
struct GuestMode<'a> {
    cpu: &'a Cpu,
    vmcs: &'a mut Vmcs,
    cr0: u64,
    cr4: u64,
}

/// Why the guest exits.
#[derive(Debug, PartialEq, Eq)]
enum Exit {
    /// Reason 28 with its qualification.
    Control(u64),
    /// Reason and interruption information.
    Exception(u32, u32),
}

/// VM entry.
fn enter<'a>(cpu: &'a Cpu, vmcs: &'a mut Vmcs) -> GuestMode<'a> {
    let accepts = |fixed: [u64; 2], value: u64| fixed[0] & !value == 0 && value & !fixed[1] == 0;
    let (cr0, cr4) = (vmcs.get(0x6800), vmcs.get(0x6804));
    // Host state: error 8.
    assert!(accepts(fixed_cr4(), vmcs.get(0x6c04)), "HOST_CR4 {:#x}", vmcs.get(0x6c04));
    assert_eq!(vmcs.get(0x6c02) >> 46, 0, "HOST_CR3 {:#x}", vmcs.get(0x6c02));
    // Guest state: exit 33. PE and PG are free in an unrestricted guest; NW and CD are not checked.
    let checked = cr0 & !(bit::NW | bit::CD) | bit::PE | bit::PG;
    assert!(accepts(FIXED_CR0, checked), "GUEST_CR0 {cr0:#x}");
    assert!(cr0 & bit::PG == 0 || cr0 & bit::PE != 0, "GUEST_CR0 {cr0:#x}");
    assert!(accepts(fixed_cr4(), cr4), "GUEST_CR4 {cr4:#x}");
    assert!(cr4 & bit::CET == 0 || cr0 & bit::WP != 0, "CET without WP");
    let long = vmcs.efer & bit::LMA != 0; // and the entry control
    assert!(!long || cr0 & bit::PG != 0 && cr4 & bit::PAE != 0, "{cr0:#x} {cr4:#x}");
    assert!(long || cr4 & bit::PCIDE == 0, "PCIDE outside long mode");
    let lme = vmcs.efer & bit::LME != 0;
    assert!(cr0 & bit::PG == 0 || long == lme, "EFER.LMA without LME, or the reverse");
    // The promises.
    let host = cpu.wrote;
    assert_eq!(vmcs.get(0x6c04), host, "HOST_CR4 is not this CPU's CR4");
    assert_eq!(vmcs.get(0x6c02), cpu.registers.cr3.get(), "HOST_CR3 is not this CPU's CR3");
    assert!(host & bit::MCE == 0 || cr4 & bit::MCE != 0, "guest mode without the host's MCE");
    assert_eq!(cr4 & bit::MCE, host & bit::MCE, "guest mode has the host's MCE exactly");
    GuestMode { cpu, vmcs, cr0, cr4 }
}

impl GuestMode<'_> {
    fn mix(shadow: u64, real: u64, mask: u64) -> u64 {
        shadow & mask | real & !mask
    }

    fn read_cr0(&self) -> u64 {
        Self::mix(self.vmcs.get(0x6004), self.cr0, self.vmcs.get(0x6000))
    }

    fn read_cr4(&self) -> u64 {
        Self::mix(self.vmcs.get(0x6006), self.cr4, self.vmcs.get(0x6002))
    }

    /// MOV to CR0 (kind 0) or LMSW (kind 3), and MOV to CR4, by way of RDX.
    fn write(
        &mut self,
        register: u32,
        value: u64,
        compared: u64,
        qualification: u64,
    ) -> Option<Exit> {
        let (mask, shadow) = match register {
            0 => (self.vmcs.get(0x6000), self.vmcs.get(0x6004)),
            _ => (self.vmcs.get(0x6002), self.vmcs.get(0x6006)),
        };
        if (value ^ shadow) & mask & compared != 0 {
            return Some(Exit::Control(qualification));
        }
        let real = if register == 0 { &mut self.cr0 } else { &mut self.cr4 };
        let mask = mask | !compared;
        *real = *real & mask | value & !mask;
        None
    }

    /// One instruction; the exit, if it makes one. The operand of MOV is in RDX, the way that
    /// 64-bit code or other code has it.
    fn execute(&mut self, instruction: &Instruction, code64: bool) -> Option<Exit> {
        let operand = |value: u64| if code64 { value } else { u64::from(value as u32) };
        match *instruction {
            Instruction::Read | Instruction::Efer(_) => None,
            Instruction::Cr4(value) => self.write(4, operand(value), !0, 0x204),
            Instruction::Cr0(value) => {
                // ET reads as 1, and reserved bits below 32 are not written.
                let kept = oracle::CR0_BITS.iter().fold(0, |all, bit| all | bit) | !0 << 32;
                self.write(0, operand(value) & kept | bit::ET, !0, 0x200)
            }
            Instruction::Clts => self.write(0, 0, bit::TS, 0x020),
            Instruction::Lmsw(source) => {
                // PE is compared if it is set: it can't be cleared.
                let compared = 0xe | u64::from(source) & 1;
                self.write(0, u64::from(source), compared, 0x030 | u64::from(source) << 16)
            }
            Instruction::MachineCheck => {
                assert_ne!(self.cr4 & bit::MCE, 0, "shutdown: a machine check with MCE clear");
                let intercepted = EXCEPTION_INTERCEPT >> 18 & 1 == 1;
                assert!(intercepted, "a machine check went to the guest");
                Some(Exit::Exception(0, 0x8000_0312))
            }
        }
    }

    /// VM exit.
    fn exit(self) {
        self.vmcs.fields.insert(0x6800, self.cr0);
        self.vmcs.fields.insert(0x6804, self.cr4);
        self.cpu.registers.cr4.set(self.vmcs.get(0x6c04));
        self.cpu.registers.cr3.set(self.vmcs.get(0x6c02));
    }
}

/// Writes fields, until so many are lost.
fn write(vmcs: &mut Vmcs, update: VmxUpdate<'_>, lose_after: Option<usize>) {
    for (at, (field, write)) in update.fields().enumerate() {
        if lose_after.is_some_and(|last| at >= last) {
            return; // not reported as written
        }
        let encoding = field.encoding();
        let value = write.known().unwrap_or_else(|| write.over(vmcs.get(encoding)));
        vmcs.fields.insert(encoding, value);
    }
    update.written();
}

struct Vcpu {
    control: VmxControl,
    vmcs: Vmcs,
    cpu: usize,
    /// The guest's registers as it wrote them.
    guest: GuestControl,
}

impl Vcpu {
    fn before_entry(&mut self, cpu: &Cpu, lose_after: Option<usize>) {
        let off = off();
        let host =
            HostControl::new(cpu.registers.cr3.get() | 1 << 63, cpu.copy.for_entry(&off).unwrap());
        if let Some(update) = self.control.before_entry(host, &off) {
            write(&mut self.vmcs, update, lose_after);
        }
        if lose_after.is_none() {
            assert!(self.control.before_entry(host, &off).is_none(), "nothing is left to write");
        }
    }

    fn run(&mut self, cpu: &Cpu, instruction: &Instruction, lose_after: Option<usize>) {
        if lose_after.is_some() {
            self.before_entry(cpu, lose_after);
        }
        self.before_entry(cpu, None);
        // A machine check on a CPU whose host has MCE clear takes the machine down in any case.
        if matches!(instruction, Instruction::MachineCheck) && cpu.wrote & bit::MCE == 0 {
            return;
        }
        let expected = match *instruction {
            Instruction::Read | Instruction::Efer(_) | Instruction::MachineCheck => Ok(self.guest),
            Instruction::Cr4(value) => oracle::mov_cr4(&self.guest, value),
            Instruction::Cr0(value) => oracle::mov_cr0(&self.guest, value),
            Instruction::Clts => Ok(oracle::clts(&self.guest)),
            Instruction::Lmsw(source) => oracle::lmsw(&self.guest, source),
        };
        let mut mode = enter(cpu, &mut self.vmcs);
        assert_eq!(mode.read_cr4(), self.guest.cr4, "the guest's CR4 is not what it wrote");
        assert_eq!(mode.read_cr0(), self.guest.cr0, "the guest's CR0 is not what it wrote");
        let before = (mode.cr0, mode.cr4);
        let exit = mode.execute(instruction, self.guest.code64);
        if exit.is_none() && expected.is_err() {
            (mode.cr0, mode.cr4) = before; // #GP, by the CPU
        }
        mode.exit();
        cpu.check();

        match exit {
            None => self.guest = expected.unwrap_or(self.guest),
            Some(Exit::Exception(reason, information)) => {
                let off = off();
                let entered = Ok(ExitReason::from_bits(reason));
                let check = MachineCheck::from_vmx(entered, information, &off);
                assert_eq!(check.map(|check| check.when()), Some(MachineCheckTime::Guest));
            }
            Some(Exit::Control(qualification)) => {
                self.handle(qualification, instruction, expected, lose_after);
            }
        }
    }

    fn handle(
        &mut self,
        qualification: u64,
        instruction: &Instruction,
        expected: Result<GuestControl, Faults>,
        lose_after: Option<usize>,
    ) {
        let access = CrAccess::from_qualification(qualification).unwrap();
        let now = VmxGuest {
            guest_cr0: self.vmcs.get(0x6800),
            guest_cr4: self.vmcs.get(0x6804),
            cr3: self.guest.cr3,
            efer: self.vmcs.efer,
            code64: self.guest.code64,
        };
        // RDX: outside 64-bit code its upper half is noise.
        let source = match (instruction, access.source()) {
            (Instruction::Cr4(value) | Instruction::Cr0(value), Some(gpr)) => {
                assert_eq!(gpr.number(), 2);
                *value
            }
            _ => 0x5a5a_5a5a_5a5a_5a5a,
        };
        match (self.control.handle(access, source, &now), expected) {
            (Outcome::Fault(_), Err(Faults)) => {}
            (Outcome::Write(update, effects), Ok(after)) => {
                oracle::check_effects(&self.guest, &after, effects);
                let whole = lose_after.filter(|&last| last < update.fields().count());
                write(&mut self.vmcs, update, whole);
                if whole.is_none() {
                    self.vmcs.efer = effects.efer.unwrap_or(self.vmcs.efer);
                    self.guest = after;
                } else {
                    // The instruction is tried again; what was half written is written back by the
                    // next entry, except guest-owned bits, which go with the second try.
                    self.retry(access, source, &now, after);
                }
            }
            (outcome, expected) => panic!("{outcome:?}, expected {expected:?}"),
        }
    }

    /// The same exit again, after a write that was lost half way.
    fn retry(&mut self, access: CrAccess, source: u64, now: &VmxGuest, after: GuestControl) {
        let Outcome::Write(update, effects) = self.control.handle(access, source, now) else {
            panic!("another outcome the second time")
        };
        self.vmcs.efer = effects.efer.unwrap_or(self.vmcs.efer);
        write(&mut self.vmcs, update, None);
        self.guest = after;
    }
}

/// A run of a machine.
pub fn run(
    hosts: [u64; CPUS],
    guests: [GuestControl; VCPUS],
    (guest_owned_cr0, guest_owned_cr4): (u64, u64),
    ops: &[Op],
) {
    let rules = VmxRules::new(VmxOptions {
        owned: HostBits::VMX,
        fixed_cr0: FixedBits::new(FIXED_CR0[0], FIXED_CR0[1]).unwrap(),
        fixed_cr4: FixedBits::new(fixed_cr4()[0], fixed_cr4()[1]).unwrap(),
        host_cr0: 0x8005_0033,
        guest_owned_cr0,
        guest_owned_cr4,
        supported_cr4: oracle::cr4_has(),
        unrestricted: true,
    })
    .unwrap();
    assert_eq!(CrField::ALL.len(), 8);
    let mut cpus = hosts.map(|cr4| Cpu::new(cr4 | bit::VMXE | bit::PAE | bit::PGE));
    let mut vcpus = guests.map(|guest| Vcpu {
        control: VmxControl::new(rules, guest).unwrap(),
        vmcs: Vmcs { fields: HashMap::new(), efer: guest.efer },
        cpu: 0,
        guest,
    });
    for op in ops {
        match *op {
            Op::Host { cpu, bits } => cpus[cpu].flip(bits),
            Op::HostCr3 { cpu, cr3 } => cpus[cpu].registers.cr3.set(cr3),
            Op::Move { vcpu, cpu } => vcpus[vcpu].cpu = cpu,
            Op::Run { vcpu, ref instruction, lose_after } => {
                let vcpu = &mut vcpus[vcpu];
                let cpu = &cpus[vcpu.cpu];
                vcpu.run(cpu, instruction, lose_after);
            }
        }
    }
}
