//! The shadow of the kernel's page table: which pages are mapped, and to which memory. No hardware
//! reads it.
//!
//! Its entries have only what the library's own bits require: rights 1:0, a leaf above level 0 bit
//! 2, address 51:12. So it takes the addresses of any process, and pages of any granule that a
//! kernel has.

use shootdown_dma::addr::{PhysAddr, Rights};
use shootdown_dma::table::Format;

/// The bits of a word that hold an address: the library's own marks lie outside of them.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const LARGE: u64 = 1 << 2;

/// The number of bits of devices' addresses.
pub(super) const BITS: u32 = 48;

/// Entries for pages of 2^`GRANULE` bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shadow<const GRANULE: u32>;

impl<const GRANULE: u32> Shadow<GRANULE> {
    pub const fn new() -> Self {
        const { assert!(GRANULE >= 12 && GRANULE <= 24, "pages have 4 KiB to 16 MiB") };
        Self
    }
}

impl<const G: u32> Format for Shadow<G> {
    const GRANULE: u32 = G;
    const COUNTED: u64 = 1 << 57;
    const COUNT: u64 = 0b11 << 55;
    const WRITTEN_BACK: u64 = 1 << 58;
    const PENDING: u64 = 1 << 55;
    const RETIRING: u64 = 1 << 56;
    const HARDWARE: u64 = 0;

    #[inline]
    fn levels(&self) -> u32 {
        (BITS - G).div_ceil(Self::INDEX)
    }

    #[inline]
    fn page_bits(&self) -> u32 {
        BITS - G
    }

    #[inline]
    fn may_be_leaf(&self, level: u32) -> bool {
        level < self.levels() - 1 && level <= 2
    }

    #[inline]
    fn phys_bits(&self) -> u32 {
        52
    }

    #[inline]
    fn leaf(&self, phys: PhysAddr, rights: Rights, level: u32) -> u64 {
        let read = if rights.reads() { READ } else { 0 };
        let write = if rights.writes() { WRITE } else { 0 };
        let large = if level > 0 { LARGE } else { 0 };
        (phys.0 & ADDRESS) | read | write | large
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
        level > 0 && word & LARGE == 0
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
