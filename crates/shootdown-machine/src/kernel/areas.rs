//! What a space maps: ranges with a page size and a right, filled on demand.

use std::collections::BTreeMap;

use shootdown::ids::Stride;

use crate::mmu::USER_END;

/// A range of addresses with one page size and one right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// One past its last byte.
    pub end: u64,
    pub size: Stride,
    pub writable: bool,
}

/// The areas of a space, by their first address; disjoint.
#[derive(Debug, Default)]
pub struct Areas(BTreeMap<u64, Area>);

impl Areas {
    /// The area that holds an address, and where it begins.
    pub fn find(&self, va: u64) -> Option<(u64, Area)> {
        let (start, area) = self.0.range(..=va).next_back()?;
        (va < area.end).then_some((*start, *area))
    }

    /// Adds an area where none is.
    pub fn insert(&mut self, start: u64, area: Area) {
        debug_assert!(self.0.range(start..area.end).next().is_none() && self.find(start).is_none());
        self.0.insert(start, area);
    }

    /// Removes `[start, end)`, splitting what reaches out of it.
    pub fn remove(&mut self, start: u64, end: u64) {
        for at in self.cut(start, end) {
            self.0.remove(&at);
        }
    }

    /// Gives `[start, end)`, as far as it is mapped, another right.
    pub fn set_writable(&mut self, start: u64, end: u64, writable: bool) {
        for at in self.cut(start, end) {
            if let Some(area) = self.0.get_mut(&at) {
                area.writable = writable;
            }
        }
    }

    /// The unmapped addresses around `[start, end)`, which is unmapped.
    pub fn gap(&self, start: u64, end: u64) -> (u64, u64) {
        let low = self.0.range(..start).next_back().map_or(0, |(_, area)| area.end);
        let high = self.0.range(end..).next().map_or(USER_END, |(at, _)| *at);
        (low, high)
    }

    /// Cuts areas at both ends of `[start, end)` and names those inside.
    fn cut(&mut self, start: u64, end: u64) -> Vec<u64> {
        for at in [start, end] {
            if let Some((first, area)) = self.find(at)
                && first < at
            {
                self.0.insert(first, Area { end: at, ..area });
                self.0.insert(at, area);
            }
        }
        self.0.range(start..end).map(|(at, _)| *at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_split_where_they_are_cut() {
        let mut areas = Areas::default();
        areas.insert(0x1000, Area { end: 0x9000, size: Stride::Page4K, writable: true });
        areas.set_writable(0x3000, 0x5000, false);
        areas.remove(0x4000, 0x6000);
        let right = |va| areas.find(va).map(|(_, a)| a.writable);
        assert_eq!(right(0x2fff), Some(true));
        assert_eq!(right(0x3000), Some(false));
        assert_eq!((right(0x4000), right(0x5fff)), (None, None));
        assert_eq!((right(0x6000), right(0x9000)), (Some(true), None));
        assert_eq!(areas.gap(0x4000, 0x6000), (0x4000, 0x6000));
        areas.remove(0, USER_END);
        assert_eq!(areas.gap(0x4000, 0x6000), (0, USER_END));
    }
}
