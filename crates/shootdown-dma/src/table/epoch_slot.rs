//! Epoch slots: they keep a table from being freed while software may use it.
//!
//! # The problem
//! A CPU that walks a table, or that remembers where a leaf table is, must not find that page freed
//! and used for something else. Counting references in tables would put a line that all CPUs write
//! on the path of each mapping.
//!
//! # The protocol
//! Each CPU has an epoch slot, and posts there what it may access: the few tables that it holds,
//! and, while it is *walking*, anything that can be reached from the root. Only a walk from the
//! root is posted; a CPU that finds a page in a table that it holds posts nothing. That is the hot
//! path, and it costs no atomic operation.
//!
//! There are some places for leaf tables. The tables of 2 MiB each are distributed over sets of two
//! places in turn. (A ring of buffers with identity addresses has its oldest and its newest buffer
//! in different sets. The same memory has a table for each right; these lie far apart, by a
//! multiple of the number of sets, and so share a set.) One more place is for a table above.
//!
//! A CPU that frees pages takes them out of the tree first (I1), then reads all epoch slots: it
//! waits until each walk that was posted has ended, and frees the pages that no slot holds. A page
//! that is out of the tree can't come to be held by a slot that was not walking then (I2).
//!
//! # Invariants
//! - **I1** A page is out of the tree before epoch slots are read on its behalf.
//! - **I2** A page is held only by an epoch slot that found it while it was posted as walking.
//! - **I3** Each walk is posted with a number of its own: one that has ended is not taken for the
//!   next.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | S1 | swap of the post to *walking* | AcqRel | S3 | it follows S3: the walk does not see what was taken out before; or S3 follows it, and sees the walk |
//! | S2 | swap of the post to *not walking*, after what is held was stored | AcqRel | S3 | accesses of the walk are over, and what it holds is seen; and as a read-modify-write it carries S3's release on to the next S1 |
//! | S3 | read-modify-write of the post by the CPU that frees | AcqRel | S1, S2 | as above |
//! | S5 | store of what is held, load by the CPU that frees | Release, Acquire | each other | accesses to what was held in that place before are over |
//! | S4 | swap, store of `busy` | Acquire, Release | each other | the epoch slot's memory goes from one CPU to the next |

use crate::addr::PhysAddr;
use crate::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell};

/// In a post: this epoch slot walks. The other bits number the walk. 0: it does not.
const WALKING: u64 = 1;

/// Places for leaf tables. Eight are 16 MiB of addresses; each CPU keeps as many pages from being
/// freed.
const LEAVES: usize = if cfg!(loom) { 2 } else { 8 };

/// Places of a set, which are for the same tables. They are filled in turn.
const WAYS: usize = 2;

const SETS: usize = LEAVES / WAYS;

/// The place for a table that has no leaves of the smallest size.
const ABOVE: usize = LEAVES;

/// What a CPU remembers about the tables that it holds.
struct Memo {
    /// For each place, the part of all addresses that its leaf table covers. No table has
    /// [`NOWHERE`].
    leaves: [u64; LEAVES],
    /// For each set, the place that is filled next.
    turns: [u8; SETS],
    /// The first page that the table in [`ABOVE`] covers, or [`NOWHERE`]; and its level.
    above: (u64, u32),
    /// Walks so far.
    walks: u64,
}

/// The number of no page.
const NOWHERE: u64 = u64::MAX;

impl Memo {
    /// The place of a leaf table, if it has one.
    #[inline]
    fn place(&self, part: u64) -> Option<usize> {
        let first = part as usize % SETS * WAYS;
        (first..first + WAYS).find(|place| self.leaves[*place] == part)
    }

    /// The place that the table gets.
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

/// One CPU's epoch slot.
#[repr(align(128))]
pub(super) struct EpochSlot {
    busy: AtomicBool,
    post: AtomicU64,
    memo: UnsafeCell<Memo>,
    /// The tables that are held: their addresses, or 0.
    held: [AtomicU64; LEAVES + 1],
    /// Written by the CPU that frees, under its lock: the walk that it waits for; 0: none.
    awaited: AtomicU64,
}

// SAFETY: the memo belongs to the holder of the slot (`busy`).
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

    /// Takes the epoch slot, if it is free.
    #[inline]
    pub fn take(&self) -> bool {
        // ORDERING [S4]: Acquire, with the Release of `leave`.
        !self.busy.swap(true, Ordering::Acquire)
    }

    /// Makes it free.
    #[inline]
    pub fn leave(&self) {
        // ORDERING [S4]: Release, with the Acquire of `take`.
        self.busy.store(false, Ordering::Release);
    }

    /// The leaf table that covers `page`, if it is held. `bits`: the number of bits of a page
    /// number within such a table.
    ///
    /// # Safety
    /// The caller has the epoch slot.
    #[inline]
    pub unsafe fn leaf(&self, page: u64, bits: u32) -> Option<PhysAddr> {
        // SAFETY: no other CPU enters an epoch slot that is taken.
        let place = self.memo.with(|memo| unsafe { (*memo).place(page >> bits) })?;
        // Only the holder of the epoch slot writes it.
        Some(PhysAddr(self.held[place].load(Ordering::Relaxed)))
    }

    /// The first page that the held table above covers, its level, and its address. [`NOWHERE`]:
    /// there is none.
    ///
    /// # Safety
    /// The caller has the epoch slot.
    #[inline]
    pub unsafe fn above(&self) -> (u64, u32, PhysAddr) {
        // SAFETY: no other CPU enters an epoch slot that is taken.
        let (first, level) = self.memo.with(|memo| unsafe { (*memo).above });
        (first, level, PhysAddr(self.held[ABOVE].load(Ordering::Relaxed)))
    }

    /// Drops the memory of the table that covers `page` at this level. (It is held until another
    /// one is.)
    ///
    /// # Safety
    /// The caller has the epoch slot.
    pub unsafe fn forget(&self, page: u64, level: u32, bits: u32) {
        self.memo.with_mut(|memo| {
            // SAFETY: no other CPU enters an epoch slot that is taken.
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
        // SAFETY: no other CPU enters an epoch slot that is taken.
        self.memo.with(|memo| unsafe { (*memo).walks })
    }

    /// Posts that a walk begins.
    ///
    /// # Safety
    /// The caller has the epoch slot.
    pub unsafe fn begin(&self) {
        let walk = self.memo.with_mut(|memo| {
            // SAFETY: no other CPU enters an epoch slot that is taken.
            let walks = unsafe { &mut (*memo).walks };
            *walks += 1;
            *walks
        });
        // ORDERING [S1].
        self.post.swap(walk << 1 | WALKING, Ordering::AcqRel);
    }

    /// Posts that the walk for `page` is over, and that it has reached this table at this level:
    /// the table is held instead of the one in its place. `bits`: the number of bits of a page
    /// number within a leaf table, and within a table at this level.
    ///
    /// # Safety
    /// The caller has the epoch slot, and uses neither the table that was in that place, nor a leaf
    /// table that covers the page.
    pub unsafe fn end_at(&self, page: u64, bits: u32, (table, level, at): (PhysAddr, u32, u32)) {
        let part = page >> bits;
        let place = self.memo.with_mut(|memo| {
            // SAFETY: no other CPU enters an epoch slot that is taken.
            let memo = unsafe { &mut *memo };
            if level == 0 {
                let place = memo.place_for(part);
                memo.leaves[place] = part;
                return place;
            }
            memo.above = (page >> at << at, level);
            if let Some(place) = memo.place(part) {
                // The table in that place is out of the tree.
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

    /// Drops the memory of all tables, and holds none.
    ///
    /// # Safety
    /// The caller has the epoch slot, and uses none of the held tables.
    pub unsafe fn let_go(&self) {
        self.memo.with_mut(|memo| {
            // SAFETY: no other CPU enters an epoch slot that is taken.
            let memo = unsafe { &mut *memo };
            (memo.leaves, memo.above.0) = ([NOWHERE; LEAVES], NOWHERE);
        });
        (0..=ABOVE).for_each(|place| self.keep(place, PhysAddr(0)));
    }

    /// Posts that the walk is over. The held tables stay held.
    pub fn end(&self) {
        // ORDERING [S2].
        self.post.swap(0, Ordering::AcqRel);
    }

    /// Reads the post.
    fn ask(&self) -> u64 {
        // ORDERING [S3]: a read-modify-write, though nothing is changed.
        self.post.fetch_or(0, Ordering::AcqRel)
    }

    /// Begins to wait for the end of the walk that is posted here now.
    pub fn await_walk(&self) {
        let post = self.ask();
        self.awaited.store(if post & WALKING != 0 { post } else { 0 }, Ordering::Relaxed);
    }

    /// Whether that walk has ended.
    pub fn has_walked(&self) -> bool {
        let awaited = self.awaited.load(Ordering::Relaxed);
        if awaited != 0 && self.ask() == awaited {
            return false;
        }
        self.awaited.store(0, Ordering::Relaxed);
        true
    }

    /// Whether a page of this table, which has `bytes` bytes and is aligned to them, is held here.
    /// Valid only after the walks that were posted have ended.
    pub fn holds(&self, table: PhysAddr, bytes: u64) -> bool {
        // ORDERING [S5].
        let mut held = self.held.iter().map(|held| held.load(Ordering::Acquire));
        held.any(|held| held & !(bytes - 1) == table.0)
    }
}
