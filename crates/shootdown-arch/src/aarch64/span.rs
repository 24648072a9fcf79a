//! The operand of a range operation (FEAT_TLBIRANGE).
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 63:48 | ASID | zero for the operations on every ASID |
//! | 47:46 | TG | granule: 1 is 4 KiB, 2 is 16 KiB, 3 is 64 KiB; another than the entries' removes nothing |
//! | 45:44 | SCALE | |
//! | 43:39 | NUM | |
//! | 38:37 | TTL | level of every leaf in the range; 0 is any |
//! | 36:0 | BaseADDR | the first address, in granules; in units of 64 KiB with 52-bit addresses (`TCR_EL1.DS`) |
//!
//! One operation covers `(NUM + 1) << (5 * SCALE + 1)` pages from BaseADDR on (Arm ARM C5.5, TLBI
//! RVAE1). So the number of pages is always even, and at most 2^21.
//!
//! With a level hint, the range is unpredictable unless BaseADDR is a multiple of that level's
//! leaf; with `TCR_EL1.DS`, nothing but multiples of 64 KiB can be written down. [`Span::new`]
//! refuses both.

use core::fmt;

use super::granule::{Depth, Granule, Level};

/// Values of NUM + 1.
pub(super) const MAX_COUNT: u64 = 32;
/// log2 of the factor from one SCALE to the next.
pub(super) const SCALE_SHIFT: u32 = 5;
/// SCALE is at most this.
pub(super) const MAX_SCALE: u32 = 3;
/// With `TCR_EL1.DS` the base counts in these.
pub(super) const LPA2_SHIFT: u32 = 16;

/// Pages one step of NUM adds at a scale.
pub(super) const fn unit(scale: u32) -> u64 {
    1 << (SCALE_SHIFT * scale + 1)
}

/// The range of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    base: u64,
    pages: u64,
    granule: Granule,
    depth: Depth,
    lpa2: bool,
}

/// Why one operation can't name a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpanError {
    /// The number of pages is none of `(NUM + 1) << (5 * SCALE + 1)`.
    Pages(u64),
    /// The first address is not a multiple of 2^`shift`, as the granule, the hint or `TCR_EL1.DS`
    /// ask.
    Misaligned {
        /// The address.
        address: u64,
        /// What it should be a multiple of.
        shift: u32,
    },
    /// Level 1 of the 16 KiB granule can't be hinted.
    Level,
}

impl fmt::Display for SpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(pages) => {
                write!(
                    f,
                    "{pages} pages are not what one range operation covers; use `Shape::cover`"
                )
            }
            Self::Misaligned { address, shift } => {
                write!(
                    f,
                    "{address:#x} is not a multiple of {:#x}, as a range must begin",
                    1u64 << shift
                )
            }
            Self::Level => {
                f.write_str("a level 1 hint is reserved with 16 KiB pages; leave it out")
            }
        }
    }
}

impl core::error::Error for SpanError {}

/// SCALE and NUM of a number of pages, the smallest SCALE that fits.
const fn scale_num(pages: u64) -> Option<(u32, u64)> {
    let mut scale = 0;
    while scale <= MAX_SCALE {
        let unit = unit(scale);
        if pages % unit == 0 && pages != 0 && pages / unit <= MAX_COUNT {
            return Some((scale, pages / unit - 1));
        }
        scale += 1;
    }
    None
}

impl Span {
    /// The most pages one operation covers.
    pub const MAX_PAGES: u64 = MAX_COUNT * unit(MAX_SCALE);

    /// The range of `pages` pages from `address` on. `lpa2`: 52-bit addresses (`TCR_EL1.DS`).
    ///
    /// # Errors
    /// [`SpanError`] when the operand can't say that.
    pub const fn new(
        address: u64,
        granule: Granule,
        pages: u64,
        depth: Depth,
        lpa2: bool,
    ) -> Result<Self, SpanError> {
        if scale_num(pages).is_none() {
            return Err(SpanError::Pages(pages));
        }
        let mut shift = match depth {
            Depth::LeavesAt(Level::One) if matches!(granule, Granule::K16) => {
                return Err(SpanError::Level);
            }
            Depth::LeavesAt(level) => granule.leaf_shift(level),
            Depth::Leaves | Depth::Tables => granule.shift(),
        };
        if lpa2 && shift < LPA2_SHIFT {
            shift = LPA2_SHIFT;
        }
        if address & ((1 << shift) - 1) != 0 {
            return Err(SpanError::Misaligned { address, shift });
        }
        Ok(Self { base: address, pages, granule, depth, lpa2 })
    }

    /// The first address.
    #[must_use]
    pub const fn base(self) -> u64 {
        self.base
    }

    /// How many pages of the granule.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.pages
    }

    /// The granule.
    #[must_use]
    pub const fn granule(self) -> Granule {
        self.granule
    }

    /// Cached non-leaf entries may stay.
    #[must_use]
    pub const fn leaf_only(self) -> bool {
        self.depth.leaf_only()
    }

    /// The operand without an ASID.
    #[must_use]
    pub const fn operand(self) -> u64 {
        let Some((scale, num)) = scale_num(self.pages) else {
            unreachable!();
        };
        let ttl = match self.depth.hint(self.granule) {
            Some(level) => level.number() as u64,
            None => 0,
        };
        let shift = if self.lpa2 { LPA2_SHIFT } else { self.granule.shift() };
        let base = self.base >> shift & ((1 << 37) - 1);
        self.granule.field() | (scale as u64) << 44 | num << 39 | ttl << 37 | base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manual's formula, from the fields of the operand.
    fn pages_of(operand: u64) -> u64 {
        let (scale, num) = (operand >> 44 & 3, operand >> 39 & 31);
        (num + 1) << (5 * scale + 1)
    }

    #[test]
    fn every_scale_and_num_is_reached_and_reads_back() {
        for scale in 0..4u64 {
            for num in 0..32u64 {
                let pages = (num + 1) << (5 * scale + 1);
                let span = Span::new(0x1000, Granule::K4, pages, Depth::Leaves, false).unwrap();
                assert_eq!(pages_of(span.operand()), pages);
                assert_eq!(span.operand() & ((1 << 37) - 1), 1);
                for wrong in [pages - 1, pages + 1] {
                    let got = Span::new(0, Granule::K4, wrong, Depth::Leaves, false);
                    assert_eq!(got, Err(SpanError::Pages(wrong)));
                }
            }
        }
        assert_eq!(Span::MAX_PAGES, 1 << 21);
        assert!(Span::new(0, Granule::K4, 0, Depth::Leaves, false).is_err());
        assert!(Span::new(0, Granule::K4, 66, Depth::Leaves, false).is_err());
        assert!(Span::new(0, Granule::K4, Span::MAX_PAGES * 2, Depth::Leaves, false).is_err());
    }

    #[test]
    fn fields_are_where_the_manual_has_them() {
        let high = 0xffff_8000_4000_0000;
        for (granule, tg) in [(Granule::K4, 1), (Granule::K16, 2), (Granule::K64, 3)] {
            for lpa2 in [false, true] {
                let operand = Span::new(high, granule, 2, Depth::Leaves, lpa2).unwrap().operand();
                let shift = if lpa2 { 16 } else { granule.shift() };
                assert_eq!(operand & ((1 << 37) - 1), high >> shift & ((1 << 37) - 1));
                assert_eq!((operand >> 46, operand >> 37 & 3), (tg, 0));
            }
        }
        for (level, ttl) in [(Level::One, 1), (Level::Two, 2), (Level::Three, 3)] {
            let operand =
                Span::new(high, Granule::K4, 2, Depth::LeavesAt(level), false).unwrap().operand();
            assert_eq!(operand >> 37 & 3, ttl);
        }
    }

    #[test]
    fn a_hint_is_never_given_where_tables_were_freed() {
        for granule in Granule::ALL {
            for (depth, leaf_only) in [(Depth::Tables, false), (Depth::Leaves, true)] {
                let span = Span::new(0, granule, 2, depth, false).unwrap();
                assert_eq!((span.leaf_only(), span.operand() >> 37 & 3), (leaf_only, 0));
            }
        }
    }

    /// "The range of addresses invalidated is UNPREDICTABLE when ..." (C5.5, TLBI RVAE1).
    #[test]
    fn what_the_manual_calls_unpredictable_is_refused() {
        let bits: &[(Granule, Level, core::ops::Range<u32>)] = &[
            (Granule::K4, Level::One, 12..30),
            (Granule::K4, Level::Two, 12..21),
            (Granule::K16, Level::Two, 14..25),
            (Granule::K64, Level::One, 16..42),
            (Granule::K64, Level::Two, 16..29),
        ];
        for (granule, level, forbidden) in bits {
            for bit in granule.shift()..48 {
                let got = Span::new(1 << bit, *granule, 2, Depth::LeavesAt(*level), false);
                assert_eq!(got.is_err(), forbidden.contains(&bit), "{granule:?} {level:?} {bit}");
            }
        }
        for granule in Granule::ALL {
            for bit in 0..48 {
                let plain = Span::new(1 << bit, granule, 2, Depth::Leaves, false);
                assert_eq!(plain.is_err(), bit < granule.shift());
                let wide = Span::new(1 << bit, granule, 2, Depth::Leaves, true);
                assert_eq!(wide.is_err(), bit < 16);
            }
        }
        let got = Span::new(0, Granule::K16, 2, Depth::LeavesAt(Level::One), false);
        assert_eq!(got, Err(SpanError::Level));
    }
}
