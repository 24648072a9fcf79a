//! The interrupt flag.

use x86_64::instructions::interrupts;

/// Lets interrupts in.
pub fn on() {
    interrupts::enable();
}

/// Keeps interrupts out.
pub fn off() {
    interrupts::disable();
}

/// Are they let in?
#[must_use]
pub fn enabled() -> bool {
    interrupts::are_enabled()
}

/// Sleeps until an interrupt comes, handles it, and keeps interrupts out again. Call it with
/// interrupts off: STI takes effect after the HLT that follows it, so none is lost in between.
pub fn wait() {
    interrupts::enable_and_hlt();
    interrupts::disable();
}
