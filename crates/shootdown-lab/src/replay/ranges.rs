//! Sets of page ranges.

use std::collections::BTreeMap;

/// A set of pages, kept as disjoint ranges: first page to one past the last.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Whether the page is in the set.
    pub fn contains(&self, page: u64) -> bool {
        self.0.range(..=page).next_back().is_some_and(|(_, end)| page < *end)
    }

    /// Whether any page of `[first, end)` is.
    pub fn overlaps(&self, first: u64, end: u64) -> bool {
        self.contains(first) || self.0.range(first..end).next().is_some()
    }

    /// Adds `[first, end)`.
    pub fn insert(&mut self, first: u64, end: u64) {
        self.remove(first, end);
        self.0.insert(first, end);
    }

    /// Takes `[first, end)` out.
    pub fn remove(&mut self, first: u64, end: u64) {
        for cut in [first, end] {
            let holder = self.0.range(..cut).next_back().map(|(start, end)| (*start, *end));
            if let Some((start, old)) = holder
                && cut < old
            {
                self.0.insert(start, cut);
                self.0.insert(cut, old);
            }
        }
        let inside: Vec<u64> = self.0.range(first..end).map(|(start, _)| *start).collect();
        for start in inside {
            self.0.remove(&start);
        }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_split_where_they_are_cut() {
        let mut ranges = Ranges::default();
        ranges.insert(10, 20);
        ranges.insert(30, 40);
        ranges.remove(15, 32);
        let inside: Vec<_> = (0..50).filter(|page| ranges.contains(*page)).collect();
        assert_eq!(inside, (10..15).chain(32..40).collect::<Vec<_>>());
        assert!(ranges.overlaps(0, 11) && ranges.overlaps(14, 15) && ranges.overlaps(12, 90));
        assert!(!ranges.overlaps(15, 32) && !ranges.overlaps(0, 10) && !ranges.overlaps(40, 41));
        ranges.insert(0, 100);
        assert!((0..100).all(|page| ranges.contains(page)));
        ranges.clear();
        assert!(!ranges.overlaps(0, 100));
    }
}
