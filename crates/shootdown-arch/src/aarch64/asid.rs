//! ASIDs in operands: 8 or 16 bits (Arm ARM D8.16.2, "ASID size").
//!
//! Which of the two is in force is `TCR_EL1.AS`, not what the CPU could do: with 8 bits in force,
//! the upper half of every operand's ASID field must be written as zero. So an [`Asid`] is made
//! with the width.

use crate::asid::{Asid, AsidWidth};

impl Asid {
    /// The ASID in bits 63:48 of `TTBR0_EL1`; with 8 bits in force the upper half is ignored.
    #[must_use]
    pub const fn of_ttbr(raw: u64, width: AsidWidth) -> Self {
        Self((raw >> 48) as u16 & width.max())
    }

    /// In bits 63:48, where every operand of this architecture has it.
    pub(super) const fn field(self) -> u64 {
        (self.0 as u64) << 48
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_the_upper_16_bits() {
        for width in [AsidWidth::BITS_8, AsidWidth::BITS_16] {
            for raw in 0..=u16::MAX {
                let read = Asid::of_ttbr(u64::from(raw) << 48 | 0xffff_ffff_ffff, width);
                assert_eq!(read.get(), raw & width.max());
                if let Ok(asid) = Asid::new(raw, width) {
                    assert_eq!(asid.field(), u64::from(raw) << 48);
                }
            }
        }
    }
}
