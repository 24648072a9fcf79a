//! Numbers that never come back: by them a domain, or a pool, knows what it has handed out.
//!
//! An address in memory is no such number. What is made after something else was dropped may lie at
//! the same place, and would take a stale device, reservation or mapping for its own.

// Not the facade's: the number is compared and orders nothing, and model checkers need not know of
// it.
use core::sync::atomic::{AtomicU64, Ordering};

/// A number that nothing else in this program has, had, or will have: 2^64 of them are not used up.
pub fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
