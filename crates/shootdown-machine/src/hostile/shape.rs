//! How a virtual page number is cut into indices.

use super::HostileError;

/// The levels of a table tree and the entries of a table. Level 0 is the last: its entries map
/// pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    levels: u8,
    index_bits: u8,
}

/// The deepest tree. Five-level paging adds nothing that four levels do not show.
pub const MAX_LEVELS: u8 = 4;
/// The widest index: a table of 256 entries.
pub const MAX_INDEX_BITS: u8 = 8;

impl Shape {
    /// `levels` levels of tables with 2^`index_bits` entries each.
    ///
    /// # Errors
    /// [`HostileError::Shape`] unless there are 1 to [`MAX_LEVELS`] levels of 1 to
    /// [`MAX_INDEX_BITS`] bits.
    pub const fn new(levels: u8, index_bits: u8) -> Result<Self, HostileError> {
        if levels == 0 || levels > MAX_LEVELS || index_bits == 0 || index_bits > MAX_INDEX_BITS {
            return Err(HostileError::Shape { levels, index_bits });
        }
        Ok(Self { levels, index_bits })
    }

    /// How many levels.
    #[must_use]
    pub const fn levels(self) -> u8 {
        self.levels
    }

    /// The level of a root.
    #[must_use]
    pub const fn top(self) -> u8 {
        self.levels - 1
    }

    /// Entries of a table.
    #[must_use]
    pub const fn entries(self) -> usize {
        1 << self.index_bits
    }

    /// The last page there is.
    #[must_use]
    pub const fn last_page(self) -> u32 {
        self.last_offset(self.levels)
    }

    /// Where `page` is found in a table of `level`.
    #[must_use]
    pub const fn index(self, page: u32, level: u8) -> u8 {
        ((page >> self.shift(level)) & ((1 << self.index_bits) - 1)) as u8
    }

    /// The pages that one entry of a table of `level` spans, minus one.
    #[must_use]
    pub const fn last_offset(self, level: u8) -> u32 {
        ((1u64 << self.shift(level)) - 1) as u32
    }

    /// The first page that entry `index` of a table of `level` spans, if the table's first is
    /// `base`.
    pub(super) const fn base(self, base: u32, level: u8, index: u8) -> u32 {
        base | (index as u32) << self.shift(level)
    }

    const fn shift(self, level: u8) -> u32 {
        level as u32 * self.index_bits as u32
    }
}

/// Pages from `first` to `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pages {
    /// The first page.
    pub first: u32,
    /// The last page.
    pub last: u32,
}

impl Pages {
    /// Every page there is.
    pub const ALL: Self = Self { first: 0, last: u32::MAX };

    /// One page.
    #[must_use]
    pub const fn one(page: u32) -> Self {
        Self { first: page, last: page }
    }

    /// Do both have a page in common?
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Is the page one of them?
    #[must_use]
    pub const fn has(self, page: u32) -> bool {
        self.first <= page && page <= self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_undo_bases() {
        for (levels, bits) in [(1, 2), (2, 3), (3, 2), (4, 8)] {
            let shape = Shape::new(levels, bits).unwrap();
            assert_eq!((shape.top(), shape.entries()), (levels - 1, 1 << bits));
            let page = 0xa5a5_a5a5 & shape.last_offset(shape.top()).wrapping_mul(2).wrapping_add(1);
            let mut base = 0;
            for level in (0..levels).rev() {
                base = shape.base(base, level, shape.index(page, level));
                let span = Pages { first: base, last: base + shape.last_offset(level) };
                assert!(span.has(page));
            }
            assert_eq!(base, page);
        }
    }

    #[test]
    fn shapes_out_of_bounds_are_refused() {
        for (levels, bits) in [(0, 2), (5, 2), (2, 0), (2, 9)] {
            let error = HostileError::Shape { levels, index_bits: bits };
            assert_eq!(Shape::new(levels, bits), Err(error));
        }
    }

    #[test]
    fn ranges_meet_where_they_share_a_page() {
        let a = Pages { first: 2, last: 4 };
        assert!(a.meets(Pages::one(4)) && a.meets(Pages::ALL) && !a.meets(Pages::one(5)));
    }
}
