//! The commands of AMD-Vi's buffer, as pure functions.
//!
//! A command is 128 bits, the opcode in the highest four of the low word (AMD I/O Virtualization
//! Technology specification, 2.4). Sizes are in the address: of the page number the lowest `order -
//! 1` bits are ones and the next is zero, and bit 0 (S) marks this form. *Leaf only* is PDE = 0:
//! cached directory entries stay.

use crate::addr::{DeviceId, DomainId, PhysAddr};

use super::Command;
use super::cover::{Block, cover};

/// 128 bits: the low word, and the high.
pub type Entry = [u64; 2];

/// The facts about the unit on which commands depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Whether it has the command for everything (`EFR.IASup`, bit 6).
    pub forgets_all: bool,
}

impl Facts {
    /// Reads the extended feature register (MMIO 0x30).
    ///
    /// ```
    /// assert!(shootdown_dma::invalidate::amd::Facts::from_efr(1 << 6).forgets_all);
    /// ```
    #[must_use]
    pub const fn from_efr(efr: u64) -> Self {
        Self { forgets_all: efr & (1 << 6) != 0 }
    }
}

const fn opcode(code: u64) -> u64 {
    code << 60
}

const COMPLETION_WAIT: u64 = opcode(1);
const INVALIDATE_DEVTAB_ENTRY: u64 = opcode(2);
const INVALIDATE_IOMMU_PAGES: u64 = opcode(3);
const INVALIDATE_IOTLB_PAGES: u64 = opcode(4);
const INVALIDATE_ALL: u64 = opcode(8);
/// All pages, in the form of a size.
const EVERYWHERE: Block = Block { first: 0, order: 52 };

/// Invalidates a block of a domain.
#[must_use]
pub const fn pages(domain: DomainId, block: Block, leaf_only: bool) -> Entry {
    let (address, sized) = block.sized_address();
    let directories = !leaf_only as u64;
    [INVALIDATE_IOMMU_PAGES | (domain.0 as u64) << 32, address | directories << 1 | sized as u64]
}

/// Invalidates all translations of a domain, and its cached directory entries.
#[must_use]
pub const fn domain(domain: DomainId) -> Entry {
    pages(domain, EVERYWHERE, false)
}

/// Invalidates everything: translations of all domains, device table entries, interrupt remapping
/// (where [`Facts`] say so; a unit without it reports an illegal command).
#[must_use]
pub const fn all() -> Entry {
    [INVALIDATE_ALL, 0]
}

/// Invalidates the cached device table entry of a device.
#[must_use]
pub const fn device_entry(device: DeviceId) -> Entry {
    [INVALIDATE_DEVTAB_ENTRY | device.0 as u64 & 0xffff, 0]
}

/// Invalidates a block in the cache of a device, or all of it. At most one is under way to the
/// device.
#[must_use]
pub const fn device_pages(device: DeviceId, block: Option<Block>) -> Entry {
    let id = device.0 as u64 & 0xffff;
    let block = match block {
        Some(block) => block,
        None => EVERYWHERE,
    };
    let (address, sized) = block.sized_address();
    // The most that may be pending, and the queue they belong to: that of the device itself.
    [INVALIDATE_IOTLB_PAGES | id | 1 << 24 | id << 32, address | sized as u64]
}

/// Stores `data` at `address` (a multiple of 8) when all commands before it are complete. `fence`:
/// no later command begins before.
#[must_use]
pub const fn completion_wait(store: Option<(PhysAddr, u64)>, fence: bool) -> Entry {
    let flags = COMPLETION_WAIT | (fence as u64) << 2;
    match store {
        Some((address, data)) => [flags | 1 | address.0 & 0x000f_ffff_ffff_fff8, data],
        None => [flags, 0],
    }
}

/// Encodes a command, and hands each entry (at most two) to `put`.
pub fn encode(command: &Command, mut put: impl FnMut(Entry)) {
    match *command {
        Command::Pages { domain, range, leaf_only } => {
            cover(range).for_each(|block| put(pages(domain, block, leaf_only)));
        }
        Command::Domain(id) => put(domain(id)),
        Command::All => put(all()),
        Command::Device { device, range: None } => put(device_pages(device, None)),
        Command::Device { device, range: Some(range) } => {
            cover(range).for_each(|block| put(device_pages(device, Some(block))));
        }
        Command::Config { device, .. } => put(device_entry(device)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::addr::IovaRange;

    /// First and last page, read as the specification says.
    fn drops(entry: Entry) -> (u64, u64) {
        let number = entry[1] >> 12;
        let order = if entry[1] & 1 == 0 { 0 } else { (entry[1] >> 12).trailing_ones() + 1 };
        let first = number >> order << order;
        (first, first + ((1 << order) - 1))
    }

    /// I7, exhaustively: all ranges of eight bits.
    #[test]
    pub(crate) fn pages_are_covered() {
        for (first, pages) in (1..256u64).flat_map(|f| (1..256).map(move |n| (f, n))) {
            let range = IovaRange::new(first, pages).unwrap();
            for leaf_only in [true, false] {
                let mut told = Vec::new();
                let command = Command::Pages { domain: DomainId(0xabcd), range, leaf_only };
                encode(&command, |e| told.push(e));
                for entry in &told {
                    assert_eq!(entry[0], 0x3000_abcd_0000_0000);
                    assert_eq!(entry[1] & 0xffe, u64::from(!leaf_only) << 1, "PDE");
                }
                for page in first..first + pages {
                    let dropped = told.iter().map(|e| drops(*e));
                    assert!(dropped.into_iter().any(|(f, l)| (f..=l).contains(&page)), "{range:?}");
                }
                let device = Command::Device { device: DeviceId(5), range: Some(range) };
                let mut sent = Vec::new();
                encode(&device, |e| sent.push(e[1]));
                assert_eq!(sent, told.iter().map(|e| e[1] & !2).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        assert_eq!(domain(DomainId(7)), [0x3000_0007_0000_0000, 0x7fff_ffff_ffff_f003]);
        assert_eq!(all(), [0x8000_0000_0000_0000, 0]);
        assert_eq!(device_entry(DeviceId(0xbeef)), [0x2000_0000_0000_beef, 0]);
        let sent = device_pages(DeviceId(0xbeef), None);
        assert_eq!(sent, [0x4000_beef_0100_beef, 0x7fff_ffff_ffff_f001]);
        assert_eq!(completion_wait(None, true), [0x1000_0000_0000_0004, 0]);
        let store = Some((PhysAddr(0x1008), 77));
        assert_eq!(completion_wait(store, false), [0x1000_0000_0000_1009, 77]);
        let pair = Block { first: 0x10, order: 1 };
        assert_eq!(
            pages(DomainId(0), pair, true)[1],
            0x1_0001,
            "two pages: the lowest bit is zero"
        );
    }
}
