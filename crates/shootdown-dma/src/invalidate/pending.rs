//! What was cleared and not yet submitted: a few spans of pages, or everything.
//!
//! It belongs to a [lane](super::lane) and is accessed only with the lane's lock held. Its fields
//! are atomics, read and written `Relaxed`, so that nothing here is `unsafe`; the lock orders them.

use crate::addr::IovaRange;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Spans that are kept apart; with one more, the batch is the whole domain. The commands for 8 to
/// 32 ranges cost as much as refilling an IOTLB of 64 entries (reference values of the [promotion
/// rule](super::promotion)).
pub(super) const SPANS: usize = 16;

/// Pages from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Span {
    pub first: u64,
    pub last: u64,
    /// No table page went away.
    pub leaf_only: bool,
}

impl Span {
    pub const EMPTY: Self = Self { first: 1, last: 1, leaf_only: true };

    /// Whether it overlaps the other, begins right behind its end, or ends right before its begin.
    const fn touches(self, other: Self) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    /// The smallest span with both.
    pub fn hull(self, other: Self) -> Self {
        Self {
            first: if self.first < other.first { self.first } else { other.first },
            last: if self.last > other.last { self.last } else { other.last },
            leaf_only: self.leaf_only && other.leaf_only,
        }
    }

    pub const fn range(self) -> Option<IovaRange> {
        match (self.last - self.first).checked_add(1) {
            Some(pages) => IovaRange::new(self.first, pages),
            None => None,
        }
    }
}

/// Sorts spans and merges those that touch. Returns how many are left, in front.
pub(super) fn merge(spans: &mut [Span]) -> usize {
    spans.sort_unstable();
    let mut kept = 0;
    for i in 0..spans.len() {
        let span = spans[i];
        // A span that freed tables and one that did not stay apart if they only touch: keeping walk
        // caches is worth a command.
        let joins = |last: Span| {
            last.touches(span) && (last.leaf_only == span.leaf_only || span.first <= last.last)
        };
        if kept > 0 && joins(spans[kept - 1]) {
            spans[kept - 1] = spans[kept - 1].hull(span);
        } else {
            spans[kept] = span;
            kept += 1;
        }
    }
    kept
}

/// The pending invalidations of a lane; see the [module](self).
#[derive(Debug)]
pub(super) struct Pending {
    /// First page, last page.
    spans: [[AtomicU64; 2]; SPANS],
    /// Bit i: span i is leaf only.
    leaves: AtomicU64,
    len: AtomicUsize,
    everything: AtomicBool,
}

impl Pending {
    pub fn new() -> Self {
        Self {
            spans: core::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]),
            leaves: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            everything: AtomicBool::new(false),
        }
    }

    /// Whether nothing is pending. Without the lock it is a hint.
    pub fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0 && !self.everything.load(Relaxed)
    }

    fn get(&self, i: usize) -> Span {
        let [first, last] = [0, 1].map(|w| self.spans[i][w].load(Relaxed));
        Span { first, last, leaf_only: self.leaves.load(Relaxed) & (1 << i) != 0 }
    }

    fn set(&self, i: usize, span: Span) {
        self.spans[i][0].store(span.first, Relaxed);
        self.spans[i][1].store(span.last, Relaxed);
        let others = self.leaves.load(Relaxed) & !(1 << i);
        self.leaves.store(others | u64::from(span.leaf_only) << i, Relaxed);
    }

    /// Adds a range.
    pub fn push(&self, range: IovaRange, leaf_only: bool) {
        if self.everything.load(Relaxed) {
            return;
        }
        let span = Span { first: range.first(), last: range.last(), leaf_only };
        let mut len = self.len.load(Relaxed);
        // Buffers are mostly unmapped in the order of their addresses.
        if let Some(last) = len.checked_sub(1) {
            let before = self.get(last);
            if before.touches(span) && before.leaf_only == leaf_only {
                return self.set(last, before.hull(span));
            }
        }
        if len == SPANS {
            let mut spans = [Span::EMPTY; SPANS];
            self.read(&mut spans);
            len = merge(&mut spans);
            (0..len).for_each(|i| self.set(i, spans[i]));
        }
        if len == SPANS {
            return self.push_everything();
        }
        if len < SPANS {
            self.set(len, span);
            self.len.store(len + 1, Relaxed);
        }
    }

    /// Adds the whole domain.
    pub fn push_everything(&self) {
        self.everything.store(true, Relaxed);
    }

    /// Whether it is the whole domain.
    pub fn is_everything(&self) -> bool {
        self.everything.load(Relaxed)
    }

    /// Copies the spans out and returns how many there are; `None`: everything.
    pub fn read(&self, spans: &mut [Span; SPANS]) -> Option<usize> {
        if self.everything.load(Relaxed) {
            return None;
        }
        let len = self.len.load(Relaxed);
        (0..len).for_each(|i| spans[i] = self.get(i));
        Some(len)
    }

    /// Removes all spans.
    pub fn clear(&self) {
        self.len.store(0, Relaxed);
        self.everything.store(false, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn pages(spans: &[Span]) -> BTreeSet<u64> {
        spans.iter().flat_map(|s| s.first..=s.last).collect()
    }

    proptest! {
        #[test]
        fn merging_changes_no_page(spans in prop::collection::vec((1..64u64, 1..8u64, any::<bool>()), 0..20)) {
            let spans = spans.into_iter().map(|(first, n, leaf_only)| Span { first, last: first + n - 1, leaf_only });
            let spans: Vec<Span> = spans.collect();
            let mut merged = spans.clone();
            let kept = merge(&mut merged);
            let merged = &merged[..kept];
            prop_assert_eq!(pages(merged), pages(&spans));
            for pair in merged.windows(2) {
                prop_assert!(pair[0].last < pair[1].first);
            }
            // A span that freed tables still says so.
            let freed = |spans: &[Span]| pages(&spans.iter().copied().filter(|s| !s.leaf_only).collect::<Vec<_>>());
            prop_assert!(freed(merged).is_superset(&freed(&spans)));
        }

        #[test]
        fn what_is_pushed_is_pending(ranges in prop::collection::vec((1..200u64, 1..4u64, any::<bool>()), 0..40)) {
            let pending = Pending::new();
            let mut all = Vec::new();
            for (first, n, leaf_only) in ranges {
                pending.push(IovaRange::new(first, n).unwrap(), leaf_only);
                all.push(Span { first, last: first + n - 1, leaf_only });
                let mut spans = [Span::EMPTY; SPANS];
                if let Some(len) = pending.read(&mut spans) {
                    prop_assert!(pages(&spans[..len]).is_superset(&pages(&all)));
                    for freed in all.iter().filter(|s| !s.leaf_only) {
                        let told = spans[..len].iter().any(|s| {
                            !s.leaf_only && s.first <= freed.first && freed.last <= s.last
                        });
                        prop_assert!(told);
                    }
                }
            }
            pending.clear();
            prop_assert!(pending.is_empty());
        }
    }

    #[test]
    fn too_many_spans_are_everything() {
        let pending = Pending::new();
        let push = |n: u64| pending.push(IovaRange::new(1 + 2 * n, 1).unwrap(), true);
        (0..SPANS as u64).for_each(push);
        let mut spans = [Span::EMPTY; SPANS];
        assert_eq!(pending.read(&mut spans), Some(SPANS));
        push(100);
        assert_eq!(pending.read(&mut spans), None);
    }
}
