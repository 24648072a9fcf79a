//! Addresses that the caller brings: a hypervisor's guest chooses its own.
//!
//! The domain neither takes such addresses from its allocator nor gives them back to it. So it does
//! not know who is using them, and can't hold them back until they are forgotten: the caller may
//! put other memory there as soon as unmapping has returned. Unmapping therefore waits, whatever
//! the domain's policy is (as [`Domain::unlink`] does). What belongs together it does not know
//! either: [`Domain::unmap_at`] takes any pages that are mapped, and [`Domain::unmap`] none of
//! these. That one at a time changes a range is the caller's promise, so that both are `unsafe`;
//! the crate `shootdown-vfio` keeps it for a guest.
//!
//! A guest asks for what it likes. So the table has a bound
//! ([`Config::tables`](super::Config::tables)), and what is mapped is mapped in steps of a few
//! tables, between which the cell is left.

use super::flush_queue::Frames;
use super::{DmaAddr, Domain, Host, MapError, Policy, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::table::{Format, MapErrorKind, Part};

/// Tables that one step puts in place: a few microseconds each.
const STEP: u64 = 8;

impl<H: Host> Domain<H> {
    /// Maps the pages of `range`, which are the caller's, to the memory from `phys` on.
    ///
    /// # Safety
    /// Nobody else maps or unmaps in the range at the same time, and the domain's allocator does
    /// not hand it out ([`Unmanaged`](crate::iova::Unmanaged) hands out nothing).
    ///
    /// # Errors
    /// See [`MapError`]. [`MapError::Table`] if something is mapped there, or if it is beyond the
    /// table's reach; [`MapError::Unaligned`] if `phys` is not the start of a page;
    /// [`MapError::NotHeld`] if the host refuses the memory and the domain
    /// [holds](super::Config::holds) pages; [`MapError::Refused`] for addresses that follow from
    /// the memory's.
    pub unsafe fn map_at(
        &self,
        range: IovaRange,
        phys: PhysAddr,
        rights: Rights,
    ) -> Result<(), MapError> {
        if self.is_in_zones(range) {
            return Err(MapError::Refused);
        }
        let all = Self::whole_pages(phys, range.pages())?;
        let mut done = 0;
        while let Some(rest) = IovaRange::new(range.first() + done, range.pages() - done) {
            let first = PhysAddr(all.first.0 + (done << Self::SHIFT));
            let pages = self.step_of(rest, first);
            let part = IovaRange::new(rest.first(), pages).ok_or(MapError::Overflow)?;
            if let Err(error) = self.map_step(part, Frames { first, pages }, rights) {
                let mapped = IovaRange::new(range.first(), done);
                let undone = mapped.map_or(Ok(()), |mapped| self.unmap_ours(mapped, None));
                return Err(undone.map_or_else(MapError::NotComplete, |()| error));
            }
            done += pages;
        }
        self.tell_of(range, None)
    }

    /// How many of these pages are mapped in one step. Where larger leaves fit there are few
    /// tables, and it is not cut.
    fn step_of(&self, range: IovaRange, phys: PhysAddr) -> u64 {
        let in_table = 1 << <H::Format as Format>::INDEX;
        let off = (range.first() ^ phys.0 >> Self::SHIFT) & (in_table - 1);
        let step = match off == 0 && self.table.format().may_be_leaf(1) {
            true => in_table * in_table,
            false => in_table * STEP,
        };
        (step - range.first() % step).min(range.pages())
    }

    /// One step. If the table is full, those are taken out first that are empty.
    fn map_step(&self, part: IovaRange, frames: Frames, rights: Rights) -> Result<(), MapError> {
        let map = || {
            self.hold(frames)?;
            let put = self.put_kept(part, frames, rights, Part::Middle);
            put.map_err(|(error, late)| late.map_or(error, MapError::NotComplete))
        };
        let full = MapError::Table(MapErrorKind::NoMemory);
        match map() {
            Err(error) if error == full && self.table.is_full() => {
                self.take_out_empty();
                map()
            }
            outcome => outcome,
        }
    }

    /// Unmaps the pages of `range`, which [`map_at`](Self::map_at) has mapped, and waits until no
    /// device reaches the memory by them any more. The addresses stay the caller's.
    ///
    /// # Safety
    /// Nobody else maps or unmaps in the range at the same time, and what is mapped there was
    /// mapped by [`map_at`](Self::map_at).
    ///
    /// # Errors
    /// See [`UnmapError`]. After [`UnmapError::NotComplete`] nothing may be mapped there before
    /// [`flush`](Self::flush) has succeeded.
    pub unsafe fn unmap_at(&self, range: IovaRange) -> Result<(), UnmapError> {
        let in_window = self.unmap_in_window(range.first(), range.pages()).is_some();
        if in_window || self.is_identity(range) {
            return Err(UnmapError::NotMapped);
        }
        self.unmap_pages(range, None, Policy::Strict, false)
    }

    /// Where a device that uses this address comes to, and with which rights, by the page table;
    /// `None` if it would fault. The number of bytes is what is left from there to the end of the
    /// page that maps it.
    pub fn lookup(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)> {
        let found = loop {
            // All epoch slots are taken for the time of a walk at most.
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
