//! SVM of the hardware: VMRUN, what a guest does, #VMEXIT (APM 2 15.5, 15.6, 15.8, 15.9, 15.33).

use shootdown_arch::x86_64::Cr4;
use shootdown_virt::host_bits::{
    CrAccess, CrAccessError, Extension, GuestControl, HostBits, MachineCheck, Outcome, SvmControl,
    SvmGuest, SvmOptions, SvmRules, SvmUpdate, VmcbCr,
};
use shootdown_virt::svm::ExitCode;

use crate::oracle::{self, Faults, bit};
use crate::{CPUS, Cpu, Instruction, Op, VCPUS, off};

/// The page, and what the CPU it last ran on remembers of CR0, CR4 and EFER.
struct Vmcb {
    page: Box<[u8; 4096]>,
    cached: Option<(usize, [u64; 3])>,
}

const CR0: usize = 0x558;
const CR4: usize = 0x548;
const EFER: usize = 0x4d0;
const CLEAN: usize = 0x0c0;

impl Vmcb {
    fn get(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.page[offset..offset + 8].try_into().unwrap())
    }

    fn set(&mut self, offset: usize, value: u64) {
        self.page[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn control_registers(&self) -> [u64; 3] {
        [self.get(CR0), self.get(CR4), self.get(EFER)]
    }
}

struct GuestMode<'a> {
    vmcb: &'a mut Vmcb,
    cr0: u64,
    cr4: u64,
    efer: u64,
    guest: GuestControl,
    decode_assists: bool,
}

/// Code and EXITINFO1.
struct Exit(u64, u64);

fn vmrun<'a>(
    (number, cpu): (usize, &Cpu),
    vmcb: &'a mut Vmcb,
    guest: GuestControl,
    decode_assists: bool,
) -> GuestMode<'a> {
    // Clean bit 5: the CPU takes what it remembers, if it remembers anything.
    let clean = vmcb.get(CLEAN) & 1 << 5 != 0;
    let [cr0, cr4, efer] = match vmcb.cached {
        Some((last, values)) if clean && last == number => values,
        _ => vmcb.control_registers(),
    };
    // VMEXIT_INVALID.
    assert_ne!(efer & bit::SVME, 0, "EFER.SVME clear");
    assert_eq!(efer & !(oracle::EFER_HAS | bit::LMA | bit::SVME), 0, "EFER {efer:#x}");
    assert!(cr0 >> 32 == 0 && (cr0 & bit::NW == 0 || cr0 & bit::CD != 0), "CR0 {cr0:#x}");
    assert_eq!(cr4 & !oracle::cr4_has(), 0, "CR4 {cr4:#x}");
    let long = efer & bit::LME != 0 && cr0 & bit::PG != 0;
    assert!(!long || cr4 & bit::PAE != 0 && cr0 & bit::PE != 0, "{cr0:#x} {cr4:#x} {efer:#x}");
    assert_eq!(efer & bit::LMA != 0, long, "EFER.LMA: {cr0:#x} {efer:#x}");
    // The promise.
    assert!(cpu.wrote & bit::MCE == 0 || cr4 & bit::MCE != 0, "VMRUN without the host's MCE");
    GuestMode { vmcb, cr0, cr4, efer, guest, decode_assists }
}

impl GuestMode<'_> {
    /// Is the access intercepted: bit `number` of the reads, or of the writes?
    fn intercepts(&self, number: u32, write: bool) -> bool {
        let bits = u32::from_le_bytes(self.vmcb.page[..4].try_into().unwrap());
        bits >> (number + if write { 16 } else { 0 }) & 1 == 1
    }

    /// What a read gives if nothing is intercepted.
    fn read(&self, number: u32) -> Option<u64> {
        let value = if number == 0 { self.cr0 } else { self.cr4 };
        (!self.intercepts(number, false)).then_some(value)
    }

    fn mov(&self, number: u32, write: bool) -> Exit {
        let assists = if self.decode_assists { 1 << 63 | 2 } else { 0 };
        Exit(u64::from(number) | if write { 0x10 } else { 0 }, assists)
    }

    fn execute(&mut self, instruction: &Instruction) -> Option<Exit> {
        let real = GuestControl { cr0: self.cr0, cr4: self.cr4, efer: self.efer, ..self.guest };
        let after = match *instruction {
            Instruction::Read => return None,
            Instruction::Cr4(_) if self.intercepts(4, true) => return Some(self.mov(4, true)),
            Instruction::Cr0(_) if self.intercepts(0, true) => return Some(self.mov(0, true)),
            Instruction::Clts | Instruction::Lmsw(_) if self.intercepts(0, true) => {
                return Some(Exit(0x10, 0));
            }
            Instruction::Cr4(value) => oracle::mov_cr4(&real, value),
            Instruction::Cr0(value) => oracle::mov_cr0(&real, value),
            Instruction::Clts => Ok(oracle::clts(&real)),
            Instruction::Lmsw(source) => oracle::lmsw(&real, source),
            // The permission map intercepts it.
            Instruction::Efer(_) => return Some(Exit(0x7c, 1)),
            Instruction::MachineCheck => {
                assert_ne!(self.cr4 & bit::MCE, 0, "shutdown: a machine check with MCE clear");
                let vectors = u32::from_le_bytes(self.vmcb.page[8..12].try_into().unwrap());
                assert_ne!(vectors & 1 << 18, 0, "a machine check went to the guest");
                return Some(Exit(0x52, 0));
            }
        };
        if let Ok(after) = after {
            (self.cr0, self.cr4, self.efer) = (after.cr0, after.cr4, after.efer);
        }
        None
    }

    /// #VMEXIT. The host's CR4 is what VMRUN saved.
    fn exit(self, number: usize) {
        self.vmcb.set(CR0, self.cr0);
        self.vmcb.set(CR4, self.cr4);
        self.vmcb.set(EFER, self.efer);
        self.vmcb.cached = Some((number, [self.cr0, self.cr4, self.efer]));
        self.vmcb.set(CLEAN, !0);
    }
}

/// The instruction's bytes at RIP, with RDX as its general register.
fn bytes(instruction: &Instruction) -> &'static [u8] {
    match instruction {
        Instruction::Cr4(_) => &[0x0f, 0x22, 0xe2],
        Instruction::Cr0(_) => &[0x0f, 0x22, 0xc2],
        Instruction::Clts => &[0x0f, 0x06],
        Instruction::Lmsw(_) => &[0x66, 0x0f, 0x01, 0xf2],
        _ => &[],
    }
}

fn write(vmcb: &mut Vmcb, update: SvmUpdate<'_>, lose_after: Option<usize>) {
    for (at, (field, write)) in update.fields().enumerate() {
        if lose_after.is_some_and(|last| at >= last) {
            return;
        }
        let value = write.over(vmcb.get(field.offset()));
        vmcb.set(field.offset(), value);
        let clean = vmcb.get(CLEAN) & !u64::from(VmcbCr::CLEAN_BIT);
        vmcb.set(CLEAN, clean);
    }
    update.written();
}

struct Vcpu {
    control: SvmControl,
    vmcb: Vmcb,
    cpu: usize,
    guest: GuestControl,
}

impl Vcpu {
    fn before_entry(&mut self, cpu: &Cpu, lose_after: Option<usize>) {
        let off = off();
        let host: Cr4 = cpu.copy.for_entry(&off).unwrap();
        if let Some(update) = self.control.before_entry(host, &off) {
            write(&mut self.vmcb, update, lose_after);
        }
        if lose_after.is_none() {
            assert!(self.control.before_entry(host, &off).is_none(), "nothing is left to write");
        }
    }

    /// What the guest reads, by exit or not.
    fn check_reads(&mut self, visible: [Option<u64>; 2]) {
        let now = self.now();
        for (number, direct, wrote) in
            [(0, visible[0], self.guest.cr0), (4, visible[1], self.guest.cr4)]
        {
            let value = direct.unwrap_or_else(|| {
                let access = CrAccess::from_svm(number, 1 << 63 | 5, true).unwrap();
                match self.control.handle(access, 0, &now) {
                    Outcome::Read { to, value } if to.number() == 5 => value,
                    other => panic!("{other:?}"),
                }
            });
            assert_eq!(value, wrote, "the guest's CR{number} is not what it wrote");
        }
        assert_eq!(self.control.cr4(), self.guest.cr4);
        assert_eq!(self.control.efer(now.efer), self.guest.efer, "EFER");
    }

    fn now(&self) -> SvmGuest {
        SvmGuest {
            cr0: self.vmcb.get(CR0),
            cr3: self.guest.cr3,
            efer: self.vmcb.get(EFER),
            code64: self.guest.code64,
        }
    }

    fn run(
        &mut self,
        cpu: &Cpu,
        instruction: &Instruction,
        lose_after: Option<usize>,
        decode_assists: bool,
    ) {
        if lose_after.is_some() {
            self.before_entry(cpu, lose_after);
        }
        self.before_entry(cpu, None);
        if matches!(instruction, Instruction::MachineCheck) && cpu.wrote & bit::MCE == 0 {
            return;
        }
        let mut mode = vmrun((self.cpu, cpu), &mut self.vmcb, self.guest, decode_assists);
        let visible = [mode.read(0), mode.read(4)];
        let exit = mode.execute(instruction);
        mode.exit(self.cpu);
        cpu.check();

        let before = self.guest;
        let expected = match *instruction {
            Instruction::Read | Instruction::MachineCheck => Ok(before),
            Instruction::Cr4(value) => oracle::mov_cr4(&before, value),
            Instruction::Cr0(value) => oracle::mov_cr0(&before, value),
            Instruction::Clts => Ok(oracle::clts(&before)),
            Instruction::Lmsw(source) => oracle::lmsw(&before, source),
            Instruction::Efer(value) => oracle::wrmsr_efer(&before, value),
        };
        match exit {
            None => {
                // The CPU's own doing, with the same faults.
                self.guest = expected.unwrap_or(before);
                self.check_reads([visible[0].map(|_| self.vmcb.get(CR0)), visible[1]]);
            }
            Some(Exit(0x52, _)) => {
                assert!(MachineCheck::from_svm(ExitCode::from_bits(0x52), &off()).is_some());
            }
            Some(Exit(code, info)) => {
                self.check_reads(visible);
                self.handle(code, info, instruction, expected, decode_assists);
            }
        }
    }

    fn handle(
        &mut self,
        code: u64,
        info: u64,
        instruction: &Instruction,
        expected: Result<GuestControl, Faults>,
        decode_assists: bool,
    ) {
        let now = self.now();
        let outcome = if let Instruction::Efer(value) = *instruction {
            assert_eq!(code, 0x7c);
            self.control.write_efer(value, &now)
        } else {
            let access = CrAccess::from_svm(code, info, decode_assists).or_else(|why| {
                assert_eq!(why, CrAccessError::NeedsInstruction);
                let all = bytes(instruction);
                let (access, length) = CrAccess::from_instruction(all, self.guest.code64)?;
                assert_eq!(length, all.len());
                Ok::<_, CrAccessError>(access)
            });
            let access = access.unwrap();
            let source = match (instruction, access.source()) {
                (Instruction::Cr4(value) | Instruction::Cr0(value), Some(gpr)) => {
                    assert_eq!(gpr.number(), 2);
                    *value
                }
                (Instruction::Lmsw(value), Some(gpr)) => {
                    assert_eq!(gpr.number(), 2);
                    0x5a5a_5a5a_5a5a_0000 | u64::from(*value)
                }
                _ => 0x5a5a_5a5a_5a5a_5a5a,
            };
            self.control.handle(access, source, &now)
        };
        match (outcome, expected) {
            (Outcome::Fault(_), Err(Faults)) => {}
            (Outcome::Write(update, mut effects), Ok(after)) => {
                assert_eq!((effects.efer, effects.load_pdptes), (None, false));
                // The CPU loads them, and EFER is among the fields.
                let pae = after.cr0 & bit::PG != 0 && after.cr4 & bit::PAE != 0;
                let loads = pae && after.efer & bit::LMA == 0 && reloads(&self.guest, &after);
                effects.load_pdptes = loads;
                effects.efer = (after.efer != self.guest.efer).then_some(after.efer);
                oracle::check_effects(&self.guest, &after, effects);
                write(&mut self.vmcb, update, None);
                self.guest = after;
            }
            (outcome, expected) => panic!("{outcome:?}, expected {expected:?}"),
        }
    }
}

/// Does the write make the CPU load page-directory pointers?
fn reloads(before: &GuestControl, after: &GuestControl) -> bool {
    let cr4 = bit::PAE | bit::PGE | bit::PSE | bit::SMEP;
    (before.cr0 ^ after.cr0) & (bit::PG | bit::CD | bit::NW) != 0
        || (before.cr4 ^ after.cr4) & cr4 != 0
}

/// A run of a machine.
pub fn run(
    hosts: [u64; CPUS],
    guests: [GuestControl; VCPUS],
    owns_caches: bool,
    decode_assists: bool,
    ops: &[Op],
) {
    let caches = if owns_caches { bit::CD | bit::NW } else { 0 };
    let rules = SvmRules::new(SvmOptions {
        owned: HostBits::new(Extension::Svm, caches, bit::MCE, bit::SVME).unwrap(),
        host_cr0: 0x8005_0033,
        supported_cr4: oracle::cr4_has(),
        supported_efer: oracle::EFER_HAS,
    })
    .unwrap();
    let mut cpus = hosts.map(|cr4| Cpu::new(cr4 | bit::PAE | bit::PGE));
    let mut vcpus = guests.map(|guest| {
        let mut vmcb = Vmcb { page: Box::new([0x5a; 4096]), cached: None };
        let intercepts = rules.intercepts();
        vmcb.page[..4].copy_from_slice(&intercepts.control_registers.to_le_bytes());
        vmcb.page[8..12].copy_from_slice(&intercepts.exceptions.to_le_bytes());
        assert_eq!(intercepts.msr, 0xc000_0080);
        vmcb.set(CLEAN, 0);
        Vcpu { control: SvmControl::new(rules, guest).unwrap(), vmcb, cpu: 0, guest }
    });
    for op in ops {
        match *op {
            Op::Host { cpu, bits } => cpus[cpu].flip(bits),
            Op::HostCr3 { cpu, cr3 } => cpus[cpu].registers.cr3.set(cr3),
            Op::Move { vcpu, cpu } => vcpus[vcpu].cpu = cpu,
            Op::Run { vcpu, ref instruction, lose_after } => {
                let vcpu = &mut vcpus[vcpu];
                let cpu = &cpus[vcpu.cpu];
                vcpu.run(cpu, instruction, lose_after, decode_assists);
            }
        }
    }
}
