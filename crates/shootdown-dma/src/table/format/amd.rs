//! AMD-Vi, host page tables of version 1 (AMD I/O Virtualization Technology specification 2.2.3).
//!
//! PR 0, A 5, D 6, next level 11:9 (0: a leaf of this level's size), address 51:12, U 59, FC 60, IR
//! 61, IW 62. Rights of all levels are combined by AND: tables allow everything. Ignored, and so
//! ours: 1 to 4, 7, 8; 63 is ignored too, 52 to 58 are reserved (the same in Xen's `union
//! amd_iommu_pte`, which keeps marks of its own in 1 to 4).
//!
//! Leaves of other powers of two have next level 7, and their size in the address: of the page
//! number, as many low bits are ones as are one less than the logarithm of the pages, and the next
//! is zero. They fill as many entries as they are larger than the level's own size, up to half a
//! table, and all of these are the same. (What is of a level's own size must have next level 0:
//! Linux d4b036648402. Linux' format, `generic_pt/fmt/amdv1.h`, fills entries in the same way. It
//! leaves out leaves of 512 GiB for a bug of the hardware; the largest here have 256 GiB.) They are
//! made if [asked for](AmdV1::sized), since a caller that maps them cannot unmap a part. The sixth
//! level has no leaves.

use super::{ADDRESS, Format};
use crate::addr::{PhysAddr, Rights};

const PRESENT: u64 = 1 << 0;
const NEXT_LEVEL: u64 = 0b111 << 9;
/// As a next level: a leaf with its size in the address.
const SIZE: u64 = NEXT_LEVEL;
const COHERENT: u64 = 1 << 60;
const READ: u64 = 1 << 61;
const WRITE: u64 = 1 << 62;

/// The logarithm of the pages of a leaf that has it in its address.
const fn size_of(word: u64) -> u32 {
    ((word & ADDRESS) >> 12).trailing_ones() + 1
}

/// Host page tables of AMD-Vi, version 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AmdV1 {
    levels: u32,
    superpages: bool,
    coherent: u64,
    /// The logarithm of the entries of the largest leaf.
    most: u32,
}

impl AmdV1 {
    /// Tables of 1 to 6 levels (the mode of the device table entry; the sixth has the upper seven
    /// of 64 bits), with superpages of 2 MiB and 1 GiB or without. `None` for another number of
    /// levels.
    #[must_use]
    pub const fn new(levels: u32, superpages: bool) -> Option<Self> {
        if levels < 1 || levels > 6 {
            return None;
        }
        Some(Self { levels, superpages, coherent: 0, most: 0 })
    }

    /// The same; accesses snoop the CPU's caches whatever the device asks for (FC).
    #[must_use]
    pub const fn snooping(self) -> Self {
        Self { coherent: COHERENT, ..self }
    }

    /// The same, with leaves of every power of two from 8 KiB on where address, memory and length
    /// fit (from twice a superpage on, if there are superpages).
    #[must_use]
    pub const fn sized(self) -> Self {
        Self { most: 8, ..self }
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
    const RETIRING: u64 = 1 << 2;
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
        level > 0 && word & NEXT_LEVEL != 0 && word & NEXT_LEVEL != SIZE
    }

    const SIZED: bool = true;

    #[inline]
    fn most_order(&self) -> u32 {
        self.most
    }

    #[inline]
    fn enlarge(&self, leaf: u64, level: u32, order: u32) -> u64 {
        let ones = (1u64 << (order + Self::INDEX * level - 1)) - 1;
        leaf | SIZE | ones << 12
    }

    #[inline]
    fn order(&self, word: u64, level: u32) -> u32 {
        if word & NEXT_LEVEL == SIZE { size_of(word) - Self::INDEX * level } else { 0 }
    }

    #[inline]
    fn address(&self, word: u64) -> PhysAddr {
        let within = if word & NEXT_LEVEL == SIZE { (1u64 << size_of(word)) - 1 } else { 0 };
        PhysAddr(word & ADDRESS & !(within << 12))
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
