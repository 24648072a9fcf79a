//! A queue's format, marred on demand: a slot that the unit refuses, where the library has written
//! a good one.
//!
//! No driver writes such; but one of its bits may be reserved on the next unit, and then the queue
//! stands still.

use shootdown_dma::invalidate::Command;
use shootdown_dma::invalidate::queue::{Format, Instead, Port, Slot, Trouble};
use shootdown_dma::{DeviceId, PhysAddr};
use spin::Mutex;

/// How a slot is marred: as it is if it is not meant.
pub type Rule = fn(Slot) -> Slot;

/// The rule, and how many slots it may change yet.
static MAR: Mutex<Option<(Rule, u32)>> = Mutex::new(None);

/// While it lives, slots are marred.
pub struct Mar(());

/// Mars so many slots from now on, or all of them. (Commands count twice: they are encoded to be
/// counted, and to be written.)
#[must_use]
pub fn mar(rule: Rule, slots: u32) -> Mar {
    *MAR.lock() = Some((rule, slots));
    Mar(())
}

impl Drop for Mar {
    fn drop(&mut self) {
        *MAR.lock() = None;
    }
}

fn marred(slot: Slot) -> Slot {
    let mut mar = MAR.lock();
    let Some((rule, left @ 1..)) = mar.as_mut() else { return slot };
    let changed = rule(slot);
    *left -= u32::from(changed != slot);
    changed
}

/// A unit's format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marred<F>(pub F);

impl<F: Format> Format for Marred<F> {
    fn encode(&self, command: &Command, put: &mut dyn FnMut(Slot)) {
        self.0.encode(command, &mut |slot| put(marred(slot)));
    }

    fn granule(&self) -> u32 {
        self.0.granule()
    }

    fn forgets_all(&self) -> bool {
        self.0.forgets_all()
    }

    fn barrier(&self, status: PhysAddr) -> Slot {
        self.0.barrier(status)
    }

    fn repeats(&self) -> bool {
        self.0.repeats()
    }

    fn wait(&self, status: PhysAddr, position: u64) -> Slot {
        marred(self.0.wait(status, position))
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

    fn is_coarse(&self) -> bool {
        self.0.is_coarse()
    }

    fn logs_timeouts(&self) -> bool {
        self.0.logs_timeouts()
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
        match self.0.instead(status, slot) {
            Instead::Coarser(slot) => Instead::Coarser(marred(slot)),
            other => other,
        }
    }

    fn harmless(&self) -> Slot {
        self.0.harmless()
    }

    fn resume<P: Port>(&self, port: &P, trouble: Trouble, position: u64) {
        self.0.resume(port, trouble, position);
    }
}
