//! Allocators of I/O virtual address space.
//!
//! All implement one trait, [`Allocate`], and keep one contract. A range that is returned is
//! disjoint from everything that is allocated, cached, reserved or held back; it respects
//! alignment, limit and boundary; it is never page 0. A range is freed by its address *and* its
//! length, which are checked where the check is affordable (each allocator documents what it
//! checks).
//!
//! | allocator | use it |
//! |---|---|
//! | [`Tree`] | behind the others; alone for what is mapped once |
//! | [`Magazines`] | before the tree, for everything that is mapped and unmapped at rate |
//! | [`Arena`] | where unmapping is lazy and one flush for each sweep of a pool is often enough |
//! | [`Ring`] | for the buffers of one ring of descriptors, from a region of any of these |
//! | [`identity`] | with one of these for what does not fit: no allocation at all, but devices learn physical addresses |
//! | [`Unmanaged`] | for a domain whose caller chooses the addresses: it allocates nothing |
//! | [`Checked`] | around any of these, to find drivers that free a range which they do not have |
//!
//! None waits, except for a lock that is held for a bounded time; none disables interrupts. If
//! interrupt handlers allocate or free, all callers do so with interrupts disabled.

pub mod arena;
pub mod checked;
pub mod identity;
pub mod magazine;
pub mod ring;
pub mod space;
mod spin;
pub mod tree;
mod unmanaged;

use core::fmt;

pub use arena::Arena;
pub use checked::Checked;
pub use magazine::Magazines;
pub use ring::Ring;
pub use space::{Space, SpaceError};
pub use tree::Tree;
pub use unmanaged::Unmanaged;

use crate::addr::IovaRange;

/// A request for addresses.
///
/// ```
/// use shootdown_dma::iova::Want;
/// let want = Want::pages(8).expect("not zero").below(0xf_ffff); // 32 KiB below 4 GiB, aligned to its size
/// assert_eq!(want.align, 8);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Want {
    /// The number of pages; not 0.
    pub pages: u64,
    /// The first page is a multiple of this power of two.
    pub align: u64,
    /// No page is above this one (the device's mask, or the width of the I/O page table).
    pub limit: u64,
    /// No multiple of this power of two lies inside the range, except at its start: segment
    /// boundaries of a device's DMA engine. 0: no boundary.
    pub boundary: u64,
}

impl Want {
    /// This many pages, aligned to the next power of two (so that one invalidation covers them),
    /// anywhere. `None` for 0 pages, and for more than 2^63.
    #[must_use]
    pub const fn pages(pages: u64) -> Option<Self> {
        match (pages, pages.checked_next_power_of_two()) {
            (0, _) | (_, None) => None,
            (_, Some(align)) => Some(Self { pages, align, limit: u64::MAX, boundary: 0 }),
        }
    }

    /// The same, no page above `limit`.
    #[must_use]
    pub const fn below(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// The same, aligned to `align` pages instead.
    #[must_use]
    pub const fn aligned(self, align: u64) -> Self {
        Self { align, ..self }
    }

    /// The same, not crossing a multiple of `boundary` pages.
    #[must_use]
    pub const fn within(self, boundary: u64) -> Self {
        Self { boundary, ..self }
    }

    /// Checks that the request is valid.
    ///
    /// # Errors
    /// [`AllocError::Invalid`] if it is not.
    pub const fn check(&self) -> Result<(), AllocError> {
        let boundary = self.boundary;
        let bounded = boundary == 0 || (boundary.is_power_of_two() && self.pages <= boundary);
        if self.pages != 0 && self.align.is_power_of_two() && bounded {
            Ok(())
        } else {
            Err(AllocError::Invalid)
        }
    }

    /// Whether `range` meets the request.
    #[must_use]
    pub const fn is_met_by(&self, range: IovaRange) -> bool {
        let crosses = match self.boundary {
            0 => false,
            boundary => range.first() / boundary != range.last() / boundary,
        };
        range.pages() == self.pages
            && range.first() % self.align == 0
            && range.last() <= self.limit
            && !crosses
    }
}

/// Why there is no range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AllocError {
    /// No pages, an alignment or boundary that is no power of two, or more pages than the boundary
    /// has.
    Invalid,
    /// No such range is free, neither in a tree nor in any cache.
    Exhausted,
    /// The allocator could not get memory for its own records.
    NoMemory,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => {
                "ask for at least one page, with a power of two as alignment and boundary"
            }
            Self::Exhausted => "no such range is free; unmap something, or raise the device's mask",
            Self::NoMemory => "no memory for the allocator's own records; try again later",
        })
    }
}

impl core::error::Error for AllocError {}

/// Why a range was not taken back. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FreeError {
    /// Not all of it is allocated: it was freed before, the length is wrong, or it is from another
    /// allocator.
    NotAllocated,
    /// The allocator could not get memory for its own records (freeing the middle of a range makes
    /// two); free it again later.
    NoMemory,
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAllocated => {
                "the range is not allocated, or not all of it; check address and length"
            }
            Self::NoMemory => "no memory for the allocator's own records; free it again later",
        })
    }
}

impl core::error::Error for FreeError {}

/// An allocator of I/O virtual addresses, for any number of CPUs at once.
///
/// `cpu` is a hint where to look first: a wrong number (the caller has moved to another CPU) costs
/// speed, never safety. Any number works. Only an allocator that was made for a host that is
/// [`Pinned`](crate::pinned::Pinned) relies on the guarantees of that host.
///
/// # Safety
/// The contract of the [module](self): users map memory for devices at the returned ranges, and
/// rely on having them alone.
pub unsafe trait Allocate: Sync {
    /// Returns a range that meets `want` ([`Want::is_met_by`]), and that no other caller has.
    ///
    /// # Errors
    /// See [`AllocError`]. [`AllocError::Exhausted`] only after all caches were searched.
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError>;

    /// Returns several ranges at once that each meet `want`, at most `most` (not 0): they follow
    /// each other in the returned range, and each is freed by itself. The allocator returns as many
    /// as it finds at no further cost, and perhaps only one.
    ///
    /// ```
    /// use shootdown_dma::iova::{Allocate, Space, Tree, Want};
    /// let tree = Tree::new(&Space::below(1 << 20))?;
    /// let run = tree.alloc_run(0, &Want::pages(4).expect("not zero"), 16)?;
    /// assert_eq!(run.pages(), 16 * 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    fn alloc_run(&self, cpu: usize, want: &Want, most: u64) -> Result<IovaRange, AllocError> {
        let _ = most;
        self.alloc(cpu, want)
    }

    /// Takes back a range that [`alloc`](Self::alloc) returned, of that length. No device reaches
    /// memory by it any more: the invalidation is complete.
    ///
    /// # Errors
    /// See [`FreeError`]; as far as the allocator checks.
    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError>;

    /// [`free`](Self::free) for many ranges; `refused` gets those that were not taken back.
    #[inline]
    fn free_all(
        &self,
        cpu: usize,
        ranges: impl Iterator<Item = IovaRange>,
        mut refused: impl FnMut(IovaRange, FreeError),
    ) where
        Self: Sized,
    {
        for range in ranges {
            if let Err(why) = self.free(cpu, range) {
                refused(range, why);
            }
        }
    }

    /// Whether a caller that has a single page to give back may keep it for the next request. False
    /// if the time or the order matters in which addresses are handed out again.
    fn may_keep(&self) -> bool {
        true
    }

    /// Gives back what is cached for `cpu`, which has gone offline. Another CPU calls it.
    fn drain(&self, cpu: usize) {
        let _ = cpu;
    }
}

// SAFETY: the same allocator.
unsafe impl<A: Allocate + ?Sized> Allocate for &A {
    #[inline]
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        (**self).alloc(cpu, want)
    }

    fn alloc_run(&self, cpu: usize, want: &Want, most: u64) -> Result<IovaRange, AllocError> {
        (**self).alloc_run(cpu, want, most)
    }

    #[inline]
    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        (**self).free(cpu, range)
    }

    fn may_keep(&self) -> bool {
        (**self).may_keep()
    }

    fn drain(&self, cpu: usize) {
        (**self).drain(cpu);
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod named;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_invalid() {
        assert_eq!(Want::pages(0), None);
        let one = Want::pages(1).unwrap();
        assert_eq!(one.aligned(3).check(), Err(AllocError::Invalid));
        assert_eq!(one.aligned(0).check(), Err(AllocError::Invalid));
        assert_eq!(Want::pages(8).unwrap().within(4).check(), Err(AllocError::Invalid));
        assert_eq!(Want::pages(4).unwrap().within(4).check(), Ok(()));
    }

    #[test]
    fn limits_are_kept() {
        let want = Want::pages(2).unwrap().below(5);
        let met = |first| want.is_met_by(IovaRange::new(first, 2).unwrap());
        assert_eq!([2, 4, 6].map(met), [true, true, false]);
    }

    #[test]
    fn boundaries_are_not_crossed() {
        let want = Want::pages(2).unwrap().aligned(1).within(4);
        let met = |first| want.is_met_by(IovaRange::new(first, 2).unwrap());
        assert_eq!([1, 2, 3, 4].map(met), [true, true, false, true]);
    }
}
