//! Addresses that follow from the memory's: nothing is allocated, and entries are shared by whoever
//! maps the same page.
//!
//! A page has one address for each right ([`Layout`](crate::iova::identity::Layout)); its entry
//! counts who uses it ([`Walker::acquire`](crate::table::Walker::acquire)). What does not fit
//! (memory beyond a zone, a narrow device, an entry whose count is full) gets an address from the
//! allocator, whose range is a zone of its own: the address alone says which of the two it was.
//! Memory of whole superpages (rings, pools) is mapped as such, if layout and table have them.
//!
//! What it gives up: a device reaches a page until the *last* user has unmapped it (who is not the
//! last is told so: [`Reach::Shared`]), and learns physical addresses. What
//! it need not care about: an address means the same page always, so that it may be used again
//! before it is forgotten. Only the page itself must not be anybody else's before.
//!
//! Who is not the last has nothing invalidated, and lets go of the page at once: those who still
//! use it hold it too.

use super::flush_queue::{DeferredFree, Frames};
use super::{Domain, Host, MapError, Policy, Reach, UnmapError};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::invalidate::QueueError;
use crate::iova::identity::{Layout, LeafSize, Place};
use crate::table::{MapErrorKind, Released};

impl<H: Host> Domain<H> {
    /// Maps pages where their own address says. `None`: they need addresses from the allocator.
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

    /// Leaves that memory is made of, and that the layout and the table have, the largest first.
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

    /// The same, where it is more than one entry that is empty, or elsewhere than the last was. The
    /// pages are held.
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
        // A superpage is counted in its entry alone, and is not worth an error.
        let elsewhere = error == MapError::Table(MapErrorKind::CountFull)
            || (size != LeafSize::Page && error == MapError::Table(MapErrorKind::AlreadyMapped));
        if elsewhere { Ok(None) } else { Err(error) }
    }

    /// A device may have seen pages that were mapped for a moment. The memory is mapped elsewhere
    /// next, and whoever unmaps it there is not to be told that it is out of reach while it is
    /// not here: so this is waited for.
    #[cold]
    fn forget_seen(&self, cleared: IovaRange) -> Result<(), QueueError> {
        let token = self.engine.note(self.near_cpu(), cleared, true);
        let frames = self.memory_of(cleared).filter(|frames| self.hold(*frames).is_ok());
        let free = DeferredFree::Mapping { cleared, gives: None, frames };
        // What does not complete is kept, and held.
        self.wait_for_all(token, core::iter::once(free))
    }

    /// The memory that identity addresses stand for, if the domain holds it.
    #[inline]
    fn memory_of(&self, range: IovaRange) -> Option<Frames> {
        match self.config.identity.as_ref()?.decode(range)? {
            Place::Identity { first, .. } if self.config.holds => {
                Some(Frames { first: PhysAddr(first << Self::SHIFT), pages: range.pages() })
            }
            _ => None,
        }
    }

    /// Are these addresses that follow from the memory's?
    #[inline]
    pub(super) fn is_identity(&self, range: IovaRange) -> bool {
        let place = self.config.identity.as_ref().and_then(|layout| layout.decode(range));
        matches!(place, Some(Place::Identity { .. }))
    }

    /// Are some of these addresses not the allocator's to hand out, as they follow from the
    /// memory's, or may?
    pub(super) fn is_in_zones(&self, range: IovaRange) -> bool {
        self.config.identity.is_some_and(|layout| range.last() >= layout.zone_pages())
    }

    /// Pages of the leaves that such addresses are mapped in.
    fn leaf_of(&self, range: IovaRange) -> u64 {
        match self.config.identity.as_ref().and_then(|layout| layout.decode(range)) {
            Some(Place::Identity { size, .. }) => size.pages(),
            _ => 1,
        }
    }

    /// Unmaps such addresses, under a policy.
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
                // Whoever is in the cells leaves them soon.
                Err(UnmapError::Busy) => {}
                // Somebody has released what is not theirs.
                Err(error) => return Err(error),
            }
        }
        outcome
    }

    /// Releases one page: the way of most packets.
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

    /// Is every leaf used?
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
    /// that nobody else uses, or all. How many pages they were, whether others use some of
    /// them, and what came of invalidating them.
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
        // Of them the last ones, which nobody uses any more.
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
                        // Behind them: invalidating one page too many is cheaper than another step.
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
        // Those before are used by others, who hold them too.
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
