//! The virtual timer of this CPU: for those who wait long, and would rather sleep.

use aarch64_cpu::registers::{CNTV_CTL_EL0, CNTV_TVAL_EL0, Writeable};

use super::{interrupts, ticks, ticks_per_ms};

/// Sleeps for so many milliseconds, with interrupts off afterwards as before. Where every CPU
/// sleeps, a machine whose clock is its instruction count goes on to the next moment at which
/// anything happens.
pub fn sleep_ms(ms: u32) {
    let enabled = interrupts::enabled();
    interrupts::off();
    let end = ticks() + u64::from(ms) * ticks_per_ms();
    while let Some(left) = end.checked_sub(ticks()).filter(|left| *left > 0) {
        CNTV_TVAL_EL0.set(left.min(1 << 30));
        CNTV_CTL_EL0.write(CNTV_CTL_EL0::ENABLE::SET);
        interrupts::wait();
    }
    silence();
    if enabled {
        interrupts::on();
    }
}

/// The interrupt of a timer stays until the timer is off.
pub(super) fn silence() {
    CNTV_CTL_EL0.set(0);
}
