//! NAPOT leaves (Svnapot): one translation written down sixteen times.
//!
//! # The problem
//! Sixteen neighbouring entries of a table of 4 KiB pages can together be one leaf of 64 KiB. A
//! hart may cache all of it, or any of its pages on its own, whichever of the sixteen entries it
//! read (Privileged, Svnapot). So a change of *one* of the entries concerns cached entries of all
//! sixteen pages, and since each may be cached by itself, a fence for one page need not remove the
//! others.
//!
//! # The rule
//! The range of a change that touches a NAPOT leaf, before or after, is widened to whole leaves
//! ([`Napot::widen`]) and invalidated page by page. Once per leaf would do on harts that cache a
//! leaf as one entry only; the manual promises that of none.

use shootdown::{Stride, VaRange};

/// The sizes of a leaf. The extension defines one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Napot {
    /// 64 KiB.
    K64,
}

impl Napot {
    /// log2 of the size.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::K64 => 16,
        }
    }

    /// How many 4 KiB pages a leaf has.
    #[must_use]
    pub const fn pages(self) -> u64 {
        1 << (self.shift() - Stride::Page4K.shift())
    }

    /// The smallest range of 4 KiB pages that holds the range and every leaf of this size that it
    /// touches.
    #[must_use]
    pub fn widen(self, range: VaRange) -> VaRange {
        let mask = (1 << self.shift()) - 1;
        let first = range.start() & !mask;
        let last = range.last() | mask;
        let count = ((last - first) >> Stride::Page4K.shift()) + 1;
        // Whole leaves inside 2^64 always are a range.
        VaRange::new(first, count, Stride::Page4K).unwrap_or(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_widened_to_whole_leaves_and_no_further() {
        let leaf = Napot::K64.pages();
        assert_eq!(leaf, 16);
        for base in [0u64, 0x40_0000, 0u64.wrapping_sub(64 << 12)] {
            for first in 0..40u64 {
                for count in 1..=(64 - first).min(24) {
                    let range = VaRange::new(base + (first << 12), count, Stride::Page4K).unwrap();
                    let wide = Napot::K64.widen(range);
                    let page = |at: u64| (at.wrapping_sub(base)) >> 12;
                    let pages = page(wide.start())..page(wide.start()) + wide.count();
                    for leaf_at in 0..4 {
                        let own = leaf_at * leaf..(leaf_at + 1) * leaf;
                        let touched = own.clone().any(|p| (first..first + count).contains(&p));
                        assert!(own.clone().all(|p| pages.contains(&p) == touched));
                    }
                    assert_eq!(wide.stride(), Stride::Page4K);
                }
            }
        }
        let large = VaRange::new(0x20_0000, 3, Stride::Page2M).unwrap();
        let wide = Napot::K64.widen(large);
        assert_eq!((wide.start(), wide.last()), (large.start(), large.last()));
    }
}
