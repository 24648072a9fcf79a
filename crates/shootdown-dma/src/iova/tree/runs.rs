//! The balanced tree of live runs, in an arena.
//!
//! A node is a *maximal* run of pages that are not free. The gap of a node is the one before it;
//! after the last run comes the end of the space, which is a run itself (the *anchor*), so every
//! gap has a node and the tree is never empty. Each node holds the greatest gap of its subtree, by
//! both numbers that searches use ([`Key`]).
//!
//! - **I1** Runs are disjoint and ascending; without guard pages no two abut.
//! - **I2** A node's gap begins `guard` pages behind the run before it, and ends `guard` pages
//!   before the node.
//! - **I3** Heights of siblings differ by one at most (AVL): 2^32 nodes are 46 levels.
//! - **I4** The greatest of a subtree is the greatest of what its nodes have.
//!
//! Every operation descends once from the root and walks the path back; nothing recurses, and only
//! [`Runs::scan`] scans.

use alloc::vec::Vec;

use super::super::Want;
use super::gap::{Gap, Key};

const NONE: u32 = u32::MAX;

/// Levels of a tree of 2^32 nodes, by I3.
const LEVELS: usize = 47;

#[derive(Clone, Copy, Debug)]
struct Node {
    first: u64,
    last: u64,
    /// Where the gap before it begins.
    gap: u64,
    most_pages: u64,
    most_natural: u64,
    /// Lower and higher subtree. Of a node that is not in use, the first is the next such.
    sides: [u32; 2],
    height: u8,
}

const LOW: usize = 0;
const HIGH: usize = 1;

/// From the root to a node.
struct Path {
    nodes: [u32; LEVELS],
    depth: usize,
}

impl Path {
    const fn new() -> Self {
        Self { nodes: [NONE; LEVELS], depth: 0 }
    }

    fn push(&mut self, node: u32) {
        self.nodes[self.depth] = node;
        self.depth += 1;
    }

    fn end(&self) -> u32 {
        self.nodes[self.depth - 1]
    }
}

/// A node is needed, and there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NeedsNode;

/// The tree.
pub(super) struct Runs {
    nodes: Vec<Node>,
    unused: u32,
    root: u32,
    count: usize,
    guard: u64,
    free: u64,
}

impl Runs {
    /// A tree without memory of its own: give it some ([`grow`](Self::grow)), then
    /// [`open`](Self::open) it.
    pub(super) const fn new(guard: u64) -> Self {
        Self { nodes: Vec::new(), unused: NONE, root: NONE, count: 0, guard, free: 0 }
    }

    /// Everything from `first` to `last` is free.
    pub(super) fn open(&mut self, first: u64, last: u64) -> Result<(), NeedsNode> {
        let end = last + 1 + self.guard;
        self.root = self.take(end, end, first)?;
        self.free = last - first + 1;
        Ok(())
    }

    /// Nodes in use. One is the anchor.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Do runs keep a distance?
    pub(super) const fn is_guarded(&self) -> bool {
        self.guard != 0
    }

    /// Pages in no run, guard pages among them.
    pub(super) const fn free_pages(&self) -> u64 {
        self.free
    }

    /// Room for this many nodes.
    pub(super) fn capacity(&self) -> usize {
        self.nodes.capacity()
    }

    /// Nodes there is memory for.
    pub(super) fn spare(&self) -> usize {
        self.nodes.capacity() - self.count
    }

    /// Moves into memory that is larger, and returns the old, for the caller to free when it holds
    /// no lock; unless that is no larger.
    pub(super) fn grow(&mut self, mut memory: Memory) -> Memory {
        if memory.0.capacity() > self.nodes.capacity() {
            memory.0.clear();
            memory.0.extend_from_slice(&self.nodes);
            core::mem::swap(&mut memory.0, &mut self.nodes);
        }
        memory
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    fn side(&self, at: u32, side: usize) -> u32 {
        self.node(at).sides[side]
    }

    // ---- memory

    fn take(&mut self, first: u64, last: u64, gap: u64) -> Result<u32, NeedsNode> {
        let mut node =
            Node { first, last, gap, most_pages: 0, most_natural: 0, sides: [NONE; 2], height: 1 };
        let own = self.gap_of(&node);
        (node.most_pages, node.most_natural) = (own.pages(), own.natural());
        let at = if self.unused != NONE {
            let at = self.unused;
            self.unused = self.side(at, LOW);
            *self.node_mut(at) = node;
            at
        } else if self.nodes.len() < self.nodes.capacity() {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).map_err(|_| NeedsNode)?
        } else {
            return Err(NeedsNode);
        };
        self.count += 1;
        Ok(at)
    }

    fn give(&mut self, at: u32) {
        self.node_mut(at).sides[LOW] = self.unused;
        self.unused = at;
        self.count -= 1;
    }

    // ---- shape

    fn gap_of(&self, node: &Node) -> Gap {
        // Two runs that were reserved may be nearer than the guard wants: no gap then. [I2]
        Gap { first: node.gap, last: (node.first - 1).saturating_sub(self.guard) }
    }

    fn height(&self, at: u32) -> u8 {
        if at == NONE { 0 } else { self.node(at).height }
    }

    fn most(&self, at: u32, key: Key) -> u64 {
        match (at, key) {
            (NONE, _) => 0,
            (_, Key::Pages) => self.node(at).most_pages,
            (_, Key::Natural) => self.node(at).most_natural,
        }
    }

    /// What a node knows of its subtree, from its sides.
    fn look(&mut self, at: u32) {
        let node = *self.node(at);
        let own = self.gap_of(&node);
        let of = |key: Key| {
            let [low, high] = node.sides.map(|side| self.most(side, key));
            key.of(own).max(low).max(high)
        };
        let (most_pages, most_natural) = (of(Key::Pages), of(Key::Natural));
        let height = 1 + node.sides.map(|side| self.height(side)).into_iter().max().unwrap_or(0);
        let node = self.node_mut(at);
        (node.most_pages, node.most_natural, node.height) = (most_pages, most_natural, height);
    }

    /// Turns the subtree so that its `side` becomes its root.
    fn turn(&mut self, at: u32, side: usize) -> u32 {
        let up = self.side(at, side);
        self.node_mut(at).sides[side] = self.side(up, 1 - side);
        self.node_mut(up).sides[1 - side] = at;
        self.look(at);
        self.look(up);
        up
    }

    /// Puts a subtree right whose sides are right, and returns its root. [I3, I4]
    fn settle(&mut self, at: u32) -> u32 {
        for side in [LOW, HIGH] {
            let tall = self.side(at, side);
            if self.height(tall) > self.height(self.side(at, 1 - side)) + 1 {
                if self.height(self.side(tall, side)) < self.height(self.side(tall, 1 - side)) {
                    let inner = self.turn(tall, 1 - side);
                    self.node_mut(at).sides[side] = inner;
                }
                return self.turn(at, side);
            }
        }
        self.look(at);
        at
    }

    /// Puts right what a change below, or in, the last node of the path has upset. `whole`: up to
    /// the root; otherwise only as far as anything changes.
    fn settle_path(&mut self, path: &Path, whole: bool) {
        for depth in (0..path.depth).rev() {
            let old = path.nodes[depth];
            let told = |n: &Node| (n.most_pages, n.most_natural, n.height);
            let before = told(self.node(old));
            let new = self.settle(old);
            if new != old {
                self.link(path, depth, old, new);
            } else if !whole && told(self.node(new)) == before {
                return;
            }
        }
    }

    /// The node that had `old` as child, at this depth of the path, gets `new`.
    fn link(&mut self, path: &Path, depth: usize, old: u32, new: u32) {
        match depth.checked_sub(1).map(|above| path.nodes[above]) {
            None => self.root = new,
            Some(parent) => {
                let side = usize::from(self.side(parent, HIGH) == old);
                self.node_mut(parent).sides[side] = new;
            }
        }
    }

    // ---- ways

    /// The way to the lowest run that ends at `page` or above. There is one, up to the anchor.
    fn way(&self, page: u64) -> Path {
        let (mut path, mut depth, mut at) = (Path::new(), 0, self.root);
        while at != NONE {
            path.push(at);
            let node = self.node(at);
            if node.last >= page {
                depth = path.depth;
                at = node.sides[LOW];
            } else {
                at = node.sides[HIGH];
            }
        }
        path.depth = depth;
        path
    }

    /// The run before or after the one that the path ends at.
    fn neighbour(&self, path: &Path, side: usize) -> Option<u32> {
        let mut at = self.side(path.end(), side);
        if at != NONE {
            while self.side(at, 1 - side) != NONE {
                at = self.side(at, 1 - side);
            }
            return Some(at);
        }
        let above = (1..path.depth)
            .rev()
            .find(|d| self.side(path.nodes[d - 1], 1 - side) == path.nodes[*d])?;
        Some(path.nodes[above - 1])
    }

    /// Hangs a node in just before the one that the path ends at.
    fn hang(&mut self, mut path: Path, new: u32) {
        let (mut at, mut side) = (path.end(), LOW);
        while self.side(at, side) != NONE {
            at = self.side(at, side);
            path.push(at);
            side = HIGH;
        }
        self.node_mut(at).sides[side] = new;
        self.settle_path(&path, false);
    }

    /// Takes the node out that the path ends at.
    fn unhang(&mut self, mut path: Path) {
        let at = path.end();
        let [low, high] = self.node(at).sides;
        let (gone, rest) = if low != NONE && high != NONE {
            // The one before takes its place.
            let mut before = low;
            path.push(before);
            while self.side(before, HIGH) != NONE {
                before = self.side(before, HIGH);
                path.push(before);
            }
            let moved = *self.node(before);
            let node = self.node_mut(at);
            (node.first, node.last, node.gap) = (moved.first, moved.last, moved.gap);
            (before, moved.sides[LOW])
        } else {
            (at, if low == NONE { high } else { low })
        };
        self.link(&path, path.depth - 1, gone, rest);
        path.depth -= 1;
        self.settle_path(&path, true);
        self.give(gone);
    }

    /// Where the gap before the run at `page` begins. [I2]
    fn set_gap(&mut self, page: u64, gap: u64) {
        let path = self.way(page);
        self.node_mut(path.end()).gap = gap;
        self.settle_path(&path, false);
    }

    // ---- what is asked

    /// The highest gap (up to `limit`) whose key reaches `at_least`. O(log n).
    pub(super) fn highest(&self, key: Key, at_least: u64, limit: u64) -> Option<Gap> {
        let fits = |gap: Gap| key.of(gap) >= at_least;
        let below = |at: u32| self.most(at, key) >= at_least;
        // Along the limit: whatever is higher than the nodes on that way is above it. `found` is
        // the highest of them that has a gap that fits, its own or lower.
        let (mut at, mut found) = (self.root, NONE);
        while below(at) {
            let node = self.node(at);
            let gap = self.gap_of(node);
            if gap.last >= limit {
                if fits(gap.below(limit)) {
                    return Some(gap.below(limit));
                }
                at = node.sides[LOW];
            } else {
                if fits(gap) || below(node.sides[LOW]) {
                    found = at;
                }
                at = node.sides[HIGH];
            }
        }
        if found == NONE {
            return None;
        }
        let gap = self.gap_of(self.node(found));
        if fits(gap) {
            return Some(gap);
        }
        let mut at = self.side(found, LOW);
        loop {
            let [low, high] = self.node(at).sides;
            if below(high) {
                at = high;
                continue;
            }
            let gap = self.gap_of(self.node(at));
            if fits(gap) {
                return Some(gap);
            }
            at = low;
        }
    }

    /// The highest place for `want`, by looking at every gap that is long enough, from the highest
    /// on.
    pub(super) fn scan(&self, want: &Want) -> Option<u64> {
        let long = |at: u32| self.most(at, Key::Pages) >= want.pages;
        let (mut path, mut at) = (Path::new(), self.root);
        loop {
            while long(at) {
                path.push(at);
                at = self.side(at, HIGH);
            }
            if path.depth == 0 {
                return None;
            }
            let node = self.node(path.end());
            path.depth -= 1;
            if let Some(first) = self.gap_of(node).place(want) {
                return Some(first);
            }
            at = node.sides[LOW];
        }
    }

    /// Is every page of it in a run?
    pub(super) fn is_live(&self, first: u64, last: u64) -> bool {
        let run = self.node(self.way(first).end());
        run.first <= first && last <= run.last
    }

    /// Is it all of a run?
    pub(super) fn is_run(&self, first: u64, last: u64) -> bool {
        let run = self.node(self.way(first).end());
        (run.first, run.last) == (first, last)
    }

    /// Is no page of it in a run? (It does not reach past the anchor.)
    pub(super) fn is_free(&self, first: u64, last: u64) -> bool {
        self.node(self.way(first).end()).first > last
    }

    // ---- what changes

    /// Makes free pages part of a run.
    pub(super) fn occupy(&mut self, first: u64, last: u64) -> Result<(), NeedsNode> {
        debug_assert!(self.is_free(first, last));
        let path = self.way(first);
        let after = *self.node(path.end());
        let before = self.neighbour(&path, LOW).map(|at| (at, *self.node(at)));
        let joins_after = last + 1 == after.first;
        let joins_before = before.filter(|(_, run)| run.last + 1 == first);
        match (joins_before, joins_after) {
            (Some((_, run)), true) => {
                self.unhang(self.way(run.last));
                let path = self.way(after.last);
                let node = self.node_mut(path.end());
                (node.first, node.gap) = (run.first, run.gap);
                self.settle_path(&path, false);
            }
            (None, true) => {
                self.node_mut(path.end()).first = first;
                self.settle_path(&path, false);
            }
            (Some((at, _)), false) => {
                self.node_mut(at).last = last;
                self.set_gap(after.last, last + 1 + self.guard);
            }
            (None, false) => {
                let new = self.take(first, last, after.gap)?;
                self.node_mut(path.end()).gap = last + 1 + self.guard;
                self.settle_path(&path, false);
                // The turns have upset the way that was known.
                self.hang(self.way(after.last), new);
            }
        }
        self.free -= last - first + 1;
        Ok(())
    }

    /// Makes pages of one run free.
    pub(super) fn release(&mut self, first: u64, last: u64) -> Result<(), NeedsNode> {
        let path = self.way(first);
        let run = *self.node(path.end());
        match (run.first == first, run.last == last) {
            (true, true) => {
                let after = self.neighbour(&path, HIGH).map(|at| self.node(at).last);
                self.unhang(path);
                // The anchor's end is never free, so that there is one after.
                if let Some(after) = after {
                    self.set_gap(after, run.gap);
                }
            }
            (true, false) => {
                self.node_mut(path.end()).first = last + 1;
                self.settle_path(&path, false);
            }
            (false, true) => {
                let after = self.neighbour(&path, HIGH).map(|at| self.node(at).last);
                self.node_mut(path.end()).last = first - 1;
                if let Some(after) = after {
                    self.set_gap(after, first + self.guard);
                }
            }
            (false, false) => {
                let new = self.take(run.first, first - 1, run.gap)?;
                let gap = first + self.guard;
                let node = self.node_mut(path.end());
                (node.first, node.gap) = (last + 1, gap);
                self.settle_path(&path, false);
                self.hang(self.way(run.last), new);
            }
        }
        self.free += last - first + 1;
        Ok(())
    }
}

/// Memory for nodes.
pub(super) struct Memory(Vec<Node>);

impl Memory {
    /// Memory for this many nodes; `None` if there is none.
    pub(super) fn for_nodes(nodes: usize) -> Option<Self> {
        let mut memory = Vec::new();
        // The index must fit, and `NONE` is not one.
        u32::try_from(nodes).ok()?;
        #[cfg(test)]
        if tests::NO_MEMORY.get() {
            return None;
        }
        memory.try_reserve_exact(nodes).ok()?;
        Some(Self(memory))
    }
}

#[cfg(test)]
impl Runs {
    /// Runs in order, checked against I1 to I4.
    pub(super) fn checked(&self) -> Vec<(u64, u64)> {
        fn visit(runs: &Runs, at: u32, out: &mut Vec<(u64, u64, u64)>) -> u8 {
            if at == NONE {
                return 0;
            }
            let node = *runs.node(at);
            let low = visit(runs, node.sides[LOW], out);
            out.push((node.first, node.last, node.gap));
            let high = visit(runs, node.sides[HIGH], out);
            assert!(low.abs_diff(high) <= 1, "I3");
            assert_eq!(node.height, 1 + low.max(high), "I3");
            for key in [Key::Pages, Key::Natural] {
                let own = key.of(runs.gap_of(&node));
                let most =
                    own.max(runs.most(node.sides[0], key)).max(runs.most(node.sides[1], key));
                assert_eq!(runs.most(at, key), most, "I4");
            }
            node.height
        }
        let mut out = Vec::new();
        visit(self, self.root, &mut out);
        assert_eq!(out.len(), self.count);
        for pair in out.windows(2) {
            assert!(pair[0].1 < pair[1].0, "I1");
            assert!(self.guard != 0 || pair[0].1 + 1 < pair[1].0, "I1: not merged");
            assert_eq!(pair[1].2, pair[0].1 + 1 + self.guard, "I2");
        }
        out.into_iter().map(|(first, last, _)| (first, last)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    std::thread_local! {
        /// There is no memory for nodes, in this thread.
        pub(in super::super) static NO_MEMORY: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
    }
}
