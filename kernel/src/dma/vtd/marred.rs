//! The queue's format, marred on demand: a descriptor that the unit refuses, where the library has written a good one.
//!
//! No driver writes such; but one of its bits may be reserved on the next unit, and then the queue stands still.

use core::sync::atomic::{AtomicU8, Ordering};

use shootdown_dma::invalidate::Command;
use shootdown_dma::invalidate::queue::{Format, Instead, Port, Slot, Trouble, Vtd};
use shootdown_dma::{DeviceId, PhysAddr};

/// What is marred next.
static MAR: AtomicU8 = AtomicU8::new(Mar::Nothing as u8);

/// What is marred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mar {
    /// Nothing.
    Nothing,
    /// Commands, as long as this is set.
    Commands,
    /// One wait.
    Wait,
}

/// Mars from now on, or no longer.
pub fn mar(what: Mar) {
    MAR.store(what as u8, Ordering::Relaxed);
}

/// VT-d's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marred(pub Vtd);

impl Format for Marred {
    fn encode(&self, command: &Command, put: &mut dyn FnMut(Slot)) {
        const GRANULARITY: u64 = 0b11 << 4;
        let marred = MAR.load(Ordering::Relaxed) == Mar::Commands as u8;
        self.0.encode(command, &mut |[low, high]| {
            // Granularity 0 is reserved, in every descriptor that has one.
            put([if marred { low & !GRANULARITY } else { low }, high]);
        });
    }

    fn forgets_all(&self) -> bool {
        self.0.forgets_all()
    }

    fn barrier(&self, status: PhysAddr) -> Slot {
        self.0.barrier(status)
    }

    fn wait(&self, status: PhysAddr, position: u64) -> Slot {
        const STORES: u64 = 1 << 5;
        let [low, high] = self.0.wait(status, position);
        let (from, to) = (Mar::Wait as u8, Mar::Nothing as u8);
        let marred = MAR.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // A wait that does nothing is refused.
        [if marred { low & !STORES } else { low }, high]
    }

    fn is_command(&self, slot: Slot) -> bool {
        self.0.is_command(slot)
    }

    fn device(&self, slot: Slot) -> Option<DeviceId> {
        self.0.device(slot)
    }

    fn position<P: Port>(&self, port: &P, base: u64) -> u64 {
        self.0.position(port, base)
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
