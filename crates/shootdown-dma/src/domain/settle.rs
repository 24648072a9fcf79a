//! Giving back what completed invalidations have made free; timers; the end of a domain.

use super::flush_queue::{BATCH, DeferredFree, FEW, Taken};
use super::rounds::Due;
use super::{Cell, Counts, Domain, Host, PATIENCE, Pin, WARM};
use crate::addr::IovaRange;
use crate::invalidate::{QueueError, Token};
use crate::iova::{Allocate, FreeError};
use crate::sync::{Ordering, spin_loop};
use crate::table::Detachments;

/// The error of [`Domain::end`]: the domain could not be ended, and is returned here.
#[derive(Debug)]
pub struct Failed<H: Host> {
    /// Why.
    pub error: QueueError,
    /// The domain as it was, except that less may be deferred now.
    pub domain: Domain<H>,
}

/// Pages unmapped after which a CPU checks whether there are too many tables. A table that is taken
/// out and needed again at once costs some microseconds, which is less than a nanosecond for each
/// of this many pages.
const SWEEP_AT: u64 = 4096;

/// Tables that one sweep looks at.
const SWEEP: usize = 64;

/// What was sealed in the cells of many CPUs, to be submitted at once.
#[derive(Default)]
struct Sealed {
    /// The token of the first CPU that had deferred something.
    first: Option<Token>,
    /// Other CPUs had deferred something too: it is part of the next invalidation of the whole
    /// domain.
    whole: bool,
}

/// The number of tables up to which no sweep is needed, if `tables` were left by the last one: a
/// quarter more, for tables that are empty now and will be used again.
const fn enough(tables: usize) -> usize {
    tables + tables / 4 + 16
}

impl<H: Host> Domain<H> {
    /// Gives back what is complete, submits the invalidation of what has been deferred for longer
    /// than [`window_ns`](super::Limits::window_ns), and tries again what failed. Call it from a
    /// timer, and when the kernel is idle; `now_ns` is any clock that does not go back. Never
    /// waits.
    ///
    /// # Errors
    /// The error of a unit. Everything else was done nevertheless.
    pub fn poll(&self, now_ns: u64) -> Result<(), QueueError> {
        // One caller per window flushes; a second caller at the same time has nothing to flush.
        let before = self.flushed_at.load(Ordering::Relaxed);
        let due = now_ns.wrapping_sub(before) >= self.config.limits.window_ns
            && self
                .flushed_at
                .compare_exchange(before, now_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        let mut missed = false;
        let mut sealed = Sealed::default();
        if due && self.config.pinned.is_some() {
            self.rounds.ask();
        }
        let own = self.near_cpu();
        for cpu in self.stirred().filter(|cpu| *cpu == own || !self.answers(*cpu)) {
            if due {
                missed |= !self.flush_late(cpu, &mut sealed);
            } else {
                self.settle(cpu);
            }
        }
        self.submit_due(sealed);
        if missed {
            // Another CPU was in a cell all the time: the next call tries again, and does not wait
            // for another window.
            self.flushed_at.store(before, Ordering::Relaxed);
        }
        if due {
            self.quarantined.enter(0, |list| {
                list.iter().for_each(|(token, _)| self.engine.submit(*token));
            });
            // Tables that became empty, and that no unmapping visits any more.
            self.sweep(self.near_cpu(), 0);
        }
        let outcome = self.engine.poll();
        // What other CPUs' own cells hold, and is complete by now, is left to the next call, so
        // that this call interrupts these CPUs once only.
        for cpu in self.stirred().filter(|cpu| *cpu == own || !self.cells.is_owned(*cpu)) {
            self.settle(cpu);
        }
        self.settle_quarantined();
        self.table.collect();
        outcome
    }

    /// Whether this is another CPU's cell, whose owner flushes it when the timer asks.
    fn answers(&self, cpu: usize) -> bool {
        self.cells.is_owned(cpu) && self.rounds.is_expected(cpu)
    }

    /// Takes what CPUs have sealed themselves since the last call. Only owners of cells do that.
    fn take_due(&self) -> Option<Due> {
        self.config.pinned.and_then(|_| self.rounds.take_due())
    }

    /// Submits what was sealed, and what CPUs have sealed themselves since the last call.
    fn submit_due(&self, mut sealed: Sealed) {
        match self.take_due() {
            Some(Due::One(lane)) if sealed.first.is_none() => self.engine.flush(lane),
            Some(_) => sealed.whole = true,
            None => {}
        }
        self.submit_sealed(&sealed);
    }

    /// The cells that may have something deferred. Of the cells that only their owners enter, these
    /// are the cells that were entered since they last had nothing deferred. An idle CPU is not
    /// interrupted.
    fn stirred(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.cells.cpus()).filter(|cpu| self.cells.is_stirred(*cpu))
    }

    /// Gives back what is complete of what a CPU has deferred, and seals the rest. False: another
    /// context was in the cell.
    fn flush_late(&self, cpu: usize, sealed: &mut Sealed) -> bool {
        let mut late = None;
        let entered = self.settle_and(cpu, true, |cell| {
            let new = self.seal_with_others(cpu, cell, sealed);
            cell.counts.timed_flushes += u64::from(new);
            // The context that has sealed it may not have submitted it yet.
            late = cell.queue.last().filter(|_| !new);
            if cell.queue.len() == 0 {
                // The CPU maps no more: the memory of tables that its epoch slot remembers may be
                // reclaimed.
                let _ = self.walker(cpu).map(|mut walker| walker.let_go());
            }
        });
        if let Some(token) = late {
            self.engine.submit(token);
        }
        entered
    }

    /// Seals what a CPU has deferred, as one of many CPUs whose invalidations are submitted at
    /// once. The first CPU that has deferred something notes its ranges; if there are others, the
    /// whole domain is invalidated. (A batch for each of 64 CPUs would cost the units more than the
    /// extra IOTLB misses.) Says whether there was anything.
    fn seal_with_others(&self, cpu: usize, cell: &mut Cell, sealed: &mut Sealed) -> bool {
        match sealed.first {
            None => {
                sealed.first = self.seal(cpu, cell);
                sealed.first.is_some()
            }
            Some(_) => {
                let token = cell.queue.seal(|_| self.engine.token_of_all());
                sealed.whole |= token.is_some();
                token.is_some()
            }
        }
    }

    /// Submits all that was sealed. The token covers it.
    fn submit_sealed(&self, sealed: &Sealed) -> Option<Token> {
        if sealed.whole {
            return Some(self.engine.flush_all());
        }
        sealed.first.inspect(|first| self.engine.submit(*first))
    }

    /// Gives back what is complete of what a CPU has deferred.
    pub(super) fn settle(&self, cpu: usize) {
        self.settle_and(cpu, true, |_| {});
    }

    /// The same, and calls `then` in the cell. `keeps`: the CPU may keep single addresses. False:
    /// another context was in the cell.
    fn settle_and(&self, cpu: usize, keeps: bool, mut then: impl FnMut(&mut Cell)) -> bool {
        let mut entered = false;
        loop {
            let mut taken = Taken::NOTHING;
            let mut ranges = [None; BATCH + FEW];
            let warm = self.enter(cpu, |cell| {
                cell.queue.take(&mut taken, |token| self.engine.is_complete(token));
                if cell.queue.len() == 0 {
                    self.cells.calm(cpu);
                }
                // Addresses of single pages go to the next mapping on this CPU.
                let room = if keeps && self.keeps() { WARM - cell.warm.len() } else { 0 };
                let mut gives = taken.pages().iter().filter_map(|page| page.gives());
                cell.warm.extend(gives.by_ref().take(room));
                let mut len = 0;
                for page in gives {
                    ranges[len] = IovaRange::new(page, 1);
                    len += 1;
                }
                then(cell);
                len
            });
            let Some(len) = warm else { return entered };
            entered = true;
            self.give_back(&mut taken, &mut ranges, len);
            if !taken.more {
                return true;
            }
        }
    }

    /// Whether a CPU may keep addresses of single pages that are complete.
    #[inline]
    pub(super) fn keeps(&self) -> bool {
        self.addresses.may_keep()
    }

    /// Gives back what was taken from a queue (I1), with no cell entered; and the addresses in
    /// `ranges`, of which there are `len` already.
    fn give_back(
        &self,
        taken: &mut Taken,
        ranges: &mut [Option<IovaRange>; BATCH + FEW],
        mut len: usize,
    ) {
        for frame in taken.pages().iter().filter_map(|page| page.frame()) {
            self.host.release(frame, 1);
        }
        for free in taken.frees.iter_mut().map_while(Option::take) {
            match free {
                // The allocator takes all addresses back in one call.
                DeferredFree::Mapping { gives: Some(range), frames, .. } => {
                    if let Some(frames) = frames {
                        self.host.release(frames.first, frames.pages);
                    }
                    ranges[len] = Some(range);
                    len += 1;
                }
                free => self.give_back_one(free),
            }
        }
        if len != 0 {
            self.free(ranges.iter().flatten().copied());
        }
    }

    fn free(&self, ranges: impl Iterator<Item = IovaRange>) {
        let pin = self.host.pin();
        self.addresses.free_all(pin.cpu(), ranges, |range, why| self.refused(range, why));
    }

    /// Gives back the addresses that a CPU keeps, and seals what it has deferred.
    fn cool_and_seal(&self, cpu: usize, sealed: &mut Sealed) {
        let mut pages = [0; WARM];
        let mut len = 0;
        self.enter(cpu, |cell| {
            for (kept, page) in pages.iter_mut().zip(cell.warm.drain(..)) {
                *kept = page;
                len += 1;
            }
            self.seal_with_others(cpu, cell, sealed);
        });
        if len != 0 {
            self.free(pages[..len].iter().filter_map(|page| IovaRange::new(*page, 1)));
        }
    }

    /// The allocator has not taken addresses back.
    #[cold]
    fn refused(&self, range: IovaRange, why: FreeError) {
        debug_assert_eq!(why, FreeError::NoMemory, "{range:?} was mapped");
        if why == FreeError::NoMemory {
            // They are complete, but the allocator has no memory for its records: try again later.
            self.quarantine(Token::DONE, Self::addresses_of(range));
        }
    }

    /// Gives back something whose token is complete.
    pub(super) fn give_back_one(&self, free: DeferredFree) {
        match free {
            DeferredFree::Mapping { gives, frames, .. } => {
                if let Some(frames) = frames {
                    self.host.release(frames.first, frames.pages);
                }
                if let Some(range) = gives {
                    let freed = {
                        let pin = self.host.pin();
                        self.addresses.free(pin.cpu(), range)
                    };
                    freed.unwrap_or_else(|why| self.refused(range, why));
                }
            }
            // SAFETY: its token is complete; it was taken after the table was taken out, and covers
            // table entries.
            DeferredFree::Table(detached) => unsafe { self.table.finish(detached) },
        }
    }

    /// Keeps what can't be given back, and has no room in a queue (I5).
    #[cold]
    pub(super) fn quarantine(&self, token: Token, free: DeferredFree) {
        let mut free = Some(free);
        while free.is_some() {
            let kept = self.quarantined.enter(0, |list| match free.take() {
                // There is room for as many as a CPU may defer, and for more if the heap has
                // memory.
                Some(free) if list.try_reserve(1).is_ok() => list.push((token, free)),
                // There is no memory to record it: it stays out of use for ever, which is safe, and
                // is counted.
                Some(_) => {
                    self.lost.fetch_add(1, Ordering::Relaxed);
                }
                None => {}
            });
            if kept.is_none() {
                spin_loop();
            }
        }
    }

    /// How many things are quarantined.
    fn quarantine_len(&self) -> usize {
        self.quarantined.enter(0, |list| list.len()).unwrap_or(0)
    }

    /// Tries again to give back what was quarantined: each thing once, since it may be quarantined
    /// again.
    fn settle_quarantined(&self) {
        for _ in 0..self.quarantine_len() {
            let complete = self.quarantined.enter(0, |list| {
                let at = list.iter().position(|(token, _)| self.engine.is_complete(*token))?;
                Some(list.remove(at).1)
            });
            match complete {
                Some(Some(free)) => self.give_back_one(free),
                _ => return,
            }
        }
    }

    /// If there are more tables than `above`, looks for empty ones, and takes them out.
    #[cold]
    pub(super) fn sweep(&self, cpu: usize, above: usize) {
        let tables = self.table.pages();
        if tables <= above {
            return;
        }
        let mut detached = Detachments::new();
        if let Some(found) = self.table.sweep(SWEEP, &mut detached) {
            self.tables_enough.store(enough(tables.saturating_sub(found)), Ordering::Relaxed);
            self.defer_tables(cpu, &mut detached);
        }
    }

    /// Takes out all tables that are empty, and waits until their pages are free: for a caller that
    /// finds no memory for another table.
    #[cold]
    pub(super) fn take_out_empty(&self) {
        for _ in 0..=self.table.pages() / SWEEP {
            self.sweep(self.near_cpu(), 0);
        }
        // What this flush can't get back stays deferred.
        let _ = self.flush();
    }

    /// Tables were taken out: their pages are deferred until the walk caches are invalidated.
    #[cold]
    pub(super) fn defer_tables(&self, cpu: usize, detached: &mut Detachments) {
        while let Some(table) = detached.pop() {
            let mut table = Some(DeferredFree::Table(table));
            self.enter(cpu, |cell| {
                cell.stop();
                cell.counts.swept_tables += 1;
                table = table.take().and_then(|table| cell.queue.push(table).err());
            });
            if let Some(table) = table {
                let (range, leaf_only) = table.covered();
                self.quarantine(self.engine.note(cpu, range, leaf_only), table);
            }
        }
    }

    /// Whether it is time to look for empty tables.
    #[inline]
    pub(super) fn is_sweep_due(cell: &mut Cell, pages: u64) -> bool {
        cell.unswept += pages;
        let due = cell.unswept >= SWEEP_AT;
        if due {
            cell.unswept = 0;
        }
        due
    }

    /// The counts of all CPUs together. A cell that is taken at the moment is left out.
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        for cpu in 0..self.cells.cpus() {
            self.enter(cpu, |cell| all.add(&cell.tally()));
        }
        all.lost = self.lost.load(Ordering::Relaxed);
        all
    }

    /// What is deferred at the moment: how many things, and how many pages are held back.
    pub fn deferred(&self) -> (usize, u64) {
        let mut all = (0, 0);
        for cpu in 0..self.cells.cpus() {
            self.enter(cpu, |cell| {
                all = (all.0 + cell.queue.len(), all.1 + cell.queue.pages());
            });
        }
        self.quarantined.enter(0, |list| {
            let pages: u64 = list.iter().map(|(_, free)| free.pages()).sum();
            all = (all.0 + list.len(), all.1 + pages);
        });
        all
    }

    /// Invalidates all of the domain, and waits until the units have executed it: no device then
    /// reaches what was unmapped before the call, by any CPU. What is deferred stays deferred, and
    /// no CPU is interrupted; [`flush`](Self::flush) gives it back as well.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn invalidate_all(&self) -> Result<(), QueueError> {
        let _ = self.take_due(); // This invalidation covers what is due.
        self.wait(self.engine.flush_all())
    }

    /// Submits the invalidation of all that is deferred, waits until it is complete, and gives it
    /// back. For that it enters the cell of every CPU that has deferred something, before and after
    /// the wait. If a CPU is in its cell just then (or was interrupted there by this call), what it
    /// has deferred is left to that CPU and to [`poll`](Self::poll). Unmappings that were reported
    /// as [not complete](super::UnmapError::NotComplete) are always included.
    ///
    /// # Errors
    /// See [`QueueError`]: something is still deferred.
    pub fn flush(&self) -> Result<(), QueueError> {
        let mut sealed = Sealed::default();
        (0..self.cells.cpus()).for_each(|cpu| self.cool_and_seal(cpu, &mut sealed));
        sealed.whole |= self.take_due().is_some();
        if let Some(token) = self.submit_sealed(&sealed) {
            self.wait(token)?;
        }
        for cpu in self.stirred() {
            let mut batches = (None, 0);
            self.settle_and(cpu, false, |cell| batches = cell.queue.batches());
            // Some of it was sealed before, and is not complete. The batches are waited for one by
            // one: an interrupt may have noted one of them with another CPU's number, and then the
            // last token says nothing about it. Batches that are sealed meanwhile are not waited
            // for.
            let (mut first, mut left) = batches;
            while let (Some(token), Some(rest)) = (first, left.checked_sub(1)) {
                self.wait(token)?;
                first = None;
                self.settle_and(cpu, false, |cell| first = cell.queue.batches().0);
                left = rest;
            }
        }
        // What is quarantined meanwhile was not deferred when this call began.
        let (mut first, mut left) = self.incomplete()?;
        while let (Some(token), Some(rest)) = (first, left.checked_sub(1)) {
            self.engine.wait(token, &mut || self.host.relax())?;
            (first, left) = (self.incomplete()?.0, rest);
        }
        self.settle_quarantined();
        self.table.collect();
        Ok(())
    }

    /// The token of something that is quarantined and not complete; and how many things are
    /// quarantined.
    fn incomplete(&self) -> Result<(Option<Token>, usize), QueueError> {
        for _ in 0..PATIENCE {
            let found = self.quarantined.enter(0, |list| {
                let mut tokens = list.iter().map(|(token, _)| *token);
                (tokens.find(|token| !self.engine.is_complete(*token)), list.len())
            });
            if let Some(found) = found {
                return Ok(found);
            }
            if !self.host.relax() {
                break;
            }
        }
        Err(QueueError::GaveUp)
    }

    /// Releases the pages of all that is still mapped, which only the table records, and which no
    /// device reaches any more. No other call maps or unmaps.
    fn release_mapped(&self) {
        if !self.config.holds {
            return;
        }
        // No other walker exists that could have taken the slot.
        let Some(mut walker) = self.table.walker(0) else { return };
        self.table.for_each_leaf(&mut |first, pages| {
            // What lies in the window was never held.
            let found =
                walker.translate(first).filter(|_| self.unmap_in_window(first, 1).is_none());
            if let Some(found) = found {
                (0..found.uses.max(1)).for_each(|_| self.host.release(found.phys, pages));
            }
        });
    }

    /// Ends the domain: invalidates all that units and devices have cached of it, gives back what
    /// is deferred, and frees the page table. What is still mapped is unmapped: its addresses go
    /// with the allocator, and its pages are released as often as they were held.
    ///
    /// Dropping a domain instead leaks its page table, which devices may walk.
    ///
    /// # Safety
    /// No device's entry in an IOMMU leads to the domain any more: all are
    /// [detached](Self::detach).
    ///
    /// # Errors
    /// [`Failed`], with the domain.
    #[allow(clippy::result_large_err)] // once in a domain's life, and it comes back whole
    pub unsafe fn end(self) -> Result<H::Addresses, Failed<H>> {
        let told = self.wait(self.engine.note_everything(self.near_cpu()));
        let outcome = told.and_then(|()| self.flush());
        if let Err(error) = outcome {
            return Err(Failed { error, domain: self });
        }
        self.release_mapped();
        let Self { table, addresses, .. } = self;
        // SAFETY: no device's entry leads to it, and the invalidation of all that was cached of it
        // is complete.
        unsafe { table.free() };
        Ok(addresses)
    }
}
