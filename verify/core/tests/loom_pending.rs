//! What is pending in a space, under the `loom` model checker: a CPU that comes to the space
//! against one that flushes what a third has cleared; and, one step after the other, what is
//! completed where hardware removes entries by name.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_pending`
#![cfg(loom)]

mod loom_support;
#[path = "loom_support/tlbi.rs"]
#[allow(dead_code)] // shared
mod tlbi;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use loom_support::holds;
use shootdown_woven::epoch::Epoch;
use shootdown_woven::gather::{Array, Gather, Nothing};
use shootdown_woven::mutant::Mutant;
use shootdown_woven::*;
use tlbi::{
    ACTIVE, ALONE, ALWAYS, CPU, Model, PLAIN, STICKY, Spaces, TRIM, access, alone, begin, on, world,
};

fn page(page: u64) -> VaRange {
    VaRange::new(page << 12, 1, Stride::Page4K).unwrap()
}

/// Clears the entry of a space's page for a batch.
fn put_off<'a>(spaces: &'a Spaces, batch: &mut Batch<'a, Model, Nothing>) {
    world().tables[0].store(0, Ordering::Relaxed);
    batch.changed(&spaces.spaces[0], page(0), false).unwrap();
}

/// CPU 1, which has been there before, comes back to space 0. A task clears the page's entry for a
/// batch, under the table lock; another, on CPU 0, finds it so and calls `complete_pending`.
fn somebody_pays(policy: &'static Policy) {
    ALONE.set(false);
    let spaces = begin(policy, &PLAIN);
    spaces.runs(0, &[2]);
    spaces.runs(1, &[0, 1]);
    let lock = Arc::new(Mutex::new(()));
    let comes = {
        let spaces = Arc::clone(&spaces);
        thread::spawn(move || {
            CPU.with(|c| c.set(1));
            spaces.run(0);
            spaces.look();
        })
    };
    let clears = {
        let (spaces, lock) = (Arc::clone(&spaces), Arc::clone(&lock));
        thread::spawn(move || {
            let mut batch = Batch::default();
            let held = lock.lock().unwrap();
            put_off(&spaces, &mut batch);
            drop(held);
            std::mem::forget(batch); // it would be flushed later
        })
    };
    let held = lock.lock().unwrap();
    let found = world().tables[0].load(Ordering::Relaxed) == 0;
    drop(held);
    if found {
        spaces.spaces[0].complete_pending(&Model::pin()).unwrap();
        spaces.flushed.store(true, Ordering::Release);
    }
    comes.join().unwrap();
    clears.join().unwrap();
    spaces.over();
}

#[test]
fn a_cpu_comes_while_somebody_flushes_for_another() {
    use Mutant::*;
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || somebody_pays(policy));
    };
    holds(
        "somebody flushes, always",
        &ALWAYS,
        &[OutstandingIgnored, PutOffForgotten, BroadcastWithoutSync],
    );
    holds("somebody flushes, sticky", &STICKY, &[BroadcastStaysLocal]);
    holds("somebody flushes, active", &ACTIVE, &[StaleTagTrusted]);
    holds("somebody flushes, trim", &TRIM, &[BroadcastStaysLocal]);
}

#[test]
fn a_range_pays_for_itself_where_hardware_removes_by_name() {
    use Mutant::*;
    holds(
        "completed by name",
        None,
        &[RangeCoversAll, BatchCoversLast, CompletedOutOfTurn],
        || {
            for together in [false, true] {
                alone(&ALWAYS, &PLAIN, |spaces| {
                    spaces.runs(1, &[0]);
                    spaces.runs(0, &[1]);
                    let space = &spaces.spaces[0];
                    let mut batch = Batch::default();
                    put_off(spaces, &mut batch);
                    if together {
                        batch.changed(space, page(3), false).unwrap();
                    } else {
                        space.flush(&Model::pin(), Request::pages(page(3))).unwrap();
                        space.complete_pending(&Model::pin()).unwrap();
                        assert_eq!(on(1, || access(0)), 0, "the flush was of another page");
                    }
                    batch.finish(&Model::pin()).map_err(|(e, _)| e).unwrap();
                    assert_eq!(on(1, || access(0)), 0, "it goes with another page");
                });
            }
        },
    );
}

/// CPU 0 clears an entry for a batch and then flushes another page, which is soon over. CPU 1,
/// which has the entry cached, finds it cleared and calls `complete_pending`.
#[test]
fn a_change_that_is_done_hides_no_older_one() {
    holds("done hides none", Some(2), &[Mutant::CountedReadFirst], || {
        ALONE.set(false);
        let spaces = begin(&ALWAYS, &PLAIN);
        spaces.runs(1, &[0]);
        let lock = Arc::new(Mutex::new(()));
        let clears = {
            let (spaces, lock) = (Arc::clone(&spaces), Arc::clone(&lock));
            thread::spawn(move || {
                let mut batch = Batch::default();
                let held = lock.lock().unwrap();
                put_off(&spaces, &mut batch);
                drop(held);
                spaces.spaces[0].flush(&Model::pin(), Request::pages(page(3))).unwrap();
                std::mem::forget(batch); // it would be flushed later
            })
        };
        CPU.with(|c| c.set(1));
        let held = lock.lock().unwrap();
        let found = world().tables[0].load(Ordering::Relaxed) == 0;
        drop(held);
        if found {
            spaces.spaces[0].complete_pending(&Model::pin()).unwrap();
            assert_eq!(access(0), 0, "it was flushed");
        }
        clears.join().unwrap();
        spaces.over();
    });
}

/// Software that walks tables says so while it does.
struct Walkers(AtomicU64);

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

#[test]
fn tables_are_free_when_software_has_looked_away() {
    holds("software walks", None, &[Mutant::EpochIgnored], || {
        ALONE.set(false);
        let spaces = begin(&ALWAYS, &PLAIN);
        let shared = Arc::new((Walkers(AtomicU64::new(0)), UnsafeCell::new(1)));
        let walker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (walkers, table) = &*shared;
                walkers.0.fetch_add(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                if world().tables[0].load(Ordering::Relaxed) != 0 {
                    // SAFETY: what is checked: nobody writes to the table while it is walked.
                    table.with(|t| unsafe { *t });
                }
                walkers.0.fetch_sub(1, Ordering::Release);
            })
        };
        let (walkers, table) = &*shared;
        let mut gather = Gather::<Model, Array<(), 1>>::new(&spaces.spaces[0]);
        world().tables[0].store(0, Ordering::Relaxed);
        gather.table_freed(page(0), ()).unwrap();
        let mut held = gather.finish_after(&Model::pin(), walkers).map_err(|(e, _)| e).unwrap();
        while let Err(again) = held.poll() {
            held = again;
            thread::yield_now();
        }
        // SAFETY: as above.
        table.with_mut(|t| unsafe { *t = 0 });
        walker.join().unwrap();
        spaces.over();
    });
}
