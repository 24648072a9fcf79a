//! Addresses that the caller brings: a hypervisor's guest chooses its own.
//!
//! The domain neither takes such addresses from its allocator nor gives them back to it. So it does
//! not know who uses them, and can't hold them back until their invalidation is complete: the
//! caller may map other memory there as soon as unmapping has returned. Unmapping therefore waits,
//! whatever the domain's policy is (as [`Domain::unlink`] does). The domain does not know either
//! which pages belong together: [`Domain::unmap_at`] takes any pages that are mapped, and
//! [`Domain::unmap`] refuses these. Both functions are `unsafe`, since the caller guarantees that
//! only one thread at a time changes a range; the crate `shootdown-vfio` does so for a guest.
//!
//! A guest may ask for anything. So the table has a bound
//! ([`Config::tables`](super::Config::tables)), and a range is mapped or unmapped in pieces of a
//! few tables; between two pieces the call leaves the cell. A caller that has to bound the time of
//! a call as well asks for one piece at a time ([`Domain::map_at_piece`],
//! [`Domain::unmap_at_piece`]), and each call returns how many pages it has done.
//! [`Domain::map_at`] and [`Domain::unmap_at`] are all or nothing.

use super::flush_queue::Frames;
use super::{DmaAddr, Domain, Host, MapError, Policy, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::invalidate::QueueError;
use crate::table::{Format, MapErrorKind, Part};

/// Tables that one piece puts in place: a few microseconds each.
const STEP: u64 = 8;

/// Tables whose entries one piece clears: about a microsecond each. More than [`STEP`], since the
/// caller waits for each piece.
const CLEARED: u64 = 64;

impl<H: Host> Domain<H> {
    /// Maps the pages of `range`, which are the caller's, to the memory from `phys` on.
    ///
    /// # Safety
    /// No other call maps or unmaps in the range at the same time, and the domain's allocator does
    /// not hand it out ([`Unmanaged`](crate::iova::Unmanaged) hands out nothing).
    ///
    /// # Errors
    /// See [`MapError`]. [`MapError::Table`] if something is mapped there, or if it is beyond the
    /// table's reach; [`MapError::Unaligned`] if `phys` is not the start of a page;
    /// [`MapError::NotHeld`] if the host refuses the memory and the domain
    /// [holds](super::Config::holds) pages; [`MapError::Refused`] for identity addresses.
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
        while let Some(rest) = rest_of(range, done) {
            let first = PhysAddr(all.first.0 + (done << Self::SHIFT));
            match self.map_step(rest, first, rights) {
                Ok(pages) => done += pages,
                Err(error) => {
                    let undone = self.unmap_pieces(range, done);
                    return Err(undone.map_or_else(MapError::NotComplete, |()| error));
                }
            }
        }
        if self.config.caches_absence {
            self.tell_units(range).map_err(|error| {
                match self.unmap_pieces(range, range.pages()) {
                    Ok(()) => MapError::NotTold(error),
                    Err(error) => MapError::NotComplete(error),
                }
            })?;
        }
        Ok(())
    }

    /// Maps the first pages of `range`, at least one, and returns how many these were: what takes
    /// eight tables, or as many large leaves as one table has. For callers that bound the time of
    /// one call, and map the rest by further calls.
    ///
    /// ```
    /// # use shootdown_dma::{Host, IovaRange, MapError, PhysAddr, Rights, domain::Domain};
    /// # fn serve_others() {}
    /// fn map_all<H: Host>(
    ///     domain: &Domain<H>,
    ///     mut range: IovaRange,
    ///     mut phys: PhysAddr,
    /// ) -> Result<(), MapError> {
    ///     loop {
    ///         // SAFETY: whoever calls this has the range for itself.
    ///         let pages = unsafe { domain.map_at_piece(range, phys, Rights::ReadWrite) }?;
    ///         let rest = IovaRange::new(range.first() + pages, range.pages() - pages);
    ///         let Some(rest) = rest else { return Ok(()) };
    ///         (range, phys) = (rest, PhysAddr(phys.0 + (pages << 12)));
    ///         serve_others();
    ///     }
    /// }
    /// ```
    ///
    /// # Safety
    /// As [`map_at`](Self::map_at).
    ///
    /// # Errors
    /// As [`map_at`](Self::map_at), of the pages that this call would have mapped; pages of earlier
    /// calls stay mapped. Address and length of the whole range are checked: if one of them makes a
    /// later part impossible, the first call already refuses.
    pub unsafe fn map_at_piece(
        &self,
        range: IovaRange,
        phys: PhysAddr,
        rights: Rights,
    ) -> Result<u64, MapError> {
        if self.is_in_zones(range) {
            return Err(MapError::Refused);
        }
        if range.last() > self.table.last_page() {
            return Err(MapError::Table(MapErrorKind::OutOfRange));
        }
        let all = Self::whole_pages(phys, range.pages())?;
        let pages = self.map_step(range, all.first, rights)?;
        if let Some(part) = IovaRange::new(range.first(), pages) {
            self.tell_of(part, None)?;
        }
        Ok(pages)
    }

    /// Unmaps the first pages of a range again, which this call has mapped, piece by piece.
    fn unmap_pieces(&self, range: IovaRange, mapped: u64) -> Result<(), QueueError> {
        let mut outcome = Ok(());
        let mut done = 0;
        while let Some(rest) = IovaRange::new(range.first() + done, mapped - done) {
            let part = self.cleared_at_once(rest);
            outcome = outcome.and(self.unmap_ours(part, None));
            done += part.pages();
        }
        outcome
    }

    /// How many of these pages one step maps. A range in which larger leaves fit needs few tables,
    /// and is not cut.
    fn step_of(&self, range: IovaRange, phys: PhysAddr) -> u64 {
        let in_table = 1 << <H::Format as Format>::INDEX;
        let off = (range.first() ^ phys.0 >> Self::SHIFT) & (in_table - 1);
        let step = match off == 0 && self.table.format().may_be_leaf(1) {
            true => in_table * in_table,
            false => in_table * STEP,
        };
        (step - range.first() % step).min(range.pages())
    }

    /// Maps one piece from the start of `rest` on; returns how many pages. If the page table is at
    /// its bound, it takes out empty tables first.
    fn map_step(&self, rest: IovaRange, first: PhysAddr, rights: Rights) -> Result<u64, MapError> {
        let pages = self.step_of(rest, first);
        let part = IovaRange::new(rest.first(), pages).ok_or(MapError::Overflow)?;
        let frames = Frames { first, pages };
        let map = || {
            self.hold(frames)?;
            let put = self.put_kept(part, frames, rights, Part::Middle);
            put.map_err(|(error, late)| late.map_or(error, MapError::NotComplete))
        };
        let full = MapError::Table(MapErrorKind::NoMemory);
        let mapped = match map() {
            Err(error) if error == full && self.table.is_full() => {
                self.take_out_empty();
                map()
            }
            outcome => outcome,
        };
        mapped.map(|()| pages)
    }

    /// Unmaps the pages of `range`, which [`map_at`](Self::map_at) has mapped, and waits until no
    /// device reaches the memory by them any more. The addresses stay the caller's.
    ///
    /// # Safety
    /// No other call maps or unmaps in the range at the same time, and what is mapped there was
    /// mapped by [`map_at`](Self::map_at).
    ///
    /// # Errors
    /// See [`UnmapError`]. After [`UnmapError::NotComplete`] nothing may be mapped there before
    /// [`flush`](Self::flush) has succeeded.
    pub unsafe fn unmap_at(&self, range: IovaRange) -> Result<(), UnmapError> {
        self.is_brought(range)?;
        let first = self.cleared_at_once(range);
        if first != range {
            self.are_mapped(range)?;
        }
        let mut outcome = Ok(());
        let mut part = first;
        loop {
            match self.unmap_pages(part, None, Policy::Strict, false) {
                // A piece was unmapped: the others must follow, even if all cells are taken now.
                Err(UnmapError::Busy) if part != first => continue,
                // It is unmapped, but the invalidation is not complete.
                Err(error @ UnmapError::NotComplete(_)) => outcome = outcome.and(Err(error)),
                unmapped => unmapped?,
            }
            let Some(rest) = rest_of(range, part.last() + 1 - range.first()) else {
                return outcome;
            };
            part = self.cleared_at_once(rest);
        }
    }

    /// Unmaps the first pages of `range`, at least one, waits for the invalidation, and returns how
    /// many these were: the entries of 64 tables, or one larger leaf. For callers that bound the
    /// time of one call, and unmap the rest by further calls. The pieces need not be those of
    /// [`map_at_piece`](Self::map_at_piece).
    ///
    /// # Safety
    /// As [`unmap_at`](Self::unmap_at).
    ///
    /// # Errors
    /// As [`unmap_at`](Self::unmap_at), of the pages that this call would have unmapped.
    pub unsafe fn unmap_at_piece(&self, range: IovaRange) -> Result<u64, UnmapError> {
        self.is_brought(range)?;
        let part = self.cleared_at_once(range);
        self.unmap_pages(part, None, Policy::Strict, false).map(|()| part.pages())
    }

    /// Whether these may be addresses of a caller's own.
    fn is_brought(&self, range: IovaRange) -> Result<(), UnmapError> {
        let in_window = self.unmap_in_window(range.first(), range.pages()).is_some();
        if in_window || self.is_identity(range) { Err(UnmapError::NotMapped) } else { Ok(()) }
    }

    /// How much of a range one piece unmaps: up to where [`CLEARED`] tables end, or to the end of
    /// the leaf that lies across that.
    fn cleared_at_once(&self, range: IovaRange) -> IovaRange {
        let in_piece = CLEARED << <H::Format as Format>::INDEX;
        let end = range.first() | (in_piece - 1);
        if end >= range.last() {
            return range;
        }
        let leaf = self.lookup(DmaAddr(end << Self::SHIFT));
        // The rest of the leaf behind this page.
        let more = leaf.map_or(0, |(_, bytes, _)| (bytes >> Self::SHIFT) - 1);
        let last = (end + more).min(range.last());
        IovaRange::new(range.first(), last - range.first() + 1).unwrap_or(range)
    }

    /// Checks, piece by piece, that all of a range is mapped, so that unmapping it can't fail half
    /// way.
    fn are_mapped(&self, range: IovaRange) -> Result<(), UnmapError> {
        let mut done = 0;
        while let Some(rest) = rest_of(range, done) {
            let part = self.cleared_at_once(rest);
            let looked =
                self.enter_here(|slot, _| Ok(self.walker(slot)?.check_mapped(part, false)?));
            looked.unwrap_or(Err(UnmapError::Busy))?;
            done += part.pages();
        }
        Ok(())
    }

    /// The physical address that a device reaches by this address, with the rights, by the page
    /// table; `None` if the access would fault. The number of bytes is what is left from there to
    /// the end of the page that maps it.
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

/// What is left of a range behind its first pages.
const fn rest_of(range: IovaRange, done: u64) -> Option<IovaRange> {
    IovaRange::new(range.first() + done, range.pages() - done)
}
