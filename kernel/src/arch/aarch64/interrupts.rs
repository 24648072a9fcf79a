//! The interrupt mask of this CPU, and sleeping without missing one.

use core::arch::asm;

use aarch64_cpu::registers::{DAIF, Readable};

/// Are interrupts on?
#[must_use]
pub fn enabled() -> bool {
    !DAIF.is_set(DAIF::I)
}

/// Turns interrupts on.
pub fn on() {
    // SAFETY: the vectors are there from the first instruction of `kmain` on. The compiler moves no
    // access across it.
    unsafe { asm!("msr daifclr, #2", options(nostack)) };
}

/// Turns interrupts off.
pub fn off() {
    // SAFETY: it masks interrupts. The compiler moves no access across it.
    unsafe { asm!("msr daifset, #2", options(nostack)) };
}

/// With interrupts off: sleeps until one arrives, handles it, returns with interrupts off. WFI ends
/// when an interrupt is *pending*, masked or not, so that one which came just before is not slept
/// through.
pub fn wait() {
    // SAFETY: it stops this CPU until an interrupt is pending, nothing else.
    unsafe { asm!("dsb sy", "wfi", options(nostack)) };
    on();
    // SAFETY: a barrier: what is pending is taken here.
    unsafe { asm!("isb", options(nostack)) };
    off();
}
