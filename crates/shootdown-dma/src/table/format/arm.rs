//! Arm long descriptors, granules of 4, 16 and 64 KiB, both stages (Arm ARM D8.3; SMMUv3 walks the
//! same).
//!
//! Bits 1:0: 3 is a table, or a page at the last level; 1 is a block. Address 47:12, AF 10, SH 9:8.
//! First stage: AttrIdx 4:2, AP\[2:1\] 7:6, nG 11, PXN 53, XN 54. Second stage: MemAttr 5:2, S2AP
//! 7:6, XN 54:53. Ours: 55 to 58 of leaves, 52 to 58 of tables.
//!
//! Output addresses have 48 bits: those of 52 (LPA, LPA2) have their upper bits elsewhere, and
//! other fields give way to them. A table is as large as a page; the root may be smaller than that,
//! or (second stage) up to 16 tables one behind the other.
//!
//! | granule | TG0, S2TG | TG of a command | S2SL0 | blocks |
//! |---|---|---|---|---|
//! | 4 KiB | 0 | 1 | levels less 2 | 2 MiB, 1 GiB |
//! | 16 KiB | 2 | 2 | levels less 1 | 32 MiB |
//! | 64 KiB | 1 | 3 | levels less 1 | 512 MiB |
//!
//! (Arm ARM: TCR_EL1, VTCR_EL2; IHI 0070: CD, STE, TLBI commands. Linux' `io-pgtable-arm.c` and
//! `arm-smmu-v3.h` have the same codes, and 16 tables as the most that are concatenated. TG1, of
//! the upper half of addresses, has others: nothing here is mapped there.)
//!
//! The first stage has no write-only: what is asked for as [`Rights::Write`] is read and write
//! there.

use super::{ADDRESS, Format};
use crate::addr::{PhysAddr, Rights};

const VALID: u64 = 1 << 0;
const TABLE_OR_PAGE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 10;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const NEVER_EXECUTE: u64 = 0b10 << 53;

const UNPRIVILEGED: u64 = 1 << 6;
const READ_ONLY: u64 = 1 << 7;
const NOT_GLOBAL: u64 = 1 << 11;

const S2_READ: u64 = 1 << 6;
const S2_WRITE: u64 = 1 << 7;
/// Normal memory, outer and inner write-back.
const S2_WRITE_BACK: u64 = 0b1111 << 2;

const COUNTED: u64 = 1 << 57;
const COUNT: u64 = 0b11 << 55;
const WRITTEN_BACK: u64 = 1 << 58;
const PENDING: u64 = 1 << 55;
const RETIRING: u64 = 1 << 56;
const PHYS_BITS: u32 = 48;

/// Input addresses have this many bits at most.
const INPUT_BITS: u32 = 48;

/// Is it a granule, and a number of levels that is needed for 39 to 48 bits there (42 of 64 KiB)?
const fn levels_are_good(granule: u32, levels: u32) -> bool {
    match granule {
        12 | 14 => levels == 3 || levels == 4,
        16 => levels == 2 || levels == 3,
        _ => false,
    }
}

/// Blocks are as large as 1 GiB (4 KiB granule), 32 MiB (16 KiB), 512 MiB (64 KiB).
const fn has_blocks(granule: u32, level: u32) -> bool {
    level <= if granule == 12 { 2 } else { 1 }
}

/// Is it no granule?
const fn granule_is_none(granule: u32) -> bool {
    !matches!(granule, 12 | 14 | 16)
}

/// The code of a granule in TG0 (TCR, CD) and S2TG (VTCR, STE).
const fn granule_code(granule: u32) -> u64 {
    match granule {
        12 => 0,
        16 => 1,
        _ => 2,
    }
}

/// What both stages share of a leaf.
const fn descriptor(phys: PhysAddr, level: u32) -> u64 {
    let kind = if level == 0 { TABLE_OR_PAGE } else { 0 };
    (phys.0 & ADDRESS) | VALID | kind | ACCESSED | INNER_SHAREABLE | NEVER_EXECUTE
}

/// First stage: one table for each ASID. Pages have 2^`GRANULE` bytes: 12, 14 or 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArmStage1<const GRANULE: u32 = 12> {
    levels: u32,
    attributes: u64,
}

impl ArmStage1 {
    /// Tables of 3 (39 bits, T0SZ 25) or 4 (48 bits, T0SZ 16) levels of pages of 4 KiB. `index`:
    /// the field of MAIR that says write-back, 0 to 7. `None` for anything else.
    #[must_use]
    pub const fn new(levels: u32, index: u8) -> Option<Self> {
        Self::with_granule(levels, index)
    }
}

impl<const GRANULE: u32> ArmStage1<GRANULE> {
    /// The same for any granule: 16 KiB has tables of 3 (47 bits) or 4 levels (48), 64 KiB of 2
    /// (42) or 3 (48).
    ///
    /// ```
    /// use shootdown_dma::table::ArmStage1;
    /// let large = ArmStage1::<16>::with_granule(3, 0).expect("48 bits of pages of 64 KiB");
    /// assert_eq!((large.t0sz(), large.tg0()), (16, 1));
    /// ```
    #[must_use]
    pub const fn with_granule(levels: u32, index: u8) -> Option<Self> {
        if !levels_are_good(GRANULE, levels) || index > 7 {
            return None;
        }
        Some(Self { levels, attributes: (index as u64) << 2 })
    }

    /// T0SZ of the context descriptor.
    #[must_use]
    pub const fn t0sz(&self) -> u64 {
        let bits = GRANULE + (GRANULE - 3) * self.levels;
        64 - if bits < INPUT_BITS { bits } else { INPUT_BITS } as u64
    }

    /// TG0 of the context descriptor.
    #[must_use]
    pub const fn tg0(&self) -> u64 {
        granule_code(GRANULE)
    }
}

impl<const G: u32> Format for ArmStage1<G> {
    const GRANULE: u32 = G;
    const COUNTED: u64 = COUNTED;
    const COUNT: u64 = COUNT;
    const WRITTEN_BACK: u64 = WRITTEN_BACK;
    const PENDING: u64 = PENDING;
    const RETIRING: u64 = RETIRING;
    const HARDWARE: u64 = ACCESSED;

    #[inline]
    fn levels(&self) -> u32 {
        self.levels
    }

    #[inline]
    fn page_bits(&self) -> u32 {
        (Self::INDEX * self.levels).min(INPUT_BITS - G)
    }

    #[inline]
    fn may_be_leaf(&self, level: u32) -> bool {
        has_blocks(G, level)
    }

    #[inline]
    fn phys_bits(&self) -> u32 {
        PHYS_BITS
    }

    #[inline]
    fn leaf(&self, phys: PhysAddr, rights: Rights, level: u32) -> u64 {
        let read_only = if rights.writes() { 0 } else { READ_ONLY };
        descriptor(phys, level) | self.attributes | UNPRIVILEGED | NOT_GLOBAL | read_only
    }

    #[inline]
    fn table(&self, phys: PhysAddr, _level: u32) -> u64 {
        (phys.0 & ADDRESS) | VALID | TABLE_OR_PAGE
    }

    #[inline]
    fn is_present(&self, word: u64) -> bool {
        word & VALID != 0
    }

    #[inline]
    fn is_table(&self, word: u64, level: u32) -> bool {
        level > 0 && word & TABLE_OR_PAGE != 0
    }

    #[inline]
    fn rights(&self, word: u64) -> Rights {
        if word & READ_ONLY == 0 { Rights::ReadWrite } else { Rights::Read }
    }
}

/// Second stage: one table for each VMID. Pages have 2^`GRANULE` bytes: 12, 14 or 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArmStage2<const GRANULE: u32 = 12> {
    levels: u32,
    /// The logarithm of the tables that the root is concatenated from.
    concatenated: u32,
}

impl ArmStage2 {
    /// Tables of 3 (39 bits, S2T0SZ 25, S2SL0 1) or 4 (48 bits, S2T0SZ 16, S2SL0 2) levels of pages
    /// of 4 KiB; nothing is concatenated. `None` for another number.
    #[must_use]
    pub const fn new(levels: u32) -> Option<Self> {
        if !levels_are_good(12, levels) {
            return None;
        }
        Some(Self { levels, concatenated: 0 })
    }
}

impl<const GRANULE: u32> ArmStage2<GRANULE> {
    /// Tables for addresses of `bits` bits, 32 to 48, with as few levels as there can be (which is
    /// also what units demand that have fewer physical bits: with pages of 4 KiB a walk may
    /// begin at Arm's level 0 only from 44 bits on): what is too much for them by up to four
    /// bits is looked up in as many as 16 tables, one behind the other, at the level where walks
    /// begin (Arm ARM D8.2, *concatenated translation tables*). `None` for other widths, and
    /// other granules.
    ///
    /// ```
    /// use shootdown_dma::table::{ArmStage2, Format};
    /// let forty = ArmStage2::<12>::for_width(40).expect("40 bits");
    /// assert_eq!((forty.levels(), forty.root_tables()), (3, 2));
    /// assert_eq!((forty.s2t0sz(), forty.s2sl0()), (24, 1));
    /// ```
    #[must_use]
    pub const fn for_width(bits: u32) -> Option<Self> {
        if granule_is_none(GRANULE) || bits < 32 || bits > INPUT_BITS {
            return None;
        }
        let (page_bits, index) = (bits - GRANULE, GRANULE - 3);
        // At least as many levels as leave four bits, and one.
        let levels = (page_bits - 4).div_ceil(index);
        let levels = if levels == 0 { 1 } else { levels };
        Some(Self { levels, concatenated: page_bits.saturating_sub(levels * index) })
    }

    /// S2T0SZ of the stream table entry.
    #[must_use]
    pub const fn s2t0sz(&self) -> u64 {
        let bits = GRANULE + (GRANULE - 3) * self.levels + self.concatenated;
        64 - if bits < INPUT_BITS { bits } else { INPUT_BITS } as u64
    }

    /// S2SL0 of the stream table entry: where walks begin.
    #[must_use]
    pub const fn s2sl0(&self) -> u64 {
        // Pages of 4 KiB: 0 is Arm's level 2, which has a level below it; otherwise 0 is level 3,
        // which has none.
        let below = if GRANULE == 12 { 2 } else { 1 };
        (self.levels - below) as u64
    }

    /// S2TG of the stream table entry.
    #[must_use]
    pub const fn s2tg(&self) -> u64 {
        granule_code(GRANULE)
    }
}

impl<const G: u32> Format for ArmStage2<G> {
    const GRANULE: u32 = G;
    const COUNTED: u64 = COUNTED;
    const COUNT: u64 = COUNT;
    const WRITTEN_BACK: u64 = WRITTEN_BACK;
    const PENDING: u64 = PENDING;
    const RETIRING: u64 = RETIRING;
    const HARDWARE: u64 = ACCESSED;

    #[inline]
    fn levels(&self) -> u32 {
        self.levels
    }

    #[inline]
    fn root_tables(&self) -> u32 {
        1 << self.concatenated
    }

    #[inline]
    fn page_bits(&self) -> u32 {
        (Self::INDEX * self.levels + self.concatenated).min(INPUT_BITS - G)
    }

    #[inline]
    fn may_be_leaf(&self, level: u32) -> bool {
        has_blocks(G, level)
    }

    #[inline]
    fn phys_bits(&self) -> u32 {
        PHYS_BITS
    }

    #[inline]
    fn leaf(&self, phys: PhysAddr, rights: Rights, level: u32) -> u64 {
        let read = if rights.reads() { S2_READ } else { 0 };
        let write = if rights.writes() { S2_WRITE } else { 0 };
        descriptor(phys, level) | S2_WRITE_BACK | read | write
    }

    #[inline]
    fn table(&self, phys: PhysAddr, _level: u32) -> u64 {
        (phys.0 & ADDRESS) | VALID | TABLE_OR_PAGE
    }

    #[inline]
    fn is_present(&self, word: u64) -> bool {
        word & VALID != 0
    }

    #[inline]
    fn is_table(&self, word: u64, level: u32) -> bool {
        level > 0 && word & TABLE_OR_PAGE != 0
    }

    #[inline]
    fn rights(&self, word: u64) -> Rights {
        match (word & S2_READ != 0, word & S2_WRITE != 0) {
            (true, true) => Rights::ReadWrite,
            (true, false) => Rights::Read,
            _ => Rights::Write,
        }
    }
}
