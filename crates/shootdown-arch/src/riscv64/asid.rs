//! ASIDs in `satp`: 0 to 16 bits, as many as the hart has.
//!
//! The low bits are implemented first (Privileged, `satp`): after ones are written to the whole
//! field, those that read back as ones are the width ([`AsidWidth::of_probe`]). It may be 0: then
//! every space is ASID 0.

use core::fmt;

use crate::asid::{Asid, AsidWidth};

/// Where the field begins in `satp`.
pub(super) const SHIFT: u32 = 44;

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
    /// The width, from `satp` as read back after ones were written to its ASID field.
    ///
    /// # Errors
    /// [`ProbeError`] when the bits that stuck are not the lowest ones.
    pub const fn of_probe(satp: u64) -> Result<Self, ProbeError> {
        #[allow(clippy::cast_possible_truncation)] // the field is 16 bits wide
        let field = (satp >> SHIFT) as u16;
        let bits = field.trailing_ones();
        #[allow(clippy::cast_possible_truncation)] // at most 16
        match Self::new(bits as u8) {
            Some(width) if field.count_ones() == bits => Ok(width),
            _ => Err(ProbeError { field }),
        }
    }
}

impl Asid {
    /// The ASID field of a value of `satp`.
    #[must_use]
    pub const fn of_satp(raw: u64) -> Self {
        #[allow(clippy::cast_possible_truncation)] // the field is 16 bits wide
        Self((raw >> SHIFT) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_where_satp_has_it() {
        for raw in 0..=u16::MAX {
            let asid = Asid::new(raw, AsidWidth::BITS_16).unwrap();
            assert_eq!(Asid::of_satp(u64::from(raw) << 44 | 0xf << 60 | 0x123), asid);
        }
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
