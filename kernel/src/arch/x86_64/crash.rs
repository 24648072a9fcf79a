//! Ways to end badly: see [`crate::crash`].

use core::arch::asm;

/// Goes on without a stack: the next push faults, and so does pushing that fault.
pub fn lose_stack() -> ! {
    // SAFETY: nothing of this CPU's is used any more.
    unsafe {
        asm!("mov rsp, {}", "push rax", "ud2", in(reg) crate::crash::NOWHERE, options(noreturn))
    }
}

/// Resets the machine: an exception without any handler.
pub fn reset() -> ! {
    // SAFETY: nothing of this machine's is used any more. The limit is 0: the table has no gate.
    unsafe {
        asm!(
            "sub rsp, 16",
            "mov qword ptr [rsp], 0",
            "mov qword ptr [rsp + 8], 0",
            "lidt [rsp]",
            "int3",
            "ud2",
            options(noreturn)
        )
    }
}
