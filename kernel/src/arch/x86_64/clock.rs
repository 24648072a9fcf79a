//! Time: the timestamp counter, held against the timer that every PC has.

use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::port::Port;

/// The 8254's clock, in Hz.
const PIT: u64 = 1_193_182;

static PER_MS: AtomicU64 = AtomicU64::new(0);

/// A monotonic count.
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, and at privilege level 0 nothing forbids it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// How many of them in a millisecond.
#[must_use]
pub fn ticks_per_ms() -> u64 {
    PER_MS.load(Ordering::Relaxed)
}

/// The timestamp counter counts already.
pub fn start_counting() -> bool {
    true
}

/// The same count: nothing finer can be read everywhere.
#[must_use]
pub fn count() -> u64 {
    ticks()
}

/// Measures it.
pub fn init() {
    let before = ticks();
    delay_us(1000);
    PER_MS.store((ticks() - before).max(1), Ordering::Relaxed);
}

/// Waits by channel 2 of the timer, whose output can be read without an interrupt.
pub fn delay_us(us: u64) {
    const GATE: u16 = 0x61;
    const OUTPUT: u8 = 1 << 5;
    let mut left = (us * PIT).div_ceil(1_000_000).max(1);
    let (mut gate, mut mode, mut data) =
        (Port::<u8>::new(GATE), Port::<u8>::new(0x43), Port::<u8>::new(0x42));
    while left > 0 {
        let count = left.min(u64::from(u16::MAX));
        left -= count;
        // SAFETY: the timer and its gate are the kernel's; the speaker stays off.
        unsafe {
            let on = gate.read() & !2 | 1;
            gate.write(on);
            mode.write(0xb0); // channel 2, both bytes, interrupt on terminal count
            data.write(count as u8);
            data.write((count >> 8) as u8);
            while gate.read() & OUTPUT == 0 {
                core::hint::spin_loop();
            }
        }
    }
}
