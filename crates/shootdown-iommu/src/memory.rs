//! The interface to the host: memory that a unit reads and writes.

use core::mem::ManuallyDrop;

use shootdown_dma::PhysAddr;
use shootdown_dma::sync::AtomicU64;

use crate::error::Error;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Words of a page.
pub const WORDS: usize = PAGE / 8;

/// Memory for a unit's tables, ring and logs.
///
/// # Safety
/// 1. [`allocate`](Self::allocate) returns contiguous pages of 4 KiB, zeroed, at a physical address
///    below 2^52 that is not 0 and a multiple of all of their size; no other code uses them until
///    they are [freed](Self::free), and the unit reads and writes them at that address.
/// 2. [`words`](Self::words) are that memory.
/// 3. When [`write_back`](Self::write_back) has returned, a unit that does not read the CPUs'
///    caches finds in memory what was stored to these words before. Memory that [is
///    coherent](Self::is_coherent) need not do anything.
pub unsafe trait Memory: Sync {
    /// `pages` contiguous pages, a power of two; `None` when there is no memory.
    fn allocate(&self, pages: usize) -> Option<PhysAddr>;

    /// Frees them.
    ///
    /// # Safety
    /// They came from one call of [`allocate`](Self::allocate) for the same number, are not freed
    /// twice, and no unit reaches them.
    unsafe fn free(&self, first: PhysAddr, pages: usize);

    /// The words from this address on.
    ///
    /// # Safety
    /// They are in pages that were [allocated](Self::allocate), and are not freed while the
    /// reference is used.
    unsafe fn words(&self, first: PhysAddr, count: usize) -> &[AtomicU64];

    /// Whether only units use it that read the CPUs' caches.
    fn is_coherent(&self) -> bool {
        true
    }

    /// See the contract, 3.
    fn write_back(&self, words: &[AtomicU64]) {
        let _ = words;
    }
}

// SAFETY: it is the same memory.
unsafe impl<M: Memory + ?Sized> Memory for &M {
    fn allocate(&self, pages: usize) -> Option<PhysAddr> {
        (**self).allocate(pages)
    }

    unsafe fn free(&self, first: PhysAddr, pages: usize) {
        // SAFETY: as the caller promises.
        unsafe { (**self).free(first, pages) }
    }

    unsafe fn words(&self, first: PhysAddr, count: usize) -> &[AtomicU64] {
        // SAFETY: as the caller promises.
        unsafe { (**self).words(first, count) }
    }

    fn is_coherent(&self) -> bool {
        (**self).is_coherent()
    }

    fn write_back(&self, words: &[AtomicU64]) {
        (**self).write_back(words);
    }
}

/// Pages that no unit uses yet: they are freed when they are dropped.
pub(crate) struct Pages<M: Memory> {
    memory: M,
    first: PhysAddr,
    pages: usize,
}

impl<M: Memory> Pages<M> {
    /// Pages for at least this many bytes: a power of two of them.
    pub fn of_bytes(memory: M, bytes: usize) -> Result<Self, Error> {
        let pages = bytes.div_ceil(PAGE).next_power_of_two();
        let first = memory.allocate(pages).ok_or(Error::NoMemory)?;
        Ok(Self { memory, first, pages })
    }

    /// The address of the first.
    pub const fn address(&self) -> PhysAddr {
        self.first
    }

    /// All of their words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: these pages, which are freed when `self` is gone.
        unsafe { self.memory.words(self.first, self.pages * WORDS) }
    }

    /// One of them.
    pub fn word(&self, number: usize) -> &AtomicU64 {
        &self.words()[number]
    }

    /// A unit gets their address: they stay until it is turned off.
    pub const fn keep(self) -> Kept<M> {
        Kept(ManuallyDrop::new(self))
    }
}

impl<M: Memory> Drop for Pages<M> {
    fn drop(&mut self) {
        // SAFETY: from `allocate`, freed once, and no unit uses them (the contract of
        // `Kept::release`).
        unsafe { self.memory.free(self.first, self.pages) }
    }
}

/// Pages that a unit reads or writes. They stay allocated even if this is dropped.
pub(crate) struct Kept<M: Memory>(ManuallyDrop<Pages<M>>);

impl<M: Memory> Kept<M> {
    /// The unit is off, and does not reach them any more.
    ///
    /// # Safety
    /// So it is.
    pub unsafe fn release(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

impl<M: Memory> core::ops::Deref for Kept<M> {
    type Target = Pages<M>;

    fn deref(&self) -> &Pages<M> {
        &self.0
    }
}
