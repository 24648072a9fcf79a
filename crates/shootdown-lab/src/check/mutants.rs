//! `shootdown check mutants`: every step of the library is missed by someone.
//!
//! The libraries declare a mutant for each of their steps ([`Removed::all`]): a fence, an ordering,
//! a row of a decision table, a filter, a count, an acknowledgement, a wait, a quarantine, a
//! reference. A mutant has one of three homes:
//!
//! | home | what the check does |
//! |---|---|
//! | a [`scene`] | hunts it with the step taken out until something breaks, then with the step in place |
//! | a test of the model checker ([`elsewhere`]), or, of the library of devices, of its crate | says which |
//! | an argument in the table of mutants why nothing breaks | hunts every scene a little, to see that nothing does |
//!
//! A mutant is *killed* when some schedule of its scene breaks a promise, panics or never ends with
//! the step taken out, and none of at least twice as many does with it in place, under the same
//! adversary. Where several seeds are asked for (`--seeds`), it may take a tenth of the schedules
//! that are tried under each of them. What survives, or is killed later, fails the check; whether
//! its scene ever came by the missing step is said too, because a scene that does not
//! proves nothing.
//!
//! | module | holds |
//! |---|---|
//! | [`port`] | a port of the library to the hunted machine, with a switch for everything |
//! | [`kit`] | what worlds are made of: spaces, tables, and what a kernel does with them |
//! | [`scene`], [`scenes`] | the worlds, and which mutants each has to kill |
//! | [`devices`] | the same of the library of devices |
//! | [`elsewhere`] | what no hunt can see, and who sees it |

pub mod devices;
pub mod elsewhere;
pub mod kit;
pub mod port;
pub mod scene;
pub mod scenes;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant};

use shootdown_machine::hunt::schedule::Strategy;
use shootdown_machine::hunt::{Chooser, End, Outcome};

use self::devices::DeviceStage;
use self::elsewhere::Elsewhere;
use self::scene::Stage;
use super::hunted::{self, Hunt, named};
use super::report::Entry;
use super::steps::{Planted, Removed};
use super::{Check, CheckResult, Checks, Failure, Kind, Settings, Verdict, seed_for};
use crate::progress::Progress;

/// Schedules of the whole library that must break nothing, at least.
const WHOLE: u64 = 500;

/// Changes of priority in schedules by priorities.
const DEPTH: u32 = 4;

/// Schedules of each scene that must break nothing without a step that is said not to matter. Most
/// mutants that have a scene die within so many.
const EACH: u64 = 40;

/// A kill may take this part of the schedules that are tried before a mutant counts as a survivor,
/// and no more: who changes the code or the scene a little must not lose it.
const TENTH: u64 = 10;

/// What is expected of a mutant that can be killed.
const KILLED: &str = "killed";

/// What is expected of one that is said to be equivalent.
const NO_DIFFERENCE: &str = "no difference";

/// Where a mutant is dealt with.
enum Home {
    Scene(Staged),
    /// A test, in words.
    Elsewhere(String),
    /// Why nothing breaks without the step.
    Argument(&'static str),
    Nowhere,
}

/// A scene on its stage.
struct Staged {
    name: &'static str,
    runs: u64,
    stage: Box<dyn hunted::Scene>,
}

/// One mutant.
struct Missing {
    mutant: Removed,
    name: String,
    home: Home,
}

/// One check for each mutant.
#[must_use]
pub fn checks() -> Checks {
    Removed::all().map(|step| -> Box<dyn Check> { Box::new(Missing::new(step)) }).collect()
}

/// Mutants among the results: how many were killed, and who survived. `None` when there are none.
#[must_use]
pub fn summary(results: &[Entry]) -> Option<String> {
    fn of((name, _, result): &Entry) -> Option<(Removed, &CheckResult)> {
        Some((Removed::from_name(name.strip_prefix("mutants/")?)?, result))
    }
    let passes = |result: &CheckResult| result.verdict == Verdict::Pass;
    let mutants: Vec<(Removed, &CheckResult)> =
        results.iter().filter(|entry| entry.1 == Kind::Mutant.name()).filter_map(of).collect();
    let (equivalent, real): (Vec<_>, Vec<_>) =
        mutants.iter().partition(|(m, _)| m.equivalent().is_some());
    let killed = || real.iter().filter(|(_, result)| passes(result)).map(|(mutant, _)| *mutant);
    let mut words = format!("mutants: {} of {} killed", killed().count(), real.len());
    let checker = killed().filter(|m| model_checker(*m).is_some()).count();
    if checker > 0 {
        words.push_str(&format!(", {checker} of them by the model checker"));
    }
    let crates = killed().filter(|m| unit_test(*m).is_some()).count();
    if crates > 0 {
        words.push_str(&format!(", {crates} of them by tests of their crate"));
    }
    if !equivalent.is_empty() {
        words.push_str(&format!("; {} argued to be equivalent", equivalent.len()));
    }
    for (mutant, result) in real.iter().filter(|(_, result)| !passes(result)) {
        let (name, place, missing) = (mutant.name(), mutant.place(), mutant.sentence());
        let what = if result.observed.starts_with(KILLED) { "killed late" } else { "survivor" };
        words.push_str(&format!("\n{what}: {name} ({place}): {missing}"));
    }
    (!mutants.is_empty()).then_some(words)
}

/// The test of the model checker that kills it, if no scene does.
fn model_checker(mutant: Removed) -> Option<String> {
    match mutant {
        Removed::Core(mutant) => {
            let Elsewhere { file, test, .. } = elsewhere::of(mutant)?;
            Some(format!("the model checker: `{test}` in verify/core/tests/{file}"))
        }
        Removed::Dma(mutant) => {
            let by = mutant.killed_by();
            (devices::of(mutant).is_none() && by.contains("model checker")).then_some(by)
        }
    }
}

/// The test of its crate that kills it, if neither a scene nor the model checker does.
fn unit_test(mutant: Removed) -> Option<String> {
    let Removed::Dma(dma) = mutant else { return None };
    let here = devices::of(dma).is_some() || model_checker(mutant).is_some();
    (!here && dma.equivalent().is_none()).then(|| dma.killed_by())
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
    /// What broke in the last one, and how it looks, if that was asked for.
    broke: Option<(End, Option<Failure>)>,
    took: Duration,
}

/// Is a schedule shown that breaks something?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    Schedule,
    Nothing,
}

/// Runs schedules, with a step taken out or not, until something breaks.
fn attempt(
    missing: Option<Removed>,
    hunt: &Hunt<'_>,
    schedules: &Schedules,
    most: u64,
    show: Show,
) -> Tried {
    let _planted = Planted::new(missing);
    let mut tried = Tried::default();
    let begun = Instant::now();
    for run in 0..most {
        let outcome = hunt.run(&mut *schedules.chooser(run));
        tried.runs += 1;
        tried.steps += outcome.steps;
        if objects(&outcome) {
            tried.took = begun.elapsed();
            let failure = (show == Show::Schedule).then(|| hunt.failure(&outcome));
            tried.broke = Some((outcome.end, failure));
            break;
        }
    }
    tried.reached = Removed::reached();
    tried
}

/// How many schedules it took to kill a mutant, under each seed.
#[derive(Default)]
struct Kill(Vec<u64>);

impl Kill {
    fn takes(&mut self, schedules: u64) {
        let at = self.0.partition_point(|n| *n <= schedules);
        self.0.insert(at, schedules);
    }

    fn most(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0[..] {
            [schedules] => write!(f, "{schedules} schedules"),
            all => {
                let (seeds, median, most) = (all.len(), all[all.len() / 2], self.most());
                write!(f, "{median} schedules (median of {seeds} seeds), {most} at most")
            }
        }
    }
}

impl Staged {
    fn of(stage: Stage) -> Self {
        let scene = stage.scene;
        Self { name: scene.name, runs: scene.runs, stage: Box::new(stage) }
    }
}

impl Missing {
    fn new(mutant: Removed) -> Self {
        let name = format!("{}/{}", Kind::Mutant.word(), mutant.name());
        let home = match (mutant.equivalent(), Self::scene(mutant, &name)) {
            (Some(because), _) => Home::Argument(because),
            (_, Some(staged)) => Home::Scene(staged),
            _ => match model_checker(mutant).or(unit_test(mutant)) {
                Some(test) => Home::Elsewhere(test),
                None => Home::Nowhere,
            },
        };
        Self { mutant, name, home }
    }

    fn scene(mutant: Removed, check: &str) -> Option<Staged> {
        match mutant {
            Removed::Core(mutant) => {
                let scene = scenes::all().find(|scene| scene.kills.contains(&mutant))?;
                Some(Staged::of(Stage::new(scene, check)))
            }
            Removed::Dma(mutant) => {
                let scene = devices::of(mutant)?;
                let stage = Box::new(DeviceStage::new(scene, check));
                Some(Staged { name: scene.name, runs: scene.runs, stage })
            }
        }
    }

    fn seed(&self, settings: &Settings) -> u64 {
        seed_for(settings.seed, self.mutant.name())
    }

    /// Hunts the scene without the step, under each seed, and with it.
    fn hunted(&self, staged: &Staged, settings: &Settings) -> CheckResult {
        let name = staged.name;
        let hunt = Hunt::new(&*staged.stage, settings, None);
        let most = settings.runs.unwrap_or(staged.runs);
        let (mut runs, mut steps) = (0, 0);
        let result = |observed: String, verdict, runs, steps| {
            let mut result = CheckResult::new(KILLED, observed, verdict);
            (result.runs, result.steps) = (runs, Some(steps));
            result.seed = Some(settings.seed);
            result
        };
        let mut kill = Kill::default();
        let mut first = None;
        for n in 0..settings.seeds.unwrap_or(1) {
            let seed = settings.seed.wrapping_add(n);
            let schedules = Schedules::new(seed_for(seed, self.mutant.name()), &hunt);
            let show = if n == 0 { Show::Schedule } else { Show::Nothing };
            let without = attempt(Some(self.mutant), &hunt, &schedules, most, show);
            (runs, steps) = (runs + without.runs, steps + without.steps);
            let Some((end, example)) = without.broke else {
                let vain = if without.reached { "" } else { ", which never come by the step" };
                let under = if n == 0 { String::new() } else { format!(" under seed {seed}") };
                let observed =
                    format!("survives {} schedules of `{name}`{under}{vain}", without.runs);
                return result(observed, Verdict::Fail, runs, steps);
            };
            kill.takes(without.runs);
            if n > 0 {
                continue;
            }
            let least = WHOLE.max(2 * without.runs);
            let whole = attempt(None, &hunt, &schedules, least, Show::Schedule);
            (runs, steps) = (runs + whole.runs, steps + whole.steps);
            if let Some((end, failure)) = whole.broke {
                let observed = format!("with nothing missing: {} in `{name}`", named(&end));
                let mut result = result(observed, Verdict::Fail, runs, steps);
                result.failure = failure;
                return result;
            }
            first = Some((end, example, without.took, whole.runs));
        }
        let Some((end, example, took, whole)) = first else {
            return CheckResult::new(KILLED, "no seed was tried", Verdict::Fail);
        };
        let bar = staged.runs / TENTH;
        let (late, verdict) = if settings.seeds.is_some() && kill.most() > bar {
            (format!(" (more than {bar})"), Verdict::Fail)
        } else {
            (String::new(), Verdict::Pass)
        };
        let observed = format!(
            "{KILLED} in `{name}`: {}, after {kill}{late}; not in {whole} with the step in place",
            named(&end),
        );
        let mut result = result(observed, verdict, runs, steps);
        (result.example, result.found_in) = (example, Some(took));
        result
    }

    /// Hunts every scene a little without the step, which is said not to matter.
    fn argued(&self, because: &str, settings: &Settings) -> CheckResult {
        let (mut runs, mut steps, mut reached) = (0, 0, false);
        for scene in scenes::all() {
            let stage = Stage::new(scene, &self.name);
            let hunt = Hunt::new(&stage, settings, None);
            let schedules = Schedules::new(self.seed(settings), &hunt);
            let tried = attempt(Some(self.mutant), &hunt, &schedules, EACH, Show::Schedule);
            (runs, steps, reached) =
                (runs + tried.runs, steps + tried.steps, reached || tried.reached);
            if let Some((end, failure)) = tried.broke {
                let observed = format!("{} in `{}`", named(&end), scene.name);
                let mut result = CheckResult::new(NO_DIFFERENCE, observed, Verdict::Fail);
                result.failure = failure;
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
            Home::Scene(staged) => Some(&*staged.stage),
            _ => None,
        }
    }

    fn run(&self, settings: &Settings, _: &Progress) -> CheckResult {
        match &self.home {
            Home::Scene(staged) => self.hunted(staged, settings),
            Home::Argument(because) => self.argued(because, settings),
            Home::Elsewhere(test) => {
                CheckResult::new(KILLED, format!("{KILLED} by {test}"), Verdict::Pass)
            }
            Home::Nowhere => CheckResult::new(KILLED, "nobody looks for it", Verdict::Fail),
        }
    }
}
