//! The queue's format, marred on demand: a command that the unit refuses, where the library has written a good one.
//!
//! No driver writes such; but one of its bits may be reserved on the next unit, and then the queue stands still.

use core::sync::atomic::{AtomicU8, Ordering};

use shootdown_dma::invalidate::Command;
use shootdown_dma::invalidate::queue::{Format, Instead, Port, Slot, Smmu, Trouble};
use shootdown_dma::{DeviceId, PhysAddr};

/// What is marred next.
static MAR: AtomicU8 = AtomicU8::new(Mar::Nothing as u8);

/// What is marred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mar {
    /// Nothing.
    Nothing,
    /// Commands about the configuration of devices, once each, as long as this is set: they claim to be of the secure world.
    Secure,
    /// Commands, as long as this is set: their opcode is none.
    Opcode,
}

/// Mars from now on, or no longer.
pub fn mar(what: Mar) {
    MAR.store(what as u8, Ordering::Relaxed);
}

/// SMMUv3's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marred(pub Smmu);

/// An opcode that no command has, in the range of those that invalidate translations.
pub const NO_OPCODE: u64 = 0x2f;
/// Commands that name a device: bit 10 is "of the secure world".
const SECURE: u64 = 1 << 10;
/// The highest opcode of those about configuration.
const CONFIGURATION: u64 = 0x06;

impl Format for Marred {
    fn encode(&self, command: &Command, put: &mut dyn FnMut(Slot)) {
        let marred = MAR.load(Ordering::Relaxed);
        self.0.encode(command, &mut |[low, high]| {
            let opcode = low & 0xff;
            put(match marred {
                m if m == Mar::Secure as u8 && opcode <= CONFIGURATION => [low | SECURE, high],
                m if m == Mar::Opcode as u8 => [low & !0xff | NO_OPCODE, high],
                _ => [low, high],
            });
        });
    }

    fn barrier(&self, status: PhysAddr) -> Slot {
        self.0.barrier(status)
    }

    fn wait(&self, status: PhysAddr, position: u64) -> Slot {
        self.0.wait(status, position)
    }

    fn is_command(&self, slot: Slot) -> bool {
        self.0.is_command(slot)
    }

    fn repeats(&self) -> bool {
        self.0.repeats()
    }

    fn device(&self, slot: Slot) -> Option<DeviceId> {
        self.0.device(slot)
    }

    fn position<P: Port>(&self, port: &P, base: u64) -> u64 {
        self.0.position(port, base)
    }

    fn is_coarse(&self) -> bool {
        self.0.is_coarse()
    }

    fn set_tail<P: Port>(&self, port: &P, position: u64) {
        self.0.set_tail(port, position);
    }

    fn head<P: Port>(&self, port: &P, slots: u64) -> u64 {
        self.0.head(port, slots)
    }

    fn trouble<P: Port>(&self, port: &P) -> Option<Trouble> {
        self.0.trouble(port)
    }

    fn instead(&self, status: PhysAddr, slot: Slot) -> Instead {
        self.0.instead(status, slot)
    }

    fn harmless(&self) -> Slot {
        self.0.harmless()
    }

    fn resume<P: Port>(&self, port: &P, trouble: Trouble, position: u64) {
        self.0.resume(port, trouble, position);
    }
}
