//! Contiguous addresses for a ring of descriptors.
//!
//! **The problem.** A translation that a device has not cached costs a walk, and a walk is short
//! while upper levels are cached. Buffers of one ring that are scattered over the space take a walk
//! of their own each, and tables that become empty and fill again can't stay cached (F&S, SOSP
//! 2024: keeping a descriptor's buffers together, and tables in place, brings strict unmapping near
//! the cost of none).
//!
//! **The scheme.** A ring takes one region from another allocator and hands it out in order, round
//! and round. Devices complete descriptors nearly in order, so the range that is freed is mostly
//! the one that was handed out first. A range that is freed out of order is marked, and becomes
//! free when the ranges before it are. So the ring uses few tables, whose pages can stay for as
//! long as the ring does, and an address is used again as late as possible.
//!
//! **What is checked.** Every page that is freed is allocated: a bit for each page of the region.

use alloc::vec::Vec;

use super::spin::Spin;
use super::{AllocError, Allocate, FreeError, Want};
use crate::addr::IovaRange;
use crate::pinned::NOBODY;

/// Counts pages since the ring began; a page's place is the remainder by the region's size.
struct State {
    /// All pages before this one are free.
    head: u64,
    /// All pages from here on are free.
    tail: u64,
    /// For the pages between them, by place: those that are free already, or were skipped.
    free: Vec<u64>,
}

/// Addresses for one ring, from a region that belongs to it until it is dropped. See the
/// [module](self).
///
/// ```
/// use shootdown_dma::iova::ring::Ring;
/// use shootdown_dma::iova::{Allocate, Space, Tree, Want};
///
/// let tree = Tree::new(&Space::below(1 << 20))?;
/// let ring = Ring::new(&tree, 0, &Want::pages(64).expect("not zero"))?;
/// let page = Want::pages(1).expect("not zero");
/// let (first, second) = (ring.alloc(0, &page)?, ring.alloc(0, &page)?);
/// assert_eq!(second.first(), first.last() + 1);
/// ring.free(0, first)?;
/// ring.free(0, second)?;
/// drop(ring); // the region goes back
/// assert_eq!(tree.free_pages(), tree.pages());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ring<A: Allocate> {
    inner: A,
    region: IovaRange,
    /// Pages of the region that are used: a power of two.
    size: u64,
    state: Spin<State>,
}

impl<A: Allocate> Ring<A> {
    /// Makes a ring in a region that meets `want`, rounded up to a power of two of pages, from
    /// `inner`. The device's limits apply to the region.
    ///
    /// # Errors
    /// [`AllocError`] of `inner`; [`AllocError::NoMemory`] also for the ring's own records.
    pub fn new(inner: A, cpu: usize, want: &Want) -> Result<Self, AllocError> {
        want.check()?;
        let size = want.pages.checked_next_power_of_two().ok_or(AllocError::Exhausted)?;
        let words = usize::try_from(size.div_ceil(64)).map_err(|_| AllocError::NoMemory)?;
        let mut free: Vec<u64> = Vec::new();
        free.try_reserve_exact(words).map_err(|_| AllocError::NoMemory)?;
        free.resize(words, 0);
        let want = Want { pages: size, align: want.align.max(size), ..*want };
        let region = inner.alloc(cpu, &want)?;
        Ok(Self { inner, region, size, state: Spin::new(State { head: 0, tail: 0, free }) })
    }

    /// The region with all its addresses.
    pub const fn region(&self) -> IovaRange {
        self.region
    }

    /// Whether nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.state.with(|s| s.head == s.tail)
    }

    /// The place of a count in the bitmap.
    fn bit(&self, count: u64) -> (usize, u64) {
        let place = count & (self.size - 1);
        (usize::try_from(place / 64).unwrap_or(usize::MAX), 1 << (place % 64))
    }

    /// The count after `tail` where `want` would begin in an empty ring.
    fn begin(&self, tail: u64, want: &Want) -> Option<u64> {
        let place = tail & (self.size - 1);
        let mut at = place.checked_next_multiple_of(want.align)?;
        if want.boundary != 0 {
            // The region is aligned to its size: boundaries within lie at multiples.
            let wall = (at + (want.pages - 1)) & !(want.boundary - 1);
            if wall > at {
                at = wall.checked_next_multiple_of(want.align)?;
            }
        }
        if at + want.pages > self.size {
            at = self.size; // continue at the region's begin
        }
        Some(tail - place + at)
    }
}

// SAFETY: the region belongs to this ring alone. Pages between head and tail that are not marked
// free are handed out; those beyond are not. The region is aligned to its size, a power of two. So
// a place in it is aligned and bounded as its address is; a larger alignment or boundary is met by
// all places or by none.
unsafe impl<A: Allocate> Allocate for Ring<A> {
    /// `want.limit` is checked, but does not choose a place: the next place is above it, or is not.
    fn alloc(&self, _: usize, want: &Want) -> Result<IovaRange, AllocError> {
        want.check()?;
        if want.pages > self.size || want.align > self.size {
            return Err(AllocError::Exhausted);
        }
        self.state.with(|state| {
            let at = self.begin(state.tail, want).ok_or(AllocError::Exhausted)?;
            let end = at + want.pages;
            // An empty ring may begin anywhere: the skipped places become usable in the next round.
            let head = if state.head == state.tail { at } else { state.head };
            let full = end - head > self.size;
            let first = self.region.first() + (at & (self.size - 1));
            let range = IovaRange::new(first, want.pages).ok_or(AllocError::Exhausted)?;
            if full || range.last() > want.limit {
                return Err(AllocError::Exhausted);
            }
            if head == state.head {
                for skipped in state.tail..at {
                    let (word, bit) = self.bit(skipped);
                    state.free[word] |= bit;
                }
            }
            (state.head, state.tail) = (head, end);
            state.come_back(self);
            Ok(range)
        })
    }

    fn free(&self, _: usize, range: IovaRange) -> Result<(), FreeError> {
        if !self.region.contains(range) {
            return Err(FreeError::NotAllocated);
        }
        self.state.with(|state| {
            let place = range.first() - self.region.first();
            let ahead = place.wrapping_sub(state.head) & (self.size - 1);
            let first = state.head + ahead;
            let counts = first..first + range.pages();
            let live = counts.end <= state.tail
                && counts.clone().all(|count| {
                    let (word, bit) = self.bit(count);
                    state.free[word] & bit == 0
                });
            if !live {
                return Err(FreeError::NotAllocated);
            }
            for count in counts {
                let (word, bit) = self.bit(count);
                state.free[word] |= bit;
            }
            state.come_back(self);
            Ok(())
        })
    }

    /// Addresses are handed out in the order of the ring.
    fn may_keep(&self) -> bool {
        false
    }

    fn drain(&self, cpu: usize) {
        self.inner.drain(cpu);
    }
}

impl State {
    /// Moves the head over what is free.
    fn come_back<A: Allocate>(&mut self, ring: &Ring<A>) {
        while self.head < self.tail {
            let (word, bit) = ring.bit(self.head);
            if self.free[word] & bit == 0 {
                break;
            }
            self.free[word] &= !bit;
            self.head += 1;
        }
    }
}

impl<A: Allocate> Drop for Ring<A> {
    /// Gives the region back, if nothing of it is allocated. Otherwise it stays taken, since a
    /// device may still use it.
    fn drop(&mut self) {
        if self.is_empty() {
            // If the inner allocator has no memory to take it back, it stays taken.
            let _ = self.inner.free(NOBODY, self.region);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::VecDeque;
    use std::vec::Vec;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    use super::*;
    use crate::iova::{Space, Tree};

    fn want(pages: u64) -> Want {
        Want::pages(pages).unwrap()
    }

    /// Random sizes, freed nearly in order; what is live is compared with a bitmap.
    pub(crate) fn agrees_with_a_bitmap() {
        let step =
            (0..3u8, prop_oneof![8 => 1..9u64, 1 => 9..33u64], 0..5u32, 0..4usize, any::<bool>());
        let mut runner = TestRunner::new_with_rng(
            Config { cases: 200, failure_persistence: None, ..Config::default() },
            TestRng::deterministic_rng(RngAlgorithm::ChaCha),
        );
        let outcome = runner.run(&proptest::collection::vec(step, 1..200), |steps| {
            let tree = Tree::new(&Space::below(1 << 12)).unwrap();
            let ring = Ring::new(&tree, 0, &want(30)).unwrap();
            let base = ring.region().first();
            let (mut live, mut taken) = (VecDeque::new(), [false; 32]);
            for (what, pages, align, which, bounded) in steps {
                if what < 2 {
                    let want = want(pages)
                        .aligned(1 << align.min(4))
                        .within(if bounded && pages <= 16 { 16 } else { 0 });
                    match ring.alloc(0, &want) {
                        Ok(range) => {
                            assert!(want.is_met_by(range), "A2: {range:?} for {want:?}");
                            for page in range.first()..=range.last() {
                                let page = &mut taken[(page - base) as usize];
                                assert!(!core::mem::replace(page, true), "A1");
                            }
                            live.push_back(range);
                        }
                        Err(error) => {
                            assert_eq!(error, AllocError::Exhausted);
                            assert!(!live.is_empty(), "A4: the ring is empty");
                        }
                    }
                } else if let Some(range) = live.remove(which.min(live.len().saturating_sub(1))) {
                    assert_eq!(ring.free(0, range), Ok(()));
                    assert_eq!(ring.free(0, range), Err(FreeError::NotAllocated));
                    for page in range.first()..=range.last() {
                        taken[(page - base) as usize] = false;
                    }
                }
            }
            for range in live {
                ring.free(0, range).unwrap();
            }
            assert!(ring.is_empty());
            drop(ring);
            assert_eq!(tree.nodes(), 1, "A3");
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }

    #[test]
    fn ring_agrees_with_a_bitmap() {
        agrees_with_a_bitmap();
    }

    #[test]
    fn goes_round_in_order() {
        let tree = Tree::new(&Space::below(1 << 12)).unwrap();
        let ring = Ring::new(&tree, 0, &want(8).below(100)).unwrap();
        assert!(ring.region().last() <= 100);
        let all: Vec<_> = (0..8).map(|_| ring.alloc(0, &want(1)).unwrap()).collect();
        assert!(all.windows(2).all(|w| w[1].first() == w[0].last() + 1));
        assert_eq!(ring.alloc(0, &want(1)), Err(AllocError::Exhausted));
        ring.free(0, all[1]).unwrap();
        assert_eq!(ring.alloc(0, &want(1)), Err(AllocError::Exhausted), "the first is still out");
        ring.free(0, all[0]).unwrap();
        assert_eq!(ring.alloc(0, &want(2)).map(|r| r.first()), Ok(all[0].first()));
        assert_eq!(ring.alloc(0, &want(16)), Err(AllocError::Exhausted));
        // What is still out keeps the region.
        drop(ring);
        assert_eq!(tree.free_pages(), tree.pages() - 8);
    }
}
