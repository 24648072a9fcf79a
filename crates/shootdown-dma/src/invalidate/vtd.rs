//! The descriptors of Intel VT-d's invalidation queue, as pure functions.
//!
//! A descriptor is 128 bits, the type in the lowest four (VT-d specification, 6.5.2). The encoders
//! keep these rules:
//! - pages are invalidated by an aligned block of at most 2^MAMV pages (`CAP.MAMV`); a range that
//!   does not fit is invalidated by its domain;
//! - the hint *leaf only* (IH) is set only if the caller guarantees that no table page went away;
//! - reads and writes that are under way are drained (DR, DW), where the unit can drain them.
//!   Without that, completion would not guarantee that a write by the old translation has reached
//!   memory.

use crate::addr::{DeviceId, DomainId, IovaRange, PhysAddr};

use super::Command;
use super::cover::{Block, cover};

/// 128 bits: the low word, and the high.
pub type Descriptor = [u64; 2];

// Types (the lowest four bits), and the granularities of bits 5:4.
const CONTEXT: u64 = 1;
const IOTLB: u64 = 2;
const DEVICE_TLB: u64 = 3;
const WAIT: u64 = 5;
const GLOBAL: u64 = 1 << 4;
const DOMAIN: u64 = 2 << 4;
const SELECTIVE: u64 = 3 << 4; // page-selective in the IOTLB, device-selective in the context cache

/// The facts of the capability registers on which descriptors depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Whether it can invalidate single pages (`CAP.PSI`).
    pub page_selective: bool,
    /// The logarithm of the largest block that it can invalidate (`CAP.MAMV`).
    pub max_order: u32,
    /// Whether it can drain reads (`CAP.DRD`).
    pub drains_reads: bool,
    /// Whether it can drain writes (`CAP.DWD`).
    pub drains_writes: bool,
    /// Whether it counts the invalidations under way to a device, by the device's physical function
    /// (`ECAP.DIT`). If not, the field that names the function is reserved, and units refuse a
    /// descriptor with a value there (QEMU 7.2 does).
    pub throttles_devices: bool,
}

impl Facts {
    /// Reads them from the capability register.
    ///
    /// ```
    /// let facts = shootdown_dma::invalidate::vtd::Facts::from_cap(0x00d2_008c_2226_0206); // QEMU 7.2
    /// assert!(facts.page_selective && facts.drains_reads && facts.drains_writes);
    /// assert_eq!(facts.max_order, 18);
    /// ```
    #[must_use]
    pub const fn from_cap(cap: u64) -> Self {
        Self {
            page_selective: cap & (1 << 39) != 0,
            max_order: ((cap >> 48) & 0x3f) as u32,
            drains_reads: cap & (1 << 55) != 0,
            drains_writes: cap & (1 << 54) != 0,
            throttles_devices: false,
        }
    }

    /// The same, with the facts of the extended capability register; only devices with caches of
    /// their own need it.
    #[must_use]
    pub const fn with_ecap(self, ecap: u64) -> Self {
        Self { throttles_devices: ecap & (1 << 41) != 0, ..self }
    }

    const fn drain(&self) -> u64 {
        (self.drains_writes as u64) << 6 | (self.drains_reads as u64) << 7
    }
}

/// Invalidates all of the IOTLB and the walk caches.
#[must_use]
pub const fn iotlb_all(facts: &Facts) -> Descriptor {
    [IOTLB | GLOBAL | facts.drain(), 0]
}

/// Invalidates all of a domain in the IOTLB and the walk caches.
#[must_use]
pub const fn iotlb_domain(facts: &Facts, domain: DomainId) -> Descriptor {
    [IOTLB | DOMAIN | facts.drain() | (domain.0 as u64) << 16, 0]
}

/// Invalidates a block of a domain. `None` if the unit has no block of that size.
#[must_use]
pub const fn iotlb_block(
    facts: &Facts,
    domain: DomainId,
    block: Block,
    leaf_only: bool,
) -> Option<Descriptor> {
    if !facts.page_selective || block.order > facts.max_order {
        return None;
    }
    let low = IOTLB | SELECTIVE | facts.drain() | (domain.0 as u64) << 16;
    Some([low, block.first << 12 | (leaf_only as u64) << 6 | block.order as u64])
}

/// Invalidates all cached context entries.
#[must_use]
pub const fn context_all() -> Descriptor {
    [CONTEXT | GLOBAL, 0]
}

/// Invalidates the cached context entries that name this domain.
#[must_use]
pub const fn context_domain(domain: DomainId) -> Descriptor {
    [CONTEXT | DOMAIN | (domain.0 as u64) << 16, 0]
}

/// Invalidates the cached context entry of this device, which names this domain; all function bits
/// are compared.
#[must_use]
pub const fn context_device(domain: DomainId, device: DeviceId) -> Descriptor {
    [CONTEXT | SELECTIVE | (domain.0 as u64) << 16 | (device.0 as u64 & 0xffff) << 32, 0]
}

/// Invalidates a block in the cache of a device, or all of it. At most one such invalidation is
/// under way to the device at a time: devices have a limit of their own, and one is always within
/// it.
#[must_use]
pub const fn device_tlb(facts: &Facts, device: DeviceId, block: Option<Block>) -> Descriptor {
    let source = device.0 as u64 & 0xffff;
    // The physical function is the device itself: bits 3:0 of it at 15:12, bits 15:4 at 63:52.
    let function =
        if facts.throttles_devices { (source & 0xf) << 12 | (source >> 4) << 52 } else { 0 };
    let low = DEVICE_TLB | 1 << 16 | function | source << 32;
    let block = match block {
        Some(block) => block,
        None => Block { first: 0, order: 52 },
    };
    let (address, sized) = block.sized_address();
    [low, address | sized as u64]
}

/// Stores `status` at `address` (a multiple of 4) when all descriptors before it are complete.
/// `fence`: no later descriptor begins before.
#[must_use]
pub const fn wait(address: PhysAddr, status: u32, fence: bool) -> Descriptor {
    [WAIT | 1 << 5 | (fence as u64) << 6 | (status as u64) << 32, address.0 & !3]
}

/// Encodes a command, and hands each descriptor (at most two) to `put`.
pub fn encode(facts: &Facts, command: &Command, mut put: impl FnMut(Descriptor)) {
    match *command {
        Command::Pages { domain, range, leaf_only } => {
            pages(facts, domain, range, leaf_only, &mut put);
        }
        Command::Domain(domain) => put(iotlb_domain(facts, domain)),
        Command::All => put(iotlb_all(facts)),
        Command::Device { device, range: None } => put(device_tlb(facts, device, None)),
        Command::Device { device, range: Some(range) } => {
            cover(range).for_each(|block| put(device_tlb(facts, device, Some(block))));
        }
        Command::Config { device, domain } => put(context_device(domain, device)),
    }
}

fn pages(
    facts: &Facts,
    domain: DomainId,
    range: IovaRange,
    leaf_only: bool,
    put: &mut impl FnMut(Descriptor),
) {
    let blocks = cover(range);
    if !facts.page_selective || blocks.order() > facts.max_order {
        return put(iotlb_domain(facts, domain));
    }
    blocks.filter_map(|block| iotlb_block(facts, domain, block, leaf_only)).for_each(put);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::vec::Vec;

    use super::*;

    const FACTS: Facts = Facts {
        page_selective: true,
        max_order: 6,
        drains_reads: true,
        drains_writes: true,
        throttles_devices: true,
    };

    fn encoded(facts: &Facts, command: Command) -> Vec<Descriptor> {
        let mut all = Vec::new();
        encode(facts, &command, |d| all.push(d));
        all
    }

    /// What a unit drops for it: domain, first page, last page, and whether the walk stays cached.
    /// Decoded from the specification, not from the encoder.
    fn forgets(d: Descriptor) -> (u64, u64, u64, bool) {
        assert_eq!(d[0] & 0xf, 2, "an IOTLB descriptor");
        assert_eq!(d[0] & 0xffff_ffff_0000_ff00, 0, "reserved bits are zero");
        let domain = (d[0] >> 16) & 0xffff;
        match (d[0] >> 4) & 3 {
            2 => (domain, 0, u64::MAX, false),
            3 => {
                let am = d[1] & 0x3f;
                assert!(am <= 6, "no larger than MAMV");
                assert_eq!(d[1] & 0xf80, 0, "reserved bits are zero");
                let page = d[1] >> 12;
                assert_eq!(page % (1 << am), 0, "aligned to its size");
                (domain, page, page + (1 << am) - 1, d[1] & 0x40 != 0)
            }
            _ => panic!("a granularity that is not asked for"),
        }
    }

    /// I7, exhaustively: all ranges of eight bits.
    #[test]
    pub(crate) fn pages_are_covered() {
        for (first, pages) in (1..256u64).flat_map(|f| (1..256).map(move |n| (f, n))) {
            let range = IovaRange::new(first, pages).unwrap();
            for (page_selective, leaf_only) in [(true, true), (true, false), (false, true)] {
                let facts = Facts { page_selective, ..FACTS };
                let command = Command::Pages { domain: DomainId(0xabcd), range, leaf_only };
                let forgotten: Vec<_> = encoded(&facts, command).into_iter().map(forgets).collect();
                assert!(forgotten.len() <= 2);
                for page in first..first + pages {
                    assert!(
                        forgotten.iter().any(|&(domain, f, l, leaf)| {
                            domain == 0xabcd && (f..=l).contains(&page) && (leaf_only || !leaf)
                        }),
                        "{range:?}: page {page:#x} in {forgotten:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let facts = FACTS;
        assert_eq!(iotlb_all(&facts), [0xd2, 0]);
        assert_eq!(iotlb_domain(&facts, DomainId(7)), [0x0007_00e2, 0]);
        let block = Block { first: 0x1234_5678 & !7, order: 3 };
        assert_eq!(
            iotlb_block(&facts, DomainId(7), block, true),
            Some([0x0007_00f2, 0x0123_4567_8000 | 0x43])
        );
        assert_eq!(context_all(), [0x11, 0]);
        assert_eq!(context_domain(DomainId(3)), [0x0003_0021, 0]);
        assert_eq!(context_device(DomainId(3), DeviceId(0xbeef)), [0x0000_beef_0003_0031, 0]);
        assert_eq!(wait(PhysAddr(0x1000), 0xdead_beef, false), [0xdead_beef_0000_0025, 0x1000]);
        assert_eq!(wait(PhysAddr(0x1000), 1, true)[0], 0x0000_0001_0000_0065);
        let [low, high] = device_tlb(&facts, DeviceId(0x1234), None);
        assert_eq!((low, high), (0x1230_1234_0001_4003, 0x7fff_ffff_ffff_f001));
        let pair = Block { first: 0x10, order: 1 };
        assert_eq!(device_tlb(&facts, DeviceId(0), Some(pair))[1], 0x1_0001);
    }

    #[test]
    fn what_a_unit_cannot_do_is_not_asked_of_it() {
        let block = Block { first: 0x80, order: 7 };
        assert_eq!(iotlb_block(&FACTS, DomainId(1), block, true), None, "larger than MAMV");
        let bare =
            Facts { page_selective: false, drains_reads: false, drains_writes: false, ..FACTS };
        assert_eq!(iotlb_block(&bare, DomainId(1), Block { first: 1, order: 0 }, true), None);
        assert_eq!(iotlb_all(&bare), [0x12, 0], "does not drain");
        let bare = Facts::from_cap(u64::MAX).with_ecap(!(1 << 41));
        assert_eq!(device_tlb(&bare, DeviceId(0x1234), None)[0], 0x1234_0001_0003, "reserved");
        assert!(bare.with_ecap(1 << 41).throttles_devices);
    }
}
