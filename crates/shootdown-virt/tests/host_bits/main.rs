//! The host's bits in force, against models of the hardware that were written from the manuals and
//! know nothing of the library: random sequences of what host and guests write, on several CPUs.
//!
//! At each entry on each CPU:
//! - if the host has MCE set, so has the guest in force;
//! - VMX: HOST_CR4 and HOST_CR3 are this CPU's registers;
//! - the guest reads what it wrote;
//! - after the exit, the CPU's CR4 is what the host last wrote;
//! - the hardware accepts the entry.

mod oracle;
mod svm;
mod vmx;

use std::cell::Cell;
use std::rc::Rc;

use proptest::prelude::*;
use shootdown_arch::x86_64::Cr4;
use shootdown_virt::host_bits::{Cr4Copy, Cr4Register, GuestControl, InterruptsOff};

use oracle::{bit, guest_bits};

/// CPUs of the machine.
const CPUS: usize = 3;
/// vCPUs.
const VCPUS: usize = 2;

/// A CPU's registers.
#[derive(Default)]
struct Registers {
    cr3: Cell<u64>,
    cr4: Cell<u64>,
}

struct Register(Rc<Registers>);

impl Cr4Register for Register {
    fn read(&self) -> Cr4 {
        Cr4::from_bits(self.0.cr4.get())
    }
    unsafe fn write(&self, value: Cr4) {
        self.0.cr4.set(value.bits());
    }
}

/// A CPU of the host, what the host believes of it, and what it last wrote.
struct Cpu {
    registers: Rc<Registers>,
    copy: Cr4Copy<Register>,
    wrote: u64,
}

impl Cpu {
    fn new(cr4: u64) -> Self {
        let registers = Rc::new(Registers::default());
        registers.cr4.set(cr4);
        registers.cr3.set(0x1000);
        let copy = Cr4Copy::new(Register(Rc::clone(&registers)));
        // SAFETY: the register is a variable.
        unsafe { copy.start(&off()) };
        Self { registers, copy, wrote: cr4 }
    }

    /// The host changes CR4 here.
    fn flip(&mut self, bits: u64) {
        // SAFETY: the register is a variable.
        let before = unsafe { self.copy.change(&off(), |old| Cr4::from_bits(old.bits() ^ bits)) };
        assert_eq!(before.unwrap().bits(), self.wrote);
        self.wrote ^= bits;
    }

    /// What the host promised itself, after an exit.
    fn check(&self) {
        assert_eq!(self.registers.cr4.get(), self.wrote, "an exit undid the host's CR4");
        assert_eq!(self.copy.for_entry(&off()).unwrap().bits(), self.wrote);
    }
}

fn off() -> InterruptsOff {
    // SAFETY: no interrupt reaches this code.
    unsafe { InterruptsOff::new() }
}

/// What a vCPU does while it runs.
#[derive(Clone, Debug)]
enum Instruction {
    /// Reads both registers; every other one does, too.
    Read,
    /// MOV to CR4.
    Cr4(u64),
    /// MOV to CR0.
    Cr0(u64),
    Clts,
    Lmsw(u16),
    /// WRMSR to EFER (SVM).
    Efer(u64),
    /// A machine check.
    MachineCheck,
}

#[derive(Clone, Debug)]
enum Op {
    /// The host flips bits of CR4 on a CPU.
    Host { cpu: usize, bits: u64 },
    /// The host loads other tables on a CPU.
    HostCr3 { cpu: usize, cr3: u64 },
    /// A vCPU goes to another CPU.
    Move { vcpu: usize, cpu: usize },
    /// A vCPU is entered where it is, does this, and exits. Of what the hypervisor writes before
    /// the entry, so many fields get lost once (a VMWRITE failed): it starts again.
    Run { vcpu: usize, instruction: Instruction, lose_after: Option<usize> },
}

/// Values near what a register could hold: few bits of those that matter, over or against what is
/// there.
fn cr4_value() -> impl Strategy<Value = u64> {
    let one = prop::sample::select(&oracle::CR4_BITS[..]);
    let few = prop::collection::vec(one, 0..6);
    let rare = prop_oneof![
        20 => Just(0),
        1 => prop::sample::select(&[bit::UMIP, bit::LA57, bit::VMXE, bit::SMAP, 1 << 30, 1 << 40][..])
    ];
    (few, rare, any::<bool>()).prop_map(|(bits, rare, pae)| {
        bits.into_iter().fold(rare | if pae { bit::PAE } else { 0 }, |all, bit| all | bit)
    })
}

fn cr0_value() -> impl Strategy<Value = u64> {
    let one = prop::sample::select(&oracle::CR0_BITS[..]);
    let rare = prop_oneof![20 => Just(0u64), 1 => Just(1 << 32), 1 => Just(1 << 8)];
    (prop::collection::vec(one, 0..5), rare, any::<bool>()).prop_map(|(bits, rare, paging)| {
        let start = rare | if paging { bit::PE | bit::PG | bit::WP } else { 0 };
        bits.into_iter().fold(start, |all, bit| all | bit)
    })
}

fn instruction() -> impl Strategy<Value = Instruction> {
    prop_oneof![
        2 => Just(Instruction::Read),
        8 => cr4_value().prop_map(Instruction::Cr4),
        4 => cr0_value().prop_map(Instruction::Cr0),
        1 => Just(Instruction::Clts),
        1 => (0..16u16).prop_map(Instruction::Lmsw),
        1 => prop::sample::select(&oracle::EFER_VALUES[..]).prop_map(Instruction::Efer),
        2 => Just(Instruction::MachineCheck),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let host = [bit::MCE, bit::TSD, bit::PCE, bit::PCIDE, bit::PGE, bit::MCE | bit::TSD];
    prop_oneof![
        3 => (0..CPUS, prop::sample::select(host.to_vec()))
            .prop_map(|(cpu, bits)| Op::Host { cpu, bits }),
        1 => (0..CPUS, 0..4u64).prop_map(|(cpu, n)| Op::HostCr3 { cpu, cr3: 0x1000 * (n / 2) + n }),
        2 => (0..VCPUS, 0..CPUS).prop_map(|(vcpu, cpu)| Op::Move { vcpu, cpu }),
        8 => (0..VCPUS, instruction(), prop::option::weighted(0.05, 0..8usize)).prop_map(
            |(vcpu, instruction, lose_after)| Op::Run { vcpu, instruction, lose_after }
        ),
    ]
}

/// Where a vCPU starts: real mode, before long mode, 32-bit PAE paging, 64-bit code.
fn start() -> impl Strategy<Value = GuestControl> {
    let paging = bit::PE | bit::PG | bit::WP | bit::ET;
    prop::sample::select(vec![
        GuestControl::RESET,
        GuestControl { cr0: bit::PE | bit::ET, efer: bit::LME, ..GuestControl::RESET },
        GuestControl { cr0: paging, cr4: bit::PAE, cr3: 0x5008, ..GuestControl::RESET },
        GuestControl {
            cr0: paging | bit::TS,
            cr4: bit::PAE | bit::PGE,
            cr3: 0x5000,
            efer: bit::LME | bit::LMA,
            code64: true,
        },
        GuestControl {
            cr0: paging,
            cr4: bit::PAE | bit::PCIDE,
            cr3: 0x5003,
            efer: bit::LME | bit::LMA,
            code64: false,
        },
    ])
}

/// CR4 of each CPU at the start, beside what it must have.
fn hosts() -> impl Strategy<Value = [u64; CPUS]> {
    let one = prop::sample::select(vec![0, bit::MCE, bit::MCE | bit::TSD, bit::PCIDE]);
    [one.clone(), one.clone(), one]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn vmx_enters_with_the_hosts_bits_and_exits_to_the_hosts_registers(
        hosts in hosts(),
        guests in [start(), start()],
        owned in guest_bits(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        vmx::run(hosts, guests, owned, &ops);
    }

    #[test]
    fn svm_enters_with_the_hosts_bits_and_the_guest_reads_its_own(
        hosts in hosts(),
        guests in [start(), start()],
        owns_caches in any::<bool>(),
        decode_assists in any::<bool>(),
        ops in prop::collection::vec(op(), 1..60),
    ) {
        svm::run(hosts, guests, owns_caches, decode_assists, &ops);
    }
}
