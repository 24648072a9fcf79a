//! Names of frames, tables, slots and roots, and how a virtual address is cut into indices.
//!
//! Physical memory is cut into zones by page size, so that the state of a large page is one record
//! and a frame's zone can be told from its number alone. Zones are disjoint ranges of frame
//! numbers.

use std::fmt;

use shootdown::{Stride, VaRange};

/// A 4 KiB unit of physical memory. Large pages are named by their first unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frame(pub u32);

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {:#x}", self.0)
    }
}

/// A page of a page table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableId(pub u32);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.0)
    }
}

/// One of the 512 entries of a table: `table * 512 + index`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

impl SlotId {
    /// The entry `index` of `table`.
    pub(crate) const fn new(table: TableId, index: usize) -> Self {
        Self(table.0 << 9 | index as u32)
    }

    /// The table it is in.
    #[must_use]
    pub const fn table(self) -> TableId {
        TableId(self.0 >> 9)
    }

    /// Its place in the table.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 & 511) as usize
    }

    /// The cache line it is in: eight entries share one.
    pub(crate) const fn line(self) -> u32 {
        self.0 >> 3
    }
}

/// A tree of page tables, as a CPU loads it. Never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Root(pub(crate) u32);

impl Root {
    /// The kernel's own tree, which belongs to no user space.
    pub const KERNEL: Self = Self(0);

    /// Its number: 0 is the kernel's, spaces count from 1 in the order of their creation.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::KERNEL {
            f.write_str("the kernel's tables")
        } else {
            write!(f, "root {}", self.0)
        }
    }
}

/// The first address past the user half.
pub const USER_END: u64 = 1 << 47;
/// The first address of the upper half.
pub const CANONICAL_HIGH: u64 = 0xffff_8000_0000_0000;
/// Where the kernel may map: one top-level slot, shared by every root.
pub const KERNEL_BASE: u64 = 0xffff_c000_0000_0000;
/// How much it may map there.
pub const KERNEL_BYTES: u64 = 1 << 39;

/// Is the address one that 48-bit hardware accepts?
pub(crate) const fn canonical(va: u64) -> bool {
    va < USER_END || va >= CANONICAL_HIGH
}

/// The 36-bit page number of an address.
pub(crate) const fn vpn(va: u64) -> u64 {
    va << 16 >> 28
}

/// The address with this 36-bit page number.
pub(crate) const fn va_of(vpn: u64) -> u64 {
    ((vpn << 28).cast_signed() >> 16).cast_unsigned()
}

/// The index into a table of `level` (3 is the top, 0 holds 4 KiB leaves).
pub(crate) const fn index(va: u64, level: u8) -> usize {
    (va >> (12 + 9 * level as u32) & 511) as usize
}

/// The level whose leaves have this size.
pub(crate) const fn leaf_level(size: Stride) -> u8 {
    size as u8
}

/// The size of the leaves of a level; `None` for the top.
pub(crate) const fn leaf_size(level: u8) -> Option<Stride> {
    match level {
        0 => Some(Stride::Page4K),
        1 => Some(Stride::Page2M),
        2 => Some(Stride::Page1G),
        _ => None,
    }
}

/// Does a stride of the range begin in `[first, last]`?
pub(crate) fn stride_in(first: u64, last: u64, range: VaRange) -> bool {
    if last < range.start() {
        return false;
    }
    let strides = first.saturating_sub(range.start()).div_ceil(range.stride().bytes());
    strides < range.count() && range.start() + strides * range.stride().bytes() <= last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_numbers_round_trip() {
        for va in [0, 0x1000, USER_END - 0x1000, CANONICAL_HIGH, KERNEL_BASE, !0xfff] {
            assert!(canonical(va));
            assert_eq!(va_of(vpn(va)), va);
            assert!(vpn(va) < 1 << 36);
        }
        assert!(!canonical(USER_END) && !canonical(CANONICAL_HIGH - 1));
    }

    #[test]
    fn indices_are_nine_bits_each() {
        let va = 0x1ff << 39 | 0x101 << 30 | 0x0aa << 21 | 0x055 << 12 | 0xfff;
        assert_eq!(
            (index(va, 3), index(va, 2), index(va, 1), index(va, 0)),
            (0x1ff, 0x101, 0xaa, 0x55)
        );
        assert_eq!(index(KERNEL_BASE, 3), 384);
    }
}
