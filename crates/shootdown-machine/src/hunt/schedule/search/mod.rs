//! Many runs, on one thread or several, with one result.
//!
//! Every run has a number, and everything that it decides follows from the seed and that number.
//! Threads take the next number whenever they are done. The outcomes are handed on in the order of
//! their numbers, and the first of them that broke a promise ends the search: the result is the
//! same for any number of threads. (Only [`Effort::time`] makes it depend on the clock, and it says
//! when it did.)

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::pct::Counting;
use super::{Found, Freezing, Odds, Pct, Preempted, Random, Replay, Rng, Tuning};
use crate::hunt::{Chooser, End, Outcome};

/// How the runs of a search decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strategy {
    /// Everything follows from it.
    pub seed: u64,
    kind: Kind,
    freezing: Option<Freezing>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Random(Option<Tuning>),
    Pct { depth: u32, length: u64, odds: Option<(Odds, Odds)> },
}

impl Strategy {
    /// At random, each run with odds of its own.
    #[must_use]
    pub const fn random(seed: u64) -> Self {
        Self { seed, kind: Kind::Random(None), freezing: None }
    }

    /// At random, all runs with these odds.
    #[must_use]
    pub const fn tuned(seed: u64, tuning: Tuning) -> Self {
        Self { seed, kind: Kind::Random(Some(tuning)), freezing: None }
    }

    /// By priorities, for bugs of this depth in runs of this length ([`Self::length_of`]).
    #[must_use]
    pub const fn pct(seed: u64, depth: u32, length: u64) -> Self {
        Self { seed, kind: Kind::Pct { depth, length, odds: None }, freezing: None }
    }

    /// By priorities, with these odds for old values and faults instead of odds that each run
    /// draws.
    #[must_use]
    pub const fn pct_tuned(seed: u64, depth: u32, length: u64, old: Odds, fault: Odds) -> Self {
        Self { seed, kind: Kind::Pct { depth, length, odds: Some((old, fault)) }, freezing: None }
    }

    /// With virtual CPUs that stand still for a while.
    #[must_use]
    pub const fn freezing(self, freezing: Freezing) -> Self {
        Self { freezing: Some(freezing), ..self }
    }

    /// About how many steps a run has at which there is a choice: the longest of a few.
    pub fn length_of(run: &mut dyn FnMut(&mut dyn Chooser) -> Outcome) -> u64 {
        let mut counted = Counting { inner: Replay::new(&[]), steps: 0 };
        run(&mut counted);
        let mut longest = counted.steps;
        for i in 0..8 {
            let tuning = Tuning::EVEN;
            let inner = Random::with(Rng::of_run(0, i), tuning);
            let mut counted = Counting { inner, steps: 0 };
            run(&mut counted);
            longest = longest.max(counted.steps);
        }
        longest.max(1)
    }

    /// The chooser of one run.
    #[must_use]
    pub fn chooser(&self, run: u64) -> Box<dyn Chooser> {
        let mut rng = Rng::of_run(self.seed, run);
        let other = Rng::new(rng.next());
        match self.kind {
            Kind::Random(None) => self.frozen(Random::new(rng), other),
            Kind::Random(Some(tuning)) => self.frozen(Random::with(rng, tuning), other),
            Kind::Pct { depth, length, odds } => {
                let pct = Pct::new(rng, depth, length);
                self.frozen(
                    match odds {
                        Some((old, fault)) => pct.odds(old, fault),
                        None => pct,
                    },
                    other,
                )
            }
        }
    }

    fn frozen(&self, chooser: impl Chooser + 'static, rng: Rng) -> Box<dyn Chooser> {
        match self.freezing {
            Some(freezing) => Box::new(Preempted::new(chooser, rng, freezing)),
            None => Box::new(chooser),
        }
    }
}

/// How much is searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Number of the first run.
    pub first: u64,
    /// How many runs.
    pub runs: u64,
    /// No run is begun after this time.
    pub time: Option<Duration>,
    /// On how many threads; at least one is used.
    pub threads: usize,
}

impl Effort {
    /// This many runs, on one thread.
    #[must_use]
    pub const fn runs(runs: u64) -> Self {
        Self { first: 0, runs, time: None, threads: 1 }
    }

    /// The number after the last run's.
    const fn end(&self) -> u64 {
        self.first.saturating_add(self.runs)
    }

    fn is_over(&self, begun: Instant) -> bool {
        self.time.is_some_and(|t| begun.elapsed() >= t)
    }
}

/// What a search saw.
#[derive(Clone, PartialEq, Debug)]
pub struct Searched {
    /// Runs, that of [`Self::found`] included and none after it.
    pub runs: u64,
    /// Their steps together.
    pub steps: u64,
    /// Those cut off at their limit of steps.
    pub cut: u64,
    /// The failing run with the lowest number.
    pub found: Option<Found>,
    /// It ended because of the time, before all runs were made.
    pub out_of_time: bool,
}

/// The outcomes in order, whatever the order they come in.
struct Ordered<W> {
    early: BTreeMap<u64, Outcome>,
    next: u64,
    searched: Searched,
    watch: W,
}

impl<W: FnMut(u64, &Outcome)> Ordered<W> {
    fn new(effort: Effort, watch: W) -> Self {
        let searched = Searched { runs: 0, steps: 0, cut: 0, found: None, out_of_time: false };
        Self { early: BTreeMap::new(), next: effort.first, searched, watch }
    }

    fn finish(mut self, effort: Effort) -> Searched {
        let made = self.next - effort.first;
        self.searched.out_of_time = self.searched.found.is_none() && made < effort.runs;
        self.searched
    }

    fn hand_in(&mut self, run: u64, outcome: Outcome) {
        self.early.insert(run, outcome);
        while self.searched.found.is_none()
            && let Some(outcome) = self.early.remove(&self.next)
        {
            let run = self.next;
            self.next += 1;
            self.searched.runs += 1;
            self.searched.steps += outcome.steps;
            (self.watch)(run, &outcome);
            self.searched.cut += u64::from(outcome.end == End::Limit);
            if outcome.end.is_failure() {
                self.searched.found = Some(Found { run, outcome });
            }
        }
    }
}

/// Stops the other threads when this one panics.
struct StopOnPanic<'a>(&'a AtomicU64);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Runs until a promise is broken or the effort are reached.
///
/// `make` is called once on every thread and makes what runs there: machines, and everything else
/// that belongs to a thread (a mutant that is set, say), are its business. `watch` is told every
/// outcome, in the order of the runs.
///
/// # Panics
///
/// If a run panics.
pub fn search<R>(
    strategy: &Strategy,
    effort: Effort,
    make: impl Fn() -> R + Sync,
    watch: impl FnMut(u64, &Outcome) + Send,
) -> Searched
where
    R: FnMut(&mut dyn Chooser) -> Outcome,
{
    if effort.threads < 2 {
        let mut watch = watch;
        return search_here(strategy, effort, &mut make(), &mut watch);
    }
    let begun = Instant::now();
    let next = AtomicU64::new(effort.first);
    // No run from this one on is begun.
    let stop = AtomicU64::new(effort.end());
    let ordered = Mutex::new(Ordered::new(effort, watch));
    let work = || {
        let _guard = StopOnPanic(&stop);
        let mut execute = make();
        while !effort.is_over(begun) {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= stop.load(Ordering::Relaxed) {
                break;
            }
            let outcome = execute(&mut *strategy.chooser(run));
            if outcome.end.is_failure() {
                stop.fetch_min(run, Ordering::Relaxed);
            }
            ordered.lock().unwrap_or_else(PoisonError::into_inner).hand_in(run, outcome);
        }
    };
    thread::scope(|scope| {
        for _ in 0..effort.threads {
            scope.spawn(work);
        }
    });
    ordered.into_inner().unwrap_or_else(PoisonError::into_inner).finish(effort)
}

/// [`search`] on this thread only, with what runs at hand.
pub fn search_here(
    strategy: &Strategy,
    effort: Effort,
    run: &mut dyn FnMut(&mut dyn Chooser) -> Outcome,
    watch: &mut dyn FnMut(u64, &Outcome),
) -> Searched {
    let begun = Instant::now();
    let mut ordered = Ordered::new(effort, watch);
    for number in effort.first..effort.end() {
        if ordered.searched.found.is_some() || effort.is_over(begun) {
            break;
        }
        let outcome = run(&mut *strategy.chooser(number));
        ordered.hand_in(number, outcome);
    }
    ordered.finish(effort)
}

#[cfg(test)]
mod tests;
