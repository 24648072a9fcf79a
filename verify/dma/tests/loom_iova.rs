//! Allocators under the `loom` model checker, which explores interleavings *and* what weak memory
//! allows. Each promise comes with mutants that must break it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-dma-woven --release --test loom_iova
//! --target-dir target/loom`
#![cfg(loom)]

#[path = "support/loom.rs"]
mod support;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use shootdown_dma_woven::IovaRange;
use shootdown_dma_woven::iova::arena::{Arena, Flush, Layout};
use shootdown_dma_woven::iova::magazine::{Config, Magazines};
use shootdown_dma_woven::iova::{Allocate, Space, Tree, Want};
use shootdown_dma_woven::mutant::Mutant;
use support::holds;

fn pages(pages: u64) -> Want {
    Want::pages(pages).unwrap()
}

#[test]
fn one_at_a_time() {
    // Mutants of the lock: SpinAcquireRelaxed, SpinReleaseRelaxed.
    holds("tree", None, &[Mutant::SpinAcquireRelaxed, Mutant::SpinReleaseRelaxed], || {
        let tree = Arc::new(Tree::new(&Space::below(4)).unwrap());
        let other = {
            let tree = Arc::clone(&tree);
            thread::spawn(move || tree.alloc(1, &pages(1)).unwrap())
        };
        let mine = tree.alloc(0, &pages(1)).unwrap();
        let its = other.join().unwrap();
        assert_ne!(mine, its, "A1");
        tree.free(0, its).unwrap();
        tree.free(0, mine).unwrap();
        assert_eq!((tree.nodes(), tree.free_pages()), (1, 3), "A3");
    });
}

#[test]
fn two_with_the_number_of_one_cpu() {
    // One of them has moved since it asked which CPU it is on; or it is an interrupt handler.
    holds("one CPU", None, &[Mutant::CellNotTaken], || {
        // Enough for what is taken in advance, and for who finds the magazines in use.
        let tree = Tree::new(&Space::below(33)).unwrap();
        let magazines = Arc::new(Magazines::new(tree, &Config::for_cpus(1).depot(1)).unwrap());
        let [mine, its, third] = [(); 3].map(|()| magazines.alloc(0, &pages(1)).unwrap());
        magazines.free(0, third).unwrap();
        let other = {
            let magazines = Arc::clone(&magazines);
            thread::spawn(move || {
                magazines.free(0, its).unwrap();
                magazines.alloc(0, &pages(1)).unwrap()
            })
        };
        magazines.free(0, mine).unwrap();
        let again = magazines.alloc(0, &pages(1)).unwrap();
        let its = other.join().unwrap();
        assert_ne!(again, its, "A1");
        magazines.free(0, its).unwrap();
        magazines.free(0, again).unwrap();
        magazines.flush();
        assert_eq!((magazines.inner().nodes(), magazines.inner().free_pages()), (1, 32), "A3");
    });
}

/// What hardware may have cached, by page, and what is mapped. A walk is not modelled: what is
/// mapped is cached at once.
struct Iotlb {
    mapped: [AtomicBool; PAGES],
    cached: [AtomicBool; PAGES],
}

const PAGES: usize = 3;

impl Iotlb {
    fn new() -> Arc<Self> {
        let flags = || core::array::from_fn(|_| AtomicBool::new(false));
        Arc::new(Self { mapped: flags(), cached: flags() })
    }
}

struct Hardware(Arc<Iotlb>);

// SAFETY: what was cleared before is forgotten when it returns.
unsafe impl Flush for Hardware {
    fn flush(&self) {
        for (mapped, cached) in self.0.mapped.iter().zip(&self.0.cached) {
            if !mapped.load(Ordering::Acquire) {
                cached.store(false, Ordering::Release);
            }
        }
    }
}

struct Sweeps {
    arena: Arena<Hardware>,
    iotlb: Arc<Iotlb>,
}

impl Sweeps {
    /// So many pools of one page.
    fn new(pools: usize, end: u64) -> Arc<Self> {
        let iotlb = Iotlb::new();
        let layout = Layout::pools(pools).large_above(u64::MAX);
        let arena = Arena::new(&Space::below(end), &layout, Hardware(Arc::clone(&iotlb))).unwrap();
        Arc::new(Self { arena, iotlb })
    }

    fn map(&self, cpu: usize) -> Option<IovaRange> {
        let range = self.arena.alloc(cpu, &pages(1)).ok()?;
        let page = range.first() as usize;
        assert!(!self.iotlb.cached[page].load(Ordering::Acquire), "A6: page {page} is cached");
        self.iotlb.mapped[page].store(true, Ordering::Release);
        self.iotlb.cached[page].store(true, Ordering::Release);
        Some(range)
    }

    fn unmap(&self, range: IovaRange) {
        self.iotlb.mapped[range.first() as usize].store(false, Ordering::Release);
        self.arena.retire(range).unwrap();
    }
}

#[test]
fn two_pools_wrap() {
    holds("two pools", Some(3), &[Mutant::PoolsShareOneFlag], || {
        let sweeps = Sweeps::new(2, 3);
        for cpu in [0, 1] {
            let range = sweeps.map(cpu).unwrap();
            sweeps.unmap(range);
        }
        let other = {
            let sweeps = Arc::clone(&sweeps);
            thread::spawn(move || sweeps.map(1).unwrap())
        };
        sweeps.map(0).unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_pool_wraps_under_two_cpus() {
    let mutants = [Mutant::FreedBeforeFlush, Mutant::PoolEpochIgnored, Mutant::RetiredTooLateFreed];
    holds("one pool", Some(3), &mutants, || {
        // One page, which is held back. Both want it; who comes too late finds the pool exhausted.
        let sweeps = Sweeps::new(1, 2);
        let held = sweeps.map(0).unwrap();
        sweeps.unmap(held);
        let other = {
            let sweeps = Arc::clone(&sweeps);
            thread::spawn(move || {
                if let Some(range) = sweeps.map(1) {
                    sweeps.unmap(range);
                    sweeps.map(1);
                }
            })
        };
        sweeps.map(0);
        other.join().unwrap();
    });
}
