//! What the ID registers say about translations.
//!
//! | register | bits | field | |
//! |---|---|---|---|
//! | ID_AA64MMFR0_EL1 | 7:4 | ASIDBits | 0: 8 bits; 2: 16 |
//! | ID_AA64ISAR0_EL1 | 59:56 | TLB | 1: outer shareable operations; 2: range operations as well |
//! | ID_AA64MMFR2_EL1 | 3:0 | CnP | 1: CPUs may share entries |
//! | ID_AA64MMFR2_EL1 | 51:48 | TTL | 1: level hints are used |
//!
//! (Arm ARM D24.2.) A value that this table does not have counts as the next lower one that it has,
//! as the manual asks for such fields (D24.1.3): what is added later includes what was there.

use crate::asid::AsidWidth;

/// What a CPU has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools)] // one per field of the registers
pub struct Features {
    /// The widest ASID it takes. (`TCR_EL1.AS` says which is in force.)
    pub asids: AsidWidth,
    /// FEAT_TLBIOS.
    pub outer: bool,
    /// FEAT_TLBIRANGE.
    pub ranges: bool,
    /// FEAT_TTL.
    pub hints: bool,
    /// FEAT_TTCNP.
    pub shares: bool,
}

const fn field(register: u64, shift: u32) -> u64 {
    register >> shift & 0xf
}

impl Features {
    /// From the values of the three registers.
    #[must_use]
    pub const fn decode(mmfr0: u64, mmfr2: u64, isar0: u64) -> Self {
        let tlb = field(isar0, 56);
        Self {
            asids: if field(mmfr0, 4) >= 2 { AsidWidth::BITS_16 } else { AsidWidth::BITS_8 },
            outer: tlb >= 1,
            ranges: tlb >= 2,
            hints: field(mmfr2, 48) >= 1,
            shares: field(mmfr2, 0) >= 1,
        }
    }

    /// What two CPUs both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            asids: self.asids.min(other.asids),
            outer: self.outer && other.outer,
            ranges: self.ranges && other.ranges,
            hints: self.hints && other.hints,
            shares: self.shares && other.shares,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_manual_has_them() {
        for value in 0..16u64 {
            // Ones everywhere else.
            let at = |shift: u32| !(0xf << shift) | value << shift;
            let asids = Features::decode(at(4), 0, 0).asids;
            assert_eq!(asids == AsidWidth::BITS_16, value >= 2);
            let tlb = Features::decode(0, 0, at(56));
            assert_eq!((tlb.outer, tlb.ranges), (value >= 1, value >= 2));
            assert_eq!(Features::decode(0, at(48), 0).hints, value >= 1);
            assert_eq!(Features::decode(0, at(0), 0).shares, value >= 1);
        }
        let least = Features::decode(0, 0, 0);
        let all = Features::decode(2 << 4, 1 << 48 | 1, 2 << 56);
        assert_eq!((least.and(all), all.and(least), all.and(all)), (least, least, all));
        assert!(all.outer && all.ranges && all.hints && all.shares && !least.outer);
    }
}
