//! The pool: its pages, and the count of their users.
//!
//! # The protocol
//! Each page has a count: one for the mapping that uses it, and one for each time that the domain
//! holds it. A CPU that changes 0 to 1 has taken the page. There is no lock and no allocation.
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
    /// A page is listed twice.
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

/// Pages for the edges of buffers. Two for each buffer that is mapped, and for each that is
/// deferred, are always enough.
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
    /// The index at which the next search begins.
    next: AtomicUsize,
    /// Bits of a byte address within a page.
    granule: u32,
    serial: u64,
}

impl Pool {
    /// Makes a pool of these pages of 4 KiB, which no other code uses while it lives.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn new(pages: impl IntoIterator<Item = PhysAddr>) -> Result<Self, PoolError> {
        Self::with_granule(12, pages)
    }

    /// The same with pages of 2^`granule` bytes (below 64), for a domain whose tables have such
    /// pages: 14 or 16 with Arm's larger granules.
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

    /// How many pages are free at the moment.
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

    /// A number that no other pool has, and that none had before.
    pub(super) fn id(&self) -> u64 {
        self.serial
    }

    /// Takes a free page for the caller.
    pub(super) fn take(&self) -> Option<usize> {
        let len = self.slots.len();
        let start = self.next.load(Ordering::Relaxed);
        let mut order = (0..len).map(|n| if start + n < len { start + n } else { start + n - len });
        let found = order.find(|index| {
            // ORDERING [P1]: Acquire, with the Release of the last user. Without it the new user
            // may write while the last copy from the page is still under way.
            let uses = &self.slots[*index].uses;
            uses.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        self.next.store(if found + 1 < len { found + 1 } else { 0 }, Ordering::Relaxed);
        Some(found)
    }

    /// The address of the page.
    pub(super) fn at(&self, index: usize) -> PhysAddr {
        PhysAddr(self.slots[index].page << self.granule)
    }

    /// Adds a user to a page that has one.
    pub(super) fn hold(&self, index: usize) {
        self.slots[index].uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a user, perhaps the last one.
    pub(super) fn let_go(&self, index: usize) {
        // ORDERING [P2]: Release, with the Acquire of the CPU that takes it next.
        let before = self.slots[index].uses.fetch_sub(1, Ordering::Release);
        debug_assert_ne!(before, 0, "nobody used it");
    }

    /// The indices of the pool's pages among those from `first` on.
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
