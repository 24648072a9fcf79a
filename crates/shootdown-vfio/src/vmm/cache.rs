//! The cache of an emulated IOMMU, which executes a domain's invalidations.
//!
//! # The protocol
//! A lock protects `vm_memory`'s `Iotlb`. Devices hold it shared while they use what they have
//! found. A command is noted, and executed at once if no device is reading. Otherwise it is
//! executed by a thread that asks what is complete, or by the next device, which executes noted
//! commands before it reads. So submitting never waits (a [`Unit`] must not), and readers can't
//! delay a command for ever.
//!
//! The order of locks is cache, then notes; no thread waits for anything with the notes held.

use core::fmt;
use core::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use shootdown_dma::addr::IovaRange;
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use vm_memory::GuestAddress;
use vm_memory::iommu::Iotlb;

/// Commands that are noted one by one; with one more, everything is invalidated.
const NOTES: usize = 64;

/// The default number of mappings in a cache: as many pages as an IOTLB of a large IOMMU has
/// entries (assumed), and some megabytes of memory at most.
const CAPACITY: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Tlb {
    pub iotlb: Iotlb,
    /// Mappings put in since it was empty.
    filled: usize,
}

#[derive(Debug)]
struct Notes {
    /// Submissions so far.
    told: u64,
    /// The ranges of commands that are not executed yet.
    ranges: Vec<IovaRange>,
    everything: bool,
}

/// The IOTLB of an emulated IOMMU: a [`Unit`] of the domain whose translations it keeps.
///
/// It is shared by the domain (as `Arc<Cache>`, which is a unit too) and the
/// [`Translator`](super::Translator)s of the devices.
pub struct Cache {
    tlb: RwLock<Tlb>,
    notes: Mutex<Notes>,
    /// As `Notes::told`, for reading without the lock.
    told: AtomicU64,
    /// Submissions that are executed.
    done: AtomicU64,
    capacity: usize,
    /// Bits of a byte address within a page, as commands count.
    granule: u32,
}

/// A cache that is held: nothing that is found in it is unmapped meanwhile, as far as the domain's
/// policy guarantees it.
pub struct Guard<'a>(RwLockReadGuard<'a, Tlb>);

impl Deref for Guard<'_> {
    type Target = Iotlb;

    fn deref(&self) -> &Iotlb {
        &self.0.iotlb
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iotlb.fmt(f)
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl Cache {
    /// Makes an empty cache for `capacity` mappings: with one more, it is emptied (V3). A single
    /// access that needs more is served nevertheless.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let notes = Notes { told: 0, ranges: Vec::with_capacity(NOTES), everything: false };
        Self {
            tlb: RwLock::default(),
            notes: Mutex::new(notes),
            told: AtomicU64::new(0),
            done: AtomicU64::new(0),
            capacity,
            granule: 12,
        }
    }

    /// The same for a domain whose tables have pages of 2^`granule` bytes (below 64).
    #[must_use]
    pub fn with_granule(self, granule: u32) -> Self {
        Self { granule, ..self }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it for reading. Noted commands are executed first.
    pub(super) fn read(&self) -> Guard<'_> {
        if self.told.load(Ordering::Relaxed) != self.done.load(Ordering::Relaxed) {
            drop(self.write());
        }
        Guard(self.tlb.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks it for changing, alone, with nothing noted.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Tlb> {
        let mut tlb = self.tlb.write().unwrap_or_else(PoisonError::into_inner);
        self.carry_out(&mut tlb);
        tlb
    }

    /// Empties it if there is no room for this many more mappings.
    pub(super) fn make_room(&self, tlb: &mut Tlb, mappings: usize) {
        if tlb.filled.saturating_add(mappings) > self.capacity {
            tlb.forget_everything();
        }
        tlb.filled += mappings;
    }

    /// Executes the noted commands (V1).
    fn carry_out(&self, tlb: &mut Tlb) {
        let mut notes = self.notes();
        if core::mem::take(&mut notes.everything) {
            notes.ranges.clear();
            tlb.forget_everything();
        }
        for range in notes.ranges.drain(..) {
            tlb.forget(range, self.granule);
            // One mapping may have been cut into two.
            self.make_room(tlb, 1);
        }
        // ORDERING: Release, with the Acquire of `completed`: a thread that reads it finds the
        // ranges invalidated. The lock orders the rest.
        self.done.store(notes.told, Ordering::Release);
    }

    /// The same, if no device is reading at the moment.
    fn try_carry_out(&self) {
        let tlb = match self.tlb.try_write() {
            Ok(tlb) => Some(tlb),
            // A walk of another thread has panicked: what is in the cache was put there whole.
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(mut tlb) = tlb {
            self.carry_out(&mut tlb);
        }
    }
}

impl Tlb {
    fn forget_everything(&mut self) {
        self.iotlb.invalidate_all();
        self.filled = 0;
    }

    fn forget(&mut self, range: IovaRange, granule: u32) {
        let page = 1u64.checked_shl(granule).unwrap_or(0);
        let first = range.first().checked_mul(page);
        let bytes = range.pages().checked_mul(page).filter(|bytes| *bytes != 0);
        let end = first.zip(bytes).and_then(|(first, bytes)| first.checked_add(bytes));
        match (first, bytes.map(usize::try_from), end) {
            (Some(first), Some(Ok(bytes)), Some(_)) => {
                self.iotlb.invalidate_mapping(GuestAddress(first), bytes);
            }
            // It goes past the end of what a cache can name.
            _ => self.forget_everything(),
        }
    }
}

// SAFETY: (1) `done` is a submission's number only after the lock was held alone since, and its
// ranges were taken out (V1); readers that found them there have finished by then. (2) There are no
// devices' caches behind it. (3) Numbers grow under a lock.
unsafe impl Unit for Cache {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let mut notes = self.notes();
        for command in commands {
            match command {
                Command::Pages { range, .. } | Command::Device { range: Some(range), .. }
                    if notes.ranges.len() < NOTES =>
                {
                    notes.ranges.push(*range);
                }
                _ => notes.everything = true,
            }
        }
        notes.told += 1;
        let ticket = notes.told;
        self.told.store(ticket, Ordering::Relaxed);
        drop(notes);
        self.try_carry_out();
        Ok(Ticket(ticket))
    }

    fn granule(&self) -> u32 {
        self.granule
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        if self.told.load(Ordering::Relaxed) != self.done.load(Ordering::Relaxed) {
            self.try_carry_out();
        }
        Ok(Ticket(self.done.load(Ordering::Acquire)))
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("told", &self.told)
            .field("done", &self.done)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
