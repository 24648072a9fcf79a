//! The kernel as a unit of a domain: an invalidation is an unmapping.
//!
//! # The protocol
//! A mapping is *live*; when it is to be unmapped it becomes *dead*, before the domain clears its
//! shadow and takes a token. A command of the domain is only noted here. A thread that waits,
//! polls, or has just unmapped something then *works*: it takes the commands, looks for dead
//! mappings in their ranges, makes one system call for dead mappings that abut, and records which
//! commands are done. The domain's commands may be coarser than what was unmapped (a span,
//! everything), which is harmless: live mappings are left alone (K2).
//!
//! One thread at a time works, since otherwise they would queue in the kernel (VFIO has one lock
//! for a container); it holds no other lock meanwhile (K4).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shootdown_dma::addr::{IovaRange, Rights};
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};

use super::backend::{Backend, BackendError};
use super::claim::Claims;

/// Ranges that are noted one by one; with one more, all dead mappings are looked for.
const NOTES: usize = 256;

/// The commands that are not done yet.
#[derive(Debug)]
struct Notes {
    told: u64,
    ranges: Vec<IovaRange>,
    everything: bool,
}

/// What one call has mapped.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub pages: u64,
    /// The first page's memory.
    pub memory: u64,
    pub rights: Rights,
    /// The caller has brought the address.
    pub brought: bool,
}

/// The mappings, by the first page of each.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    pub live: BTreeMap<u64, Live>,
    /// The dead mappings; the value is the number of pages.
    pub dead: BTreeMap<u64, u64>,
    pub claims: Claims,
}

/// System calls so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Calls {
    /// Calls that have mapped.
    pub map: u64,
    /// Calls that have unmapped.
    pub unmap: u64,
    /// Mappings that these calls have unmapped.
    pub unmapped: u64,
    /// Calls that the kernel has refused.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counters([AtomicU64; 4]);

impl Counters {
    fn add(&self, index: usize, count: u64) {
        self.0[index].fetch_add(count, Ordering::Relaxed);
    }
}

/// The kernel as a unit; see the [module](self).
#[derive(Debug)]
pub struct Kernel<B> {
    pub backend: B,
    /// Bits of a byte address within a page.
    granule: u32,
    pub(super) mappings: Mutex<Mappings>,
    notes: Mutex<Notes>,
    /// As `Notes::told`, for reading without the lock.
    told: AtomicU64,
    done: AtomicU64,
    /// Held by the thread that works.
    worker: Mutex<()>,
    /// The kernel's last error, if it refused.
    failed: Mutex<Option<BackendError>>,
    calls: Counters,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B: Backend> Kernel<B> {
    pub fn new(backend: B, granule: u32) -> Self {
        let notes = Notes { told: 0, ranges: Vec::with_capacity(NOTES), everything: false };
        Self {
            backend,
            granule,
            mappings: Mutex::default(),
            notes: Mutex::new(notes),
            told: AtomicU64::new(0),
            done: AtomicU64::new(0),
            worker: Mutex::new(()),
            failed: Mutex::new(None),
            calls: Counters::default(),
        }
    }

    pub fn calls(&self) -> Calls {
        let [map, unmap, unmapped, refused] =
            [0, 1, 2, 3].map(|n: usize| self.calls.0[n].load(Ordering::Relaxed));
        Calls { map, unmap, unmapped, refused }
    }

    /// The kernel's error, if it refused when a thread last worked.
    pub fn failed(&self) -> Option<BackendError> {
        *lock(&self.failed)
    }

    /// Maps pages that belong to the caller.
    pub fn map(&self, first: u64, live: Live) -> Result<(), BackendError> {
        self.calls.add(0, 1);
        // Pages of spaces are below 2^48 bytes.
        let (at, bytes) = (first << self.granule, live.pages << self.granule);
        let outcome = self.backend.map(at, live.memory, bytes, live.rights);
        match outcome {
            Ok(()) => drop(lock(&self.mappings).live.insert(first, live)),
            Err(_) => self.calls.add(3, 1),
        }
        outcome
    }

    /// Gives up the mapping that begins there; `None` if none does. If it has another number of
    /// pages, or the caller has brought its address, nothing has changed.
    pub fn give_up(&self, first: u64, pages: u64) -> Option<Result<(), ()>> {
        let mut mappings = lock(&self.mappings);
        let mapped = *mappings.live.get(&first)?;
        if mapped.pages != pages || mapped.brought {
            return Some(Err(()));
        }
        mappings.live.remove(&first);
        mappings.dead.insert(first, pages);
        Some(Ok(()))
    }

    /// Gives up all mappings.
    pub fn give_up_all(&self) {
        let mut mappings = lock(&self.mappings);
        let Mappings { live, dead, .. } = &mut *mappings;
        dead.extend(core::mem::take(live).into_iter().map(|(first, live)| (first, live.pages)));
    }

    /// The first mapping that begins at this page or behind it.
    pub fn live_from(&self, page: u64) -> Option<(u64, Live)> {
        lock(&self.mappings).live.range(page..).next().map(|(first, live)| (*first, *live))
    }

    /// Whether a live mapping has this page.
    pub fn is_live(&self, page: u64) -> bool {
        let mappings = lock(&self.mappings);
        mappings
            .live
            .range(..=page)
            .next_back()
            .is_some_and(|(first, live)| page - first < live.pages)
    }

    /// How many mappings the kernel has: live, and dead.
    pub fn mapped(&self) -> (usize, usize) {
        let mappings = lock(&self.mappings);
        (mappings.live.len(), mappings.dead.len())
    }

    /// Whether a command was submitted that is not done.
    pub fn has_work(&self) -> bool {
        self.told.load(Ordering::Relaxed) != self.done.load(Ordering::Relaxed)
    }

    /// Executes the submitted commands, with no lock of others held. If another thread works, it
    /// waits for that thread, and does the rest.
    pub fn work(&self) -> Result<(), BackendError> {
        let _alone = lock(&self.worker);
        let (told, ranges, everything) = {
            let mut notes = lock(&self.notes);
            let everything = core::mem::take(&mut notes.everything);
            (notes.told, notes.ranges.drain(..).collect::<Vec<_>>(), everything)
        };
        let mut outcome = Ok(());
        for run in self.dead_runs(&ranges, everything) {
            if let Err(error) = self.unmap(run) {
                outcome = outcome.and(Err(error));
            }
        }
        *lock(&self.failed) = outcome.err();
        if outcome.is_err() {
            // K3: the mapping is dead, so it is found again when everything is looked at.
            lock(&self.notes).everything = true;
            return outcome;
        }
        // ORDERING: Release, with the Acquire of `completed`: a thread that reads it comes after
        // the kernel's calls have returned. Without it that thread may reuse a buffer too early.
        self.done.store(told, Ordering::Release);
        outcome
    }

    /// The first byte of the range, and its length in bytes.
    fn bytes_of(&self, range: IovaRange) -> (u64, u64) {
        // Pages of spaces are below 2^48 bytes.
        (range.first() << self.granule, range.pages() << self.granule)
    }

    /// The dead mappings in these ranges; those that abut are one run.
    fn dead_runs(&self, ranges: &[IovaRange], everything: bool) -> Vec<IovaRange> {
        let mappings = lock(&self.mappings);
        let wanted = |first: u64, pages: u64| {
            everything
                || IovaRange::new(first, pages)
                    .is_some_and(|r| ranges.iter().any(|w| w.overlaps(r)))
        };
        let mut runs: Vec<IovaRange> = Vec::new();
        let mut add = |first: u64, pages: u64| match runs.last_mut() {
            Some(last) if last.last() + 1 == first => {
                if let Some(both) = IovaRange::new(last.first(), last.pages() + pages) {
                    *last = both;
                }
            }
            _ => runs.extend(IovaRange::new(first, pages)),
        };
        for (first, pages) in &mappings.dead {
            if wanted(*first, *pages) {
                add(*first, *pages);
            }
        }
        runs
    }

    /// Makes the kernel unmap a run of dead mappings (K1, K3).
    fn unmap(&self, run: IovaRange) -> Result<(), BackendError> {
        let (at, bytes) = self.bytes_of(run);
        self.calls.add(1, 1);
        let mut outcome = self.backend.unmap(at, bytes);
        if outcome.is_ok_and(|unmapped| unmapped < bytes) {
            // The rest was unmapped by another call, or is still mapped: a second call tells which.
            self.calls.add(1, 1);
            outcome = match (outcome, self.backend.unmap(at, bytes)) {
                (_, Ok(0)) => Ok(bytes),
                (Ok(before), Ok(rest)) if before + rest >= bytes => Ok(bytes),
                (Ok(before), Ok(rest)) => Err(BackendError::Short { unmapped: before + rest }),
                (_, Err(error)) => Err(error),
                (Err(error), _) => Err(error),
            };
        }
        if let Err(error) = outcome {
            self.calls.add(3, 1);
            return Err(error);
        }
        let mut mappings = lock(&self.mappings);
        let gone: Vec<u64> =
            mappings.dead.range(run.first()..=run.last()).map(|(first, _)| *first).collect();
        gone.iter().for_each(|first| {
            mappings.dead.remove(first);
        });
        self.calls.add(2, gone.len() as u64);
        Ok(())
    }
}

// SAFETY: (1) `done` is a submission's number only after the kernel has unmapped all that was dead
// in its ranges since it was submitted (`Backend`, 1), and what the domain's table does not hold
// any more was dead before that. (2) The kernel handles the devices' own caches. (3) Numbers grow
// under a lock.
unsafe impl<B: Backend> Unit for Kernel<B> {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let mut notes = lock(&self.notes);
        for command in commands {
            match command {
                Command::Pages { range, .. } if notes.ranges.len() < NOTES => {
                    notes.ranges.push(*range);
                }
                _ => notes.everything = true,
            }
        }
        notes.told += 1;
        self.told.store(notes.told, Ordering::Relaxed);
        Ok(Ticket(notes.told))
    }

    fn granule(&self) -> u32 {
        self.granule
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.done.load(Ordering::Acquire)))
    }
}
