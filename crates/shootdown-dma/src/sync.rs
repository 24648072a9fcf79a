//! The atomics facade: `core`, `loom` under the model checker, or the software machine's traced
//! atomics.
//!
//! The rest of the crate names atomics only through this module. [`UnsafeCell`] is the checker's
//! too, so that the checker sees each access to what a flag protects.

#[cfg(all(not(loom), not(shootdown_traced)))]
pub use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
        fence,
    },
};
#[cfg(all(shootdown_traced, not(loom)))]
pub use shootdown_traced::sync::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// As in `core`, entered by a closure.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell.
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Gives `f` a pointer to read by.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        #[cfg(shootdown_traced)]
        touch(self, false);
        f(self.0.get())
    }

    /// Gives `f` a pointer to write by.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(shootdown_traced)]
        touch(self, true);
        f(self.0.get())
    }
}

/// Reports to the machine that the contents of a cell are used: all of it, up to 1 KiB. Heap memory
/// behind pointers in the cell is not reported.
#[cfg(all(shootdown_traced, not(loom)))]
fn touch<T>(cell: &UnsafeCell<T>, write: bool) {
    // SAFETY: the machine that is linked in defines it with this signature, and it may be called
    // anywhere.
    unsafe extern "Rust" {
        safe fn __shootdown_touch(addr: usize, bytes: usize, write: bool);
    }
    let bytes = core::mem::size_of::<T>().min(1 << 10);
    __shootdown_touch(cell.0.get().addr(), bytes, write);
}

/// One turn of a loop that waits for another CPU.
#[cfg(all(not(loom), not(shootdown_traced)))]
pub use core::hint::spin_loop;
/// One turn of a loop that waits for another CPU.
#[cfg(loom)]
pub use loom::hint::spin_loop;

/// One turn of a loop that waits for another CPU.
#[cfg(all(shootdown_traced, not(loom)))]
pub fn spin_loop() {
    // SAFETY: the machine that is linked in defines it with this signature, and it may be called
    // anywhere.
    unsafe extern "Rust" {
        safe fn __shootdown_spin();
    }
    __shootdown_spin();
}
