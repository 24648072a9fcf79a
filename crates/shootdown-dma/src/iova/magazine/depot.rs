//! The depot: CPUs exchange magazines of one size here, and surplus magazines go back.
//!
//! **The problem.** If one CPU allocates and another frees, magazines fill on one and run out on
//! the other. A depot that is too small sends the difference to the inner allocator, at its cost;
//! one that is unbounded keeps what a burst has left behind for ever (in Linux before 6.7, a bound
//! of 32 and synchronous overflow; since then no bound, and a worker that frees one magazine in 100
//! ms).
//!
//! **The scheme.** The depot is bounded, and measures itself: the fewest magazines that it held
//! during the last [`WINDOW`] visits are surplus (the working-set rule of Bonwick and Adams). Half
//! of them go back, so what a burst has left behind halves with every window. It needs no timer: a
//! depot that no CPU visits costs nothing but its addresses, which
//! [`flush`](super::Magazines::flush) gives back. The work is spread: each visitor takes
//! [`PORTION`] blocks along and returns them when it holds no lock.
//!
//! A magazine whose blocks are being returned is *lent*: its place is kept, so that blocks which
//! can't be returned (the inner allocator has no memory) always find room again.

use alloc::vec::Vec;

use super::round::Magazine;

/// Visits after which the depot counts its surplus. A visit comes once in 127 operations at most.
const WINDOW: u32 = 64;

/// Blocks that a visitor returns: sixteen magazines go in a window, at a quarter of an inner
/// operation for each operation that leads to a visit.
pub(super) const PORTION: usize = 32;

/// Magazines of one size that no CPU has.
pub(super) struct Depot {
    /// Those with blocks. The first one is returned next.
    stocked: Vec<Magazine>,
    empty: Vec<Magazine>,
    /// Magazines whose place among those with blocks is kept.
    lent: usize,
    bound: usize,
    visits: u32,
    /// The fewest with blocks in this window.
    fewest: usize,
    /// The number of surplus magazines.
    surplus: usize,
}

impl Depot {
    /// Room for `bound` magazines with blocks, and as many without. `None`: no memory.
    pub(super) fn new(bound: usize) -> Option<Self> {
        let room = || {
            let mut list: Vec<Magazine> = Vec::new();
            list.try_reserve_exact(bound).ok().map(|()| list)
        };
        let (stocked, empty) = (room()?, room()?);
        Some(Self { stocked, empty, lent: 0, bound, visits: 0, fewest: 0, surplus: 0 })
    }

    /// Counts a CPU that fetches or brings a magazine.
    fn visit(&mut self) {
        self.fewest = self.fewest.min(self.stocked.len());
        self.visits += 1;
        if self.visits == WINDOW {
            self.surplus = self.fewest / 2;
            self.fewest = self.stocked.len();
            self.visits = 0;
        }
    }

    /// Exchanges an empty magazine for one with blocks.
    pub(super) fn supply(&mut self, empty: &mut Option<Magazine>) {
        if let Some(stocked) = self.stocked.pop() {
            if let Some(empty) = empty.replace(stocked) {
                self.keep(empty);
            }
        }
        self.visit();
    }

    /// Whether there is room for one with blocks.
    pub(super) fn has_room(&self) -> bool {
        self.stocked.len() + self.lent < self.bound
    }

    /// Takes one with blocks, if there is [room](Self::has_room).
    pub(super) fn stock(&mut self, magazine: Magazine) {
        self.stocked.push(magazine);
        self.visit();
    }

    /// An empty one.
    pub(super) fn empty(&mut self) -> Option<Magazine> {
        self.empty.pop()
    }

    /// Keeps an empty one, if there is room.
    pub(super) fn keep(&mut self, magazine: Magazine) {
        if self.empty.len() < self.empty.capacity() {
            self.empty.push(magazine);
        }
    }

    /// Lends a surplus magazine, so that a portion of it is returned.
    pub(super) fn lend_surplus(&mut self) -> Option<Magazine> {
        if self.surplus == 0 { None } else { self.lend() }
    }

    /// Lends any.
    pub(super) fn lend(&mut self) -> Option<Magazine> {
        if self.stocked.is_empty() {
            self.surplus = 0;
            return None;
        }
        self.lent += 1;
        Some(self.stocked.swap_remove(0))
    }

    /// Takes back a magazine that was lent.
    pub(super) fn back(&mut self, magazine: Magazine) {
        self.lent -= 1;
        if magazine.is_empty() {
            self.surplus = self.surplus.saturating_sub(1);
            self.keep(magazine);
        } else {
            self.stocked.push(magazine);
            let last = self.stocked.len() - 1;
            self.stocked.swap(0, last);
        }
        self.fewest = self.fewest.min(self.stocked.len());
    }

    /// Blocks in it.
    pub(super) fn blocks(&self) -> usize {
        self.stocked.iter().map(|m| m.rounds().len()).sum()
    }

    /// Magazines with blocks.
    #[cfg(test)]
    pub(super) fn stocked(&self) -> usize {
        self.stocked.len()
    }
}
