//! The link-time seam: what the library's traced atomics call before they act.

use std::sync::atomic::Ordering;

use shootdown::sync::Access;

use super::{current, memory};

/// An atomic access is about to happen.
#[unsafe(no_mangle)]
fn __shootdown_access(addr: usize, access: Access, ordering: Ordering) {
    if current().is_some() {
        memory::access(addr, access, ordering);
    }
}

/// A fence is about to happen.
#[unsafe(no_mangle)]
fn __shootdown_fence(ordering: Ordering) {
    if current().is_some() {
        memory::fence(ordering);
    }
}

/// A line will be wanted soon.
#[unsafe(no_mangle)]
fn __shootdown_prefetch(addr: usize, write: bool) {
    if current().is_some() {
        memory::prefetch(addr, write);
    }
}
