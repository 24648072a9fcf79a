//! All of memory, one to one: for devices that are trusted as much as the kernel.
//!
//! The window is mapped once, with the largest pages that the format has, and stays. What is mapped under
//! [`Policy::Bypass`](super::Policy::Bypass) is an address in it, and no protection at all: the device reaches all of it, always.

use core::fmt;

use super::map::Segment;
use super::{DmaAddr, Domain, Host, MapError, UnmapError};
use crate::addr::{PhysAddr, Rights};
use crate::iova::{AllocError, Allocate, Want};
use crate::sync::Ordering;
use crate::table::Format;

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

impl<H: Host> Domain<H> {
    /// Maps the first `pages` pages of memory, to be read and written, for good. Returns where they begin for the devices.
    ///
    /// # Errors
    /// See [`WindowError`].
    pub fn open_window(&self, pages: u64) -> Result<DmaAddr, WindowError> {
        if !self.config.trusted {
            return Err(WindowError::NotTrusted);
        }
        if self.window.load(Ordering::Acquire) != 0 {
            return Err(WindowError::Exists);
        }
        let limit = self.config.limit.min(self.table.last_page());
        let want = Want::pages(pages).map(|want| want.below(limit).aligned(self.largest_leaf()));
        let want = want.ok_or(WindowError::Addresses(AllocError::Invalid))?;
        let cpu = self.host.cpu();
        let range = self.addresses.alloc(cpu, &want).map_err(WindowError::Addresses)?;
        let walker = self.table.walker(cpu).ok_or(MapError::Busy);
        let mapped = walker.and_then(|mut walker| {
            walker.map(range, PhysAddr(0), Rights::ReadWrite).map_err(|e| Self::why(e).0)
        });
        let mapped = mapped.and_then(|()| self.tell_of_presence(range));
        if let Err(error) = mapped {
            // Nobody was told of it, and no device is trusted less for having seen a part of it.
            let _ = self.addresses.free(cpu, range);
            return Err(WindowError::Map(error));
        }
        self.window_pages.store(pages, Ordering::Relaxed);
        // ORDERING: Release, with the Acquire of who finds it: it is mapped, and its size is known.
        self.window.store(range.first(), Ordering::Release);
        Ok(DmaAddr(range.first() << Self::SHIFT))
    }

    /// Pages of the largest leaf that the table has: a window that is aligned to it is mapped by such leaves.
    fn largest_leaf(&self) -> u64 {
        let format = self.table.format();
        let level = (0..format.levels()).rev().find(|level| format.may_be_leaf(*level));
        1 << (<H::Format as Format>::INDEX * level.unwrap_or(0))
    }

    /// The address of a piece of memory in the window.
    pub(super) fn map_in_window(&self, segment: Segment) -> Result<DmaAddr, MapError> {
        let window = self.window.load(Ordering::Acquire);
        if window == 0 {
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

    /// If these pages are in the window: there is nothing to unmap, or they are partly outside.
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
