//! Aligned power-of-two blocks around a range: the only sizes that the commands of most IOMMUs
//! have.
//!
//! One block around a range can be far too large: two pages on both sides of a high boundary need a
//! block as large as the boundary. Two blocks never are: cut at the highest boundary inside, each
//! part ends or begins at it, and the block around such a part has less than twice its pages. So
//! [`cover`] gives one block if that is at most twice the range, and two otherwise (I7: their union
//! holds all of the range; no page more than twice).

use crate::addr::IovaRange;

/// A block of 2^`order` pages, aligned to its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The first page, a multiple of the size.
    pub first: u64,
    /// The logarithm of the number of pages: 0 to 64.
    pub order: u32,
}

impl Block {
    /// The smallest block that holds all of `range`.
    #[must_use]
    pub fn around(range: IovaRange) -> Self {
        Self::spanning(range.first(), range.last())
    }

    fn spanning(first: u64, last: u64) -> Self {
        // The highest bit in which first and last differ lies inside the block, all bits above it
        // outside.
        let order = u64::BITS - (first ^ last).leading_zeros();
        Self { first: first & !Self::mask(order), order }
    }

    const fn mask(order: u32) -> u64 {
        match 1u64.checked_shl(order) {
            Some(size) => size - 1,
            None => u64::MAX,
        }
    }

    /// The number of the last page.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.first | Self::mask(self.order)
    }

    /// Whether it has more than twice the pages of `range`.
    #[must_use]
    pub const fn is_over_twice(self, range: IovaRange) -> bool {
        // In 128 bits, since 2^64 pages are one too many for 64.
        (1u128 << self.order) > 2 * range.pages() as u128
    }

    /// Where it begins (in bytes, of pages of 4 KiB), and how large it is, in one word, in the
    /// format of VT-d, AMD-Vi and PCIe (ATS: *untranslated address* and *S*). Of the page number
    /// the lowest `order - 1` bits are ones and the next is zero; the flag says that this is so. A
    /// single page has no flag.
    #[must_use]
    pub const fn sized_address(self) -> (u64, bool) {
        match self.order {
            0 => (self.first << 12, false),
            // All 52 bits of page number that exist: every bit but the highest is one.
            52.. => (0x7fff_ffff_ffff_f000, true),
            order => ((self.first | Self::mask(order - 1)) << 12, true),
        }
    }
}

/// The blocks that hold all of a range, one or two.
#[derive(Clone, Debug)]
pub struct Cover {
    blocks: [Block; 2],
    next: usize,
    count: usize,
}

/// Covers `range` with one block, if that is at most twice as large, and else with two.
///
/// ```
/// use shootdown_dma::IovaRange;
/// use shootdown_dma::invalidate::cover::{Block, cover};
/// let pages = IovaRange::new(0xfff, 2).expect("two pages on both sides of a high boundary");
/// let blocks: Vec<Block> = cover(pages).collect();
/// assert_eq!(blocks, [Block { first: 0xfff, order: 0 }, Block { first: 0x1000, order: 0 }]);
/// ```
#[must_use]
pub fn cover(range: IovaRange) -> Cover {
    let one = Block::around(range);
    if !one.is_over_twice(range) {
        return Cover { blocks: [one, one], next: 0, count: 1 };
    }
    let middle = range.last() & !Block::mask(one.order - 1);
    let left = Block::spanning(range.first(), middle - 1);
    let right = Block::spanning(middle, range.last());
    Cover { blocks: [left, right], next: 0, count: 2 }
}

impl Cover {
    /// The largest order of the blocks.
    #[must_use]
    pub const fn order(&self) -> u32 {
        let [a, b] = self.blocks;
        if a.order > b.order { a.order } else { b.order }
    }
}

impl Iterator for Cover {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        let block = *self.blocks[..self.count].get(self.next)?;
        self.next += 1;
        Some(block)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count - self.next, Some(self.count - self.next))
    }
}

impl ExactSizeIterator for Cover {}

#[cfg(test)]
pub(crate) mod tests {
    use std::vec::Vec;

    use super::*;

    /// All ranges of eight bits, at the bottom and at the top of the numbers.
    fn ranges() -> impl Iterator<Item = IovaRange> {
        let small = (1..256u64).flat_map(|first| (1..256).map(move |pages| (first, pages)));
        small
            .flat_map(|(first, pages)| {
                [first, first + (1 << 40) - 128, u64::MAX - 512 + first].map(|f| (f, pages))
            })
            .filter_map(|(first, pages)| IovaRange::new(first, pages))
    }

    #[test]
    pub(crate) fn blocks_hold_the_range_and_less_than_twice_as_much() {
        for range in ranges() {
            let blocks: Vec<Block> = cover(range).collect();
            let size = |b: &Block| 1u128 << b.order;
            assert!(blocks.iter().all(|b| b.first & Block::mask(b.order) == 0), "{range:?}");
            assert!(blocks.iter().map(size).sum::<u128>() <= 2 * u128::from(range.pages()));
            // The blocks are in order, so the range is covered if there is no gap.
            assert!(
                blocks[0].first <= range.first()
                    && blocks[0].last() <= range.last().max(blocks[0].last())
            );
            assert!(blocks.last().unwrap().last() >= range.last(), "{range:?} {blocks:?}");
            for pair in blocks.windows(2) {
                assert_eq!(pair[0].last() + 1, pair[1].first, "{range:?} {blocks:?}");
            }
        }
    }

    #[test]
    fn one_block_is_the_smallest() {
        for range in ranges() {
            let one = Block::around(range);
            assert!(one.first <= range.first() && range.last() <= one.last(), "{range:?}");
            if let Some(half) = one.order.checked_sub(1) {
                let halves = [range.first(), range.last()].map(|p| p >> half);
                assert_ne!(halves[0], halves[1], "{range:?} fits half of it");
            }
        }
    }

    #[test]
    fn sized_addresses_say_the_size() {
        for order in 0..52 {
            let block = Block { first: (5 << order) & ((1 << 52) - 1), order };
            let (address, sized) = block.sized_address();
            // As PCIe reads it: the size is given by the lowest zero of the page number.
            let read = if sized { (address >> 12).trailing_ones() + 1 } else { 0 };
            assert_eq!(read, order);
            assert_eq!((address >> 12) >> order << order, block.first);
        }
    }
}
