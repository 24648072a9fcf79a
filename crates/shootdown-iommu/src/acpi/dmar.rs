//! DMAR: VT-d's units, and the memory that devices need (VT-d, chapter 8: "BIOS Considerations").

use super::{Blocks, Bytes, Layout, Reserved, TableError};

/// Structures have their length in bytes 2 and 3.
const STRUCTURES: Layout = Layout { length: |bytes| bytes.u16(2).map(usize::from), head: 4 };
/// Scopes in byte 1.
const SCOPES: Layout = Layout { length: |bytes| bytes.u8(1).map(usize::from), head: 6 };

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct Dmar<'a> {
    structures: Blocks<'a>,
    width: u8,
    flags: u8,
}

/// What a structure describes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Structure<'a> {
    /// DRHD (8.3): a unit.
    Unit(Unit<'a>),
    /// RMRR (8.4): memory that devices need.
    Reserved(Region<'a>),
    /// ATSR (8.5): root ports behind which devices may have caches.
    DeviceCaches(Ports<'a>),
    /// RHSA (8.6): a unit's proximity domain.
    Affinity {
        /// The address of the unit's registers.
        registers: u64,
        /// The proximity domain.
        domain: u32,
    },
    /// ANDD (8.7): a device of ACPI's name space.
    Named {
        /// Its number, by which scopes name it.
        number: u8,
        /// Its name.
        name: &'a [u8],
    },
    /// SATC (8.8): devices in the chip that have caches.
    ChipDeviceCaches(Ports<'a>),
    /// SIDP (8.9): properties of devices in the chip.
    Properties(Ports<'a>),
    /// Another, or one that is too short for what it is.
    Unknown {
        /// Its type.
        kind: u16,
        /// All of it.
        bytes: &'a [u8],
    },
}

/// A unit.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// The address of its registers.
    pub registers: u64,
    /// Bytes of them: 4 KiB, or as the structure says (version 4 and later).
    pub bytes: u64,
    /// PCI's segment.
    pub segment: u16,
    /// All devices of the segment are behind it that are in no other unit's scope
    /// (INCLUDE_PCI_ALL).
    pub all_others: bool,
    /// Devices that are behind it.
    pub scopes: Scopes<'a>,
}

/// Memory that devices need.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// PCI's segment.
    pub segment: u16,
    /// The memory; `None` if it ends before it begins.
    pub memory: Option<Reserved>,
    /// The devices.
    pub scopes: Scopes<'a>,
}

/// Ports or devices of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Ports<'a> {
    /// PCI's segment.
    pub segment: u16,
    /// Bit 0 says "all" in ATSR, and "needs its cache" in SATC.
    pub flags: u8,
    /// Which.
    pub scopes: Scopes<'a>,
}

/// Devices, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Scopes<'a>(Blocks<'a>);

/// What a scope names (8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScopeKind {
    /// 1: a function of PCI.
    Endpoint,
    /// 2: a bridge, and all that is behind it.
    Bridge,
    /// 3: an I/O APIC.
    IoApic,
    /// 4: a HPET that interrupts by messages.
    Hpet,
    /// 5: a device of ACPI's name space.
    Named,
    /// Another.
    Unknown(u8),
}

/// A device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope<'a> {
    /// What it is.
    pub kind: ScopeKind,
    /// The number of an I/O APIC, of a HPET, or of a named device.
    pub number: u8,
    /// The bus where the path begins.
    pub bus: u8,
    /// Device and function, for each bridge on the way and at last for the device itself: pairs of
    /// bytes.
    pub path: &'a [u8],
}

impl Scope<'_> {
    /// Bus, device and function as units know it (bus 15:8, device 7:3, function 2:0), if no bridge
    /// is on the way: behind one, the number of the bus is the bridge's to say, which the host has
    /// to ask.
    #[must_use]
    pub fn function(&self) -> Option<u16> {
        match *self.path {
            [device @ 0..=31, function @ 0..=7] => {
                Some(u16::from(self.bus) << 8 | u16::from(device) << 3 | u16::from(function))
            }
            _ => None,
        }
    }
}

impl<'a> Scopes<'a> {
    /// Are they whole? See [`Blocks::is_whole`].
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.0.is_whole()
    }
}

impl<'a> Iterator for Scopes<'a> {
    type Item = Scope<'a>;

    fn next(&mut self) -> Option<Scope<'a>> {
        let block = self.0.next()?;
        let bytes = Bytes(block);
        let kind = match bytes.u8(0)? {
            1 => ScopeKind::Endpoint,
            2 => ScopeKind::Bridge,
            3 => ScopeKind::IoApic,
            4 => ScopeKind::Hpet,
            5 => ScopeKind::Named,
            other => ScopeKind::Unknown(other),
        };
        Some(Scope { kind, number: bytes.u8(4)?, bus: bytes.u8(5)?, path: bytes.from(6).0 })
    }
}

impl<'a> Dmar<'a> {
    /// The table in these bytes.
    ///
    /// # Errors
    /// They are none.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TableError> {
        let (whole, behind) = Bytes(bytes).table(*b"DMAR", 48)?;
        let [width, flags] = [36, 37].map(|at| whole.u8(at).unwrap_or(0));
        Ok(Self { structures: Blocks::new(behind, STRUCTURES), width, flags })
    }

    /// Bits of the addresses of devices, at most.
    #[must_use]
    pub fn address_bits(&self) -> u32 {
        u32::from(self.width) + 1
    }

    /// Are interrupts remapped (INTR_REMAP)?
    #[must_use]
    pub const fn remaps_interrupts(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Has firmware seen to it that no device does DMA before the kernel turns units on, but to
    /// memory that it needs (DMA_CTRL_PLATFORM_OPT_IN_FLAG)?
    #[must_use]
    pub const fn opts_in(&self) -> bool {
        self.flags & 1 << 2 != 0
    }

    /// Are its structures whole? See [`Blocks::is_whole`].
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.structures.is_whole()
    }

    /// Its structures. Units come first; those that take all others come last (8.3), so that the
    /// first in whose scope a device is has it.
    pub fn structures(&self) -> impl Iterator<Item = Structure<'a>> + use<'a> {
        self.structures.map(structure)
    }

    /// The units.
    pub fn units(&self) -> impl Iterator<Item = Unit<'a>> + use<'a> {
        self.structures().filter_map(|structure| match structure {
            Structure::Unit(unit) => Some(unit),
            _ => None,
        })
    }

    /// The memory that devices need.
    pub fn reserved(&self) -> impl Iterator<Item = Region<'a>> + use<'a> {
        self.structures().filter_map(|structure| match structure {
            Structure::Reserved(region) => Some(region),
            _ => None,
        })
    }
}

fn structure(block: &[u8]) -> Structure<'_> {
    let kind = Bytes(block).u16(0).unwrap_or(u16::MAX);
    known(kind, Bytes(block)).unwrap_or(Structure::Unknown { kind, bytes: block })
}

fn known(kind: u16, bytes: Bytes<'_>) -> Option<Structure<'_>> {
    let scopes = |at| Scopes(Blocks::new(bytes.from(at), SCOPES));
    let ports = || Some(Ports { flags: bytes.u8(4)?, segment: bytes.u16(6)?, scopes: scopes(8) });
    Some(match kind {
        0 => Structure::Unit(Unit {
            all_others: bytes.u8(4)? & 1 != 0,
            bytes: 4096 << (bytes.u8(5)? & 0xf),
            segment: bytes.u16(6)?,
            registers: bytes.u64(8)?,
            scopes: scopes(16),
        }),
        1 => {
            let (first, last) = (bytes.u64(8)?, bytes.u64(16)?);
            let memory = Reserved { first, last, read: true, write: true };
            Structure::Reserved(Region {
                segment: bytes.u16(6)?,
                memory: (first <= last).then_some(memory),
                scopes: scopes(24),
            })
        }
        2 => Structure::DeviceCaches(ports()?),
        3 => Structure::Affinity { registers: bytes.u64(8)?, domain: bytes.u32(16)? },
        4 => {
            let name = bytes.from(8).0;
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            Structure::Named { number: bytes.u8(7)?, name: &name[..end] }
        }
        5 => Structure::ChipDeviceCaches(ports()?),
        6 => Structure::Properties(ports()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::super::tests::table as test_table;
    use super::*;

    /// As QEMU 7.2 makes it for `-device intel-iommu`: one unit, with its I/O APIC in the scope.
    fn of_qemu() -> Vec<u8> {
        let mut behind = Vec::from([38, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        behind.extend([0, 0, 24, 0, 1, 0, 0, 0, 0, 0, 0xd9, 0xfe, 0, 0, 0, 0]);
        behind.extend([3, 8, 0, 0, 0, 0xff, 0, 0]);
        test_table(b"DMAR", &behind)
    }

    #[test]
    fn qemus_table() {
        let bytes = of_qemu();
        let dmar = Dmar::new(&bytes).unwrap();
        assert!(dmar.is_whole() && dmar.remaps_interrupts() && !dmar.opts_in());
        assert_eq!(dmar.address_bits(), 39);
        let units: Vec<_> = dmar.units().collect();
        let [unit] = units[..] else { panic!("{units:?}") };
        assert_eq!((unit.registers, unit.bytes, unit.segment), (0xfed9_0000, 4096, 0));
        assert!(unit.all_others);
        let scopes: Vec<_> = unit.scopes.collect();
        let apic = Scope { kind: ScopeKind::IoApic, number: 0, bus: 0xff, path: &[0, 0] };
        assert_eq!(scopes, [apic]);
        assert_eq!(apic.function(), Some(0xff00));
    }

    /// 8.4: a device of bus 2 behind a bridge, and 00:1d.0, need 1 MiB.
    #[test]
    fn reserved_regions_and_their_devices() {
        let mut behind = Vec::from([38, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        behind.extend([1, 0, 42, 0, 0, 0, 1, 0]);
        behind.extend(0x7b00_0000u64.to_le_bytes());
        behind.extend(0x7b0f_ffffu64.to_le_bytes());
        behind.extend([1, 8, 0, 0, 0, 0, 0x1d, 0]);
        behind.extend([2, 10, 0, 0, 0, 2, 0x1c, 0, 3, 1]);
        let bytes = test_table(b"DMAR", &behind);
        let dmar = Dmar::new(&bytes).unwrap();
        assert!(dmar.opts_in() && dmar.is_whole());
        let regions: Vec<_> = dmar.reserved().collect();
        let [region] = regions[..] else { panic!("{regions:?}") };
        let memory = Reserved { first: 0x7b00_0000, last: 0x7b0f_ffff, read: true, write: true };
        assert_eq!((region.memory, region.segment), (Some(memory), 1));
        let functions: Vec<_> = region.scopes.map(|scope| scope.function()).collect();
        assert_eq!(functions, [Some(0x1d << 3), None]);
        let last = region.scopes.last().unwrap();
        assert_eq!((last.kind, last.path), (ScopeKind::Bridge, &[0x1c, 0, 3, 1][..]));
    }

    /// A unit that is too short for its base is kept, and a structure without a length ends the
    /// table.
    #[test]
    fn what_is_damaged_is_kept_or_ends_the_table() {
        let mut bytes = test_table(b"DMAR", &[0; 12]);
        bytes.extend([0, 0, 8, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        let length = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        let dmar = Dmar::new(&bytes).unwrap();
        let all: Vec<_> = dmar.structures().collect();
        let [Structure::Unknown { kind: 0, bytes: short }] = all[..] else { panic!("{all:?}") };
        assert_eq!(short.len(), 8);
        assert!(!dmar.is_whole());
    }
}
