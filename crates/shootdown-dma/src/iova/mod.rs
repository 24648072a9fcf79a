//! Which address? Allocators of I/O virtual address space.
//!
//! All stand behind one trait, [`Allocate`], and keep one contract: what is returned is disjoint
//! from everything that is allocated, cached, reserved or held back; it respects alignment, limit
//! and boundary; it is never page 0; and what is freed is named by its address *and* its length,
//! which are checked where checking is affordable (each allocator says what it checks).
//!
//! | allocator | use it |
//! |---|---|
//! | [`Tree`] | behind the others; alone for what is mapped once |
//! | [`Magazines`] | before the tree, for everything that is mapped and unmapped at rate |
//! | [`Arena`] | where unmapping is lazy and one flush for each sweep of a pool is often enough |
//! | [`Ring`] | for the buffers of one ring of descriptors, from a region of any of these |
//! | [`identity`] | with one of these for what does not fit: no allocation at all, but devices learn physical addresses |
//! | [`Unmanaged`] | nothing at all: somebody else hands out the addresses |
//! | [`Checked`] | around any of these, to find who frees what isn't theirs |
//!
//! None waits, but for a lock that is held for a bounded time; none disables interrupts. If
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

/// What is wanted.
///
/// ```
/// use shootdown_dma::iova::Want;
/// let want = Want::pages(8).expect("not zero").below(0xf_ffff); // 32 KiB below 4 GiB, aligned to its size
/// assert_eq!(want.align, 8);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Want {
    /// Pages; not 0.
    pub pages: u64,
    /// The first page is a multiple of this power of two.
    pub align: u64,
    /// No page is above this one (the device's mask, or the width of the I/O page table).
    pub limit: u64,
    /// No multiple of this power of two lies inside the range, but for its start: segment
    /// boundaries of a device's DMA engine. 0: no boundary.
    pub boundary: u64,
}

impl Want {
    /// So many pages, aligned to the next power of two (so that one invalidation covers them),
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

    /// Is it a sensible question?
    ///
    /// # Errors
    /// [`AllocError::Invalid`] if not.
    pub const fn check(&self) -> Result<(), AllocError> {
        let boundary = self.boundary;
        let bounded = boundary == 0 || (boundary.is_power_of_two() && self.pages <= boundary);
        if self.pages != 0 && self.align.is_power_of_two() && bounded {
            Ok(())
        } else {
            Err(AllocError::Invalid)
        }
    }

    /// Is `range` an answer to it?
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
    /// There is no such range free, neither in a tree nor in any cache.
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
    /// Not all of it is allocated: freed twice, a wrong length, or never from here.
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

/// Something that hands out I/O virtual addresses, from any number of CPUs at once.
///
/// `cpu` is a hint where to look first: a wrong number (the caller has moved since it asked) costs
/// speed, never safety. Any number will do. Only an allocator that was made for a host that is
/// [`Pinned`](crate::pinned::Pinned) relies on what was promised there.
///
/// # Safety
/// The contract of the [module](self): users map devices' memory at what is returned, and rely on
/// nobody else having it.
pub unsafe trait Allocate: Sync {
    /// A range that meets `want` ([`Want::is_met_by`]), and that nobody else has.
    ///
    /// # Errors
    /// See [`AllocError`]. [`AllocError::Exhausted`] only after everything that is cached was
    /// looked at.
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError>;

    /// Several ranges at once that each meet `want`, at most `most` (not 0): they are the range
    /// that is returned, one behind the other, and each is freed by itself. As many as the
    /// allocator finds at no further cost, and perhaps no more than one.
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

    /// Takes a range back that [`alloc`](Self::alloc) returned, of that length. No device reaches
    /// memory by it any more: the invalidation is complete.
    ///
    /// # Errors
    /// See [`FreeError`]; as far as the allocator checks.
    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError>;

    /// [`free`](Self::free) for many ranges; `refused` is told of those that were not taken back.
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

    /// May who has a single page to give back keep it, for the next one who asks? Not if it matters
    /// when, or in which order, addresses are handed out again.
    fn may_keep(&self) -> bool {
        true
    }

    /// Gives back what is cached for `cpu`, which has gone offline: by whoever is left.
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
