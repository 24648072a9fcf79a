//! The parts of a hunt, in turn.

use shootdown::mutant::{self, Mutant};

use super::options::STEPS;
use super::smaller::smaller;
use super::{Code, Control, Explored, Failure, Options, Report, WIDTH};
use crate::hunt::kernel::{Port, Program};
use crate::hunt::schedule::{
    Effort, Found, Freezing, Limits, Reduction, Replay, Rng, Searched, Strategy, draw_run,
    exhaustive, same_promise, search_here, shrink,
};
use crate::hunt::{Bounds, Chooser, Outcome, Power, World, run};

/// The depth of bugs that priorities are meant to find: three events that must come in one order.
const DEPTH: u32 = 3;
/// The most runs that shrinking a schedule takes: a second or two.
const SHRINKING: u64 = 4_000;

pub(super) struct Hunter<'o> {
    options: &'o Options,
    pub report: Report,
}

impl<'o> Hunter<'o> {
    pub fn new(options: &'o Options) -> Self {
        Self { options, report: Report::new(options.witnesses.clone()) }
    }

    fn execute(&self, world: &dyn World, chooser: &mut dyn Chooser) -> Outcome {
        let bounds = Bounds { steps: STEPS, record: false };
        run(world, self.options.powers, bounds, chooser)
    }

    /// Tries a world with schedules that follow from a seed.
    pub fn by_chance(
        &self,
        world: &dyn World,
        seed: u64,
        priorities: bool,
        runs: u64,
        watch: &mut dyn FnMut(&Outcome),
    ) -> Searched {
        let mut run = |chooser: &mut dyn Chooser| self.execute(world, chooser);
        let mut strategy = if priorities {
            Strategy::pct(seed, DEPTH, Strategy::length_of(&mut run))
        } else {
            Strategy::random(seed)
        };
        if self.options.powers.has(Power::Preemption) {
            strategy = strategy.freezing(Freezing::USUAL);
        }
        search_here(&strategy, Effort::runs(runs), &mut run, &mut |_, outcome| watch(outcome))
    }

    fn count(&mut self, searched: &Searched) {
        self.report.runs += searched.runs;
        self.report.steps += searched.steps;
        self.report.cut += searched.cut;
    }

    /// The programs made by chance, with their numbers' seeds.
    fn made(options: &Options) -> impl Iterator<Item = (u64, Program)> + use<'_> {
        (0..options.programs).map(|number| {
            let seed = Rng::of_run(options.seed, number).next();
            #[allow(clippy::cast_possible_truncation)] // an index
            let config = &options.kernels[number as usize % options.kernels.len()];
            (seed, Program::random_for(config, seed, options.size))
        })
    }

    pub fn programs<P: Port>(&mut self) {
        for (seed, program) in Self::made(self.options) {
            let world = program.clone().on::<P>();
            let mut seen = Vec::new();
            let searched = self.by_chance(
                &world,
                seed,
                self.report.programs & 1 == 1,
                self.options.schedules,
                &mut |outcome| seen.push(outcome.witnesses.clone()),
            );
            self.report.programs += 1;
            self.count(&searched);
            self.report.see_all(seen);
            if let Some(found) = searched.found {
                let (program, outcome) = smaller::<P>(self, program, found.outcome);
                let world = program.clone().on::<P>();
                self.report.failure = Some(self.failure(&world, Some(program), &outcome));
                return;
            }
        }
    }

    pub fn small<P: Port>(&mut self) {
        for program in &self.options.small {
            if self.report.failure.is_some() {
                return;
            }
            self.explore(&program.clone().on::<P>(), Some(program));
        }
    }

    fn explore(&mut self, world: &dyn World, program: Option<&Program>) {
        let limits = Limits { states: self.options.states, ..Limits::default() };
        let mut seen = Vec::new();
        let report = exhaustive(
            limits,
            Reduction::FULL,
            &mut |chooser| self.execute(world, chooser),
            &mut |_, outcome| {
                // Where nothing new was seen there is nothing to remember.
                if !outcome.witnesses.is_empty() {
                    seen.push(outcome.witnesses.clone());
                }
            },
        );
        self.report.see_all(seen);
        if let Some(Found { outcome, .. }) = &report.found {
            self.report.failure = Some(self.failure(world, program.cloned(), outcome));
        }
        self.report.explored.push(Explored { program: program.cloned(), report });
    }

    /// The same programs and schedules with a step of the library taken out, until it is found.
    pub fn controls<P: Port>(&mut self) {
        if self.report.failure.is_some() {
            return;
        }
        for &mutant in &self.options.controls {
            let _planted = Planted::new(mutant);
            let mut runs = 0;
            let mut found = None;
            for (number, (seed, program)) in Self::made(self.options).enumerate() {
                let world = program.on::<P>();
                let schedules = self.options.schedules;
                let searched =
                    self.by_chance(&world, seed, number & 1 == 1, schedules, &mut |_| ());
                runs += searched.runs;
                if searched.found.is_some() {
                    found = Some(runs);
                    break;
                }
            }
            self.report.controls.push(Control { mutant, found });
        }
    }

    pub fn world(&mut self, world: &dyn World) {
        let half = self.options.schedules.div_ceil(2);
        for (priorities, runs) in [(false, half), (true, self.options.schedules - half)] {
            let mut seen = Vec::new();
            let searched = self.by_chance(world, self.options.seed, priorities, runs, &mut |o| {
                seen.push(o.witnesses.clone());
            });
            self.count(&searched);
            self.report.see_all(seen);
            if let Some(found) = searched.found {
                self.report.failure = Some(self.failure(world, None, &found.outcome));
                return;
            }
        }
        if self.options.states > 0 {
            self.explore(world, None);
        }
    }

    /// Shrinks a failing schedule and draws what is left.
    fn failure(&self, world: &dyn World, program: Option<Program>, found: &Outcome) -> Failure {
        let same = same_promise(found);
        let shrunk = shrink(found, SHRINKING, &mut |chooser| self.execute(world, chooser), &same);
        let schedule = shrunk.outcome.choices;
        let bounds = Bounds { steps: STEPS, record: true };
        let drawn = run(world, self.options.powers, bounds, &mut Replay::new(&schedule));
        Failure {
            timeline: draw_run(&drawn, WIDTH),
            end: drawn.end,
            code: Code { powers: self.options.powers, program, schedule },
            deviations: shrunk.deviations,
            minimal: shrunk.minimal,
        }
    }
}

/// A mutant that is on in this thread as long as this lives.
struct Planted(Option<Mutant>);

impl Planted {
    fn new(mutant: Mutant) -> Self {
        let before = mutant::current();
        mutant::set(Some(mutant));
        Self(before)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        mutant::set(self.0);
    }
}
