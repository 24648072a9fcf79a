//! The command queue of an SMMUv3.
//!
//! Registers (Arm IHI 0070, chapter 6): CMDQ_PROD 0x98 and CMDQ_CONS 0x9c hold the index of a slot
//! and, one bit above it, whether the number of rounds is odd; CMDQ_CONS also has the reason of an
//! error (30:24: 1 illegal command, 2 abort of the read, 3 a device has not acknowledged before a
//! SYNC). GERROR 0x60 differs from GERRORN 0x64 in bit 0 when there is an error; software
//! acknowledges it by making them equal. The queue then reads the command at CONS again.
//!
//! Without message-signalled completion (`IDR0.MSI`) the only sign is that a SYNC was consumed:
//! CONS is behind it.

use crate::addr::{DeviceId, PhysAddr};
use crate::invalidate::Command;
use crate::invalidate::smmu::{self, Facts, Signal};
use crate::sync::{Ordering, fence};

use super::format::{Format, Instead, Slot, Trouble, widen};
use super::port::Port;

const GERROR: usize = 0x60;
const GERRORN: usize = 0x64;
const PROD: usize = 0x98;
const CONS: usize = 0x9c;
const CMDQ_ERR: u32 = 1;

/// SMMUv3's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Smmu {
    /// The facts on which commands depend.
    pub facts: Facts,
    /// The slots of the ring.
    pub slots: u64,
    /// Whether a SYNC can store to memory (`IDR0.MSI`).
    pub stores: bool,
    /// Whether an entry can survive one invalidation (Tegra264, erratum T264-SMMU-3). Then each
    /// invalidation is issued and synchronized twice.
    pub survives: bool,
}

impl Smmu {
    /// The bits of index and round.
    const fn mask(&self) -> u64 {
        2 * self.slots - 1
    }
}

impl Format for Smmu {
    fn encode(&self, command: &Command, put: &mut dyn FnMut(Slot)) {
        smmu::encode(&self.facts, command, put);
    }

    fn granule(&self) -> u32 {
        self.facts.granule
    }

    fn barrier(&self, _: PhysAddr) -> Slot {
        smmu::sync(Signal::None)
    }

    fn wait(&self, status: PhysAddr, position: u64) -> Slot {
        smmu::sync(if self.stores {
            Signal::Store { address: status, data: position as u32 }
        } else {
            Signal::None
        })
    }

    fn is_command(&self, slot: Slot) -> bool {
        slot[0] & 0xff != 0x46
    }

    fn repeats(&self) -> bool {
        self.survives
    }

    fn device(&self, slot: Slot) -> Option<DeviceId> {
        (slot[0] & 0xff == 0x40).then_some(DeviceId((slot[0] >> 32) as u32))
    }

    fn position<P: Port>(&self, port: &P, base: u64) -> u64 {
        if self.stores {
            return widen(base, port.status().load(Ordering::Acquire) as u32); // [Q8]
        }
        // The unit is not behind `base`, and CONS is read after `base`, so the distance is exact or
        // too small.
        let ahead = u64::from(port.read32(CONS)).wrapping_sub(base) & self.mask();
        // ORDERING: the Acquire of Q8 and Q5: a register is no atomic, so the read itself orders
        // nothing. The partner is what the unit did before it moved CONS, and the Release of Q7
        // before the unit was resumed. Without it a page may be reused before the invalidation has
        // taken effect.
        fence(Ordering::Acquire);
        base + ahead
    }

    fn is_coarse(&self) -> bool {
        !self.stores
    }

    fn set_tail<P: Port>(&self, port: &P, position: u64) {
        port.write32(PROD, (position & self.mask()) as u32);
    }

    fn head<P: Port>(&self, port: &P, slots: u64) -> u64 {
        u64::from(port.read32(CONS)) & (slots - 1)
    }

    fn trouble<P: Port>(&self, port: &P) -> Option<Trouble> {
        if (port.read32(GERROR) ^ port.read32(GERRORN)) & CMDQ_ERR == 0 {
            return None;
        }
        Some(match (port.read32(CONS) >> 24) & 0x7f {
            2 => Trouble::Unread,
            3 => Trouble::Silent(None),
            _ => Trouble::Refused,
        })
    }

    fn instead(&self, _: PhysAddr, slot: Slot) -> Instead {
        match slot[0] & 0xff {
            0x03..=0x06 => Instead::Coarser(smmu::cfgi_all()),
            0x10..=0x30 => Instead::Coarser(smmu::tlbi_all()),
            0x40 => match self.device(slot) {
                Some(device) => Instead::Coarser(smmu::atc_inv(device, None)),
                None => Instead::Unknown,
            },
            // Without a store a wait and a barrier are the same.
            0x46 if slot[0] & 0x3000 != 0 => Instead::Wait,
            0x46 => Instead::Barrier,
            _ => Instead::Unknown,
        }
    }

    fn harmless(&self) -> Slot {
        smmu::tlbi_all()
    }

    fn resume<P: Port>(&self, port: &P, _: Trouble, position: u64) {
        let acknowledged = port.read32(GERRORN) ^ CMDQ_ERR;
        port.write32(GERRORN, acknowledged);
        self.set_tail(port, position);
    }
}
