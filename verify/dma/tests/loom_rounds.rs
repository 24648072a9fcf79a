//! The timer's rounds, under the `loom` model checker: whatever CPUs seal when the timer asks, one
//! of its next calls submits.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-dma-woven --release --test loom_rounds
//! --target-dir target/loom`
#![cfg(loom)]

#[path = "support/loom.rs"]
mod support;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use shootdown_dma_woven::domain::{Due, TimerRounds as Rounds};
use shootdown_dma_woven::mutant::Mutant;
use support::holds;

/// An engine in small, without a lock of its own: what was noted in lanes, and which invalidation
/// of the whole domain has started.
struct Engine {
    rounds: Rounds,
    noted: [AtomicU64; 2],
    submitted: [AtomicU64; 2],
    /// What was noted for the whole domain, and what has started.
    whole: AtomicU64,
    started: AtomicU64,
}

impl Engine {
    fn new() -> Self {
        let [zero, none] = [[0; 2], [0; 2]].map(|lanes| lanes.map(AtomicU64::new));
        Self {
            rounds: Rounds::new(2).unwrap(),
            noted: zero,
            submitted: none,
            whole: AtomicU64::new(0),
            started: AtomicU64::new(0),
        }
    }

    /// A CPU that looks after its queue, and has something in it.
    fn look(&self, cpu: usize, heard: u64) -> u64 {
        let round = self.rounds.newest();
        if round != heard {
            let lane = self.rounds.is_first().then_some(cpu);
            match lane {
                Some(lane) => self.noted[lane].store(round, Ordering::Relaxed),
                None => {
                    self.whole.store(1 + self.started.load(Ordering::Relaxed), Ordering::Relaxed)
                }
            }
            self.rounds.raise(lane);
            self.rounds.answer(cpu, round);
        }
        round
    }

    fn timer(&self) {
        let submit = |lane: usize| {
            self.submitted[lane].store(self.noted[lane].load(Ordering::Relaxed), Ordering::Relaxed);
        };
        match self.rounds.take_due() {
            Some(Due::One(lane)) => submit(lane),
            Some(Due::Several) => {
                self.started.fetch_add(1, Ordering::Relaxed);
                (0..2).for_each(submit);
            }
            None => {}
        }
    }
}

#[test]
fn what_is_sealed_is_submitted() {
    let mutants = [Mutant::DueForOne, Mutant::DueSeenRelaxed, Mutant::DueRaisedRelaxed];
    holds("the timer's rounds", Some(3), &mutants, || {
        let engine = Arc::new(Engine::new());
        engine.rounds.ask();
        let spawn = |f: fn(&Engine)| {
            let engine = Arc::clone(&engine);
            thread::spawn(move || f(&engine))
        };
        let others =
            [spawn(|engine| engine.timer()), spawn(|engine| assert_eq!(engine.look(1, 0), 1))];
        assert_eq!(engine.look(0, 0), 1);
        others.into_iter().for_each(|other| other.join().unwrap());
        engine.timer();
        for lane in 0..2 {
            let of = |all: &[AtomicU64; 2]| all[lane].load(Ordering::Relaxed);
            assert_eq!(of(&engine.noted), of(&engine.submitted), "a CPU's own is not submitted");
        }
        let whole = engine.whole.load(Ordering::Relaxed);
        assert!(whole <= engine.started.load(Ordering::Relaxed), "the whole is not submitted");
    });
}
