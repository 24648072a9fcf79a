//! The interface to the allocator behind the magazines: what the magazines lack, and what they have
//! too much.

use super::super::{AllocError, Allocate, Want};
use super::class::{CLASSES, Class};
use super::depot::{Depot, PORTION};
use super::round::{Magazine, ROUNDS};
use super::{Magazines, PATIENCE, Pair, Pairs};
use crate::addr::IovaRange;
use crate::pinned::NOBODY;

impl<A: Allocate> Magazines<A> {
    /// Gives everything that is cached back to the inner allocator, for all CPUs.
    pub fn flush(&self) {
        self.flush_from(None);
    }

    /// The same on behalf of CPU `own`: its magazines are entered as by their owner.
    fn flush_from(&self, own: Option<usize>) {
        let here = own.unwrap_or(NOBODY);
        for cpu in 0..self.cpus.cpus() {
            if own == Some(cpu) {
                self.cpus.enter_own(cpu, |pairs| self.empty_pairs(here, pairs));
            } else {
                self.empty(cpu, here);
            }
        }
        for class in (0..CLASSES).map(Class) {
            while let Some(mut magazine) = self.depots[class.0].with(Depot::lend) {
                let all = self.give_back(here, class, &mut magazine, usize::MAX);
                self.depots[class.0].with(|depot| depot.back(magazine));
                if !all {
                    break;
                }
            }
        }
    }

    /// Returns up to `most` blocks of a magazine to the inner allocator, which may be pinned as
    /// well: `cpu` is the caller's own, or [`NOBODY`]. Says whether all of those are returned.
    pub(super) fn give_back(
        &self,
        cpu: usize,
        class: Class,
        from: &mut Magazine,
        most: usize,
    ) -> bool {
        for _ in 0..most {
            let Some(block) = from.pop(u64::MAX) else { return true };
            let Some(range) = IovaRange::new(block, class.pages()) else { continue };
            if self.inner.free(cpu, range).is_err() {
                // No memory: try another time.
                from.push(block, ROUNDS);
                return false;
            }
        }
        true
    }

    /// Returns a CPU's blocks to the inner allocator, on behalf of CPU `here`. The magazines stay.
    /// Waits a bounded time for a CPU that uses them, not for a holder of a [batch](Self::batch).
    pub(super) fn empty(&self, cpu: usize, here: usize) {
        // No caller waits for a cell, so the inner allocator may be called with the cell held.
        self.cpus.enter_within(cpu, PATIENCE, |pairs| self.empty_pairs(here, pairs));
    }

    pub(super) fn empty_pairs(&self, here: usize, pairs: &mut Pairs) {
        for (class, pair) in (0..CLASSES).map(Class).zip(pairs) {
            for magazine in [&mut pair.loaded, &mut pair.previous].into_iter().flatten() {
                self.give_back(here, class, magazine, usize::MAX);
            }
        }
    }

    /// The work of a visitor for the depot, when it holds no lock.
    pub(super) fn tidy(&self, cpu: usize, class: Class, surplus: Option<Magazine>) {
        if let Some(mut magazine) = surplus {
            self.give_back(cpu, class, &mut magazine, PORTION);
            self.depots[class.0].with(|depot| depot.back(magazine));
        }
    }

    /// Takes a range that the caches do not have from the inner allocator; if that has none, once
    /// more after everything cached has gone back.
    #[cold]
    pub(super) fn uncached(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        match self.inner.alloc(cpu, want) {
            Err(AllocError::Exhausted) => {
                self.flush_from(Some(cpu));
                self.inner.alloc(cpu, want)
            }
            outcome => outcome,
        }
    }

    /// Takes a block that the caches do not have, and if possible some more for the CPU's
    /// magazines.
    #[cold]
    pub(super) fn supplied(
        &self,
        cpu: usize,
        class: Class,
        want: &Want,
    ) -> Result<IovaRange, AllocError> {
        let mut fresh = None;
        loop {
            let supplied = self.cpus.enter_own(cpu, |pairs| {
                self.supply(cpu, class, want, &mut pairs[class.0], &mut fresh)
            });
            match supplied {
                Some(Ok(block)) => return Ok(block),
                Some(Err(NotSupplied::NeedsMagazine)) => match Magazine::new() {
                    Some(magazine) => fresh = Some(magazine),
                    None => return self.uncached(cpu, want),
                },
                Some(Err(NotSupplied::NotSo)) | None => return self.uncached(cpu, want),
            }
        }
    }

    /// The same, with the CPU's magazines held.
    pub(super) fn supply(
        &self,
        cpu: usize,
        class: Class,
        want: &Want,
        pair: &mut Pair,
        fresh: &mut Option<Magazine>,
    ) -> Result<IovaRange, NotSupplied> {
        if class.ahead() == 0 || want.align != class.pages() {
            return Err(NotSupplied::NotSo);
        }
        // A call that found the magazines in use comes here even if they have a block.
        let highest = want.limit.checked_sub(class.pages() - 1);
        if let Some(block) = highest.and_then(|highest| pair.pop(highest)) {
            return IovaRange::new(block, class.pages()).ok_or(NotSupplied::NotSo);
        }
        if pair.loaded.is_none() {
            pair.loaded = fresh.take().or_else(|| self.depots[class.0].with(Depot::empty));
        }
        let loaded = pair.loaded.as_mut().ok_or(NotSupplied::NeedsMagazine)?;
        let ahead = class.ahead().min(class.most().saturating_sub(loaded.rounds().len()));
        let run = self.inner.alloc_run(cpu, want, 1 + ahead as u64);
        let run = run.map_err(|_| NotSupplied::NotSo)?;
        debug_assert!(run.pages() <= (1 + ahead as u64) * class.pages(), "more than was asked for");
        // The highest is handed out, as for a single request; the next one lies on top.
        let handed = run.last() - (class.pages() - 1);
        let mut block = run.first();
        while block < handed {
            loaded.push(block, ROUNDS);
            block += class.pages();
        }
        IovaRange::new(handed, class.pages()).ok_or(NotSupplied::NotSo)
    }
}

/// Why no block came with more for the magazines.
pub(super) enum NotSupplied {
    /// There is no magazine to put them into.
    NeedsMagazine,
    /// The class, the request or the space does not allow it; a single block may still be
    /// available.
    NotSo,
}
