//! Single accesses that may fault.

use core::arch::naked_asm;

use super::percpu;
use crate::arch::Fault;

/// Whether an access went through, and what it found.
#[repr(C)]
struct Outcome {
    value: u64,
    faulted: u64,
}

/// Notes where to go on after a fault: called by the probes, whose frames look alike.
extern "C" fn arm(rip: u64, rsp: u64) {
    percpu::this().recovery.arm(rip, rsp);
}

/// The access itself: a load, a store, or a call. RBX and R12 hold the operands, as they survive a
/// call.
macro_rules! probe {
    ($name:ident, $($access:literal),+) => {
        #[unsafe(naked)]
        extern "C" fn $name(address: u64, value: u64) -> Outcome {
            naked_asm!(
                "push rbx",
                "push r12",
                "push rbp",
                "mov rbx, rdi",
                "mov r12, rsi",
                "lea rdi, [rip + 2f]",
                "mov rsi, rsp",
                "call {arm}",
                $($access,)+
                "xor edx, edx",
                "jmp 3f",
                "2:",
                "xor eax, eax",
                "mov edx, 1",
                "3:",
                "pop rbp",
                "pop r12",
                "pop rbx",
                "ret",
                arm = sym arm,
            )
        }
    };
}

probe!(load, "mov rax, [rbx]");
probe!(store, "mov [rbx], r12");
probe!(call, "call rbx", "mov eax, eax");

fn outcome(outcome: Outcome) -> Result<u64, Fault> {
    let recovery = &percpu::this().recovery;
    recovery.disarm();
    if outcome.faulted == 0 { Ok(outcome.value) } else { Err(recovery.noted()) }
}

/// Loads a word.
///
/// # Errors
/// The fault.
pub fn read(address: u64) -> Result<u64, Fault> {
    outcome(load(address, 0))
}

/// Stores a word.
///
/// # Errors
/// The fault.
pub fn write(address: u64, value: u64) -> Result<(), Fault> {
    outcome(store(address, value)).map(drop)
}

/// Calls a function that returns a number of 32 bits and touches nothing else.
///
/// # Errors
/// The fault.
pub fn execute(address: u64) -> Result<u64, Fault> {
    outcome(call(address, 0))
}
