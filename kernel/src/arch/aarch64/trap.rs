//! Exceptions: interrupts, and accesses that are *meant* to fault.
//!
//! # The problem
//! A test asks "can this address still be read?". The answer "no" is a synchronous exception in the
//! middle of an instruction, which must come back as a value.
//!
//! # The protocol
//! Such accesses are made by three functions in `vectors.s`, each with one instruction that may
//! fault. The handler knows their addresses: it puts ESR_EL1 into x1 of the saved registers, which
//! is where those functions answer, and goes on behind the access. A faulting *fetch* has no
//! instruction of its own: it is known by the link register, which names the call in
//! `attempt_call`. Every other synchronous exception is a defect of the image, and ends it. So does
//! any exception for which the stack has no room, and that is looked at before anything is stored
//! there: saving registers would fault, come back to the same vector, and go on so for ever without
//! a word.
//!
//! # Invariants
//! - I1: all registers are saved and restored, vector registers in full: compiled Rust may use the
//!   upper halves of v8 to v15, which the calling convention does not keep.
//! - I2: exceptions are taken with interrupts masked, and nothing here unmasks them: one handler at
//!   a time on each CPU.

use core::arch::global_asm;
use core::cell::UnsafeCell;

use super::{cpu, exit, gic, psci};
use crate::arch::Fault;

global_asm!(include_str!("vectors.s"));

/// What `vectors.s` saves. Its offsets are written there.
#[repr(C)]
pub struct Frame {
    x: [u64; 31],
    elr: u64,
    spsr: u64,
    fpsr: u64,
    fpcr: u64,
    _aligned: u64,
    q: [[u64; 2]; 32],
}

const _: () = assert!(size_of::<Frame>() == 800);

/// An answer of `vectors.s`, in x0 and x1.
#[repr(C)]
struct Answer {
    value: u64,
    syndrome: u64,
}

unsafe extern "C" {
    fn attempt_load(address: u64) -> Answer;
    fn attempt_store(address: u64, value: u64) -> Answer;
    fn attempt_call(address: u64) -> Answer;
    static attempt_load_at: u8;
    static attempt_store_at: u8;
    static attempt_call_return: u8;
}

/// EC of ESR_EL1: an undefined instruction; an instruction abort, a data abort, both from EL1.
const UNDEFINED: u64 = 0;
const FETCH: u64 = 0x21;
const DATA: u64 = 0x25;

const fn class(syndrome: u64) -> u64 {
    syndrome >> 26 & 0x3f
}

/// IFSC or DFSC without the level: 1 is "no translation", 2 "not accessed yet", 3 "not allowed".
const fn is_translation(syndrome: u64) -> bool {
    syndrome >> 2 & 0xf == 1
}

const fn judged(address: u64, answer: Answer) -> Result<u64, Fault> {
    match answer.syndrome {
        0 => Ok(answer.value),
        syndrome => Err(Fault { address, present: !is_translation(syndrome) }),
    }
}

/// One access of this CPU, with a fault as an error.
pub mod probe {
    use super::{Fault, attempt_call, attempt_load, attempt_store, judged};

    /// Loads a word.
    pub fn read(address: u64) -> Result<u64, Fault> {
        // SAFETY: a load changes nothing; a fault comes back as a value.
        judged(address, unsafe { attempt_load(address) })
    }

    /// Stores a word.
    pub fn write(address: u64, value: u64) -> Result<(), Fault> {
        // SAFETY: as in the module's head; that what is written over is the caller's holds for
        // every case of the suite, stale translations included: frames that may be reached
        // so belong to the case until it is over.
        match judged(address, unsafe { attempt_store(address, value) }) {
            Ok(_) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Calls a function that takes nothing and changes x0 alone.
    pub fn execute(address: u64) -> Result<u64, Fault> {
        // SAFETY: ISB: what was written before is fetched. The suite executes only pages that hold
        // such functions, before and after a change; a fault comes back as a value.
        judged(address, unsafe {
            core::arch::asm!("isb", options(nostack, preserves_flags));
            attempt_call(address)
        })
    }
}

/// The stack of a CPU that has lost its own. It ends the kernel; should several lose theirs at
/// once, what they print may be garbled, and it is a crash all the same.
#[repr(C, align(16))]
struct Emergency(UnsafeCell<[u8; 0x2000]>);
// SAFETY: memory that is used by way of the stack pointer alone, and never returned from.
unsafe impl Sync for Emergency {}

#[unsafe(no_mangle)]
static EMERGENCY_STACK: Emergency = Emergency(UnsafeCell::new([0; 0x2000]));

/// Called by `vectors.s` when there was no room on the stack to save anything.
#[unsafe(no_mangle)]
extern "C" fn aarch64_stack_gone(stack: u64) -> ! {
    if exit::is_tried() {
        // The second time, from this stack itself, which the vectors don't know: there is no
        // semihosting.
        psci::system_off()
    }
    panic!(
        "an exception on {} could not be delivered: the stack is at {stack:#x}; ESR {:#x} FAR {:#x} ELR {:#x}",
        cpu::cpu(),
        cpu::syndrome(),
        cpu::fault_address(),
        cpu::return_address()
    )
}

/// Called by `vectors.s` with interrupts masked.
#[unsafe(no_mangle)]
extern "C" fn aarch64_exception(kind: u64, frame: &mut Frame) {
    match kind {
        1 => synchronous(frame),
        2 => gic::interrupted(),
        _ => fatal("unexpected exception", frame),
    }
}

fn synchronous(frame: &mut Frame) {
    let syndrome = cpu::syndrome();
    let at = |label: *const u8| frame.elr == label.addr() as u64;
    let lr = frame.x[30];
    match class(syndrome) {
        DATA if at(&raw const attempt_load_at) || at(&raw const attempt_store_at) => frame.elr += 4,
        UNDEFINED if exit::is_tried() => {
            frame.elr += 4;
            return;
        }
        FETCH if lr == (&raw const attempt_call_return).addr() as u64 => frame.elr = lr,
        _ => fatal("exception", frame),
    }
    frame.x[1] = syndrome;
}

/// Nothing can go on.
fn fatal(what: &str, frame: &Frame) -> ! {
    panic!(
        "{what} on {}: ESR {:#x} FAR {:#x} ELR {:#x} SPSR {:#x} LR {:#x}",
        cpu::cpu(),
        cpu::syndrome(),
        cpu::fault_address(),
        frame.elr,
        frame.spsr,
        frame.x[30]
    )
}
