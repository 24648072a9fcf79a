//! What each CPU has for itself, under the `loom` model checker. The heavy barrier is a fence on
//! both sides here, which is what it makes of them: that hardware does so is the host's promise,
//! and not a matter of this test.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-dma-woven --release --test loom_local
//! --target-dir target/loom`
#![cfg(loom)]

#[path = "support/loom.rs"]
mod support;

use loom::sync::Arc;
use loom::sync::atomic::{Ordering, fence};
use loom::thread;
use shootdown_dma_woven::local::Local;
use shootdown_dma_woven::mutant::Mutant;
use shootdown_dma_woven::pinned::Pinned;
use support::holds;

fn barrier(_: usize) -> bool {
    fence(Ordering::SeqCst);
    true
}

/// A cell for one CPU, and one that nobody owns. What is in it is two words that belong together.
fn local() -> Arc<Local<[u32; 2]>> {
    // SAFETY: only one thread enters as the owner, and both sides pass a fence.
    let pinned = unsafe { Pinned::new(barrier) };
    Arc::new(Local::new(2, |_| [0; 2]).unwrap().pinned(Some(pinned), 1))
}

fn count(pair: &mut [u32; 2]) -> u32 {
    assert_eq!(pair[0], pair[1], "I1: somebody is in between");
    pair[0] += 1;
    thread::yield_now();
    pair[1] += 1;
    pair[0]
}

#[test]
fn an_owner_and_a_claimer() {
    let mutants = [
        Mutant::ClaimUnseen,
        Mutant::ClaimUnfenced,
        Mutant::OwnerOverlooked,
        Mutant::ClaimReadRelaxed,
        Mutant::LeaveRelaxed,
    ];
    holds("owner and claimer", Some(3), &mutants, || {
        let local = local();
        let other = {
            let local = Arc::clone(&local);
            thread::spawn(move || u32::from(local.enter(0, count).is_some()))
        };
        let mine = (0..2).filter(|_| local.enter_own(0, count).is_some()).count() as u32;
        let its = other.join().unwrap();
        assert_eq!(local.enter_own(0, |pair| *pair), Some([mine + its; 2]), "nothing is lost");
    });
}

#[test]
fn two_claimers_and_an_owner() {
    holds("two claimers", Some(2), &[], || {
        let local = local();
        let others = [(); 2].map(|()| {
            let local = Arc::clone(&local);
            thread::spawn(move || u32::from(local.enter(0, count).is_some()))
        });
        let near = local.enter_near(0, |at, pair| at == 0 && count(pair) > 0);
        let mine = u32::from(near.unwrap_or(false));
        let its: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert_eq!(local.enter_own(0, |pair| *pair), Some([mine + its; 2]), "nothing is lost");
    });
}
