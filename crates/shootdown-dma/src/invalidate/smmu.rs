//! The commands of an Arm SMMUv3's queue, as pure functions.
//!
//! A command is 128 bits, the opcode in the lowest eight (Arm IHI 0070, chapter 4; opcodes and
//! fields are the same in Linux' `arm-smmu-v3.h`, also that a size of 52 in CMD_ATC_INV means all).
//! Translations are tagged with an ASID at stage 1 and a VMID at stage 2; a [`DomainId`] is the one
//! or the other ([`Stage`]). The encoders keep three rules:
//! - **Ranges** (`IDR3.RIL`) are invalidated exactly, by up to four pieces of (1 to 32) · 2^scale
//!   granules. A range that needs more pieces, or has more than four pages on an SMMU without range
//!   commands, is invalidated by its domain.
//! - A range of one granule at scale 0 with no level hint is not used: some parts execute it
//!   wrongly (Linux avoids it "for various errata reasons"). Two granules are invalidated instead.
//! - A **SYNC** stands between the commands for the SMMU and those for a device ([`sync`]). Only
//!   the SYNC guarantees that an invalidation is complete, and a device that translates before that
//!   gets the old translation.

use crate::addr::{DeviceId, DomainId, IovaRange, PhysAddr};

use super::Command;
use super::cover::{Block, cover};

/// 128 bits: the low word, and the high.
pub type Entry = [u64; 2];

const CFGI_STE: u64 = 0x03;
const CFGI_ALL: u64 = 0x04;
const CFGI_CD_ALL: u64 = 0x06;
const TLBI_NH_ASID: u64 = 0x11;
const TLBI_NH_VA: u64 = 0x12;
const TLBI_S12_VMALL: u64 = 0x28;
const TLBI_S2_IPA: u64 = 0x2a;
const TLBI_NSNH_ALL: u64 = 0x30;
const ATC_INV: u64 = 0x40;
const SYNC: u64 = 0x46;

/// The most commands for one range; if it needs more, its domain is invalidated.
pub const PIECES: usize = 4;

/// The stage of a domain's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Stage 1: a domain is an ASID, under VMID 0.
    One,
    /// Stage 2: a domain is a VMID, an address an IPA.
    Two,
}

/// The facts about the SMMU and its use on which commands depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Whether it has range commands (`IDR3.RIL`).
    pub ranges: bool,
    /// The logarithm of the granule: 12, 14 or 16. Pages are counted in it.
    pub granule: u32,
    /// The stage of all its domains.
    pub stage: Stage,
}

impl Facts {
    /// The facts for a stage 1 with pages of 4 KiB, from `IDR3`.
    ///
    /// ```
    /// let facts = shootdown_dma::invalidate::smmu::Facts::from_idr3(0x1404); // QEMU 7.2
    /// assert!(facts.ranges);
    /// ```
    #[must_use]
    pub const fn from_idr3(idr3: u32) -> Self {
        Self { ranges: idr3 & (1 << 10) != 0, granule: 12, stage: Stage::One }
    }

    /// The same for tables with pages of 2^`granule` bytes: 12, 14 or 16. `None` for another size,
    /// which Arm does not have.
    #[must_use]
    pub const fn with_granule(self, granule: u32) -> Option<Self> {
        if !matches!(granule, 12 | 14 | 16) {
            return None;
        }
        Some(Self { granule, ..self })
    }

    /// The same for a second stage.
    #[must_use]
    pub const fn second_stage(self) -> Self {
        Self { stage: Stage::Two, ..self }
    }

    /// TG: 1, 2, 3 for 4, 16, 64 KiB.
    const fn tg(&self) -> u64 {
        ((self.granule - 10) / 2) as u64
    }
}

/// Invalidates the cached stream table entry of a device, and all that it leads to.
#[must_use]
pub const fn cfgi_ste(device: DeviceId) -> Entry {
    [CFGI_STE | (device.0 as u64) << 32, 0]
}

/// Invalidates all cached context descriptors of a stream.
#[must_use]
pub const fn cfgi_cd_all(device: DeviceId) -> Entry {
    [CFGI_CD_ALL | (device.0 as u64) << 32, 0]
}

/// Invalidates all cached stream table entries and context descriptors.
#[must_use]
pub const fn cfgi_all() -> Entry {
    [CFGI_ALL, 31]
}

/// Invalidates all translations of a domain.
#[must_use]
pub const fn tlbi_domain(facts: &Facts, domain: DomainId) -> Entry {
    match facts.stage {
        Stage::One => [TLBI_NH_ASID | (domain.0 as u64) << 48, 0],
        Stage::Two => [TLBI_S12_VMALL | (domain.0 as u64) << 32, 0],
    }
}

/// Invalidates all translations of all domains.
#[must_use]
pub const fn tlbi_all() -> Entry {
    [TLBI_NSNH_ALL, 0]
}

const fn tlbi_at(facts: &Facts, domain: DomainId, page: u64, leaf_only: bool) -> Entry {
    let address = page << facts.granule | leaf_only as u64;
    match facts.stage {
        Stage::One => [TLBI_NH_VA | (domain.0 as u64) << 48, address],
        Stage::Two => [TLBI_S2_IPA | (domain.0 as u64) << 32, address],
    }
}

/// Invalidates one page of a domain.
#[must_use]
pub const fn tlbi_page(facts: &Facts, domain: DomainId, page: u64, leaf_only: bool) -> Entry {
    tlbi_at(facts, domain, page, leaf_only)
}

/// Invalidates `count` (1 to 32) times 2^`scale` pages of a domain from `page` on. Only for an SMMU
/// with [range commands](Facts::ranges).
#[must_use]
pub const fn tlbi_range(facts: &Facts, domain: DomainId, piece: Piece, leaf_only: bool) -> Entry {
    let [low, high] = tlbi_at(facts, domain, piece.page, leaf_only);
    let num = (piece.count - 1) as u64;
    [low | num << 12 | (piece.scale as u64) << 20, high | facts.tg() << 10]
}

/// Invalidates a block in the cache of a device, or all of it.
#[must_use]
pub const fn atc_inv(device: DeviceId, block: Option<Block>) -> Entry {
    let (size, address) = match block {
        Some(block) if block.order < 52 => (block.order as u64, block.first << 12),
        _ => (52, 0),
    };
    [ATC_INV | (device.0 as u64) << 32, address | size]
}

/// What a SYNC does when all commands before it are complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// Nothing; the SMMU only consumes it.
    None,
    /// Stores `data` at `address` (`IDR0.MSI`), write-back cacheable and inner shareable.
    Store {
        /// A multiple of 4.
        address: PhysAddr,
        /// What is stored.
        data: u32,
    },
}

/// A SYNC: complete when all commands before it are.
#[must_use]
pub const fn sync(signal: Signal) -> Entry {
    match signal {
        Signal::None => [SYNC, 0],
        Signal::Store { address, data } => {
            // CS = 1; MSH = 3 (inner shareable); MSIATTR = 0xf (write-back).
            [SYNC | 1 << 12 | 3 << 22 | 0xf << 24 | (data as u64) << 32, address.0 & !3]
        }
    }
}

/// A piece of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The first page.
    pub page: u64,
    /// How many times 2^scale pages: 1 to 32.
    pub count: u32,
    /// The logarithm of the unit of `count`.
    pub scale: u32,
}

/// Pieces that make up the range exactly, except that a piece of a single page at scale 0 becomes
/// two pages. `None`: it takes more than [`PIECES`].
#[must_use]
pub fn pieces(range: IovaRange) -> Option<([Piece; PIECES], usize)> {
    let mut all = [Piece { page: 0, count: 1, scale: 0 }; PIECES];
    let (mut page, mut pages) = (range.first(), range.pages());
    if pages & 31 == 1 {
        pages = pages.checked_add(1)?;
    }
    let mut used = 0;
    while pages > 0 {
        // Five bits of the number of pages at a time, from the lowest that is set.
        let scale = pages.trailing_zeros();
        let count = (pages >> scale) & 31;
        *all.get_mut(used).filter(|_| scale < 32)? = Piece { page, count: count as u32, scale };
        used += 1;
        pages -= count << scale;
        page = page.wrapping_add(count << scale); // wraps behind the last piece only
    }
    Some((all, used))
}

/// Encodes a command, and hands each entry (at most [`PIECES`]) to `put`.
pub fn encode(facts: &Facts, command: &Command, mut put: impl FnMut(Entry)) {
    match *command {
        Command::Pages { domain, range, leaf_only } if facts.ranges => match pieces(range) {
            None => put(tlbi_domain(facts, domain)),
            Some((all, used)) => all[..used].iter().for_each(|piece| {
                let [low, high] = tlbi_range(facts, domain, *piece, leaf_only);
                put([low, high]);
            }),
        },
        Command::Pages { domain, range, leaf_only } if range.pages() <= PIECES as u64 => {
            (range.first()..=range.last())
                .for_each(|page| put(tlbi_page(facts, domain, page, leaf_only)));
        }
        Command::Pages { domain, .. } | Command::Domain(domain) => put(tlbi_domain(facts, domain)),
        Command::All => put(tlbi_all()),
        Command::Device { device, range: None } => put(atc_inv(device, None)),
        Command::Device { device, range: Some(range) } => {
            device_range(facts, device, range, &mut put)
        }
        // Both commands, whatever an implementation drops with the entry.
        Command::Config { device, .. } => {
            put(cfgi_ste(device));
            put(cfgi_cd_all(device));
        }
    }
}

fn device_range(facts: &Facts, device: DeviceId, range: IovaRange, put: &mut impl FnMut(Entry)) {
    // Devices count in 4 KiB, whatever the granule is.
    let shift = facts.granule - 12;
    let scaled = |page: u64| page.checked_mul(1 << shift);
    match (scaled(range.first()), scaled(range.pages())) {
        (Some(first), Some(pages)) => match IovaRange::new(first, pages) {
            Some(range) => cover(range).for_each(|block| put(atc_inv(device, Some(block)))),
            None => put(atc_inv(device, None)),
        },
        _ => put(atc_inv(device, None)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::vec::Vec;

    use super::*;

    const FACTS: Facts = Facts { ranges: true, granule: 12, stage: Stage::One };

    fn encoded(facts: &Facts, command: Command) -> Vec<Entry> {
        let mut all = Vec::new();
        encode(facts, &command, |e| all.push(e));
        all
    }

    /// Pages that a command drops from a domain, read as the manual says.
    fn drops(entry: Entry, domain: u64, granule: u32) -> (u64, u64) {
        assert_eq!(entry[0] >> 48, domain, "ASID");
        match entry[0] & 0xff {
            0x11 => (0, u64::MAX),
            0x12 => {
                let [num, scale] = [entry[0] >> 12, entry[0] >> 20].map(|f| f & 31);
                let page = entry[1] >> granule;
                let pages = match (entry[1] >> 10) & 3 {
                    0 => 1,
                    tg => {
                        assert_eq!(tg, u64::from(granule - 10) / 2);
                        assert!((num, scale) != (0, 0), "the range that some parts get wrong");
                        (num + 1) << scale
                    }
                };
                (page, page + pages - 1)
            }
            op => panic!("opcode {op:#x}"),
        }
    }

    /// I7, exhaustively: all ranges of eight bits, and some that are long.
    #[test]
    pub(crate) fn pages_are_covered() {
        let small = (1..256u64).flat_map(|f| (1..256).map(move |n| (f, n)));
        let long =
            (0..40).flat_map(|bits| [(1u64 << bits) + 1, (1 << bits) | 0x5_5555].map(|n| (3, n)));
        for (first, pages) in small.chain(long) {
            let range = IovaRange::new(first, pages).unwrap();
            for (ranges, granule) in [(true, 12), (true, 16), (false, 12)] {
                let facts = Facts { ranges, granule, ..FACTS };
                let command = Command::Pages { domain: DomainId(0xabcd), range, leaf_only: true };
                let all = encoded(&facts, command);
                assert!(all.len() <= PIECES);
                let mut dropped: Vec<_> = all.iter().map(|e| drops(*e, 0xabcd, granule)).collect();
                dropped.sort_unstable();
                // In order and without gaps, from the first to the last.
                let end = dropped.iter().fold(first, |next, &(from, to)| {
                    assert!(from <= next, "{range:?}: gap at {next:#x}");
                    to.saturating_add(1).max(next)
                });
                assert!(end > range.last(), "{range:?} {dropped:?}");
                let exact = dropped.iter().all(|d| d.1 != u64::MAX);
                assert!(!exact || end <= range.last() + 2, "{range:?}: more than a page too many");
            }
        }
    }

    #[test]
    fn fields_are_where_the_manual_has_them() {
        assert_eq!(cfgi_ste(DeviceId(0x1_2345)), [0x0001_2345_0000_0003, 0]);
        assert_eq!(cfgi_all(), [4, 31]);
        assert_eq!(cfgi_cd_all(DeviceId(1)), [0x0000_0001_0000_0006, 0]);
        assert_eq!(tlbi_domain(&FACTS, DomainId(7)), [0x0007_0000_0000_0011, 0]);
        assert_eq!(tlbi_page(&FACTS, DomainId(7), 5, true), [0x0007_0000_0000_0012, 0x5001]);
        let two = Facts { stage: Stage::Two, ..FACTS };
        assert_eq!(tlbi_domain(&two, DomainId(7)), [0x0000_0007_0000_0028, 0]);
        assert_eq!(tlbi_page(&two, DomainId(7), 5, false), [0x0000_0007_0000_002a, 0x5000]);
        let piece = Piece { page: 0x10, count: 3, scale: 4 };
        assert_eq!(
            tlbi_range(&FACTS, DomainId(7), piece, false),
            [0x0007_0000_0040_2012, 0x1_0400]
        );
        assert_eq!(tlbi_all(), [0x30, 0]);
        assert_eq!(atc_inv(DeviceId(9), None), [0x0000_0009_0000_0040, 52]);
        let block = Block { first: 0x10, order: 3 };
        assert_eq!(atc_inv(DeviceId(9), Some(block)), [0x0000_0009_0000_0040, 0x1_0003]);
        assert_eq!(sync(Signal::None), [0x46, 0]);
        let store = Signal::Store { address: PhysAddr(0x1000), data: 5 };
        assert_eq!(sync(store), [0x0000_0005_0fc0_1046, 0x1000]);
    }

    #[test]
    pub(crate) fn devices_are_covered_at_every_granule() {
        for (granule, first, pages) in (1..64u64)
            .flat_map(|f| (1..32).flat_map(move |n| [12, 14, 16].map(|granule| (granule, f, n))))
        {
            let facts = Facts { granule, ..FACTS };
            let range = IovaRange::new(first, pages);
            let told = encoded(&facts, Command::Device { device: DeviceId(1), range });
            let bytes = first << granule..(first + pages) << granule;
            for byte in bytes.step_by(4096) {
                assert!(told.iter().any(|e| {
                    let (size, address) = (e[1] & 63, e[1] & !0xfff);
                    assert_eq!(address % (4096 << size), 0, "aligned");
                    (address..address + (4096 << size)).contains(&byte)
                }));
            }
        }
    }
}
