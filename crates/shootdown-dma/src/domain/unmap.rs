//! Unmapping: clear the entries, take a token, defer what may not be reused yet.
//!
//! The steps for one page (strict-ish, a page of a buffer that a device has written to):
//! 1. [`Domain::unmap`] enters a cell of the CPU, so that no other caller uses its epoch slot and
//!    its queue.
//! 2. It reads the entries to find the memory that they lead to, and clears them.
//! 3. It puts range and pages into the queue. If there is no room, the caller has the range
//!    invalidated and waits.
//! 4. If the queue holds enough that is not sealed,
//!    [`Engine::note_all`](crate::invalidate::Engine::note_all) takes all these ranges, and returns
//!    a token that is complete when all units and devices have invalidated them.
//! 5. It leaves the cell. Then it submits a batch that was sealed, and gives back what has become
//!    complete.
//!
//! A domain that holds pages has to know which memory it unmaps. If the memory lies in more than
//! [`RUNS`] pieces, it is unmapped in as many steps as that takes; before the first step the call
//! checks that all of it is mapped.

use super::flush_queue::{DeferredFree, Frames, Page};
use super::{Cell, DmaAddr, Domain, Host, Policy, Reach, UnmapError};
use crate::addr::{IovaRange, PhysAddr};
use crate::invalidate::{QueueError, Token};
use crate::sync::Ordering;
use crate::table::{Detachments, Format, TableMemory, Walker};

/// Pieces of memory that are unmapped in one step.
const RUNS: usize = 16;

/// Unmappings between two looks at what is complete.
const SETTLE_EVERY: usize = 32;

/// Memory that a range leads to.
struct Runs {
    frames: [Frames; RUNS],
    len: usize,
}

impl Runs {
    const NONE: Self = Self { frames: [Frames { first: PhysAddr(0), pages: 0 }; RUNS], len: 0 };

    fn as_slice(&self) -> &[Frames] {
        &self.frames[..self.len]
    }

    /// Collects the memory that the first pages of a range lead to: as many pages as there is room
    /// for, and whole leaves.
    fn collect<F: Format, M: TableMemory>(
        &mut self,
        walker: &mut Walker<'_, F, M>,
        range: IovaRange,
    ) -> Result<u64, UnmapError> {
        let mut done = 0;
        while done < range.pages() {
            let page = range.first() + done;
            let found = walker.translate(page).ok_or(UnmapError::NotMapped)?;
            let leaf = 1 << (F::INDEX * found.level);
            let pages = (leaf - page % leaf).min(range.pages() - done);
            if !self.push::<F>(found.phys, pages) {
                break;
            }
            done += pages;
        }
        Ok(done)
    }

    /// Adds memory; false if that would be one piece too many.
    #[inline]
    fn push<F: Format>(&mut self, first: PhysAddr, pages: u64) -> bool {
        if let Some(last) = self.frames[..self.len].last_mut() {
            if last.first.0 + (last.pages << F::GRANULE) == first.0 {
                last.pages += pages;
                return true;
            }
        }
        if self.len == RUNS {
            return false;
        }
        self.frames[self.len] = Frames { first, pages };
        self.len += 1;
        true
    }
}

/// Work that a step leaves for after its cell.
pub(super) struct Left {
    slot: usize,
    /// Nothing was queued: the caller waits for this token.
    wait: Option<Token>,
    /// What the CPU has deferred was sealed: this token is to be submitted.
    flush: Option<Token>,
    /// Give back what is complete.
    settle: bool,
    /// Look for empty tables.
    sweep: bool,
}

impl<H: Host> Domain<H> {
    /// [`unmap`](Self::unmap) for a caller that keeps addresses as numbers: `bytes` bytes from `at`
    /// on, which must be exactly what one [`map`](Self::map) or [`map_sg`](Self::map_sg) has
    /// mapped.
    ///
    /// A range that is not one mapping is refused where the table shows it. The table can't show
    /// two things. Within the first and the last page it does not distinguish addresses. And pages
    /// whose addresses follow from the memory's (and superpages where they are mapped so) are each
    /// a mapping of their own, which only counts how often it is used.
    ///
    /// # Safety
    /// No other caller unmaps the same mapping, or a part of it, at the same time. An identity
    /// address is unmapped as often as it was mapped, and no more.
    ///
    /// # Errors
    /// See [`UnmapError`]; nothing has changed, and nothing was invalidated, unless it says
    /// otherwise.
    #[inline]
    pub unsafe fn unmap_raw(&self, at: DmaAddr, bytes: u64) -> Result<Reach, UnmapError> {
        // SAFETY: as the caller promises.
        unsafe { self.unmap_bytes(self.config.policy, at, bytes) }
    }

    /// The same under another policy, as [`unmap_under`](Self::unmap_under).
    ///
    /// # Safety
    /// As [`unmap_raw`](Self::unmap_raw).
    ///
    /// # Errors
    /// See [`UnmapError`].
    #[inline]
    pub unsafe fn unmap_raw_under(
        &self,
        policy: Policy,
        at: DmaAddr,
        bytes: u64,
    ) -> Result<Reach, UnmapError> {
        self.allows(policy, at)?;
        // SAFETY: as the caller promises.
        unsafe { self.unmap_bytes(policy, at, bytes) }
    }

    /// A domain's policy is a floor: a call with a weaker policy is refused. (In the window
    /// unmapping does nothing at all.)
    #[inline]
    pub(super) fn allows(&self, policy: Policy, at: DmaAddr) -> Result<(), UnmapError> {
        let weaker = policy.is_weaker_than(self.config.policy);
        if weaker && self.unmap_in_window(at.0 >> Self::SHIFT, 1).is_none() {
            return Err(UnmapError::Refused);
        }
        Ok(())
    }

    /// # Safety
    /// As [`unmap_raw`](Self::unmap_raw).
    #[inline]
    pub(super) unsafe fn unmap_bytes(
        &self,
        policy: Policy,
        at: DmaAddr,
        bytes: u64,
    ) -> Result<Reach, UnmapError> {
        if bytes == 0 {
            return Err(UnmapError::Empty);
        }
        let (first, pages) = Self::pages_of(at.0, bytes).ok_or(UnmapError::Overflow)?;
        if let Some(outcome) = self.unmap_in_window(first, pages) {
            return outcome.map(|()| Reach::Window);
        }
        let range = IovaRange::new(first, pages).ok_or(UnmapError::NotMapped)?;
        if self.is_identity(range) {
            return self.unmap_identity(range, policy);
        }
        let unmapped = if pages == 1 {
            self.unmap_page(range, policy)
        } else {
            self.unmap_pages(range, Some(range), policy, true)
        };
        unmapped.map(|()| Reach::Ended)
    }

    /// Whether the unmapping may be deferred under this policy.
    #[inline]
    pub(super) const fn may_defer(&self, policy: Policy) -> bool {
        match policy {
            Policy::Deferred => self.config.holds,
            Policy::Lazy | Policy::Bypass => true,
            Policy::Strict => false,
        }
    }

    /// Unmaps one page: the path of most packets.
    #[inline]
    fn unmap_page(&self, range: IovaRange, policy: Policy) -> Result<(), UnmapError> {
        let mut frame = None;
        let entered = self.enter_here(|slot, cell| {
            let near = self.near(slot).and_then(|near| near.unmap_near(range.first()));
            let phys = match near {
                Some(phys) => phys,
                None => self.walker(slot)?.unmap_page(range.first())?,
            };
            frame = if self.config.holds { Some(phys) } else { None };
            Ok(self.defer_page(slot, cell, range, policy, true, frame))
        });
        match entered.unwrap_or(Err(UnmapError::Busy))? {
            Some(left) => self.leave_page(&left, range, true, frame),
            None => Ok(()),
        }
    }

    /// Unmaps many pages. `gives`: the addresses that go back to the allocator. `whole`: the range
    /// must be one mapping; otherwise the caller has checked it.
    pub(super) fn unmap_pages(
        &self,
        range: IovaRange,
        gives: Option<IovaRange>,
        policy: Policy,
        whole: bool,
    ) -> Result<(), UnmapError> {
        let mut outcome = Ok(());
        let mut first = range.first();
        while first <= range.last() {
            let Some(rest) = IovaRange::new(first, range.last() - first + 1) else { break };
            let mut runs = Runs::NONE;
            let mut detached = Detachments::new();
            let (mut pages, mut cleared) = (rest.pages(), rest);
            let entered = self.enter_here(|slot, cell| {
                let mut walker = self.walker(slot)?;
                if self.config.holds {
                    pages = match runs.collect(&mut walker, rest) {
                        Ok(pages) => pages,
                        // A page is not mapped; the check of the rest may find a more exact error.
                        Err(error) => {
                            walker.check_mapped(rest, whole)?;
                            return Err(error);
                        }
                    };
                    if pages < rest.pages() && first == range.first() {
                        // Another step follows: check now that it can't fail.
                        walker.check_mapped(rest, whole)?;
                    }
                }
                let part = IovaRange::new(first, pages).ok_or(UnmapError::NotMapped)?;
                let unmapped = if whole && part == range {
                    walker.unmap(part, &mut detached)?
                } else {
                    walker.unmap_part(part, &mut detached)?
                };
                let last = pages == rest.pages();
                cell.counts.unmaps += u64::from(last);
                // The token with which addresses are given back covers all that was mapped by them.
                cleared = if last { range } else { unmapped.range };
                let gives = gives.filter(|_| last);
                let noted = (cleared, unmapped.leaf_only);
                Ok(self.defer_in(slot, cell, noted, policy, gives, runs.as_slice()))
            });
            let left = match entered.unwrap_or(Err(UnmapError::Busy)) {
                Ok(left) => left,
                // A step was done: the others must follow, even if all cells are taken now.
                Err(UnmapError::Busy) if first != range.first() => continue,
                // Only the first step fails, and then nothing was unmapped.
                Err(error) => return Err(error),
            };
            self.defer_tables(left.slot, &mut detached);
            first += pages;
            let gives = gives.filter(|_| first > range.last());
            outcome = outcome.and(self.leave(&left, cleared, gives, runs.as_slice()));
        }
        outcome
    }

    /// The walker of a cell that was entered.
    #[inline]
    pub(super) fn walker(
        &self,
        slot: usize,
    ) -> Result<Walker<'_, H::Format, H::Tables>, UnmapError> {
        // SAFETY: a cell is one CPU's at a time, and only the holder of a cell uses the epoch slot
        // of its number.
        unsafe { self.table.walker_at(slot) }.ok_or(UnmapError::Busy)
    }

    /// Defers a range whose entries were cleared in this cell: queues what is given back when the
    /// invalidation is complete, if the policy allows it and there is room.
    #[inline]
    pub(super) fn defer_in(
        &self,
        slot: usize,
        cell: &mut Cell,
        (range, leaf_only): (IovaRange, bool),
        policy: Policy,
        gives: Option<IovaRange>,
        frames: &[Frames],
    ) -> Left {
        let pages = frames.iter().map(|frames| frames.pages).sum();
        let may_defer = self.may_defer(policy);
        let defers = may_defer && cell.queue.has_room(frames.len().max(1), pages);
        cell.stop();
        cell.counts.unmapped_pages += range.pages();
        let sweep = Self::is_sweep_due(cell, range.pages());
        if !defers {
            return self.forget_now(slot, cell, (range, leaf_only), may_defer, sweep);
        }
        // The first item covers the range for all of them: they are sealed together.
        let first =
            DeferredFree::Mapping { cleared: range, gives, frames: frames.first().copied() };
        // There is room: the check is above.
        let _ = cell.queue.push(first);
        for frames in frames.iter().skip(1) {
            if frames.pages == 1 {
                let _ = cell.queue.push_page(Page::memory(frames.first));
            } else {
                let memory =
                    DeferredFree::Mapping { cleared: range, gives: None, frames: Some(*frames) };
                let _ = cell.queue.push(memory);
            }
        }
        let (flush, settle) = self.look_after(slot, cell);
        Left { slot, wait: None, flush, settle, sweep }
    }

    /// Queues something whose entries are cleared already, under the domain's policy.
    ///
    /// # Errors
    /// The argument, if the policy does not allow that, or there is no room.
    #[cold]
    pub(super) fn defer_free(&self, free: DeferredFree) -> Result<(), DeferredFree> {
        if !self.may_defer(self.config.policy) {
            return Err(free);
        }
        let (range, _) = free.covered();
        let mut free = Some(free);
        let entered = self.enter_here(|slot, cell| {
            cell.stop();
            free = free.take().and_then(|free| cell.queue.push(free).err());
            let (flush, settle) = self.look_after(slot, cell);
            Left { slot, wait: None, flush, settle, sweep: false }
        });
        if let Ok(left) = entered {
            // No token is waited for, so this can't fail.
            let _ = self.leave(&left, range, None, &[]);
        }
        free.map_or(Ok(()), Err)
    }

    /// The same for one page. `None`: there is nothing left to do.
    #[inline]
    pub(super) fn defer_page(
        &self,
        slot: usize,
        cell: &mut Cell,
        range: IovaRange,
        policy: Policy,
        gives: bool,
        frame: Option<PhysAddr>,
    ) -> Option<Left> {
        let page = Page::new(range.first(), gives, frame);
        if self.may_defer(policy) && cell.is_quick() {
            cell.queue.put_page(page);
            return None;
        }
        self.defer_page_and_look(slot, cell, range, policy, page)
    }

    #[cold]
    fn defer_page_and_look(
        &self,
        slot: usize,
        cell: &mut Cell,
        range: IovaRange,
        policy: Policy,
        page: Page,
    ) -> Option<Left> {
        cell.stop();
        cell.counts.unmaps += 1;
        cell.counts.unmapped_pages += 1;
        let sweep = Self::is_sweep_due(cell, 1);
        let may_defer = self.may_defer(policy);
        if !(may_defer && cell.queue.push_page(page)) {
            return Some(self.forget_now(slot, cell, (range, true), may_defer, sweep));
        }
        let (flush, settle) = self.look_after(slot, cell);
        if flush.is_none() && !settle && !sweep {
            return None;
        }
        Some(Left { slot, wait: None, flush, settle, sweep })
    }

    /// After something was queued: seals the queue if it is due or the timer has asked. Returns the
    /// token to submit, and whether to give back what is complete.
    #[inline]
    fn look_after(&self, slot: usize, cell: &mut Cell) -> (Option<Token>, bool) {
        let mut flush = None;
        if cell.queue.is_due() {
            cell.counts.flushes += 1;
            flush = self.seal(slot, cell);
        }
        if self.cells.is_owned(slot) {
            let round = self.rounds.newest();
            if round != cell.heard {
                let before = self.answer(slot, cell, round);
                flush = flush.or(before);
            }
        }
        let since = cell.queue.len() % SETTLE_EVERY;
        cell.go_on(SETTLE_EVERY - 1 - since);
        (flush, since == 0 && cell.queue.last().is_some())
    }

    /// Handles a request of the timer: this CPU seals what it has deferred, and the timer's next
    /// call submits it. Returns the token of the last batch that was sealed before, which may not
    /// be submitted yet.
    #[cold]
    fn answer(&self, slot: usize, cell: &mut Cell, round: u64) -> Option<Token> {
        let before = cell.queue.last();
        // The first CPU of a round notes its ranges; if there are others, the whole domain is
        // invalidated. A batch for each of 64 CPUs would cost the units more than the extra IOTLB
        // misses.
        let sealed = if self.rounds.is_first() {
            self.seal(slot, cell)
        } else {
            cell.queue.seal(|_| self.engine.token_of_all())
        };
        if let Some(token) = sealed {
            cell.counts.timed_flushes += 1;
            self.rounds.raise(self.engine.lane_number(token));
        }
        cell.heard = round;
        self.rounds.answer(slot, round);
        before
    }

    /// The unmapping can't be queued: notes its range under a token that the caller waits for.
    #[cold]
    fn forget_now(
        &self,
        slot: usize,
        cell: &mut Cell,
        (range, leaf_only): (IovaRange, bool),
        may_defer: bool,
        sweep: bool,
    ) -> Left {
        cell.counts.waits += 1;
        cell.counts.forced_waits += u64::from(may_defer);
        let token = self.engine.invalidate(slot, range, leaf_only);
        // Make room for the next unmapping.
        let flush = if may_defer { self.seal(slot, cell) } else { None };
        Left { slot, wait: Some(token), flush, settle: may_defer, sweep }
    }

    /// [`leave`](Self::leave) for one page.
    #[cold]
    pub(super) fn leave_page(
        &self,
        left: &Left,
        range: IovaRange,
        gives: bool,
        frame: Option<PhysAddr>,
    ) -> Result<(), UnmapError> {
        let frames = frame.map(|first| Frames { first, pages: 1 });
        self.leave(left, range, gives.then_some(range), frames.as_slice())
    }

    /// Does the work that a step has left, with no cell entered (I3 of [`super`]).
    #[inline]
    pub(super) fn leave(
        &self,
        left: &Left,
        range: IovaRange,
        gives: Option<IovaRange>,
        frames: &[Frames],
    ) -> Result<(), UnmapError> {
        if let Some(token) = left.flush {
            self.engine.submit(token);
        }
        let outcome = match left.wait {
            Some(token) => self.wait_for(token, frees(range, gives, frames)),
            None => Ok(()),
        };
        if left.settle {
            self.settle(left.slot);
        }
        if left.sweep {
            self.sweep(left.slot, self.tables_enough.load(Ordering::Relaxed));
        }
        outcome
    }

    /// Waits, and gives back. What does not complete is kept (I5 of [`super`]).
    pub(super) fn wait_for(
        &self,
        token: Token,
        frees: impl Iterator<Item = DeferredFree>,
    ) -> Result<(), UnmapError> {
        self.wait_for_all(token, frees).map_err(UnmapError::NotComplete)
    }

    /// The same, with the units' error.
    pub(super) fn wait_for_all(
        &self,
        token: Token,
        frees: impl Iterator<Item = DeferredFree>,
    ) -> Result<(), QueueError> {
        let outcome = self.wait(token);
        for free in frees {
            match outcome {
                Ok(()) => self.give_back_one(free),
                Err(_) => self.quarantine(token, free),
            }
        }
        outcome
    }
}

/// The items to give back: pieces of memory, and with the last of them the addresses.
#[inline]
fn frees(
    cleared: IovaRange,
    gives: Option<IovaRange>,
    frames: &[Frames],
) -> impl Iterator<Item = DeferredFree> + '_ {
    // Without memory to release it is still one item.
    let count = frames.len().max(1);
    (0..count).map(move |n| {
        let gives = gives.filter(|_| n + 1 == count);
        DeferredFree::Mapping { cleared, gives, frames: frames.get(n).copied() }
    })
}
