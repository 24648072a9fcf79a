//! Ways to end badly: see [`crate::crash`].

use core::arch::asm;

/// Goes on without a stack: the next push faults, and the vectors can't save anything.
pub fn lose_stack() -> ! {
    // SAFETY: nothing of this CPU's is used any more.
    unsafe {
        asm!("mov sp, {}", "str xzr, [sp, #-16]!", "b .", in(reg) crate::crash::NOWHERE, options(noreturn))
    }
}

/// Resets the machine.
pub fn reset() -> ! {
    super::psci::system_reset()
}
