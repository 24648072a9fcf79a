//! The invalidation queue of VT-d.
//!
//! Registers (VT-d specification, 11.4.9): IQH 0x80 and IQT 0x88 hold the index of a slot in bits
//! 18:4; FSTS 0x34 has IQE (bit 4: the unit refuses the descriptor at the head), ICE (5) and ITE
//! (6: a device has not acknowledged); IQERCD 0xb0 names the device (47:32), where the unit has it.
//! Software clears flags by writing them; the queue goes on when IQT is written again (QEMU 7.2
//! requires it).

use crate::addr::{DeviceId, PhysAddr};
use crate::invalidate::Command;
use crate::invalidate::vtd::{self, Facts};
use crate::sync::Ordering;

use super::format::{Format, Instead, Slot, Trouble, widen};
use super::port::Port;

const FSTS: usize = 0x34;
const IQH: usize = 0x80;
const IQT: usize = 0x88;
const IQERCD: usize = 0xb0;
const IQE: u32 = 1 << 4;
const ICE: u32 = 1 << 5;
const ITE: u32 = 1 << 6;

/// VT-d's queue of 128-bit descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vtd {
    /// The facts on which descriptors depend.
    pub facts: Facts,
    /// The slots of the ring.
    pub slots: u64,
}

impl Format for Vtd {
    fn encode(&self, command: &Command, put: &mut dyn FnMut(Slot)) {
        vtd::encode(&self.facts, command, put);
    }

    fn barrier(&self, status: PhysAddr) -> Slot {
        // A wait has to store something, or QEMU refuses it: it stores zero to the half that is
        // never read.
        vtd::wait(PhysAddr(status.0 + 4), 0, true)
    }

    fn wait(&self, status: PhysAddr, position: u64) -> Slot {
        vtd::wait(status, position as u32, false)
    }

    fn is_command(&self, slot: Slot) -> bool {
        slot[0] & 0xf != 5
    }

    fn device(&self, slot: Slot) -> Option<DeviceId> {
        (slot[0] & 0xf == 3).then_some(DeviceId((slot[0] >> 32) as u32 & 0xffff))
    }

    fn position<P: Port>(&self, port: &P, base: u64) -> u64 {
        widen(base, port.status().load(Ordering::Acquire) as u32) // [Q8]
    }

    fn set_tail<P: Port>(&self, port: &P, position: u64) {
        port.write64(IQT, (position & (self.slots - 1)) << 4);
    }

    fn head<P: Port>(&self, port: &P, slots: u64) -> u64 {
        (port.read64(IQH) >> 4) & (slots - 1)
    }

    fn trouble<P: Port>(&self, port: &P) -> Option<Trouble> {
        match port.read32(FSTS) {
            fsts if fsts & IQE != 0 => Some(Trouble::Refused),
            fsts if fsts & ITE != 0 => {
                let device = (port.read64(IQERCD) >> 32) as u32 & 0xffff;
                Some(Trouble::Silent((device != 0).then_some(DeviceId(device))))
            }
            fsts if fsts & ICE != 0 => Some(Trouble::Silent(None)),
            _ => None,
        }
    }

    fn instead(&self, status: PhysAddr, slot: Slot) -> Instead {
        match slot[0] & 0xf {
            1 => Instead::Coarser(vtd::context_all()),
            2 => Instead::Coarser(vtd::iotlb_all(&self.facts)),
            3 => match self.device(slot) {
                Some(device) => Instead::Coarser(vtd::device_tlb(&self.facts, device, None)),
                None => Instead::Unknown,
            },
            5 if slot[1] == status.0 => Instead::Wait,
            5 => Instead::Barrier,
            _ => Instead::Unknown,
        }
    }

    fn harmless(&self) -> Slot {
        vtd::iotlb_all(&self.facts)
    }

    fn resume<P: Port>(&self, port: &P, trouble: Trouble, position: u64) {
        let flags = match trouble {
            Trouble::Silent(_) => ITE | ICE,
            _ => IQE,
        };
        port.write32(FSTS, flags);
        self.set_tail(port, position);
    }
}
