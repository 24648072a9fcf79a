//! The allocator behind all others: a balanced tree of live runs.
//!
//! **The problem.** A list or tree of *mappings* grows with the number of mappings, and a search
//! for a gap walks over them: Linux searches from a cached node on and is linear at worst
//! (published: 42,300 nodes of other sizes between a request and its gap; 1.3 µs per allocation
//! before caches were put in front). And freed neighbours must be found to be merged.
//!
//! **The scheme.** The tree keeps *runs* instead: live ranges that abut are one node. A gap is the
//! space between two nodes, so free space merges by itself; and a NIC that fills its rings at
//! start-up with tens of thousands of single pages makes tens of nodes ([`Tree::nodes`]). Every
//! node holds the greatest gap of its subtree, so a search descends once: O(log n), worst case, for
//! requests that are naturally aligned ([`Want::pages`]) or not aligned at all, with or without a
//! limit. The tree knows exactly whether a naturally aligned request fits (`gap.rs`). Other
//! alignments, and boundaries with them, are served as fast while there is a large enough gap; if
//! not, the tree tries all gaps that are long enough one by one, so it returns "exhausted" only if
//! nothing fits.
//!
//! **From the top.** The highest place is taken: devices with narrow masks find their part of the
//! space untouched by those that reach further, and the interrupt window lies below most of what is
//! used. Live ranges stay together at one end, under few page tables, as they would at the other.
//!
//! **Guard pages** are a distance between live ranges: gaps are shorter by it at both ends. No
//! ranges abut then, and there is a node for each range.
//!
//! **What is checked.** A range is taken back only if every page of it is live, and none is
//! reserved; else nothing changes. Any part of a range may be freed. The tree does not record where
//! one range ends and the next begins: freeing a range together with its neighbour succeeds.
//!
//! **Memory.** Nodes are in an arena that doubles; its memory is allocated and freed with the lock
//! released, and copied under it. Freeing the middle of a run makes a node, and so may need memory:
//! allocations leave a few nodes to frees, and [`Tree::reserve`] prepares more beforehand.
//!
//! **Locking.** One lock (`spin.rs`), for one to three descents. If interrupt handlers allocate or
//! free, call with interrupts disabled.

pub(crate) mod gap;
mod runs;

use alloc::vec::Vec;

use self::gap::Plan;
use self::runs::{Memory, NeedsNode, Runs};
use super::space::{Space, SpaceError, touches};
use super::spin::Spin;
use super::{AllocError, Allocate, FreeError, Want};
use crate::addr::IovaRange;

/// Nodes at the beginning: 4 KiB of them.
const NODES: usize = 64;

/// A run of [`alloc_run`](Allocate::alloc_run) takes no more than this part of its gap.
const SHARE: u64 = 4;

/// Nodes that allocations leave to frees: without any more memory, this many frees can still split
/// a run.
const LEFT: usize = 16;

/// The range tree; see the [module](self).
///
/// ```
/// use shootdown_dma::iova::space::{INTERRUPTS, Space};
/// use shootdown_dma::iova::{Allocate, Tree, Want};
///
/// let tree = Tree::new(&Space::below(1 << 20).without(&[INTERRUPTS]))?;
/// let ring = tree.alloc(0, &Want::pages(64).expect("not zero"))?;
/// let buffer = tree.alloc(0, &Want::pages(1).expect("not zero"))?;
/// assert_eq!((ring.last(), buffer.last()), ((1 << 20) - 1, ring.first() - 1));
/// tree.free(0, ring)?;
/// assert!(tree.free(0, ring).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tree {
    runs: Spin<Runs>,
    holes: Vec<IovaRange>,
    first: u64,
    last: u64,
}

impl Tree {
    /// Makes a tree in which all of `space` is free.
    ///
    /// # Errors
    /// See [`SpaceError`].
    pub fn new(space: &Space<'_>) -> Result<Self, SpaceError> {
        let holes = space.holes()?;
        let mut runs = Runs::new(space.guard);
        let memory =
            Memory::for_nodes(NODES.max(holes.len() + LEFT + 2)).ok_or(SpaceError::NoMemory)?;
        runs.grow(memory);
        let no_memory = |NeedsNode| SpaceError::NoMemory;
        runs.open(space.first, space.last).map_err(no_memory)?;
        for hole in &holes {
            runs.occupy(hole.first(), hole.last()).map_err(no_memory)?;
        }
        Ok(Self { runs: Spin::new(runs), holes, first: space.first, last: space.last })
    }

    /// Makes these pages live, if they are free: for a range that the caller has chosen, or learns
    /// of later (a reserved region of a device that is plugged in). It is freed like any other.
    /// Guard pages are not required.
    ///
    /// # Errors
    /// [`AllocError::Exhausted`] if not all of it is free; [`AllocError::NoMemory`].
    pub fn claim(&self, range: IovaRange) -> Result<(), AllocError> {
        if !self.holds(range) {
            return Err(AllocError::Exhausted);
        }
        self.change(LEFT + 1, |runs| {
            if runs.is_free(range.first(), range.last()) {
                runs.occupy(range.first(), range.last()).map(Ok)
            } else {
                Ok(Err(AllocError::Exhausted))
            }
        })
        .unwrap_or(Err(AllocError::NoMemory))
    }

    /// Whether these pages are one run, with nothing live at either end.
    pub(crate) fn is_run(&self, range: IovaRange) -> bool {
        self.runs.with(|runs| runs.is_run(range.first(), range.last()))
    }

    /// Prepares memory for this many nodes more than there are, so that as many frees can't fail
    /// for lack of it.
    ///
    /// # Errors
    /// [`AllocError::NoMemory`]; nothing has changed.
    pub fn reserve(&self, nodes: usize) -> Result<(), AllocError> {
        self.change(nodes, |_| Ok(())).ok_or(AllocError::NoMemory)
    }

    /// Nodes of the tree: runs of live and reserved pages, and the end of the space.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.runs.with(|runs| runs.count())
    }

    /// Pages that are neither live nor reserved. Guard pages are among them.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.runs.with(|runs| runs.free_pages())
    }

    /// Pages of the space that are not reserved.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.last - self.first + 1 - self.holes.iter().map(|hole| hole.pages()).sum::<u64>()
    }

    fn holds(&self, range: IovaRange) -> bool {
        self.first <= range.first() && range.last() <= self.last
    }

    /// Changes the tree, with `spare` nodes ready; if a node is missing, again with more memory.
    /// `None`: there is no memory.
    fn change<R>(
        &self,
        spare: usize,
        mut f: impl FnMut(&mut Runs) -> Result<R, NeedsNode>,
    ) -> Option<R> {
        loop {
            let (done, wanted) = self.runs.with(|runs| {
                let wanted = (runs.capacity() * 2).max(runs.count() + spare);
                if runs.spare() < spare { (None, wanted) } else { (f(runs).ok(), wanted) }
            });
            if done.is_some() {
                return done;
            }
            let memory = Memory::for_nodes(wanted)?;
            let old = self.runs.with(|runs| runs.grow(memory));
            drop(old);
        }
    }
}

/// The place where a request fits.
struct Place {
    first: u64,
    /// Free pages right below, as far as they are known.
    below: u64,
}

fn find(runs: &Runs, plan: Plan, want: &Want) -> Option<Place> {
    let gap = runs.highest(plan.key, plan.at_least, want.limit);
    let place = gap.and_then(|gap| {
        let first = gap.place(want)?;
        Some(Place { first, below: first - gap.first })
    });
    match place {
        None if !plan.exact => runs.scan(want).map(|first| Place { first, below: 0 }),
        found => found,
    }
}

// SAFETY: what is handed out was in no run and is in one afterwards, under one lock; runs hold all
// that is live or reserved (I1). It is placed by `Gap::place`, within alignment, limit and
// boundary; spaces begin at page 1 or above.
unsafe impl Allocate for Tree {
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        self.alloc_run(cpu, want, 1)
    }

    /// As many as requested, if four times as many lie in the gap, and the same addresses that
    /// single requests would get; otherwise one. Also one with guard pages, and where the alignment
    /// is not that of the number of pages.
    fn alloc_run(&self, _: usize, want: &Want, most: u64) -> Result<IovaRange, AllocError> {
        want.check()?;
        let plan = Plan::of(want).ok_or(AllocError::Exhausted)?;
        self.change(LEFT + 1, |runs| {
            let Some(place) = find(runs, plan, want) else {
                return Ok(Err(AllocError::Exhausted));
            };
            let abut = want.align == want.pages && !runs.is_guarded();
            let fit = place.below / want.pages;
            // Where little is left, leave it to other requests.
            let plenty = fit >= SHARE.saturating_mul(most);
            let more = if abut && plenty { most.saturating_sub(1) } else { 0 };
            let pages = (more + 1) * want.pages;
            let Some(range) = IovaRange::new(place.first - more * want.pages, pages) else {
                return Ok(Err(AllocError::Exhausted));
            };
            runs.occupy(range.first(), range.last()).map(|()| Ok(range))
        })
        .unwrap_or(Err(AllocError::NoMemory))
    }

    fn free(&self, _: usize, range: IovaRange) -> Result<(), FreeError> {
        if !self.holds(range) || touches(&self.holes, range) {
            return Err(FreeError::NotAllocated);
        }
        self.change(0, |runs| {
            if runs.is_live(range.first(), range.last()) {
                runs.release(range.first(), range.last()).map(Ok)
            } else {
                Ok(Err(FreeError::NotAllocated))
            }
        })
        .unwrap_or(Err(FreeError::NoMemory))
    }
}

#[cfg(test)]
pub(crate) mod tests;
