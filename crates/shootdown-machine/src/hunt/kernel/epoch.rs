//! Tables that software walks without a lock: who frees one waits until those who may have found it
//! have looked away.

use shootdown::epoch::Epoch;
use shootdown::gather::Gather;
use shootdown::sync::{AtomicU32, Ordering, fence};

use super::Port;
use super::cpu::{Changes, Cpu, Item, Items, Used, put};
use super::tables::range;
use crate::hostile::{Descriptor, Word};
use crate::hunt::hw;

/// Walks that are under way.
#[derive(Debug)]
pub(super) struct Walkers(AtomicU32);

impl Walkers {
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

// SAFETY: a walk is counted, then fences, then reads the tables; the epoch fences after the tables
// were changed, then looks at the count. So a walk is seen, or sees the change; and who sees it end
// (Acquire) sees what it read as read.
unsafe impl Epoch for Walkers {
    type Cookie = ();

    fn start(&self) {
        fence(Ordering::SeqCst);
    }

    fn has_passed(&self, (): ()) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

impl<P: Port> Cpu<P> {
    pub(super) fn walk_begins(&self) {
        if self.k.traits.epochs {
            self.k.walkers.0.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn walk_ends(&self) {
        if self.k.traits.epochs {
            // ORDERING: Release, with the Acquire in `has_passed`: the tables were read
            self.k.walkers.0.fetch_sub(1, Ordering::Release);
        }
    }

    pub(super) fn free_table_after(&self, used: Used<'_, P>, page: u32) {
        self.lock(used);
        let Some(word) = self.tables.walk(used.root(), page, 1) else {
            return used.room.lock.unlock();
        };
        let old = hw::read_entry(word);
        if !old.present() || old.has(Descriptor::LEAF) {
            return used.room.lock.unlock();
        }
        let table = old.next();
        let mut changes = Changes::default();
        let mut gather = Gather::<P, Items>::new(used.space);
        let (_, change) = hw::swap_entry(word, Descriptor::ABSENT);
        put(&mut changes, change);
        for index in 0..self.tables.entries() {
            let leaf = Word::new(table, index);
            if hw::read_entry(leaf).present() {
                let (entry, change) = hw::swap_entry(leaf, Descriptor::ABSENT);
                put(&mut changes, change);
                let page = self.tables.table_base(page) + u32::from(index);
                let gathered = gather.unmapped(range(page, 1), Item::Frame(entry.frame()));
                assert!(gathered.is_ok(), "there is room for a table's pages");
            }
        }
        let all = range(self.tables.table_base(page), self.tables.entries().into());
        assert!(gather.table_freed(all, Item::Table(table)).is_ok(), "there is room");
        match gather.finish_after(&self.pin, &self.k.walkers) {
            Ok(mut held) => {
                hw::revoked(changes.as_slice());
                let items = loop {
                    match held.poll() {
                        Ok(items) => break items,
                        Err(again) => {
                            held = again;
                            hw::witness("walkers-awaited");
                            let _ = shootdown::poll::<P>(&self.pin);
                            hw::relax();
                        }
                    }
                };
                self.free(items);
                used.room.lock.unlock();
            }
            Err((_, items)) => {
                used.room.lock.unlock();
                self.flush_again(used, items, &changes);
            }
        }
    }
}
