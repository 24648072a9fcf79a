//! The allocator of 2015: a balanced tree with a node for each mapping.
//!
//! Addresses are handed out from the top down, beginning at the last place that was used (*the
//! hint*); if nothing fits there, from node to node below it. Who frees looks its node up from the
//! root. That is what Linux did, and what it costs is the way through the nodes: every field is in
//! the machine's memory, a line for each node, so that a look at a node costs what its line costs
//! there.
//!
//! Balanced by heights (AVL), which each node knows of both its children, so that a step of
//! balancing looks at no more nodes than that of a red-black tree. Neighbours in the order of
//! addresses are linked, which costs less than the walk to the next node in a tree without such
//! links. Used under the lock of [`stock`](super::stock).

use shootdown_machine::shootdown_dma::fixed::Fixed;
use shootdown_machine::shootdown_dma::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// No node. Node 0 is none.
const NONE: u32 = 0;

#[repr(align(64))]
struct Node {
    first: AtomicU64,
    last: AtomicU64,
    /// Left and right.
    below: [AtomicU32; 2],
    heights: [AtomicU32; 2],
    /// Before and after in the order of addresses.
    beside: [AtomicU32; 2],
}

/// What all users of the tree use, on a line of its own.
#[repr(align(64))]
struct Head {
    root: AtomicU32,
    hint: AtomicU32,
}

impl Node {
    fn new() -> Self {
        let pair = || [0, 1].map(|_| AtomicU32::new(NONE));
        let (first, last) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { first, last, below: pair(), heights: pair(), beside: pair() }
    }
}

/// The way from the root to a node: nodes, and to which side it went on. A tree of 2^20 nodes is at
/// most 29 high.
struct Path {
    steps: [(u32, usize); 48],
    len: usize,
}

impl Path {
    const fn new() -> Self {
        Self { steps: [(NONE, 0); 48], len: 0 }
    }

    fn push(&mut self, node: u32, side: usize) {
        self.steps[self.len] = (node, side);
        self.len += 1;
    }
}

/// See the module.
pub struct Tree {
    nodes: Fixed<Node>,
    head: Fixed<Head>,
    /// Nodes that are in no tree. (Memory of a slab; taking one is a pop.)
    free: std::cell::RefCell<Vec<u32>>,
    /// The page behind the last that may be handed out.
    end: u64,
}

impl Tree {
    /// No mapping; room for `most`, below page `end`.
    pub fn new(most: u32, end: u64) -> Self {
        let nodes = Fixed::new(most as usize + 1, |_| Node::new()).expect("memory for nodes");
        let head = |_| Head { root: AtomicU32::new(NONE), hint: AtomicU32::new(NONE) };
        let head = Fixed::new(1, head).expect("memory for a head");
        Self { nodes, head, free: (1..=most).rev().collect::<Vec<_>>().into(), end }
    }

    /// Nodes in the tree.
    pub fn len(&self) -> usize {
        self.nodes.len() - 1 - self.free.borrow().len()
    }

    fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }

    fn head(&self) -> &Head {
        &self.head[0]
    }

    /// Addresses for so many pages (a power of two, and aligned to it); `None`: there are none.
    pub fn alloc(&self, pages: u64) -> Option<u64> {
        let hint = self.head().hint.load(Relaxed);
        let found = self.search(hint, pages).or_else(|| self.search(NONE, pages))?;
        let node = self.free.borrow_mut().pop()?;
        self.insert(node, found, found + pages - 1);
        self.head().hint.store(node, Relaxed);
        Some(found)
    }

    /// The first place from the top down, below a node (none: below the end).
    fn search(&self, below: u32, pages: u64) -> Option<u64> {
        let (mut end, mut at) = match below {
            NONE => (self.end, self.rightmost()),
            node => {
                let node = self.node(node);
                (node.first.load(Relaxed), node.beside[0].load(Relaxed))
            }
        };
        loop {
            // Page 0 is not handed out.
            let floor = if at == NONE { 1 } else { self.node(at).last.load(Relaxed) + 1 };
            let first = end.checked_sub(pages)? & !(pages - 1);
            if first >= floor {
                return Some(first);
            }
            if at == NONE {
                return None;
            }
            end = self.node(at).first.load(Relaxed);
            at = self.node(at).beside[0].load(Relaxed);
        }
    }

    fn rightmost(&self) -> u32 {
        let mut at = self.head().root.load(Relaxed);
        while at != NONE {
            match self.node(at).below[1].load(Relaxed) {
                NONE => break,
                right => at = right,
            }
        }
        at
    }

    fn insert(&self, node: u32, first: u64, last: u64) {
        let (mut path, mut beside) = (Path::new(), [NONE; 2]);
        let mut at = self.head().root.load(Relaxed);
        while at != NONE {
            let side = usize::from(first > self.node(at).first.load(Relaxed));
            path.push(at, side);
            beside[1 - side] = at;
            at = self.node(at).below[side].load(Relaxed);
        }
        let new = self.node(node);
        new.first.store(first, Relaxed);
        new.last.store(last, Relaxed);
        for (side, other) in beside.into_iter().enumerate() {
            new.below[side].store(NONE, Relaxed);
            new.heights[side].store(0, Relaxed);
            new.beside[side].store(other, Relaxed);
            if other != NONE {
                self.node(other).beside[1 - side].store(node, Relaxed);
            }
        }
        self.link(&path, path.len, node);
        self.balance(&path, path.len, 1);
    }

    /// Hangs a node where a path of this length leads.
    fn link(&self, path: &Path, len: usize, node: u32) {
        match len.checked_sub(1).map(|n| path.steps[n]) {
            Some((parent, side)) => self.node(parent).below[side].store(node, Relaxed),
            None => self.head().root.store(node, Relaxed),
        }
    }

    /// What hangs where the path leads is so high now: mends what is above.
    fn balance(&self, path: &Path, len: usize, mut height: u32) {
        for n in (0..len).rev() {
            let (at, side) = path.steps[n];
            let node = self.node(at);
            let before = node.heights[0].load(Relaxed).max(node.heights[1].load(Relaxed)) + 1;
            node.heights[side].store(height, Relaxed);
            let [left, right] = [0, 1].map(|s| node.heights[s].load(Relaxed));
            if left.abs_diff(right) > 1 {
                let (top, high) = self.rotate(at, usize::from(right > left));
                self.link(path, n, top);
                height = high;
            } else {
                height = left.max(right) + 1;
            }
            if height == before {
                return;
            }
        }
    }

    /// Lifts the child of the high side; returns what is on top now, and how high it is.
    fn rotate(&self, at: u32, side: usize) -> (u32, u32) {
        let child = self.node(at).below[side].load(Relaxed);
        let [outer, inner] = [side, 1 - side].map(|s| self.node(child).heights[s].load(Relaxed));
        if inner > outer {
            let (lifted, _) = self.lift(child, 1 - side);
            self.node(at).below[side].store(lifted, Relaxed);
        }
        self.lift(at, side)
    }

    /// A single rotation: the child of this side takes the place of its parent.
    fn lift(&self, at: u32, side: usize) -> (u32, u32) {
        let node = self.node(at);
        let top = node.below[side].load(Relaxed);
        let child = self.node(top);
        let between = child.below[1 - side].load(Relaxed);
        let middle = child.heights[1 - side].load(Relaxed);
        node.below[side].store(between, Relaxed);
        node.heights[side].store(middle, Relaxed);
        let height = node.heights[1 - side].load(Relaxed).max(middle) + 1;
        child.below[1 - side].store(at, Relaxed);
        child.heights[1 - side].store(height, Relaxed);
        (top, child.heights[side].load(Relaxed).max(height) + 1)
    }

    /// The node of a mapping that begins here, from the root.
    #[cfg(test)]
    fn find(&self, first: u64) -> Option<u32> {
        let mut at = self.head().root.load(Relaxed);
        while at != NONE {
            let here = self.node(at).first.load(Relaxed);
            if here == first {
                return Some(at);
            }
            at = self.node(at).below[usize::from(first > here)].load(Relaxed);
        }
        None
    }

    /// Takes back what begins here, from the root. False: nothing does.
    pub fn free(&self, first: u64) -> bool {
        let mut path = Path::new();
        let mut at = self.head().root.load(Relaxed);
        loop {
            if at == NONE {
                return false;
            }
            let here = self.node(at).first.load(Relaxed);
            if here == first {
                break;
            }
            let side = usize::from(first > here);
            path.push(at, side);
            at = self.node(at).below[side].load(Relaxed);
        }
        self.unhint(at, first);
        self.remove(at, path);
        true
    }

    /// The hint follows what is freed at it or above: the next search begins there.
    fn unhint(&self, node: u32, first: u64) {
        let hint = self.head().hint.load(Relaxed);
        if hint != NONE && first >= self.node(hint).first.load(Relaxed) {
            let after = self.node(node).beside[1].load(Relaxed);
            self.head().hint.store(after, Relaxed);
        }
    }

    fn remove(&self, at: u32, mut path: Path) {
        let node = self.node(at);
        let [left, right] = [0, 1].map(|s| node.below[s].load(Relaxed));
        let mut gone = at;
        if left != NONE && right != NONE {
            // The next in order takes its place: it is moved here, and its own node goes.
            path.push(at, 1);
            gone = right;
            loop {
                match self.node(gone).below[0].load(Relaxed) {
                    NONE => break,
                    below => {
                        path.push(gone, 0);
                        gone = below;
                    }
                }
            }
            let next = self.node(gone);
            node.first.store(next.first.load(Relaxed), Relaxed);
            node.last.store(next.last.load(Relaxed), Relaxed);
            if self.head().hint.load(Relaxed) == gone {
                self.head().hint.store(at, Relaxed);
            }
            self.join([at, next.beside[1].load(Relaxed)]);
        } else {
            self.join([0, 1].map(|s| node.beside[s].load(Relaxed)));
        }
        let rest = self.node(gone);
        let side = usize::from(rest.below[0].load(Relaxed) == NONE);
        let (child, height) = (rest.below[side].load(Relaxed), rest.heights[side].load(Relaxed));
        self.link(&path, path.len, child);
        self.balance(&path, path.len, height);
        self.free.borrow_mut().push(gone);
    }

    /// Makes two nodes neighbours.
    fn join(&self, [before, after]: [u32; 2]) {
        if before != NONE {
            self.node(before).beside[1].store(after, Relaxed);
        }
        if after != NONE {
            self.node(after).beside[0].store(before, Relaxed);
        }
    }

    #[cfg(test)]
    fn height(&self, at: u32) -> u32 {
        if at == NONE {
            return 0;
        }
        let node = self.node(at);
        let heights = [0, 1].map(|s| self.height(node.below[s].load(Relaxed)));
        assert_eq!(
            heights,
            [0, 1].map(|s| node.heights[s].load(Relaxed)),
            "known heights are right"
        );
        assert!(heights[0].abs_diff(heights[1]) <= 1, "balanced");
        heights[0].max(heights[1]) + 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::experiments::chance;

    /// All ranges, along the links.
    fn ranges(tree: &Tree) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let mut at = tree.rightmost();
        while at != NONE {
            all.push((tree.node(at).first.load(Relaxed), tree.node(at).last.load(Relaxed)));
            at = tree.node(at).beside[0].load(Relaxed);
        }
        all.reverse();
        all
    }

    #[test]
    fn ranges_are_disjoint_and_the_tree_stays_balanced() {
        let tree = Tree::new(400, 1 << 12);
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        for n in 0..20_000 {
            let draw = chance(7, n);
            if live.len() < 300 && draw & 3 != 0 {
                let pages = 1 << (draw >> 8 & 3);
                let first = tree.alloc(pages).expect("there is room");
                assert!(first != 0 && first.is_multiple_of(pages) && first + pages <= 1 << 12);
                let before = live.range(..first + pages).next_back();
                assert!(before.is_none_or(|(f, p)| f + p <= first), "disjoint");
                live.insert(first, pages);
            } else if let Some(first) =
                live.keys().nth((draw >> 20) as usize % live.len().max(1)).copied()
            {
                live.remove(&first);
                assert!(
                    tree.find(first).is_some() && tree.free(first) && tree.find(first).is_none()
                );
            }
            if n % 64 == 0 {
                tree.height(tree.head().root.load(Relaxed));
                let expected: Vec<_> = live.iter().map(|(f, p)| (*f, f + p - 1)).collect();
                assert_eq!(ranges(&tree), expected);
            }
        }
        assert!(!tree.free(0));
        assert_eq!(tree.len(), live.len());
    }

    #[test]
    fn a_tree_that_is_full_says_so_and_goes_on() {
        let tree = Tree::new(20, 5);
        let all: Vec<_> = std::iter::from_fn(|| tree.alloc(1)).collect();
        assert_eq!(all, [4, 3, 2, 1]);
        assert!(tree.free(3));
        assert_eq!((tree.alloc(2), tree.alloc(1)), (None, Some(3)));
    }
}
