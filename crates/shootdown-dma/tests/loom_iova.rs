//! Allocators under the `loom` model checker, which explores interleavings *and* what weak memory allows. Each promise
//! comes with mutants that must break it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-dma --release --test loom_iova --target-dir target/loom`
#![cfg(loom)]

#[path = "support/loom.rs"]
mod support;

use loom::sync::Arc;
use loom::thread;
use shootdown_dma::iova::magazine::{Config, Magazines};
use shootdown_dma::iova::{Allocate, Space, Tree, Want};
use shootdown_dma::mutant::Mutant;
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
    holds("one CPU", None, &[Mutant::SpinNotTaken], || {
        let tree = Tree::new(&Space::below(9)).unwrap();
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
        assert_eq!((magazines.inner().nodes(), magazines.inner().free_pages()), (1, 8), "A3");
    });
}
