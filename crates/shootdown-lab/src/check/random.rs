//! Programs by chance, schedules by chance.
//!
//! A hunt takes one program after the other, and tries each with a few schedules: half of the
//! programs with random schedules, half with priorities (PCT), which find bugs that need a rare
//! order of few events. The first failing run ends it. A run that was cut at its limit of steps
//! makes the answer UNKNOWN: it may have been on its way to a violation.

use shootdown_machine::hunt::Power;
use shootdown_machine::hunt::schedule::{Effort, Freezing, Searched, Strategy, search_here};

use super::hunted::{Hunt, Scene, Seen, named};
use super::{Check, CheckResult, Failure, Kind, Settings, Verdict, seed_for};
use crate::experiments::chance;
use crate::progress::Progress;

/// Schedules of one program.
const SCHEDULES: u64 = 32;
/// The depth of bugs that priorities are meant to find: three events that must come in one order.
/// Most of the zoo's are of depth 2 or 3.
const DEPTH: u32 = 3;

/// What chance found in some programs.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Schedules tried.
    pub runs: u64,
    /// Steps in all of them.
    pub steps: u64,
    /// Schedules cut at their limit.
    pub cut: u64,
    /// Witnesses reached.
    pub seen: Seen,
    /// What broke, and how.
    pub broken: Option<(String, Failure)>,
}

impl Round {
    /// Takes in what came after.
    pub fn join(&mut self, next: Self) {
        self.runs += next.runs;
        self.steps += next.steps;
        self.cut += next.cut;
        self.seen.join(&next.seen);
        self.broken = self.broken.take().or(next.broken);
    }
}

/// Tries one program of a scene with `schedules` schedules.
#[must_use]
pub fn program(scene: &dyn Scene, settings: &Settings, seed: u64, schedules: u64) -> Round {
    let hunt = Hunt::new(scene, settings, Some(seed));
    let mut strategy = if seed & 1 == 0 {
        Strategy::random(seed)
    } else {
        let length = Strategy::length_of(&mut |chooser| hunt.run(chooser));
        Strategy::pct(seed, DEPTH, length)
    };
    if hunt.powers().has(Power::Preemption) {
        strategy = strategy.freezing(Freezing::USUAL);
    }
    let mut seen = Seen::default();
    let Searched { runs, steps, cut, found, .. } = search_here(
        &strategy,
        Effort::runs(schedules),
        &mut |chooser| hunt.run(chooser),
        &mut |_, outcome| seen.add(outcome),
    );
    let broken = found.map(|found| (named(&found.outcome.end), hunt.failure(&found.outcome)));
    Round { runs, steps, cut, seen, broken }
}

/// A scene under random programs and schedules.
pub struct Random<S> {
    /// What is hunted.
    pub scene: S,
    /// One line for the list.
    pub line: String,
    /// Schedules, unless the user says how many.
    pub runs: u64,
}

impl<S: Scene> Check for Random<S> {
    fn name(&self) -> &str {
        self.scene.name()
    }

    fn kind(&self) -> Kind {
        Kind::Random
    }

    fn line(&self) -> &str {
        &self.line
    }

    fn scene(&self) -> Option<&dyn Scene> {
        Some(&self.scene)
    }

    fn run(&self, settings: &Settings, _: &Progress) -> CheckResult {
        let seed = seed_for(settings.seed, self.name());
        let wanted = settings.runs.unwrap_or(self.runs);
        let mut all = Round::default();
        let mut index = 0;
        while all.runs < wanted && all.broken.is_none() {
            let schedules = SCHEDULES.min(wanted - all.runs);
            all.join(program(&self.scene, settings, chance(seed, index), schedules));
            index += 1;
        }
        let mut result = conclude(&all, self.scene.witnesses());
        result.seed = Some(settings.seed);
        result.bounds = Some(format!("{index} programs, {SCHEDULES} schedules each"));
        result
    }
}

/// What the figures mean.
#[must_use]
pub fn conclude(all: &Round, witnesses: &[&'static str]) -> CheckResult {
    const EXPECTED: &str = "no promise broken";
    let mut result = match &all.broken {
        Some((what, failure)) => {
            let mut result = CheckResult::new(EXPECTED, what, Verdict::Fail);
            result.failure = Some(failure.clone());
            result
        }
        None if all.cut > 0 => {
            let observed = format!("UNKNOWN: {} runs were cut at their limit of steps", all.cut);
            CheckResult::new(EXPECTED, observed, Verdict::Unknown)
        }
        None => CheckResult::new(EXPECTED, EXPECTED, Verdict::Pass),
    };
    result.runs = all.runs;
    result.steps = Some(all.steps);
    result.requiring(all.seen.of(witnesses))
}
