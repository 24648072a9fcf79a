//! Identity addresses: the device address follows from the physical address. Nothing is allocated,
//! and all callers that map the same page share its entry.
//!
//! A page has one address for each right ([`Layout`](crate::iova::identity::Layout)); its entry
//! counts its users ([`Walker::acquire`](crate::table::Walker::acquire)). Memory that does not fit
//! (it lies beyond a zone, the device addresses too few pages, the count of an entry is full) gets
//! an address from the allocator. The allocator's range is a zone of its own, so the address alone
//! says which of the two it is. Memory of whole superpages (rings, pools) is mapped by superpages,
//! if layout and table have them.
//!
//! The scheme gives up two things. A device reaches a page until the *last* user has unmapped it
//! (the others get [`Reach::Shared`]), and it learns physical addresses. It saves one: an address
//! always means the same page, so it may be used again before its invalidation is complete. Only
//! the page itself must not be recycled before.
//!
//! A caller that is not the last user has nothing invalidated, and releases the page at once: the
//! users that remain hold it too.

use super::flush_queue::{DeferredFree, Frames};
use super::{Domain, Host, MapError, Policy, Reach, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::invalidate::QueueError;
use crate::iova::identity::{Layout, LeafSize, Place};
use crate::table::{MapErrorKind, Released};

impl<H: Host> Domain<H> {
    /// Maps pages at their identity addresses. `None`: they need addresses from the allocator.
    #[inline]
    pub(super) fn map_identity(
        &self,
        frames: Frames,
        rights: Rights,
    ) -> Result<Option<IovaRange>, MapError> {
        let Some(layout) = &self.config.identity else { return Ok(None) };
        let first = frames.first.0 >> Self::SHIFT;
        let place = |size| Some((layout.encode(first, frames.pages, rights, size).ok()?, size));
        let Some((range, size)) = self.sizes_of(layout, frames).find_map(place) else {
            let _ = self.enter_here(|_, cell| cell.counts.fallbacks += 1);
            return Ok(None);
        };
        self.hold(frames)?;
        let entered = self.enter_here(|slot, cell| {
            let near = self.near(slot);
            let done = near.is_some_and(|near| near.acquire_near(range, frames.first, rights));
            cell.quick.identities += u64::from(done);
            done
        });
        match entered {
            Ok(true) => Ok(Some(range)),
            _ => self.map_identity_anyhow(range, frames, (rights, size)),
        }
    }

    /// The sizes of leaf by which the memory can be mapped, and that layout and table have, the
    /// largest first.
    #[inline]
    fn sizes_of(&self, layout: &Layout<'_>, frames: Frames) -> impl Iterator<Item = LeafSize> {
        let all = frames.first.0 >> Self::SHIFT | frames.pages;
        let largest = layout.largest();
        let fits = move |size: &LeafSize| {
            *size == LeafSize::Page
                || (all & (size.pages() - 1) == 0
                    && *size <= largest
                    && self.table.has_leaves_of(size.pages(), *size as u32))
        };
        LeafSize::ALL.into_iter().rev().filter(fits)
    }

    /// The same for all other cases than one empty entry near the last one. The pages are held
    /// already.
    fn map_identity_anyhow(
        &self,
        range: IovaRange,
        frames: Frames,
        (rights, size): (Rights, LeafSize),
    ) -> Result<Option<IovaRange>, MapError> {
        let entered = self.enter_here(|slot, cell| {
            let walker = self.walker(slot);
            let mut walker = walker.map_err(|_| (MapErrorKind::NoMemory, None))?;
            match walker.acquire_all(range, frames.first, rights, size as u32) {
                Ok(()) => {
                    cell.counts.maps += 1;
                    cell.counts.mapped_pages += frames.pages;
                    cell.counts.identities += 1;
                    Ok(())
                }
                Err(error) => {
                    cell.counts.fallbacks += u64::from(error.kind == MapErrorKind::CountFull);
                    Err((error.kind, error.undone))
                }
            }
        });
        let (error, seen) = match entered {
            Ok(Ok(())) => return Ok(Some(range)),
            Ok(Err((kind, seen))) => (MapError::Table(kind), seen),
            Err(_) => (MapError::Busy, None),
        };
        let forgotten = seen.map_or(Ok(()), |seen| self.forget_seen(seen));
        if self.config.holds {
            self.host.release(frames.first, frames.pages);
        }
        forgotten.map_err(MapError::NotComplete)?;
        // A superpage is counted in its entry alone. If that entry can't be used, the memory gets
        // an address from the allocator instead of an error.
        let elsewhere = error == MapError::Table(MapErrorKind::CountFull)
            || (size != LeafSize::Page && error == MapError::Table(MapErrorKind::AlreadyMapped));
        if elsewhere { Ok(None) } else { Err(error) }
    }

    /// Waits for the invalidation of pages that were mapped for a moment and that a device may have
    /// used. The memory is mapped at another address next, and the caller that unmaps it there must
    /// not learn that no device reaches it while a device still does here.
    #[cold]
    fn forget_seen(&self, cleared: IovaRange) -> Result<(), QueueError> {
        let token = self.engine.note(self.near_cpu(), cleared, true);
        let frames = self.memory_of(cleared).filter(|frames| self.hold(*frames).is_ok());
        let free = DeferredFree::Mapping { cleared, gives: None, frames };
        // What does not complete is kept, and held.
        self.wait_for_all(token, core::iter::once(free))
    }

    /// The memory that identity addresses stand for, if the domain holds its pages.
    #[inline]
    fn memory_of(&self, range: IovaRange) -> Option<Frames> {
        match self.config.identity.as_ref()?.decode(range)? {
            Place::Identity { first, .. } if self.config.holds => {
                Some(Frames { first: PhysAddr(first << Self::SHIFT), pages: range.pages() })
            }
            _ => None,
        }
    }

    /// Whether these are identity addresses.
    #[inline]
    pub(super) fn is_identity(&self, range: IovaRange) -> bool {
        let place = self.config.identity.as_ref().and_then(|layout| layout.decode(range));
        matches!(place, Some(Place::Identity { .. }))
    }

    /// Whether some of these addresses are in the zones of identity addresses, which the allocator
    /// does not hand out.
    pub(super) fn is_in_zones(&self, range: IovaRange) -> bool {
        self.config.identity.is_some_and(|layout| range.last() >= layout.zone_pages())
    }

    /// Pages of one of the leaves by which these addresses are mapped.
    fn leaf_of(&self, range: IovaRange) -> u64 {
        match self.config.identity.as_ref().and_then(|layout| layout.decode(range)) {
            Some(Place::Identity { size, .. }) => size.pages(),
            _ => 1,
        }
    }

    /// Unmaps identity addresses, under a policy.
    #[inline]
    pub(super) fn unmap_identity(
        &self,
        range: IovaRange,
        policy: Policy,
    ) -> Result<Reach, UnmapError> {
        if range.pages() == 1 {
            return self.release_page(range, policy);
        }
        let step = self.leaf_of(range);
        self.check_used(range, step)?;
        let mut outcome = Ok(Reach::Ended);
        let mut first = range.first();
        while let Some(rest) = IovaRange::new(first, (range.last() + 1).saturating_sub(first)) {
            match self.release_run(rest, step, policy) {
                Ok((pages, shared, settled)) => {
                    first += pages;
                    outcome = outcome.and_then(|before| {
                        settled.map(|()| if shared { Reach::Shared } else { before })
                    });
                }
                // Other CPUs leave their cells soon: try again.
                Err(UnmapError::Busy) => {}
                // Another caller has released a page that it had not mapped.
                Err(error) => return Err(error),
            }
        }
        outcome
    }

    /// Releases one page: the path of most packets.
    #[inline]
    fn release_page(&self, range: IovaRange, policy: Policy) -> Result<Reach, UnmapError> {
        let frame = self.memory_of(range).map(|memory| memory.first);
        let entered = self.enter_here(|slot, cell| {
            let near = self.near(slot);
            let how = if near.is_some_and(|near| near.release_near(range.first())) {
                Released::Last
            } else {
                self.walker(slot)?.release(range.first())?
            };
            Ok(match how {
                Released::Last => (how, self.defer_page(slot, cell, range, policy, false, frame)),
                Released::Shared => {
                    cell.counts.unmaps += 1;
                    (how, None)
                }
            })
        });
        match (entered.unwrap_or(Err(UnmapError::Busy))?, frame) {
            ((Released::Shared, _), frame) => {
                if let Some(frame) = frame {
                    self.host.release(frame, 1);
                }
                return Ok(Reach::Shared);
            }
            ((Released::Last, Some(left)), frame) => self.leave_page(&left, range, false, frame)?,
            ((Released::Last, None), _) => {}
        }
        Ok(Reach::Ended)
    }

    /// Checks that every leaf is in use.
    fn check_used(&self, range: IovaRange, step: u64) -> Result<(), UnmapError> {
        let known = self.enter_here(|slot, _| {
            let mut walker = self.walker(slot)?;
            let mut leaves = (0..range.pages() / step).map(|n| range.first() + n * step);
            let used = leaves.all(|page| walker.translate(page).is_some_and(|t| t.uses != 0));
            if used { Ok(()) } else { Err(UnmapError::NotMapped) }
        });
        known.unwrap_or(Err(UnmapError::Busy))
    }

    /// Releases the first leaves of a range, each of `step` pages: up to and with the last of those
    /// that have no other user, or all. Returns how many pages they were, whether others use some
    /// of them, and the outcome of the invalidation.
    #[inline]
    fn release_run(
        &self,
        range: IovaRange,
        step: u64,
        policy: Policy,
    ) -> Result<(u64, bool, Result<(), UnmapError>), UnmapError> {
        let (mut pages, mut shared) = (0, false);
        let mut frames = [Frames { first: PhysAddr(0), pages: 0 }];
        let mut held = 0;
        // The run of leaves with no other user that is seen last.
        let mut last = None;
        let entered = self.enter_here(|slot, cell| {
            let mut walker = self.walker(slot)?;
            while pages < range.pages() {
                let page = range.first() + pages;
                let how = match walker.release(page) {
                    Ok(how) => how,
                    Err(error) if pages == 0 => return Err(error.into()),
                    Err(_) => break,
                };
                shared |= how == Released::Shared;
                match (how, last) {
                    (Released::Last, None) => last = IovaRange::new(page, step),
                    (Released::Last, Some(run)) => {
                        last = IovaRange::new(run.first(), run.pages() + step)
                    }
                    (Released::Shared, None) => {}
                    (Released::Shared, Some(_)) => {
                        // The leaf lies behind the run: invalidating one page too many is cheaper
                        // than another step.
                        last = last.and_then(|run: IovaRange| {
                            IovaRange::new(run.first(), run.pages() + step)
                        });
                    }
                }
                pages += step;
            }
            cell.counts.unmaps += u64::from(pages == range.pages());
            let Some(run) = last else { return Ok(None) };
            if let Some(memory) = self.memory_of(run) {
                (frames[0], held) = (memory, 1);
            }
            Ok(Some(self.defer_in(slot, cell, (run, true), policy, None, &frames[..held])))
        });
        let left = entered.unwrap_or(Err(UnmapError::Busy))?;
        // The pages before it have other users, which hold them too.
        let before = last.map_or(pages, |run| run.first() - range.first());
        let theirs = IovaRange::new(range.first(), before).and_then(|part| self.memory_of(part));
        if let Some(theirs) = theirs {
            self.host.release(theirs.first, theirs.pages);
        }
        let settled = match (left, last) {
            (Some(left), Some(run)) => self.leave(&left, run, None, &frames[..held]),
            _ => Ok(()),
        };
        Ok((pages, shared, settled))
    }
}
