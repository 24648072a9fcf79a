//! Which hunts are tried on a mutant, in which order and for how long: the cheapest first; and what
//! they have the machine do.

use shootdown_machine::hunt::schedule::{Freezing, Replay, Strategy};
use shootdown_machine::hunt::{End, Outcome, Power, Work};

use super::hunts::{Hunt, Worlds};
use crate::check::hunted::{self, Seen, named};
use crate::check::{Settings, seed_for};
use crate::experiments::chance;

/// A stage: so many schedules of each hunt of a sort.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Its name in results.
    pub name: &'static str,
    /// Which hunts.
    pub worlds: Worlds,
    /// Schedules of each.
    pub runs: u64,
}

/// The stages. Each takes several times as long as the one before, and most mutants die in the
/// first.
pub const STAGES: [Stage; 5] = [
    Stage { name: "programs", worlds: Worlds::Fixed, runs: 6 },
    Stage { name: "random", worlds: Worlds::Chance, runs: 64 },
    Stage { name: "programs-more", worlds: Worlds::Fixed, runs: 60 },
    Stage { name: "random-more", worlds: Worlds::Chance, runs: 800 },
    Stage { name: "random-long", worlds: Worlds::Chance, runs: 8_000 },
];

/// Schedules of one program by chance.
const SCHEDULES: u64 = 16;

/// Changes of priority in schedules by priorities.
const DEPTH: u32 = 3;

/// After so many schedules a worker says that it is alive.
const SIGN_OF_LIFE: u64 = 64;

/// What a hunt has the machine do in the plain order of things, where every CPU goes on until it
/// waits: a schedule that a mutant changes only by what it does itself. For a hunt that makes
/// worlds by chance, in the first few of them.
#[must_use]
pub fn work(hunt: &Hunt, seed: u64) -> Vec<Work> {
    let settings = Settings { seed, ..Settings::default() };
    let seed = seed_for(seed, &hunt.name);
    let worlds = match hunt.worlds {
        Worlds::Fixed => vec![None],
        Worlds::Chance => (0..MEASURED).map(|index| Some(chance(seed, index))).collect(),
    };
    let of =
        |world| hunted::Hunt::new(hunt.scene(), &settings, world).run(&mut Replay::new(&[])).work;
    worlds.into_iter().map(of).collect()
}

/// Worlds by chance whose work is measured.
const MEASURED: u64 = 12;

/// What came of a hunt.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hunted {
    /// Schedules tried.
    pub runs: u64,
    /// What it objects to.
    pub objection: Option<String>,
    /// What was seen, of what the scene says must be.
    pub seen: Vec<(String, u64)>,
}

/// The objection to how a run ended. A run that is cut waits for what never comes.
fn objection(outcome: &Outcome) -> Option<String> {
    match &outcome.end {
        End::Finished => None,
        End::Limit | End::Abandoned => Some("never ends".to_owned()),
        End::Violation(_) | End::Panic(_) => Some(named(&outcome.end)),
    }
}

/// Runs one hunt of a stage. `alive` is called now and then.
pub fn hunt(hunt: &Hunt, stage: Stage, seed: u64, alive: &mut dyn FnMut()) -> Hunted {
    let settings = Settings { seed, ..Settings::default() };
    let seed = seed_for(seed, &hunt.name);
    let mut all = Hunted::default();
    let mut seen = Seen::default();
    let programs = match hunt.worlds {
        Worlds::Fixed => 1,
        Worlds::Chance => stage.runs.div_ceil(SCHEDULES),
    };
    let schedules = stage.runs.div_ceil(programs);
    for index in 0..programs {
        let world = match hunt.worlds {
            Worlds::Fixed => None,
            Worlds::Chance => Some(chance(seed, index)),
        };
        let ready = hunted::Hunt::new(hunt.scene(), &settings, world);
        let seed = world.unwrap_or(seed);
        let length = Strategy::length_of(&mut |chooser| ready.run(chooser));
        let mut strategies = [Strategy::random(seed), Strategy::pct(seed, DEPTH, length)];
        if ready.powers().has(Power::Preemption) {
            strategies = strategies.map(|strategy| strategy.freezing(Freezing::USUAL));
        }
        for run in 0..schedules {
            let mut chooser = strategies[(run % 2) as usize].chooser(run / 2);
            let outcome = ready.run(&mut *chooser);
            all.runs += 1;
            seen.add(&outcome);
            all.objection = objection(&outcome);
            if all.objection.is_some() {
                return all;
            }
            if all.runs % SIGN_OF_LIFE == 0 {
                alive();
            }
        }
    }
    let witnesses = seen.of(hunt.scene().witnesses());
    all.seen = witnesses.into_iter().map(|w| (w.name, w.seen)).collect();
    all
}
