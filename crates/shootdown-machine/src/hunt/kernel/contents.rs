//! Operations that care about what is in a page: copying it, writing it back, giving it to a
//! device.
//!
//! Whoever takes a page's contents must know that nobody writes it any more through what the tables
//! allowed before. That may take a flush of what another CPU left pending.

use shootdown::gather::Gather;
use shootdown::sync::Ordering;

use super::cpu::{Changes, Cpu, Items, Used, put};
use super::memory::put_unmapped;
use super::tables::range;
use super::{KernelMutant, Port};
use crate::hostile::{Descriptor, Frame};
use crate::hunt::hw;
use crate::oracle::Invariant;

/// In the bits of an absent entry that are software's: the page is there, and a fault will say who
/// uses it.
const HINTED: u64 = 1 << 11;

impl<P: Port> Cpu<P> {
    /// Changes an entry under the lock, and flushes without it: until then the gather counts as
    /// open.
    fn change_and_flush_later(
        &self,
        used: Used<'_, P>,
        page: u32,
        change: impl FnOnce(Descriptor) -> Option<Descriptor>,
    ) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let Some(new) = change(hw::read_entry(word)) else { return used.room.lock.unlock() };
        let (_, change) = hw::swap_entry(word, new);
        let mut gather = Gather::<P, Items>::new(used.space);
        used.room.lock.unlock();
        gather.changed(range(page, 1));
        if gather.finish(&self.pin).is_ok() || self.flush_all(used) {
            hw::revoked(&[change]);
        }
    }

    pub(super) fn hint(&self, used: Used<'_, P>, page: u32) {
        self.change_and_flush_later(used, page, |old| {
            old.present().then(|| old.without(Descriptor::PRESENT).with(HINTED))
        });
    }

    pub(super) fn migrate(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let old = hw::read_entry(word);
        let current = self.breaks(KernelMutant::MigrateIgnoresPending)
            || old.has(HINTED) && self.see_to_pending(used);
        if !old.present() && old.has(HINTED) && current {
            hw::seal(old.frame(), Invariant::CopyIsolation);
            let new = hw::new_frame();
            hw::witness("page-migrated");
            self.tables.make(word, Descriptor::user_rw(new));
            hw::free_frame(old.frame());
        }
        used.room.lock.unlock();
    }

    pub(super) fn track(&self, used: Used<'_, P>, page: u32) {
        self.change_and_flush_later(used, page, |old| {
            let writable = old.present() && old.has(Descriptor::WRITE);
            writable.then(|| old.without(Descriptor::WRITE | Descriptor::DIRTY))
        });
    }

    pub(super) fn cow(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let old = hw::read_entry(word);
        let read_only = old.present() && !old.has(Descriptor::WRITE);
        let current = read_only
            && (self.breaks(KernelMutant::CowIgnoresPending) || self.see_to_pending(used));
        if !current {
            return used.room.lock.unlock();
        }
        hw::seal(old.frame(), Invariant::CopyIsolation);
        let new = hw::new_frame();
        hw::witness("page-copied");
        let (_, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if self.flush(used, page, 1, false) {
            hw::revoked(&[change]);
            self.tables.make(word, Descriptor::user_rw(new));
        }
        used.room.lock.unlock();
    }

    pub(super) fn zap(&self, used: Used<'_, P>, page: u32) {
        self.change_and_flush_later(used, page, |old| old.present().then_some(Descriptor::ABSENT));
    }

    /// The frame that a page had at the start.
    fn first_frame(&self, used: Used<'_, P>, page: u32) -> Option<Frame> {
        let mapped = page < u32::from(self.k.config.pages);
        mapped.then(|| used.room.frames[page as usize].get())
    }

    pub(super) fn clean(&self, used: Used<'_, P>, page: u32) {
        let Some(frame) = self.first_frame(used, page) else { return };
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let old = hw::read_entry(word);
        let clean = if old.present() && old.has(Descriptor::WRITE) {
            let new = old.without(Descriptor::WRITE | Descriptor::DIRTY);
            let (_, change) = hw::swap_entry(word, new);
            let flushed = self.flush(used, page, 1, false);
            if flushed {
                hw::revoked(&[change]);
            }
            flushed
        } else {
            self.breaks(KernelMutant::CleanIgnoresPending) || self.see_to_pending(used)
        };
        used.room.lock.unlock();
        if clean {
            // The page is clean now: it goes to the disk as it is.
            hw::seal(frame, Invariant::WriteBack);
            hw::witness("page-written-back");
        }
    }

    pub(super) fn munmap(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        if let Some(word) = self.leaf(used, page) {
            let early = self.breaks(KernelMutant::UnlinkBeforeFlush);
            let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
            if early {
                used.room.linked.store(false, Ordering::Release);
            }
            let flushed = !old.present() || self.flush(used, page, 1, false);
            if flushed && old.present() {
                hw::revoked(&[change]);
            }
            if flushed && !early {
                // ORDERING: Release, with the Acquire in `driver`: nobody uses the area any more
                used.room.linked.store(false, Ordering::Release);
            }
        }
        used.room.lock.unlock();
    }

    pub(super) fn driver(&self, used: Used<'_, P>, page: u32) {
        let Some(frame) = self.first_frame(used, page) else { return };
        // ORDERING: Acquire, with the Release in `munmap`
        if !used.room.linked.load(Ordering::Acquire) {
            hw::witness("driver-finds-no-area");
            return hw::free_frame(frame);
        }
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        let mut changes = Changes::default();
        put(&mut changes, change);
        let mut gather = Gather::<P, Items>::new(used.space);
        if old.present() {
            put_unmapped(&mut gather, page, old);
        } else {
            gather.changed(range(page, 1));
        }
        let gone = !old.present();
        self.finish_and_unlock(used, gather, &changes);
        if gone {
            hw::free_frame(frame);
        }
    }
}
