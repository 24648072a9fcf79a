//! Canonical linear addresses, and ranges cut down to them.
//!
//! A 64-bit address is canonical when the bits above the implemented width repeat its top bit (SDM
//! vol. 1, 3.3.7.1). Nothing else can be translated, so nothing else can be cached. The
//! instructions disagree about such addresses: INVLPG does nothing, INVPCID faults. A flush request
//! is a range of plain numbers and may touch or cross the hole, so it is cut here, once, before any
//! instruction is chosen.

use core::fmt;

use shootdown::VaRange;

/// How many bits of a linear address are translated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinearWidth {
    /// Four levels of tables.
    Bits48,
    /// Five levels (`CR4.LA57`).
    Bits57,
}

impl LinearWidth {
    /// First address above the lower half.
    const fn half(self) -> u64 {
        match self {
            Self::Bits48 => 1 << 47,
            Self::Bits57 => 1 << 56,
        }
    }

    /// Is the address canonical?
    #[must_use]
    pub const fn is_canonical(self, address: u64) -> bool {
        address < self.half() || address >= self.half().wrapping_neg()
    }

    /// The canonical parts of a range, low half first.
    #[must_use]
    pub fn clip(self, range: VaRange) -> Parts {
        // Both borders are multiples of every stride, so a part keeps the range's steps.
        let (low_last, high_first) = (self.half() - 1, self.half().wrapping_neg());
        // All of it in one half: nearly always.
        if range.last() <= low_last {
            return Parts { low: Some(range), high: None };
        }
        if range.start() >= high_first {
            return Parts { low: None, high: Some(range) };
        }
        let part = |first: u64, last: u64| {
            if first > last {
                return None;
            }
            let count = ((last - first) >> range.stride().shift()) + 1;
            VaRange::new(first, count, range.stride()).ok()
        };
        Parts {
            low: part(range.start(), range.last().min(low_last)),
            high: part(range.start().max(high_first), range.last()),
        }
    }
}

/// What is left of a range without its non-canonical addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts {
    /// The part in the lower half.
    pub low: Option<VaRange>,
    /// The part in the upper half.
    pub high: Option<VaRange>,
}

/// A canonical linear address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinearAddress(u64);

/// An address outside the width in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinearError(pub u64);

impl fmt::Display for LinearError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} is not canonical; no translation can exist for it", self.0)
    }
}

impl core::error::Error for LinearError {}

impl LinearAddress {
    /// The address, if it is canonical.
    ///
    /// Some instructions check against the width the CPU has rather than the one in use; whatever
    /// is canonical for the smaller width is canonical for the larger, so the width in use is
    /// right.
    ///
    /// # Errors
    /// [`LinearError`] when it is not.
    pub const fn new(address: u64, width: LinearWidth) -> Result<Self, LinearError> {
        if width.is_canonical(address) { Ok(Self(address)) } else { Err(LinearError(address)) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown::Stride;

    const WIDTHS: [(LinearWidth, u32); 2] = [(LinearWidth::Bits48, 48), (LinearWidth::Bits57, 57)];

    #[test]
    fn canonical_is_sign_extension() {
        for (width, bits) in WIDTHS {
            for edge in [0, 1 << 46, 1 << 47, 1 << 48, 1 << 55, 1 << 56, 1 << 57, 1 << 63] {
                for delta in [-4096i64, -1, 0, 1, 4096] {
                    for address in [edge, u64::wrapping_neg(edge)] {
                        let address = address.wrapping_add_signed(delta);
                        let shift = 64 - bits;
                        let extended = (((address << shift) as i64) >> shift) as u64;
                        assert_eq!(
                            width.is_canonical(address),
                            extended == address,
                            "{address:#x}"
                        );
                        assert_eq!(LinearAddress::new(address, width).is_ok(), extended == address);
                    }
                }
            }
        }
    }

    #[test]
    fn clipping_keeps_exactly_the_canonical_steps() {
        let stride = Stride::Page4K;
        for (width, _) in WIDTHS {
            let half = width.half();
            let top = half.wrapping_neg();
            for start in [0, half - 0x3000, half, half + 0x1000, top - 0x2000, top, top + 0x1000] {
                for count in 1..6 {
                    let range = VaRange::new(start, count, stride).unwrap();
                    let parts = width.clip(range);
                    let kept: std::vec::Vec<u64> = [parts.low, parts.high]
                        .into_iter()
                        .flatten()
                        .flat_map(|p| (0..p.count()).map(move |i| p.start() + i * 0x1000))
                        .collect();
                    let wanted: std::vec::Vec<u64> = (0..count)
                        .map(|i| start + i * 0x1000)
                        .filter(|a| width.is_canonical(*a))
                        .collect();
                    assert_eq!(kept, wanted);
                }
            }
        }
    }

    #[test]
    fn a_range_across_the_hole_has_two_parts() {
        for stride in [Stride::Page4K, Stride::Page2M, Stride::Page1G] {
            let all = VaRange::covering(0, u64::MAX, stride).unwrap();
            for (width, _) in WIDTHS {
                let Parts { low: Some(low), high: Some(high) } = width.clip(all) else {
                    panic!("both halves are canonical")
                };
                assert_eq!((low.start(), low.last()), (0, width.half() - 1));
                assert_eq!((high.start(), high.last()), (width.half().wrapping_neg(), u64::MAX));
            }
        }
    }
}
