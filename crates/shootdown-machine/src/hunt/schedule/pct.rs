//! Probabilistic concurrency testing: few surprises, at random places, with a promise.
//!
//! Source: S. Burckhardt, P. Kothari, M. Musuvathi, S. Nagarakatte, "A Randomized Scheduler with
//! Probabilistic Guarantees of Finding Bugs", ASPLOS 2010.
//!
//! Most bugs need few steps to be in a certain order: their *depth* d. Every actor gets a random
//! priority, and whoever can go and has the highest priority goes. At d - 1 steps, drawn at random
//! from the length of a run, the one that would go falls below all others. Of n actors and k steps,
//! a run finds a bug of depth d with a probability of at least 1 / (n k^(d-1)), which no choice of
//! switches step by step can promise.
//!
//! - An interrupt of a CPU and the buffered stores of a CPU are actors of their own: with a low
//!   priority they wait until nobody else can go.
//! - Whoever waits in a loop at a high priority would never see what it waits for. After
//!   [`Pct::patience`] steps in a row while others could go, it falls below all others. The promise
//!   holds for runs in which no one needs more steps in a row than that.
//! - Several who wait take turns, none of them for long in a row. When somebody could have gone for
//!   [`STARVED`] steps, all others fall below. The promise holds for runs in which nobody has to be
//!   kept waiting for longer.
//! - Old values and faults are no matter of priority: odds decide.

use super::random::Tuning;
use super::rng::{Odds, Rng};
use crate::hunt::{Actor, Candidate, Chooser, Decision, Point};

/// Steps in a row before a CPU is taken to be waiting, unless said otherwise.
pub const PATIENCE: u32 = 200;

/// Steps at which somebody could have gone and did not, before that one goes.
pub const STARVED: u64 = 10 * PATIENCE as u64;

/// Decides by priorities that change d - 1 times.
#[derive(Clone, Debug)]
pub struct Pct {
    rng: Rng,
    old: Odds,
    fault: Odds,
    /// Steps, counted from 0, at which someone falls, latest first, with the priority it falls to.
    changes: Vec<(u64, i64)>,
    step: u64,
    /// By [`index`]; 0 where not drawn yet.
    priorities: Vec<i64>,
    patience: u32,
    /// Who went last, and how often in a row.
    row: (usize, u32),
    /// The next one that waits too long falls to this.
    lowest: i64,
    /// By [`index`]: the step at which somebody could have gone first since it went last; 0: none.
    kept: Vec<u64>,
}

/// The place of an actor's priority.
const fn index(actor: Actor) -> usize {
    match actor {
        Actor::Cpu(cpu) => cpu as usize * 3,
        Actor::Interrupt(cpu) => cpu as usize * 3 + 1,
        Actor::Drain(cpu) => cpu as usize * 3 + 2,
    }
}

impl Pct {
    /// For bugs of this depth (1: any order of actors will do), in runs of about `length` steps at
    /// which there is a choice.
    #[must_use]
    pub fn new(mut rng: Rng, depth: u32, length: u64) -> Self {
        let tuning = Tuning::varied(&mut rng);
        let length = usize::try_from(length).unwrap_or(usize::MAX).max(1);
        let mut changes: Vec<(u64, i64)> =
            (1..depth).map(|fall| (rng.below(length) as u64, i64::from(fall))).collect();
        changes.sort_unstable_by(|a, b| b.cmp(a));
        let (old, fault) = (tuning.old, tuning.fault);
        let priorities = Vec::new();
        let (patience, row, lowest) = (PATIENCE, (usize::MAX, 0), -1);
        let kept = Vec::new();
        Self { rng, old, fault, changes, step: 0, priorities, patience, row, lowest, kept }
    }

    /// With other odds for old values and faults.
    #[must_use]
    pub fn odds(self, old: Odds, fault: Odds) -> Self {
        Self { old, fault, ..self }
    }

    /// With another number of steps in a row before someone is taken to be waiting.
    #[must_use]
    pub fn patience(self, patience: u32) -> Self {
        Self { patience, ..self }
    }

    fn priority(&mut self, actor: Actor) -> i64 {
        let index = index(actor);
        if index >= self.priorities.len() {
            self.priorities.resize(index + 1, 0);
        }
        if self.priorities[index] == 0 {
            // Above all priorities that anyone falls to, which are those of 32 bits.
            self.priorities[index] = (self.rng.next() >> 2) as i64 | 1 << 62;
        }
        self.priorities[index]
    }

    fn highest(&mut self, candidates: &[Candidate]) -> usize {
        let (mut highest, mut taken) = (i64::MIN, 0);
        for (i, c) in candidates.iter().enumerate() {
            let priority = self.priority(c.actor);
            if priority > highest {
                (highest, taken) = (priority, i);
            }
        }
        taken
    }

    /// All but one fall below all others, in their order.
    fn fall(&mut self, candidates: &[Candidate], but: usize) {
        let others = candidates.iter().enumerate().filter(|(i, _)| *i != but);
        let mut others: Vec<usize> = others.map(|(_, c)| index(c.actor)).collect();
        others.sort_unstable_by_key(|other| core::cmp::Reverse(self.priorities[*other]));
        for other in others {
            self.priorities[other] = self.lowest;
            self.lowest -= 1;
        }
    }

    /// Who could have gone for too long.
    fn starved(&mut self, candidates: &[Candidate]) -> Option<usize> {
        self.kept.resize(self.priorities.len(), 0);
        let mut starved = None;
        for (i, c) in candidates.iter().enumerate() {
            let kept = &mut self.kept[index(c.actor)];
            if *kept == 0 {
                *kept = self.step;
            } else if self.step - *kept >= STARVED {
                starved = Some(i);
            }
        }
        starved
    }

    fn next(&mut self, candidates: &[Candidate]) -> usize {
        let mut taken = self.highest(candidates);
        while let Some((at, fall)) = self.changes.last().copied() {
            if at > self.step {
                break;
            }
            self.changes.pop();
            self.priorities[index(candidates[taken].actor)] = fall;
            taken = self.highest(candidates);
        }
        self.step += 1;
        if self.row == (index(candidates[taken].actor), self.patience) {
            self.priorities[self.row.0] = self.lowest;
            self.lowest -= 1;
            taken = self.highest(candidates);
        }
        if let Some(starved) = self.starved(candidates) {
            self.fall(candidates, starved);
            taken = starved;
        }
        let who = index(candidates[taken].actor);
        self.kept[who] = 0;
        self.row = if self.row.0 == who { (who, self.row.1 + 1) } else { (who, 1) };
        taken
    }
}

impl Chooser for Pct {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        if point.options() < 2 {
            return Decision::Take(0);
        }
        Decision::Take(match point {
            Point::Next { candidates, .. } => self.next(candidates),
            Point::Value { count, .. } => {
                if self.old.hit(self.rng.next() as u16) {
                    1 + self.rng.below(count - 1)
                } else {
                    0
                }
            }
            Point::Fault { .. } => usize::from(self.fault.hit(self.rng.next() as u16)),
        })
    }
}

/// Counts the steps at which there is a choice, under the schedules of another chooser.
#[derive(Debug)]
pub(super) struct Counting<C> {
    pub(super) inner: C,
    pub(super) steps: u64,
}

impl<C: Chooser> Chooser for Counting<C> {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        if let Point::Next { candidates, .. } = point {
            self.steps += u64::from(candidates.len() > 1);
        }
        self.inner.choose(point)
    }

    fn wants_state(&self) -> bool {
        self.inner.wants_state()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hunt::schedule::toy::{Op, Toy, dekker, handshake, locked_update, lost_update};
    use crate::hunt::schedule::{Effort, Strategy, search_here};
    use crate::hunt::{End, Outcome};

    /// In how many of `runs` runs a promise is broken.
    fn failures(toy: &Toy, depth: u32, runs: u64) -> (u64, u64) {
        let length = Strategy::length_of(&mut |c| toy.run(c));
        let failures = (0..runs).filter(|run| {
            let mut pct = Pct::new(Rng::of_run(42, *run), depth, length);
            toy.run(&mut pct).end.is_failure()
        });
        (failures.count() as u64, length)
    }

    #[test]
    fn bugs_of_a_depth_are_found_as_often_as_promised() {
        let runs = 20_000;
        for depth in 1..=3 {
            for pad in [0, 6] {
                let toy = handshake(depth as usize, pad);
                let (failures, length) = failures(&toy, depth, runs);
                let promised = runs as f64 / (2.0 * (length as f64).powi(depth as i32 - 1));
                // Three standard deviations of luck.
                let least = promised - 3.0 * promised.sqrt();
                assert!(failures as f64 >= least, "{depth} {pad}: {failures} of {promised}");
            }
        }
    }

    #[test]
    fn a_bug_is_not_found_below_its_depth() {
        for depth in 2..=3 {
            let toy = handshake(depth, 4);
            assert_eq!(failures(&toy, depth as u32 - 1, 5000).0, 0);
        }
        assert_eq!(failures(&lost_update(), 1, 1000).0, 0);
        assert!(failures(&lost_update(), 2, 1000).0 > 100);
        assert_eq!(failures(&locked_update(), 4, 1000).0, 0);
    }

    #[test]
    fn buffered_stores_wait_by_priority() {
        // Both buffers have to drain after both loads: of six orders of the actors, some do.
        assert!(failures(&dekker(false), 1, 1000).0 > 50);
        assert_eq!(failures(&dekker(true), 3, 1000).0, 0);
    }

    #[test]
    fn who_waits_at_a_high_priority_lets_others_go() {
        let waits = [Op::Load(0, 0), Op::While(0, 0, 0)];
        let sets = [Op::Kick(1), Op::Add(0, 1), Op::Set(0, 1)];
        let toy = Toy::new(&[&waits, &sets]).buffers();
        for run in 0..200 {
            let outcome: Outcome = toy.run(&mut Pct::new(Rng::of_run(1, run), 3, 10));
            assert_eq!(outcome.end, End::Finished);
            let limit = Toy { most_steps: 40, ..toy.clone() };
            let mut hurried = Pct::new(Rng::of_run(1, run), 3, 10).patience(5);
            assert_eq!(limit.run(&mut hurried).end, End::Finished);
        }
    }

    /// Two that wait take turns, and none of them goes often in a row.
    #[test]
    fn several_who_wait_let_others_go() {
        let waits = [Op::Load(0, 0), Op::While(0, 0, 0)];
        let sets = [Op::Add(0, 1), Op::Set(0, 1)];
        let toy = Toy::new(&[&waits, &waits, &sets]).buffers();
        for run in 0..200 {
            let toy = Toy { most_steps: 3 * STARVED, ..toy.clone() };
            let outcome = toy.run(&mut Pct::new(Rng::of_run(1, run), 3, 10));
            assert_eq!(outcome.end, End::Finished);
        }
    }

    #[test]
    fn old_values_and_faults_are_a_matter_of_odds() {
        let toy = Toy::new(&[&[Op::Set(0, 1), Op::LoadOld(0, 0), Op::Faulty(1)], &[Op::Add(0, 1)]]);
        let see = |old, fault| {
            let strategy = Strategy::pct_tuned(1, 2, 4, old, fault);
            let (mut olds, mut faults) = (0, 0);
            let mut watch = |_, outcome: &Outcome| {
                // The loading thread's choices come before those of who goes next only if it is
                // alone.
                let deviations: Vec<_> = outcome.choices.clone();
                olds += u64::from(deviations.len() > 1);
                faults += u64::from(deviations.last() == Some(&1));
            };
            search_here(&strategy, Effort::runs(500), &mut |c| toy.run(c), &mut watch);
            (olds, faults)
        };
        let (asked, always) = see(Odds::ALWAYS, Odds::ALWAYS);
        let (_, never) = see(Odds::NEVER, Odds::NEVER);
        assert_eq!(asked, 500);
        assert!(always > 200 && never < always, "{always} {never}");
    }
}
