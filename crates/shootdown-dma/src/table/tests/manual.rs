//! Walks as the manuals describe them: written from those, and not from the formats here, so that
//! the two can be held against each other. What hardware would take for reserved fails a test.

use std::vec::Vec;

use crate::addr::Rights;
use crate::table::{AmdV1, ArmStage1, ArmStage2, Format, VtdSecondLevel};

/// What an entry says to the hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Says {
    /// A fault.
    Nothing,
    /// Go on there.
    Table(u64),
    /// The address, the logarithm of the size in bytes, the rights.
    Leaf(u64, u32, Rights),
}

/// A format as its manual has it.
pub(crate) trait Manual: Format {
    /// From the root on: the lowest bit of the address that a lookup uses, and how many.
    fn lookups(&self) -> Vec<(u32, u32)>;

    /// Reads an entry of the lookup whose lowest bit this is.
    fn says(&self, word: u64, lowest: u32) -> Says;
}

fn rights(read: bool, write: bool) -> Option<Rights> {
    match (read, write) {
        (true, true) => Some(Rights::ReadWrite),
        (true, false) => Some(Rights::Read),
        (false, true) => Some(Rights::Write),
        (false, false) => None,
    }
}

const fn bit(word: u64, n: u32) -> bool {
    word >> n & 1 != 0
}

/// The bits of an address from `low` to `high`.
const fn field(word: u64, high: u32, low: u32) -> u64 {
    word & (u64::MAX >> (63 - high)) & (u64::MAX << low)
}

/// Lookups of nine bits.
fn nine(levels: u32) -> Vec<(u32, u32)> {
    (0..levels).rev().map(|n| (12 + 9 * n, if n == 5 { 7 } else { 9 })).collect()
}

// VT-d specification 9.8 (revision 4; 9.7 before), second-stage paging entries.
impl Manual for VtdSecondLevel {
    fn lookups(&self) -> Vec<(u32, u32)> {
        nine(self.address_width() as u32 + 2)
    }

    fn says(&self, word: u64, lowest: u32) -> Says {
        let Some(rights) = rights(bit(word, 0), bit(word, 1)) else {
            return Says::Nothing;
        };
        assert!(!bit(word, 62), "TM is reserved without device TLBs");
        assert_eq!(field(word, 6, 2), 0, "X, and memory types that nobody has turned on");
        let large = bit(word, 7);
        assert!(!large || lowest == 21 || lowest == 30, "there are no pages of that size");
        if lowest == 12 || large {
            return Says::Leaf(field(word, 51, 12), lowest, rights);
        }
        assert_eq!(rights, Rights::ReadWrite, "or leaves would have less");
        assert!(!bit(word, 11), "SNP is of leaves");
        Says::Table(field(word, 51, 12))
    }
}

// AMD I/O Virtualization Technology specification 2.2.3, tables 15 and 17 to 19 of revision 3.
impl Manual for AmdV1 {
    fn lookups(&self) -> Vec<(u32, u32)> {
        nine(self.mode() as u32)
    }

    fn says(&self, word: u64, lowest: u32) -> Says {
        if !bit(word, 0) {
            return Says::Nothing;
        }
        assert_eq!(field(word, 58, 52), 0, "reserved");
        let granted = rights(bit(word, 61), bit(word, 62));
        let level = (lowest - 12) / 9;
        let address = field(word, 51, 12);
        match word >> 9 & 7 {
            0 => {
                assert!(level < 5, "the sixth level has no pages");
                granted.map_or(Says::Nothing, |rights| Says::Leaf(address, lowest, rights))
            }
            // The lowest zero from bit 12 on is the upper half of the size.
            7 => {
                let size = 12 + (address >> 12).trailing_ones() + 1;
                assert!(lowest < size && size < lowest + 9, "2^{size} bytes at {lowest}");
                let base = field(address, 51, size);
                granted.map_or(Says::Nothing, |rights| Says::Leaf(base, size, rights))
            }
            next => {
                assert_eq!(
                    (next as u32, granted),
                    (level, Some(Rights::ReadWrite)),
                    "no level skipped"
                );
                assert!(!bit(word, 60) && !bit(word, 59), "FC and U are of pages");
                Says::Table(address)
            }
        }
    }
}

/// Arm ARM D8.3: what both stages share. The upper end of output addresses is bit 47.
fn arm(word: u64, lowest: u32, granule: u32, rights: Option<Rights>) -> Says {
    if !bit(word, 0) {
        return Says::Nothing;
    }
    let last = lowest == granule;
    match (bit(word, 1), last) {
        // A page, or a block. 4 KiB: 1 GiB and 2 MiB; 16 KiB: 32 MiB; 64 KiB: 512 MiB.
        (true, true) | (false, false) => {
            let sizes: &[u32] = match granule {
                12 => &[12, 21, 30],
                14 => &[14, 25],
                _ => &[16, 29],
            };
            assert!(sizes.contains(&lowest), "no blocks of 2^{lowest} bytes");
            assert!(bit(word, 10), "AF: nobody handles the fault");
            assert_eq!(field(word, lowest - 1, 12), 0, "reserved, or of the address");
            assert_eq!(field(word, 51, 48) | (word >> 59), 0, "reserved, or of extensions");
            rights.map_or(Says::Nothing, |rights| Says::Leaf(field(word, 47, 12), lowest, rights))
        }
        (true, false) => {
            assert_eq!(word >> 59, 0, "tables take no rights away");
            assert_eq!(field(word, 51, 48) | field(word, granule - 1, 12), 0, "reserved");
            Says::Table(field(word, 47, 12))
        }
        // At the last level it is reserved, and faults.
        (false, true) => Says::Nothing,
    }
}

/// Lookups of an address of so many bits, of which there are so many.
fn arm_lookups(granule: u32, bits: u32, count: u32) -> Vec<(u32, u32)> {
    let stride = granule - 3;
    let lowest = |n: u32| granule + stride * n;
    let top = (lowest(count - 1), bits - lowest(count - 1));
    core::iter::once(top).chain((0..count - 1).rev().map(|n| (lowest(n), stride))).collect()
}

impl<const G: u32> Manual for ArmStage1<G> {
    fn lookups(&self) -> Vec<(u32, u32)> {
        // Walks begin where T0SZ says: with as few lookups as resolve the address.
        let bits = 64 - self.t0sz() as u32;
        arm_lookups(G, bits, (bits - G).div_ceil(G - 3))
    }

    fn says(&self, word: u64, lowest: u32) -> Says {
        // AP[1] (bit 6): also unprivileged; AP[2] (bit 7): read only.
        arm(
            word,
            lowest,
            G,
            bit(word, 6).then(|| if bit(word, 7) { Rights::Read } else { Rights::ReadWrite }),
        )
    }
}

impl<const G: u32> Manual for ArmStage2<G> {
    fn lookups(&self) -> Vec<(u32, u32)> {
        // SL0 is the level where walks begin: 2, 1, 0 for 0, 1, 2 with 4 KiB; 3, 2, 1 with others.
        // Level 3 is the last.
        let count = self.s2sl0() as u32 + if G == 12 { 2 } else { 1 };
        let lookups = arm_lookups(G, 64 - self.s2t0sz() as u32, count);
        assert!(lookups[0].1 <= G - 3 + 4, "no more than 16 tables are concatenated");
        lookups
    }

    fn says(&self, word: u64, lowest: u32) -> Says {
        arm(word, lowest, G, rights(bit(word, 6), bit(word, 7)))
    }
}
