//! The leaf entries of one CPU: two levels of arrays, filled together, searched in order.
//!
//! A walk fills both levels; a hit in the second refills the first; each level evicts on its own.

use shootdown::{Stride, VaRange};

use crate::mmu::array::{Entries, Entry, Liveness, page_key, span_of};
use crate::mmu::geometry::{Array, TlbGeometry};
use crate::mmu::{addr, array};

const SIZES: [Stride; 3] = [Stride::Page4K, Stride::Page2M, Stride::Page1G];

/// The arrays of one level and which of them holds which size.
#[derive(Debug)]
struct Level {
    arrays: Vec<Entries>,
    of: [Option<u8>; 3],
    /// Sizes that were ever put here; the others need no search.
    seen: [bool; 3],
}

impl Level {
    fn new(arrays: &[Array]) -> Self {
        let of = SIZES.map(|s| arrays.iter().position(|a| a.holds[s as usize]).map(|i| i as u8));
        Self { arrays: arrays.iter().map(|a| Entries::new(*a)).collect(), of, seen: [false; 3] }
    }

    #[inline]
    fn array(&mut self, size: Stride) -> Option<&mut Entries> {
        let i = self.of[size as usize]?;
        self.arrays.get_mut(usize::from(i))
    }

    #[inline]
    fn find(&mut self, vpn: u64, context: u32, size: Stride) -> Option<&mut Entry> {
        let array = self.array(size)?;
        let place = array.find(page_key(vpn, size, context))?;
        Some(array.at(place))
    }

    /// 2 MiB, then 1 GiB.
    fn find_large(&mut self, vpn: u64, context: u32) -> Option<(&mut Entry, Stride)> {
        for size in [Stride::Page2M, Stride::Page1G] {
            if self.seen[size as usize]
                && let Some(i) = self.of[size as usize]
                && let Some(place) = self.arrays[usize::from(i)].find(page_key(vpn, size, context))
            {
                return Some((self.arrays[usize::from(i)].at(place), size));
            }
        }
        None
    }

    fn insert(
        &mut self,
        vpn: u64,
        context: u32,
        size: Stride,
        entry: Entry,
        alive: &impl Liveness,
    ) {
        if let Some(array) = self.array(size) {
            array.insert(page_key(vpn, size, context), entry, alive);
            self.seen[size as usize] = true;
        }
    }

    fn remove(&mut self, vpn: u64, context: u32, size: Stride) {
        if self.seen[size as usize]
            && let Some(array) = self.array(size)
        {
            array.remove(page_key(vpn, size, context));
        }
    }
}

/// Where an entry was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum In {
    First,
    Second,
}

/// The leaf entries.
#[derive(Debug)]
pub(crate) struct Tlb {
    l1: Level,
    l2: Level,
    /// More strides than this and a search of everything is cheaper than a search per stride.
    many: u64,
}

impl Tlb {
    /// The geometry has been checked.
    pub(crate) fn new(geometry: &TlbGeometry) -> Self {
        let all = geometry.l1.iter().chain(&geometry.l2);
        let entries: u64 = all.map(|a| u64::from(a.entries)).sum();
        Self { l1: Level::new(&geometry.l1), l2: Level::new(&geometry.l2), many: entries / 4 }
    }

    /// A 4 KiB entry of the first level.
    #[inline]
    pub(crate) fn find_first_4k(&mut self, vpn: u64, context: u32) -> Option<&mut Entry> {
        self.l1.find(vpn, context, Stride::Page4K)
    }

    /// Any entry for this page number, first level first, small pages first.
    pub(crate) fn find(&mut self, vpn: u64, context: u32) -> Option<(Entry, Stride, In)> {
        for (level, place) in [(&mut self.l1, In::First), (&mut self.l2, In::Second)] {
            if let Some(e) = level.find(vpn, context, Stride::Page4K) {
                return Some((*e, Stride::Page4K, place));
            }
            if let Some((e, size)) = level.find_large(vpn, context) {
                return Some((*e, size, place));
            }
        }
        None
    }

    /// Calls `f` for every entry of whatever size and level for this page number, without using it.
    pub(crate) fn peek(&self, vpn: u64, context: u32, mut f: impl FnMut(&Entry)) {
        for level in [&self.l1, &self.l2] {
            for size in SIZES {
                if level.seen[size as usize]
                    && let Some(i) = level.of[size as usize]
                    && let Some(e) = level.arrays[usize::from(i)].peek(page_key(vpn, size, context))
                {
                    f(e);
                }
            }
        }
    }

    /// Puts an entry into the first level only, or replaces the one that is there.
    pub(crate) fn insert_first(
        &mut self,
        vpn: u64,
        context: u32,
        size: Stride,
        entry: Entry,
        alive: &impl Liveness,
    ) {
        self.l1.insert(vpn, context, size, entry, alive);
    }

    /// Puts a fresh translation into both levels.
    pub(crate) fn fill(
        &mut self,
        vpn: u64,
        context: u32,
        size: Stride,
        entry: Entry,
        alive: &impl Liveness,
    ) {
        self.l1.insert(vpn, context, size, entry, alive);
        self.l2.insert(vpn, context, size, entry, alive);
    }

    /// Drops every entry, of whatever size, that translates this page number in a context.
    pub(crate) fn drop_page(&mut self, vpn: u64, context: u32) {
        for size in SIZES {
            self.l1.remove(vpn, context, size);
            self.l2.remove(vpn, context, size);
        }
    }

    /// As one single-page invalidation per stride of the range: an entry goes when it translates
    /// the first address of a stride.
    pub(crate) fn drop_range(&mut self, range: VaRange, context: u32) {
        if range.count() <= self.many {
            for i in 0..range.count() {
                self.drop_page(addr::vpn(range.start() + i * range.stride().bytes()), context);
            }
        } else {
            self.retain(|key| array::context_of(key) != context || !hit_by(key, range));
        }
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for array in self.l1.arrays.iter_mut().chain(&mut self.l2.arrays) {
            array.retain(&mut keep);
        }
    }

    pub(crate) fn for_each(&self, mut f: impl FnMut(u64, &Entry)) {
        for array in self.l1.arrays.iter().chain(&self.l2.arrays) {
            array.for_each(&mut f);
        }
    }
}

/// Does the page of this key hold the first address of a stride of the range?
fn hit_by(key: u64, range: VaRange) -> bool {
    let (first, last) = span_of(key);
    addr::stride_in(addr::va_of(first), addr::va_of(last) + 0xfff, range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stride_hits_the_page_that_holds_its_first_address() {
        let r = |start, n, s| VaRange::new(start, n, s).unwrap();
        let small = |va: u64| page_key(addr::vpn(va), Stride::Page4K, 1);
        let large = |va: u64| page_key(addr::vpn(va), Stride::Page2M, 1);
        assert!(hit_by(small(0x3000), r(0x1000, 3, Stride::Page4K)));
        assert!(!hit_by(small(0x4000), r(0x1000, 3, Stride::Page4K)));
        assert!(!hit_by(small(0), r(0x1000, 3, Stride::Page4K)));
        assert!(hit_by(large(0), r(0x1000, 1, Stride::Page4K)), "inside a large page");
        assert!(!hit_by(large(0x20_0000), r(0x1000, 511, Stride::Page4K)));
        assert!(hit_by(large(0x20_0000), r(0x1000, 512, Stride::Page4K)));
        // One instruction per 2 MiB reaches one 4 KiB page in each.
        let sparse = r(0x20_0000, 2, Stride::Page2M);
        assert!(hit_by(small(0x20_0000), sparse) && hit_by(small(0x40_0000), sparse));
        assert!(!hit_by(small(0x20_1000), sparse));
    }
}
