//! Atomics that tell the software machine of every access before they make it.
//!
//! The machine defines the three `__shootdown_*` functions below (link-time seam, so that no pointer
//! is loaded and tested on each access). It may suspend the calling CPU inside any of them; the access
//! itself happens after the call returns and before the CPU runs on, so that it is one step of the
//! simulated execution.

use core::sync::atomic as native;
pub use core::sync::atomic::{Ordering, compiler_fence};

/// What an access does to its cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Access {
    /// Needs a copy of the line.
    Load = 0,
    /// Needs the line for itself; may wait in the store buffer.
    Store = 1,
    /// Needs the line for itself, now (an atomic read-modify-write).
    Rmw = 2,
}

// SAFETY: whoever links this build defines the three functions with these signatures, and they may be
// called with any address: they look none up.
unsafe extern "Rust" {
    /// An access to `addr` is about to happen.
    safe fn __shootdown_access(addr: usize, access: Access, ordering: Ordering);
    /// A fence is about to happen.
    safe fn __shootdown_fence(ordering: Ordering);
    /// The line of `addr` will be wanted soon, to be read or to be written.
    safe fn __shootdown_prefetch(addr: usize, write: bool);
}

/// Tells the machine that the line of `target` is wanted soon.
#[inline]
pub fn prefetch<T>(target: &T) {
    __shootdown_prefetch(core::ptr::from_ref(target) as usize, false);
}

/// Tells the machine that the line of `target` is wanted soon, to be written.
#[inline]
pub fn prefetch_write<T>(target: &T) {
    __shootdown_prefetch(core::ptr::from_ref(target) as usize, true);
}

/// A fence, traced.
#[inline]
pub fn fence(order: Ordering) {
    __shootdown_fence(order);
    native::fence(order);
}

macro_rules! traced {
    ($($(#[$m:meta])* $name:ident($ty:ty, $native:ty) { $($extra:tt)* })*) => {$(
        $(#[$m])*
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name($native);

        impl $name {
            /// A new atomic.
            #[must_use]
            pub const fn new(value: $ty) -> Self {
                Self(<$native>::new(value))
            }

            #[inline]
            fn at(&self) -> usize {
                core::ptr::from_ref(self) as usize
            }

            /// As in `core`.
            #[inline]
            pub fn load(&self, order: Ordering) -> $ty {
                __shootdown_access(self.at(), Access::Load, order);
                self.0.load(order)
            }

            /// As in `core`.
            #[inline]
            pub fn store(&self, value: $ty, order: Ordering) {
                __shootdown_access(self.at(), Access::Store, order);
                self.0.store(value, order);
            }

            /// As in `core`.
            #[inline]
            pub fn swap(&self, value: $ty, order: Ordering) -> $ty {
                __shootdown_access(self.at(), Access::Rmw, order);
                self.0.swap(value, order)
            }

            /// As in `core`.
            ///
            /// # Errors
            /// The value found, when it is not `current`.
            #[inline]
            pub fn compare_exchange(
                &self, current: $ty, new: $ty, ok: Ordering, err: Ordering,
            ) -> Result<$ty, $ty> {
                __shootdown_access(self.at(), Access::Rmw, ok);
                self.0.compare_exchange(current, new, ok, err)
            }

            $($extra)*
        }
    )*};
}

macro_rules! arithmetic {
    ($ty:ty) => {
        /// As in `core`.
        #[inline]
        pub fn fetch_add(&self, value: $ty, order: Ordering) -> $ty {
            __shootdown_access(self.at(), Access::Rmw, order);
            self.0.fetch_add(value, order)
        }

        /// As in `core`.
        #[inline]
        pub fn fetch_sub(&self, value: $ty, order: Ordering) -> $ty {
            __shootdown_access(self.at(), Access::Rmw, order);
            self.0.fetch_sub(value, order)
        }

        /// As in `core`.
        #[inline]
        pub fn fetch_or(&self, value: $ty, order: Ordering) -> $ty {
            __shootdown_access(self.at(), Access::Rmw, order);
            self.0.fetch_or(value, order)
        }

        /// As in `core`.
        #[inline]
        pub fn fetch_and(&self, value: $ty, order: Ordering) -> $ty {
            __shootdown_access(self.at(), Access::Rmw, order);
            self.0.fetch_and(value, order)
        }

        /// As in `core`.
        #[inline]
        pub fn fetch_max(&self, value: $ty, order: Ordering) -> $ty {
            __shootdown_access(self.at(), Access::Rmw, order);
            self.0.fetch_max(value, order)
        }
    };
}

traced! {
    /// Traced `AtomicBool`.
    AtomicBool(bool, native::AtomicBool) {}
    /// Traced `AtomicU32`.
    AtomicU32(u32, native::AtomicU32) { arithmetic!(u32); }
    /// Traced `AtomicU64`.
    AtomicU64(u64, native::AtomicU64) { arithmetic!(u64); }
    /// Traced `AtomicUsize`.
    AtomicUsize(usize, native::AtomicUsize) { arithmetic!(usize); }
}

/// Traced `AtomicPtr`.
#[repr(transparent)]
#[derive(Debug)]
pub struct AtomicPtr<T>(native::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    /// A new atomic.
    #[must_use]
    pub const fn new(value: *mut T) -> Self {
        Self(native::AtomicPtr::new(value))
    }

    /// As in `core`.
    #[inline]
    pub fn load(&self, order: Ordering) -> *mut T {
        __shootdown_access(core::ptr::from_ref(self) as usize, Access::Load, order);
        self.0.load(order)
    }

    /// As in `core`.
    #[inline]
    pub fn store(&self, value: *mut T, order: Ordering) {
        __shootdown_access(core::ptr::from_ref(self) as usize, Access::Store, order);
        self.0.store(value, order);
    }
}
