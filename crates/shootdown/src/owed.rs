//! What a space owes: entries that were cleared, while CPUs may still use what they cached of them.
//!
//! # The problem
//! Between the change of an entry and the end of its flush, the tables promise what the TLBs do not keep. That is so
//! for a moment in every [gather](crate::gather), for long in a [batch](crate::reclaim), and until somebody tries
//! again after a flush that failed. Who comes to such an entry, finds it cleared already and has nothing to flush
//! of its own, must not go on as if nobody could use the page any more.
//!
//! # The protocol
//! - **Open gathers** are counted: [`Debts::open`] before the entries change, or under the table lock with them;
//!   [`Debts::close`] when their flush is over. Who ends a gather while others are open flushes everything, since it can't
//!   know what those have cleared.
//! - **Owed** is the generation of the newest change whose flush was put off or has failed. It is counted, so that who
//!   looks at the generation on its way to the space catches up by itself. Those who have the space in use have to be told.
//! - **Paid** is the newest generation for which every CPU has answered. The space owes while *owed* is above it. Both only
//!   grow, and are 64 bits wide: one can't be mistaken for another.
//!
//! # Why a newer flush pays
//! A flush of generation *g* that returned has the answer of every CPU that it makes no access through entries older
//! than *g* (I1 of [`flush`](crate::flush)), whatever each of them had missed: an answer is a generation, and covers all
//! below. That is all that a payment for a change *o* < *g* could have asked, tables aside, and those have a word of their
//! own. Where hardware removes entries itself, by name, on every CPU, no CPU catches up with a generation: there only a
//! flush of the whole space pays, and any other leaves the space owing. (Then somebody pays twice; nobody never.)
//!
//! # Why anybody may pay
//! D1 (see [`switch`](crate::switch)) pairs the fence of a CPU that comes to the space with a fence after the count. The
//! payer has not counted; it has seen the entry cleared under the table lock, hence the count, and fences then. A CPU that
//! it does not see on its way has its own fence later, and sees what came before the payer's: the count.
//!
//! # When it escalates in vain
//! The count names a space, no range: two gathers of different ranges that overlap in time both flush all, although each
//! could have flushed its own. A gather also does when another one has opened since and cleared nothing yet. Keep gathers
//! short, and begin one when the lock is held.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | W1 a gather opens | Relaxed | the table lock | who finds the entry cleared finds the gather open |
//! | W2 a gather closes | Release | W3 | its flush, or the debt that it leaves, comes first |
//! | W3 is another gather open? | Acquire | W2 | |
//! | W4 *owed* raised | Relaxed | the table lock; W2 | who finds the entry cleared finds it owed, or the gather open |
//! | W5 *paid* raised | Release | W6 | every CPU has answered before |
//! | W6 *paid* read | Acquire | W5 | who relies on a payment relies on those answers |

use crate::ids::Generation;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What a space owes. On a line of its own, which switches do not read.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Debts {
    gathers: AtomicU32,
    owed: AtomicU64,
    paid: AtomicU64,
}

impl Debts {
    pub fn new() -> Self {
        Self { gathers: AtomicU32::new(0), owed: AtomicU64::new(0), paid: AtomicU64::new(0) }
    }

    /// A gather begins.
    pub fn open(&self) {
        // ORDERING: W1
        self.gathers.fetch_add(1, Ordering::Relaxed);
    }

    /// A gather is over: its flush has returned, or what it owes is [owed](Self::owe).
    pub fn close(&self) {
        // ORDERING: W2
        self.gathers.fetch_sub(1, Ordering::Release);
    }

    /// Are gathers open besides so many of the caller's own?
    pub fn others_are_open(&self, own: u32) -> bool {
        // ORDERING: W3
        self.gathers.load(Ordering::Acquire) > own
    }

    /// A change of this generation has been counted, and its flush is put off or has failed.
    pub fn owe(&self, generation: Generation) {
        // ORDERING: W4
        self.owed.fetch_max(generation.0, Ordering::Relaxed);
    }

    /// The generation that is owed, if one is.
    pub fn outstanding(&self) -> Option<Generation> {
        let owed = self.owed.load(Ordering::Relaxed); // ORDERING: W4
        // ORDERING: W6
        let paid = self.paid.load(Ordering::Acquire);
        (owed > paid).then_some(Generation(owed))
    }

    /// Has every CPU answered for all changes up to this generation?
    pub fn has_paid(&self, generation: Generation) -> bool {
        // ORDERING: W6
        self.paid.load(Ordering::Acquire) >= generation.0
    }

    /// Every CPU has answered for all changes up to this generation.
    pub fn pay(&self, generation: Generation) {
        // ORDERING: W5
        self.paid.fetch_max(generation.0, Ordering::Release);
    }
}
