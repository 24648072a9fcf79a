//! Arm long descriptors, granule of 4 KiB, both stages (Arm ARM D8.3; SMMUv3 walks the same).
//!
//! Bits 1:0: 3 is a table, or a page at the last level; 1 is a block. Address 47:12, AF 10, SH 9:8. First stage: AttrIdx
//! 4:2, AP\[2:1\] 7:6, nG 11, PXN 53, XN 54. Second stage: MemAttr 5:2, S2AP 7:6, XN 54:53. Ours: 55 to 58 of leaves, 52 to
//! 58 of tables.
//!
//! The first stage has no write-only: what is asked for as [`Rights::Write`] is read and write there.

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
const BURYING: u64 = 1 << 56;
const PHYS_BITS: u32 = 48;

const fn levels_are_good(levels: u32) -> bool {
    levels == 3 || levels == 4
}

/// What both stages share of a leaf.
const fn descriptor(phys: PhysAddr, level: u32) -> u64 {
    let kind = if level == 0 { TABLE_OR_PAGE } else { 0 };
    (phys.0 & ADDRESS) | VALID | kind | ACCESSED | INNER_SHAREABLE | NEVER_EXECUTE
}

/// First stage: one table for each ASID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArmStage1 {
    levels: u32,
    attributes: u64,
}

impl ArmStage1 {
    /// Tables of 3 (39 bits, T0SZ 25) or 4 (48 bits, T0SZ 16) levels. `index`: the field of MAIR that says write-back, 0
    /// to 7. `None` for anything else.
    #[must_use]
    pub const fn new(levels: u32, index: u8) -> Option<Self> {
        if !levels_are_good(levels) || index > 7 {
            return None;
        }
        Some(Self { levels, attributes: (index as u64) << 2 })
    }
}

impl Format for ArmStage1 {
    const COUNTED: u64 = COUNTED;
    const COUNT: u64 = COUNT;
    const WRITTEN_BACK: u64 = WRITTEN_BACK;
    const PENDING: u64 = PENDING;
    const BURYING: u64 = BURYING;
    const HARDWARE: u64 = ACCESSED;

    #[inline]
    fn levels(&self) -> u32 {
        self.levels
    }

    #[inline]
    fn may_be_leaf(&self, level: u32) -> bool {
        level <= 2
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

/// Second stage: one table for each VMID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArmStage2 {
    levels: u32,
}

impl ArmStage2 {
    /// Tables of 3 (39 bits, S2T0SZ 25, S2SL0 1) or 4 (48 bits, S2T0SZ 16, S2SL0 2) levels; nothing is concatenated. `None`
    /// for another number.
    #[must_use]
    pub const fn new(levels: u32) -> Option<Self> {
        if !levels_are_good(levels) {
            return None;
        }
        Some(Self { levels })
    }
}

impl Format for ArmStage2 {
    const COUNTED: u64 = COUNTED;
    const COUNT: u64 = COUNT;
    const WRITTEN_BACK: u64 = WRITTEN_BACK;
    const PENDING: u64 = PENDING;
    const BURYING: u64 = BURYING;
    const HARDWARE: u64 = ACCESSED;

    #[inline]
    fn levels(&self) -> u32 {
        self.levels
    }

    #[inline]
    fn may_be_leaf(&self, level: u32) -> bool {
        level <= 2
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
