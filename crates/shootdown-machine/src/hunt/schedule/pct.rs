//! Probabilistic concurrency testing: few surprises, at random places, with a promise.
//!
//! Source: S. Burckhardt, P. Kothari, M. Musuvathi, S. Nagarakatte, "A Randomized Scheduler with
//! Probabilistic Guarantees of Finding Bugs", ASPLOS 2010.
//!
//! Most bugs need few steps to be in a certain order: their *depth* d. Every actor gets a random priority,
//! and whoever can go and has the highest priority goes. At d - 1 steps, drawn at random from the length of
//! a run, the one that would go falls below all others. Of n actors and k steps, a run finds a bug of depth
//! d with a probability of at least 1 / (n k^(d-1)), which no choice of switches step by step can promise.
//!
//! - An interrupt of a CPU and the buffered stores of a CPU are actors of their own: with a low priority they
//!   wait until nobody else can go.
//! - Whoever waits in a loop at a high priority would never see what it waits for. After [`Pct::patience`]
//!   steps in a row while others could go, it falls below all others. The promise holds for runs in which
//!   no one needs more steps in a row than that.
//! - Old values and faults are no matter of priority: odds decide.

use super::random::Tuning;
use super::rng::{Odds, Rng};
use crate::hunt::{Actor, Candidate, Chooser, Decision, Point};

/// Steps in a row before a CPU is taken to be waiting, unless said otherwise.
pub const PATIENCE: u32 = 200;

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
    /// For bugs of this depth (1: any order of actors will do), in runs of about `length` steps at which
    /// there is a choice.
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
        Self { rng, old, fault, changes, step: 0, priorities, patience, row, lowest }
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
        let who = index(candidates[taken].actor);
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
