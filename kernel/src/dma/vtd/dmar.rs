//! Where the units are: ACPI's DMAR table (VT-d specification, chapter 8).

use crate::arch;

/// The table's own header, with the host's address width and flags.
const HEADER: usize = 48;
/// A remapping unit: its registers are at bytes 8 to 15.
const UNIT: u16 = 0;

/// The physical address of the first unit's registers; `None` if firmware describes none.
pub fn first_unit() -> Option<u64> {
    let mut rest = arch::acpi_table(b"DMAR")?.get(HEADER..)?;
    while let [kind_low, kind_high, length_low, length_high, ..] = *rest {
        let kind = u16::from_le_bytes([kind_low, kind_high]);
        let length = usize::from(u16::from_le_bytes([length_low, length_high]));
        if kind == UNIT {
            let base = rest.get(8..16)?;
            return Some(u64::from_le_bytes(base.try_into().ok()?));
        }
        // A length of 0 would never end.
        rest = rest.get(length.max(4)..)?;
    }
    None
}
