//! Random schedules, and schedules in which virtual CPUs stand still.
//!
//! A uniform choice at every step mixes CPUs so finely that long undisturbed stretches never come
//! up, and many bugs need them. So every run draws its own odds ([`Tuning::varied`]): some runs
//! switch all the time and deliver interrupts at once, others let a CPU run for a hundred steps
//! while its interrupts wait. No odds are zero for what a run may need to end: whoever waits in a
//! loop is always interrupted some time.

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

/// The index of the `n`-th candidate whose actor is one of these; the first candidate if there is
/// none.
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

/// A CPU stands still for a while, its interrupts with it: a virtual CPU that its host has
/// preempted.
///
/// Its buffered stores still become visible: a CPU that leaves a guest drains them. When nobody
/// else can go, the CPU is woken early, since a machine whose other CPUs only wait for it makes no
/// progress.
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
    /// Often enough for a run of a thousand steps, long enough for the others to finish what they
    /// do.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::hunt::schedule::toy::{Op, Toy, dekker, locked_update, lost_update};
    use crate::hunt::{End, Footprint, Power};

    fn candidate(actor: Actor) -> Candidate {
        Candidate { actor, footprint: Footprint::everything(actor.cpu()) }
    }

    #[test]
    fn the_same_seed_is_the_same_schedule() {
        let schedules = |seed| -> Vec<Vec<u16>> {
            (0..50)
                .map(|r| dekker(false).run(&mut Random::new(Rng::of_run(seed, r))).choices)
                .collect()
        };
        assert_eq!(schedules(1), schedules(1));
        assert_ne!(schedules(1), schedules(2));
    }

    #[test]
    fn every_schedule_comes_up() {
        let mut schedules = BTreeSet::new();
        for run in 0..5000 {
            let outcome = lost_update().run(&mut Random::new(Rng::of_run(3, run)));
            schedules.insert(outcome.choices);
        }
        assert_eq!(schedules.len(), 20);
    }

    #[test]
    fn a_locked_system_is_never_broken() {
        for run in 0..2000 {
            let inner = Random::new(Rng::of_run(5, run));
            let mut frozen = Preempted::new(inner, Rng::new(run), Freezing::USUAL);
            assert_eq!(locked_update().run(&mut frozen).end, End::Finished);
        }
    }

    #[test]
    fn odds_decide() {
        use Actor::{Cpu, Drain, Interrupt};
        let candidates =
            [Cpu(1), Cpu(0), Cpu(2), Interrupt(0), Interrupt(1), Drain(2)].map(candidate);
        let share = |tuning: Tuning, of: fn(Actor) -> bool| {
            let mut random = Random::with(Rng::new(9), tuning);
            let mut count = 0;
            for _ in 0..10_000 {
                random.last = Some(1);
                let point = Point::Next { candidates: &candidates, state: 0 };
                let Decision::Take(i) = random.choose(&point) else { unreachable!() };
                count += u32::from(of(candidates[i].actor));
            }
            count
        };
        let never = Tuning {
            switch: Odds::NEVER,
            interrupt: Odds::NEVER,
            drain: Odds::NEVER,
            old: Odds::NEVER,
            fault: Odds::NEVER,
        };
        assert_eq!(share(never, |a| a == Cpu(1)), 10_000);
        let quarter = Odds::one_in(4);
        let near = |n: u32, wanted: u32| n.abs_diff(wanted) < 250;
        assert!(near(share(Tuning { switch: quarter, ..never }, |a| a == Cpu(0)), 1250));
        assert!(near(share(Tuning { switch: quarter, ..never }, |a| a == Cpu(2)), 1250));
        assert!(near(share(Tuning { interrupt: quarter, ..never }, |a| a == Interrupt(1)), 1250));
        assert!(near(share(Tuning { drain: quarter, ..never }, |a| a == Drain(2)), 2500));

        let mut random =
            Random::with(Rng::new(9), Tuning { old: quarter, fault: quarter, ..never });
        let (mut values, mut faults) = ([0; 4], 0);
        for _ in 0..10_000 {
            let Decision::Take(i) = random.choose(&Point::Value { cpu: 0, count: 4 }) else {
                unreachable!()
            };
            values[i] += 1;
            let power = Power::FailingKicks;
            faults += u32::from(random.choose(&Point::Fault { power }) == Decision::Take(1));
        }
        assert!(near(values[0], 7500) && values[1..].iter().all(|n| near(*n, 833)), "{values:?}");
        assert!(near(faults, 2500));
        // Where one option is all there is, it is taken.
        assert_eq!(random.choose(&Point::Value { cpu: 0, count: 1 }), Decision::Take(0));
    }

    /// Notes who goes.
    struct Noting<C>(C, Vec<u8>);

    impl<C: Chooser> Chooser for Noting<C> {
        fn choose(&mut self, point: &Point<'_>) -> Decision {
            let decision = self.0.choose(point);
            if let (Point::Next { candidates, .. }, Decision::Take(i)) = (point, decision) {
                self.1.push(candidates[i].actor.cpu());
            }
            decision
        }
    }

    #[test]
    fn a_preempted_cpu_stands_still_for_a_while() {
        let long = [Op::Add(0, 1); 60];
        let toy = Toy::new(&[&long, &long, &long]);
        let always = Tuning { switch: Odds::ALWAYS, ..Tuning::EVEN };
        let longest_gap = |odds| {
            let freezing = Freezing { odds, longest: 50 };
            let inner = Random::with(Rng::new(4), always);
            let mut noting = Noting(Preempted::new(inner, Rng::new(5), freezing), Vec::new());
            assert_eq!(toy.run(&mut noting).end, End::Finished);
            let gap = |cpu| {
                let places =
                    noting.1.iter().enumerate().filter(|(_, c)| **c == cpu).map(|(i, _)| i);
                let places: Vec<_> = places.collect();
                places.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)
            };
            (0..3).map(gap).max().unwrap()
        };
        assert!(longest_gap(Odds::NEVER) < 20);
        assert!(longest_gap(Odds::one_in(16)) > 25);
    }

    #[test]
    fn a_cpu_that_everyone_waits_for_is_woken() {
        let waits = [Op::Lock(0)];
        let holds = [Op::Lock(0), Op::Add(0, 1), Op::Kick(0), Op::Add(0, 1), Op::Unlock(0)];
        let toy = Toy::new(&[&holds, &waits]).asks_alone(true).wrong(|_, _| false);
        let freezing = Freezing { odds: Odds::ALWAYS, longest: 1000 };
        for run in 0..100 {
            let inner = Random::new(Rng::of_run(1, run));
            let mut frozen = Preempted::new(inner, Rng::of_run(2, run), freezing);
            let end = toy.run(&mut frozen).end;
            // The waiter may keep the lock for ever, in which case the other one is stuck.
            assert!(matches!(end, End::Finished | End::Violation(_)));
        }
    }
}
