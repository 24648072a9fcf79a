//! Finding who frees what isn't theirs.

use super::space::{Space, SpaceError};
use super::{AllocError, Allocate, FreeError, Tree, Want};
use crate::addr::IovaRange;

/// An allocator whose every answer is written down, in a [`Tree`] of its own: for debugging drivers, and allocators.
///
/// Each page that is freed must be live, by whatever way it came: what is freed twice is refused however long ago the
/// first time was, and whoever has cached it since. It costs a lock that all CPUs share.
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
    live: Tree,
}

impl<A: Allocate> Checked<A> {
    /// `inner`, which hands out pages of `space`.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn new(inner: A, space: &Space<'_>) -> Result<Self, SpaceError> {
        // Guard pages are the inner allocator's business.
        Ok(Self { inner, live: Tree::new(&space.guarded(0))? })
    }

    /// The allocator that is checked.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Pages that are allocated.
    pub fn live_pages(&self) -> u64 {
        self.live.pages() - self.live.free_pages()
    }
}

// SAFETY: it hands out what the inner allocator does.
unsafe impl<A: Allocate> Allocate for Checked<A> {
    /// # Panics
    /// When the inner allocator hands out what is live, or does not meet `want`: it is broken, or a range was freed whose
    /// check came too late.
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        let range = self.inner.alloc(cpu, want)?;
        assert!(want.is_met_by(range), "{range:?} does not meet {want:?}");
        match self.live.claim(range) {
            Ok(()) => Ok(range),
            Err(AllocError::NoMemory) => {
                // It can't be written down, so that nobody gets it.
                let _ = self.inner.free(cpu, range);
                Err(AllocError::NoMemory)
            }
            Err(_) => panic!("{range:?} is handed out, and is live, or outside of the space"),
        }
    }

    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        if !without!(CheckedFreeUnseen) {
            self.live.free(cpu, range)?;
        }
        self.inner.free(cpu, range).inspect_err(|_| {
            // It stays allocated. There is room: its node was there a moment ago.
            let _ = self.live.claim(range);
        })
    }

    fn drain(&self, cpu: usize) {
        self.inner.drain(cpu);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
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

    #[test]
    fn finds_all() {
        finds_what_magazines_do_not();
    }
}
