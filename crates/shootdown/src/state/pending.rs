//! What is pending in a space: entries that were changed, while CPUs may still use what they cached
//! of them.
//!
//! # The problem
//! Between the change of an entry and the end of its flush, the tables promise what the TLBs do not
//! keep. That is so for a moment in every flush and every [gather](crate::gather), for as long as
//! it takes with a [ticket](crate::flush::Ticket), for long in a [batch](crate::reclaim), and until
//! somebody tries again after a flush that failed. Who comes to such an entry, finds it changed
//! already and has nothing to flush of its own, must not go on as if nobody could use the page any
//! more.
//!
//! # The protocol
//! - **Open gathers** are counted: [`PendingFlushes::open`] before the entries change, or under the
//!   table lock with them; [`PendingFlushes::close`] when their flush is over. Who ends a gather
//!   while others are open flushes everything, since it can't know what those have cleared.
//! - **Counted changes** are those of the space's generation, all of them. Each has a value that
//!   stands for it ([`Change`](crate::flush::Change)), in a flush, a ticket, a batch or a lazy
//!   unmapping.
//! - **Done** counts the changes whose value is gone, in whatever order. As long as it is less than
//!   the generation, a change is *in flight*.
//! - **Pending** is the generation of the newest change whose value was dropped before every CPU
//!   had acknowledged. It is counted, so that who looks at the generation on its way to the space
//!   catches up by itself. Those who have the space in use have to be notified.
//! - **Completed** is the newest generation for which, and for all before, every CPU has
//!   acknowledged. A dropped change is pending while *pending* is above it; nothing at all is
//!   pending when it is the space's generation.
//!
//! - **Put off** is the newest generation whose value is kept on purpose, by a batch or a lazy
//!   unmapping. A flush that is done raises *completed* only where something is pending or put off,
//!   or where *completed* was raised before: changes that are merely under way on several CPUs end
//!   by *done*, and their flushes write one shared word each.
//!
//! All but the gathers only grow, and all are 64 bits wide: one can't be mistaken for another, and
//! gathers that are forgotten can't be so many that none seems open.
//!
//! # Why a newer flush covers older changes
//! A flush of generation *g* that returned has the acknowledgement of every CPU that it makes no
//! access through entries older than *g* (I1 of [`flush`](crate::flush)), whatever each of them had
//! missed: an acknowledgement is a generation, and covers all below. A flush of a change
//! *o* < *g* could have asked for no more, tables aside, and those have a word of their own. Where
//! hardware removes entries itself, by name, on every CPU, no CPU catches up with a generation:
//! there only a flush of the whole space covers other changes; any other flush completes its own
//! change alone, by *done*, or by *completed* if its generation is the next there. If it raises
//! neither, somebody flushes that change a second time; no change stays without a flush.
//!
//! # Why any CPU may flush what is pending
//! D1 (see [`switch`](crate::switch)) pairs the fence of a CPU that comes to the space with a fence
//! after the count. A CPU that calls `complete_pending` has not counted; it has seen the entry
//! changed under the table lock, hence the count, and fences then. A CPU that it does not see on
//! its way has its own fence later, and sees what came before that of the caller: the count. So the
//! caller asks for the generation that it reads, and does not wait for whoever counted the change.
//!
//! # When it escalates without need
//! The count of gathers names a space, no range: two gathers of different ranges that overlap in
//! time both flush all, although each could have flushed its own. A gather also does when another
//! one has opened since and cleared nothing yet. Keep gathers short, and begin one when the lock is
//! held. Where hardware removes entries by name, a gather that ends while another change is in
//! flight flushes the whole space too.
//!
//! A value that is forgotten (`mem::forget`) is never done. The next caller that relies on the
//! change flushes it, and *completed* then says so. A gather that is forgotten counts as open for
//! good: every later one flushes all.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | W1 a gather opens | Relaxed | the table lock | who finds the entry cleared finds the gather open |
//! | W2 a gather closes | Release | W3 | its flush, or the pending flush that it leaves, comes first |
//! | W3 is another gather open? | Acquire | W2 | |
//! | W4 *pending* raised | Relaxed | W7 | it comes before the change is done; until then the change is in flight |
//! | W5 *completed* raised | Release | W6 | every CPU has acknowledged before |
//! | W6 *completed* read | Acquire | W5 | who relies on *completed* relies on those acknowledgements |
//! | W7 *done* raised | Release | W8 | every CPU has acknowledged, or *pending* was raised, before |
//! | W8 *done* read, then the generation | Acquire | W7; the table lock | who finds the entry changed reads a generation that includes it; all that were done were counted before it. The other order takes one that was counted and done in between for one that was not |
//! | W9 *put off* raised | Relaxed | the generation | a flush that covers the change was counted after it; one that does not see it leaves it to whoever put it off |

use crate::base::ids::Generation;
use crate::base::sync::{AtomicU64, Ordering};

/// What is pending in a space, beside its generation. On a line of its own, which switches do not
/// read.
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

    /// The change of this generation stays in flight for long, and whoever flushes all meanwhile is
    /// to say so.
    pub fn put_off(&self, generation: Generation) {
        // ORDERING: W9
        self.put_off.fetch_max(generation.0, Ordering::Relaxed);
    }

    /// A gather begins.
    pub fn open(&self) {
        // ORDERING: W1
        self.gathers.fetch_add(1, Ordering::Relaxed);
    }

    /// A gather is over: its flush has returned, or what it leaves is
    /// [pending](Self::mark_pending).
    pub fn close(&self) {
        // ORDERING: W2
        self.gathers.fetch_sub(1, Ordering::Release);
    }

    /// Are gathers open besides so many of the caller's own?
    pub fn others_are_open(&self, own: u64) -> bool {
        // ORDERING: W3
        self.gathers.load(Ordering::Acquire) > own
    }

    /// So many changes, of which this is the newest, were counted, and whoever should have flushed
    /// them does not.
    pub fn mark_pending(&self, newest: Generation, changes: u64) {
        // ORDERING: W4
        self.pending.fetch_max(newest.0, Ordering::Relaxed);
        // ORDERING: W7
        self.done.fetch_add(changes, Ordering::Release);
    }

    /// The generation up to which must be flushed, if any must. Of the changes in flight, `own` are
    /// the caller's, which it does not flush by this. `counted` reads the space's generation.
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
        // More done than counted can't be; it would be taken for pending.
        if counted.0.wrapping_sub(done) > own && counted.0 > completed {
            return Some(counted);
        }
        (pending > completed).then_some(Generation(pending))
    }

    /// Has every CPU acknowledged for all changes up to this generation?
    pub fn has_completed(&self, generation: Generation) -> bool {
        // ORDERING: W6
        self.completed.load(Ordering::Acquire) >= generation.0
    }

    /// Every CPU has acknowledged for so many changes, of which this is the newest; where it
    /// `covers` them, for all that were counted before it too. Says whether any of those may
    /// have been pending.
    pub fn complete(&self, newest: Generation, changes: u64, covers: bool) -> bool {
        // ORDERING: W7
        let done = self.done.fetch_add(changes, Ordering::Release) + changes;
        let completed = self.completed.load(Ordering::Relaxed);
        let lasting = self.put_off.load(Ordering::Relaxed); // ORDERING: W9
        let outstanding = self.pending.load(Ordering::Relaxed).max(lasting) > completed;
        if !outstanding && (done == newest.0 || completed == 0) {
            // By far the most frequent: nothing else is under way, or those who are will say so
            // themselves. (A value that was forgotten never will: whoever flushes it first raises
            // `completed`, and from then on flushes do.)
            return false;
        }
        if covers {
            self.mark_complete(newest);
        } else if changes == 1 {
            // ORDERING: W5; the acknowledgements for those before came with the value that is
            // replaced
            let _ = self.completed.compare_exchange(
                newest.0.saturating_sub(1),
                newest.0,
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
        covers
    }

    /// Every CPU has acknowledged for all changes up to this generation.
    pub fn mark_complete(&self, generation: Generation) {
        // ORDERING: W5
        self.completed.fetch_max(generation.0, Ordering::Release);
    }
}
