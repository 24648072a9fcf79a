//! Where ACPI says that IOMMUs are: its tables DMAR and IVRS. The crate `acpi` finds them,
//! `shootdown-iommu` reads them.

use acpi::AcpiTable;
use acpi::sdt::{SdtHeader, Signature};
use shootdown_iommu::acpi::dmar::{self, Dmar};
use shootdown_iommu::acpi::ivrs::{self, Ivrs};

use crate::{arch, say};

macro_rules! tables {
    ($($table:ident: $signature:ident;)*) => {$(
        #[repr(transparent)]
        struct $table(SdtHeader);

        // SAFETY: a table begins with its header, and nothing else is accessed by this type.
        unsafe impl AcpiTable for $table {
            const SIGNATURE: Signature = Signature::$signature;

            fn header(&self) -> &SdtHeader {
                &self.0
            }
        }
    )*};
}
tables! {
    DmarTable: DMAR;
    IvrsTable: IVRS;
}

/// The first VT-d unit; `None` if firmware describes none.
pub fn vtd() -> Option<dmar::Unit<'static>> {
    let table = Dmar::new(arch::acpi_table::<DmarTable>()?).ok()?;
    note("DMAR", table.is_whole(), table.reserved().count());
    table.units().next()
}

/// The first AMD-Vi unit; `None` if firmware describes none.
pub fn amd() -> Option<ivrs::Unit<'static>> {
    let table = Ivrs::new(arch::acpi_table::<IvrsTable>()?).ok()?;
    note("IVRS", table.is_whole(), table.regions().count());
    table.units().next()
}

/// What a kernel would have to see to, and the cases do not: they have devices of their own.
fn note(table: &str, whole: bool, reserved: usize) {
    if !whole {
        say!("{table}: the table is damaged; what could be read is used");
    }
    if reserved > 0 {
        say!("{table}: {reserved} blocks of memory are reserved for devices");
    }
}
