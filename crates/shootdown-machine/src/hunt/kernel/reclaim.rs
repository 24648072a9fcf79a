//! Reclaim: pages of several spaces go in one batch.

use shootdown::Batch;
use shootdown::gather::Array;

use super::Port;
use super::cpu::{Changes, Cpu, Item, Items, Used, put};
use super::tables::range;
use crate::hostile::{Descriptor, Frame};
use crate::hunt::hw;
use crate::oracle::Invariant;

impl<P: Port> Cpu<P> {
    /// Unmaps two pages, writes out those that may have been written to, and frees their frames.
    pub(super) fn reclaim(&self, mappings: [(Used<'_, P>, u32); 2]) {
        self.reclaim_with::<2>(mappings, false);
    }

    /// The same with room for one space: it is flushed before the next. The first frame has
    /// another mapping, and stays.
    pub(super) fn reclaim_tight(&self, mappings: [(Used<'_, P>, u32); 2]) {
        self.reclaim_with::<1>(mappings, true);
    }

    fn reclaim_with<const N: usize>(&self, mappings: [(Used<'_, P>, u32); 2], first_stays: bool) {
        let mut batch = Batch::<P, Items, N>::new();
        let mut changes = Changes::default();
        let mut dirty = Array::<Frame, 2>::default();
        for (n, (used, page)) in mappings.into_iter().enumerate() {
            if batch.make_room(&self.pin, used.space).is_err() {
                continue;
            }
            self.lock(used);
            if let Some(word) = self.leaf(used, page) {
                let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
                if old.present() {
                    let (frame, written) = (old.frame(), old.has(Descriptor::WRITE));
                    let (range, item) = (range(page, 1), Item::Frame(frame));
                    let put_off = if n == 0 && first_stays {
                        batch.changed(used.space, range, written).is_ok()
                    } else {
                        batch.unmapped(used.space, range, written, item).is_ok()
                    };
                    assert!(put_off, "there is room for two");
                    put(&mut changes, change);
                    if written {
                        put(&mut dirty, frame);
                    }
                }
            }
            used.room.lock.unlock();
        }
        if batch.before_write_back(&self.pin).is_ok() {
            for frame in dirty {
                hw::seal(frame, Invariant::WriteBack);
                hw::witness("page-written-back");
            }
        }
        let done = match batch.finish(&self.pin) {
            Err((_, batch)) => batch.finish(&self.pin),
            done => done,
        };
        match done {
            Ok(items) => {
                hw::revoked(changes.as_slice());
                hw::witness("batch-flushed");
                self.seen();
                self.free(items);
            }
            Err((_, batch)) => {
                hw::witness("quarantined");
                core::mem::forget(batch);
            }
        }
    }
}
