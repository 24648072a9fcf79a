//! Random schedules, and schedules in which virtual CPUs stand still.
//!
//! A uniform choice at every step mixes CPUs so finely that long undisturbed stretches never come up, and
//! many bugs need them. So every run draws its own odds ([`Tuning::varied`]): some runs switch all the time
//! and deliver interrupts at once, others let a CPU run for a hundred steps while its interrupts wait.
//! No odds are zero for what a run may need to end: whoever waits in a loop is always interrupted some time.

use super::rng::{Odds, Rng};
use crate::hunt::{Actor, Candidate, Chooser, Decision, Point};

/// How likely each kind of surprise is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Another CPU goes on, although the last one could.
    pub switch: Odds,
    /// One of the pending interrupts is taken.
    pub interrupt: Odds,
    /// One of the buffered stores becomes visible.
    pub drain: Odds,
    /// A load returns another value than the newest.
    pub old: Odds,
    /// A fault is injected.
    pub fault: Odds,
}

impl Tuning {
    /// A bit of everything.
    pub const EVEN: Self = Self {
        switch: Odds::one_in(4),
        interrupt: Odds::one_in(4),
        drain: Odds::one_in(4),
        old: Odds::one_in(4),
        fault: Odds::one_in(16),
    };

    /// Odds of one run, each drawn apart from the others.
    #[must_use]
    pub fn varied(rng: &mut Rng) -> Self {
        let mut one = |odds: &[u32]| Odds::one_in(odds[rng.below(odds.len())]);
        Self {
            switch: one(&[2, 4, 8, 16, 32, 128]),
            interrupt: one(&[1, 2, 4, 16, 64, 256]),
            drain: one(&[1, 2, 4, 16, 64]),
            old: one(&[0, 2, 4, 16, 64]),
            fault: one(&[0, 0, 4, 16, 64]),
        }
    }
}

/// Decides at random.
#[derive(Clone, Debug)]
pub struct Random {
    rng: Rng,
    tuning: Tuning,
    /// The CPU that took the last step asked for.
    last: Option<u8>,
}

impl Random {
    /// With odds drawn from the generator.
    #[must_use]
    pub fn new(mut rng: Rng) -> Self {
        let tuning = Tuning::varied(&mut rng);
        Self::with(rng, tuning)
    }

    /// With these odds.
    #[must_use]
    pub const fn with(rng: Rng, tuning: Tuning) -> Self {
        Self { rng, tuning, last: None }
    }

    fn next(&mut self, candidates: &[Candidate]) -> usize {
        let (mut interrupts, mut drains) = (0, 0);
        for c in candidates {
            match c.actor {
                Actor::Cpu(_) => {}
                Actor::Interrupt(_) => interrupts += 1,
                Actor::Drain(_) => drains += 1,
            }
        }
        // Four independent draws of 16 bits out of one number.
        let bits = self.rng.next();
        let which = |n: usize| ((bits >> 48) as usize * n) >> 16;
        let taken = if interrupts > 0 && self.tuning.interrupt.hit(bits as u16) {
            nth(candidates, which(interrupts), |a| matches!(a, Actor::Interrupt(_)))
        } else if drains > 0 && self.tuning.drain.hit((bits >> 16) as u16) {
            nth(candidates, which(drains), |a| matches!(a, Actor::Drain(_)))
        } else {
            let last = self.last.map(Actor::Cpu);
            let stays = last == Some(candidates[0].actor);
            let cpus = candidates.len() - interrupts - drains;
            let others = cpus - usize::from(stays);
            if stays && (others == 0 || !self.tuning.switch.hit((bits >> 32) as u16)) {
                0
            } else if others > 0 {
                nth(candidates, which(others), |a| {
                    matches!(a, Actor::Cpu(_)) && !(stays && Some(a) == last)
                })
            } else {
                which(candidates.len())
            }
        };
        self.last = Some(candidates[taken].actor.cpu());
        taken
    }
}

/// The index of the `n`-th candidate whose actor is one of these; the first candidate if there is none.
fn nth(candidates: &[Candidate], n: usize, is: impl Fn(Actor) -> bool) -> usize {
    let of_these = candidates.iter().enumerate().filter(|(_, c)| is(c.actor));
    of_these.map(|(i, _)| i).nth(n).unwrap_or(0)
}

impl Chooser for Random {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        if point.options() < 2 {
            return Decision::Take(0);
        }
        Decision::Take(match point {
            Point::Next { candidates, .. } => self.next(candidates),
            Point::Value { count, .. } => {
                let bits = self.rng.next();
                if self.tuning.old.hit(bits as u16) {
                    1 + (((bits >> 32) as usize * (count - 1)) >> 32)
                } else {
                    0
                }
            }
            Point::Fault { .. } => usize::from(self.tuning.fault.hit(self.rng.next() as u16)),
        })
    }
}

/// A CPU stands still for a while, its interrupts with it: a virtual CPU that its host has preempted.
///
/// Its buffered stores still become visible: a CPU that leaves a guest drains them. When nobody else can go,
/// the CPU is woken early, since a machine whose other CPUs only wait for it makes no progress.
#[derive(Clone, Debug)]
pub struct Preempted<C> {
    inner: C,
    rng: Rng,
    freezing: Freezing,
    /// Who stands still, and for how many more steps.
    frozen: Option<(u8, u32)>,
    /// The candidates of the others, and where each is in the whole list.
    others: Vec<Candidate>,
    places: Vec<usize>,
}

/// How often and for how long virtual CPUs stand still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freezing {
    /// A CPU is preempted at this step.
    pub odds: Odds,
    /// The longest time, in steps of the others.
    pub longest: u32,
}

impl Freezing {
    /// Often enough for a run of a thousand steps, long enough for the others to finish what they do.
    pub const USUAL: Self = Self { odds: Odds::one_in(128), longest: 400 };
}

impl<C> Preempted<C> {
    /// Freezes CPUs under the schedules of `inner`.
    #[must_use]
    pub const fn new(inner: C, rng: Rng, freezing: Freezing) -> Self {
        Self { inner, rng, freezing, frozen: None, others: Vec::new(), places: Vec::new() }
    }

    /// Who stands still at this step.
    fn frozen_now(&mut self, candidates: &[Candidate]) -> Option<u8> {
        self.frozen = match self.frozen {
            Some((cpu, left)) if left > 1 => Some((cpu, left - 1)),
            Some(_) => None,
            None => {
                let bits = self.rng.next();
                self.freezing.odds.hit(bits as u16).then(|| {
                    let one = ((bits >> 16 & 0xffff) as usize * candidates.len()) >> 16;
                    let long = ((bits >> 32) * u64::from(self.freezing.longest)) >> 32;
                    (candidates[one].actor.cpu(), long as u32 + 1)
                })
            }
        };
        self.frozen.map(|(cpu, _)| cpu)
    }
}

impl<C: Chooser> Chooser for Preempted<C> {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        let Point::Next { candidates, state } = point else { return self.inner.choose(point) };
        let Some(frozen) = self.frozen_now(candidates) else { return self.inner.choose(point) };
        self.others.clear();
        self.places.clear();
        for (i, c) in candidates.iter().enumerate() {
            if c.actor.cpu() != frozen || matches!(c.actor, Actor::Drain(_)) {
                self.others.push(*c);
                self.places.push(i);
            }
        }
        match self.places[..] {
            [] => {
                self.frozen = None;
                self.inner.choose(point)
            }
            [only] => Decision::Take(only),
            _ => {
                match self.inner.choose(&Point::Next { candidates: &self.others, state: *state }) {
                    Decision::Take(i) => Decision::Take(self.places.get(i).copied().unwrap_or(0)),
                    Decision::Abandon => Decision::Abandon,
                }
            }
        }
    }

    fn wants_state(&self) -> bool {
        self.inner.wants_state()
    }
}
