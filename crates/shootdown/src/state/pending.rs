//! What is pending in a space: entries that were changed, while CPUs may still use what they cached
//! of them.
//!
//! # The problem
//! Between the change of an entry and the end of its flush, CPUs may use entries that the tables no
//! longer contain. This lasts for a moment in every flush and every [gather](crate::gather), until
//! all CPUs acknowledge with a [ticket](crate::flush::Ticket), for long in a
//! [batch](crate::reclaim), and, after a flush that failed, until another flush covers it. Code
//! that finds such an entry changed already, and has nothing to flush itself, must not go on as if
//! no CPU could use the page any more.
//!
//! # The protocol
//! - **Open gathers** are counted: [`PendingFlushes::open`] before the entries change, or under the
//!   table lock with them; [`PendingFlushes::close`] when their flush is over. A gather that ends
//!   while others are open flushes the whole space, since it can't know which entries those have
//!   cleared.
//! - **Counted changes** are all those of the space's generation. Each has a value that stands for
//!   it ([`Change`](crate::flush::Change)), in a flush, a ticket, a batch or a lazy unmapping.
//! - **Done** counts the changes whose value is gone, in any order. As long as it is less than the
//!   generation, a change is *in flight*.
//! - **Pending** is the generation of the newest change whose value was dropped before every CPU
//!   had acknowledged. The change is counted, so a CPU that looks at the generation on its way to
//!   the space catches up by itself. CPUs that use the space have to be notified.
//! - **Completed** is the newest generation for which, and for all before it, every CPU has
//!   acknowledged. A dropped change is pending while *pending* is above *completed*; no change at
//!   all is pending when *completed* is the space's generation.
//! - **Put off** is the newest generation whose value is kept on purpose, by a batch or a lazy
//!   unmapping. A flush that is done raises *completed* only where a change is pending or put off,
//!   or where *completed* was raised before. Changes that are merely under way on several CPUs end
//!   by *done*, and their flushes write one shared word each.
//!
//! All but the gathers only grow, and all are 64 bits wide. So no value comes twice, and the count
//! of gathers that are never closed can't wrap around to 0.
//!
//! # Why a newer flush covers older changes
//! A flush of generation *g* that returned has the acknowledgement of every CPU that it makes no
//! access through entries older than *g* (I1 of [`flush`](crate::flush)), whatever that CPU had
//! missed: an acknowledgement is a generation, and covers all below it. A flush of a change *o* <
//! *g* could have requested no more, except for freed tables, which have a word of their own. Where
//! hardware itself removes named entries on every CPU, no CPU catches up with a generation: there
//! only a flush of the whole space covers other changes. Any other flush completes its own change
//! alone, by *done*, or by *completed* if its generation is the next there. If it raises neither,
//! another CPU flushes that change a second time; no change stays without a flush.
//!
//! # Why any CPU may flush what is pending
//! D1 (see [`switch`](crate::switch)) pairs the fence of a CPU that comes to the space with a fence
//! after the count. A CPU that calls `complete_pending` has not counted the change; it has seen the
//! entry changed under the table lock, hence the count, and executes a fence after that. If it does
//! not see a CPU that is on its way to the space, that CPU executes its own fence later, and sees
//! what the caller saw before its fence: the count. So the caller requests the generation that it
//! reads, and does not wait for the CPU that counted the change.
//!
//! # When it escalates without need
//! The count of gathers belongs to a space and names no range: two gathers of different ranges that
//! overlap in time both flush the whole space, although each could have flushed its own range. A
//! gather also does so when another one has opened since and cleared nothing yet. Keep gathers
//! short, and begin one when the lock is held. Where hardware removes named entries, a gather that
//! ends while another change is in flight flushes the whole space too.
//!
//! A value that is forgotten (`mem::forget`) never counts as done. The next caller that relies on
//! the change flushes it, and raises *completed*. A gather that is forgotten counts as open for
//! good: every later gather flushes the whole space.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | W1 a gather opens | Relaxed | the table lock | a CPU that finds the entry cleared finds the gather open |
//! | W2 a gather closes | Release | W3 | its flush, or the pending flush that it leaves, comes first |
//! | W3 is another gather open? | Acquire | W2 | |
//! | W4 *pending* raised | Relaxed | W7 | it comes before the change is done; until then the change is in flight |
//! | W5 *completed* raised | Release | W6 | every CPU has acknowledged before |
//! | W6 *completed* read | Acquire | W5 | a CPU that relies on *completed* relies on those acknowledgements |
//! | W7 *done* raised | Release | W8 | every CPU has acknowledged, or *pending* was raised, before |
//! | W8 *done* read, then the generation | Acquire | W7; the table lock | a CPU that finds the entry changed reads a generation that includes it; all changes that were done were counted before it. In the other order, a change that was counted and done in between would hide one that is still in flight |
//! | W9 *put off* raised | Relaxed | the generation | a flush that covers the change was counted after it; a flush that does not see *put off* leaves the change to the batch or lazy unmapping that put it off |

use crate::base::ids::Generation;
use crate::base::sync::{AtomicU64, Ordering};

/// What is pending in a space, beside its generation. It has a line of its own, which switches do
/// not read.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct PendingFlushes {
    gathers: AtomicU64,
    done: AtomicU64,
    pending: AtomicU64,
    completed: AtomicU64,
    put_off: AtomicU64,
}

impl PendingFlushes {
    pub fn new() -> Self {
        Self {
            gathers: AtomicU64::new(0),
            done: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            put_off: AtomicU64::new(0),
        }
    }

    /// Records that the change of this generation stays in flight for long. A flush that covers all
    /// changes meanwhile must then raise *completed*.
    pub fn put_off(&self, generation: Generation) {
        // ORDERING: W9
        self.put_off.fetch_max(generation.0, Ordering::Relaxed);
    }

    /// Records that a gather begins.
    pub fn open(&self) {
        // ORDERING: W1
        self.gathers.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a gather is over: its flush has returned, or what it leaves is
    /// [pending](Self::mark_pending).
    pub fn close(&self) {
        // ORDERING: W2
        self.gathers.fetch_sub(1, Ordering::Release);
    }

    /// Are gathers open, not counting `own` gathers of the caller?
    pub fn others_are_open(&self, own: u64) -> bool {
        // ORDERING: W3
        self.gathers.load(Ordering::Acquire) > own
    }

    /// Records that `changes` changes, of which `newest` is the newest, were counted and are
    /// dropped without a flush.
    pub fn mark_pending(&self, newest: Generation, changes: u64) {
        // ORDERING: W4
        self.pending.fetch_max(newest.0, Ordering::Relaxed);
        // ORDERING: W7
        self.done.fetch_add(changes, Ordering::Release);
    }

    /// The generation up to which the space must be flushed, if it must be. `own` changes in flight
    /// are the caller's, which does not flush them by this. `counted` reads the space's generation.
    pub fn outstanding(
        &self,
        own: u64,
        counted: impl FnOnce() -> Generation,
    ) -> Option<Generation> {
        let done = self.done.load(Ordering::Acquire); // ORDERING: W8
        let counted = counted();
        let pending = self.pending.load(Ordering::Relaxed); // ORDERING: W4
        // ORDERING: W6
        let completed = self.completed.load(Ordering::Acquire);
        // *done* can't exceed the count; if it did, the difference would count as in flight.
        if counted.0.wrapping_sub(done) > own && counted.0 > completed {
            return Some(counted);
        }
        (pending > completed).then_some(Generation(pending))
    }

    /// Have all CPUs acknowledged all changes up to this generation?
    pub fn has_completed(&self, generation: Generation) -> bool {
        // ORDERING: W6
        self.completed.load(Ordering::Acquire) >= generation.0
    }

    /// Records that every CPU has acknowledged `changes` changes, of which `newest` is the newest.
    /// With `covers`, every CPU has acknowledged all changes before it too. Returns whether any of
    /// those may have been pending.
    pub fn complete(&self, newest: Generation, changes: u64, covers: bool) -> bool {
        // ORDERING: W7
        let done = self.done.fetch_add(changes, Ordering::Release) + changes;
        let completed = self.completed.load(Ordering::Relaxed);
        let lasting = self.put_off.load(Ordering::Relaxed); // ORDERING: W9
        let outstanding = self.pending.load(Ordering::Relaxed).max(lasting) > completed;
        if !outstanding && (done == newest.0 || completed == 0) {
            // By far the most frequent case: no other change is under way, or the flushes of those
            // changes raise *done* themselves. (A value that was forgotten never does. The first
            // flush that covers it raises `completed`, and from then on flushes do.)
            return false;
        }
        if covers {
            self.mark_complete(newest);
        } else if changes == 1 {
            // ORDERING: W5; the acknowledgements of the changes before came with the value that
            // this replaces
            let _ = self.completed.compare_exchange(
                newest.0.saturating_sub(1),
                newest.0,
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
        covers
    }

    /// Records that every CPU has acknowledged all changes up to this generation.
    pub fn mark_complete(&self, generation: Generation) {
        // ORDERING: W5
        self.completed.fetch_max(generation.0, Ordering::Release);
    }
}
