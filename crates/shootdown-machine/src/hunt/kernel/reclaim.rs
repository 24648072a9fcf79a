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
        let mut batch = Batch::<P, Items, 2>::new();
        let mut changes = Changes::default();
        let mut dirty = Array::<Frame, 2>::default();
        for (used, page) in mappings {
            self.lock(used);
            if let Some(word) = self.leaf(used, page) {
                let (old, change) = hw::swap_entry(word, Descriptor::ABSENT);
                if old.present() {
                    let (frame, written) = (old.frame(), old.has(Descriptor::WRITE));
                    let put_off =
                        batch.unmapped(used.space, range(page, 1), written, Item::Frame(frame));
                    assert!(put_off.is_ok(), "there is room for two");
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
                hw::witness("batch-paid");
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
