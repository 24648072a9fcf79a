//! IVRS: AMD-Vi's units, which devices are behind them, and the memory that devices need (AMD-Vi,
//! chapter 5: "I/O Virtualization ACPI Table").

use super::{Blocks, Bytes, Layout, Reserved, TableError};

/// Blocks have their length in bytes 2 and 3.
const BLOCKS: Layout = Layout { length: |bytes| bytes.u16(2).map(usize::from), head: 4 };
/// Device entries have 4, 8, 16 or 32 bytes, by the upper bits of their type; those of ACPI's
/// devices as long as their name.
const DEVICES: Layout = Layout { length: entry_length, head: 4 };

/// The entry of a device of ACPI's.
const NAMED: u8 = 240;

fn entry_length(bytes: Bytes<'_>) -> Option<usize> {
    match bytes.u8(0)? {
        NAMED => bytes.u8(21).map(|name| 22 + usize::from(name)),
        kind => Some(4 << (kind >> 6)),
    }
}

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct Ivrs<'a> {
    blocks: Blocks<'a>,
    info: u32,
}

/// What a block describes.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Block<'a> {
    /// IVHD, types 10h, 11h and 40h (5.2.2): a unit. The same unit may have one of each; the
    /// highest that a kernel knows counts.
    Unit(Unit<'a>),
    /// IVMD, types 20h to 22h (5.2.3): memory that devices need.
    Memory(Region),
    /// Another, or one that is too short for what it is.
    Unknown {
        /// Its type.
        kind: u8,
        /// All of it.
        bytes: &'a [u8],
    },
}

/// A unit.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// 10h, 11h or 40h.
    pub kind: u8,
    /// What is to be passed to CONTROL: bit 0 HtTunEn, 1 PassPW, 2 ResPassPW, 3 Isoc; bit 4: it
    /// takes part in devices' caches; bit 5: Coherent.
    pub flags: u8,
    /// The unit's own function.
    pub function: u16,
    /// Where its capability is in PCI's configuration.
    pub capability: u16,
    /// The address of its registers.
    pub registers: u64,
    /// PCI's segment.
    pub segment: u16,
    /// IVHD types 11h and 40h: EFR, as the registers have it.
    pub features: Option<u64>,
    /// Which devices are behind it.
    pub devices: Devices<'a>,
}

/// The devices that a block of memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceSet {
    /// Every device.
    All,
    /// One.
    One(u16),
    /// Those from the first to the last, which belongs to them.
    Range(u16, u16),
}

/// Memory that devices need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// For which devices.
    pub devices: DeviceSet,
    /// The memory; `None` if it is none, or no address has its end.
    pub memory: Option<Reserved>,
    /// It is to be mapped to itself (Unity). If not, it is only not to be handed out.
    pub unity: bool,
    /// It is in the exclusion range: accesses pass the unit untranslated.
    pub excluded: bool,
}

/// Entries about devices, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Devices<'a>(Blocks<'a>);

/// An entry about devices (5.2.2.1). The settings are those of the device table: bit 0 InitPass, 1
/// EIntPass, 2 NMIPass, 5:4 SysMgt, 6 Lint0Pass, 7 Lint1Pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Device<'a> {
    /// 0: nothing.
    Padding,
    /// 1: all devices.
    All {
        /// How.
        settings: u8,
    },
    /// 2: one.
    One {
        /// Which.
        device: u16,
        /// How.
        settings: u8,
    },
    /// 3: those from this one on, up to the next [`End`](Self::End).
    Start {
        /// The first.
        device: u16,
        /// How.
        settings: u8,
    },
    /// 4: this one is the last.
    End {
        /// The last.
        device: u16,
    },
    /// 42h: one, whose accesses come with another's number.
    Alias {
        /// Which.
        device: u16,
        /// As whom.
        source: u16,
        /// How.
        settings: u8,
    },
    /// 43h: the same for those from this one on.
    AliasStart {
        /// The first.
        device: u16,
        /// As whom.
        source: u16,
        /// How.
        settings: u8,
    },
    /// 46h: one, with more settings.
    Extended {
        /// Which.
        device: u16,
        /// How.
        settings: u8,
        /// And how else: bit 31: no cache of its own.
        more: u32,
    },
    /// 47h: the same for those from this one on.
    ExtendedStart {
        /// The first.
        device: u16,
        /// How.
        settings: u8,
        /// And how else.
        more: u32,
    },
    /// 48h: a device that is none of PCI's.
    Special {
        /// 1: an I/O APIC, 2: a HPET.
        variety: u8,
        /// Its number.
        handle: u8,
        /// As whom it comes.
        source: u16,
        /// How.
        settings: u8,
    },
    /// F0h: a device of ACPI's.
    Named {
        /// As whom it comes.
        device: u16,
        /// How.
        settings: u8,
        /// The hardware id.
        hardware: [u8; 8],
        /// The unique id, as the byte before it says.
        unique: &'a [u8],
    },
    /// Another.
    Unknown {
        /// Its type.
        kind: u8,
        /// All of it.
        bytes: &'a [u8],
    },
}

impl Device<'_> {
    /// The highest number of a device in it.
    fn last(&self) -> Option<u16> {
        match *self {
            Self::All { .. } => Some(u16::MAX),
            Self::One { device, .. }
            | Self::Start { device, .. }
            | Self::End { device }
            | Self::Extended { device, .. }
            | Self::ExtendedStart { device, .. }
            | Self::Named { device, .. } => Some(device),
            Self::Alias { device, source, .. } | Self::AliasStart { device, source, .. } => {
                Some(device.max(source))
            }
            Self::Special { source, .. } => Some(source),
            Self::Padding | Self::Unknown { .. } => None,
        }
    }
}

impl Devices<'_> {
    /// Are they whole? See [`Blocks::is_whole`].
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.0.is_whole()
    }

    /// The highest number of a device behind the unit: where its device table ends
    /// ([`Options::last_device`](crate::amd::Options::last_device)). A unit that names none has
    /// all.
    #[must_use]
    pub fn last(self) -> u16 {
        self.filter_map(|device| device.last()).max().unwrap_or(u16::MAX)
    }
}

impl<'a> Iterator for Devices<'a> {
    type Item = Device<'a>;

    fn next(&mut self) -> Option<Device<'a>> {
        let block = self.0.next()?;
        let kind = Bytes(block).u8(0).unwrap_or(0);
        Some(device(kind, Bytes(block)).unwrap_or(Device::Unknown { kind, bytes: block }))
    }
}

fn device(kind: u8, bytes: Bytes<'_>) -> Option<Device<'_>> {
    let (id, settings) = (bytes.u16(1)?, bytes.u8(3)?);
    Some(match kind {
        0 => Device::Padding,
        1 => Device::All { settings },
        2 => Device::One { device: id, settings },
        3 => Device::Start { device: id, settings },
        4 => Device::End { device: id },
        0x42 => Device::Alias { device: id, settings, source: bytes.u16(5)? },
        0x43 => Device::AliasStart { device: id, settings, source: bytes.u16(5)? },
        0x46 => Device::Extended { device: id, settings, more: bytes.u32(4)? },
        0x47 => Device::ExtendedStart { device: id, settings, more: bytes.u32(4)? },
        0x48 => Device::Special {
            settings,
            handle: bytes.u8(4)?,
            source: bytes.u16(5)?,
            variety: bytes.u8(7)?,
        },
        NAMED => Device::Named {
            device: id,
            settings,
            hardware: bytes.array(4)?,
            unique: bytes.from(22).0,
        },
        _ => return None,
    })
}

impl<'a> Ivrs<'a> {
    /// The table in these bytes.
    ///
    /// # Errors
    /// They are none.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TableError> {
        let (whole, behind) = Bytes(bytes).table(*b"IVRS", 48)?;
        let info = whole.u32(36).unwrap_or(0);
        Ok(Self { blocks: Blocks::new(behind, BLOCKS), info })
    }

    /// Has firmware set units up, so that no device does DMA before the kernel does so again (DMA
    /// remap support, bit 1)?
    #[must_use]
    pub const fn opts_in(&self) -> bool {
        self.info & 1 << 1 != 0
    }

    /// Are its blocks whole? See [`Blocks::is_whole`].
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.blocks.is_whole()
    }

    /// Its blocks.
    pub fn blocks(&self) -> impl Iterator<Item = Block<'a>> + use<'a> {
        self.blocks.map(block)
    }

    /// The units. One that has blocks of several types comes with the last of the highest, where it
    /// is first.
    pub fn units(&self) -> impl Iterator<Item = Unit<'a>> + use<'a> {
        let all = *self;
        let every = move || {
            all.blocks().filter_map(|block| match block {
                Block::Unit(unit) => Some(unit),
                _ => None,
            })
        };
        every().enumerate().filter_map(move |(number, unit)| {
            let same = move |other: &Unit<'_>| other.registers == unit.registers;
            if every().take(number).any(|other| same(&other)) {
                return None;
            }
            every().filter(same).max_by_key(|other| other.kind)
        })
    }

    /// The memory that devices need.
    pub fn regions(&self) -> impl Iterator<Item = Region> + use<'a> {
        self.blocks().filter_map(|block| match block {
            Block::Memory(region) => Some(region),
            _ => None,
        })
    }
}

fn block(block: &[u8]) -> Block<'_> {
    let kind = Bytes(block).u8(0).unwrap_or(0);
    known(kind, Bytes(block)).unwrap_or(Block::Unknown { kind, bytes: block })
}

fn known(kind: u8, bytes: Bytes<'_>) -> Option<Block<'_>> {
    let flags = bytes.u8(1)?;
    Some(match kind {
        0x10 | 0x11 | 0x40 => {
            let (features, at) = if kind == 0x10 { (None, 24) } else { (Some(bytes.u64(24)?), 40) };
            Block::Unit(Unit {
                kind,
                flags,
                function: bytes.u16(4)?,
                capability: bytes.u16(6)?,
                registers: bytes.u64(8)?,
                segment: bytes.u16(16)?,
                features,
                devices: Devices(Blocks::new(bytes.from(at), DEVICES)),
            })
        }
        0x20..=0x22 => {
            let (first, other) = (bytes.u16(4)?, bytes.u16(6)?);
            let devices = match kind {
                0x20 => DeviceSet::All,
                0x21 => DeviceSet::One(first),
                _ => DeviceSet::Range(first, other),
            };
            let [unity, read, write, excluded] = [0, 1, 2, 3].map(|bit| flags & 1 << bit != 0);
            let memory = Reserved::of_length(bytes.u64(16)?, bytes.u64(24)?, read, write);
            Block::Memory(Region { devices, memory, unity, excluded })
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::super::tests::table as test_table;
    use super::*;

    fn unit(kind: u8, registers: u64, devices: &[u8]) -> Vec<u8> {
        let head = if kind == 0x10 { 24 } else { 40 };
        let length = (head + devices.len()) as u16;
        let mut block = Vec::from([kind, 0b1001]);
        block.extend(length.to_le_bytes());
        block.extend([0x10, 0, 0x40, 0]);
        block.extend(registers.to_le_bytes());
        block.extend([0; 8]);
        block.extend([0x5a; 16].iter().take(head - 24));
        block.extend(devices);
        block
    }

    /// Two blocks of one unit, as firmware writes them: the newer counts. Then its devices.
    #[test]
    fn units_and_their_devices() {
        let mut behind = Vec::from([0; 12]);
        behind[0] = 2;
        behind.extend(unit(0x10, 0xfed8_0000, &[1, 0, 0, 0]));
        let devices = [
            &[3, 8, 0, 0x40][..], // from 00:01.0
            &[4, 0xff, 0, 0],     // to 00:1f.7
            &[0x42, 0, 1, 0, 0, 0x20, 0, 0],
            &[0x48, 0, 0, 0xd7, 7, 0xa0, 0, 1],
            &[0, 0, 0, 0],
            &[0xf0, 0x98, 0, 0, b'A', b'M', b'D', b'I', b'0', b'0', b'2', b'0'],
            &[0, 0, 0, 0, 0, 0, 0, 0, 2, 3, b'a', b'b', b'c'],
            &[0xc5; 32],
        ];
        behind.extend(unit(0x11, 0xfed8_0000, &devices.concat()));
        behind.extend(unit(0x40, 0xfed9_0000, &[]));
        let bytes = test_table(b"IVRS", &behind);
        let ivrs = Ivrs::new(&bytes).unwrap();
        assert!(ivrs.is_whole() && ivrs.opts_in());
        let units: Vec<_> = ivrs.units().collect();
        let [first, second] = units[..] else { panic!("{units:?}") };
        assert_eq!((first.kind, first.registers, second.kind), (0x11, 0xfed8_0000, 0x40));
        assert_eq!((first.function, first.capability, first.flags), (0x10, 0x40, 0b1001));
        assert_eq!(first.features, Some(0x5a5a_5a5a_5a5a_5a5a));
        assert!(first.devices.is_whole());
        let found: Vec<_> = first.devices.collect();
        assert_eq!(
            found,
            [
                Device::Start { device: 8, settings: 0x40 },
                Device::End { device: 0xff },
                Device::Alias { device: 0x100, source: 0x20, settings: 0 },
                Device::Special { variety: 1, handle: 7, source: 0xa0, settings: 0xd7 },
                Device::Padding,
                Device::Named { device: 0x98, settings: 0, hardware: *b"AMDI0020", unique: b"abc" },
                Device::Unknown { kind: 0xc5, bytes: &[0xc5; 32] },
            ]
        );
        assert_eq!((first.devices.last(), second.devices.last()), (0x100, u16::MAX));
    }

    /// 5.2.3: unity for a range, read only; excluded for one; without a length.
    #[test]
    fn memory_and_whose_it_is() {
        let mut behind = Vec::from([0; 12]);
        let mut memory = |kind: u8, flags: u8, first: u64, length: u64| {
            behind.extend([kind, flags, 32, 0, 8, 0, 0x0f, 0]);
            behind.extend([0; 8]);
            behind.extend(first.to_le_bytes());
            behind.extend(length.to_le_bytes());
        };
        memory(0x22, 0b0011, 0x7000_0000, 0x1000);
        memory(0x21, 0b1000, 0x8000_0000, 0x2000);
        memory(0x20, 0b0111, 0x9000_0000, 0);
        let bytes = test_table(b"IVRS", &behind);
        let regions: Vec<_> = Ivrs::new(&bytes).unwrap().regions().collect();
        let range = |first, last, read| Reserved { first, last, read, write: false };
        let unity = Region {
            devices: DeviceSet::Range(8, 0xf),
            memory: Some(range(0x7000_0000, 0x7000_0fff, true)),
            unity: true,
            excluded: false,
        };
        let excluded = Region {
            devices: DeviceSet::One(8),
            memory: Some(range(0x8000_0000, 0x8000_1fff, false)),
            unity: false,
            excluded: true,
        };
        let none = Region { devices: DeviceSet::All, memory: None, unity: true, excluded: false };
        assert_eq!(regions, [unity, excluded, none]);
    }
}
