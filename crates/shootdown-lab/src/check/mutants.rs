//! `shootdown check mutants`: every step of the library is missed by someone.
//!
//! The library declares a mutant for each of its steps ([`Mutant::ALL`]): a fence, an ordering, a row of a
//! decision table, a filter, a count, an acknowledgement, a wait, a quarantine, a reference. A mutant is
//! *killed* when some schedule of a small world breaks a promise with the step taken out, and none does with
//! it in place, under the same adversary and with at least twice as many schedules. Where a step can be
//! missed after all, the table of mutants says why, and so does the check.
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

use shootdown::mutant::Mutant;
use shootdown::policy::Policy;
use shootdown_machine::hunt::schedule::Strategy;
use shootdown_machine::hunt::{Chooser, End, Outcome, Powers, World};

use self::scene::{Scene, Stage};
use super::hunted::{self, Hunt, Planted, named};
use super::{Check, CheckResult, Checks, Failure, Kind, Settings, Verdict, seed_for};
use crate::progress::Progress;

/// Schedules of the whole library that must break nothing, at least.
const WHOLE: u64 = 500;

/// Changes of priority in schedules by priorities.
const DEPTH: u32 = 4;

struct Killed {
    run: u64,
    how: String,
    failure: Failure,
}

/// One mutant.
struct Missing {
    mutant: Mutant,
    name: String,
    scenes: Vec<Stage>,
}

/// One check for each mutant.
#[must_use]
pub fn checks() -> Checks {
    Mutant::ALL
        .iter()
        .map(|mutant| {
            let name = format!("{}/{}", Kind::Mutant.word(), mutant.name());
            let scenes = scenes::all()
                .filter(|scene| scene.kills.contains(mutant))
                .map(|scene| Stage { scene, check: name.clone() })
                .collect();
            Box::new(Missing { mutant: *mutant, name, scenes }) as Box<dyn Check>
        })
        .collect()
}

impl hunted::Scene for Stage {
    fn name(&self) -> &str {
        &self.check
    }

    fn world(&self, _: u64, _: Option<Policy>) -> Box<dyn World> {
        Box::new(Self { scene: self.scene, check: String::new() })
    }

    fn powers(&self) -> Powers {
        self.scene.powers
    }

    fn steps(&self) -> u64 {
        self.scene.steps
    }
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

impl Missing {
    fn seed(&self, settings: &Settings) -> u64 {
        seed_for(settings.seed, self.mutant.name())
    }

    /// Runs the scene with the step taken out until something breaks.
    fn kill(
        &self,
        scene: &Scene,
        hunt: &Hunt<'_>,
        schedules: &Schedules,
        runs: u64,
    ) -> (Option<Killed>, u64) {
        let _planted = Planted::new(Some(self.mutant));
        let mut steps = 0;
        for run in 0..runs {
            let outcome = hunt.run(&mut *schedules.chooser(run));
            steps += outcome.steps;
            if objects(&outcome) {
                let how = format!("{} in `{}`", named(&outcome.end), scene.name);
                return (Some(Killed { run, how, failure: hunt.failure(&outcome) }), steps);
            }
        }
        (None, steps)
    }

    /// Runs the scene with everything in place.
    fn whole(
        &self,
        scene: &Scene,
        hunt: &Hunt<'_>,
        schedules: &Schedules,
        runs: u64,
    ) -> Result<u64, Box<CheckResult>> {
        let _whole = Planted::new(None);
        let mut steps = 0;
        for run in 0..runs {
            let outcome = hunt.run(&mut *schedules.chooser(run));
            steps += outcome.steps;
            if objects(&outcome) {
                let observed =
                    format!("with nothing missing: {} in `{}`", named(&outcome.end), scene.name);
                let mut result = CheckResult::new("nothing", observed, Verdict::Fail);
                result.failure = Some(hunt.failure(&outcome));
                return Err(Box::new(result));
            }
        }
        Ok(steps)
    }

    fn hunted(&self, settings: &Settings) -> CheckResult {
        let expected = format!("{} broken", self.mutant.promise().name());
        let (mut runs, mut steps) = (0, 0);
        for stage in &self.scenes {
            let scene = stage.scene;
            let hunt = Hunt::new(stage, settings, None);
            let schedules = Schedules::new(self.seed(settings), &hunt);
            let most = settings.runs.unwrap_or(scene.runs);
            let (killed, taken) = self.kill(scene, &hunt, &schedules, most);
            steps += taken;
            let Some(killed) = killed else {
                runs += most;
                continue;
            };
            runs += killed.run + 1;
            let whole = WHOLE.max(2 * (killed.run + 1));
            match self.whole(scene, &hunt, &schedules, whole) {
                Err(result) => return *result,
                Ok(taken) => steps += taken,
            }
            let observed = format!(
                "{}, after {} schedules; not in {whole} with the step in place",
                killed.how,
                killed.run + 1
            );
            let mut result = CheckResult::new(expected, observed, Verdict::Pass);
            result.runs = runs + whole;
            result.steps = Some(steps);
            result.seed = Some(settings.seed);
            let _ = killed.failure;
            return result;
        }
        let observed = format!("survives {runs} schedules: {}", self.mutant.sentence());
        let mut result = CheckResult::new(expected, observed, Verdict::Fail);
        result.runs = runs;
        result.steps = Some(steps);
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
        self.scenes.first().map(|stage| stage as &dyn hunted::Scene)
    }

    fn run(&self, settings: &Settings, _: &Progress) -> CheckResult {
        if let Some(because) = self.mutant.equivalent() {
            return CheckResult::new(
                "no difference",
                format!("equivalent: {because}"),
                Verdict::Pass,
            );
        }
        if self.scenes.is_empty() {
            return elsewhere::killed(self.mutant);
        }
        self.hunted(settings)
    }
}
