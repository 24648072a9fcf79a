//! What hardware finds in entries of tables, read apart from the library's own reading.

use shootdown_dma::{PhysAddr, Rights};

use super::config::Tables;
use crate::hunt::io::Decoded;
use crate::io::walk::vtd;

const ADDRESS: u64 = (1 << 52) - (1 << 12);

const fn rights(reads: bool, writes: bool) -> Option<Rights> {
    match (reads, writes) {
        (true, true) => Some(Rights::ReadWrite),
        (true, false) => Some(Rights::Read),
        (false, true) => Some(Rights::Write),
        (false, false) => None,
    }
}

const fn leaf(word: u64, rights: Option<Rights>) -> Decoded {
    match rights {
        Some(rights) => Decoded::Leaf { to: PhysAddr(word & ADDRESS), rights },
        None => Decoded::Nothing,
    }
}

const fn table(word: u64) -> Decoded {
    Decoded::Table(PhysAddr(word & ADDRESS))
}

/// AMD-Vi, version 1 (specification 2.2.3): bit 0, and the level of the next table in bits 11:9.
fn amd(level: u8, word: u64) -> Decoded {
    let next = word >> 9 & 7;
    match word & 1 {
        0 => Decoded::Nothing,
        _ if next == 0 => leaf(word, rights(word >> 61 & 1 != 0, word >> 62 & 1 != 0)),
        _ if next == u64::from(level) - 1 => table(word),
        _ => Decoded::Nothing, // a level that is skipped, or none: a fault
    }
}

/// Arm, both stages (Arm ARM D8.3): bits 1:0; a leaf that was not accessed faults.
fn arm(level: u8, word: u64, rights: Option<Rights>) -> Decoded {
    const ACCESSED: u64 = 1 << 10;
    match word & 3 {
        3 if level > 1 => table(word),
        3 => leaf(word, rights.filter(|_| word & ACCESSED != 0)),
        1 if level > 1 => leaf(word, rights.filter(|_| word & ACCESSED != 0)),
        _ => Decoded::Nothing,
    }
}

fn arm1(level: u8, word: u64) -> Decoded {
    arm(level, word, rights(true, word >> 7 & 1 == 0))
}

fn arm2(level: u8, word: u64) -> Decoded {
    arm(level, word, rights(word >> 6 & 1 != 0, word >> 7 & 1 != 0))
}

/// The same with tables of a larger granule: blocks are at the second level only, and what is below
/// the granule in an address is 0 (without addresses of 52 bits).
fn large(granule: u32, level: u8, word: u64, rights: Option<Rights>) -> Decoded {
    let within = (1 << granule) - (1 << 12);
    match word & 3 {
        1 if level != 2 => Decoded::Nothing,
        _ if word & within != 0 => Decoded::Nothing,
        _ => arm(level, word, rights),
    }
}

fn arm1_of_16k(level: u8, word: u64) -> Decoded {
    large(14, level, word, rights(true, word >> 7 & 1 == 0))
}

fn arm2_of_64k(level: u8, word: u64) -> Decoded {
    large(16, level, word, rights(word >> 6 & 1 != 0, word >> 7 & 1 != 0))
}

/// How tables of a format are read.
pub fn of(format: Tables) -> fn(u8, u64) -> Decoded {
    match format {
        Tables::Vtd => vtd,
        Tables::Amd => amd,
        Tables::Arm1 => arm1,
        Tables::Arm2 => arm2,
        Tables::Arm1Of16K => arm1_of_16k,
        Tables::Arm2Of64K => arm2_of_64k,
    }
}

/// A leaf of the last level that leads there, in this format, as something that somebody has left
/// in a page could be.
pub fn leaf_by_chance(format: Tables, PhysAddr(to): PhysAddr) -> u64 {
    to | match format {
        Tables::Vtd => 3,
        Tables::Amd => 3 << 61 | 1,
        Tables::Arm1 | Tables::Arm1Of16K => 1 << 10 | 3,
        Tables::Arm2 | Tables::Arm2Of64K => 1 << 10 | 3 << 6 | 3,
    }
}
