//! IORT: SMMUv3s, which devices are behind them, and the memory that devices need (Arm DEN 0049,
//! "I/O Remapping Table").
//!
//! Nodes have places, and refer to each other by these: a device's numbers are mapped to those of a
//! unit, or of an ITS, by the device's node.

use super::{Blocks, Bytes, Layout, Reserved, TableError};

/// Nodes have their length in bytes 1 and 2.
const NODES: Layout = Layout { length: |bytes| bytes.u16(1).map(usize::from), head: 16 };
/// Maps and descriptors of memory have 20 bytes.
const TWENTY: Layout = Layout { length: |_| Some(20), head: 20 };

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct Iort<'a> {
    whole: &'a [u8],
    nodes: u32,
    at: usize,
}

/// A node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Where it is in the table: by this others refer to it.
    pub at: u32,
    /// What it describes.
    pub kind: Kind<'a>,
    bytes: &'a [u8],
}

/// What a node describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind<'a> {
    /// 0: translators of interrupts.
    Its,
    /// 1: a device of ACPI's name space.
    Named {
        /// Its name.
        name: &'a [u8],
    },
    /// 2: a root complex of PCI.
    RootComplex {
        /// PCI's segment.
        segment: u32,
        /// Do devices behind it have caches of their own, which the unit knows of (ATS attribute)?
        device_caches: bool,
    },
    /// 3: an SMMU of version 1 or 2.
    SmmuV2,
    /// 4: an SMMUv3.
    SmmuV3(Unit),
    /// 5: a counter of performance.
    Counters,
    /// 6: memory that devices need.
    Reserved {
        /// The kernel may map it elsewhere, when it drives the devices.
        remappable: bool,
        /// Accesses are privileged.
        privileged: bool,
    },
    /// Another, or one that is too short for what it is.
    Unknown(u8),
}

/// An SMMUv3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The address of its registers.
    pub registers: u64,
    /// It reads the CPUs' caches, whatever IDR0.COHACC says.
    pub coherent: bool,
    /// 0: as Arm has it; 1: HiSilicon's; 2: Cavium's CN99xx, whose page 1 is page 0.
    pub model: u32,
    /// Numbers of interrupts: events, requests for pages, errors, SYNCs; 0: none.
    pub interrupts: [u32; 4],
    /// The proximity domain, if it is known.
    pub proximity: Option<u32>,
}

/// How numbers of a device become numbers of what it is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first number.
    pub first: u32,
    /// How many, less one.
    pub more: u32,
    /// What the first becomes.
    pub output: u32,
    /// Where the node is that they are numbers of.
    pub to: u32,
    /// It is about one number, and the first does not matter.
    pub single: bool,
}

impl Mapping {
    /// What a number becomes.
    #[must_use]
    pub fn map(&self, number: u32) -> Option<u32> {
        if self.single {
            return Some(self.output);
        }
        let behind = number.checked_sub(self.first).filter(|behind| *behind <= self.more)?;
        self.output.checked_add(behind)
    }
}

impl<'a> Node<'a> {
    /// Its maps.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> + use<'a> {
        let bytes = Bytes(self.bytes);
        let [count, at] = [8, 12].map(|at| bytes.u32(at).unwrap_or(0) as usize);
        // Behind the head, or it is nowhere.
        let maps = if at < 16 { Bytes(&[]) } else { bytes.from(at) };
        Blocks::new(maps, TWENTY).take(count).filter_map(|map| {
            let map = Bytes(map);
            Some(Mapping {
                first: map.u32(0)?,
                more: map.u32(4)?,
                output: map.u32(8)?,
                to: map.u32(12)?,
                single: map.u32(16)? & 1 != 0,
            })
        })
    }

    /// The memory that it describes, of a node that [does](Kind::Reserved).
    pub fn memory(&self) -> impl Iterator<Item = Reserved> + use<'a> {
        let bytes = Bytes(self.bytes);
        let is_memory = matches!(self.kind, Kind::Reserved { .. });
        let [count, at] = [20, 24].map(|at| bytes.u32(at).unwrap_or(0) as usize);
        let descriptors = if at < 28 || !is_memory { Bytes(&[]) } else { bytes.from(at) };
        Blocks::new(descriptors, TWENTY).take(count).filter_map(|memory| {
            let memory = Bytes(memory);
            Reserved::of_length(memory.u64(0)?, memory.u64(8)?, true, true)
        })
    }
}

impl<'a> Iort<'a> {
    /// The table in these bytes.
    ///
    /// # Errors
    /// They are none.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TableError> {
        let (whole, _) = Bytes(bytes).table(*b"IORT", 48)?;
        let [nodes, at] = [36, 40].map(|at| whole.u32(at).unwrap_or(0));
        Ok(Self { whole: whole.0, nodes, at: at as usize })
    }

    /// Its nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'a>> + use<'a> {
        let (whole, first) = (self.whole, self.at.max(48));
        let blocks = Blocks::new(Bytes(whole).from(first), NODES).take(self.nodes as usize);
        blocks.scan(first, |at, block| {
            let start = *at;
            *at += block.len();
            Some(node(u32::try_from(start).ok()?, block))
        })
    }

    /// Are there as many nodes as it says? If not, the table is damaged, and what is behind the
    /// last one was not read.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.nodes().count() == self.nodes as usize
    }

    /// The node at this place, if one begins there.
    #[must_use]
    pub fn node(&self, at: u32) -> Option<Node<'a>> {
        self.nodes().find(|node| node.at == at)
    }

    /// The SMMUv3s, each with the place of its node.
    pub fn units(&self) -> impl Iterator<Item = (u32, Unit)> + use<'a> {
        self.nodes().filter_map(|node| match node.kind {
            Kind::SmmuV3(unit) => Some((node.at, unit)),
            _ => None,
        })
    }

    /// The SMMUv3 that a function of PCI is behind, and the number that it has there: the place of
    /// the unit's node, and the stream.
    #[must_use]
    pub fn stream_of(&self, segment: u32, function: u16) -> Option<(u32, u32)> {
        let of = |node: &Node<'_>| match node.kind {
            Kind::RootComplex { segment: of, .. } => of == segment,
            _ => false,
        };
        let mappings = self.nodes().filter(of).flat_map(|node| node.mappings());
        mappings
            .filter_map(|mapping| Some((mapping.to, mapping.map(function.into())?)))
            .find(|(to, _)| self.units().any(|(at, _)| at == *to))
    }
}

fn node(at: u32, block: &[u8]) -> Node<'_> {
    let bytes = Bytes(block);
    let kind = bytes.u8(0).unwrap_or(u8::MAX);
    Node { at, kind: known(kind, bytes).unwrap_or(Kind::Unknown(kind)), bytes: block }
}

fn known(kind: u8, bytes: Bytes<'_>) -> Option<Kind<'_>> {
    Some(match kind {
        0 => Kind::Its,
        1 => {
            let name = bytes.from(29).0;
            let end = name.iter().position(|byte| *byte == 0)?;
            Kind::Named { name: &name[..end] }
        }
        2 => Kind::RootComplex { device_caches: bytes.u32(24)? & 1 != 0, segment: bytes.u32(28)? },
        3 => Kind::SmmuV2,
        4 => {
            const PROXIMITY_VALID: u32 = 1 << 3;
            let flags = bytes.u32(24)?;
            let mut interrupts = [0; 4];
            for (number, interrupt) in interrupts.iter_mut().enumerate() {
                *interrupt = bytes.u32(44 + 4 * number)?;
            }
            let proximity = bytes.u32(60).filter(|_| flags & PROXIMITY_VALID != 0);
            Kind::SmmuV3(Unit {
                registers: bytes.u64(16)?,
                coherent: flags & 1 != 0,
                model: bytes.u32(40)?,
                interrupts,
                proximity,
            })
        }
        5 => Kind::Counters,
        6 => {
            let flags = bytes.u32(16)?;
            Kind::Reserved { remappable: flags & 1 != 0, privileged: flags & 2 != 0 }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::super::tests::table as test_table;
    use super::*;

    /// A node: its head, what it has of its own, and maps.
    fn put(table: &mut Vec<u8>, kind: u8, own: &[u8], maps: &[[u32; 5]]) -> u32 {
        let at = table.len() as u32;
        let length = (16 + own.len() + 20 * maps.len()) as u16;
        table.push(kind);
        table.extend(length.to_le_bytes());
        table.extend([1, 0, 0, 0, 0]);
        table.extend((maps.len() as u32).to_le_bytes());
        table.extend((16 + own.len() as u32).to_le_bytes());
        table.extend(own);
        maps.iter().flatten().for_each(|word| table.extend(word.to_le_bytes()));
        at
    }

    fn finish(mut table: Vec<u8>, nodes: u32) -> Vec<u8> {
        let length = table.len() as u32;
        table[4..8].copy_from_slice(&length.to_le_bytes());
        table[36..40].copy_from_slice(&nodes.to_le_bytes());
        table[40..44].copy_from_slice(&48u32.to_le_bytes());
        table
    }

    /// As QEMU has it for `virt,iommu=smmuv3`: an ITS, the unit, a root complex of which all is
    /// behind the unit; and memory that a device needs.
    fn example() -> (Vec<u8>, u32, u32) {
        let mut table = test_table(b"IORT", &[0; 12]);
        let its = put(&mut table, 0, &[1, 0, 0, 0, 0, 0, 0, 0], &[]);
        let mut own = Vec::from(0x0905_0000u64.to_le_bytes());
        own.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        own.extend([0; 8]);
        for word in [0u32, 106, 107, 109, 108, 3, 0] {
            own.extend(word.to_le_bytes());
        }
        let smmu = put(&mut table, 4, &own, &[[0, 0xffff, 0, its, 0]]);
        let mut root = Vec::from([1, 0, 0, 0, 0, 0, 0, 3]);
        root.extend([1, 0, 0, 0, 7, 0, 0, 0, 64, 0, 0, 0]);
        put(&mut table, 2, &root, &[[0, 0x7f, 0x100, smmu, 0], [0x80, 0xff7f, 0, its, 0]]);
        let mut memory = Vec::from([3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0]);
        memory.extend(0x8000_0000u64.to_le_bytes());
        memory.extend(0x2000u64.to_le_bytes());
        memory.extend([0; 4]);
        memory.extend(u64::MAX.to_le_bytes());
        memory.extend(u64::MAX.to_le_bytes());
        memory.extend([0; 4]);
        put(&mut table, 6, &memory, &[[8, 0, 0x108, smmu, 1]]);
        (finish(table, 4), smmu, its)
    }

    #[test]
    fn units_and_the_streams_behind_them() {
        let (bytes, smmu, its) = example();
        let iort = Iort::new(&bytes).unwrap();
        assert!(iort.is_whole());
        let unit = Unit {
            registers: 0x0905_0000,
            coherent: true,
            model: 0,
            interrupts: [106, 107, 109, 108],
            proximity: None,
        };
        assert_eq!(iort.units().collect::<Vec<_>>(), [(smmu, unit)]);
        assert_eq!(iort.stream_of(7, 0x10), Some((smmu, 0x110)));
        // Numbers that go to the ITS directly are behind no unit, and no node has another segment.
        assert_eq!(iort.stream_of(7, 0x80), None);
        assert_eq!(iort.stream_of(0, 0x10), None);
        let root = iort.nodes().nth(2).unwrap();
        assert_eq!(root.kind, Kind::RootComplex { segment: 7, device_caches: true });
        assert_eq!(root.mappings().nth(1).unwrap().to, its);
        assert_eq!(iort.node(its).unwrap().kind, Kind::Its);
        assert!(iort.node(its + 1).is_none());
    }

    /// What has no end is left out.
    #[test]
    fn reserved_memory_and_whose_it_is() {
        let (bytes, smmu, _) = example();
        let iort = Iort::new(&bytes).unwrap();
        let node = iort.nodes().last().unwrap();
        assert_eq!(node.kind, Kind::Reserved { remappable: true, privileged: true });
        let memory: Vec<_> = node.memory().collect();
        let [only] = memory[..] else { panic!("{memory:?}") };
        assert_eq!((only.first, only.last), (0x8000_0000, 0x8000_1fff));
        let whose: Vec<_> = node.mappings().collect();
        assert_eq!((whose[0].to, whose[0].map(99), whose.len()), (smmu, Some(0x108), 1));
        assert_eq!(iort.nodes().next().unwrap().memory().count(), 0);
    }

    #[test]
    fn a_map_is_about_the_numbers_that_it_names() {
        let map = Mapping { first: 8, more: 3, output: 0x100, to: 48, single: false };
        assert_eq!([7, 8, 11, 12].map(|n| map.map(n)), [None, Some(0x100), Some(0x103), None]);
        assert_eq!(Mapping { output: u32::MAX, ..map }.map(9), None);
    }
}
