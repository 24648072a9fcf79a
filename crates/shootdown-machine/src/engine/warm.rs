//! Asking the host for memory before it is needed.
//!
//! With thousands of CPUs, what each of them needs to go on has left the host's nearest cache by
//! the time of its turn. The CPU at the head of the queue will most probably be next, so its state
//! and the top of its stack are fetched while the one before it runs. A hint: no result depends on
//! it.

/// Lines fetched of a stack: what a suspended CPU returns through.
const STACK_LINES: usize = 6;

/// Asks for every line of a value.
#[inline]
pub fn value<T>(value: &T) {
    lines(std::ptr::from_ref(value).cast(), size_of::<T>().div_ceil(64));
}

/// Asks for the used end of a stack, given an address in the frame that suspended it.
#[inline]
pub fn stack(sp: usize) {
    if sp != 0 {
        lines(std::ptr::without_provenance(sp & !63), STACK_LINES);
    }
}

/// Asks for some bytes.
#[inline]
pub fn bytes(address: usize, length: usize) {
    lines(std::ptr::without_provenance(address), length.div_ceil(64));
}

#[inline]
fn lines(first: *const u8, count: usize) {
    for i in 0..count {
        line(first.wrapping_add(i * 64));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn line(address: *const u8) {
    // SAFETY: a prefetch reads nothing architecturally and faults on no address; SSE is baseline on
    // x86-64 (Intel SDM vol. 2, PREFETCHh).
    unsafe {
        std::arch::x86_64::_mm_prefetch(address.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn line(_: *const u8) {}
