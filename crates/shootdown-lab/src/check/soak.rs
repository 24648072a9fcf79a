//! Endurance: chance over everything, for as long as asked.
//!
//! A soak goes in rounds. A round is one program of one scene, with a seed of its own, under many
//! schedules; the scenes take turns. The first round that breaks a promise ends the soak, shrunk
//! and with the line that shows it again. Rounds are counted in their order whichever thread is
//! faster, so that a soak of a number of steps gives the same figures on every host and for any
//! number of threads (V3); a soak of a number of hours goes as far as the host does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::hunted::Scene;
use super::random::{self, Round};
use super::steps::Planted;
use super::{Check, CheckResult, Kind, Settings, seed_for};
use crate::experiments::chance;
use crate::progress::Progress;

/// How long a soak goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Until so many hostile steps were taken.
    Steps(u64),
    /// For so long.
    Time(Duration),
}

/// Steps of a soak of which nothing is said: a minute or so.
const STEPS: u64 = 50_000_000;

/// Schedules of a round: a fraction of a second. Few, as rare things take a rare program rather
/// than a rare schedule.
const SCHEDULES: u64 = 16;

/// `shootdown check soak`.
pub struct Soak {
    /// What takes turns.
    pub scenes: Vec<Box<dyn Scene>>,
}

/// Rounds in their order, whatever the order they end in.
struct Ledger {
    early: BTreeMap<u64, Round>,
    rounds: u64,
    all: Round,
    over: bool,
}

impl Ledger {
    fn enter(&mut self, index: u64, round: Round, limit: Limit) {
        self.early.insert(index, round);
        while !self.over
            && let Some(round) = self.early.remove(&self.rounds)
        {
            self.rounds += 1;
            self.all.join(round);
            let enough = matches!(limit, Limit::Steps(steps) if self.all.steps >= steps);
            self.over = enough || self.all.broken.is_some();
        }
    }
}

impl Soak {
    fn rounds(&self, settings: &Settings, progress: &Progress) -> (u64, Round) {
        let limit = settings.soak.unwrap_or(Limit::Steps(STEPS));
        let seed = seed_for(settings.seed, self.name());
        let begun = Instant::now();
        let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let ledger = Mutex::new(Ledger {
            early: BTreeMap::new(),
            rounds: 0,
            all: Round::default(),
            over: false,
        });
        match limit {
            Limit::Steps(steps) => progress.measure(steps),
            Limit::Time(time) => progress.measure(time.as_secs()),
        }
        let work = || {
            let _planted = Planted::new(settings.mutant);
            // Both are hints: what counts is in the ledger.
            while !over.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let scene = &*self.scenes[(index % self.scenes.len() as u64) as usize];
                let round_seed = chance(seed, index);
                let round = random::program(scene, settings, round_seed, SCHEDULES);
                let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
                ledger.enter(index, round, limit);
                let took = begun.elapsed();
                let late = matches!(limit, Limit::Time(time) if took >= time);
                if ledger.over || late {
                    over.store(true, Ordering::Relaxed);
                }
                let rate = ledger.all.steps as f64 / took.as_secs_f64().max(1e-9) / 1e6;
                progress.reached(match limit {
                    Limit::Steps(_) => ledger.all.steps,
                    Limit::Time(_) => took.as_secs(),
                });
                progress.at(format!(
                    "round {index} {} seed {round_seed}, {rate:.2} million steps a second",
                    scene.name()
                ));
            }
        };
        thread::scope(|scope| {
            for _ in 0..settings.threads.max(1) {
                scope.spawn(work);
            }
        });
        let ledger = ledger.into_inner().unwrap_or_else(PoisonError::into_inner);
        (ledger.rounds, ledger.all)
    }

    /// What any of the scenes has to reach.
    fn witnesses(&self) -> Vec<&'static str> {
        let mut all: Vec<_> =
            self.scenes.iter().flat_map(|s| s.witnesses().iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Check for Soak {
    fn name(&self) -> &str {
        "soak"
    }

    fn kind(&self) -> Kind {
        Kind::Soak
    }

    fn line(&self) -> &str {
        "random programs and schedules of all scenes in turn, for --hours H or --steps N"
    }

    fn by_default(&self) -> bool {
        false
    }

    fn run(&self, settings: &Settings, progress: &Progress) -> CheckResult {
        let (rounds, all) = self.rounds(settings, progress);
        let mut result = random::conclude(&all, &self.witnesses());
        result.seed = Some(settings.seed);
        result.bounds = Some(format!("{rounds} rounds over {} scenes", self.scenes.len()));
        result
    }
}
