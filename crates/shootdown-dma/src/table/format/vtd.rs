//! Intel VT-d, second level (VT-d specification 9.8: second-stage paging entries).
//!
//! R 0, W 1, PS 7 (a superpage), A 8 and D 9 (with SSADE), SNP 11, address 51:12. An entry is
//! present if R or W is set. Rights of all levels are combined by AND: tables allow everything.
//! Ignored, and so ours: 10, 52 to 60, 63 (the same bits that Linux' `generic_pt/fmt/vtdss.h` takes
//! for software). Leaves are at levels 0 to 2; AW of a context entry is the levels less 2.

use super::{ADDRESS, Format};
use crate::addr::{PhysAddr, Rights};

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const SUPERPAGE: u64 = 1 << 7;
const SNOOP: u64 = 1 << 11;

/// Second-level tables of VT-d.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VtdSecondLevel {
    levels: u32,
    /// Bit *n*: leaves may be at level *n*.
    leaves: u32,
    snoop: u64,
}

impl VtdSecondLevel {
    /// Tables of 3 (39 bits), 4 (48) or 5 (57) levels, with superpages of 2 MiB and 1 GiB as asked
    /// for. `None` for another number of levels.
    #[must_use]
    pub const fn new(levels: u32, two_mib: bool, one_gib: bool) -> Option<Self> {
        if levels < 3 || levels > 5 {
            return None;
        }
        Some(Self { levels, leaves: 1 | (two_mib as u32) << 1 | (one_gib as u32) << 2, snoop: 0 })
    }

    /// The smallest table that a unit with this capability register (CAP: SAGAW 12:8, SLLPS 37:34)
    /// walks, and that resolves addresses of `bits` bits; the largest that it walks if none
    /// does. `None` if it walks none.
    ///
    /// ```
    /// use shootdown_dma::table::{Format, VtdSecondLevel};
    /// let format = VtdSecondLevel::from_capability(0x3 << 34 | 0b110 << 8, 48).expect("3 and 4 levels");
    /// assert_eq!(format.levels(), 4);
    /// assert!(format.may_be_leaf(2)); // 1 GiB
    /// ```
    #[must_use]
    pub const fn from_capability(cap: u64, bits: u32) -> Option<Self> {
        let mut chosen = None;
        let mut levels = 3;
        while levels <= 5 {
            let offered = cap >> (8 + levels - 2) & 1 != 0;
            let wanted = match chosen {
                None => true,
                Some(fewer) => 12 + 9 * fewer < bits,
            };
            if offered && wanted {
                chosen = Some(levels);
            }
            levels += 1;
        }
        match chosen {
            Some(levels) => Self::new(levels, cap >> 34 & 1 != 0, cap >> 35 & 1 != 0),
            None => None,
        }
    }

    /// The same; accesses snoop the CPU's caches whatever the device asks for (the unit has
    /// ECAP.SC).
    #[must_use]
    pub const fn snooping(self) -> Self {
        Self { snoop: SNOOP, ..self }
    }

    /// The address-width code of context and PASID entries (AW).
    #[must_use]
    pub const fn address_width(&self) -> u64 {
        self.levels as u64 - 2
    }
}

impl Format for VtdSecondLevel {
    const COUNTED: u64 = 1 << 10;
    const COUNT: u64 = 0x1ff << 52;
    const WRITTEN_BACK: u64 = 1 << 63;
    const PENDING: u64 = 1 << 52;
    const RETIRING: u64 = 1 << 53;
    const HARDWARE: u64 = 0b11 << 8;

    #[inline]
    fn levels(&self) -> u32 {
        self.levels
    }

    #[inline]
    fn may_be_leaf(&self, level: u32) -> bool {
        self.leaves >> level & 1 != 0
    }

    #[inline]
    fn phys_bits(&self) -> u32 {
        52
    }

    #[inline]
    fn leaf(&self, phys: PhysAddr, rights: Rights, level: u32) -> u64 {
        let read = if rights.reads() { READ } else { 0 };
        let write = if rights.writes() { WRITE } else { 0 };
        let size = if level > 0 { SUPERPAGE } else { 0 };
        (phys.0 & ADDRESS) | read | write | size | self.snoop
    }

    #[inline]
    fn table(&self, phys: PhysAddr, _level: u32) -> u64 {
        (phys.0 & ADDRESS) | READ | WRITE
    }

    #[inline]
    fn is_present(&self, word: u64) -> bool {
        word & (READ | WRITE) != 0
    }

    #[inline]
    fn is_table(&self, word: u64, level: u32) -> bool {
        level > 0 && word & SUPERPAGE == 0
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
