//! Address space identifiers: 8 or 16 bits (Arm ARM D8.16.2, "ASID size").
//!
//! Which of the two is in force is `TCR_EL1.AS`, not what the CPU could do: with 8 bits in force, the
//! upper half of every operand's ASID field must be written as zero. So an [`Asid`] is made with the width.

use core::fmt;

use shootdown::Tag;

/// How many bits of an ASID are in force.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AsidWidth {
    /// `TCR_EL1.AS` is 0.
    Bits8,
    /// `TCR_EL1.AS` is 1.
    Bits16,
}

impl AsidWidth {
    /// The number of bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Bits8 => 8,
            Self::Bits16 => 16,
        }
    }

    /// The largest ASID.
    #[must_use]
    pub const fn max(self) -> u16 {
        match self {
            Self::Bits8 => 0xff,
            Self::Bits16 => 0xffff,
        }
    }
}

/// An ASID that fits the width in force.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asid(u16);

/// The number does not fit the width in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsidError {
    /// The number.
    pub raw: u16,
    /// The width.
    pub width: AsidWidth,
}

impl fmt::Display for AsidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is no ASID of {} bits; they end at {}",
            self.raw,
            self.width.bits(),
            self.width.max()
        )
    }
}

impl core::error::Error for AsidError {}

impl Asid {
    /// ASID 0: by this crate's convention the kernel's, never a space's.
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

    /// The ASID field, bits 63:48, of a register value; with 8 bits in force the upper half is ignored.
    #[must_use]
    pub const fn of_field(raw: u64, width: AsidWidth) -> Self {
        Self((raw >> 48) as u16 & width.max())
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// In bits 63:48, where every operand has it.
    pub(super) const fn field(self) -> u64 {
        (self.0 as u64) << 48
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
        for width in [AsidWidth::Bits8, AsidWidth::Bits16] {
            for raw in 0..=u16::MAX {
                let asid = Asid::new(raw, width);
                assert_eq!(asid.is_ok(), u32::from(raw) < 1 << width.bits());
                assert_eq!(Asid::of_tag(Tag(raw), width), asid);
                let read = Asid::of_field(u64::from(raw) << 48 | 0xffff_ffff_ffff, width);
                assert_eq!(read.get(), raw & width.max());
                if let Ok(asid) = asid {
                    assert_eq!((asid.field(), Tag::from(asid)), (u64::from(raw) << 48, Tag(raw)));
                }
            }
        }
    }
}
