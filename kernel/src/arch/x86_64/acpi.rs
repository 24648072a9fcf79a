//! What firmware describes: the CPUs, and the tables of IOMMUs, which `dma` reads.
//!
//! The crate `acpi` finds tables, looks at their checksums, and knows the MADT. A loader may say
//! where the tables begin; if it does not, or what is there is none, the BIOS area is searched.

use core::ptr::NonNull;

use acpi::madt::{Madt, MadtEntry};
use acpi::{AcpiHandler, AcpiTable, AcpiTables, PhysicalMapping};

use crate::MAX_CPUS;

/// The CPU may be started: enabled.
const ENABLED: u32 = 1;

/// Memory below 4 GiB is mapped to itself.
#[derive(Clone, Copy)]
struct Mapped;

impl AcpiHandler for Mapped {
    unsafe fn map_physical_region<T>(&self, at: usize, size: usize) -> PhysicalMapping<Self, T> {
        // What lies above can't be read here: it reads as zeros, which have no table's signature,
        // so it is passed over. More than a header is asked for only behind a signature.
        static NOTHING: [u64; 8] = [0; 8];
        let is_mapped = at.checked_add(size).is_some_and(|end| end <= 1 << 32);
        assert!(is_mapped || size <= size_of_val(&NOTHING), "a table reaches over 4 GiB");
        let there = if is_mapped { at } else { (&raw const NOTHING).addr() };
        let there = NonNull::new(there as *mut T).expect("no table is at 0");
        // SAFETY: firmware's tables (the caller's promise) stay where they are, and the allocator
        // was not given that memory.
        unsafe { PhysicalMapping::new(at, there, size, size, *self) }
    }

    fn unmap_physical_region<T>(_: &PhysicalMapping<Self, T>) {}
}

fn tables(rsdp: Option<u64>) -> Option<AcpiTables<Mapped>> {
    // SAFETY: a loader says that it is there; whether it is one is looked at.
    let told = rsdp.and_then(|at| unsafe { AcpiTables::from_rsdp(Mapped, at as usize) }.ok());
    // SAFETY: the first megabyte of a PC can be read without an effect.
    told.or_else(|| unsafe { AcpiTables::search_for_rsdp_bios(Mapped) }.ok())
}

/// The bytes of the table, header and all; `None` when there is none, or none that is whole.
pub fn table<T: AcpiTable>(rsdp: Option<u64>) -> Option<&'static [u8]> {
    let table = tables(rsdp)?.find_table::<T>().ok()?;
    let start = table.virtual_start().as_ptr().cast::<u8>();
    // SAFETY: as in `map_physical_region`; nobody writes there.
    Some(unsafe { core::slice::from_raw_parts(start, table.region_length()) })
}

/// APIC ids of the CPUs that may be started.
pub struct Cpus {
    ids: [u32; MAX_CPUS as usize],
    count: usize,
}

impl Cpus {
    /// The ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids[..self.count]
    }

    fn add(&mut self, id: u32) {
        if self.count < self.ids.len() && !self.ids().contains(&id) {
            self.ids[self.count] = id;
            self.count += 1;
        }
    }
}

/// The CPUs; `None` when no table says.
pub fn cpus(rsdp: Option<u64>) -> Option<Cpus> {
    let madt = tables(rsdp)?.find_table::<Madt>().ok()?;
    let mut cpus = Cpus { ids: [0; MAX_CPUS as usize], count: 0 };
    // An entry has two bytes at least; one whose length is 0 would never end.
    for entry in madt.get().entries().take(madt.region_length() / 2) {
        match entry {
            MadtEntry::LocalApic(cpu) if cpu.flags & ENABLED != 0 => cpus.add(cpu.apic_id.into()),
            MadtEntry::LocalX2Apic(cpu) if cpu.flags & ENABLED != 0 => cpus.add(cpu.x2apic_id),
            _ => {}
        }
    }
    Some(cpus)
}
