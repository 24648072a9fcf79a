//! AMD-Vi, host page tables of version 1 (AMD I/O Virtualization Technology specification 2.2.3).
//!
//! PR 0, A 5, D 6, next level 11:9 (0: a leaf of this level's size), address 51:12, FC 60, IR 61, IW 62. Rights of all
//! levels are combined by AND: tables allow everything. Ignored, and so ours: 1 to 4, 7, 8. (52 to 58 are reserved.)
//! Leaves of other powers of two (next level 7) are not made here, and not read.

use super::{ADDRESS, Format};
use crate::addr::{PhysAddr, Rights};

const PRESENT: u64 = 1 << 0;
const NEXT_LEVEL: u64 = 0b111 << 9;
const COHERENT: u64 = 1 << 60;
const READ: u64 = 1 << 61;
const WRITE: u64 = 1 << 62;

/// Host page tables of AMD-Vi, version 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AmdV1 {
    levels: u32,
    superpages: bool,
    coherent: u64,
}

impl AmdV1 {
    /// Tables of 1 to 6 levels (the mode of the device table entry; the sixth has the upper seven of 64 bits), with superpages of 2 MiB and 1 GiB or without.
    /// `None` for another number of levels.
    #[must_use]
    pub const fn new(levels: u32, superpages: bool) -> Option<Self> {
        if levels < 1 || levels > 6 {
            return None;
        }
        Some(Self { levels, superpages, coherent: 0 })
    }

    /// The same; accesses snoop the CPU's caches whatever the device asks for (FC).
    #[must_use]
    pub const fn snooping(self) -> Self {
        Self { coherent: COHERENT, ..self }
    }

    /// The paging mode of device table entries.
    #[must_use]
    pub const fn mode(&self) -> u64 {
        self.levels as u64
    }
}

impl Format for AmdV1 {
    const COUNTED: u64 = 1 << 7;
    const COUNT: u64 = 0b1111 << 1;
    const WRITTEN_BACK: u64 = 1 << 8;
    const PENDING: u64 = 1 << 1;
    const BURYING: u64 = 1 << 2;
    const HARDWARE: u64 = 0b11 << 5;

    #[inline]
    fn levels(&self) -> u32 {
        self.levels
    }

    #[inline]
    fn may_be_leaf(&self, level: u32) -> bool {
        level == 0 || (self.superpages && level <= 2)
    }

    #[inline]
    fn phys_bits(&self) -> u32 {
        52
    }

    #[inline]
    fn leaf(&self, phys: PhysAddr, rights: Rights, _level: u32) -> u64 {
        let read = if rights.reads() { READ } else { 0 };
        let write = if rights.writes() { WRITE } else { 0 };
        (phys.0 & ADDRESS) | PRESENT | read | write | self.coherent
    }

    #[inline]
    fn table(&self, phys: PhysAddr, level: u32) -> u64 {
        (phys.0 & ADDRESS) | PRESENT | u64::from(level) << 9 | READ | WRITE
    }

    #[inline]
    fn is_present(&self, word: u64) -> bool {
        word & PRESENT != 0
    }

    #[inline]
    fn is_table(&self, word: u64, level: u32) -> bool {
        level > 0 && word & NEXT_LEVEL != 0
    }

    #[inline]
    fn rights(&self, word: u64) -> Rights {
        match (word & READ != 0, word & WRITE != 0) {
            (true, true) => Rights::ReadWrite,
            (true, false) => Rights::Read,
            _ => Rights::Write,
        }
    }
}
