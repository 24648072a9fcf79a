//! Hunting a scene: schedules by chance or all of them, and what a failure says.
//!
//! A [`Scene`] is a world the library runs in (or, where chance makes the programs, a world for
//! each seed) and the adversary it faces. What `random`, `exhaustive` and `soak` have in common is
//! here: running one schedule as the user asked for it, shrinking one that failed, drawing it, and
//! writing the line that shows it again.

use shootdown_machine::hunt::schedule::{Replay, draw_run, encode, same_promise, shrink};
use shootdown_machine::hunt::{self, Bounds, Chooser, End, Outcome, Powers, Sharing, World};

use super::adversary;
use super::code::ReplayCode;
use super::steps::{Chosen, Policies, Removed};
use super::{Failure, Settings, Witness};

/// Something that can be hunted.
pub trait Scene: Send + Sync {
    /// The name of the check it belongs to.
    fn name(&self) -> &str;

    /// The world of this seed under these policies (`None`: the scene's own). The same seed and
    /// policies give the same world.
    fn world(&self, seed: u64, policies: Policies) -> Box<dyn World>;

    /// The world in words, for who looks at a failure.
    fn describe(&self, seed: u64, policies: Policies) -> Option<String> {
        let _ = (seed, policies);
        None
    }

    /// The adversary.
    fn powers(&self) -> Powers;

    /// The step of the world's kernel that is missing.
    fn missing(&self) -> Option<&'static str> {
        None
    }

    /// After how many steps a schedule is cut.
    fn steps(&self) -> u64 {
        Bounds::default().steps
    }

    /// May an exhaustive search leave out steps that nobody could notice ([`Sharing`])? Not where
    /// there are interrupts.
    fn leaves_out_private_steps(&self) -> bool {
        false
    }

    /// What some schedule must reach, lest the hunt has not looked.
    fn witnesses(&self) -> &[&'static str] {
        &[]
    }
}

/// One world of a scene, ready to be run.
pub struct Hunt<'a> {
    scene: &'a dyn Scene,
    settings: &'a Settings,
    seed: Option<u64>,
    world: Box<dyn World>,
    described: Option<String>,
    powers: Powers,
}

impl<'a> Hunt<'a> {
    /// The world of this seed, or the scene's only one.
    #[must_use]
    pub fn new(scene: &'a dyn Scene, settings: &'a Settings, seed: Option<u64>) -> Self {
        let policies = Policies::from(settings.policy);
        let world = scene.world(seed.unwrap_or(0), policies);
        let described = scene.describe(seed.unwrap_or(0), policies);
        let powers = settings.adversary.applied_to(scene.powers());
        Self { scene, settings, seed, world, described, powers }
    }

    /// Runs one schedule.
    pub fn run(&self, chooser: &mut dyn Chooser) -> Outcome {
        self.execute(chooser, false)
    }

    /// Runs one schedule; accesses that nobody could notice are no steps.
    pub fn run_sharing(&self, chooser: &mut dyn Chooser, sharing: &mut Sharing) -> Outcome {
        let bounds = Bounds { steps: self.scene.steps(), record: false };
        hunt::run_sharing(&*self.world, self.powers, bounds, chooser, sharing)
    }

    fn execute(&self, chooser: &mut dyn Chooser, record: bool) -> Outcome {
        let bounds = Bounds { steps: self.scene.steps(), record };
        hunt::run(&*self.world, self.powers, bounds, chooser)
    }

    /// The adversary of this hunt.
    #[must_use]
    pub const fn powers(&self) -> Powers {
        self.powers
    }

    /// Runs a schedule again and draws it.
    #[must_use]
    pub fn replay(&self, choices: &[u16]) -> (End, String) {
        let outcome = self.execute(&mut Replay::new(choices), true);
        let drawn = draw_run(&outcome, WIDTH);
        let timeline = match &self.described {
            Some(world) => format!("world: {world}\n{drawn}"),
            None => drawn,
        };
        (outcome.end, timeline)
    }

    /// What a failing schedule says: shrunk, drawn, and with the line that shows it again.
    #[must_use]
    pub fn failure(&self, found: &Outcome) -> Failure {
        let shrunk =
            shrink(found, SHRINKING, &mut |chooser| self.run(chooser), &same_promise(found));
        let choices = &shrunk.outcome.choices;
        let (_, drawn) = self.replay(choices);
        let (before, now) = shrunk.deviations;
        let minimal =
            if shrunk.minimal { "none can be left out" } else { "shrinking stopped early" };
        let timeline = format!(
            "{drawn}\n{now} of {before} deviations from the plain order are left; {minimal}"
        );
        Failure { timeline, replay: Some(self.code(choices).to_string()) }
    }

    fn code(&self, choices: &[u16]) -> ReplayCode {
        ReplayCode {
            check: self.scene.name().to_owned(),
            seed: self.seed,
            policy: self.settings.policy.map(Chosen::name).map(str::to_owned),
            mutant: Removed::current()
                .map(Removed::name)
                .or(self.scene.missing())
                .map(str::to_owned),
            powers: (self.powers != self.scene.powers()).then(|| adversary::write(self.powers)),
            schedule: encode(choices),
        }
    }
}

/// Width of a timeline: a terminal of two columns of text.
const WIDTH: usize = 110;

/// The most runs that shrinking takes: a second or two.
const SHRINKING: u64 = 4_000;

/// How a run that failed is called in a line.
#[must_use]
pub fn named(end: &End) -> String {
    match end {
        End::Violation(violation) => format!("{} broken", violation.invariant),
        End::Panic(text) => {
            // A failed assertion has several lines, a result one.
            let words: Vec<&str> = text.split_whitespace().collect();
            format!("panic: {}", words.join(" "))
        }
        End::Finished => "finished".to_owned(),
        End::Abandoned => "abandoned".to_owned(),
        End::Limit => "cut at its limit of steps".to_owned(),
    }
}

/// In how many runs each witness was reached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen(std::collections::BTreeMap<&'static str, u64>);

impl Seen {
    /// Counts what a run reached.
    pub fn add(&mut self, outcome: &Outcome) {
        for witness in &outcome.witnesses {
            *self.0.entry(witness).or_default() += 1;
        }
    }

    /// The counts of the required ones.
    #[must_use]
    pub fn of(&self, required: &[&'static str]) -> Vec<Witness> {
        required
            .iter()
            .map(|&name| Witness {
                name: name.to_owned(),
                seen: self.0.get(name).copied().unwrap_or(0),
            })
            .collect()
    }

    /// Counts of another part of the same hunt.
    pub fn join(&mut self, other: &Self) {
        for (name, n) in &other.0 {
            *self.0.entry(name).or_default() += n;
        }
    }
}
