//! Operations on single pages: mapping, unmapping, permissions, and the many ways to unmap.

use shootdown::gather::{Gather, Nothing};
use shootdown::{Request, Spurious, fault_resolved, spurious_fault};

use super::cpu::{Changes, Cpu, Item, Items, Used, put};
use super::elide::demand;
use super::tables::range;
use super::{At, KernelMutant, Port};
use crate::hostile::{Descriptor, Word};
use crate::hunt::hw;
use crate::oracle::Invariant;

const WRITABLE: u64 = Descriptor::WRITE | Descriptor::DIRTY;

impl<P: Port> Cpu<P> {
    /// The entry of a page, if there is a table for it.
    pub(super) fn leaf(&self, used: Used<'_, P>, page: u32) -> Option<Word> {
        self.tables.walk(used.root(), page, 0)
    }

    /// The page is as the operation promises, by what others have done: whatever was there before
    /// is used no more.
    pub(super) fn promise(&self, used: Used<'_, P>, word: Word, ignore: KernelMutant) {
        if self.breaks(ignore) || self.see_to_pending(used) {
            hw::revoked(&[hw::latest(word)]);
        }
    }

    pub(super) fn map(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        if let Some(word) = self.tables.walk_or_make(used.root(), page, 0)
            && !hw::read_entry(word).present()
            && self.make_way(used, page, 1)
        {
            self.widen(used, page, word, self.k.config.page(hw::new_frame()));
        }
        used.room.lock.unlock();
    }

    /// Replaces an entry by one that allows more: nobody is told.
    fn widen(&self, used: Used<'_, P>, page: u32, word: Word, new: Descriptor) {
        let change = demand(hw::read_entry(word), new);
        self.tables.make(word, new);
        let mut gather = Gather::<P, Nothing>::new(used.space);
        let told = gather.updated(&self.pin, range(page, 1), change);
        // Empty, it is dropped: who adds rights relies on nothing that others may have pending.
        if told.is_err() || !gather.is_empty() {
            let details = format!("page {page} is given a right, and something is to be flushed");
            hw::violation(Invariant::UpgradeSoundness, details);
        }
    }

    pub(super) fn unmap(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if !old.present() {
            self.promise(used, word, KernelMutant::DiscardIgnoresPending);
            return used.room.lock.unlock();
        }
        let mut gather = Gather::<P, Items>::new(used.space);
        if self.breaks(KernelMutant::FreeFrameBeforeFlush) {
            hw::free_frame(old.frame());
            gather.changed(range(page, 1));
        } else {
            put_unmapped(&mut gather, page, old);
        }
        let mut changes = Changes::default();
        put(&mut changes, change);
        self.finish_and_unlock(used, gather, &changes);
    }

    pub(super) fn unmap_many(&self, used: Used<'_, P>, first: u32, count: u8) {
        let mut gather = Gather::<P, Items>::new(used.space);
        let mut changes = Changes::default();
        let mut frames = shootdown::gather::Array::<(u32, Descriptor), 8>::default();
        let end = (first + u32::from(count.min(8))).min(self.tables.kernel_page(0));
        self.lock(used);
        for page in first..end {
            if page != first {
                // A long operation lets others have the lock.
                used.room.lock.unlock();
                self.lock(used);
            }
            if let Some(word) = self.leaf(used, page) {
                let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
                // Whoever unmapped an absent page flushes it, not this CPU.
                if old.present() {
                    put(&mut changes, change);
                    put(&mut frames, (page, old));
                }
            }
        }
        used.room.lock.unlock();
        let last = frames.as_slice().last().map(|(page, _)| *page);
        for (page, old) in frames.as_slice() {
            let noted = if self.breaks(KernelMutant::YieldForgets) {
                last.unwrap_or(*page)
            } else if self.breaks(KernelMutant::FlushesFirstOnly) {
                first
            } else {
                *page
            };
            put_unmapped(&mut gather, noted, *old);
        }
        if !gather.is_empty() {
            self.finish_or_repeat(used, gather, &changes);
        }
    }

    pub(super) fn discard(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if !old.present() {
            self.promise(used, word, KernelMutant::DiscardIgnoresPending);
            return used.room.lock.unlock();
        }
        let mut gather = Gather::<P, Items>::new(used.space);
        used.room.lock.unlock();
        put_unmapped(&mut gather, page, old);
        let mut changes = Changes::default();
        put(&mut changes, change);
        self.finish_or_repeat(used, gather, &changes);
    }

    /// As a fault handler with interrupts off would: what it can't wait for is left to a better
    /// moment.
    pub(super) fn unmap_atomic(&self, used: Used<'_, P>, page: u32) {
        let before = hw::set_irqs(false);
        self.lock(used);
        let Some(word) = self.leaf(used, page) else {
            used.room.lock.unlock();
            hw::set_irqs(before);
            return;
        };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if !old.present() {
            used.room.lock.unlock();
            hw::set_irqs(before);
            return;
        }
        let mut gather = Gather::<P, Items>::new(used.space);
        put_unmapped(&mut gather, page, old);
        let mut changes = Changes::default();
        put(&mut changes, change);
        let done = self.finish(gather, &changes);
        used.room.lock.unlock();
        hw::set_irqs(before);
        if let Err(items) = done {
            self.flush_again(used, items, &changes);
        }
    }

    pub(super) fn defer(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if !old.present() {
            return used.room.lock.unlock();
        }
        let mut gather = Gather::<P, Items>::new(used.space);
        used.room.lock.unlock();
        put_unmapped(&mut gather, page, old);
        let mut changes = Changes::default();
        put(&mut changes, change);
        let mut deferred = match gather.defer(&self.pin) {
            Ok(deferred) => deferred,
            Err((_, items)) => return self.flush_again(used, items, &changes),
        };
        loop {
            match deferred.poll() {
                Ok(items) => {
                    hw::revoked(changes.as_slice());
                    self.free(items);
                    hw::witness("deferred-gather-done");
                    return;
                }
                Err(again) => {
                    hw::witness("deferred-gather-waits");
                    deferred = again;
                    let _ = shootdown::poll::<P>(&self.pin);
                    hw::relax();
                }
            }
        }
    }

    pub(super) fn ticket(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if !old.present() {
            self.promise(used, word, KernelMutant::DiscardIgnoresPending);
            return used.room.lock.unlock();
        }
        let mut items = Items::default();
        put(&mut items, Item::Frame(old.frame()));
        let mut changes = Changes::default();
        put(&mut changes, change);
        let done = match used.space.begin_flush(&self.pin, Request::pages(range(page, 1))) {
            Ok(mut ticket) => {
                // Something else, during which others answer, and flush.
                hw::kernel_code();
                if ticket.poll() {
                    hw::witness("ticket-answered");
                    true
                } else {
                    hw::witness("ticket-waited-for");
                    ticket.wait(&self.pin).is_ok()
                }
            }
            Err(_) => false,
        };
        if done {
            hw::revoked(changes.as_slice());
            used.room.lock.unlock();
            self.free(items);
        } else {
            // Nobody asks the ticket again: another flush does it, before others find the page
            // unmapped.
            let flushed = used.space.flush(&self.pin, Request::space()).is_ok();
            if flushed {
                hw::revoked(changes.as_slice());
            }
            used.room.lock.unlock();
            if flushed {
                self.free(items);
            } else {
                self.flush_again(used, items, &changes);
            }
        }
    }

    /// Unmaps a page by a flush that is begun, and yields the lock before it is done, or given up.
    pub(super) fn begin(&self, used: Used<'_, P>, page: u32, gives_up: bool) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
        if !old.present() {
            self.promise(used, word, KernelMutant::DiscardIgnoresPending);
            return used.room.lock.unlock();
        }
        let begun = used.space.begin_flush(&self.pin, Request::pages(range(page, 1)));
        used.room.lock.unlock();
        let done = match begun {
            Ok(ticket) if gives_up => {
                drop(ticket);
                hw::witness("ticket-dropped");
                used.space.complete_pending(&self.pin).is_ok()
            }
            // What comes back with an error is dropped as well.
            Ok(ticket) => ticket.wait(&self.pin).is_ok(),
            Err(_) => false,
        };
        if done {
            hw::revoked(&[change]);
            hw::free_frame(old.frame());
            return;
        }
        let (mut items, mut changes) = (Items::default(), Changes::default());
        put(&mut items, Item::Frame(old.frame()));
        put(&mut changes, change);
        self.flush_again(used, items, &changes);
    }

    pub(super) fn protect(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let old = hw::read_entry(word);
        if !old.present() || !old.has(Descriptor::WRITE) {
            self.promise(used, word, KernelMutant::ProtectIgnoresPending);
            return used.room.lock.unlock();
        }
        let new = old.without(WRITABLE);
        let (_, change) = hw::swap_entry(word, new);
        let judged = if self.breaks(KernelMutant::ProtectJudgesNew) { new } else { old };
        let mut gather = Gather::<P, Items>::new(used.space);
        if !self.breaks(KernelMutant::ProtectWithoutFlush) {
            let told = gather.updated(&self.pin, range(page, 1), demand(judged, new));
            debug_assert!(told.is_ok(), "rights change without a break");
        }
        let mut changes = Changes::default();
        put(&mut changes, change);
        self.finish_and_unlock(used, gather, &changes);
    }

    pub(super) fn grant(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        if let Some(word) = self.leaf(used, page) {
            let old = hw::read_entry(word);
            if old.present() && !old.has(Descriptor::WRITE) {
                hw::unseal(old.frame());
                self.widen(used, page, word, old.with(WRITABLE));
                hw::witness("permission-granted");
            }
        }
        used.room.lock.unlock();
    }

    pub(super) fn replace(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.leaf(used, page) else { return used.room.lock.unlock() };
        let old = hw::read_entry(word);
        if !old.present() {
            return used.room.lock.unlock();
        }
        let new = Descriptor::user_rw(hw::new_frame());
        let mut changes = Changes::default();
        let mut gather = Gather::<P, Items>::new(used.space);
        if self.breaks(KernelMutant::ReplaceWithoutFlush) {
            let (_, change) = hw::swap_entry(word, new);
            hw::revoked(&[change]);
            hw::free_frame(old.frame());
            return used.room.lock.unlock();
        }
        let (_, change) = hw::swap_entry(word, Descriptor::ABSENT);
        put(&mut changes, change);
        if self.breaks(KernelMutant::ReplaceFreesEarly) {
            hw::free_frame(old.frame());
            gather.changed(range(page, 1));
        } else {
            put_unmapped(&mut gather, page, old);
        }
        let done = self.finish(gather, &changes);
        if done.is_ok() {
            self.tables.make(word, new);
        }
        used.room.lock.unlock();
        if let Err(items) = done {
            self.flush_again(used, items, &changes);
        }
    }

    pub(super) fn move_page(&self, used: Used<'_, P>, from: u32, to: u8) {
        self.lock(used);
        let words = (self.leaf(used, from), self.leaf(used, u32::from(to)));
        let (Some(source), Some(target)) = words else { return used.room.lock.unlock() };
        let free = source != target && !hw::read_entry(target).present();
        if !free || !self.make_way(used, u32::from(to), 1) {
            return used.room.lock.unlock();
        }
        let (old, change) = hw::swap_entry(source, Descriptor::ABSENT);
        if !old.present() {
            return used.room.lock.unlock();
        }
        self.tables.make(target, old);
        let late = self.breaks(KernelMutant::MoveFlushesLate);
        if late {
            used.room.lock.unlock();
        }
        // Until the flush nobody may take the page from its new place, whose flush would not cover
        // the old.
        let flushed = self.flush(used, from, 1, false);
        if flushed {
            hw::revoked(&[change]);
        }
        if !late {
            used.room.lock.unlock();
        }
    }

    /// User code stores to a page until the store goes through, or the fault is a real one.
    pub(super) fn write(&self, at: At) {
        let Some((space, _)) = self.mine.current.get().filter(|(space, _)| *space == at.space)
        else {
            return;
        };
        let page = u32::from(at.page);
        /// A stale entry of the TLB, one of the walk that replaced it, and one more to be generous.
        const SPURIOUS: u32 = 3;
        let (mut seen, mut spurious) = (None, 0);
        while !hw::user_store(page) {
            let mut allowed = None;
            let mut answer = Spurious::Retry;
            self.in_space(space, |used| {
                self.lock(used);
                let mut entry = Descriptor::ABSENT;
                let mut writable = |word: &Word| {
                    entry = hw::read_entry(*word);
                    entry.present() && entry.has(Descriptor::WRITE)
                };
                allowed = self.leaf(used, page).filter(&mut writable).map(hw::latest);
                used.room.lock.unlock();
                if allowed.is_some() {
                    hw::witness("spurious-fault");
                    answer = self.spurious(used, page, entry);
                }
            });
            if allowed.is_none() || answer == Spurious::Real {
                // A real one: who handles it has nothing to map here.
                return fault_resolved::<P>(&self.pin);
            }
            // Each time that somebody changes the page in between, the bound begins anew.
            spurious = if seen == allowed { spurious + 1 } else { 1 };
            seen = allowed;
            if spurious > SPURIOUS {
                let details =
                    format!("page {page} may be written, but the store faults again and again");
                hw::violation(Invariant::UpgradeSoundness, details);
            }
        }
    }

    /// The table is more generous than what this CPU has cached.
    fn spurious(&self, used: Used<'_, P>, page: u32, entry: Descriptor) -> Spurious {
        if self.breaks(KernelMutant::SpuriousFaultStays) {
            return Spurious::Retry;
        }
        spurious_fault(&self.pin, used.space, range(page, 1), entry.bits())
    }

    /// All of a space, for operations that end more than a page.
    pub(super) fn flush_all(&self, used: Used<'_, P>) -> bool {
        used.space.flush(&self.pin, Request::space()).is_ok()
    }
}

/// Notes an unmapped page and its frame.
pub(super) fn put_unmapped<P: Port>(gather: &mut Gather<'_, P, Items>, page: u32, old: Descriptor) {
    let put = gather.unmapped(range(page, 1), Item::Frame(old.frame()));
    assert!(put.is_ok(), "an operation unhooks less than there is room for");
}
