//! The timer of this CPU's interrupt controller: for those who wait long, and would rather sleep.

use super::traps::WAKE;
use super::{apic, interrupts};

/// Cycles of the controller's timer in a millisecond. *Assumed*: emulators count nanoseconds, real
/// buses are slower, and then the sleep is longer.
const PER_MS: u32 = 1_000_000;

/// Interrupts this CPU once, in about so many milliseconds.
pub fn interrupt_after_ms(ms: u32) {
    apic::after(ms.saturating_mul(PER_MS), WAKE);
}

/// Calls that off.
pub fn interrupt_never() {
    apic::never();
}

/// Sleeps for about so many milliseconds, or until something interrupts: whoever calls it looks
/// whether it was enough. Where every CPU sleeps, a machine whose clock is its instruction count
/// goes on to the next moment at which anything happens.
pub fn sleep_ms(ms: u32) {
    let enabled = interrupts::enabled();
    interrupts::off();
    interrupt_after_ms(ms);
    interrupts::wait();
    interrupt_never();
    if enabled {
        interrupts::on();
    }
}
