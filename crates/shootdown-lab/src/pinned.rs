//! What the native benches promise the library of their threads, so that a CPU's own is entered
//! without a locked operation.
//!
//! Alone: a bench gives each of its threads a number that no other thread has at the same time.
//! Barrier: Linux makes every running thread of the process pass one (`membarrier`), and one that
//! does not run has passed one when it was switched out.

use shootdown_dma::pinned::Pinned;

/// The promise, where the system makes it good: on Linux with `membarrier`.
#[must_use]
pub fn pinned() -> Option<Pinned> {
    // SAFETY: threads have numbers of their own, as above; the barrier is one, as this process is
    // registered.
    linux::register().then(|| unsafe { Pinned::new(linux::barrier) })
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod linux {
    use std::ffi::{c_int, c_long, c_uint};

    // SAFETY: of the C library, which std is linked with.
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }

    // From the kernel's tables of system calls, and `linux/membarrier.h`.
    #[cfg(target_arch = "x86_64")]
    const MEMBARRIER: c_long = 324;
    #[cfg(target_arch = "aarch64")]
    const MEMBARRIER: c_long = 283;
    const PRIVATE_EXPEDITED: c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;

    fn membarrier(command: c_int) -> bool {
        // SAFETY: it takes a command, flags and a CPU that flags may ask for, and touches no
        // memory.
        unsafe { syscall(MEMBARRIER, command, 0 as c_uint, 0 as c_int) == 0 }
    }

    pub fn register() -> bool {
        membarrier(REGISTER_PRIVATE_EXPEDITED)
    }

    pub fn barrier(_: usize) -> bool {
        membarrier(PRIVATE_EXPEDITED)
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod linux {
    pub fn register() -> bool {
        false
    }

    pub fn barrier(_: usize) -> bool {
        false
    }
}
