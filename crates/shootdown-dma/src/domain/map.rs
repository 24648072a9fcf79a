//! Mapping: hold the pages, take addresses, put entries.

use super::flush_queue::{DeferredFree, Frames};
use super::{Cell, DmaAddr, Domain, Host, MapError, Mapping, Policy, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::invalidate::QueueError;
use crate::iova::Want;
use crate::sync::Ordering;
use crate::table::{self, MapErrorKind, Part};

/// A piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where it begins, in bytes.
    pub phys: PhysAddr,
    /// Bytes.
    pub bytes: u64,
}

impl Segment {
    /// The pages of 2^`granule` bytes that it lies in: the address of the first one, and how many.
    /// `None`: it is empty, or wraps.
    const fn frames(&self, granule: u32) -> Option<Frames> {
        let Segment { phys: PhysAddr(phys), bytes } = *self;
        let Some(last) = phys.checked_add(bytes.wrapping_sub(1)) else { return None };
        if bytes == 0 {
            return None;
        }
        let first = phys >> granule;
        Some(Frames { first: PhysAddr(first << granule), pages: (last >> granule) - first + 1 })
    }
}

/// One segment for segments that follow each other in memory.
fn in_one(segments: &[Segment]) -> Option<Segment> {
    let (first, rest) = segments.split_first()?;
    rest.iter().try_fold(*first, |all, next| {
        let follows = all.phys.0.checked_add(all.bytes) == Some(next.phys.0);
        let bytes = all.bytes.checked_add(next.bytes)?;
        follows.then_some(Segment { phys: all.phys, bytes })
    })
}

impl<H: Host> Domain<H> {
    /// Maps `bytes` bytes of memory from `phys` on. The returned mapping holds the address by which
    /// devices reach it, at the same offset within the page. Devices reach all of the pages that
    /// the bytes lie in.
    ///
    /// # Errors
    /// See [`MapError`].
    #[inline]
    pub fn map(&self, phys: PhysAddr, bytes: u64, rights: Rights) -> Result<Mapping, MapError> {
        self.map_under(self.config.policy, phys, bytes, rights)
    }

    /// The same under another policy than the domain's. Only [`Policy::Bypass`] makes a difference
    /// here; the others do when it is [unmapped](Self::unmap_under).
    ///
    /// # Errors
    /// See [`MapError`].
    #[inline]
    pub fn map_under(
        &self,
        policy: Policy,
        phys: PhysAddr,
        bytes: u64,
        rights: Rights,
    ) -> Result<Mapping, MapError> {
        let segment = Segment { phys, bytes };
        if policy == Policy::Bypass {
            return Ok(self.mapped(self.map_in_window(segment)?, bytes));
        }
        let Some(frames) = segment.frames(Self::SHIFT) else {
            return Err(if bytes == 0 { MapError::Empty } else { MapError::Overflow });
        };
        if let Some(range) = self.map_identity(frames, rights)? {
            self.tell_of_presence(range)?;
            return Ok(self.mapped(Self::address_in(range, phys), bytes));
        }
        let may_be_warm = frames.pages == 1 && self.keeps();
        let warm = if may_be_warm { self.map_warm(frames, rights)? } else { None };
        let range = match warm {
            Some(range) => range,
            None => self.map_fresh(frames, rights)?,
        };
        self.tell_of_presence(range)?;
        Ok(self.mapped(Self::address_in(range, phys), bytes))
    }

    /// The address in a mapped range at which the requested memory begins: at the same offset
    /// within the page.
    #[inline]
    const fn address_in(range: IovaRange, phys: PhysAddr) -> DmaAddr {
        DmaAddr((range.first() << Self::SHIFT) + (phys.0 & (Self::PAGE - 1)))
    }

    /// Maps a page at an address that was unmapped on this CPU before, if the CPU keeps one: the
    /// allocator is not used, and the entry is close to the last ones.
    #[inline]
    fn map_warm(&self, frames: Frames, rights: Rights) -> Result<Option<IovaRange>, MapError> {
        self.hold(frames)?;
        let entered = self.enter_here(|slot, cell| {
            let range = cell.warm.pop().and_then(|page| IovaRange::new(page, 1))?;
            let near = self.near(slot);
            if near.is_some_and(|near| near.map_page_near(range, frames.first, rights)) {
                cell.quick.mapped += 1;
                return Some((range, Ok(())));
            }
            let put = self.put_in(slot, cell, range, frames, (rights, Part::Whole));
            cell.counts.maps += u64::from(put.is_ok());
            Some((range, put))
        });
        match entered.unwrap_or(None) {
            Some((range, Ok(()))) => Ok(Some(range)),
            Some((range, Err(error))) => self.unput(error, range, frames).map(|()| None),
            // The CPU keeps no address, or no cell is free: take the longer path.
            None => {
                if self.config.holds {
                    self.host.release(frames.first, frames.pages);
                }
                Ok(None)
            }
        }
    }

    /// Maps pages at addresses from the allocator.
    fn map_fresh(&self, frames: Frames, rights: Rights) -> Result<IovaRange, MapError> {
        let range = self.allocate(frames.pages)?;
        if let Err(error) = self.hold(frames) {
            self.give_back_one(Self::addresses_of(range));
            return Err(error);
        }
        let entered = self.enter_here(|slot, cell| {
            self.put_in(slot, cell, range, frames, (rights, Part::Whole))?;
            cell.counts.maps += 1;
            Ok(())
        });
        match entered.unwrap_or(Err((MapError::Busy, None))) {
            Ok(()) => Ok(range),
            Err(error) => self.unput(error, range, frames).map(|()| range),
        }
    }

    /// Maps pieces of memory so that a device finds them one after the other. In a domain with a
    /// window whose policy is [`Policy::Bypass`], pieces that are contiguous in memory use the
    /// window. All others get addresses of their own, as without a window, and are unmapped as
    /// under [`Policy::Lazy`].
    ///
    /// # Errors
    /// See [`MapError`]; [`MapError::Unaligned`] if there would be a gap.
    pub fn map_sg(&self, segments: &[Segment], rights: Rights) -> Result<Mapping, MapError> {
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
            return Err(MapError::Empty);
        };
        let (mut pages, mut bytes) = (0u64, 0u64);
        for (n, segment) in segments.iter().enumerate() {
            let Some(frames) = segment.frames(Self::SHIFT) else {
                return Err(if segment.bytes == 0 { MapError::Empty } else { MapError::Overflow });
            };
            let begins = segment.phys.0 & (Self::PAGE - 1) == 0 || n == 0;
            let end = segment.phys.0 + (segment.bytes - 1);
            let ends = end & (Self::PAGE - 1) == Self::PAGE - 1 || core::ptr::eq(segment, last);
            if !begins || !ends {
                return Err(MapError::Unaligned);
            }
            pages = pages.checked_add(frames.pages).ok_or(MapError::Overflow)?;
            bytes = bytes.checked_add(segment.bytes).ok_or(MapError::Overflow)?;
        }
        if self.config.policy == Policy::Bypass {
            if let Some(all) = in_one(segments) {
                return Ok(self.mapped(self.map_in_window(all)?, bytes));
            }
        }
        let range = self.allocate(pages)?;
        let mut done = 0;
        for segment in segments {
            // The loop above has checked all segments.
            let Some(frames) = segment.frames(Self::SHIFT) else { return Err(MapError::Overflow) };
            let part =
                IovaRange::new(range.first() + done, frames.pages).ok_or(MapError::Overflow)?;
            let which = Part::new(done == 0, done + frames.pages == pages);
            let held = self.hold(frames).map_err(|error| (error, None));
            let put = held.and_then(|()| self.put_kept(part, frames, rights, which));
            if let Err((error, stale)) = put {
                let gives = self.unused(error, range);
                return match (stale, self.take_back(range, gives, done, stale.is_some())) {
                    (Some(late), _) | (None, Err(late)) => Err(MapError::NotComplete(late)),
                    (None, Ok(())) => Err(error),
                };
            }
            done += frames.pages;
        }
        self.tell_of_presence(range)?;
        Ok(self.mapped(Self::address_in(range, first.phys), bytes))
    }

    /// Whole pages of memory; the memory must begin with a page.
    pub(super) fn whole_pages(first: PhysAddr, pages: u64) -> Result<Frames, MapError> {
        if first.0 & (Self::PAGE - 1) != 0 {
            return Err(MapError::Unaligned);
        }
        // Later steps count in bytes.
        let bytes = pages.checked_mul(Self::PAGE).ok_or(MapError::Overflow)?;
        first.0.checked_add(bytes - 1).ok_or(MapError::Overflow)?;
        Ok(Frames { first, pages })
    }

    /// Takes addresses for this many pages. If deferred unmappings may hold all that are left, it
    /// flushes and tries once more.
    #[inline]
    pub(super) fn allocate(&self, pages: u64) -> Result<IovaRange, MapError> {
        let want = Want::pages(pages).ok_or(MapError::Overflow)?.below(self.limit());
        match self.take_addresses(&want) {
            Ok(range) => Ok(range),
            Err(error) => self.allocate_after_flush(&want, error),
        }
    }

    #[cold]
    fn allocate_after_flush(
        &self,
        want: &Want,
        error: crate::iova::AllocError,
    ) -> Result<IovaRange, MapError> {
        if error != crate::iova::AllocError::Exhausted {
            return Err(error.into());
        }
        // An address that this flush can't get back stays deferred.
        let _ = self.flush();
        Ok(self.take_addresses(want)?)
    }

    /// The last page that may be used.
    #[inline]
    pub(super) fn limit(&self) -> u64 {
        // Above the first zone addresses mean something else.
        let zone = match self.config.identity {
            Some(layout) => layout.zone_pages() - 1,
            None => u64::MAX,
        };
        self.config.limit.min(self.table.last_page()).min(zone)
    }

    /// Holds pages, if the domain holds its pages.
    #[inline]
    pub(super) fn hold(&self, frames: Frames) -> Result<(), MapError> {
        if !self.config.holds || self.host.hold(frames.first, frames.pages) {
            Ok(())
        } else {
            Err(MapError::NotHeld)
        }
    }

    /// A deferred free of addresses alone.
    pub(super) const fn addresses_of(range: IovaRange) -> DeferredFree {
        DeferredFree::Mapping { cleared: range, gives: Some(range), frames: None }
    }

    /// The pages to release later, if the domain holds its pages.
    #[inline]
    pub(super) fn held(&self, frames: Frames) -> Option<Frames> {
        self.config.holds.then_some(frames)
    }

    /// Puts the entries of a range, in a cell. The error says which entries a device may have used.
    #[inline]
    fn put_in(
        &self,
        slot: usize,
        cell: &mut Cell,
        range: IovaRange,
        frames: Frames,
        (rights, part): (Rights, Part),
    ) -> Result<(), (MapError, Option<IovaRange>)> {
        // SAFETY: a cell is one CPU's at a time, and each cell has an epoch slot that only the
        // cell's holder uses.
        let walker = unsafe { self.table.walker_at(slot) };
        let mut walker = walker.ok_or((MapError::Busy, None))?;
        walker.map_part(range, frames.first, rights, part).map_err(Self::why)?;
        cell.counts.mapped_pages += frames.pages;
        Ok(())
    }

    /// Puts the entries of a range that stays the caller's if this fails. The second of the error:
    /// a device may still use entries that existed for a moment, since the invalidation is not
    /// complete.
    pub(super) fn put_kept(
        &self,
        range: IovaRange,
        frames: Frames,
        rights: Rights,
        part: Part,
    ) -> Result<(), (MapError, Option<QueueError>)> {
        let entered =
            self.enter_here(|slot, cell| self.put_in(slot, cell, range, frames, (rights, part)));
        entered
            .unwrap_or(Err((MapError::Busy, None)))
            .or_else(|error| self.unput_kept(error, frames))
    }

    /// Cleans up after entries could not be put at addresses that stay the caller's. The caller may
    /// use the addresses for something else as soon as it sees the error, so this waits for the
    /// invalidation of entries that a device may have used, whatever the policy. The second of the
    /// error: the invalidation is not complete.
    #[cold]
    fn unput_kept(
        &self,
        (error, seen): (MapError, Option<IovaRange>),
        frames: Frames,
    ) -> Result<(), (MapError, Option<QueueError>)> {
        let frames = self.held(frames);
        let mut stale = None;
        match seen {
            Some(cleared) => {
                let token = self.engine.note(self.near_cpu(), cleared, true);
                let free = DeferredFree::Mapping { cleared, gives: None, frames };
                stale = self.wait_for_all(token, core::iter::once(free)).err();
            }
            None => {
                if let Some(frames) = frames {
                    self.host.release(frames.first, frames.pages);
                }
            }
        }
        Err((error, stale))
    }

    /// The reason, and the range that a device may have used meanwhile.
    pub(super) fn why(error: table::MapError) -> (MapError, Option<IovaRange>) {
        (MapError::Table(error.kind), error.undone)
    }

    /// Cleans up after entries could not be put. Entries that a device may have used are deferred;
    /// if the policy is strict or too much is deferred already, their invalidation is waited for,
    /// since the caller may free the memory as soon as it sees the error. If no device can have
    /// used any, all is given back now.
    #[cold]
    fn unput(
        &self,
        (error, seen): (MapError, Option<IovaRange>),
        range: IovaRange,
        frames: Frames,
    ) -> Result<(), MapError> {
        let frames = self.held(frames);
        let gives = self.unused(error, range);
        match seen {
            Some(cleared) => {
                let free = DeferredFree::Mapping { cleared, gives, frames };
                // If it is not queued, because the policy is strict or there is no room, wait for
                // the invalidation. If that does not complete, keep it.
                if let Err(free) = self.defer_free(free) {
                    let token = self.engine.note(self.near_cpu(), cleared, true);
                    self.wait_for_all(token, core::iter::once(free))
                        .map_err(MapError::NotComplete)?;
                }
            }
            None => {
                if let Some(frames) = frames {
                    self.host.release(frames.first, frames.pages);
                }
                if let Some(range) = gives {
                    self.give_back_one(Self::addresses_of(range));
                }
            }
        }
        Err(error)
    }

    /// The addresses that go back to the allocator when mapping at them has failed. If it failed
    /// because they are mapped already, another user has them, whatever the allocator's records
    /// say. They do not go back, since the allocator would hand them out to the next caller again
    /// and again. They stay out of use, and are counted ([`lost`](super::Counts::lost)).
    #[cold]
    pub(super) fn unused(&self, error: MapError, range: IovaRange) -> Option<IovaRange> {
        if error != MapError::Table(MapErrorKind::AlreadyMapped) {
            return Some(range);
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Unmaps the first `done` pages of a range that is not used after all. `gives`: what goes back
    /// to the allocator. `stale`: a device may have used entries of the other pages.
    #[cold]
    fn take_back(
        &self,
        range: IovaRange,
        gives: Option<IovaRange>,
        done: u64,
        stale: bool,
    ) -> Result<(), QueueError> {
        let outcome = match IovaRange::new(range.first(), done) {
            Some(part) => self.unmap_ours(part, gives.filter(|_| !stale)),
            None => Ok(()),
        };
        match (gives.map(Self::addresses_of), stale, done) {
            (Some(addresses), true, _) => self.quarantine(self.engine.flush_all(), addresses),
            (Some(addresses), false, 0) => self.give_back_one(addresses),
            _ => {}
        }
        outcome
    }

    /// Unmaps what this call has mapped and no caller has seen yet. If others are in all cells it
    /// tries again, since that does not last.
    #[cold]
    pub(super) fn unmap_ours(
        &self,
        range: IovaRange,
        gives: Option<IovaRange>,
    ) -> Result<(), QueueError> {
        loop {
            let outcome = match self.is_identity(range) {
                true => self.unmap_identity(range, Policy::Strict).map(drop),
                false => self.unmap_pages(range, gives, Policy::Strict, false),
            };
            match outcome {
                // Other CPUs leave their cells whatever the hardware does, so try again.
                Err(UnmapError::Busy) => {}
                Err(UnmapError::NotComplete(error)) => return Err(error),
                _ => return Ok(()),
            }
        }
    }

    /// Invalidates in units that cache absent entries, since the range is mapped now.
    #[inline]
    pub(super) fn tell_of_presence(&self, range: IovaRange) -> Result<(), MapError> {
        self.tell_of(range, Some(range))
    }

    /// The same. `gives`: the addresses that go back to the allocator if that fails.
    #[inline]
    pub(super) fn tell_of(
        &self,
        range: IovaRange,
        gives: Option<IovaRange>,
    ) -> Result<(), MapError> {
        if !self.config.caches_absence {
            return Ok(());
        }
        let told = self.tell_units(range);
        told.map_err(|error| match self.unmap_ours(range, gives) {
            Ok(()) => MapError::NotTold(error),
            Err(error) => MapError::NotComplete(error),
        })
    }

    /// Invalidates pages that are mapped now, and tables that may have come with them, and waits.
    pub(super) fn tell_units(&self, range: IovaRange) -> Result<(), QueueError> {
        self.wait(self.engine.invalidate(self.near_cpu(), range, false))
    }
}
