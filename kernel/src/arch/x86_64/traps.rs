//! Faults and interrupts: the table of their handlers, and what each does.
//!
//! A fault of an instruction of `shootdown-virt` goes on at its fix-up; a fault in a probe
//! (`probe.rs`) goes on behind the probe, with the fault noted; any other fault ends the kernel.
//! Three vectors come on stacks of their own (`emergency.rs`), and end it too, unless somebody
//! expects them (`expected.rs`).

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::size_of;

use x86_64::VirtAddr;
use x86_64::instructions::tables::lidt;
use x86_64::registers::control::Cr2;
use x86_64::structures::DescriptorTablePointer;

use shootdown_virt::extable;

use super::emergency::{self, DOUBLE_FAULT, MACHINE_CHECK, NON_MASKABLE};
use super::{apic, expected, percpu};
use crate::port;

global_asm!(include_str!("stubs.s"), trap = sym trap);

unsafe extern "C" {
    static trap_entries: u8;
}

/// The library's interrupt.
pub const KICK: u8 = 0x40;
/// The kernel's own.
pub const WAKE: u8 = 0x41;
/// What the interrupt controller raises when an interrupt has gone away again.
pub const SPURIOUS: u8 = 0xff;

const INVALID_OPCODE: u64 = 6;
const STACK: u64 = 12;
const PROTECTION: u64 = 13;
const PAGE_FAULT: u64 = 14;

/// What an entry leaves on the stack.
#[repr(C)]
pub struct Frame {
    registers: [u64; 15],
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// A gate of the descriptor table (SDM 3A, figure 6-8).
#[derive(Clone, Copy)]
#[repr(C)]
struct Gate {
    low: u16,
    selector: u16,
    /// Present, interrupt gate: interrupts are off in the handler. The lowest bits are the stack.
    kind: u16,
    middle: u16,
    high: u32,
    reserved: u32,
}

impl Gate {
    const NONE: Self = Self { low: 0, selector: 0, kind: 0, middle: 0, high: 0, reserved: 0 };

    const fn to(address: u64, stack: u16) -> Self {
        Self {
            low: address as u16,
            selector: 0x08,
            kind: 0x8e00 | stack,
            middle: (address >> 16) as u16,
            high: (address >> 32) as u32,
            reserved: 0,
        }
    }
}

struct Table(UnsafeCell<[Gate; 256]>);

// SAFETY: written by `init` on the boot CPU before any other CPU runs, and only read after that.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([Gate::NONE; 256]));

/// Fills the table; the boot CPU calls it, before the others start.
pub fn init() {
    for vector in 0..256 {
        let entry = (&raw const trap_entries) as u64 + vector * 16;
        // SAFETY: nobody else looks at the table yet (see `Table`).
        unsafe {
            (&mut *TABLE.0.get())[vector as usize] = Gate::to(entry, emergency::stack_of(vector))
        };
    }
}

/// Makes this CPU use the table.
pub fn load() {
    let limit = (size_of::<[Gate; 256]>() - 1) as u16;
    let pointer = DescriptorTablePointer { limit, base: VirtAddr::new(TABLE.0.get() as u64) };
    // SAFETY: the table is filled, lives forever, and its entries handle every vector.
    unsafe { lidt(&pointer) };
}

/// What every entry calls, with interrupts off.
extern "C" fn trap(frame: &mut Frame) {
    match frame.vector {
        vector if vector == u64::from(KICK) => {
            apic::end();
            port::kicked();
        }
        vector if vector == u64::from(WAKE) => apic::end(),
        vector if vector == u64::from(SPURIOUS) => {}
        NON_MASKABLE if expected::non_maskable() => {}
        MACHINE_CHECK if expected::machine_check() => {}
        NON_MASKABLE | DOUBLE_FAULT | MACHINE_CHECK => emergency(frame),
        INVALID_OPCODE | STACK | PROTECTION | PAGE_FAULT => fault(frame),
        vector => unexpected(frame, vector, 0),
    }
}

/// A fault that an instruction of `shootdown-virt` or a probe may have asked for.
fn fault(frame: &mut Frame) {
    // Before anything that needs this CPU's state: GS may be a guest's.
    if let Some(rip) = extable::fixup(frame.vector as u8, frame.rip) {
        frame.rip = rip;
        return;
    }
    let address = if frame.vector == PAGE_FAULT { Cr2::read_raw() } else { frame.rip };
    match percpu::this().recovery.take() {
        Some((rip, rsp)) => {
            percpu::this().recovery.note(address, frame.error & 1 != 0);
            frame.rip = rip;
            frame.rsp = rsp;
        }
        None => unexpected(frame, frame.vector, address),
    }
}

/// What came on a stack of its own: the kernel ends.
fn emergency(frame: &Frame) -> ! {
    let (cpu, rip, rsp) = (percpu::cpu(), frame.rip, frame.rsp);
    match frame.vector {
        NON_MASKABLE => {
            panic!("a non-maskable interrupt, which nobody sends here, on {cpu} at {rip:#x}")
        }
        DOUBLE_FAULT => panic!(
            "double fault on {cpu} at {rip:#x}: an exception could not be delivered (stack {rsp:#x}, last page fault {:#x})",
            Cr2::read_raw()
        ),
        _ => match emergency::machine_check() {
            Some((bank, status, address)) => panic!(
                "machine check on {cpu} at {rip:#x}: bank {bank}, status {status:#x}, address {address:#x}"
            ),
            None => panic!("machine check on {cpu} at {rip:#x}, and no bank says why"),
        },
    }
}

fn unexpected(frame: &Frame, vector: u64, address: u64) -> ! {
    panic!(
        "vector {vector} at {:#x} (error {:#x}, address {address:#x}, stack {:#x})",
        frame.rip, frame.error, frame.rsp
    )
}
