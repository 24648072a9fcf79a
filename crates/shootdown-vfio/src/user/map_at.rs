//! Addresses that the caller brings: for a hypervisor that has a guest's IOMMU in front of the
//! kernel's.
//!
//! The space must not hand out addresses itself ([`Unmanaged`](shootdown_dma::iova::Unmanaged)):
//! then no address can have two owners. The caller may map there again as soon as unmapping has
//! returned, so unmapping makes the system call and waits for it, whatever the space's policy is.

use core::fmt;
use std::thread::yield_now;

use shootdown_dma::addr::{IovaRange, PhysAddr, Rights};
use shootdown_dma::domain::{self, DmaAddr};
use shootdown_dma::iova::Unmanaged;

use super::backend::{Backend, BackendError};
use super::claim::{Claim, InTheWay};
use super::kernel::Live;
use super::space::{Memory, Space, UnmapError, pages_of};

/// Why a buffer was not mapped at an address. Nothing is mapped, and it is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MapAtError {
    /// No bytes, or past the end.
    Invalid,
    /// Address and memory don't have the same offset in their pages.
    Unaligned,
    /// The kernel does not offer all of these addresses ([`Windows`](super::Windows)).
    Outside,
    /// Something is mapped there, or another thread maps or unmaps there at the moment.
    Overlap,
    /// The kernel still has a mapping there that was unmapped, and has refused again to unmap it.
    Stale(BackendError),
    /// The domain has refused it.
    Domain(domain::MapError),
    /// The kernel has refused it.
    Kernel(BackendError),
}

impl fmt::Display for MapAtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("not a range of addresses"),
            Self::Unaligned => {
                f.write_str("address and memory lie at different places in their pages")
            }
            Self::Outside => f.write_str("the kernel does not offer these addresses"),
            Self::Overlap => f.write_str("something is mapped there; unmap it first"),
            Self::Stale(error) => write!(f, "what was mapped there still is: {error}"),
            Self::Domain(error) => error.fmt(f),
            Self::Kernel(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for MapAtError {}

impl<B: Backend, M: Memory, const GRANULE: u32> Space<B, Unmanaged, M, GRANULE> {
    /// Maps `bytes` bytes of memory for devices at `at`, which has the same offset in its page.
    /// They reach all of the pages that the bytes lie in.
    ///
    /// ```
    /// use shootdown_dma::iova::Unmanaged;
    /// use shootdown_dma::domain::{Config, DmaAddr};
    /// use shootdown_dma::Rights;
    /// use shootdown_vfio::user::{MapAtError, Space, dry::Dry};
    ///
    /// let space = Space::new(Dry::default(), (), Config::new(1), |_| Some(Unmanaged))?;
    /// let memory = 0x7000_0000 as *mut u8; // nobody looks into it: there is no device
    /// // SAFETY: as said.
    /// let map = |at| unsafe { space.map_at(DmaAddr(at), memory, 8192, Rights::Read) };
    /// map(0x10_0000)?;
    /// assert_eq!(map(0x10_1000), Err(MapAtError::Overlap));
    /// assert_eq!(map(0xfee0_0000), Err(MapAtError::Outside)); // a PC's interrupts
    /// let all: Vec<_> = space.mapped().map(|m| (m.at.0, m.bytes, m.memory)).collect();
    /// assert_eq!(all, [(0x10_0000, 8192, 0x7000_0000)]);
    /// assert_eq!(space.unmap_within(DmaAddr(0), u64::MAX)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// As [`map`](Self::map): devices may use the pages until unmapping has returned.
    ///
    /// # Errors
    /// See [`MapAtError`].
    pub unsafe fn map_at(
        &self,
        at: DmaAddr,
        memory: *mut u8,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), MapAtError> {
        let memory = memory as u64;
        let range = pages_of(at, bytes, GRANULE).ok_or(MapAtError::Invalid)?;
        memory.checked_add(bytes - 1).ok_or(MapAtError::Invalid)?;
        if (at.0 ^ memory) & ((1 << GRANULE) - 1) != 0 {
            return Err(MapAtError::Unaligned);
        }
        if !self.windows.contain(range) {
            return Err(MapAtError::Outside);
        }
        let claim = self.claim(range)?;
        let first = memory >> GRANULE << GRANULE;
        // SAFETY: the range is claimed, nothing is mapped there, and the allocator hands out
        // nothing (K5).
        let mapped = unsafe { self.domain.map_at(range, PhysAddr(first), rights) };
        if let Err(error) = mapped {
            if matches!(error, domain::MapError::NotComplete(_)) {
                claim.into_stale();
            }
            return Err(MapAtError::Domain(error));
        }
        let live = Live { pages: range.pages(), memory: first, rights, brought: true };
        let map = || self.kernel().map(range.first(), live);
        let mapped = map().or_else(|error| match error {
            // For the kernel, a dead mapping that it refused to unmap is still mapped and pinned.
            BackendError::Entries | BackendError::Memory if self.kernel().mapped().1 != 0 => {
                self.flush().map_err(|_| error)?;
                map()
            }
            error => Err(error),
        });
        mapped.map_err(|error| {
            // The kernel has nothing to unmap there: only the shadow is cleared.
            if self.take_out(range).is_err() {
                claim.into_stale();
            }
            MapAtError::Kernel(error)
        })
    }

    /// Unmaps all mappings between `at` and `bytes` bytes behind it, also with gaps in between, and
    /// returns how many these were. No device reaches any of them when it returns. Those that abut
    /// are one system call.
    ///
    /// # Errors
    /// See [`UnmapError`]. [`UnmapError::Partial`] if it would cut a mapping, and
    /// [`UnmapError::Invalid`] if there is no byte; nothing has changed then. After
    /// [`UnmapError::NotComplete`] what was unmapped before it is unmapped; the rest is as it was.
    pub fn unmap_within(&self, at: DmaAddr, bytes: u64) -> Result<usize, UnmapError> {
        let last = bytes.checked_sub(1).and_then(|more| at.0.checked_add(more));
        let last = last.ok_or(UnmapError::Invalid)?;
        // Page 0 is never mapped, but a caller that unmaps everything may name it.
        let first = at.0.max(1 << GRANULE);
        if last < first {
            return Ok(0);
        }
        let range = IovaRange::of_bytes(first, last, GRANULE).ok_or(UnmapError::Invalid)?;
        let mut count = 0;
        while let Some((claim, mappings)) =
            self.kernel().give_up_run(range).map_err(|()| UnmapError::Partial)?
        {
            if self.take_out(claim.range()).is_err() {
                claim.into_stale();
                return Err(UnmapError::NotComplete(self.kernel().failed()));
            }
            count += mappings;
        }
        // What the kernel refused before must be unmapped as well.
        if self.kernel().is_stale(range) {
            self.flush().map_err(|error| UnmapError::NotComplete(Some(error)))?;
        }
        Ok(count)
    }

    /// Claims a range; if the kernel has refused an unmapping there, it tries that again.
    fn claim(&self, range: IovaRange) -> Result<Claim<'_, B>, MapAtError> {
        match self.kernel().claim(range) {
            Ok(claim) => Ok(claim),
            Err(InTheWay::Live) => Err(MapAtError::Overlap),
            Err(InTheWay::Stale) => {
                self.flush().map_err(MapAtError::Stale)?;
                self.kernel().claim(range).map_err(|_| MapAtError::Overlap)
            }
        }
    }

    /// Clears the shadow of a range, has the kernel unmap what is dead in it, and waits for that.
    fn take_out(&self, range: IovaRange) -> Result<(), domain::UnmapError> {
        loop {
            // SAFETY: the range is claimed, and `map_at` has mapped what is mapped in it (K5).
            match unsafe { self.domain.unmap_at(range) } {
                Err(domain::UnmapError::Busy) => yield_now(),
                outcome => return outcome,
            }
        }
    }
}
