//! The command buffer of AMD-Vi.
//!
//! Registers (AMD I/O Virtualization Technology specification, 3.4): head 0x2000 and tail 0x2008
//! hold the byte offset of a slot; CONTROL 0x18 has CmdBufEn (bit 12), STATUS 0x2020 CmdBufRun (bit
//! 4), which falls when a command was refused. The event log, which the host reads
//! ([`Port::drain_events`]), names the refused command and the device that has not acknowledged
//! (IOTLB_INV_TIMEOUT). A completion wait completes even when a device has not acknowledged, so
//! where commands for devices are under way, the log is drained before a completion is used.

use crate::addr::{DeviceId, DomainId, PhysAddr};
use crate::invalidate::Command;
use crate::invalidate::amd::{self, Facts};
use crate::sync::Ordering;

use super::format::{Format, Instead, Slot, Trouble};
use super::port::Port;

const CONTROL: usize = 0x18;
const HEAD: usize = 0x2000;
const TAIL: usize = 0x2008;
const STATUS: usize = 0x2020;
const CMD_BUF_EN: u64 = 1 << 12;
const CMD_BUF_RUN: u64 = 1 << 4;

/// AMD-Vi's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amd {
    /// The slots of the ring.
    pub slots: u64,
    /// The facts on which commands depend.
    pub facts: Facts,
}

impl Format for Amd {
    fn encode(&self, command: &Command, put: &mut dyn FnMut(Slot)) {
        amd::encode(command, put);
    }

    fn forgets_all(&self) -> bool {
        self.facts.forgets_all
    }

    fn barrier(&self, _: PhysAddr) -> Slot {
        amd::completion_wait(None, true)
    }

    fn wait(&self, status: PhysAddr, position: u64) -> Slot {
        amd::completion_wait(Some((status, position)), false)
    }

    fn is_command(&self, slot: Slot) -> bool {
        slot[0] >> 60 != 1
    }

    fn device(&self, slot: Slot) -> Option<DeviceId> {
        (slot[0] >> 60 == 4).then_some(DeviceId(slot[0] as u32 & 0xffff))
    }

    fn position<P: Port>(&self, port: &P, base: u64) -> u64 {
        // 64 bits: nothing to widen. A value behind `base` is out of date, and moves nothing.
        port.status().load(Ordering::Acquire).max(base) // [Q8]
    }

    fn logs_timeouts(&self) -> bool {
        true
    }

    fn set_tail<P: Port>(&self, port: &P, position: u64) {
        port.write64(TAIL, (position & (self.slots - 1)) << 4);
    }

    fn head<P: Port>(&self, port: &P, slots: u64) -> u64 {
        (port.read64(HEAD) >> 4) & (slots - 1)
    }

    fn trouble<P: Port>(&self, port: &P) -> Option<Trouble> {
        (port.read64(STATUS) & CMD_BUF_RUN == 0).then_some(Trouble::Refused)
    }

    fn instead(&self, _: PhysAddr, slot: Slot) -> Instead {
        match slot[0] >> 60 {
            1 if slot[0] & 1 != 0 => Instead::Wait,
            1 => Instead::Barrier,
            // The command for everything, which covers device table entries as well.
            2 | 3 | 8 if self.facts.forgets_all => Instead::Coarser(amd::all()),
            3 => Instead::Coarser(amd::domain(DomainId((slot[0] >> 32) as u16))),
            4 => match self.device(slot) {
                Some(device) => Instead::Coarser(amd::device_pages(device, None)),
                None => Instead::Unknown,
            },
            _ => Instead::Unknown,
        }
    }

    fn harmless(&self) -> Slot {
        if self.facts.forgets_all { amd::all() } else { amd::device_entry(DeviceId(0)) }
    }

    fn resume<P: Port>(&self, port: &P, _: Trouble, position: u64) {
        let control = port.read64(CONTROL);
        port.write64(CONTROL, control & !CMD_BUF_EN);
        port.write64(CONTROL, control | CMD_BUF_EN);
        self.set_tail(port, position);
    }
}
