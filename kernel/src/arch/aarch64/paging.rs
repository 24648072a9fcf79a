//! Entries of the stage 1 tables, 4 KiB granule, four levels.
//!
//! | bits | | here |
//! |---|---|---|
//! | 0 | valid | |
//! | 1 | table, or page on the last level | |
//! | 4:2 | AttrIndx | 2, write-back, in `boot.s` |
//! | 6 | AP\[1\], EL0 | clear: the cases run at EL1 |
//! | 7 | AP\[2\], read-only | with DBM: not written yet |
//! | 9:8 | SH | inner |
//! | 10 | AF, accessed | clear, where hardware sets it |
//! | 11 | nG | set, unless the leaf is global |
//! | 51 | DBM: hardware may clear AP\[2\] | set in a writable leaf, where hardware does |
//! | 53 | PXN | set, unless executable |
//! | 54 | UXN | set |
//!
//! (Arm ARM D8.3.) Dirty is "DBM and not read-only".

use super::PHYSICAL_BASE;
use super::regime::{self, Offered};
use crate::arch::Rights;

/// Where the suite's pages are in a space. The page numbers are 1024 and on modulo 2048: see
/// [`super::usable_frame`].
pub const SPACE: u64 = 0x80_0040_0000;

/// Where they are in the kernel's half: tables of their own, beside the blocks.
pub const KERNEL: u64 = PHYSICAL_BASE + SPACE;

/// Levels of tables.
pub const LEVELS: u32 = 4;

const VALID: u64 = 1;
const TABLE: u64 = 1 << 1;
const WRITE_BACK: u64 = 2 << 2;
const READ_ONLY: u64 = 1 << 7;
const INNER: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const DBM: u64 = 1 << 51;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const ADDRESS: u64 = (1 << 48) - (1 << 12);

/// A leaf; level 0 is the last.
#[must_use]
pub fn leaf(frame: u64, level: u32, rights: Rights) -> u64 {
    let Offered { accessed, dirty, .. } = Offered::of_all();
    let mut entry = frame | VALID | WRITE_BACK | INNER | UXN;
    entry |= if level == 0 { TABLE } else { 0 };
    entry |= if accessed { 0 } else { ACCESSED };
    entry |= match (rights.write, dirty) {
        (false, _) => READ_ONLY,
        (true, true) => READ_ONLY | DBM,
        (true, false) => 0,
    };
    entry |= if rights.execute { 0 } else { PXN };
    entry | if rights.global { 0 } else { NOT_GLOBAL }
}

/// An entry that leads to a table.
#[must_use]
pub const fn table(frame: u64) -> u64 {
    frame | VALID | TABLE
}

/// Is there a leaf or a table?
#[must_use]
pub const fn is_present(entry: u64) -> bool {
    entry & VALID != 0
}

/// Does it lead to a table?
#[must_use]
pub const fn is_table(entry: u64, level: u32) -> bool {
    level > 0 && entry & (VALID | TABLE) == VALID | TABLE
}

/// The frame that an entry names.
#[must_use]
pub const fn frame_of(entry: u64, level: u32) -> u64 {
    let _ = level;
    entry & ADDRESS
}

/// Was it used?
#[must_use]
pub const fn accessed(entry: u64) -> bool {
    entry & ACCESSED != 0
}

/// Was it written through?
#[must_use]
pub const fn dirty(entry: u64) -> bool {
    entry & (DBM | READ_ONLY) == DBM
}

/// The same, not used yet.
#[must_use]
pub const fn without_accessed(entry: u64) -> u64 {
    entry & !ACCESSED
}

/// The same, not written through yet. Without DBM there is nothing to take back.
#[must_use]
pub const fn without_dirty(entry: u64) -> u64 {
    if entry & DBM != 0 { entry | READ_ONLY } else { entry }
}

/// The same, not writable.
#[must_use]
pub const fn read_only(entry: u64) -> u64 {
    entry & !DBM | READ_ONLY
}

/// The frame of the table whose tree maps [`KERNEL`].
#[must_use]
pub fn kernel_root() -> u64 {
    super::boot::upper_root()
}

/// Gives an empty table what every root needs: nothing, as the kernel has a root of its own.
pub fn new_root(_frame: u64) {}

/// The root over a table.
#[must_use]
pub fn root(frame: u64) -> shootdown_arch::aarch64::RootFrame {
    regime::root(frame)
}
