//! Translation granules, the block sizes they allow, and level hints.
//!
//! | granule | page | level 2 block | level 1 block |
//! |---|---|---|---|
//! | 4 KiB | 4 KiB | 2 MiB | 1 GiB |
//! | 16 KiB | 16 KiB | 32 MiB | 64 GiB (with FEAT_LPA2) |
//! | 64 KiB | 64 KiB | 512 MiB | 4 TiB (with 52-bit addresses) |
//!
//! (Arm ARM D8.2.) The core counts in steps of 4 KiB, 2 MiB and 1 GiB. On a granule that has no
//! leaf of that size, a step is made of smaller ones: the *contiguous* bit makes 2 MiB out of 16
//! KiB pages, but a TLB may cache each of them on its own, so each has to be named
//! ([`Granule::step`]).

use shootdown::Stride;

/// The size of the smallest page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Granule {
    /// 4 KiB.
    K4,
    /// 16 KiB.
    K16,
    /// 64 KiB.
    K64,
}

/// The level of the tables that a leaf is at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Blocks of the largest size.
    One,
    /// Blocks.
    Two,
    /// Pages.
    Three,
}

/// Which levels of the tables an operation concerns, and how much is known of its leaves.
///
/// A level hint is part of "leaves only" and of nothing else: where table pages were freed, entries
/// of other levels must go too, and a hint could keep them. There is no value of this type that
/// says both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Depth {
    /// Cached entries of every level: table pages may have been freed.
    Tables,
    /// Leaf entries, at whatever level they are.
    Leaves,
    /// Leaf entries, and every one that may be cached is at this level. (FEAT_TTL; other CPUs
    /// ignore it.)
    LeavesAt(Level),
}

impl Depth {
    /// Cached non-leaf entries may stay.
    #[must_use]
    pub const fn leaf_only(self) -> bool {
        !matches!(self, Self::Tables)
    }

    /// The level to hint. Level 1 of the 16 KiB granule has no leaf without FEAT_LPA2 and its
    /// number is reserved there: no hint is what is always right.
    pub(super) const fn hint(self, granule: Granule) -> Option<Level> {
        match (self, granule) {
            (Self::LeavesAt(Level::One), Granule::K16) | (Self::Tables | Self::Leaves, _) => None,
            (Self::LeavesAt(level), _) => Some(level),
        }
    }
}

impl Granule {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::K4, Self::K16, Self::K64];

    /// log2 of the page size.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::K4 => 12,
            Self::K16 => 14,
            Self::K64 => 16,
        }
    }

    /// log2 of the size of a leaf at a level.
    #[must_use]
    pub const fn leaf_shift(self, level: Level) -> u32 {
        // A table fills one page of 8-byte entries.
        let per_level = self.shift() - 3;
        match level {
            Level::Three => self.shift(),
            Level::Two => self.shift() + per_level,
            Level::One => self.shift() + 2 * per_level,
        }
    }

    /// The largest leaf that is not larger than a stride, or a page where the stride is smaller
    /// than one: its level is what one operation steps over.
    #[must_use]
    pub const fn step(self, stride: Stride) -> Level {
        if self.leaf_shift(Level::One) <= stride.shift() {
            Level::One
        } else if self.leaf_shift(Level::Two) <= stride.shift() {
            Level::Two
        } else {
            Level::Three
        }
    }

    /// The granule's number in TLBI operands: bits 47:46, both of a page (TTL) and of a range (TG).
    pub(super) const fn field(self) -> u64 {
        let number = match self {
            Self::K4 => 1,
            Self::K16 => 2,
            Self::K64 => 3,
        };
        number << 46
    }
}

impl Level {
    /// The level's number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_have_the_manuals_sizes() {
        let sizes =
            |g: Granule| [Level::Three, Level::Two, Level::One].map(|l| 1u64 << g.leaf_shift(l));
        assert_eq!(sizes(Granule::K4), [4 << 10, 2 << 20, 1 << 30]);
        assert_eq!(sizes(Granule::K16), [16 << 10, 32 << 20, 64 << 30]);
        assert_eq!(sizes(Granule::K64), [64 << 10, 512 << 20, 4 << 40]);
    }

    #[test]
    fn a_step_is_never_larger_than_the_stride_except_for_a_page() {
        for granule in Granule::ALL {
            for stride in [Stride::Page4K, Stride::Page2M, Stride::Page1G] {
                let step = granule.step(stride);
                let shift = granule.leaf_shift(step);
                assert!(shift <= stride.shift() || step == Level::Three);
                assert_eq!(granule.field() >> 46, u64::from(granule.shift()) / 2 - 5);
            }
        }
        assert_eq!(Granule::K4.step(Stride::Page1G), Level::One);
        assert_eq!(Granule::K16.step(Stride::Page2M), Level::Three);
        assert_eq!(Granule::K64.step(Stride::Page1G), Level::Two);
    }
}
