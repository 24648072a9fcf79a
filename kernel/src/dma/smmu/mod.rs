//! An Arm SMMUv3, first stage: registers, the structures that it works from, and what it records of faults.
//!
//! | structure | entries | here |
//! |---|---|---|
//! | stream table | 64 bytes for each device | linear, one page: devices 0 to 7 of PCI's first bus |
//! | context descriptor | 64 bytes: tables, their format, ASID | one page, with room for each of those devices |
//! | command queue | 16 bytes | one page; written by the library |
//! | event queue | 32 bytes | one page; read here |
//!
//! Bring-up (Arm IHI 0070, 6.3.9): structures, queues, forget everything, translation. From then on everything is told through the
//! queue.
//!
//! # Invariants
//! - I1: the word of an entry with the *valid* bit is written last, and cleared first; the unit is told after that.

mod cases;
mod registers;

use core::sync::atomic::Ordering;

use shootdown_dma::invalidate::Command;
use shootdown_dma::invalidate::queue::{Port, Smmu as Format};
use shootdown_dma::invalidate::smmu::{self, Facts, Signal};
use shootdown_dma::table::ArmStage1;
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use super::iommu::{Fault, FaultKind, Iommu, Refuses, SetUpError, blank_frame};
use super::marred::Rule;
use super::registers::{Registers, SLOTS, soon, word};
use super::renewable::Renewable;
use super::suite::Case;
use crate::{arch, say};
use registers::*;

/// IDR0: first stage; reads the CPUs' caches; a SYNC may store.
const STAGE_1: u32 = 1 << 1;
const COHERENT: u32 = 1 << 4;
const STORES: u32 = 1 << 13;
/// CR1: tables and queues write-back and inner shareable (six fields of two bits).
const CACHEABLE: u32 = 0b11_01_01_11_01_01;

/// log2 of the entries of the tables.
const LOG_STREAMS: u32 = 6;
const LOG_EVENTS: u32 = 7;

/// Bytes of a stream table entry, a context descriptor, an event.
const ENTRY: u64 = 64;
const EVENT: u64 = 32;

/// Stream table entry, first word: valid; first stage translates, second stage is passed by.
const STE_VALID: u64 = 1;
const STE_STAGE_1: u64 = 0b101 << 1;
/// Second word: the context descriptor is write-back and inner shareable.
const STE_CACHEABLE: u64 = 0b01 << 2 | 0b01 << 4 | 0b11 << 6;

/// Context descriptor, first word: 39-bit addresses in the lower half (T0SZ 25), 4 KiB, walks write-back and shareable (as TCR_EL1 has it);
/// no upper half (30); 40-bit physical addresses (34:32); AArch64 tables (41); faults are recorded (45), and end the access
/// (46).
const CD_SHAPE: u64 =
    25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 30 | 2 << 32 | 1 << 41 | 1 << 45 | 1 << 46;
const CD_VALID: u64 = 1 << 31;
/// Fourth word: MAIR, whose first field is write-back.
const CD_WRITE_BACK: u64 = 0xff;
/// Levels that 39 bits take, and the field of MAIR.
const LEVELS: u32 = 3;
const WRITE_BACK: u8 = 0;

/// Events: the stream has no entry, or a bad one; bad context descriptor; no translation; not allowed.
const BAD_STREAM_ID: u8 = 0x02;
const BAD_STE: u8 = 0x04;
const STREAM_DISABLED: u8 = 0x06;
const BAD_CD: u8 = 0x0a;
const NO_TRANSLATION: u8 = 0x10;
const NOT_ALLOWED: u8 = 0x13;

/// A unit that is set up.
pub struct Smmu {
    registers: Registers,
    queue: Renewable<Format>,
    format: Format,
    streams: u64,
    contexts: u64,
    events: u64,
}

impl Smmu {
    /// The unit that firmware describes, set up: every access is refused until its device is admitted. `None` where there is
    /// none.
    pub fn find() -> Option<Result<Self, SetUpError>> {
        Some(Self::set_up(arch::smmu()?))
    }

    fn set_up(base: u64) -> Result<Self, SetUpError> {
        let registers = Registers::new(base, blank_frame()?, blank_frame()?).coherent(true);
        let (idr0, idr3) = (registers.read32(IDR0), registers.read32(IDR3));
        if idr0 & (STAGE_1 | COHERENT) != STAGE_1 | COHERENT {
            return Err(SetUpError::Unfit([idr0, idr3].map(u64::from)));
        }
        say!("smmu: IDR0 {idr0:#x}, IDR3 {idr3:#x}, registers at {base:#x}");
        let (streams, contexts, events) = (blank_frame()?, blank_frame()?, blank_frame()?);
        deaf(registers.turn_on(0), "off")?;
        registers.write32(CR1, CACHEABLE);
        registers.write64(STRTAB_BASE, streams);
        registers.write32(STRTAB_BASE_CFG, LOG_STREAMS);
        registers.write64(CMDQ_BASE, registers.ring_address() | u64::from(SLOTS.ilog2()));
        registers.write64(EVENTQ_BASE, events | u64::from(LOG_EVENTS));
        registers.write32(EVENTQ_PROD, 0);
        registers.write32(EVENTQ_CONS, 0);
        begin(&registers, 0)?;
        deaf(registers.turn_on(CMDQ | EVENTQ), "event queue")?;
        deaf(registers.turn_on(CMDQ | EVENTQ | TRANSLATION), "translation")?;
        let facts = Facts::from_idr3(idr3);
        let stores = idr0 & STORES != 0;
        let format = Format { facts, slots: SLOTS as u64, stores, survives: false };
        let queue = Renewable::new(registers, format);
        Ok(Self { registers, queue, format, streams, contexts, events })
    }

    fn stream(&self, device: DeviceId) -> u64 {
        assert!(device.0 < 1 << LOG_STREAMS, "the stream table is one page");
        self.streams + u64::from(device.0) * ENTRY
    }

    fn context(&self, device: DeviceId) -> u64 {
        assert!(device.0 < 1 << LOG_STREAMS, "as many as streams");
        self.contexts + u64::from(device.0) * ENTRY
    }
}

fn deaf(done: bool, what: &'static str) -> Result<(), SetUpError> {
    if done { Ok(()) } else { Err(SetUpError::Deaf(what)) }
}

/// The unit forgets everything, and begins to read its queue, which is empty; `others` of CR0 stay on.
fn begin(registers: &Registers, others: u32) -> Result<(), SetUpError> {
    let empty = |registers: &Registers| {
        let done = registers.turn_on(others);
        registers.write32(CMDQ_PROD, 0);
        registers.write32(CMDQ_CONS, 0);
        // Whatever was wrong with commands is over.
        registers.acknowledge(CMDQ_ERR);
        deaf(done && registers.turn_on(others | CMDQ), "command queue")
    };
    empty(registers)?;
    let all = [smmu::cfgi_all(), smmu::tlbi_all(), smmu::sync(Signal::None)];
    for (slot, command) in registers.ring().chunks_exact(2).zip(all) {
        slot.iter().zip(command).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }
    registers.publish();
    let end = all.len() as u32;
    registers.write32(CMDQ_PROD, end);
    deaf(soon(|| registers.read32(CMDQ_CONS) == end), "what makes it forget everything")?;
    empty(registers)
}

impl Iommu for Smmu {
    type Format = ArmStage1;
    type Queue = Renewable<Format>;

    fn name(&self) -> &'static str {
        "smmu"
    }

    fn format(&self) -> ArmStage1 {
        ArmStage1::new(LEVELS, WRITE_BACK).expect("three levels")
    }

    fn address_bits(&self) -> u32 {
        12 + 9 * LEVELS
    }

    fn queue(&self) -> &Self::Queue {
        &self.queue
    }

    fn is_coherent(&self) -> bool {
        true // or it would not have been set up
    }

    fn remembers_absence(&self) -> bool {
        false // nor may any: Arm IHI 0070, 3.21
    }

    fn records_faults(&self) -> bool {
        true
    }

    fn admit(&self, device: DeviceId, root: PhysAddr, id: DomainId) {
        let (stream, context) = (self.stream(device), self.context(device));
        word(context + 8).store(root.0, Ordering::Relaxed);
        word(context + 24).store(CD_WRITE_BACK, Ordering::Relaxed);
        arch::barrier_for_devices();
        let shape = CD_SHAPE | u64::from(id.0) << 48;
        word(context).store(shape | CD_VALID, Ordering::Release); // I1
        word(stream + 8).store(STE_CACHEABLE, Ordering::Relaxed);
        arch::barrier_for_devices();
        word(stream).store(context | STE_STAGE_1 | STE_VALID, Ordering::Release); // I1
        arch::barrier_for_devices();
        // An invalid entry may be cached as well (Arm IHI 0070, 3.21.3).
        self.tell(&[Command::Config { device, domain: id }]);
    }

    fn expel(&self, device: DeviceId) {
        word(self.stream(device)).store(0, Ordering::Release); // I1
        word(self.context(device)).store(0, Ordering::Release);
        arch::barrier_for_devices();
    }

    fn fault(&self) -> Option<Fault> {
        let port = &self.registers;
        let (produced, consumed) = (port.read32(EVENTQ_PROD), port.read32(EVENTQ_CONS));
        // Index, and whether the number of rounds is odd.
        let mask = (2 << LOG_EVENTS) - 1;
        if produced & mask == consumed & mask {
            return None;
        }
        let at = self.events + u64::from(consumed & (mask >> 1)) * EVENT;
        // ORDERING: Acquire, after EVENTQ_PROD said that it is there (a device's register is read in order).
        let [what, how, address] =
            [0, 8, 16].map(|at_word| word(at + at_word).load(Ordering::Acquire));
        const OVERFLOW: u32 = 1 << 31;
        port.write32(EVENTQ_CONS, (consumed + 1) & mask | produced & OVERFLOW);
        const READ: u64 = 1 << 35;
        let kind = match what as u8 {
            BAD_STREAM_ID | BAD_STE | STREAM_DISABLED | BAD_CD => FaultKind::Configuration,
            NO_TRANSLATION | NOT_ALLOWED => FaultKind::Translation { write: how & READ == 0 },
            other => FaultKind::Other(other),
        };
        Some(Fault { device: DeviceId((what >> 32) as u32), address, kind })
    }

    fn own_cases() -> &'static [Case<Self>] {
        cases::CASES
    }
}

impl Refuses for Smmu {
    /// An opcode that no command has, in the range of those that forget translations.
    const COMMAND: Rule = |[low, high]| match low & 0xff {
        0x10..=0x30 => [low & !0xff | 0x2f, high],
        _ => [low, high],
    };
    /// The same beside SYNC's.
    const WAIT: Rule = |[low, high]| [if low & 0xff == 0x46 { low | 1 } else { low }, high];
    /// "Of the secure world" (bit 10), which this one is not.
    const DEVICE: Rule = |[low, high]| [if low & 0xff == 0x40 { low | 1 << 10 } else { low }, high];
    const WAITS_ARE_MENDED: bool = false;

    fn stands_still(&self) -> bool {
        self.registers.errors() & CMDQ_ERR != 0
    }

    fn revive(&self, device: DeviceId) -> bool {
        self.queue.revive(device)
    }

    fn renew(&self) -> Result<(), SetUpError> {
        let reset = || begin(&self.registers, EVENTQ | TRANSLATION);
        // SAFETY: after `begin`; QEMU's devices have no caches, and their accesses end before a register is read.
        unsafe { self.queue.renew(self.registers, self.format, reset) }
    }
}
