//! Address space identifiers, on the architectures that call them so: a number that fits the width
//! in force.

use core::fmt;

use shootdown::Tag;

/// How many bits of an ASID are in force: at most 16.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AsidWidth(u8);

impl AsidWidth {
    /// No ASIDs.
    pub const NONE: Self = Self(0);
    /// The narrower of Arm's two widths.
    pub const BITS_8: Self = Self(8);
    /// The wider of Arm's two widths, and all that a field of RISC-V has.
    pub const BITS_16: Self = Self(16);

    /// So many bits; `None` above 16.
    #[must_use]
    pub const fn new(bits: u8) -> Option<Self> {
        if bits <= Self::BITS_16.0 { Some(Self(bits)) } else { None }
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

/// An ASID that fits the width in force.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asid(pub(super) u16);

/// The number does not fit the width in force. (Hardware would silently cut it, and two spaces
/// would share it.)
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
                }
            }
        }
        assert_eq!(AsidWidth::new(17), None);
        assert_eq!(AsidWidth::new(255), None);
    }
}
