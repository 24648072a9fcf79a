//! Whatever the bytes of a table are, its parser ends, does not panic, and reads nothing outside:
//! what it hands out is part of them.

use std::hint::black_box;

use proptest::prelude::*;
use shootdown_iommu::acpi::dmar::{self, Dmar};
use shootdown_iommu::acpi::iort::{self, Iort};
use shootdown_iommu::acpi::ivrs::{self, Ivrs};

/// A table with this signature, whose own length is right, and some bytes behind the header that
/// look like blocks: types and lengths that parsers know come more often than others.
fn table(signature: [u8; 4]) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => 0u8..8,
        3 => prop::sample::select(vec![16, 20, 24, 32, 40, 0x10, 0x11, 0x20, 0x21, 0x22, 0x40]),
        1 => prop::sample::select(vec![0x42, 0x43, 0x46, 0x47, 0x48, 0xf0]),
        2 => any::<u8>(),
    ];
    (prop::collection::vec(byte, 0..400), prop_oneof![8 => Just(true), 1 => Just(false)]).prop_map(
        move |(behind, honest)| {
            let mut bytes = vec![0; 36];
            bytes[..4].copy_from_slice(&signature);
            bytes.extend(behind);
            let length = if honest { bytes.len() as u32 } else { u32::MAX };
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes
        },
    )
}

/// The bytes are among those of the table.
fn within(all: &[u8], part: &[u8]) {
    assert!(all.as_ptr_range().start <= part.as_ptr_range().start);
    assert!(part.as_ptr_range().end <= all.as_ptr_range().end);
}

fn read_scopes(all: &[u8], scopes: dmar::Scopes<'_>) {
    for scope in scopes {
        within(all, scope.path);
        black_box(scope.function());
    }
    black_box(scopes.is_whole());
}

fn read_dmar(bytes: &[u8]) {
    let Ok(table) = Dmar::new(bytes) else { return };
    let mut count = 0;
    for structure in table.structures() {
        count += 1;
        match structure {
            dmar::Structure::Unit(unit) => read_scopes(bytes, unit.scopes),
            dmar::Structure::Reserved(region) => {
                assert!(region.memory.is_none_or(|memory| memory.first <= memory.last));
                black_box(region.memory.map(|memory| memory.pages(12)));
                read_scopes(bytes, region.scopes);
            }
            dmar::Structure::DeviceCaches(ports)
            | dmar::Structure::ChipDeviceCaches(ports)
            | dmar::Structure::Properties(ports) => read_scopes(bytes, ports.scopes),
            dmar::Structure::Named { name, .. } => within(bytes, name),
            dmar::Structure::Unknown { bytes: block, .. } => within(bytes, block),
            _ => {}
        }
    }
    assert!(count <= bytes.len() / 4);
    assert!(table.units().count() + table.reserved().count() <= count);
    black_box(table.is_whole());
}

fn read_ivrs(bytes: &[u8]) {
    let Ok(table) = Ivrs::new(bytes) else { return };
    let mut units = 0;
    for block in table.blocks() {
        match block {
            ivrs::Block::Unit(unit) => {
                units += 1;
                black_box(unit.devices.last());
                for device in unit.devices {
                    match device {
                        ivrs::Device::Named { unique, .. } => within(bytes, unique),
                        ivrs::Device::Unknown { bytes: block, .. } => within(bytes, block),
                        _ => {}
                    }
                }
            }
            ivrs::Block::Memory(region) => {
                assert!(region.memory.is_none_or(|memory| memory.first <= memory.last));
            }
            ivrs::Block::Unknown { bytes: block, .. } => within(bytes, block),
            _ => {}
        }
    }
    // Each unit is told of once.
    let registers: Vec<_> = table.units().map(|unit| unit.registers).collect();
    assert!(registers.len() <= units);
    assert!((1..registers.len()).all(|n| !registers[..n].contains(&registers[n])));
    black_box(table.is_whole());
}

fn read_iort(bytes: &[u8]) {
    let Ok(table) = Iort::new(bytes) else { return };
    for node in table.nodes() {
        assert!(table.node(node.at).is_some_and(|same| same.at == node.at));
        for map in node.mappings() {
            black_box([map.map(0), map.map(u32::MAX)]);
        }
        assert!(node.memory().all(|memory| memory.first <= memory.last));
        if let iort::Kind::Named { name } = node.kind {
            within(bytes, name);
        }
    }
    assert!(table.units().count() <= table.nodes().count());
    black_box(table.stream_of(0, 8));
    black_box(table.is_whole());
}

/// A head that says where the nodes are, and how many.
fn with_nodes(mut bytes: Vec<u8>, nodes: u32, at: u32) -> Vec<u8> {
    if bytes.len() >= 44 {
        bytes[36..40].copy_from_slice(&nodes.to_le_bytes());
        bytes[40..44].copy_from_slice(&at.to_le_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_dmar(&bytes);
        read_ivrs(&bytes);
        read_iort(&bytes);
    }

    #[test]
    fn any_dmar_is_read(bytes in table(*b"DMAR")) {
        read_dmar(&bytes);
    }

    #[test]
    fn any_ivrs_is_read(bytes in table(*b"IVRS")) {
        read_ivrs(&bytes);
    }

    #[test]
    fn any_iort_is_read(
        bytes in table(*b"IORT"),
        nodes in prop_oneof![0..8u32, any::<u32>()],
        at in prop_oneof![4 => Just(48), 1 => any::<u32>()],
    ) {
        read_iort(&with_nodes(bytes, nodes, at));
    }
}
