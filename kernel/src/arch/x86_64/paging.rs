//! Entries of page tables (SDM 3A, 4.5).

use shootdown_arch::x86_64::RootFrame;

use super::hardware;
use crate::arch::Rights;
use crate::memory;

/// Where a space's pages are. The page numbers are 1024 and on modulo 2048: see
/// [`usable_frame`](super::usable_frame).
pub const SPACE: u64 = 0x80_0040_0000;

/// Where the suite's kernel pages are.
pub const KERNEL: u64 = 0xffff_9000_0040_0000;

/// Levels of tables.
pub const LEVELS: u32 = 4;

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const FRAME: u64 = (1 << 52) - (1 << 12);

/// A leaf.
#[must_use]
pub const fn leaf(frame: u64, level: u32, rights: Rights) -> u64 {
    frame
        | PRESENT
        | if rights.write { WRITE } else { 0 }
        | if rights.execute { 0 } else { NO_EXECUTE }
        | if rights.global { GLOBAL } else { 0 }
        | if level > 0 { LARGE } else { 0 }
}

/// An entry that names a table.
#[must_use]
pub const fn table(frame: u64) -> u64 {
    frame | PRESENT | WRITE
}

/// Does it say anything to the walker?
#[must_use]
pub const fn is_present(entry: u64) -> bool {
    entry & PRESENT != 0
}

/// Does it name a table?
#[must_use]
pub const fn is_table(entry: u64, level: u32) -> bool {
    is_present(entry) && level > 0 && entry & LARGE == 0
}

/// The frame that it names.
#[must_use]
pub const fn frame_of(entry: u64, _level: u32) -> u64 {
    entry & FRAME
}

/// Was it used?
#[must_use]
pub const fn accessed(entry: u64) -> bool {
    entry & ACCESSED != 0
}

/// Was it stored through?
#[must_use]
pub const fn dirty(entry: u64) -> bool {
    entry & DIRTY != 0
}

/// The same, not used.
#[must_use]
pub const fn without_accessed(entry: u64) -> u64 {
    entry & !ACCESSED
}

/// The same, not stored through.
#[must_use]
pub const fn without_dirty(entry: u64) -> u64 {
    entry & !DIRTY
}

/// The same, for loads only.
#[must_use]
pub const fn read_only(entry: u64) -> u64 {
    entry & !WRITE
}

/// The frame of the table whose tree maps [`KERNEL`].
#[must_use]
pub fn kernel_root() -> u64 {
    hardware::kernel_root().address()
}

/// Gives an empty table what every root needs: the kernel's entries, which name the same tables in
/// all of them.
pub fn new_root(frame: u64) {
    let (from, to) = (memory::at(kernel_root()).cast::<u64>(), memory::at(frame).cast::<u64>());
    for index in (0..512).filter(|index| *index == 0 || *index >= 256) {
        // SAFETY: both are tables of 512 entries; the kernel's top level does not change once
        // spaces are made.
        unsafe { to.add(index).write_volatile(from.add(index).read_volatile()) };
    }
}

/// The root over this table.
#[must_use]
pub fn root(frame: u64) -> RootFrame {
    let bits = hardware::features_of_cpu().physical_bits;
    RootFrame::new(frame, bits).expect("the allocator hands out frames that the CPU can address")
}
