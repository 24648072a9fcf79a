//! Stacks of their own for what comes when the stack may be the problem: double faults,
//! non-maskable interrupts, machine checks.
//!
//! # The problem
//! The CPU pushes an exception on the stack that is in use. If that stack is gone, pushing faults,
//! which is a double fault; if pushing that one faults too, the CPU shuts down and the machine is
//! reset, without a word of what happened.
//!
//! # The protocol
//! Every CPU loads a task state segment, whose interrupt stack table names three stacks (SDM 3A,
//! 8.7 and 6.14.5); the gates of the three vectors say which one they want (`traps.rs`). A segment
//! is marked busy in the descriptor table by whoever loads it, so each CPU has both of its own.
//! Selectors mean what they meant in the boot table.
//!
//! # Invariants
//! - I1: what comes on one of these stacks ends the kernel, or is expected, and then the next of
//!   its kind comes after its return (`expected.rs`): a second exception on the same stack, which
//!   begins at its top again, overwrites nothing that is needed.
//! - I2: the tables of a CPU are written by that CPU alone, before it loads them, and by its
//!   hardware after.

use core::cell::UnsafeCell;

use shootdown::CpuId;
use x86_64::VirtAddr;
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::{Cr4, Cr4Flags};
use x86_64::registers::model_specific::Msr;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;

use crate::MAX_CPUS;

/// Bytes of each stack: enough to print what happened.
const STACK: usize = 8 << 10;

/// The vectors that have a stack of their own: number 1, 2, 3 of the interrupt stack table.
const VECTORS: [u64; 3] = [NON_MASKABLE, DOUBLE_FAULT, MACHINE_CHECK];

/// Nobody sends one here; hardware that is broken may.
pub const NON_MASKABLE: u64 = 2;
/// An exception whose delivery failed.
pub const DOUBLE_FAULT: u64 = 8;
/// Hardware found an error of its own.
pub const MACHINE_CHECK: u64 = 18;

/// What a gate says about its stack: the number in the interrupt stack table, or 0 for the one in
/// use.
pub const fn stack_of(vector: u64) -> u16 {
    let mut at = 0;
    while at < VECTORS.len() {
        if VECTORS[at] == vector {
            return at as u16 + 1;
        }
        at += 1;
    }
    0
}

/// The stacks of a CPU, apart from the rest: they are nothing but zeros, and take no room in the
/// image.
#[repr(align(16))]
struct Stacks(UnsafeCell<[[u8; STACK]; VECTORS.len()]>);

// SAFETY: memory that a CPU uses by way of its stack pointer alone.
unsafe impl Sync for Stacks {}

static STACKS: [Stacks; MAX_CPUS as usize] =
    [const { Stacks(UnsafeCell::new([[0; STACK]; VECTORS.len()])) }; MAX_CPUS as usize];

struct State {
    segment: TaskStateSegment,
    descriptors: GlobalDescriptorTable,
}

struct States([UnsafeCell<State>; MAX_CPUS as usize]);

// SAFETY: I2.
unsafe impl Sync for States {}

static STATES: States = States(
    [const {
        UnsafeCell::new(State {
            segment: TaskStateSegment::new(),
            descriptors: GlobalDescriptorTable::new(),
        })
    }; MAX_CPUS as usize],
);

/// Makes this CPU, whose number this is, ready for the three; each CPU calls it once, on its way
/// up.
pub fn load(cpu: CpuId) {
    let state = STATES.0[cpu.index()].get();
    let bottom = STACKS[cpu.index()].0.get() as u64;
    // SAFETY: I2: nobody else uses this CPU's state, and it is not loaded yet. It is static, as
    // what is loaded must be. The table's first entries are those of the boot table, so that
    // the selectors in use stay right.
    unsafe {
        for stack in 0..VECTORS.len() {
            let top = VirtAddr::new(bottom + (stack as u64 + 1) * STACK as u64);
            (*state).segment.interrupt_stack_table[stack] = top;
        }
        let descriptors = &mut (*state).descriptors;
        let code = descriptors.append(Descriptor::kernel_code_segment());
        let data = descriptors.append(Descriptor::kernel_data_segment());
        assert!(code == SegmentSelector(0x08) && data == SegmentSelector(0x10));
        let segment =
            descriptors.append(Descriptor::tss_segment_unchecked(&raw const (*state).segment));
        (*state).descriptors.load_unsafe();
        load_tss(segment);
    }
    if has_machine_checks() {
        // SAFETY: the CPU has the bit, and its handler is in place (`traps::load` comes first).
        unsafe { Cr4::update(|flags| flags.insert(Cr4Flags::MACHINE_CHECK_EXCEPTION)) };
    }
}

/// CPUID: machine checks, and the registers that say what they are.
fn has_machine_checks() -> bool {
    const BOTH: u32 = 1 << 7 | 1 << 14;
    core::arch::x86_64::__cpuid(1).edx & BOTH == BOTH
}

/// What the first bank with an error says: its number, status and address. (SDM 3B, 16.3)
pub fn machine_check() -> Option<(u32, u64, u64)> {
    const CAPABILITIES: u32 = 0x179;
    const STATUS: u32 = 0x401;
    const ADDRESS: u32 = 0x402;
    const VALID: u64 = 1 << 63;
    const ADDRESS_VALID: u64 = 1 << 58;
    if !has_machine_checks() {
        return None;
    }
    // SAFETY: the registers exist where CPUID says so, for as many banks as the first of them says;
    // reading has no effect.
    unsafe {
        let banks = Msr::new(CAPABILITIES).read() as u32 & 0xff;
        (0..banks).find_map(|bank| {
            let status = Msr::new(STATUS + 4 * bank).read();
            let address = status & ADDRESS_VALID != 0;
            let address = if address { Msr::new(ADDRESS + 4 * bank).read() } else { 0 };
            (status & VALID != 0).then_some((bank, status, address))
        })
    }
}
