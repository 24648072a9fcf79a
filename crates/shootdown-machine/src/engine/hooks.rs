//! The link-time seam: what the library's traced atomics call before they act.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use shootdown::sync::Access;

use super::{current, memory, with};
use crate::hunt;

/// An atomic access is about to happen.
#[unsafe(no_mangle)]
fn __shootdown_access(addr: usize, access: Access, ordering: Ordering) -> bool {
    if current().is_some() {
        memory::access(addr, access, ordering);
        return false;
    }
    hunt::hooks::access(addr, access, ordering)
}

/// What the load just announced returns.
#[unsafe(no_mangle)]
fn __shootdown_load(addr: usize, newest: u64) -> u64 {
    hunt::hooks::load(addr, newest)
}

/// The store just announced.
#[unsafe(no_mangle)]
fn __shootdown_store(at: *mut (), width: u8, old: u64, new: u64) -> bool {
    hunt::hooks::store(at, width, old, new)
}

/// What the read-modify-write just announced did.
#[unsafe(no_mangle)]
fn __shootdown_rmw(addr: usize, old: u64, new: Option<u64>) {
    hunt::hooks::rmw(addr, old, new);
}

/// A fence is about to happen.
#[unsafe(no_mangle)]
fn __shootdown_fence(ordering: Ordering) {
    if current().is_some() {
        memory::fence(ordering);
    } else {
        hunt::hooks::fence(ordering);
    }
}

/// A line will be wanted soon.
#[unsafe(no_mangle)]
fn __shootdown_prefetch(addr: usize, write: bool) {
    if current().is_some() {
        memory::prefetch(addr, write);
    } else {
        hunt::hooks::prefetch(addr);
    }
}

/// A turn of a loop that waits for another CPU.
#[unsafe(no_mangle)]
fn __shootdown_spin() {
    if current().is_some() {
        super::spin();
    } else {
        hunt::hooks::spin();
    }
}

/// Memory is about to be used that only its holder may use, so that its accesses are not traced one
/// by one.
#[unsafe(no_mangle)]
fn __shootdown_touch(addr: usize, bytes: usize, write: bool) {
    if current().is_some() {
        super::agent::touch(addr, bytes, write);
    } else {
        hunt::hooks::touch(addr, write);
    }
}

/// Room for what the library shares between CPUs; `None`: no machine runs in this thread.
#[unsafe(no_mangle)]
fn __shootdown_place(layout: Layout) -> Option<NonNull<u8>> {
    if current().is_some() {
        return Some(with(|e| e.alloc(layout)));
    }
    hunt::hooks::place(layout)
}
