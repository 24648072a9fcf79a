//! The window: all of memory, one to one, for devices that are trusted as much as the kernel.
//!
//! The window is mapped once, with the largest pages that the format has, and stays mapped. A
//! mapping under [`Policy::Bypass`](super::Policy::Bypass) is an address in it, and gives no
//! protection: the device reaches all of the window all the time.

use core::fmt;

use super::map::Segment;
use super::{DmaAddr, Domain, Host, MapError, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::iova::{AllocError, Want};
use crate::sync::{Ordering, spin_loop};
use crate::table::{Detachments, Format};

/// Why there is no window. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WindowError {
    /// The domain's devices are not [trusted](super::Config::trusted).
    NotTrusted,
    /// There is one already.
    Exists,
    /// There are not enough addresses for all of it.
    Addresses(AllocError),
    /// It could not be mapped.
    Map(MapError),
}

impl fmt::Display for WindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTrusted => f.write_str("only trusted devices may reach all of memory"),
            Self::Exists => f.write_str("the domain has a window already"),
            Self::Addresses(error) => write!(f, "no addresses for the window: {error}"),
            Self::Map(error) => write!(f, "the window can't be mapped: {error}"),
        }
    }
}

impl core::error::Error for WindowError {}

/// The value of `window` while a call maps it. No window begins at that page.
pub(super) const OPENING: u64 = u64::MAX;

impl<H: Host> Domain<H> {
    /// Maps the first `pages` pages of memory for reading and writing, for the domain's life.
    /// Returns the device address at which they begin.
    ///
    /// # Errors
    /// See [`WindowError`].
    pub fn open_window(&self, pages: u64) -> Result<DmaAddr, WindowError> {
        if !self.config.trusted {
            return Err(WindowError::NotTrusted);
        }
        // One call at a time opens it.
        let begun = self.window.compare_exchange(0, OPENING, Ordering::Acquire, Ordering::Relaxed);
        if begun.is_err() {
            return Err(WindowError::Exists);
        }
        let opened = self.map_window(pages);
        let first = opened.as_ref().map_or(0, |range| range.first());
        self.window_pages.store(pages, Ordering::Relaxed);
        // ORDERING: Release, with the Acquire of a reader of `window`: the reader finds it mapped,
        // and knows its size. Without it a reader may use the address with an old size or before
        // its entries exist.
        self.window.store(first, Ordering::Release);
        opened.map(|range| DmaAddr(range.first() << Self::SHIFT))
    }

    /// Maps it at addresses of the allocator. The domain holds no page of it, since it does not
    /// know who uses them.
    fn map_window(&self, pages: u64) -> Result<IovaRange, WindowError> {
        let aligned = |want: Want| want.below(self.limit()).aligned(self.largest_leaf());
        let want = Want::pages(pages).map(aligned);
        let want = want.ok_or(WindowError::Addresses(AllocError::Invalid))?;
        let range = self.take_addresses(&want).map_err(WindowError::Addresses)?;
        let cpu = self.near_cpu();
        let walker = self.table.walker(cpu).ok_or((MapError::Busy, None));
        let mapped = walker.and_then(|mut walker| {
            walker.map(range, PhysAddr(0), Rights::ReadWrite).map_err(Self::why)
        });
        let (error, seen) = match mapped.and_then(|()| self.tell_of_window(range)) {
            Ok(()) => return Ok(range),
            Err(failed) => failed,
        };
        // The addresses go back when the invalidation of entries that a device may have used is
        // complete.
        let gives = self.unused(error, range).map(Self::addresses_of);
        let Some(seen) = seen else {
            gives.into_iter().for_each(|addresses| self.give_back_one(addresses));
            return Err(WindowError::Map(error));
        };
        let token = self.engine.note(cpu, seen, false);
        let forgotten = self.wait_for_all(token, gives.into_iter());
        Err(WindowError::Map(forgotten.map_or_else(MapError::NotComplete, |()| error)))
    }

    /// Invalidates the window in units that cache absent entries; unmaps it if that fails.
    fn tell_of_window(&self, range: IovaRange) -> Result<(), (MapError, Option<IovaRange>)> {
        if !self.config.caches_absence {
            return Ok(());
        }
        let cpu = self.near_cpu();
        let Err(error) = self.tell_units(range) else { return Ok(()) };
        let mut detached = Detachments::new();
        // All epoch slots are taken for the time of a walk at most.
        let mut walker = loop {
            match self.table.walker(cpu) {
                Some(walker) => break walker,
                None => spin_loop(),
            }
        };
        // This call has mapped it.
        let _ = walker.unmap_part(range, &mut detached);
        drop(walker);
        self.defer_tables(cpu, &mut detached);
        Err((MapError::NotTold(error), Some(range)))
    }

    /// Pages of the largest leaf that the table has: a window that is aligned to it is mapped by
    /// such leaves.
    fn largest_leaf(&self) -> u64 {
        let format = self.table.format();
        let level = (0..format.levels()).rev().find(|level| format.may_be_leaf(*level));
        1 << (<H::Format as Format>::INDEX * level.unwrap_or(0))
    }

    /// The address of a piece of memory in the window.
    pub(super) fn map_in_window(&self, segment: Segment) -> Result<DmaAddr, MapError> {
        let window = self.window.load(Ordering::Acquire);
        if window == 0 || window == OPENING {
            return Err(MapError::Refused);
        }
        if segment.bytes == 0 {
            return Err(MapError::Empty);
        }
        let end = segment.phys.0.checked_add(segment.bytes).ok_or(MapError::Overflow)?;
        if end > self.window_pages.load(Ordering::Relaxed) << Self::SHIFT {
            return Err(MapError::OutsideWindow);
        }
        Ok(DmaAddr((window << Self::SHIFT) + segment.phys.0))
    }

    /// The result of [`unmap`](Self::unmap) for pages in the window: there is nothing to unmap, or
    /// they lie partly outside. `None`: none of them is in it.
    #[inline]
    pub(super) fn unmap_in_window(&self, first: u64, pages: u64) -> Option<Result<(), UnmapError>> {
        let window = self.window.load(Ordering::Acquire);
        if window == 0 || first < window {
            return None;
        }
        let all = self.window_pages.load(Ordering::Relaxed);
        let offset = first - window;
        if offset >= all {
            return None;
        }
        Some(if pages <= all - offset { Ok(()) } else { Err(UnmapError::NotMapped) })
    }
}
