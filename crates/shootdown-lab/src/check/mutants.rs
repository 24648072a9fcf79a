//! `shootdown check mutants`: every step of the library is missed by someone.
//!
//! The library declares a mutant for each of its steps ([`Mutant::ALL`]): a fence, an ordering, a row of a
//! decision table, a filter, a count, an acknowledgement, a wait, a quarantine, a reference. A mutant has
//! one of three homes:
//!
//! | home | what the check does |
//! |---|---|
//! | a [`scene`] | hunts it with the step taken out until something breaks, then with the step in place |
//! | a test of the model checker ([`elsewhere`]) | says which |
//! | an argument in the table of mutants why nothing breaks | hunts every scene a little, to see that nothing does |
//!
//! A mutant is *killed* when some schedule of its scene breaks a promise, panics or never ends with the step
//! taken out, and none of at least twice as many does with it in place, under the same adversary. What
//! survives fails the check; whether its scene ever came by the missing step is said too, because a scene
//! that does not proves nothing.
//!
//! | module | holds |
//! |---|---|
//! | [`port`] | a port of the library to the hunted machine, with a switch for everything |
//! | [`kit`] | what worlds are made of: spaces, tables, and what a kernel does with them |
//! | [`scene`], [`scenes`] | the worlds, and which mutants each has to kill |
//! | [`elsewhere`] | what no hunt can see, and who sees it |

pub mod elsewhere;
pub mod kit;
pub mod port;
pub mod scene;
pub mod scenes;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use shootdown::mutant::{self, Mutant};
use shootdown_machine::hunt::schedule::Strategy;
use shootdown_machine::hunt::{Chooser, End, Outcome};

use self::elsewhere::Elsewhere;
use self::scene::Stage;
use super::hunted::{self, Hunt, Planted, named};
use super::report::Entry;
use super::{Check, CheckResult, Checks, Failure, Kind, Settings, Verdict, seed_for};
use crate::progress::Progress;

/// Schedules of the whole library that must break nothing, at least.
const WHOLE: u64 = 500;

/// Changes of priority in schedules by priorities.
const DEPTH: u32 = 4;

/// Schedules of each scene that must break nothing without a step that is said not to matter. Most mutants
/// that have a scene die within so many.
const EACH: u64 = 40;

/// What is expected of a mutant that can be killed.
const KILLED: &str = "killed";

/// What is expected of one that is said to be equivalent.
const NO_DIFFERENCE: &str = "no difference";

/// Where a mutant is dealt with.
enum Home {
    Scene(Stage),
    Elsewhere(&'static Elsewhere),
    /// Why nothing breaks without the step.
    Argument(&'static str),
    Nowhere,
}

/// One mutant.
struct Missing {
    mutant: Mutant,
    name: String,
    home: Home,
}

/// One check for each mutant.
#[must_use]
pub fn checks() -> Checks {
    Mutant::ALL.iter().map(|m| -> Box<dyn Check> { Box::new(Missing::new(*m)) }).collect()
}

/// Mutants among the results: how many were killed, and who survived. `None` when there are none.
#[must_use]
pub fn summary(results: &[Entry]) -> Option<String> {
    let of = |(name, _, result): &Entry| {
        let mutant = Mutant::from_name(name.strip_prefix("mutants/")?)?;
        Some((mutant, result.verdict == Verdict::Pass))
    };
    let mutants: Vec<(Mutant, bool)> =
        results.iter().filter(|entry| entry.1 == Kind::Mutant.name()).filter_map(of).collect();
    let (equivalent, real): (Vec<_>, Vec<_>) =
        mutants.iter().partition(|(m, _)| m.equivalent().is_some());
    let killed = real.iter().filter(|(_, killed)| *killed);
    let elsewhere = killed.clone().filter(|(m, _)| elsewhere::of(*m).is_some()).count();
    let mut words = format!("mutants: {} of {} killed", killed.count(), real.len());
    if elsewhere > 0 {
        words.push_str(&format!(", {elsewhere} of them by the model checker"));
    }
    if !equivalent.is_empty() {
        words.push_str(&format!("; {} argued to be equivalent", equivalent.len()));
    }
    for (mutant, _) in real.iter().filter(|(_, killed)| !killed) {
        let (name, place, missing) = (mutant.name(), mutant.place(), mutant.sentence());
        words.push_str(&format!("\nsurvivor: {name} ({place}): {missing}"));
    }
    (!mutants.is_empty()).then_some(words)
}

/// Schedules by turns at random and by priorities.
struct Schedules([Strategy; 2]);

impl Schedules {
    fn new(seed: u64, hunt: &Hunt<'_>) -> Self {
        let length = Strategy::length_of(&mut |chooser| hunt.run(chooser));
        Self([Strategy::random(seed), Strategy::pct(seed, DEPTH, length)])
    }

    fn chooser(&self, run: u64) -> Box<dyn Chooser> {
        self.0[(run % 2) as usize].chooser(run / 2)
    }
}

/// Something is wrong, or nobody can tell because the run never ends.
fn objects(outcome: &Outcome) -> bool {
    outcome.end != End::Finished
}

/// Schedules of one scene.
#[derive(Default)]
struct Tried {
    runs: u64,
    steps: u64,
    /// The missing step was come by in one of them.
    reached: bool,
    /// What broke in the last one, and how it looks.
    broke: Option<(End, Failure)>,
    took: Duration,
}

/// Runs schedules, with a step taken out or not, until something breaks.
fn attempt(missing: Option<Mutant>, hunt: &Hunt<'_>, schedules: &Schedules, most: u64) -> Tried {
    let _planted = Planted::new(missing);
    let mut tried = Tried::default();
    let begun = Instant::now();
    for run in 0..most {
        let outcome = hunt.run(&mut *schedules.chooser(run));
        tried.runs += 1;
        tried.steps += outcome.steps;
        if objects(&outcome) {
            tried.took = begun.elapsed();
            tried.broke = Some((outcome.end.clone(), hunt.failure(&outcome)));
            break;
        }
    }
    tried.reached = mutant::reached();
    tried
}

impl Missing {
    fn new(mutant: Mutant) -> Self {
        let name = format!("{}/{}", Kind::Mutant.word(), mutant.name());
        let scene = scenes::all().find(|scene| scene.kills.contains(&mutant));
        let home = match (mutant.equivalent(), scene, elsewhere::of(mutant)) {
            (Some(because), ..) => Home::Argument(because),
            (_, Some(scene), _) => Home::Scene(Stage::new(scene, &name)),
            (.., Some(elsewhere)) => Home::Elsewhere(elsewhere),
            _ => Home::Nowhere,
        };
        Self { mutant, name, home }
    }

    fn seed(&self, settings: &Settings) -> u64 {
        seed_for(settings.seed, self.mutant.name())
    }

    /// Hunts the scene without the step, and with it.
    fn hunted(&self, stage: &Stage, settings: &Settings) -> CheckResult {
        let name = stage.scene.name;
        let hunt = Hunt::new(stage, settings, None);
        let schedules = Schedules::new(self.seed(settings), &hunt);
        let most = settings.runs.unwrap_or(stage.scene.runs);
        let without = attempt(Some(self.mutant), &hunt, &schedules, most);
        let result = |observed, verdict, runs, steps| {
            let mut result = CheckResult::new(KILLED, observed, verdict);
            (result.runs, result.steps) = (runs, Some(steps));
            result.seed = Some(settings.seed);
            result
        };
        let Some((end, failure)) = without.broke else {
            let vain = if without.reached { "" } else { ", which never come by the step" };
            let observed = format!("survives {} schedules of `{name}`{vain}", without.runs);
            return result(observed, Verdict::Fail, without.runs, without.steps);
        };
        let whole = attempt(None, &hunt, &schedules, WHOLE.max(2 * without.runs));
        let (runs, steps) = (without.runs + whole.runs, without.steps + whole.steps);
        if let Some((end, failure)) = whole.broke {
            let observed = format!("with nothing missing: {} in `{name}`", named(&end));
            let mut result = result(observed, Verdict::Fail, runs, steps);
            result.failure = Some(failure);
            return result;
        }
        let observed = format!(
            "{KILLED} in `{name}`: {}, after {} schedules; not in {} with the step in place",
            named(&end),
            without.runs,
            whole.runs,
        );
        let mut result = result(observed, Verdict::Pass, runs, steps);
        result.example = Some(failure);
        result.found_in = Some(without.took);
        result
    }

    /// Hunts every scene a little without the step, which is said not to matter.
    fn argued(&self, because: &str, settings: &Settings) -> CheckResult {
        let (mut runs, mut steps, mut reached) = (0, 0, false);
        for scene in scenes::all() {
            let stage = Stage::new(scene, &self.name);
            let hunt = Hunt::new(&stage, settings, None);
            let schedules = Schedules::new(self.seed(settings), &hunt);
            let tried = attempt(Some(self.mutant), &hunt, &schedules, EACH);
            (runs, steps, reached) =
                (runs + tried.runs, steps + tried.steps, reached || tried.reached);
            if let Some((end, failure)) = tried.broke {
                let observed = format!("{} in `{}`", named(&end), scene.name);
                let mut result = CheckResult::new(NO_DIFFERENCE, observed, Verdict::Fail);
                result.failure = Some(failure);
                return result;
            }
        }
        let seen = if reached { "" } else { ", none of which comes by" };
        let observed =
            format!("{NO_DIFFERENCE} in {runs} schedules of all scenes{seen}. {because}");
        let mut result = CheckResult::new(NO_DIFFERENCE, observed, Verdict::Pass);
        (result.runs, result.steps) = (runs, Some(steps));
        result.seed = Some(settings.seed);
        result
    }
}

impl Check for Missing {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> Kind {
        Kind::Mutant
    }

    fn line(&self) -> &str {
        self.mutant.sentence()
    }

    fn scene(&self) -> Option<&dyn hunted::Scene> {
        match &self.home {
            Home::Scene(stage) => Some(stage),
            _ => None,
        }
    }

    fn run(&self, settings: &Settings, _: &Progress) -> CheckResult {
        match &self.home {
            Home::Scene(stage) => self.hunted(stage, settings),
            Home::Argument(because) => self.argued(because, settings),
            Home::Elsewhere(Elsewhere { file, test, .. }) => {
                let observed = format!("{KILLED} by the model checker: `{test}` in tests/{file}");
                CheckResult::new(KILLED, observed, Verdict::Pass)
            }
            Home::Nowhere => CheckResult::new(KILLED, "nobody looks for it", Verdict::Fail),
        }
    }
}
