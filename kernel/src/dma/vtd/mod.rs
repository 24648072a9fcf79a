//! Intel VT-d, legacy tables: registers, the tables of devices, and what is recorded of faults.
//!
//! | structure | entries | here |
//! |---|---|---|
//! | root table | 16 bytes for each bus | one page; bus 0 alone has a context table |
//! | context table | 16 bytes for each function | one page |
//! | queue | 16 bytes | one page; written by the library |
//!
//! Bring-up (VT-d specification 11.4.4): root table, forget everything, queue, translation. From then on everything is told
//! through the queue.
//!
//! # Invariants
//! - I1: of an entry the half with the *present* bit is written last, and cleared first; the unit is told after that.
//! - I2: id 0 is no domain's: units that remember absence remember it under that id.

mod cases;
mod registers;

use core::sync::atomic::Ordering;

use shootdown_dma::invalidate::queue::{Port, Vtd as Format};
use shootdown_dma::invalidate::vtd::{self, Facts};
use shootdown_dma::table::VtdSecondLevel;
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use super::iommu::{Fault, FaultKind, Iommu, Refuses, SetUpError, blank_frame};
use super::marred::Rule;
use super::registers::{Registers, SLOTS, soon, word};
use super::renewable::Renewable;
use super::suite::Case;
use super::units;
use crate::{arch, memory, say};
use registers::*;

/// CAP: stores to memory linger in buffers that a register flushes, which this host does not do; remembers absence.
const WRITE_BUFFERS: u64 = 1 << 4;
const CACHING_MODE: u64 = 1 << 7;
/// ECAP: reads the CPUs' caches; has a queue.
const COHERENT: u64 = 1 << 0;
const QUEUED: u64 = 1 << 1;

/// Both words of an entry: present.
const PRESENT: u64 = 1;
/// FSTS: a record was lost.
const OVERFLOW: u32 = 1 << 0;

/// A unit that is set up.
pub struct Vtd {
    registers: Registers,
    queue: Renewable<Format>,
    cap: u64,
    ecap: u64,
    contexts: u64,
}

impl Vtd {
    /// The first unit that firmware describes, set up: every access is refused until its device is admitted. `None` where
    /// there is none.
    pub fn find() -> Option<Result<Self, SetUpError>> {
        Some(Self::set_up(units::vtd()?))
    }

    fn set_up(base: u64) -> Result<Self, SetUpError> {
        let registers = Registers::new(base, blank_frame()?, blank_frame()?);
        let (cap, ecap) = (registers.read64(CAP), registers.read64(ECAP));
        let has_tables = VtdSecondLevel::from_capability(cap, 48).is_some();
        if ecap & QUEUED == 0 || cap & WRITE_BUFFERS != 0 || !has_tables {
            return Err(SetUpError::Unfit([cap, ecap]));
        }
        let version = registers.read32(VERSION);
        say!(
            "vt-d: version {}.{}, CAP {cap:#x}, ECAP {ecap:#x}, registers at {base:#x}",
            version >> 4,
            version & 15
        );
        let registers = registers.coherent(ecap & COHERENT != 0);
        let (root, contexts) = (blank_frame()?, blank_frame()?);
        word(root).store(contexts | PRESENT, Ordering::Release);
        // What firmware left in caches of zeros is nothing; what we wrote is written back.
        write_back(ecap, root);
        write_back(ecap, contexts);
        // Faults are looked for, and interrupt nobody.
        const MASKED: u32 = 1 << 31;
        registers.write32(FECTL, MASKED);
        registers.write64(RTADDR, root);
        deaf(registers.command(ROOT), "root table")?;
        begin(&registers)?;
        deaf(registers.command(TRANSLATION), "translation")?;
        let queue = Renewable::new(registers, format(cap, ecap));
        Ok(Self { registers, queue, cap, ecap, contexts })
    }

    /// Both words of a device's entry.
    fn context(&self, device: DeviceId) -> u64 {
        assert!(device.0 < 256, "bus 0 alone has a context table");
        self.contexts + u64::from(device.0) * 16
    }

    fn record(&self, number: usize) -> usize {
        ((self.cap >> 24) as usize & 0x3ff) * 16 + number * 16
    }
}

fn deaf(done: bool, what: &'static str) -> Result<(), SetUpError> {
    if done { Ok(()) } else { Err(SetUpError::Deaf(what)) }
}

fn format(cap: u64, ecap: u64) -> Format {
    Format { facts: Facts::from_cap(cap).with_ecap(ecap), slots: SLOTS as u64 }
}

/// The unit forgets everything, and begins to read its queue, which is empty.
fn begin(registers: &Registers) -> Result<(), SetUpError> {
    deaf(registers.forget_all(), "invalidation by registers")?;
    registers.write64(IQT, 0);
    registers.write64(IQA, registers.ring_address());
    deaf(registers.command(QUEUE), "queue")
}

/// The unit stops to read its queue, which has to be empty then (VT-d specification, 6.5.2): what it refuses gives way to waits that
/// store where nobody reads.
fn drain(registers: &Registers) -> Result<(), SetUpError> {
    let idle = vtd::wait(PhysAddr(registers.status_address().0 + 4), 0, false);
    for slot in registers.ring().chunks_exact(2) {
        slot.iter().zip(idle).for_each(|(word, idle)| word.store(idle, Ordering::Relaxed));
    }
    registers.publish();
    registers.write32(FSTS, IQE | ICE | ITE);
    // One more than there were: QEMU turns a queue off only if a wait was the last that it has taken.
    let tail = (registers.read64(IQT) + 16) % (16 * SLOTS as u64);
    registers.write64(IQT, tail);
    deaf(soon(|| registers.read64(IQH) == tail), "queue that is drained")?;
    deaf(registers.take_back(QUEUE), "end of the queue")
}

/// Writes a page back, for a unit that does not read caches.
fn write_back(ecap: u64, at: u64) {
    if ecap & COHERENT == 0 {
        arch::write_back(memory::at(at), memory::FRAME as usize);
    }
    arch::barrier_for_devices();
}

impl Iommu for Vtd {
    type Format = VtdSecondLevel;
    type Queue = Renewable<Format>;

    fn name(&self) -> &'static str {
        if self.remembers_absence() { "vt-d-caching" } else { "vt-d" }
    }

    fn format(&self) -> VtdSecondLevel {
        VtdSecondLevel::from_capability(self.cap, 48).expect("looked at when it was set up")
    }

    fn address_bits(&self) -> u32 {
        use shootdown_dma::table::Format;
        // MGAW, and what the tables resolve.
        (((self.cap >> 16) as u32 & 0x3f) + 1).min(12 + 9 * self.format().levels())
    }

    fn queue(&self) -> &Self::Queue {
        &self.queue
    }

    fn is_coherent(&self) -> bool {
        self.ecap & COHERENT != 0
    }

    fn remembers_absence(&self) -> bool {
        self.cap & CACHING_MODE != 0
    }

    fn records_faults(&self) -> bool {
        true
    }

    fn admit(&self, device: DeviceId, root: PhysAddr, id: DomainId) {
        assert!(id.0 != 0, "id 0 is no domain's"); // I2
        let entry = self.context(device);
        let width = self.format().address_width();
        word(entry + 8).store(width | u64::from(id.0) << 8, Ordering::Relaxed);
        arch::barrier_for_devices();
        word(entry).store(root.0 | PRESENT, Ordering::Release); // I1
        write_back(self.ecap, self.contexts);
    }

    fn expel(&self, device: DeviceId) {
        word(self.context(device)).store(0, Ordering::Release); // I1
        write_back(self.ecap, self.contexts);
    }

    fn fault(&self) -> Option<Fault> {
        const RECORDED: u64 = 1 << 63;
        const READ: u64 = 1 << 62;
        let port = &self.registers;
        let records = (self.cap >> 40) as usize & 0xff;
        for at in (0..=records).map(|number| self.record(number)) {
            let high = port.read64(at + 8);
            if high & RECORDED == 0 {
                continue;
            }
            let address = port.read64(at) & !(memory::FRAME - 1);
            // QEMU has one record, and folds faults of a device into it until it is cleared.
            port.write64(at + 8, RECORDED);
            port.write32(FSTS, OVERFLOW);
            let kind = match (high >> 32) as u8 {
                1..=3 => FaultKind::Configuration,
                5 => FaultKind::Translation { write: true },
                6 => FaultKind::Translation { write: false },
                other => FaultKind::Other(other),
            };
            // The reason tells reads from writes as well; they must agree.
            if kind == (FaultKind::Translation { write: high & READ != 0 }) {
                say!("vt-d: the fault's reason and its type disagree: {high:#x}");
            }
            return Some(Fault { device: DeviceId(high as u32 & 0xffff), address, kind });
        }
        None
    }

    fn own_cases() -> &'static [Case<Self>] {
        cases::CASES
    }
}

impl Refuses for Vtd {
    /// Granularity 0 is reserved.
    const COMMAND: Rule = |[low, high]| match low & 0xf {
        1 | 2 => [low & !(0b11 << 4), high],
        _ => [low, high],
    };
    /// A wait has to store something, or interrupt.
    const WAIT: Rule = |[low, high]| [if low & 0xf == 5 { low & !(1 << 5) } else { low }, high];
    /// Bit 4 is reserved.
    const DEVICE: Rule = |[low, high]| [if low & 0xf == 3 { low | 1 << 4 } else { low }, high];
    const WAITS_ARE_MENDED: bool = true;

    fn stands_still(&self) -> bool {
        self.registers.read32(FSTS) & (IQE | ICE | ITE) != 0
    }

    fn revive(&self, device: DeviceId) -> bool {
        self.queue.revive(device)
    }

    fn renew(&self) -> Result<(), SetUpError> {
        let reset = || drain(&self.registers).and_then(|()| begin(&self.registers));
        // SAFETY: after `begin`; QEMU's devices have no caches, and their accesses end before a register is read.
        unsafe { self.queue.renew(self.registers, format(self.cap, self.ecap), reset) }
    }
}
