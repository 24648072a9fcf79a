//! A device tree's description of the devices behind an SMMUv3: the properties `iommu-map` and
//! `iommus`.
//!
//! A crate of the host's choice walks the tree (the image takes `fdt`), finds nodes that are
//! compatible with [`COMPATIBLE`] and their `reg`, and gives the bytes of a property. Specifiers
//! have one cell, as the SMMUv3's binding defines (`#iommu-cells` is 1). These parsers are total,
//! as those of [`acpi`](crate::acpi).

/// The `compatible` of an SMMUv3's node.
pub const COMPATIBLE: &str = "arm,smmu-v3";

/// A device, as its unit identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requester {
    /// The unit's phandle.
    pub unit: u32,
    /// The stream: the unit's number for the device.
    pub stream: u32,
}

/// The cells of a property: 32 bits each, the highest byte first.
fn cells<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u32; N]> + '_ {
    bytes.chunks_exact(4 * N).map(|entry| {
        let mut all = [0; N];
        for (cell, bytes) in all.iter_mut().zip(entry.chunks_exact(4)) {
            *cell = bytes.iter().fold(0, |cell, byte| cell << 8 | u32::from(*byte));
        }
        all
    })
}

/// The requester for a function of PCI: `map` is `iommu-map` of its host's node, `mask` is
/// `iommu-map-mask`, if the node has it. `None`: no unit is in front of it.
///
/// ```
/// use shootdown_iommu::devicetree::{Requester, of_function};
/// // As QEMU's `virt` has it: all functions, each by its own number.
/// let map = [0, 0, 0, 0, 0, 0, 0x80, 0x07, 0, 0, 0, 0, 0, 1, 0, 0];
/// assert_eq!(of_function(&map, None, 0x08), Some(Requester { unit: 0x8007, stream: 8 }));
/// ```
#[must_use]
pub fn of_function(map: &[u8], mask: Option<u32>, function: u16) -> Option<Requester> {
    let function = u32::from(function) & mask.unwrap_or(u32::MAX);
    cells(map).find_map(|[first, unit, stream, count]| {
        let behind = function.checked_sub(first).filter(|behind| *behind < count)?;
        Some(Requester { unit, stream: stream.checked_add(behind)? })
    })
}

/// All streams of a device that is not on PCI: `iommus` of its node.
pub fn of_device(iommus: &[u8]) -> impl Iterator<Item = Requester> + '_ {
    cells(iommus).map(|[unit, stream]| Requester { unit, stream })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn property(cells: &[u32]) -> Vec<u8> {
        cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
    }

    /// Two units; what is in neither map is behind none; the first entry counts.
    #[test]
    fn functions_are_behind_the_unit_that_their_number_is_mapped_to() {
        let map = property(&[0, 7, 0x100, 8, 0x10, 9, 0, 0xff00, 0x10, 7, 0, 1]);
        let of = |function| of_function(&map, None, function);
        assert_eq!(of(7), Some(Requester { unit: 7, stream: 0x107 }));
        assert_eq!(of(8), None);
        assert_eq!(of(0x11), Some(Requester { unit: 9, stream: 1 }));
        assert_eq!(of(0xff0f), Some(Requester { unit: 9, stream: 0xfeff }));
        assert_eq!(of(0xff10), None);
        // All functions of a device are one.
        let masked = of_function(&map, Some(0xfff8), 0x17);
        assert_eq!(masked, Some(Requester { unit: 9, stream: 0 }));
    }

    #[test]
    fn what_is_left_of_a_property_is_no_entry() {
        let map = property(&[0, 7, u32::MAX, 8]);
        assert_eq!(of_function(&map, None, 0).map(|requester| requester.stream), Some(u32::MAX));
        assert_eq!(of_function(&map, None, 1), None);
        assert_eq!(of_function(&map[..15], None, 0), None);
        let iommus = property(&[7, 0x20, 7, 0x21, 9]);
        let all: Vec<_> = of_device(&iommus).collect();
        let streams = [0x20, 0x21].map(|stream| Requester { unit: 7, stream });
        assert_eq!(all, streams);
    }
}
