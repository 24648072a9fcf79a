//! How long anything may wait: until a moment that whoever begins a case sets.
//!
//! A wait that passes it is a hang that was found, so it need not be exact: one for all CPUs will
//! do.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch;

static DEADLINE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Waits end when it is over; dropped, there is none.
pub struct Deadline(());

impl Deadline {
    /// In so many milliseconds.
    #[must_use]
    pub fn in_ms(ms: u64) -> Self {
        DEADLINE.store(arch::ticks() + ms * arch::ticks_per_ms(), Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        DEADLINE.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Is it over?
pub fn passed() -> bool {
    arch::ticks() > DEADLINE.load(Ordering::Relaxed)
}
