//! Numbers that are never used twice: a domain or a pool recognizes by them what it has handed out.
//!
//! An address in memory is not unique over time. An object that is made after another was dropped
//! may lie at the same place, and would take a stale device, reservation or mapping for its own.

// Not the facade's: the number is compared and orders nothing, and model checkers can ignore it.
use core::sync::atomic::{AtomicU64, Ordering};

/// A number that is unique in this program's life: it does not use up 2^64 of them.
pub fn next() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
