//! Lazy unmapping: what is unmapped is announced to nobody until its frame or its address is
//! needed.

use std::cell::UnsafeCell;

use shootdown::gather::{Array, Gather};
use shootdown::lazy_unmap::{LazyUnmapping, Refused, Was};
use shootdown::sync::{AtomicU64, Ordering};
use shootdown::{AddressSpace, FlushError};

use super::cpu::{Changes, Cpu, Item, Items, Used, put};
use super::memory::put_unmapped;
use super::tables::range;
use super::{KernelMutant, Port};
use crate::hostile::Descriptor;
use crate::hunt::hw::{self, Architecture, Change};
use crate::oracle::Invariant;

/// What a space has unmapped lazily. All of it is used with the space's lock held, or when nobody
/// uses the space.
pub(super) struct Lazy<P: Port> {
    inner: UnsafeCell<Option<Inner<P>>>,
    /// What was done with it, so that the hunt tells states apart.
    history: AtomicU64,
}

struct Inner<P: Port> {
    unmapping: LazyUnmapping<'static, P, Items>,
    /// Ghost: pages and changes that nobody has flushed as far as this knows.
    changes: Array<(u32, Change), 16>,
}

impl<P: Port> Lazy<P> {
    pub const fn new() -> Self {
        Self { inner: UnsafeCell::new(None), history: AtomicU64::new(0) }
    }

    /// Of a space that nobody uses yet. What was pending in its predecessor was redeemed, or is
    /// never free again.
    pub fn begin(&self, space: &'static AddressSpace<P>) {
        let inner = Inner { unmapping: LazyUnmapping::new(space), changes: Array::default() };
        // SAFETY: nobody uses the space.
        let before = unsafe { (*self.inner.get()).replace(inner) };
        core::mem::forget(before);
    }

    /// With the lock held, or where nobody uses the space.
    fn with<R>(&self, event: u64, f: impl FnOnce(&mut Inner<P>) -> R) -> R {
        let now = self.history.load(Ordering::Relaxed).wrapping_mul(31).wrapping_add(event);
        self.history.store(now, Ordering::Relaxed);
        // SAFETY: the lock is held, whose holder is one CPU, and no handler takes it while that has
        // it.
        let inner = unsafe { (*self.inner.get()).as_mut() };
        f(inner.expect("a space has begun"))
    }
}

impl<P: Port> Cpu<P> {
    fn unmaps_lazily(&self) -> bool {
        self.k.config.policy.lazy_unmap.is_some()
    }

    fn was(&self, old: Descriptor) -> Was {
        // Arm keeps no dirty bit beside the right to write.
        let keeps = self.k.config.architecture != Architecture::Aarch64;
        let overlooks = self.breaks(KernelMutant::LazyUnmapOverlooksDirty);
        match old.has(Descriptor::WRITE) {
            false => Was::ReadOnly,
            true if overlooks || keeps && !old.has(Descriptor::DIRTY) => Was::NeverWritten,
            true => Was::MaybeWritten,
        }
    }

    pub(super) fn lazy_unmap(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if !old.present() {
            return used.room.lock.unlock();
        }
        let item = Item::Frame(old.frame());
        let put_off = used.room.lazy.with(u64::from(page) + 1, |lazy| {
            lazy.unmapping.unmapped(&self.pin, 0, range(page, 1), self.was(old), item)?;
            put(&mut lazy.changes, (page, change));
            Ok(())
        });
        if let Err(Refused { why, .. }) = put_off {
            hw::note(|| format!("does not put it off: {why}"));
            let mut gather = Gather::<P, Items>::new(used.space);
            put_unmapped(&mut gather, page, old);
            let mut changes = Changes::default();
            put(&mut changes, change);
            return self.finish_and_unlock(used, gather, &changes);
        }
        hw::witness("unmapped-lazily");
        // ORDERING: Release, with the Acquire in `begin_aging`: the library was told
        self.k.aged.fetch_add(1, Ordering::AcqRel);
        hw::deferred(change, Invariant::LazyBound);
        // What is in it goes where it belongs, as if nobody could write it.
        hw::seal(old.frame(), Invariant::WriteBack);
        if self.mine.current.get().is_some_and(|(_, space)| core::ptr::eq(space, used.space)) {
            hw::check_gone(change, Invariant::LazyBound);
        }
        used.room.lock.unlock();
    }

    /// Pages are about to be mapped. With the lock held. Says whether they may be.
    pub(super) fn make_way(&self, used: Used<'_, P>, first: u32, count: u32) -> bool {
        if !self.unmaps_lazily() {
            return true;
        }
        used.room.lazy.with(0x100 + u64::from(first), |lazy| {
            if lazy.unmapping.is_pending() && !lazy.unmapping.may_reuse(range(first, count)) {
                hw::witness("address-needed");
            }
            let ignores = self.breaks(KernelMutant::MapIgnoresPending);
            let way = if ignores {
                Ok(())
            } else {
                lazy.unmapping.make_way(&self.pin, range(first, count))
            };
            if let Err(error) = way {
                hw::note(|| format!("can't map yet: {error}"));
                return false;
            }
            let here = |(page, _): &&(u32, Change)| (first..first + count).contains(page);
            for (_, change) in lazy.changes.as_slice().iter().filter(here) {
                hw::reused(&[*change]);
            }
            true
        })
    }

    pub(super) fn redeem(&self, used: Used<'_, P>) {
        if self.unmaps_lazily() {
            self.lock(used);
            self.redeem_by(used, |lazy| lazy.redeem(&self.pin).map(Some));
            used.room.lock.unlock();
        }
    }

    /// All that is pending is old now.
    pub(super) fn expire(&self, used: Used<'_, P>) {
        if self.unmaps_lazily() {
            self.lock(used);
            self.redeem_by(used, |lazy| lazy.poll(&self.pin, u64::MAX));
            used.room.lock.unlock();
        }
    }

    /// With the lock held, or where nobody uses the space.
    pub(super) fn redeem_by(
        &self,
        used: Used<'_, P>,
        redeem: impl FnOnce(&mut LazyUnmapping<'static, P, Items>) -> Result<Option<Items>, FlushError>,
    ) {
        used.room.lazy.with(0x200, |lazy| match redeem(&mut lazy.unmapping) {
            Ok(Some(items)) => {
                // The promise is about frames and addresses: whoever uses one too long is found out
                // by that.
                while lazy.changes.pop().is_some() {
                    hw::witness("lazily-flushed");
                }
                self.free(items);
            }
            Ok(None) if lazy.unmapping.is_pending() => hw::witness("isolated-left-pending"),
            Ok(None) => {}
            Err(error) => {
                hw::witness("lazily-pending-still");
                hw::note(|| format!("can't redeem: {error}"));
            }
        });
    }

    /// The space has ended.
    pub(super) fn redeem_last(&self, used: Used<'_, P>) {
        if self.unmaps_lazily() {
            self.redeem_by(used, |lazy| lazy.redeem(&self.pin).map(Some));
        }
    }
}
