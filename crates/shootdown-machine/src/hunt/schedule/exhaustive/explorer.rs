//! The chooser of an exhaustive search: a stack of points, each with what is still to be tried.

use super::seen::Seen;
use super::{Ended, Reduction};
use crate::hunt::{Actor, Candidate, Chooser, Decision, Point};

/// A point on the path of the current run.
#[derive(Clone, Copy, Debug)]
enum Frame {
    Next {
        /// Where its candidates begin among all those on the path.
        first: usize,
        count: usize,
        taken: usize,
        /// Candidates still to be taken, a bit each.
        todo: u64,
        /// Candidates asleep: since the point was entered, or since all that follows them was
        /// explored.
        asleep: u64,
    },
    Branch {
        count: usize,
        taken: usize,
    },
}

/// See the [module](super).
pub(super) struct Explorer {
    reduction: Reduction,
    seen: Seen,
    most_states: usize,
    stack: Vec<Frame>,
    candidates: Vec<Candidate>,
    /// How many frames of the stack this run has passed.
    at: usize,
    /// The last point passed at which an actor was chosen.
    parent: Option<usize>,
    /// The executor asks also where only one actor can go.
    asks_alone: bool,
    trouble: Option<Ended>,
    pub(super) transitions: u64,
    pub(super) irregular: u64,
}

/// The bit of an actor in the set of those asleep in a state.
fn bit(actor: Actor) -> Option<u64> {
    let kind = match actor {
        Actor::Cpu(_) => 0,
        Actor::Interrupt(_) => 1,
        Actor::Drain(_) => 2,
    };
    1u64.checked_shl(u32::from(actor.cpu()) * 3 + kind)
}

impl Explorer {
    pub(super) fn new(reduction: Reduction, most_states: usize) -> Self {
        Self {
            reduction,
            seen: Seen::default(),
            most_states,
            stack: Vec::new(),
            candidates: Vec::new(),
            at: 0,
            parent: None,
            asks_alone: false,
            trouble: None,
            transitions: 0,
            irregular: 0,
        }
    }

    pub(super) fn begin(&mut self) {
        (self.at, self.parent) = (0, None);
    }

    /// A run has ended: it must have passed all points that it was to replay.
    pub(super) fn end(&mut self) {
        if self.at < self.stack.len() {
            self.trouble.get_or_insert(Ended::Diverged);
        }
    }

    pub(super) fn trouble(&self) -> Option<Ended> {
        self.trouble
    }

    pub(super) fn states(&self) -> u64 {
        self.seen.len() as u64
    }

    pub(super) fn depth(&self) -> usize {
        self.stack.len()
    }

    /// To the next branch that was not tried. False when there is none.
    pub(super) fn advance(&mut self) -> bool {
        while let Some(frame) = self.stack.last_mut() {
            match frame {
                Frame::Next { taken, todo, asleep, .. } => {
                    *asleep |= 1 << *taken;
                    if *todo != 0 {
                        *taken = todo.trailing_zeros() as usize;
                        *todo &= *todo - 1;
                        return true;
                    }
                }
                Frame::Branch { count, taken } => {
                    *taken += 1;
                    if taken < count {
                        return true;
                    }
                }
            }
            if let Some(Frame::Next { first, .. }) = self.stack.pop() {
                self.candidates.truncate(first);
            }
        }
        false
    }

    fn give_up(&mut self, why: Ended) -> Decision {
        self.trouble.get_or_insert(why);
        Decision::Abandon
    }

    /// A point that an earlier run passed too.
    fn again(&mut self, point: &Point<'_>) -> Decision {
        // Where one actor only could go, an executor asks to hear more, not to be told; not in a
        // replay.
        while point.options() > 1
            && let Some(Frame::Next { count: 1, .. }) = self.stack.get(self.at)
        {
            self.parent = Some(self.at);
            self.at += 1;
        }
        let same = match (self.stack.get(self.at).copied(), point) {
            (Some(Frame::Next { first, count, taken, .. }), Point::Next { candidates, .. }) => {
                self.parent = Some(self.at);
                (candidates[..] == self.candidates[first..first + count]).then_some(taken)
            }
            (Some(Frame::Branch { count, taken }), Point::Value { .. } | Point::Fault { .. }) => {
                (count == point.options()).then_some(taken)
            }
            _ => None,
        };
        self.at += 1;
        match same {
            Some(taken) => Decision::Take(taken),
            None => self.give_up(Ended::Diverged),
        }
    }

    /// Those of these candidates that slept before the last step and were not woken by it.
    fn inherited(&mut self, now: &[Candidate]) -> u64 {
        let Some(Frame::Next { first, taken, asleep, .. }) = self.parent.map(|p| self.stack[p])
        else {
            return 0;
        };
        let step = self.candidates[first + taken];
        let (mut inherited, mut sleepers, mut gone) = (0u64, 0, 0);
        for i in bits(asleep & !(1 << taken)) {
            let sleeper = self.candidates[first + i];
            if !sleeper.footprint.depends_on(&step.footprint) {
                sleepers += 1;
                match now.iter().position(|c| *c == sleeper) {
                    Some(i) => inherited |= 1 << i,
                    None => gone += 1,
                }
            }
        }
        if now.len() == 1 {
            // A step that has to come next; whoever sleeps and can't go only waits for it.
            return inherited;
        }
        // Where it was not asked who goes because one actor only could, that one may have been the
        // sleeper, and this is its next step. With two sleepers, both could go; but one may
        // have been made to take an interrupt. Then another CPU than that of the step went
        // last, and comes first.
        let sure = sleepers > 1 && now[0].actor.cpu() == step.actor.cpu();
        if !self.asks_alone && !sure {
            return 0;
        }
        self.irregular += gone;
        inherited
    }

    /// A point that no run passed on this path.
    fn first_time(&mut self, candidates: &[Candidate], state: u64) -> Decision {
        if candidates.len() > 64 || candidates.iter().any(|c| bit(c.actor).is_none()) {
            return self.give_up(Ended::TooWide);
        }
        if state == 0 {
            return self.give_up(Ended::NoState);
        }
        self.transitions += 1;
        self.asks_alone |= candidates.len() == 1;
        let mut asleep = if self.reduction.sleep { self.inherited(candidates) } else { 0 };
        let mut todo = !asleep & (u64::MAX >> (64 - candidates.len()));
        let actors = |set: u64| {
            bits(set).filter_map(|i| bit(candidates[i].actor)).fold(0, |all, bit| all | bit)
        };
        let now = actors(asleep);
        match self.seen.asleep(state) {
            None => {
                if self.seen.len() >= self.most_states {
                    return self.give_up(Ended::States);
                }
                self.seen.enter(state, now);
            }
            Some(then) if self.reduction.cache => {
                let awake = *then & !now;
                *then &= now;
                let (mut new, mut both) = (0, 0);
                for (i, c) in candidates.iter().enumerate() {
                    let bit = bit(c.actor).unwrap_or(0);
                    new |= u64::from(bit & awake != 0) << i;
                    both |= u64::from(bit & *then != 0) << i;
                }
                (todo, asleep) = (new, both);
            }
            Some(_) => {}
        }
        if todo == 0 {
            return Decision::Abandon;
        }
        let taken = todo.trailing_zeros() as usize;
        todo &= todo - 1;
        let (first, count) = (self.candidates.len(), candidates.len());
        self.candidates.extend_from_slice(candidates);
        self.parent = Some(self.stack.len());
        self.stack.push(Frame::Next { first, count, taken, todo, asleep });
        self.at += 1;
        Decision::Take(taken)
    }
}

/// The numbers of the bits that are set, lowest first.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(lowest)
    })
}

impl Chooser for Explorer {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        if self.trouble.is_some() {
            return Decision::Abandon;
        }
        if self.at < self.stack.len() {
            return self.again(point);
        }
        match point {
            Point::Next { candidates, state } => self.first_time(candidates, *state),
            Point::Value { .. } | Point::Fault { .. } => {
                self.stack.push(Frame::Branch { count: point.options(), taken: 0 });
                self.at += 1;
                Decision::Take(0)
            }
        }
    }

    /// Not while it replays: an executor that asks at every point saves most of the hashes. At the
    /// first point it does, for one that asks once.
    fn wants_state(&self) -> bool {
        self.at == 0 || self.at >= self.stack.len()
    }
}
