//! Accessed bits: clearing them, and the timer that bounds how long that goes unnoticed.

use shootdown::accessed::{self, Aged};
use shootdown::sync::Ordering;

use super::Port;
use super::cpu::{Cpu, Used};
use super::tables::range;
use crate::hunt::hw;
use crate::oracle::Invariant;

impl<P: Port> Cpu<P> {
    /// Clears the accessed bit of a page and tells the library.
    pub(super) fn age(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let aged = self.leaf(used, page).and_then(hw::age_entry);
        used.room.lock.unlock();
        let Some((_, change)) = aged else { return };
        match used.space.accessed_cleared(&self.pin, range(page, 1)) {
            Ok(Aged::Pending) => {
                hw::witness("accessed-pending");
                // ORDERING: Release, with the Acquire in `begin_aging`: the library was told
                self.k.aged.fetch_add(1, Ordering::AcqRel);
                hw::deferred(change, Invariant::AccessedBound);
            }
            Ok(Aged::Flushed) => hw::revoked(&[change]),
            Ok(_) => {}
            Err(error) => hw::note(|| format!("aging fails: {error}")),
        }
    }

    pub(super) fn tick(&self) {
        let before = hw::set_irqs(false);
        self.begin_aging();
        accessed::tick(self.irqs_off());
        if self.mine.current.get().is_some() {
            self.check_aging();
        }
        hw::set_irqs(before);
    }

    /// A switch, a tick or a way in begins. Interrupts are off.
    pub(super) fn begin_aging(&self) {
        if self.k.traits.ages {
            let told = self.k.aged.load(Ordering::Acquire);
            self.mine.aged.set(told as usize);
        }
    }

    /// As [`Self::check_aging`], after a way in from isolated user mode: accessed bits may still be
    /// owed.
    pub(super) fn check_way_in(&self) {
        if self.k.traits.ages {
            hw::check_deferred(self.mine.aged.get(), Some(Invariant::LazyBound));
        }
    }

    /// What had been told when it began is binding on this CPU.
    pub(super) fn check_aging(&self) {
        if self.k.traits.ages {
            hw::check_deferred(self.mine.aged.get(), None);
        }
    }
}
