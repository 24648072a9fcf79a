//! Addresses that the caller brings: a hypervisor's guest chooses its own.
//!
//! The domain neither takes such addresses from its allocator nor gives them back to it. So it does not know who is using
//! them, and can't hold them back until they are forgotten: the caller may put other memory there as soon as unmapping has
//! returned. Unmapping therefore waits, whatever the domain's policy is (as [`Domain::unlink`] does). What belongs together it
//! does not know either: [`Domain::unmap_at`] takes any pages that are mapped, and [`Domain::unmap`] none of these. That one at a
//! time changes a range is the caller's promise, so that both are `unsafe`; the module `vmm` keeps it for a guest.

use super::{DmaAddr, Domain, Host, MapError, Policy, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::table::{Format, Part};

impl<H: Host> Domain<H> {
    /// Maps the pages of `range`, which are the caller's, to the memory from `phys` on.
    ///
    /// # Safety
    /// Nobody else maps or unmaps in the range at the same time, and the domain's allocator does not hand it out
    /// ([`Given`](crate::iova::Given) hands out nothing).
    ///
    /// # Errors
    /// See [`MapError`]. [`MapError::Table`] if something is mapped there, or if it is beyond the table's reach;
    /// [`MapError::Unaligned`] if `phys` is not the start of a page; [`MapError::NotHeld`] if the host refuses the memory and the domain
    /// [holds](super::Config::holds) pages; [`MapError::Refused`] for addresses that follow from the memory's.
    pub unsafe fn map_at(
        &self,
        range: IovaRange,
        phys: PhysAddr,
        rights: Rights,
    ) -> Result<(), MapError> {
        if self.is_in_zones(range) {
            return Err(MapError::Refused);
        }
        let frames = Self::whole_pages(phys, range.pages())?;
        self.hold(frames)?;
        self.put_kept(range, frames, rights, Part::Middle)
            .map_err(|(error, late)| late.map_or(error, MapError::NotComplete))?;
        self.tell_of(range, None)
    }

    /// Unmaps the pages of `range`, which [`map_at`](Self::map_at) has mapped, and waits until no device reaches the memory by
    /// them any more. The addresses stay the caller's.
    ///
    /// # Safety
    /// Nobody else maps or unmaps in the range at the same time, and what is mapped there was mapped by [`map_at`](Self::map_at).
    ///
    /// # Errors
    /// See [`UnmapError`]. After [`UnmapError::NotComplete`] nothing may be mapped there before [`flush`](Self::flush)
    /// has succeeded.
    pub unsafe fn unmap_at(&self, range: IovaRange) -> Result<(), UnmapError> {
        let in_window = self.unmap_in_window(range.first(), range.pages()).is_some();
        if in_window || self.is_identity(range) {
            return Err(UnmapError::NotMapped);
        }
        self.unmap_pages(range, None, Policy::Strict, false)
    }

    /// Where a device that uses this address comes to, and with which rights, by the page table; `None` if it would fault.
    /// The number of bytes is what is left from there to the end of the page that maps it.
    pub fn lookup(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)> {
        let found = loop {
            // All seats are taken for the time of a walk at most.
            match self.table.walker(self.near_cpu()) {
                Some(mut walker) => break walker.translate(at.0 >> Self::SHIFT)?,
                None => crate::sync::spin_loop(),
            }
        };
        let leaf = Self::PAGE << (<H::Format as Format>::INDEX * found.level);
        let offset = at.0 & (Self::PAGE - 1);
        Some((PhysAddr(found.phys.0 + offset), leaf - at.0 % leaf, found.rights))
    }
}
