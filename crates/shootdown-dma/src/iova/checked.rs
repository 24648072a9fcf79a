//! Finds drivers that free a range which they do not have.

use alloc::vec::Vec;

use super::space::{Space, SpaceError};
use super::{AllocError, Allocate, FreeError, Tree, Want};
use crate::addr::IovaRange;
use crate::sync::{AtomicU64, Ordering};

/// An allocator that records every range that is handed out, in a [`Tree`] of its own: for
/// debugging drivers, and allocators.
///
/// A range that is freed must be live, with the length that it had when it was handed out. A second
/// free is refused however long ago the first one was, and whichever CPU has cached the range
/// since; so are a part of a range and two ranges at once, even where the allocator itself would
/// take them. It costs a lock that all CPUs share.
///
/// ```
/// use shootdown_dma::iova::magazine::{Config, Magazines};
/// use shootdown_dma::iova::{Allocate, Checked, FreeError, Space, Tree, Want};
///
/// let space = Space::below(1 << 20);
/// let magazines = Magazines::new(Tree::new(&space)?, &Config::for_cpus(2))?;
/// let checked = Checked::new(magazines, &space)?;
/// let range = checked.alloc(0, &Want::pages(1).expect("not zero"))?;
/// checked.free(0, range)?;
/// assert_eq!(checked.free(1, range), Err(FreeError::NotAllocated));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Checked<A> {
    inner: A,
    /// The live ranges, as [`apart`] encodes them.
    live: Tree,
    pages: AtomicU64,
}

/// A range in twice as many pages: each page becomes an even one, and the odd pages between them
/// belong to the range too. The odd pages between ranges are free, so ranges that abut stay apart.
fn apart(range: IovaRange) -> Option<IovaRange> {
    IovaRange::new(range.first().checked_mul(2)?, range.pages().checked_mul(2)? - 1)
}

impl<A: Allocate> Checked<A> {
    /// Checks `inner`, which hands out pages of `space`: below page 2^61.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn new(inner: A, space: &Space<'_>) -> Result<Self, SpaceError> {
        space.check()?;
        let last = space.last.checked_mul(2).ok_or(SpaceError::TooLarge)? + 1;
        let mut holes = Vec::new();
        holes.try_reserve_exact(space.reserved.len()).map_err(|_| SpaceError::NoMemory)?;
        holes.extend(space.reserved.iter().filter_map(|hole| apart(*hole)));
        // The inner allocator keeps guard pages.
        let twice = Space::below(last + 1).from(2 * space.first - 1).without(&holes);
        Ok(Self { inner, live: Tree::new(&twice)?, pages: AtomicU64::new(0) })
    }

    /// The allocator that is checked.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Pages that are allocated.
    pub fn live_pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    fn note(&self, range: IovaRange) -> Result<(), AllocError> {
        self.live.claim(apart(range).ok_or(AllocError::Exhausted)?)?;
        self.pages.fetch_add(range.pages(), Ordering::Relaxed);
        Ok(())
    }

    fn forget(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        let all = apart(range).filter(|all| self.live.is_run(*all));
        self.live.free(cpu, all.ok_or(FreeError::NotAllocated)?)?;
        self.pages.fetch_sub(range.pages(), Ordering::Relaxed);
        Ok(())
    }
}

// SAFETY: it hands out what the inner allocator does.
unsafe impl<A: Allocate> Allocate for Checked<A> {
    /// # Panics
    /// When the inner allocator hands out a range that is live, or that does not meet `want`: it
    /// has an error, or a range was freed whose check came too late.
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        let range = self.inner.alloc(cpu, want)?;
        assert!(want.is_met_by(range), "{range:?} does not meet {want:?}");
        match self.note(range) {
            Ok(()) => Ok(range),
            Err(AllocError::NoMemory) => {
                // It can't be recorded, so it is not handed out.
                let _ = self.inner.free(cpu, range);
                Err(AllocError::NoMemory)
            }
            Err(_) => panic!("{range:?} is handed out, and is live, or outside of the space"),
        }
    }

    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        self.forget(cpu, range)?;
        self.inner.free(cpu, range).inspect_err(|_| {
            // It stays allocated. There is room: its node was there a moment ago.
            let _ = self.note(range);
        })
    }

    fn may_keep(&self) -> bool {
        self.inner.may_keep()
    }

    fn drain(&self, cpu: usize) {
        self.inner.drain(cpu);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::iova::Unmanaged;
    use crate::iova::magazine::{Config, Magazines};

    pub(crate) fn finds_what_magazines_do_not() {
        let space = Space::below(1 << 20);
        let magazines = Magazines::new(Tree::new(&space).unwrap(), &Config::for_cpus(2)).unwrap();
        let checked = Checked::new(magazines, &space).unwrap();
        let want = Want::pages(4).unwrap();
        let range = checked.alloc(0, &want).unwrap();
        assert_eq!(checked.live_pages(), 4);
        assert_eq!(checked.free(0, range), Ok(()));
        assert_eq!(checked.free(1, range), Err(FreeError::NotAllocated));
        let wrong_length = IovaRange::new(range.first(), 8).unwrap();
        assert_eq!(checked.alloc(0, &want), Ok(range));
        assert_eq!(checked.free(0, wrong_length), Err(FreeError::NotAllocated));
        assert_eq!(checked.live_pages(), 4);
    }

    pub(crate) fn finds_parts() {
        let space = Space::below(1 << 20);
        let checked = Checked::new(Tree::new(&space).unwrap(), &space).unwrap();
        let want = Want::pages(4).unwrap();
        let ranges = [(); 2].map(|()| checked.alloc(0, &want).unwrap());
        let low = ranges.iter().map(|range| range.first()).min().unwrap();
        for (first, pages) in
            [(low, 3), (low + 1, 3), (low + 1, 2), (low, 5), (low, 8), (low + 3, 2)]
        {
            let wrong = IovaRange::new(first, pages).unwrap();
            assert_eq!(checked.free(0, wrong), Err(FreeError::NotAllocated), "{wrong:?}");
        }
        assert_eq!(
            (checked.live_pages(), checked.inner().free_pages()),
            (8, checked.inner().pages() - 8)
        );
        ranges.iter().for_each(|range| checked.free(0, *range).unwrap());
        assert_eq!(checked.live_pages(), 0);
    }

    #[test]
    fn finds_all() {
        finds_what_magazines_do_not();
        finds_parts();
    }

    #[test]
    fn spaces_are_as_they_are() {
        let hole = IovaRange::new(50, 4).unwrap();
        let reserved = [hole];
        let space = Space::below(60).from(40).without(&reserved);
        let checked = Checked::new(Tree::new(&space).unwrap(), &space).unwrap();
        let one = Want::pages(1).unwrap();
        let all: Vec<_> = core::iter::from_fn(|| checked.alloc(0, &one).ok()).collect();
        assert_eq!(all.len(), 16);
        assert_eq!(Checked::new(Unmanaged, &Space::below(0)).err(), Some(SpaceError::Empty));
        assert_eq!(
            Checked::new(Unmanaged, &Space::below(1 << 62)).err(),
            Some(SpaceError::TooLarge)
        );
    }
}
