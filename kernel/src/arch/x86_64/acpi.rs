//! What firmware describes: tables by their signatures, and of them the MADT, which lists the CPUs (ACPI specification 6.5, 5.2.5 to 5.2.12).

use crate::MAX_CPUS;

/// The MADT's entry for a CPU, by its APIC id of 8 bits.
const LOCAL_APIC: u8 = 0;
/// The same, of 32 bits.
const LOCAL_X2APIC: u8 = 9;
/// The CPU may be started: enabled.
const ENABLED: u32 = 1;

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

/// A table in memory.
#[derive(Clone, Copy)]
struct Table(u64);

impl Table {
    /// The bytes at `offset`.
    fn bytes<const N: usize>(self, offset: u64) -> [u8; N] {
        // SAFETY: firmware left the table there, below 4 GiB, in memory that is mapped to itself and that the allocator was
        // not given; the offset is inside the length that it claims.
        unsafe { ((self.0 + offset) as *const [u8; N]).read_unaligned() }
    }

    fn u32(self, offset: u64) -> u32 {
        u32::from_le_bytes(self.bytes(offset))
    }

    fn len(self) -> u64 {
        u64::from(self.u32(4))
    }

    fn is_sound(self, signature: &[u8; 4]) -> bool {
        self.bytes::<4>(0) == *signature && sum(self.0, self.len()) == 0
    }
}

/// The checksum of a structure: 0 if it is whole.
fn sum(address: u64, length: u64) -> u8 {
    (0..length).fold(0u8, |sum, at| sum.wrapping_add(Table(address + at).bytes::<1>(0)[0]))
}

/// Where firmware leaves the RSDP if no loader says it.
const BIOS_AREA: core::ops::Range<u64> = 0xe_0000..0x10_0000;

fn is_rsdp(address: u64) -> bool {
    Table(address).bytes::<8>(0) == *b"RSD PTR " && sum(address, 20) == 0
}

/// The table with this signature; `None` when there is none, or none that is whole.
fn find(rsdp: Option<u64>, wanted: &[u8; 4]) -> Option<Table> {
    let rsdp = rsdp
        .filter(|rsdp| is_rsdp(*rsdp))
        .or_else(|| BIOS_AREA.step_by(16).find(|address| is_rsdp(*address)))?;
    let revision = Table(rsdp).bytes::<1>(15)[0];
    let (root, wide) = match u64::from_le_bytes(Table(rsdp).bytes(24)) {
        root if revision >= 2 && root != 0 => (root, true),
        _ => (u64::from(Table(rsdp).u32(16)), false),
    };
    let root = Table(root);
    let signature = if wide { b"XSDT" } else { b"RSDT" };
    if !root.is_sound(signature) {
        return None;
    }
    let step = if wide { 8 } else { 4 };
    (36..root.len()).step_by(step).find_map(|offset| {
        let address =
            if wide { u64::from_le_bytes(root.bytes(offset)) } else { root.u32(offset).into() };
        // Tables above what is mapped can't be read here.
        (address < 1 << 32).then_some(Table(address)).filter(|table| table.is_sound(wanted))
    })
}

/// The bytes of the table with this signature, header and all.
pub fn table(rsdp: Option<u64>, wanted: &[u8; 4]) -> Option<&'static [u8]> {
    let table = find(rsdp, wanted)?;
    // SAFETY: as in `Table::bytes`; nobody writes there.
    Some(unsafe { core::slice::from_raw_parts(table.0 as *const u8, table.len() as usize) })
}

/// The CPUs; `None` when no table says.
pub fn cpus(rsdp: Option<u64>) -> Option<Cpus> {
    let madt = find(rsdp, b"APIC")?;
    let mut cpus = Cpus { ids: [0; MAX_CPUS as usize], count: 0 };
    let mut offset = 44;
    while offset + 2 <= madt.len() {
        let [kind, length] = madt.bytes::<2>(offset);
        match kind {
            LOCAL_APIC if madt.u32(offset + 4) & ENABLED != 0 => {
                cpus.add(u32::from(madt.bytes::<1>(offset + 3)[0]));
            }
            LOCAL_X2APIC if madt.u32(offset + 8) & ENABLED != 0 => cpus.add(madt.u32(offset + 4)),
            _ => {}
        }
        // A length of 0 would never end.
        offset += u64::from(length.max(2));
    }
    Some(cpus)
}
