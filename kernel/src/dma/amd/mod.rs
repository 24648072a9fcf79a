//! AMD-Vi: registers, the device table, the event log (AMD I/O Virtualization Technology specification, chapters 2 and 3).
//!
//! | structure | entries | here |
//! |---|---|---|
//! | device table | 32 bytes for each function | one page: the first 128 functions of bus 0 |
//! | command buffer | 16 bytes | one page; written by the library |
//! | event log | 16 bytes | one page; read here |
//!
//! # Invariants
//! - I1: every entry of the device table is valid from the beginning, and allows nothing. One that is not valid would let
//!   its device through untranslated.
//! - I2: of an entry that changes, the half with the rights is written last, and cleared first; the unit is told after that.

use core::sync::atomic::Ordering;

use shootdown_dma::invalidate::amd::{self, Facts};
use shootdown_dma::invalidate::queue::{Amd as Format, Port};
use shootdown_dma::table::AmdV1;
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use super::iommu::{Fault, FaultKind, Iommu, Refuses, SetUpError, blank_frame};
use super::marred::Rule;
use super::registers::{Registers, SLOTS, soon, word};
use super::renewable::Renewable;
use super::units;
use crate::{arch, say};

const DEVICE_TABLE: usize = 0x00;
const COMMAND_BUFFER: usize = 0x08;
const EVENT_LOG: usize = 0x10;
const CONTROL: usize = 0x18;
const EXTENDED_FEATURES: usize = 0x30;
const COMMAND_HEAD: usize = 0x2000;
const COMMAND_TAIL: usize = 0x2008;
const EVENT_HEAD: usize = 0x2010;
const EVENT_TAIL: usize = 0x2018;
const STATUS: usize = 0x2020;

/// CONTROL: the unit, its event log, coherent accesses, its command buffer.
const ENABLED: u64 = 1 << 0;
const EVENTS_ENABLED: u64 = 1 << 2;
const COHERENT: u64 = 1 << 10;
const COMMANDS_ENABLED: u64 = 1 << 12;
/// STATUS: the command buffer is read.
const COMMANDS_RUN: u64 = 1 << 4;
/// Of the registers of both rings: 256 entries, as a logarithm.
const LENGTH: u64 = 8 << 56;

/// Device table entry: valid, with a translation; reads and writes allowed.
const VALID: u64 = 0b11;
const RIGHTS: u64 = 0b11 << 61;
/// Bytes of an entry, and how many fit a page.
const ENTRY: u64 = 32;
const DEVICES: u32 = 128;

/// Levels of the tables: 48 bits.
const LEVELS: u32 = 4;

/// A unit that is set up.
pub struct Amd {
    registers: Registers,
    queue: Renewable<Format>,
    format: Format,
    devices: u64,
    events: u64,
}

impl Amd {
    /// The first unit that firmware describes, set up: every access is refused until its device is admitted. `None` where
    /// there is none.
    pub fn find() -> Option<Result<Self, SetUpError>> {
        Some(Self::set_up(units::amd()?))
    }

    fn set_up(base: u64) -> Result<Self, SetUpError> {
        let (devices, events) = (blank_frame()?, blank_frame()?);
        let registers = Registers::new(base, blank_frame()?, blank_frame()?);
        let registers = registers.coherent(true).logging(events);
        let features = registers.read64(EXTENDED_FEATURES);
        say!("amd-vi: extended features {features:#x}, registers at {base:#x}");
        for device in 0..DEVICES {
            word(devices + u64::from(device) * ENTRY).store(VALID, Ordering::Release); // I1
        }
        arch::barrier_for_devices();
        registers.write64(CONTROL, 0);
        // The low bits: pages of the table, less one.
        registers.write64(DEVICE_TABLE, devices);
        registers.write64(COMMAND_BUFFER, registers.ring_address() | LENGTH);
        registers.write64(EVENT_LOG, events | LENGTH);
        for register in [EVENT_HEAD, EVENT_TAIL] {
            registers.write64(register, 0);
        }
        let facts = Facts::from_efr(features);
        if !facts.forgets_all {
            // Then every entry and every domain would have to be told, and there are 65,536 of either.
            return Err(SetUpError::Unfit([features, 0]));
        }
        begin(&registers)?;
        let format = Format { slots: SLOTS as u64, facts };
        let queue = Renewable::new(registers, format);
        Ok(Self { registers, queue, format, devices, events })
    }

    fn entry(&self, device: DeviceId) -> u64 {
        assert!(device.0 < DEVICES, "the device table is one page");
        self.devices + u64::from(device.0) * ENTRY
    }
}

/// The unit forgets everything, and begins to read its queue, which is empty.
fn begin(registers: &Registers) -> Result<(), SetUpError> {
    const ON: u64 = EVENTS_ENABLED | COHERENT | ENABLED;
    let empty = || {
        registers.write64(CONTROL, ON);
        registers.write64(COMMAND_HEAD, 0);
        registers.write64(COMMAND_TAIL, 0);
        registers.write64(CONTROL, ON | COMMANDS_ENABLED);
        let runs = soon(|| registers.read64(STATUS) & COMMANDS_RUN != 0);
        if runs { Ok(()) } else { Err(SetUpError::Deaf("command buffer")) }
    };
    empty()?;
    const DONE: u64 = 1;
    registers.status().store(0, Ordering::Relaxed);
    let all = [amd::all(), amd::completion_wait(Some((registers.status_address(), DONE)), false)];
    for (slot, command) in registers.ring().chunks_exact(2).zip(all) {
        slot.iter().zip(command).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }
    registers.publish();
    registers.write64(COMMAND_TAIL, 16 * all.len() as u64);
    if !soon(|| registers.status().load(Ordering::Acquire) == DONE) {
        return Err(SetUpError::Deaf("what makes it forget everything"));
    }
    empty()
}

impl Iommu for Amd {
    type Format = AmdV1;
    type Queue = Renewable<Format>;

    fn name(&self) -> &'static str {
        "amd-vi"
    }

    fn format(&self) -> AmdV1 {
        AmdV1::new(LEVELS, true).expect("four levels")
    }

    fn address_bits(&self) -> u32 {
        12 + 9 * LEVELS
    }

    fn queue(&self) -> &Self::Queue {
        &self.queue
    }

    fn is_coherent(&self) -> bool {
        true
    }

    fn remembers_absence(&self) -> bool {
        false
    }

    fn records_faults(&self) -> bool {
        // QEMU 7.2 writes events and never moves the tail, so that there are none.
        false
    }

    fn admit(&self, device: DeviceId, root: PhysAddr, id: DomainId) {
        let entry = self.entry(device);
        word(entry + 8).store(u64::from(id.0), Ordering::Relaxed);
        arch::barrier_for_devices();
        let mode = self.format().mode() << 9;
        word(entry).store(root.0 | mode | VALID | RIGHTS, Ordering::Release); // I2
        arch::barrier_for_devices();
    }

    fn expel(&self, device: DeviceId) {
        word(self.entry(device)).store(VALID, Ordering::Release); // I2
        arch::barrier_for_devices();
    }

    fn fault(&self) -> Option<Fault> {
        const PAGE_FAULT: u64 = 2;
        const WRITE: u64 = 1 << 53;
        let port = &self.registers;
        let head = port.read64(EVENT_HEAD);
        if head == port.read64(EVENT_TAIL) {
            return None;
        }
        // ORDERING: Acquire: read after the tail said that it is there.
        let [low, address] = [0, 8].map(|at| word(self.events + head + at).load(Ordering::Acquire));
        port.write64(EVENT_HEAD, (head + 16) % (SLOTS as u64 * 16));
        let kind = match low >> 60 {
            PAGE_FAULT => FaultKind::Translation { write: low & WRITE != 0 },
            other => FaultKind::Other(other as u8),
        };
        Some(Fault { device: DeviceId(low as u32 & 0xffff), address, kind })
    }
}

impl Refuses for Amd {
    /// Opcode 15 is none.
    const COMMAND: Rule = |[low, high]| match low >> 60 {
        2 | 3 | 8 => [low | 0xf << 60, high],
        _ => [low, high],
    };
    const WAIT: Rule = |[low, high]| [if low >> 60 == 1 { low | 0xf << 60 } else { low }, high];
    const DEVICE: Rule = |[low, high]| [if low >> 60 == 4 { low | 0xf << 60 } else { low }, high];
    const WAITS_ARE_MENDED: bool = true;

    fn stands_still(&self) -> bool {
        self.registers.read64(STATUS) & COMMANDS_RUN == 0
    }

    fn revive(&self, device: DeviceId) -> bool {
        self.queue.revive(device)
    }

    fn renew(&self) -> Result<(), SetUpError> {
        let reset = || begin(&self.registers);
        // SAFETY: after `begin`; QEMU's devices have no caches, and their accesses end before a register is read.
        unsafe { self.queue.renew(self.registers, self.format, reset) }
    }
}
