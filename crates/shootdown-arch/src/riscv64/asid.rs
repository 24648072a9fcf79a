//! Address space identifiers: 0 to 16 bits, as many as the hart has.
//!
//! The low bits are implemented first (Privileged, `satp`): after ones are written to the whole field, those
//! that read back as ones are the width ([`AsidWidth::of_probe`]). It may be 0: then every space is ASID 0.

use core::fmt;

use shootdown::Tag;

/// Where the field begins in `satp`.
pub(super) const SHIFT: u32 = 44;
/// The widest field (ASIDMAX of Sv39, Sv48 and Sv57).
const MAX_BITS: u8 = 16;

/// How many bits of an ASID the hart implements: at most 16.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AsidWidth(u8);

/// What was read back can't be a width: a bit is implemented above one that is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeError {
    /// The field as read back.
    pub field: u16,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ASID bits {:#x} read back from satp have gaps; run this hart without ASIDs",
            self.field
        )
    }
}

impl core::error::Error for ProbeError {}

impl AsidWidth {
    /// No ASIDs.
    pub const NONE: Self = Self(0);
    /// All the field has.
    pub const MAX: Self = Self(MAX_BITS);

    /// So many bits; `None` above 16.
    #[must_use]
    pub const fn new(bits: u8) -> Option<Self> {
        if bits <= MAX_BITS { Some(Self(bits)) } else { None }
    }

    /// The width, from `satp` as read back after ones were written to its ASID field.
    ///
    /// # Errors
    /// [`ProbeError`] when the bits that stuck are not the lowest ones.
    pub const fn of_probe(satp: u64) -> Result<Self, ProbeError> {
        #[allow(clippy::cast_possible_truncation)] // the field is 16 bits wide
        let field = (satp >> SHIFT) as u16;
        let bits = field.trailing_ones();
        if field.count_ones() != bits {
            return Err(ProbeError { field });
        }
        #[allow(clippy::cast_possible_truncation)] // at most 16
        Ok(Self(bits as u8))
    }

    /// The number of bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The largest ASID.
    #[must_use]
    pub const fn max(self) -> u16 {
        #[allow(clippy::cast_possible_truncation)] // at most 16 ones
        let max = ((1u32 << self.0) - 1) as u16;
        max
    }
}

/// An ASID that fits the hart's width.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asid(u16);

/// The number does not fit the width. (Hardware would silently cut it, and two spaces would share it.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsidError {
    /// The number.
    pub raw: u16,
    /// The width.
    pub width: AsidWidth,
}

impl fmt::Display for AsidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (raw, bits, max) = (self.raw, self.width.bits(), self.width.max());
        write!(f, "{raw} is no ASID of {bits} bits; they end at {max}")
    }
}

impl core::error::Error for AsidError {}

impl Asid {
    /// ASID 0: by this crate's convention the kernel's, and everybody's where there are no ASIDs.
    pub const ZERO: Self = Self(0);

    /// The ASID with this number.
    ///
    /// # Errors
    /// [`AsidError`] when it does not fit.
    pub const fn new(raw: u16, width: AsidWidth) -> Result<Self, AsidError> {
        if raw <= width.max() { Ok(Self(raw)) } else { Err(AsidError { raw, width }) }
    }

    /// The ASID of a core's tag.
    ///
    /// # Errors
    /// [`AsidError`] when it does not fit.
    pub const fn of_tag(tag: Tag, width: AsidWidth) -> Result<Self, AsidError> {
        Self::new(tag.0, width)
    }

    /// The ASID field of a value of `satp`.
    #[must_use]
    pub const fn of_satp(raw: u64) -> Self {
        #[allow(clippy::cast_possible_truncation)] // the field is 16 bits wide
        Self((raw >> SHIFT) as u16)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl From<Asid> for Tag {
    fn from(asid: Asid) -> Self {
        Self(asid.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_what_fits_is_an_asid() {
        for bits in 0..=16 {
            let width = AsidWidth::new(bits).unwrap();
            for raw in 0..=u16::MAX {
                let asid = Asid::new(raw, width);
                assert_eq!(asid.is_ok(), u32::from(raw) < 1 << bits);
                assert_eq!(Asid::of_tag(Tag(raw), width), asid);
                if let Ok(asid) = asid {
                    assert_eq!((asid.get(), Tag::from(asid)), (raw, Tag(raw)));
                    assert_eq!(Asid::of_satp(u64::from(raw) << 44 | 0xf << 60 | 0x123), asid);
                }
            }
        }
        assert_eq!(AsidWidth::new(17), None);
        assert_eq!(AsidWidth::new(255), None);
    }

    #[test]
    fn the_bits_that_stick_are_the_width_unless_they_have_gaps() {
        for field in 0..=u16::MAX {
            let satp = 8 << 60 | u64::from(field) << 44 | 0xfff_ffff_ffff;
            let low_ones = (0..=16).find(|bits| u32::from(field) == (1u32 << bits) - 1);
            match low_ones {
                Some(bits) => {
                    assert_eq!(AsidWidth::of_probe(satp).map(AsidWidth::bits), Ok(bits));
                }
                None => assert_eq!(AsidWidth::of_probe(satp), Err(ProbeError { field })),
            }
        }
    }
}
