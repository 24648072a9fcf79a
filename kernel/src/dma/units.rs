//! Where ACPI says that IOMMUs are: its tables DMAR (VT-d specification, chapter 8) and IVRS (AMD I/O Virtualization Technology
//! specification, 5.2). The crate `acpi` finds them, and knows no more of them than their header.
//!
//! Both are made of blocks behind 48 bytes: a kind, flags or the kind's high byte, a length of two bytes. Blocks that describe
//! a unit have the address of its registers at bytes 8 to 15.

use acpi::AcpiTable;
use acpi::sdt::{SdtHeader, Signature};

use crate::arch;

/// The table's own header, with what it says of the whole machine.
const HEADER: usize = 48;

#[repr(transparent)]
struct Dmar(SdtHeader);

// SAFETY: a table begins with its header, and nothing else is accessed by this type.
unsafe impl AcpiTable for Dmar {
    const SIGNATURE: Signature = Signature::DMAR;

    fn header(&self) -> &SdtHeader {
        &self.0
    }
}

#[repr(transparent)]
struct Ivrs(SdtHeader);

// SAFETY: as above.
unsafe impl AcpiTable for Ivrs {
    const SIGNATURE: Signature = Signature::IVRS;

    fn header(&self) -> &SdtHeader {
        &self.0
    }
}

/// The physical address of the first VT-d unit's registers; `None` if firmware describes none.
pub fn vtd() -> Option<u64> {
    first::<Dmar>(|kind, high| [kind, high] == [0, 0])
}

/// The physical address of the first AMD-Vi unit's registers; `None` if firmware describes none.
pub fn amd() -> Option<u64> {
    first::<Ivrs>(|kind, _flags| [0x10, 0x11, 0x40].contains(&kind))
}

fn first<T: AcpiTable>(is_unit: impl Fn(u8, u8) -> bool) -> Option<u64> {
    let mut rest = arch::acpi_table::<T>()?.get(HEADER..)?;
    while let [kind, second, length_low, length_high, ..] = *rest {
        if is_unit(kind, second) {
            let base = rest.get(8..16)?;
            return Some(u64::from_le_bytes(base.try_into().ok()?));
        }
        // A length of 0 would never end.
        let length = usize::from(u16::from_le_bytes([length_low, length_high]));
        rest = rest.get(length.max(4)..)?;
    }
    None
}
