//! The pool of bounce pages under the `loom` model checker.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-dma-woven --release --test loom_bounce
//! --target-dir target/loom`
#![cfg(loom)]

#[path = "support/loom.rs"]
mod support;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use shootdown_dma_woven::PhysAddr;
use shootdown_dma_woven::bounce::Pool;
use shootdown_dma_woven::mutant::Mutant;
use support::holds;

/// A pool of one page, and what is in it.
struct World {
    pool: Pool,
    page: UnsafeCell<u64>,
}

// SAFETY: who has taken the page uses it; the checker says if that is not so.
unsafe impl Sync for World {}

impl World {
    /// Takes the page if it is free, and writes to it.
    fn uses(&self) -> Option<usize> {
        let index = self.pool.lend()?;
        // SAFETY: it is ours.
        self.page.with_mut(|page| unsafe { *page += 1 });
        Some(index)
    }
}

#[test]
fn a_page_is_anothers_after_the_last_use() {
    let mutants = [Mutant::PoolTakeRelaxed, Mutant::PoolLetGoRelaxed];
    holds("pool", None, &mutants, || {
        let pool = Pool::new([PhysAddr(0x1000)]).unwrap();
        let world = Arc::new(World { pool, page: UnsafeCell::new(0) });
        // Mapped: used by the buffer, and held by the domain.
        let index = world.uses().unwrap();
        world.pool.hold_once_more(index);
        let threads = [0, 1].map(|n| {
            let world = Arc::clone(&world);
            thread::spawn(move || match n {
                // Its invalidation is complete.
                0 => world.pool.give_back(index),
                // Another buffer wants it.
                _ => {
                    if let Some(index) = world.uses() {
                        world.pool.give_back(index);
                    }
                }
            })
        });
        // Copied back, and given up.
        // SAFETY: still ours.
        world.page.with_mut(|page| unsafe { *page += 1 });
        world.pool.give_back(index);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.pool.free(), 1);
    });
}
