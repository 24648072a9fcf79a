//! Who walks: so that no table is freed under the feet of software.
//!
//! # The problem
//! A CPU that walks a table, or that remembers where a leaf table is, must not find that page freed
//! and used for something else. Counting references in tables would put a line that all CPUs write
//! on the path of each mapping.
//!
//! # The protocol
//! Each CPU has an epoch slot, and posts there what it may touch: the few tables that it holds,
//! and, while it is *walking*, anything that can be reached from the root. Only a walk from the
//! root announces itself; whoever finds a page in a table that it holds posts nothing at all. That
//! is the hot path, and it costs no atomic operation.
//!
//! There are some places for leaf tables, two each for those of every so many-th 2 MiB (a ring of
//! buffers whose addresses follow from the memory's has its oldest and its newest buffer in
//! different ones; and the same memory has a table for each right, far apart and the same number of
//! times so many), and one for a table above.
//!
//! Whoever frees pages takes them out of the tree first (I1), then looks at all epoch slots: it
//! waits until each that was walking has walked to its end, and frees what nobody holds. A page
//! that is out of the tree can't come to be held by anyone who was not walking then (I2).
//!
//! # Invariants
//! - **I1** A page is out of the tree before epoch slots are looked at on its behalf.
//! - **I2** A page is held only by an epoch slot that found it while it was posted as walking.
//! - **I3** Each walk is posted with a number of its own: one that has ended is not taken for the
//!   next.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | S1 | swap of the post to *walking* | AcqRel | S3 | it follows S3: the walk does not see what was taken out before; or S3 follows it, and sees the walk |
//! | S2 | swap of the post to *not walking*, after what is held was stored | AcqRel | S3 | accesses of the walk are over, and what it holds is seen; and as a read-modify-write it carries S3's release on to the next S1 |
//! | S3 | read-modify-write of the post by whoever frees | AcqRel | S1, S2 | as above |
//! | S5 | store of what is held, load by whoever frees | Release, Acquire | each other | accesses to what was held in that place before are over |
//! | S4 | swap, store of `busy` | Acquire, Release | each other | the epoch slot's memory goes from one to the next |

use crate::addr::PhysAddr;
use crate::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell};

/// In a post: this epoch slot walks. The other bits number the walk. 0: it does not.
const WALKING: u64 = 1;

/// Places for leaf tables. Eight are 16 MiB of addresses; what is kept from being freed are so many
/// pages for each CPU.
const LEAVES: usize = if cfg!(loom) { 2 } else { 8 };

/// Places that are for the same tables. They are filled in turn.
const WAYS: usize = 2;

const SETS: usize = LEAVES / WAYS;

/// The place for a table that has no leaves of the smallest size.
const ABOVE: usize = LEAVES;

/// What a CPU remembers between its walks: of the tables that it holds, what they are.
struct Memo {
    /// Which part of all addresses each leaf table covers, by their order. No table has
    /// [`NOWHERE`].
    leaves: [u64; LEAVES],
    /// Which of the places for the same tables is filled next.
    turns: [u8; SETS],
    /// The first page that the table in [`ABOVE`] covers, or [`NOWHERE`]; and its level.
    above: (u64, u32),
    /// Walks so far.
    walks: u64,
}

/// No page's number.
const NOWHERE: u64 = u64::MAX;

impl Memo {
    /// The place of a leaf table, if it has one.
    #[inline]
    fn place(&self, part: u64) -> Option<usize> {
        let first = part as usize % SETS * WAYS;
        (first..first + WAYS).find(|place| self.leaves[*place] == part)
    }

    /// The place that it is to have.
    fn place_for(&mut self, part: u64) -> usize {
        if let Some(place) = self.place(part).or_else(|| self.vacant(part)) {
            return place;
        }
        let set = part as usize % SETS;
        let way = self.turns[set];
        self.turns[set] = (way + 1) % WAYS as u8;
        set * WAYS + usize::from(way)
    }

    fn vacant(&self, part: u64) -> Option<usize> {
        let first = part as usize % SETS * WAYS;
        (first..first + WAYS).find(|place| self.leaves[*place] == NOWHERE)
    }
}

/// One CPU's.
#[repr(align(128))]
pub(super) struct EpochSlot {
    busy: AtomicBool,
    post: AtomicU64,
    memo: UnsafeCell<Memo>,
    /// The tables that are held: their addresses, or 0.
    held: [AtomicU64; LEAVES + 1],
    /// Whoever frees, under its lock: the walk that it waits for; 0: none.
    awaited: AtomicU64,
}

// SAFETY: the memo belongs to whoever sits here (`busy`).
unsafe impl Sync for EpochSlot {}

impl EpochSlot {
    pub fn new() -> Self {
        let (leaves, turns) = ([NOWHERE; LEAVES], [0; SETS]);
        let memo = Memo { leaves, turns, above: (NOWHERE, 0), walks: 0 };
        Self {
            busy: AtomicBool::new(false),
            post: AtomicU64::new(0),
            memo: UnsafeCell::new(memo),
            held: core::array::from_fn(|_| AtomicU64::new(0)),
            awaited: AtomicU64::new(0),
        }
    }

    /// Takes the epoch slot, if nobody has it.
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

    /// The leaf table that covers `page`, if it is held. `bits`: of the page's number, those within
    /// such a table.
    ///
    /// # Safety
    /// The caller has the epoch slot.
    #[inline]
    pub unsafe fn leaf(&self, page: u64, bits: u32) -> Option<PhysAddr> {
        // SAFETY: nobody else enters an epoch slot that is taken.
        let place = self.memo.with(|memo| unsafe { (*memo).place(page >> bits) })?;
        // Only who has the epoch slot writes it.
        Some(PhysAddr(self.held[place].load(Ordering::Relaxed)))
    }

    /// The first page that the other table covers that is held, its level, and where it is. No
    /// page's number: there is none.
    ///
    /// # Safety
    /// The caller has the epoch slot.
    #[inline]
    pub unsafe fn above(&self) -> (u64, u32, PhysAddr) {
        // SAFETY: nobody else enters an epoch slot that is taken.
        let (first, level) = self.memo.with(|memo| unsafe { (*memo).above });
        (first, level, PhysAddr(self.held[ABOVE].load(Ordering::Relaxed)))
    }

    /// Forgets what covers `page` at this level. (It is held until something else is.)
    ///
    /// # Safety
    /// The caller has the epoch slot.
    pub unsafe fn forget(&self, page: u64, level: u32, bits: u32) {
        self.memo.with_mut(|memo| {
            // SAFETY: nobody else enters an epoch slot that is taken.
            let memo = unsafe { &mut *memo };
            if level == 0 {
                if let Some(place) = memo.place(page >> bits) {
                    memo.leaves[place] = NOWHERE;
                }
            } else {
                memo.above.0 = NOWHERE;
            }
        });
    }

    /// Walks so far.
    ///
    /// # Safety
    /// The caller has the epoch slot.
    pub unsafe fn walks(&self) -> u64 {
        // SAFETY: nobody else enters an epoch slot that is taken.
        self.memo.with(|memo| unsafe { (*memo).walks })
    }

    /// Posts that a walk begins.
    ///
    /// # Safety
    /// The caller has the epoch slot.
    pub unsafe fn begin(&self) {
        let walk = self.memo.with_mut(|memo| {
            // SAFETY: nobody else enters an epoch slot that is taken.
            let walks = unsafe { &mut (*memo).walks };
            *walks += 1;
            *walks
        });
        // ORDERING [S1].
        self.post.swap(walk << 1 | WALKING, Ordering::AcqRel);
    }

    /// Posts that the walk for `page` is over, and that it has come to this table at this level: it
    /// is held instead of what was in its place. `bits`: of a page's number, those within a
    /// leaf table, and within a table at this level.
    ///
    /// # Safety
    /// The caller has the epoch slot, and no use of what was in that place, nor of a leaf table
    /// that covers the page.
    pub unsafe fn end_at(&self, page: u64, bits: u32, (table, level, at): (PhysAddr, u32, u32)) {
        let part = page >> bits;
        let place = self.memo.with_mut(|memo| {
            // SAFETY: nobody else enters an epoch slot that is taken.
            let memo = unsafe { &mut *memo };
            if level == 0 {
                let place = memo.place_for(part);
                memo.leaves[place] = part;
                return place;
            }
            memo.above = (page >> at << at, level);
            if let Some(place) = memo.place(part) {
                // That one is out of the tree.
                memo.leaves[place] = NOWHERE;
                self.keep(place, PhysAddr(0));
            }
            ABOVE
        });
        self.keep(place, table);
        self.end();
    }

    fn keep(&self, place: usize, table: PhysAddr) {
        // ORDERING [S5].
        self.held[place].store(table.0, Ordering::Release);
    }

    /// Forgets everything, and holds nothing.
    ///
    /// # Safety
    /// The caller has the epoch slot, and no use of what is held.
    pub unsafe fn let_go(&self) {
        self.memo.with_mut(|memo| {
            // SAFETY: nobody else enters an epoch slot that is taken.
            let memo = unsafe { &mut *memo };
            (memo.leaves, memo.above.0) = ([NOWHERE; LEAVES], NOWHERE);
        });
        (0..=ABOVE).for_each(|place| self.keep(place, PhysAddr(0)));
    }

    /// Posts that the walk is over. What is held stays so.
    pub fn end(&self) {
        // ORDERING [S2].
        self.post.swap(0, Ordering::AcqRel);
    }

    /// Asks what is posted.
    fn ask(&self) -> u64 {
        // ORDERING [S3]: a read-modify-write, though nothing is changed.
        self.post.fetch_or(0, Ordering::AcqRel)
    }

    /// Begins to wait until whoever walks here now has walked to its end.
    pub fn await_walk(&self) {
        let post = self.ask();
        self.awaited.store(if post & WALKING != 0 { post } else { 0 }, Ordering::Relaxed);
    }

    /// Has it?
    pub fn has_walked(&self) -> bool {
        let awaited = self.awaited.load(Ordering::Relaxed);
        if awaited != 0 && self.ask() == awaited {
            return false;
        }
        self.awaited.store(0, Ordering::Relaxed);
        true
    }

    /// Is a page of this table, which has so many bytes and is aligned to them, held here? To be
    /// asked after the walks that went on have been waited for.
    pub fn holds(&self, table: PhysAddr, bytes: u64) -> bool {
        // ORDERING [S5].
        let mut held = self.held.iter().map(|held| held.load(Ordering::Acquire));
        held.any(|held| held & !(bytes - 1) == table.0)
    }
}
