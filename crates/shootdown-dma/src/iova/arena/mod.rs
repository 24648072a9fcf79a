//! Pools of addresses that are swept once between flushes: the cheapest way to unmap lazily.
//!
//! **The problem.** Between an unmap and the invalidation a device can still reach the page, and
//! its address must not be handed out. A queue of pending invalidations costs an entry for each
//! unmap, and a flush for every few hundred. The IOMMU code of Sparc, PowerPC and s390 has no
//! queue: addresses are handed out in ascending order, and a freed address is not used again until
//! the search has come to the end; then the whole IOMMU is flushed *once*, and the search begins
//! anew.
//!
//! **The scheme.** There are a few pools of bitmaps, so that CPUs do not share locks and hints, and
//! a pool for large ranges, which would find no room between small ones. [`retire`](Arena::retire)
//! takes back a range whose entries are cleared but that hardware may still have cached: it is held
//! back in its pool. When a pool has nothing to hand out, one flush ([`Flush`]) makes everything
//! free that it holds back. [`free`](Allocate::free) is for ranges whose invalidation *is*
//! complete.
//!
//! **A6: a page that was retired is handed out only after a flush is complete that began after it
//! was retired; and each pool tracks that for itself.** One "flush needed" flag for all pools is
//! not enough (sparc's and PowerPC's code has one): pool A raises it and takes a low address; pool
//! B clears it and is about to flush; A finds it cleared and returns its address before B has
//! flushed. Here the pools share nothing, and each numbers its flushes (`bits.rs`). Nor is it
//! enough to check whether the search has wrapped: what was freed *ahead* of the search would be
//! handed out in the same sweep. Here it is held back as well.
//!
//! No lock is held during a flush, and no CPU waits for another's flush: a CPU that finds nothing
//! makes its own.
//!
//! **How long a device may reach what was unmapped** is the time of a sweep: without limit, if
//! nothing is mapped any more. A host that must bound it calls [`flush`](Arena::flush) from a
//! timer.
//!
//! **Costs.** Three bits of memory a page, allocated at the beginning. A search reads bits, not
//! trees: linear in the pool at worst, a word or two in most cases. Requests with a limit use the
//! lowest pools, as many as are below the limit.
//!
//! **What is checked.** Every page that is freed or retired must be live: busy, not held back, not
//! reserved. Any part of a range may be freed.

mod bits;

use alloc::vec::Vec;

use self::bits::{Bits, Taken};
use super::space::touches;
use super::spin::Spin;
use super::{AllocError, Allocate, FreeError, Space, SpaceError, Want};
use crate::addr::IovaRange;
use crate::sync::{AtomicU64, Ordering};

/// The invalidation of the hardware's caches.
///
/// # Safety
/// When [`flush`](Self::flush) returns, no cache of any IOMMU or device of the domain holds an
/// entry that was cleared before it was called.
pub unsafe trait Flush: Sync {
    /// Invalidates everything of the domain in all units and devices, and waits for it. Several
    /// CPUs may call it at once. The arena holds no lock.
    fn flush(&self);
}

// SAFETY: the same flush.
unsafe impl<F: Flush> Flush for &F {
    fn flush(&self) {
        (**self).flush();
    }
}

/// The division of a space into pools.
///
/// ```
/// use shootdown_dma::iova::arena::Layout;
/// assert_eq!(Layout::pools(4).large_above(15).large_above, 15);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Layout {
    /// Pools for small ranges; at least 1. Sparc and PowerPC have 16.
    pub pools: usize,
    /// Ranges of more pages come from the pool for large ones, which is the upper quarter of the
    /// space. `u64::MAX`: there is none.
    pub large_above: u64,
}

impl Layout {
    /// This many pools, and one for ranges of more than 15 pages (as sparc and PowerPC have it).
    #[must_use]
    pub const fn pools(pools: usize) -> Self {
        Self { pools: if pools == 0 { 1 } else { pools }, large_above: 15 }
    }

    /// The same, with the pool for large ranges for those of more than `pages`.
    #[must_use]
    pub const fn large_above(self, pages: u64) -> Self {
        Self { large_above: pages, ..self }
    }
}

/// A pool, on lines of its own.
#[repr(align(128))]
struct Pool(Spin<Bits>);

/// Pools of addresses; see the [module](self).
///
/// ```
/// use shootdown_dma::iova::arena::{Arena, Flush, Layout};
/// use shootdown_dma::iova::{Allocate, Space, Want};
///
/// struct NoHardware;
/// // SAFETY: nothing is ever cached.
/// unsafe impl Flush for NoHardware {
///     fn flush(&self) {}
/// }
///
/// let arena = Arena::new(&Space::below(1 << 16), &Layout::pools(4), NoHardware)?;
/// let want = Want::pages(1).expect("not zero");
/// let range = arena.alloc(0, &want)?;
/// // The entry is cleared here, and nothing else.
/// arena.retire(range)?;
/// assert_ne!(arena.alloc(0, &want)?, range);
/// assert_eq!(arena.flushes(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Arena<F> {
    /// The small pools, then the large one if there is one.
    pools: Vec<Pool>,
    small: usize,
    large_above: u64,
    first: u64,
    last: u64,
    /// Pages of a small pool; the last one may have more.
    stride: u64,
    large_first: u64,
    holes: Vec<IovaRange>,
    hardware: F,
    flushes: AtomicU64,
}

impl<F: Flush> Arena<F> {
    /// Makes an arena in which all of `space` is free. Guard pages are not supported: `space.guard`
    /// is 0.
    ///
    /// # Errors
    /// See [`SpaceError`]; [`SpaceError::Empty`] also if there is less than a page for each pool,
    /// [`SpaceError::TooLarge`] also if guard pages are asked for.
    pub fn new(space: &Space<'_>, layout: &Layout, hardware: F) -> Result<Self, SpaceError> {
        let holes = space.holes()?;
        if space.guard != 0 {
            return Err(SpaceError::TooLarge);
        }
        let (small, pages) = (layout.pools.max(1), space.last - space.first + 1);
        let large = if layout.large_above == u64::MAX { 0 } else { pages / 4 };
        let stride = (pages - large) / small as u64;
        if stride == 0 {
            return Err(SpaceError::Empty);
        }
        let large_first = space.last + 1 - large;
        let mut pools: Vec<Pool> = Vec::new();
        pools.try_reserve_exact(small + 1).map_err(|_| SpaceError::NoMemory)?;
        for n in 0..small as u64 + u64::from(large != 0) {
            let first = if n == small as u64 { large_first } else { space.first + n * stride };
            let end = match n + 1 {
                next if next < small as u64 => first + stride,
                next if next == small as u64 => large_first,
                _ => space.last + 1,
            };
            let mut bits = Bits::new(first, end - first)?;
            for hole in &holes {
                bits.block(hole.first(), hole.last());
            }
            pools.push(Pool(Spin::new(bits)));
        }
        Ok(Self {
            pools,
            small,
            large_above: layout.large_above,
            first: space.first,
            last: space.last,
            stride,
            large_first,
            holes,
            hardware,
            flushes: AtomicU64::new(0),
        })
    }

    /// Takes back a range whose entries are cleared, though hardware may still have them cached. It
    /// is handed out again after a flush.
    ///
    /// # Errors
    /// [`FreeError::NotAllocated`].
    pub fn retire(&self, range: IovaRange) -> Result<(), FreeError> {
        self.give(range, true)
    }

    /// Flushes, and makes everything free that was retired before.
    pub fn flush(&self) {
        for pool in &self.pools {
            // What was new while an old set was in another CPU's flush needs a second flush.
            for _ in 0..2 {
                if let Some(number) = pool.0.with(|bits| bits.begin()) {
                    self.sweep(pool, number);
                }
            }
        }
    }

    /// Flushes so far.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Pages that can be handed out without a flush.
    pub fn free_pages(&self) -> u64 {
        self.pools.iter().map(|pool| pool.0.with(|bits| bits.free_pages())).sum()
    }

    fn pool_of(&self, range: IovaRange) -> Option<&Pool> {
        if range.first() < self.first || range.last() > self.last {
            return None;
        }
        let of = |page: u64| {
            if page >= self.large_first {
                self.small
            } else {
                usize::try_from((page - self.first) / self.stride)
                    .map_or(usize::MAX, |n| n.min(self.small - 1))
            }
        };
        let pool = of(range.first());
        (pool == of(range.last())).then(|| self.pools.get(pool)).flatten()
    }

    fn give(&self, range: IovaRange, retired: bool) -> Result<(), FreeError> {
        let pool = self.pool_of(range).filter(|_| !touches(&self.holes, range));
        match pool.map(|p| p.0.with(|bits| bits.give(range.first(), range.pages(), retired))) {
            Some(true) => Ok(()),
            _ => Err(FreeError::NotAllocated),
        }
    }

    /// Flushes under this number, and makes free what that flush covers.
    fn sweep(&self, pool: &Pool, number: u64) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.hardware.flush();
        pool.0.with(|bits| bits.complete(number));
    }

    /// Takes a range from this pool, if need be after a flush. `None`: nothing fits, and nothing is
    /// held back.
    fn take(&self, pool: &Pool, want: &Want) -> Option<IovaRange> {
        // Once, unless another CPU takes what has become free, or a flush was under way that frees
        // less.
        let found = loop {
            match pool.0.with(|bits| bits.take(want)) {
                Taken::At(page) => break page,
                Taken::AfterFlush(number) => self.sweep(pool, number),
                Taken::Nothing => return None,
            }
        };
        IovaRange::new(found, want.pages)
    }
}

// SAFETY: what is handed out was not busy and is so afterwards, under the pool's lock; live, held
// back and reserved pages are busy (B1). Pages of `Space` begin at 1. `Bits::find` keeps alignment,
// limit and boundary.
unsafe impl<F: Flush> Allocate for Arena<F> {
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        want.check()?;
        let (small, large) = self.pools.split_at(self.small);
        let start = cpu % self.small;
        let own_first = || small.iter().cycle().skip(start).take(self.small);
        let found = if want.pages > self.large_above {
            large.iter().chain(own_first()).find_map(|pool| self.take(pool, want))
        } else {
            own_first().chain(large).find_map(|pool| self.take(pool, want))
        };
        found.ok_or(AllocError::Exhausted)
    }

    fn free(&self, _: usize, range: IovaRange) -> Result<(), FreeError> {
        self.give(range, false)
    }

    /// A freed address becomes usable again when its pool's search has wrapped.
    fn may_keep(&self) -> bool {
        false
    }
}

#[cfg(test)]
pub(crate) mod tests;
