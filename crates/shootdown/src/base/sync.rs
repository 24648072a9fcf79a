//! The atomics facade: `core`, `loom`, or the machine's traced atomics.
//!
//! The rest of the crate names atomics only through this module, so that the same protocol code
//! runs in a kernel, under the `loom` model checker (`--cfg loom`) and on the software machine
//! (package `shootdown-traced`, which compiles this very source with `cfg(shootdown_traced)`).
//! Besides the atomics it has [`prefetch`] and [`prefetch_write`], hints that may be ignored, and
//! `CountCell` for counters, which are not part of any protocol.

#[cfg(not(any(loom, shootdown_traced)))]
mod imp {
    pub use core::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicU64 as CountCell, AtomicUsize,
        Ordering, compiler_fence, fence,
    };

    /// Prefetches the line of `target`. This is a hint: nothing depends on it.
    #[inline]
    pub fn prefetch<T>(target: &T) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: PREFETCHT0 reads nothing architecturally and faults on no address; SSE is
        // baseline on x86-64 (Intel SDM vol. 2, PREFETCHh).
        unsafe {
            core::arch::x86_64::_mm_prefetch(
                core::ptr::from_ref(target).cast(),
                core::arch::x86_64::_MM_HINT_T0,
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = target;
    }

    /// Prefetches the line of `target` for writing. This is a hint: nothing depends on it.
    #[inline]
    pub fn prefetch_write<T>(target: &T) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: PREFETCHW reads nothing architecturally and faults on no address; CPUs without it
        // execute it as a no-op (AMD APM vol. 3, PREFETCH).
        unsafe {
            core::arch::x86_64::_mm_prefetch(
                core::ptr::from_ref(target).cast(),
                core::arch::x86_64::_MM_HINT_ET0,
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = target;
    }

    /// Reports that `target`, which never changes while it is shared, is read: for machines that
    /// check that it was not freed.
    #[inline(always)]
    pub(crate) const fn reads<T>(_: &T) {}
}

#[cfg(loom)]
mod imp {
    // Counters are not part of any protocol, so there is nothing to interleave.
    pub use core::sync::atomic::AtomicU64 as CountCell;

    pub use loom::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };

    /// Nothing to do under the model checker, whose threads are not interrupted by themselves.
    pub fn compiler_fence(_: Ordering) {}

    /// Nothing to do under the model checker.
    pub fn prefetch<T>(_: &T) {}

    /// Nothing to do under the model checker.
    pub fn prefetch_write<T>(_: &T) {}

    /// Nothing to do under the model checker.
    pub(crate) fn reads<T>(_: &T) {}
}

#[cfg(all(shootdown_traced, not(loom)))]
#[path = "traced.rs"]
mod imp;

pub use imp::*;
