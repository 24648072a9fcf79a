//! Where the units are: ACPI's IVRS table (AMD I/O Virtualization Technology specification, 5.2).

use crate::arch;

/// The table's own header, with information of the machine.
const HEADER: usize = 48;
/// Blocks that describe a unit: the register base is at bytes 8 to 15 of each kind.
const UNITS: [u8; 3] = [0x10, 0x11, 0x40];

/// The physical address of the first unit's registers; `None` if firmware describes none.
pub fn first_unit() -> Option<u64> {
    let mut rest = arch::acpi_table(b"IVRS")?.get(HEADER..)?;
    while let [kind, _, length_low, length_high, ..] = *rest {
        if UNITS.contains(&kind) {
            let base = rest.get(8..16)?;
            return Some(u64::from_le_bytes(base.try_into().ok()?));
        }
        // A length of 0 would never end.
        let length = usize::from(u16::from_le_bytes([length_low, length_high]));
        rest = rest.get(length.max(4)..)?;
    }
    None
}
