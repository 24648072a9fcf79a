//! Who walks: so that no table is freed under the feet of software.
//!
//! # The problem
//! A CPU that walks a table, or that remembers where a leaf table is, must not find that page freed and used for something
//! else. Counting references in tables would put a line that all CPUs write on the path of each mapping.
//!
//! # The protocol
//! Each CPU has a seat, and posts there what it may touch: *walking* (anything that can be reached from the root), or
//! one page that it holds. Only a walk from the root announces itself; whoever finds a page in the table that it holds
//! posts nothing at all. That is the hot path, and it costs no atomic operation.
//!
//! Whoever frees pages takes them out of the tree first (I1), then looks at all seats: it waits until each that was walking
//! has walked to its end, and frees what nobody holds. A page that is out of the tree can't come to be held by anyone who was not
//! walking then (I2).
//!
//! # Invariants
//! - **I1** A page is out of the tree before seats are looked at on its behalf.
//! - **I2** A page is held only by a seat that found it while it was posted as walking.
//! - **I3** Each walk is posted with a number of its own: one that has ended is not taken for the next.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | S1 | swap of the post to *walking* | AcqRel | S3 | it follows S3: the walk does not see what was taken out before; or S3 follows it, and sees the walk |
//! | S2 | swap of the post to what is held | AcqRel | S3 | accesses of the walk are over; and as a read-modify-write it carries S3's release on to the next S1 |
//! | S3 | read-modify-write of the post by whoever frees | AcqRel | S1, S2 | as above |
//! | S4 | swap, store of `busy` | Acquire, Release | each other | the seat's memory goes from one to the next |

use crate::addr::PhysAddr;
use crate::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell};

/// In a post: this seat walks. The other bits number the walk. Without it they are the address of the page that is held, or
/// 0.
const WALKING: u64 = 1;

/// What a CPU remembers between its walks.
#[derive(Clone, Copy)]
pub(super) struct Memo {
    /// The first page that the table covers. No page has this number ([`NOWHERE`]) if nothing is remembered.
    pub first: u64,
    /// The level of the table.
    pub level: u32,
    /// Where it is.
    pub table: PhysAddr,
    /// Walks so far.
    pub walks: u64,
}

/// No page's number.
pub(super) const NOWHERE: u64 = u64::MAX;

/// One CPU's.
#[repr(align(128))]
pub(super) struct Seat {
    busy: AtomicBool,
    post: AtomicU64,
    memo: UnsafeCell<Memo>,
    /// Whoever frees, under its lock: the walk that it waits for; 0: none.
    awaited: AtomicU64,
}

// SAFETY: the memo belongs to whoever sits here (`busy`).
unsafe impl Sync for Seat {}

impl Seat {
    pub fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            post: AtomicU64::new(0),
            memo: UnsafeCell::new(Memo { first: NOWHERE, level: 0, table: PhysAddr(0), walks: 0 }),
            awaited: AtomicU64::new(0),
        }
    }

    /// Takes the seat, if nobody has it.
    #[inline]
    pub fn take(&self) -> bool {
        // ORDERING [S4]: Acquire, with the Release of `leave`.
        !self.busy.swap(true, Ordering::Acquire)
    }

    /// Leaves it to others.
    #[inline]
    pub fn leave(&self) {
        // ORDERING [S4]: Release, with the Acquire of `take`.
        self.busy.store(false, Ordering::Release);
    }

    /// What the last one remembered.
    ///
    /// # Safety
    /// The caller has the seat.
    #[inline]
    pub unsafe fn recall(&self) -> Memo {
        // SAFETY: nobody else enters a seat that is taken.
        self.memo.with(|memo| unsafe { *memo })
    }

    /// What the next one is to remember.
    ///
    /// # Safety
    /// The caller has the seat.
    #[inline]
    pub unsafe fn remember(&self, memo: Memo) {
        // SAFETY: nobody else enters a seat that is taken.
        self.memo.with_mut(|at| unsafe { *at = memo });
    }

    /// Posts that a walk begins, and that nothing else is held.
    pub fn begin(&self, walk: u64) {
        // ORDERING [S1].
        self.post.swap(walk << 1 | WALKING, order!(WalkUnordered, AcqRel));
    }

    /// Posts that the walk is over, and that `page` (or nothing, 0) is held.
    pub fn end(&self, page: PhysAddr) {
        // ORDERING [S2].
        self.post.swap(page.0, Ordering::AcqRel);
    }

    /// Asks what is posted.
    fn ask(&self) -> u64 {
        // ORDERING [S3]: a read-modify-write, though nothing is changed.
        self.post.fetch_or(0, order!(SeatsReadRelaxed, AcqRel))
    }

    /// Begins to wait until whoever walks here now has walked to its end.
    pub fn await_walk(&self) {
        let post = self.ask();
        self.awaited.store(if post & WALKING != 0 { post } else { 0 }, Ordering::Relaxed);
    }

    /// Has it?
    pub fn has_walked(&self) -> bool {
        let awaited = self.awaited.load(Ordering::Relaxed);
        if awaited != 0 && self.ask() == awaited && !without!(WalkNotAwaited) {
            return false;
        }
        self.awaited.store(0, Ordering::Relaxed);
        true
    }

    /// Is a page of this table, which has so many bytes and is aligned to them, held here? (A walk that goes on may be taken for
    /// it by chance: then it is asked once more.)
    pub fn holds(&self, table: PhysAddr, bytes: u64) -> bool {
        let within = if without!(PageHeldFreed) { 0 } else { bytes - 1 };
        self.ask() & !within == table.0 && !without!(HeldTableFreed)
    }
}
