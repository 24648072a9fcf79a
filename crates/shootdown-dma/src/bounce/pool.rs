//! Pages of the pool, and who uses them.
//!
//! # The protocol
//! A count for each page: one for the mapping that uses it, and one for each time that the domain
//! holds it. Whoever finds 0 and makes it 1 has it. Nothing is locked, and nothing allocated.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | P1 | compare-and-swap from 0 | Acquire | P2 | comes after the last copy from the page, and after its invalidation |
//! | P2 | subtraction | Release | P1 | |

use alloc::vec::Vec;
use core::fmt;

use crate::addr::PhysAddr;
use crate::fixed::Fixed;
use crate::serial;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// Why there is no pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PoolError {
    /// Not the start of a page.
    Unaligned(PhysAddr),
    /// A page is there twice.
    Twice(PhysAddr),
    /// There is no memory for its records.
    NoMemory,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaligned(at) => write!(f, "{at:?} is not the start of a page"),
            Self::Twice(at) => write!(f, "the page at {at:?} is there twice"),
            Self::NoMemory => f.write_str("no memory for the pool's records"),
        }
    }
}

impl core::error::Error for PoolError {}

struct Slot {
    /// The number of the page.
    page: u64,
    uses: AtomicU32,
}

/// Pages for the edges of buffers: two for each buffer that is in flight, and for each that is
/// deferred, suffice always.
///
/// ```
/// use shootdown_dma::PhysAddr;
/// use shootdown_dma::bounce::Pool;
/// let pool = Pool::new((0..64).map(|n| PhysAddr(0x10_0000 + n * 0x1000)))?;
/// assert_eq!(pool.free(), 64);
/// # Ok::<(), shootdown_dma::bounce::PoolError>(())
/// ```
pub struct Pool {
    /// Ascending.
    slots: Fixed<Slot>,
    /// Where to look first.
    next: AtomicUsize,
    /// Bits of a byte address within a page.
    granule: u32,
    serial: u64,
}

impl Pool {
    /// A pool of these pages of 4 KiB, which are nobody else's while it lives.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn new(pages: impl IntoIterator<Item = PhysAddr>) -> Result<Self, PoolError> {
        Self::with_granule(12, pages)
    }

    /// The same with pages of 2^`granule` bytes (below 64), for a domain whose tables have such: 14
    /// or 16 with Arm's larger granules.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn with_granule(
        granule: u32,
        pages: impl IntoIterator<Item = PhysAddr>,
    ) -> Result<Self, PoolError> {
        let mut numbers: Vec<u64> = Vec::new();
        for at in pages {
            if granule >= u64::BITS || at.0 & ((1 << granule) - 1) != 0 {
                return Err(PoolError::Unaligned(at));
            }
            numbers.try_reserve(1).map_err(|_| PoolError::NoMemory)?;
            numbers.push(at.0 >> granule);
        }
        numbers.sort_unstable();
        if let Some(pair) = numbers.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PoolError::Twice(PhysAddr(pair[0] << granule)));
        }
        let slots =
            Fixed::new(numbers.len(), |n| Slot { page: numbers[n], uses: AtomicU32::new(0) });
        let slots = slots.map_err(|_| PoolError::NoMemory)?;
        Ok(Self { slots, next: AtomicUsize::new(0), granule, serial: serial::next() })
    }

    /// How many pages nobody uses just now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.slots.iter().filter(|slot| slot.uses.load(Ordering::Relaxed) == 0).count()
    }

    /// How many pages it has.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.slots.len()
    }

    /// The logarithm of the bytes of a page.
    #[must_use]
    pub const fn granule(&self) -> u32 {
        self.granule
    }

    /// Something that no other pool has, nor one that is gone.
    pub(super) fn id(&self) -> u64 {
        self.serial
    }

    /// A page that nobody uses, for the caller.
    pub(super) fn take(&self) -> Option<usize> {
        let len = self.slots.len();
        let start = self.next.load(Ordering::Relaxed);
        let mut order = (0..len).map(|n| if start + n < len { start + n } else { start + n - len });
        let found = order.find(|index| {
            // ORDERING [P1]: Acquire, with the Release of whoever let go of it last.
            let uses = &self.slots[*index].uses;
            uses.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        self.next.store(if found + 1 < len { found + 1 } else { 0 }, Ordering::Relaxed);
        Some(found)
    }

    /// Where it is.
    pub(super) fn at(&self, index: usize) -> PhysAddr {
        PhysAddr(self.slots[index].page << self.granule)
    }

    /// One user more, beside one that there is.
    pub(super) fn hold(&self, index: usize) {
        self.slots[index].uses.fetch_add(1, Ordering::Relaxed);
    }

    /// One user less: it may have been the last.
    pub(super) fn let_go(&self, index: usize) {
        // ORDERING [P2]: Release, with the Acquire of who takes it next.
        let before = self.slots[index].uses.fetch_sub(1, Ordering::Release);
        debug_assert_ne!(before, 0, "nobody used it");
    }

    /// Which of its pages are among those from `first` on: their indices.
    pub(super) fn among(&self, first: u64, pages: u64) -> core::ops::Range<usize> {
        let from = self.slots.partition_point(|slot| slot.page < first);
        let to = self.slots.partition_point(|slot| slot.page < first.saturating_add(pages));
        from..to
    }
}

/// For the model checker, which has no domain to put around it.
#[cfg(loom)]
#[doc(hidden)]
impl Pool {
    pub fn lend(&self) -> Option<usize> {
        self.take()
    }

    pub fn hold_once_more(&self, index: usize) {
        self.hold(index);
    }

    pub fn give_back(&self, index: usize) {
        self.let_go(index);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("pages", &self.pages()).field("free", &self.free()).finish()
    }
}
