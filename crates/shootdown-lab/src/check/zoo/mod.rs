//! The bug zoo: historical bugs, found with their step broken, not found with it whole.
//!
//! # The problem
//! Whoever says that a search finds bugs should show that it finds those that were there. Each
//! [`Scenario`] is a bug that some kernel or processor had, as a small [program](Scenario::program)
//! of the model kernel in which the faulty step is a mutant: of the kernel and the port
//! ([`KernelMutant`](shootdown_machine::hunt::kernel::KernelMutant)), or of the library
//! ([`Mutant`](shootdown::mutant::Mutant)). Devices have a model kernel and a library of their own,
//! with steps of their own ([`Mistake`](shootdown_machine::hunt::dma::Mistake),
//! [`DmaMutant`](shootdown_machine::hunt::dma::DmaMutant)).
//!
//! # The protocol
//! 1. With the step broken, schedules by chance until a promise breaks. It must be one of those
//!    that the scenario [names](Scenario::breaks).
//! 2. With the step whole, the same adversary: every schedule where the world is small
//!    ([`Whole::All`]), else at least ten times as many as it took to find the bug, and never fewer
//!    than the scenario says.
//! 3. The whole run must have come to the dangerous place ([`Scenario::seen`]).
//!
//! | module | holds |
//! |---|---|
//! | [`scenario`] | what a scenario is |
//! | [`frames`] | pages freed, moved or copied while an old translation lives |
//! | [`tables`] | table pages freed or reused too early; sizes and depths |
//! | [`targets`] | who is told, and who has answered |
//! | [`tags`] | entries under the wrong tag, or under one that was used before |
//! | [`broadcast`] | machine-wide tags and broadcasts: who is reached, and tags that come back |
//! | [`waits`] | deadlocks, lost answers, handlers, CPUs that come and go |
//! | [`hardware`] | defects of processors, and what a port owes to the hardware |
//! | [`devices`] | memory of devices, behind IOMMUs |

pub mod broadcast;
pub mod devices;
pub mod frames;
pub mod hardware;
pub mod scenario;
pub mod tables;
pub mod tags;
pub mod targets;
pub mod waits;

use std::time::{Duration, Instant};

use shootdown_machine::hunt::schedule::{
    Effort, Freezing, Limits, Reduction, Strategy, exhaustive, search_here,
};
use shootdown_machine::hunt::{End, Outcome, Power};

use self::scenario::{Scenario, Stage, Whole};
use super::hunted::{Hunt, Scene, Seen, named};
use super::steps::Planted;
use super::{Check, CheckResult, Checks, Failure, Kind, Settings, Verdict, adversary, seed_for};
use crate::progress::Progress;

/// Every scenario.
pub fn all() -> impl Iterator<Item = &'static Scenario> {
    [
        frames::ALL,
        tables::ALL,
        targets::ALL,
        tags::ALL,
        broadcast::ALL,
        waits::ALL,
        hardware::ALL,
        devices::ALL,
    ]
    .into_iter()
    .flatten()
}

/// A check for each.
#[must_use]
pub fn checks() -> Checks {
    all().map(|scenario| -> Box<dyn Check> { Box::new(Bug::new(scenario)) }).collect()
}

/// The most schedules with the step broken: what takes longer is too well hidden in its program.
const MOST: u64 = 20_000;
/// Schedules of the whole for each that it took to find the bug.
const FACTOR: u64 = 10;
/// Schedules of one strategy before it is the other's turn.
const TURN: u64 = 16;
/// Changes of priority plus one: most of these bugs need two or three steps in one order.
const DEPTH: u32 = 3;
/// The most runs of an exploration of every schedule: seconds. A world that needs more is not
/// small.
const RUNS: u64 = 200_000;

/// One scenario, both ways.
struct Bug {
    scenario: &'static Scenario,
    name: String,
    line: String,
    broken: Stage,
    whole: Stage,
}

impl Bug {
    fn new(scenario: &'static Scenario) -> Self {
        let name = format!("{}/{}", Kind::Zoo.word(), scenario.name);
        let line = format!("{} [{}, {}]", scenario.wrong, scenario.source, scenario.year);
        let stage = |broken| Stage::new(scenario, &name, broken);
        let (broken, whole) = (stage(true), stage(false));
        Self { scenario, name, line, broken, whole }
    }

    /// What should be observed of the broken step.
    fn expected(&self) -> String {
        let names: Vec<&str> = self.scenario.breaks.iter().map(|i| i.name()).collect();
        names.join(" or ")
    }

    fn breaks_as_expected(&self, end: &End) -> bool {
        matches!(end, End::Violation(b) if self.scenario.breaks.contains(&b.invariant))
    }
}

/// A search, as far as it went.
#[derive(Default)]
struct Searched {
    runs: u64,
    steps: u64,
    cut: u64,
    seen: Seen,
    found: Option<Outcome>,
    /// Distinct states and depth, and whether all was seen.
    explored: Option<(u64, u64, Result<(), String>)>,
}

/// Schedules by turns at random and by priorities.
fn by_chance(hunt: &Hunt<'_>, seed: u64, runs: u64) -> Searched {
    let length = Strategy::length_of(&mut |chooser| hunt.run(chooser));
    let freezes = hunt.powers().has(Power::Preemption);
    let strategies = [Strategy::random(seed), Strategy::pct(seed, DEPTH, length)]
        .map(|s| if freezes { s.freezing(Freezing::USUAL) } else { s });
    let mut all = Searched::default();
    while all.runs < runs && all.found.is_none() {
        let turn = all.runs / TURN;
        let effort = Effort {
            first: turn / 2 * TURN,
            runs: TURN.min(runs - all.runs),
            ..Effort::runs(TURN)
        };
        let part = search_here(
            &strategies[(turn % 2) as usize],
            effort,
            &mut |chooser| hunt.run(chooser),
            &mut |_, outcome| all.seen.add(outcome),
        );
        all.runs += part.runs;
        all.steps += part.steps;
        all.cut += part.cut;
        all.found = part.found.map(|found| found.outcome);
    }
    all
}

/// Every schedule.
fn of_all(hunt: &Hunt<'_>) -> Searched {
    let limits = Limits { runs: RUNS, ..Limits::default() };
    let mut all = Searched::default();
    let report =
        exhaustive(limits, Reduction::FULL, &mut |chooser| hunt.run(chooser), &mut |_, outcome| {
            all.seen.add(outcome);
            all.steps += outcome.steps;
        });
    let complete = if report.complete() {
        Ok(())
    } else if report.irregular > 0 {
        Err(format!("{} steps touched more than they said", report.irregular))
    } else {
        Err(report.ended.to_string())
    };
    all.explored = Some((report.states, report.depth as u64, complete));
    all.runs = report.runs;
    all.found = report.found.map(|found| found.outcome);
    all
}

/// A bug that was found.
struct Found {
    /// The search, which ended with it.
    searched: Searched,
    how: End,
    /// Steps of the schedule that broke the promise.
    steps: u64,
    took: Duration,
    example: Failure,
}

impl Bug {
    /// Searches with the step broken.
    fn hunt_broken(&self, settings: &Settings, seed: u64) -> Result<Found, Box<CheckResult>> {
        let _planted = Planted::new(self.scenario.step.of_library());
        let hunt = Hunt::new(&self.broken, settings, None);
        let most = settings.runs.unwrap_or(MOST);
        let begun = Instant::now();
        let mut searched = by_chance(&hunt, seed, most);
        let took = begun.elapsed();
        let Some(outcome) = searched.found.take() else {
            let without = self.scenario.step.name();
            let observed = format!("nothing broken in {} schedules with {without}", searched.runs);
            let verdict = if most < MOST { Verdict::Unknown } else { Verdict::Fail };
            return Err(Box::new(self.result(&searched, observed, verdict)));
        };
        let example = hunt.failure(&outcome);
        if !self.breaks_as_expected(&outcome.end) {
            let mut result = self.result(&searched, named(&outcome.end), Verdict::Fail);
            result.failure = Some(example);
            return Err(Box::new(result));
        }
        Ok(Found { searched, steps: outcome.steps, how: outcome.end, took, example })
    }

    /// Searches with the step whole.
    fn hunt_whole(&self, settings: &Settings, seed: u64, found_after: u64) -> CheckResult {
        let hunt = Hunt::new(&self.whole, settings, None);
        let searched = match self.scenario.whole {
            Whole::All => of_all(&hunt),
            Whole::Chance(least) => by_chance(&hunt, seed, least.max(FACTOR * found_after)),
        };
        let (observed, verdict) = match (&searched.found, &searched.explored) {
            (Some(found), _) => (format!("{}, whole", named(&found.end)), Verdict::Fail),
            (None, Some((_, _, Err(why)))) => (format!("whole UNKNOWN: {why}"), Verdict::Unknown),
            (None, Some((states, _, Ok(())))) => {
                (format!("whole clean in all {states} states"), Verdict::Pass)
            }
            (None, None) if searched.cut > 0 => {
                let cut = searched.cut;
                (format!("whole UNKNOWN: {cut} runs were cut at their limit"), Verdict::Unknown)
            }
            (None, None) => (format!("whole clean in {} schedules", searched.runs), Verdict::Pass),
        };
        let mut result = self.result(&searched, observed, verdict);
        result.failure = searched.found.as_ref().map(|found| hunt.failure(found));
        if let Some((states, depth, _)) = searched.explored {
            result.states = Some(states);
            result.depth = Some(depth);
        }
        result.requiring(searched.seen.of(self.scenario.seen))
    }

    fn result(&self, searched: &Searched, observed: String, verdict: Verdict) -> CheckResult {
        let mut result = CheckResult::new(self.expected(), observed, verdict);
        result.runs = searched.runs;
        result.steps = Some(searched.steps);
        result
    }

    fn both_ways(&self, settings: &Settings) -> CheckResult {
        let seed = seed_for(settings.seed, &self.name);
        let found = match self.hunt_broken(settings, seed) {
            Ok(found) => found,
            Err(result) => return *result,
        };
        let Found { searched, how, steps, took, example } = found;
        let mut result = self.hunt_whole(settings, seed, searched.runs);
        let schedules = if searched.runs == 1 { "schedule" } else { "schedules" };
        let (how, after) = (named(&how), searched.runs);
        result.observed =
            format!("{how} after {after} {schedules}, in {steps} steps; {}", result.observed);
        result.runs += searched.runs;
        result.steps = result.steps.map(|whole| whole + searched.steps);
        result.found_in = Some(took);
        result.example = Some(example);
        result
    }
}

impl Check for Bug {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> Kind {
        Kind::Zoo
    }

    fn line(&self) -> &str {
        &self.line
    }

    fn scene(&self) -> Option<&dyn Scene> {
        Some(&self.whole)
    }

    fn broken(&self, step: &str) -> Option<&dyn Scene> {
        (self.broken.missing() == Some(step)).then_some(&self.broken)
    }

    fn run(&self, settings: &Settings, _: &Progress) -> CheckResult {
        let mut result = self.both_ways(settings);
        let powers = settings.adversary.applied_to(self.scenario.powers);
        result.bounds = Some(format!("{} ({})", self.scenario.program, adversary::write(powers)));
        result.seed = Some(settings.seed);
        result
    }
}

#[cfg(test)]
mod tests;
