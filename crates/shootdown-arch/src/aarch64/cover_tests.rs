//! Covers against sets of pages, and against a search of all covers.

use std::vec::Vec;

use super::*;

const LEVELS: [Level; 3] = [Level::One, Level::Two, Level::Three];

/// The steps of a piece, from the operand it encodes to: what hardware would see.
fn interval(shape: &Shape, level: Level, piece: Piece) -> (u64, u64) {
    let shift = shape.granule.leaf_shift(level);
    match piece {
        Piece::Page(page) => (page.address() >> shift, 1),
        Piece::Span(span) => {
            let operand = span.operand();
            let (scale, num) = (operand >> 44 & 3, operand >> 39 & 31);
            let pages = (num + 1) << (5 * scale + 1);
            let unit = if shape.lpa2 { 16 } else { shape.granule.shift() };
            let first = (operand & ((1 << 37) - 1)) << unit;
            let step = shift - shape.granule.shift();
            assert_eq!(pages % (1 << step), 0, "a whole number of steps");
            assert_eq!(first & ((1 << shift) - 1), 0);
            (first >> shift, pages >> step)
        }
    }
}

/// Checks I1 and I2 and returns the number of operations.
fn check(shape: &Shape, level: Level, first: u64, count: u64, depth: Depth) -> u64 {
    let shift = shape.granule.leaf_shift(level);
    let cover = shape.cover(first << shift, count, level, depth);
    let announced = cover.operations();
    let mut intervals: Vec<_> = cover.map(|piece| interval(shape, level, piece)).collect();
    assert_eq!(intervals.len() as u64, announced, "every operation could be encoded");
    intervals.sort_unstable();
    // The union is one interval, the range.
    let mut end = first;
    for (start, size) in &intervals {
        assert!(*start <= end, "{shape:?} {first}+{count}: step {end} is missed");
        assert!(*start >= first && start + size <= first + count, "outside of {first}+{count}");
        end = end.max(start + size);
    }
    assert_eq!(end, first + count, "{shape:?} {level:?} {first}+{count}: {intervals:?}");
    announced
}

fn shapes() -> impl Iterator<Item = Shape> {
    Granule::ALL.into_iter().flat_map(|granule| {
        [(false, false), (true, false), (false, true), (true, true)].map(|(lpa2, ranges)| Shape {
            granule,
            lpa2,
            ranges,
        })
    })
}

/// Every number of steps up to the borders of scale 2, from every position relative to a border, as
/// sets.
#[test]
fn every_small_range_is_covered_exactly() {
    for shape in shapes() {
        for level in LEVELS {
            for first in 0..17 {
                for count in (1..=300).chain([2047, 2048, 2049, 2111, 2112, 2113, 4095, 4096, 4097])
                {
                    for depth in [Depth::Tables, Depth::Leaves, Depth::LeavesAt(level)] {
                        let operations = check(&shape, level, first, count, depth);
                        if !shape.ranges {
                            assert_eq!(operations, count);
                        }
                    }
                }
            }
        }
    }
}

/// The same with every page written down: bits of a set rather than ends of intervals.
#[test]
fn every_page_is_in_and_no_other() {
    for lpa2 in [false, true] {
        let shape = Shape { granule: Granule::K4, lpa2, ranges: true };
        for first in 0..16u64 {
            for count in 1..=200u64 {
                let mut set = [false; 256];
                for piece in shape.cover(first << 12, count, Level::Three, Depth::Leaves) {
                    let (start, size) = interval(&shape, Level::Three, piece);
                    (start..start + size).for_each(|page| set[page as usize] = true);
                }
                let expected: Vec<bool> =
                    (0..256).map(|page| (first..first + count).contains(&page)).collect();
                assert_eq!(set[..], expected[..], "{first}+{count}");
            }
        }
    }
}

/// Sizes that one operation can have, straight from the formula.
fn sizes() -> Vec<u64> {
    let mut sizes: Vec<u64> =
        (0..4).flat_map(|s| (1..=32u64).map(move |c| c << (5 * s + 1))).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Fewest operations by trying everything: `reach[k]` after covering the first k pages, where an
/// operation may begin at any border at or before what is covered already.
fn fewest(first: u64, count: u64, border: u64, sizes: &[u64]) -> u64 {
    let n = count as usize;
    let mut reach = std::vec![u64::MAX; n + 1];
    reach[0] = 0;
    for k in 0..n {
        if reach[k] == u64::MAX {
            continue;
        }
        let next = reach[k] + 1;
        reach[k + 1] = reach[k + 1].min(next);
        // Any operation with a start in 0..=k and an end beyond k.
        for start in (0..=k).filter(|start| (first + *start as u64) % border == 0) {
            for size in sizes {
                let end = start + *size as usize;
                if end > n {
                    break;
                }
                if end > k {
                    reach[end] = reach[end].min(next);
                }
            }
        }
    }
    reach[n]
}

#[test]
fn no_cover_has_fewer_operations() {
    let sizes = sizes();
    for (granule, lpa2, border) in
        [(Granule::K4, false, 1), (Granule::K4, true, 16), (Granule::K16, true, 4)]
    {
        let shape = Shape { granule, lpa2, ranges: true };
        for first in [0, 1, 5, border - 1] {
            for count in (1..=160).chain([193, 207, 258, 270]) {
                let best = fewest(first, count, border, &sizes);
                let ours = check(&shape, Level::Three, first, count, Depth::Leaves);
                assert_eq!(ours, best, "{granule:?} lpa2 {lpa2}: {first}+{count}");
            }
        }
    }
}

/// Up to the largest operation, and at every border of SCALE and NUM: two.
#[test]
fn two_operations_are_enough() {
    let shape = Shape { granule: Granule::K4, lpa2: false, ranges: true };
    for count in 1..=70_000 {
        assert!(check(&shape, Level::Three, 3, count, Depth::Leaves) <= 2, "{count}");
    }
    for size in sizes() {
        for count in size.saturating_sub(3).max(1)..=(size + 3).min(Span::MAX_PAGES) {
            let operations = check(&shape, Level::Three, 7, count, Depth::Leaves);
            assert!(operations <= 2, "{count}");
            assert!(count != size || operations == 1);
        }
    }
}

/// A generator of the test's own (SplitMix64), so that every run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}

#[test]
fn large_ranges_are_covered_exactly_with_few_operations() {
    let mut random = Random(4);
    for shape in shapes().filter(|shape| shape.ranges) {
        for level in LEVELS {
            let shift = shape.granule.leaf_shift(level);
            let room = 1u64 << (48 - shift);
            let max = (Span::MAX_PAGES >> (shift - shape.granule.shift())).max(1);
            for _ in 0..3000 {
                let first = random.below(room);
                let bits = random.below(27);
                let count = 1 + random.below(1 << bits).min(room - first - 1);
                if max == 1 && count > 5000 {
                    continue;
                }
                let depth =
                    if random.below(2) == 0 { Depth::LeavesAt(level) } else { Depth::Tables };
                let operations = check(&shape, level, first, count, depth);
                let limit = if max == 1 { count } else { 15 + count / max + 4 };
                assert!(operations <= limit, "{shape:?} {level:?} {first}+{count}: {operations}");
                if max > 1 && !shape.lpa2 {
                    assert!(operations <= count / max + 2);
                }
            }
        }
    }
}
