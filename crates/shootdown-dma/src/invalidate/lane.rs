//! One CPU's share of a domain's invalidations: what is pending, what is under way, what is done.
//!
//! # The protocol
//! A lane numbers its batches. Batch `closed + 1` is open: what is [noted](super::Engine::note)
//! goes into it. Submitting it to all units of the domain closes it, and its tickets are kept in
//! one of [`IN_FLIGHT`] slots until all of them are complete; then `done` moves up, one batch after
//! the other. A batch that a unit had no room for stays open, and grows instead: the further behind
//! a unit is, the more each of its commands covers.
//!
//! The lock is only ever tried. A caller that does not get it (another CPU with the same number, or
//! an interrupt on top of the holder) notes in another lane. A caller that wants the batch
//! *submitted* leaves a request in the lock word. The holder leaves the lock by a read-modify-write
//! of the same word, so it sees the request. No caller spins, so a holder that is interrupted
//! delays no one.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | L1 lock taken | Acquire | L2 | pending spans, and the clearing of the entries that they name, happen before their submission |
//! | L2 lock left | Release | L1 | |
//! | L3 request left in the lock word | Release | L1 | what the requester noted before is in the batch that is submitted for it |
//! | L4 batch closed | Release | L5 | its tickets are in their slot |
//! | L5 closed read | Acquire | L4 | |
//! | L6 done moved up, by compare-and-swap | AcqRel | L7 | what was submitted had taken effect |
//! | L7 done read | Acquire | L6 | a CPU that reads it may reuse what the batch covers; and the slot may be filled again |
//!
//! Tickets are read `Relaxed` between L5 and L6. They may belong to a later batch if the slot was
//! filled again meanwhile; but that happens after `done` moved on (L7), and then the
//! compare-and-swap of L6 fails.

use crate::fixed::{Fixed, NoMemory};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

use super::pending::Pending;

/// Batches of a lane that may be under way at a time. A unit completes them in microseconds; when
/// it is further behind, the open batch grows.
#[cfg(not(loom))]
pub(super) const IN_FLIGHT: usize = 8;
#[cfg(loom)]
pub(super) const IN_FLIGHT: usize = 2;

const LOCKED: u32 = 1;
const WANTED: u32 = 2;

/// A lane; see the [module](self). On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Lane {
    state: AtomicU32,
    closed: AtomicU64,
    done: AtomicU64,
    pub pending: Pending,
    /// [`IN_FLIGHT`] slots of `width` words: the batch of the domain's own lane that this one is
    /// part of (or 0), and a ticket for each unit (or 0).
    tickets: Fixed<AtomicU64>,
    width: usize,
}

impl Lane {
    pub fn new(units: usize) -> Result<Self, NoMemory> {
        let width = units + 1;
        Ok(Self {
            state: AtomicU32::new(0),
            closed: AtomicU64::new(0),
            done: AtomicU64::new(0),
            pending: Pending::new(),
            tickets: Fixed::new(IN_FLIGHT * width, |_| AtomicU64::new(0))?,
            width,
        })
    }

    /// Takes the lock, if it is free.
    pub fn try_lock(&self) -> bool {
        let before = self.state.fetch_or(LOCKED, Ordering::Acquire); // [L1]
        before & LOCKED == 0
    }

    /// Takes the lock, or leaves a request to its holder.
    pub fn try_lock_or_request(&self) -> bool {
        while !self.try_lock() {
            // [L3]
            if self.state.fetch_or(WANTED, Ordering::Release) & LOCKED != 0 {
                return false;
            }
        }
        true
    }

    /// Leaves the lock, and returns whether a request to submit the open batch was left.
    #[must_use]
    pub fn unlock(&self) -> bool {
        self.state.fetch_and(!LOCKED, Ordering::Release) & WANTED != 0 // [L2]
    }

    /// Leaves a request.
    pub fn request(&self) {
        self.state.fetch_or(WANTED, Ordering::Release); // [L3]
    }

    /// Called with the lock: takes over the request, if there is one.
    pub fn take_request(&self) -> bool {
        // ORDERING: Acquire pairs with L3. A request that `is_wanted` misses is found when the lock
        // is left.
        self.is_wanted() && self.state.fetch_and(!WANTED, Ordering::Acquire) & WANTED != 0
    }

    /// Whether there is a request. A hint.
    pub fn is_wanted(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WANTED != 0
    }

    /// The newest batch that is submitted.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Acquire) // [L5]
    }

    /// All batches up to this one are complete.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire) // [L7]
    }

    /// Whether fewer batches than this are under way. Without the lock it is a hint.
    pub fn has_room(&self, in_flight: usize) -> bool {
        // In this order: a batch that is done was closed before.
        let done = self.done();
        self.closed() - done < in_flight as u64
    }

    /// Whether no batch is under way. A hint.
    pub fn is_idle(&self) -> bool {
        self.has_room(1)
    }

    /// Called with the lock: the slot of the open batch, if one is free.
    pub fn open_slot(&self) -> Option<Slot<'_>> {
        self.has_room(IN_FLIGHT).then(|| self.slot(self.closed() + 1))
    }

    /// The tickets of a batch.
    pub fn slot(&self, batch: u64) -> Slot<'_> {
        let at = (batch % IN_FLIGHT as u64) as usize * self.width;
        Slot(&self.tickets[at..at + self.width])
    }

    /// Called with the lock: closes the open batch, which is submitted and has its tickets in its
    /// slot.
    pub fn close(&self) {
        let batch = self.closed.load(Ordering::Relaxed) + 1;
        self.pending.clear();
        self.closed.store(batch, Ordering::Release); // [L4]
    }

    /// Marks this batch as complete; all before it were.
    pub fn finish(&self, batch: u64) {
        // It fails if another CPU was first.
        let _ = self.done.compare_exchange(
            batch - 1,
            batch,
            Ordering::AcqRel, // [L6]
            Ordering::Relaxed,
        );
    }
}

/// The tickets of one batch.
pub(super) struct Slot<'a>(&'a [AtomicU64]);

impl Slot<'_> {
    /// Clears it: no unit has to complete anything.
    pub fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Makes it complete together with this batch of the domain's own lane.
    pub fn follow(&self, whole: u64) {
        self.clear();
        self.0[0].store(whole, Ordering::Relaxed);
    }

    /// The batch of the domain's own lane that it is part of; 0: none.
    pub fn followed(&self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Stores the unit's ticket.
    pub fn set(&self, unit: usize, ticket: u64) {
        self.0[1 + unit].store(ticket, Ordering::Relaxed);
    }

    /// The unit's ticket; 0: no command was submitted to it.
    pub fn get(&self, unit: usize) -> u64 {
        self.0[1 + unit].load(Ordering::Relaxed)
    }
}
