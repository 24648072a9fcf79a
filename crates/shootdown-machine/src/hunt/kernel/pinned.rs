//! Tags that a device was given: while they are pinned, they stay the space's.

use shootdown::AddressSpace;

use super::Port;
use super::cpu::{Cpu, Used};
use crate::hunt::hw;
use crate::oracle::Invariant;

impl<P: Port> Cpu<P> {
    fn keeps_its_tag(&self, used: Used<'_, P>) {
        let tag = AddressSpace::tag(used.space);
        if used.room.pinned.get().is_some_and(|pinned| Some(pinned) != tag) {
            let details = format!("{tag:?} is the tag of a space whose pinned one was another");
            hw::violation(Invariant::TagReuse, details);
        }
    }

    pub(super) fn pin_tag(&self, used: Used<'_, P>) {
        self.lock(used);
        if used.room.pins.get() < 2 {
            let before = hw::set_irqs(false);
            if used.space.pin_tag(&self.pin).is_ok() {
                hw::witness("tag-pinned");
                used.room.pins.set(used.room.pins.get() + 1);
                if used.room.pinned.get().is_none() {
                    used.room.pinned.set(used.space.tag());
                }
                self.keeps_its_tag(used);
            }
            hw::set_irqs(before);
        }
        used.room.lock.unlock();
    }

    pub(super) fn unpin_tag(&self, used: Used<'_, P>) {
        self.lock(used);
        if used.room.pins.get() != 0 {
            let before = hw::set_irqs(false);
            self.keeps_its_tag(used);
            // SAFETY: what stands for the device has done its walks, and is gone with its pin.
            if let Err(error) = unsafe { used.space.unpin_tag(&self.pin) } {
                hw::violation(
                    Invariant::ErrorsTotal,
                    format!("what is pinned can't be unpinned: {error}"),
                );
            }
            used.room.pins.set(used.room.pins.get() - 1);
            if used.room.pins.get() == 0 {
                used.room.pinned.set(None);
            }
            hw::set_irqs(before);
        }
        used.room.lock.unlock();
    }
}
