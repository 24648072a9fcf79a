//! Arrays of a length that is fixed when they are made, shared by CPUs.
//!
//! All data that this crate shares between CPUs outside of page tables lies in such arrays. So the
//! software machine, which has to know what is shared, can place them in memory that it watches.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

/// There was no memory for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory;

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no memory for the array; ask for fewer CPUs, or smaller queues")
    }
}

impl core::error::Error for NoMemory {}

/// An array of a fixed length, on the heap.
pub struct Fixed<T>(imp::Array<T>);

impl<T> Fixed<T> {
    /// Makes an array with `make` called for each index.
    ///
    /// # Errors
    /// [`NoMemory`], before anything is made.
    pub fn new(len: usize, mut make: impl FnMut(usize) -> T) -> Result<Self, NoMemory> {
        Self::try_new(len, |index| Ok(make(index)))
    }

    /// The same, where making one can fail.
    ///
    /// # Errors
    /// [`NoMemory`]: what was made is dropped.
    pub fn try_new(
        len: usize,
        mut make: impl FnMut(usize) -> Result<T, NoMemory>,
    ) -> Result<Self, NoMemory> {
        let mut items = Vec::new();
        items.try_reserve_exact(len).map_err(|_| NoMemory)?;
        for index in 0..len {
            items.push(make(index)?);
        }
        Ok(Self(imp::place(items.into_boxed_slice())))
    }
}

impl<T> Deref for Fixed<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Fixed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(not(shootdown_traced))]
mod imp {
    pub type Array<T> = super::Box<[T]>;

    pub fn place<T>(items: super::Box<[T]>) -> Array<T> {
        items
    }
}

#[cfg(shootdown_traced)]
mod imp {
    use core::alloc::Layout;
    use core::mem::ManuallyDrop;
    use core::ops::Deref;
    use core::ptr::NonNull;

    use super::Box;

    // SAFETY: the machine that is linked in defines it with this signature, and any layout may be
    // asked for.
    unsafe extern "Rust" {
        /// Room in the memory that the machine watches, for as long as the run lasts; `None`: there
        /// is no run.
        safe fn __shootdown_place(layout: Layout) -> Option<NonNull<u8>>;
    }

    /// In the machine's memory, where it stays undropped, or on the heap.
    pub struct Array<T> {
        items: ManuallyDrop<Box<[T]>>,
        placed: bool,
    }

    impl<T: core::fmt::Debug> core::fmt::Debug for Array<T> {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            self.items.fmt(f)
        }
    }

    pub fn place<T>(items: Box<[T]>) -> Array<T> {
        let layout = Layout::for_value(&*items);
        let Some(at) = __shootdown_place(layout).filter(|_| layout.size() != 0) else {
            return Array { items: ManuallyDrop::new(items), placed: false };
        };
        let len = items.len();
        // SAFETY: fresh room of this layout; what is moved there is not dropped here.
        let moved = unsafe {
            at.cast::<T>().copy_from_nonoverlapping(NonNull::from(&*items).cast(), len);
            Box::from_raw(core::ptr::slice_from_raw_parts_mut(at.cast::<T>().as_ptr(), len))
        };
        // SAFETY: `ManuallyDrop<T>` has the layout of `T`; only the room on the heap is freed.
        drop(unsafe { Box::from_raw(Box::into_raw(items) as *mut [ManuallyDrop<T>]) });
        Array { items: ManuallyDrop::new(moved), placed: true }
    }

    impl<T> Deref for Array<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.items
        }
    }

    impl<T> Drop for Array<T> {
        fn drop(&mut self) {
            if !self.placed {
                // SAFETY: from the heap, and dropped once.
                unsafe { ManuallyDrop::drop(&mut self.items) }
            }
        }
    }
}
