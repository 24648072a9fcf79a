//! Atomics that notify the software machine of every access before they make it.
//!
//! The machine defines the `__shootdown_*` functions below (link-time seam, so that no pointer is
//! loaded and tested on each access). It may suspend the calling CPU inside `__shootdown_access`
//! and `__shootdown_fence`; the access itself happens after the call returns and before the CPU
//! runs on, so that it is one step of the simulated execution.
//!
//! A machine that models store buffers or weak memory returns `true` from `__shootdown_access`:
//! then it also decides which value a load returns, when a store becomes visible, and it is
//! notified of what a read-modify-write did. Native memory always holds the newest value that is
//! visible to any CPU.

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
    /// A load of a counter that its own CPU alone writes and no decision depends on.
    CountLoad = 3,
    /// A store to such a counter.
    CountStore = 4,
    /// A read of memory that never changes while it is shared, and is freed later.
    Plain = 5,
}

// SAFETY: the machine that is linked to this build defines the functions with these signatures.
// They may be called with any address: the machine uses an address that it keeps only while the
// simulated memory lives.
unsafe extern "Rust" {
    /// An access to `addr` is about to happen. `true`: the machine decides about values.
    safe fn __shootdown_access(addr: usize, access: Access, ordering: Ordering) -> bool;
    /// What the load just announced returns; `newest` is what memory holds.
    safe fn __shootdown_load(addr: usize, newest: u64) -> u64;
    /// The store just announced, of `width` bytes. `true`: the machine keeps it and writes it to
    /// `at` later.
    safe fn __shootdown_store(at: *mut (), width: u8, old: u64, new: u64) -> bool;
    /// The read-modify-write just announced found `old` and, if it wrote, wrote `new`.
    safe fn __shootdown_rmw(addr: usize, old: u64, new: Option<u64>);
    /// A fence is about to happen.
    safe fn __shootdown_fence(ordering: Ordering);
    /// The line of `addr` will be wanted soon, to be read or to be written.
    safe fn __shootdown_prefetch(addr: usize, write: bool);
}

/// Notifies the machine that the line of `target` is wanted soon.
#[inline]
pub fn prefetch<T>(target: &T) {
    __shootdown_prefetch(core::ptr::from_ref(target) as usize, false);
}

/// Notifies the machine that the line of `target` is wanted soon, to be written.
#[inline]
pub fn prefetch_write<T>(target: &T) {
    __shootdown_prefetch(core::ptr::from_ref(target) as usize, true);
}

/// Notifies the machine that `target`, which never changes while it is shared, is read.
#[inline]
pub(crate) fn reads<T>(target: &T) {
    __shootdown_access(core::ptr::from_ref(target) as usize, Access::Plain, Ordering::Relaxed);
}

/// A fence, traced.
#[inline]
pub fn fence(order: Ordering) {
    __shootdown_fence(order);
    native::fence(order);
}

/// A value that fits a machine word.
trait Word: Copy {
    const WIDTH: u8;
    fn to_bits(self) -> u64;
    fn from_bits(bits: u64) -> Self;
}

macro_rules! words {
    ($($ty:ty),*) => {$(
        impl Word for $ty {
            #[allow(clippy::cast_possible_truncation)] // no type here is larger than a word
            const WIDTH: u8 = size_of::<$ty>() as u8;

            #[inline]
            #[allow(clippy::cast_lossless)] // also for usize
            fn to_bits(self) -> u64 {
                self as u64
            }

            #[inline]
            #[allow(clippy::cast_possible_truncation)] // bits that came from this type
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}

words!(u8, u16, u32, u64, usize);

impl Word for bool {
    const WIDTH: u8 = 1;

    #[inline]
    fn to_bits(self) -> u64 {
        u64::from(self)
    }

    #[inline]
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
}

impl<T> Word for *mut T {
    #[allow(clippy::cast_possible_truncation)] // 8
    const WIDTH: u8 = size_of::<*mut T>() as u8;

    #[inline]
    fn to_bits(self) -> u64 {
        self.expose_provenance() as u64
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // bits that came from a pointer
    fn from_bits(bits: u64) -> Self {
        core::ptr::with_exposed_provenance_mut(bits as usize)
    }
}

/// Announces a read-modify-write, makes it, and reports what it did.
#[inline]
fn rmw<T: Word>(
    at: usize,
    order: Ordering,
    make: impl FnOnce() -> Result<T, T>,
    new: impl FnOnce(T) -> T,
) -> Result<T, T> {
    let decides = __shootdown_access(at, Access::Rmw, order);
    let found = make();
    if decides {
        match found {
            Ok(old) => __shootdown_rmw(at, old.to_bits(), Some(new(old).to_bits())),
            Err(old) => __shootdown_rmw(at, old.to_bits(), None),
        }
    }
    found
}

macro_rules! traced {
    ($($(#[$m:meta])* $name:ident $(<$t:ident>)? ($ty:ty, $native:ty) { $($extra:tt)* })*) => {$(
        $(#[$m])*
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name $(<$t>)? ($native);

        impl $(<$t>)? $name $(<$t>)? {
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
                if __shootdown_access(self.at(), Access::Load, order) {
                    let newest = Word::to_bits(self.0.load(Ordering::Relaxed));
                    return Word::from_bits(__shootdown_load(self.at(), newest));
                }
                self.0.load(order)
            }

            /// As in `core`.
            #[inline]
            pub fn store(&self, value: $ty, order: Ordering) {
                if __shootdown_access(self.at(), Access::Store, order) {
                    let old = Word::to_bits(self.0.load(Ordering::Relaxed));
                    let at = self.0.as_ptr().cast();
                    if __shootdown_store(at, <$ty as Word>::WIDTH, old, Word::to_bits(value)) {
                        return;
                    }
                }
                self.0.store(value, order);
            }

            /// As in `core`.
            #[inline]
            pub fn swap(&self, value: $ty, order: Ordering) -> $ty {
                let (Ok(old) | Err(old)) =
                    rmw(self.at(), order, || Ok(self.0.swap(value, order)), |_| value);
                old
            }

            /// As in `core`.
            ///
            /// # Errors
            /// The value found, when it is not `current`.
            #[inline]
            pub fn compare_exchange(
                &self, current: $ty, new: $ty, ok: Ordering, err: Ordering,
            ) -> Result<$ty, $ty> {
                rmw(self.at(), ok, || self.0.compare_exchange(current, new, ok, err), |_| new)
            }

            /// As [`compare_exchange`](Self::compare_exchange): it never fails by chance, so that
            /// runs repeat.
            ///
            /// # Errors
            /// The value found, when it is not `current`.
            #[inline]
            pub fn compare_exchange_weak(
                &self, current: $ty, new: $ty, ok: Ordering, err: Ordering,
            ) -> Result<$ty, $ty> {
                self.compare_exchange(current, new, ok, err)
            }

            $($extra)*
        }
    )*};
}

macro_rules! arithmetic {
    ($ty:ty: $($name:ident = $new:expr;)*) => {$(
        /// As in `core`.
        #[inline]
        pub fn $name(&self, value: $ty, order: Ordering) -> $ty {
            let (Ok(old) | Err(old)) =
                rmw(self.at(), order, || Ok(self.0.$name(value, order)), |old| $new(old, value));
            old
        }
    )*};
    ($ty:ty) => {
        arithmetic!($ty:
            fetch_add = <$ty>::wrapping_add;
            fetch_sub = <$ty>::wrapping_sub;
            fetch_or = |old, value| old | value;
            fetch_and = |old, value| old & value;
            fetch_max = <$ty>::max;
        );
    };
}

traced! {
    /// Traced `AtomicBool`.
    AtomicBool(bool, native::AtomicBool) {}
    /// Traced `AtomicU8`.
    AtomicU8(u8, native::AtomicU8) {}
    /// Traced `AtomicU16`.
    AtomicU16(u16, native::AtomicU16) { arithmetic!(u16); }
    /// Traced `AtomicU32`.
    AtomicU32(u32, native::AtomicU32) { arithmetic!(u32); }
    /// Traced `AtomicU64`.
    AtomicU64(u64, native::AtomicU64) { arithmetic!(u64); }
    /// Traced `AtomicUsize`.
    AtomicUsize(usize, native::AtomicUsize) { arithmetic!(usize); }
    /// Traced `AtomicPtr`.
    AtomicPtr<T>(*mut T, native::AtomicPtr<T>) {}
}

/// The cell of a counter that only its own CPU writes, and on which no decision depends: its
/// accesses have their usual cost, and exploring their orders would show nothing.
#[repr(transparent)]
#[derive(Debug)]
pub struct CountCell(native::AtomicU64);

impl CountCell {
    /// A new cell.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(native::AtomicU64::new(value))
    }

    fn at(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    /// As in `core`.
    #[inline]
    pub fn load(&self, order: Ordering) -> u64 {
        __shootdown_access(self.at(), Access::CountLoad, order);
        self.0.load(order)
    }

    /// As in `core`.
    #[inline]
    pub fn store(&self, value: u64, order: Ordering) {
        __shootdown_access(self.at(), Access::CountStore, order);
        self.0.store(value, order);
    }
}
