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
//! ([`Config::tables`](super::Config::tables)), and what is mapped or unmapped is so in pieces of a
//! few tables, between which the cell is left. Who has to bound the time of a call as well asks for
//! one piece at a time ([`Domain::map_at_piece`], [`Domain::unmap_at_piece`]) and hears how far it
//! came; [`Domain::map_at`] and [`Domain::unmap_at`] are all or nothing.

use super::flush_queue::Frames;
use super::{DmaAddr, Domain, Host, MapError, Policy, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::invalidate::QueueError;
use crate::table::{Format, MapErrorKind, Part};

/// Tables that one piece puts in place: a few microseconds each.
const STEP: u64 = 8;

/// Tables whose entries one piece clears: about a microsecond each. More than [`STEP`], since each
/// piece is waited for.
const CLEARED: u64 = 64;

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

    /// Maps the first pages of `range`, at least one, and says how many these were: what takes
    /// eight tables, or as many large leaves as one table has. For who must not be long in one
    /// call, and maps the rest by others.
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
    /// As [`map_at`](Self::map_at), of the pages that it would have mapped; those before stay
    /// mapped. Address and length are looked at whole: what can't be mapped to its end for their
    /// sake is refused by the first call.
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

    /// Unmaps the first pages of a range again, which were mapped just now: piece by piece.
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

    /// One piece from the start of `rest` on; how many pages. If the table is full, those are taken
    /// out first that are empty.
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
    /// Nobody else maps or unmaps in the range at the same time, and what is mapped there was
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
                // A piece was unmapped: the others follow, whoever is in the cells.
                Err(UnmapError::Busy) if part != first => continue,
                // It is unmapped, but not complete.
                Err(error @ UnmapError::NotComplete(_)) => outcome = outcome.and(Err(error)),
                unmapped => unmapped?,
            }
            let Some(rest) = rest_of(range, part.last() + 1 - range.first()) else {
                return outcome;
            };
            part = self.cleared_at_once(rest);
        }
    }

    /// Unmaps the first pages of `range`, at least one, waits for that, and says how many these
    /// were: the entries of 64 tables, or one larger leaf. For who must not be long in one call,
    /// and unmaps the rest by others; of [`map_at_piece`](Self::map_at_piece) it need not be the
    /// same pieces.
    ///
    /// # Safety
    /// As [`unmap_at`](Self::unmap_at).
    ///
    /// # Errors
    /// As [`unmap_at`](Self::unmap_at), of the pages that it would have unmapped.
    pub unsafe fn unmap_at_piece(&self, range: IovaRange) -> Result<u64, UnmapError> {
        self.is_brought(range)?;
        let part = self.cleared_at_once(range);
        self.unmap_pages(part, None, Policy::Strict, false).map(|()| part.pages())
    }

    /// Could these be addresses of a caller's own?
    fn is_brought(&self, range: IovaRange) -> Result<(), UnmapError> {
        let in_window = self.unmap_in_window(range.first(), range.pages()).is_some();
        if in_window || self.is_identity(range) { Err(UnmapError::NotMapped) } else { Ok(()) }
    }

    /// How much of a range is unmapped in one piece: up to where [`CLEARED`] tables end, or the
    /// leaf that lies across that.
    fn cleared_at_once(&self, range: IovaRange) -> IovaRange {
        let in_piece = CLEARED << <H::Format as Format>::INDEX;
        let end = range.first() | (in_piece - 1);
        if end >= range.last() {
            return range;
        }
        let leaf = self.lookup(DmaAddr(end << Self::SHIFT));
        // What is left of it from the page on, which is one of the pages.
        let more = leaf.map_or(0, |(_, bytes, _)| (bytes >> Self::SHIFT) - 1);
        let last = (end + more).min(range.last());
        IovaRange::new(range.first(), last - range.first() + 1).unwrap_or(range)
    }

    /// Is all of a range mapped, so that unmapping it can't fail half way? Looks piece by piece.
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

/// What is left of a range behind its first pages.
const fn rest_of(range: IovaRange, done: u64) -> Option<IovaRange> {
    IovaRange::new(range.first() + done, range.pages() - done)
}
