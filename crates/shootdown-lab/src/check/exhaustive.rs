//! Every schedule of a small world.
//!
//! The answer is a pass only when the exploration was complete: no limit reached, no schedule cut,
//! no footprint found wrong, and every witness reached.

use std::time::{Duration, Instant};

use shootdown_machine::hunt::schedule::{
    Limits, Random, Reduction, Replay, Report, Rng, exhaustive,
};
use shootdown_machine::hunt::{Outcome, Sharing};

use super::hunted::{Hunt, Scene, Seen, named};
use super::{Check, CheckResult, Failure, Kind, Settings, Verdict};
use crate::progress::Progress;

/// A scene under all of its schedules.
pub struct Exhaustive<S> {
    /// What is hunted.
    pub scene: S,
    /// One line for the list.
    pub line: String,
    /// The bounds under which the answer holds, in words.
    pub bounds: String,
    /// Small enough for the default set.
    pub small: bool,
}

/// The longest an exploration may take: who wants more chooses a smaller world.
const LONGEST: Duration = Duration::from_secs(600);

/// Runs by chance that show which words are shared, before the search begins.
const LEARNING: u64 = 500;

/// Explores all schedules; `leaves_out`: but for steps that nobody could notice. Also tells what
/// was seen in them, and the steps of all.
fn explore(hunt: &Hunt<'_>, limits: Limits, leaves_out: bool) -> (Report, Seen, u64) {
    let mut sharing = leaves_out.then(Sharing::learning);
    if let Some(sharing) = &mut sharing {
        for n in 0..LEARNING {
            hunt.run_sharing(&mut Random::new(Rng::of_run(0, n)), sharing);
        }
    }
    let begun = Instant::now();
    loop {
        let (mut seen, mut steps) = (Seen::default(), 0);
        let left = limits.time.map(|time| time.saturating_sub(begun.elapsed()));
        if let Some(sharing) = &mut sharing {
            sharing.has_learnt();
        }
        let report = exhaustive(
            Limits { time: left, ..limits },
            Reduction::FULL,
            &mut |chooser| match &mut sharing {
                // The search is worth nothing: a run that asks it nothing ends it.
                Some(sharing) if sharing.has_grown() => {
                    hunt.run_sharing(&mut Replay::new(&[]), sharing)
                }
                Some(sharing) => hunt.run_sharing(chooser, sharing),
                None => hunt.run(chooser),
            },
            &mut |_, outcome| {
                seen.add(outcome);
                steps += outcome.steps;
            },
        );
        if !sharing.as_ref().is_some_and(Sharing::has_grown) {
            return (report, seen, steps);
        }
    }
}

/// What a failing schedule says. One that has left out steps is no schedule of the whole world:
/// there, another one is looked for by chance that breaks something.
fn failure(hunt: &Hunt<'_>, scene: &impl Scene, found: &Outcome) -> Option<Failure> {
    if !scene.leaves_out_private_steps() {
        return Some(hunt.failure(found));
    }
    let broken = (0..CHANCES).find_map(|n| {
        let outcome = hunt.run(&mut Random::new(Rng::of_run(0, n)));
        outcome.end.is_failure().then_some(outcome)
    });
    broken.map(|outcome| hunt.failure(&outcome))
}

/// Schedules that are tried to show a failure.
const CHANCES: u64 = 20_000;

impl<S: Scene> Check for Exhaustive<S> {
    fn name(&self) -> &str {
        self.scene.name()
    }

    fn kind(&self) -> Kind {
        Kind::Exhaustive
    }

    fn line(&self) -> &str {
        &self.line
    }

    fn by_default(&self) -> bool {
        self.small
    }

    fn scene(&self) -> Option<&dyn Scene> {
        Some(&self.scene)
    }

    fn run(&self, settings: &Settings, _: &Progress) -> CheckResult {
        const EXPECTED: &str = "no promise broken in any schedule";
        let hunt = Hunt::new(&self.scene, settings, None);
        let limits = Limits {
            runs: settings.runs.unwrap_or(u64::MAX),
            time: Some(LONGEST),
            ..Limits::default()
        };
        let (report, seen, steps) = explore(&hunt, limits, self.scene.leaves_out_private_steps());
        let mut result = if let Some(found) = &report.found {
            let mut result = CheckResult::new(EXPECTED, named(&found.outcome.end), Verdict::Fail);
            result.failure = failure(&hunt, &self.scene, &found.outcome);
            result
        } else if report.complete() {
            CheckResult::new(EXPECTED, EXPECTED, Verdict::Pass)
        } else if report.irregular > 0 {
            let observed =
                format!("UNKNOWN: {} steps touched more than they said", report.irregular);
            CheckResult::new(EXPECTED, observed, Verdict::Unknown)
        } else {
            CheckResult::new(EXPECTED, format!("UNKNOWN: {}", report.ended), Verdict::Unknown)
        };
        result.runs = report.runs;
        result.steps = Some(steps);
        result.states = Some(report.states);
        result.depth = Some(report.depth as u64);
        result.bounds = Some(self.bounds.clone());
        result.requiring(seen.of(self.scene.witnesses()))
    }
}
