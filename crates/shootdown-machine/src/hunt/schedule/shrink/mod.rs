//! From a schedule that breaks a promise to a short one that breaks the same promise.
//!
//! Better means: fewer choices that are not 0; with as many, fewer steps up to the violation; with
//! as many of those too, lower choices. Every candidate is run, and taken only if it fails in the
//! same way and is better, so nothing here can make a schedule wrong. What counts is what the run
//! really chose, not what it was asked to.
//!
//! Two views of the schedule take turns until neither makes it better:
//!
//! 1. **As moves** ([`moves`]): who went, one block per stretch of the same actor. Blocks are left
//!    out, moved (`a b a` becomes `a b` with one switch less), and shortened. A list of numbers
//!    can't do that: without one of its choices, all later ones mean something else.
//! 2. **As choices**: chunks of deviations are set to 0 (delta debugging: A. Zeller, R.
//!    Hildebrandt, TSE 2002), and those that are left come closer to 0.

mod moves;

use self::moves::{Follow, Move, Recorder};
use super::{Replay, deviations};
use crate::hunt::{Chooser, End, Outcome};

/// What shrinking came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Shrunk {
    /// The failing run of the shortest schedule found; its choices are the schedule.
    pub outcome: Outcome,
    /// Choices that are not 0, before and now.
    pub deviations: (usize, usize),
    /// Runs it took.
    pub runs: u64,
    /// Nothing more could be left out. Otherwise the runs were used up.
    pub minimal: bool,
}

/// The usual test of "fails in the same way": the same invariant is broken, or the same panic
/// happens.
pub fn same_promise(failure: &Outcome) -> impl Fn(&Outcome) -> bool + use<> {
    let wanted = failure.end.clone();
    move |outcome| match (&outcome.end, &wanted) {
        (End::Violation(found), End::Violation(wanted)) => found.invariant == wanted.invariant,
        (End::Panic(found), End::Panic(wanted)) => found == wanted,
        _ => false,
    }
}

/// Makes a failing schedule shorter, in at most `most_runs` runs.
///
/// `failure` is a run that fails; `fails` says whether another fails in the same way.
pub fn shrink(
    failure: &Outcome,
    most_runs: u64,
    run: &mut dyn FnMut(&mut dyn Chooser) -> Outcome,
    fails: &dyn Fn(&Outcome) -> bool,
) -> Shrunk {
    let mut shrinker =
        Shrinker { best: failure.clone(), moves: Vec::new(), run, fails, runs: 0, most_runs };
    let before = deviations(&failure.choices);
    // The moves are not in the outcome: see them once.
    let minimal = shrinker.record() && shrinker.shrink();
    let Shrinker { mut best, runs, .. } = shrinker;
    let now = deviations(&best.choices);
    let end = best.choices.iter().rposition(|c| *c != 0).map_or(0, |last| last + 1);
    best.choices.truncate(end);
    Shrunk { outcome: best, deviations: (before, now), runs, minimal }
}

/// Lower is better.
fn cost(outcome: &Outcome) -> (usize, u64, u64) {
    let sum = outcome.choices.iter().map(|c| u64::from(*c)).sum();
    (deviations(&outcome.choices), outcome.steps, sum)
}

struct Shrinker<'a> {
    best: Outcome,
    /// The moves of the best run.
    moves: Vec<Move>,
    run: &'a mut dyn FnMut(&mut dyn Chooser) -> Outcome,
    fails: &'a dyn Fn(&Outcome) -> bool,
    runs: u64,
    most_runs: u64,
}

impl Shrinker<'_> {
    fn used_up(&self) -> bool {
        self.runs >= self.most_runs
    }

    /// Runs the best schedule once more to see its moves. False if it does not fail again.
    fn record(&mut self) -> bool {
        let choices = self.best.choices.clone();
        let mut recorder = Recorder::new(Replay::new(&choices));
        let outcome = (self.run)(&mut recorder);
        self.runs += 1;
        self.moves = recorder.moves;
        (self.fails)(&outcome)
    }

    /// Runs a schedule, and keeps it if it is better.
    fn keep(&mut self, chooser: impl Chooser) -> bool {
        let mut recorder = Recorder::new(chooser);
        let outcome = (self.run)(&mut recorder);
        self.runs += 1;
        let better = (self.fails)(&outcome) && cost(&outcome) < cost(&self.best);
        if better {
            self.best = outcome;
            self.moves = recorder.moves;
        }
        better
    }

    fn keep_moves(&mut self, moves: &[Move]) -> bool {
        !self.used_up() && self.keep(Follow::new(moves))
    }

    fn keep_choices(&mut self, choices: &[u16]) -> bool {
        !self.used_up() && self.keep(Replay::new(choices))
    }

    /// True if nothing more can be left out.
    fn shrink(&mut self) -> bool {
        loop {
            let before = cost(&self.best);
            self.cut_the_end();
            self.leave_out_blocks();
            self.move_blocks();
            self.shorten_blocks();
            self.clear_deviations();
            self.lower_choices();
            if self.used_up() {
                return false;
            }
            if cost(&self.best) == before {
                return true;
            }
        }
    }

    /// Nothing special happens from some step on: the shortest such beginning, by bisection.
    fn cut_the_end(&mut self) {
        let mut fails = self.best.choices.len();
        let mut passes = 0;
        while passes < fails && !self.used_up() {
            let middle = passes + (fails - passes) / 2;
            let choices = self.best.choices[..middle.min(self.best.choices.len())].to_vec();
            if self.keep_choices(&choices) {
                fails = middle;
            } else {
                passes = middle + 1;
            }
        }
    }

    /// Tries all ways of changing `size` neighbours among `count` things, for sizes from many to
    /// one. The change gives whether it made the schedule better, in which case what was at its
    /// place is gone.
    fn in_chunks(
        &mut self,
        count: fn(&Self) -> usize,
        change: impl Fn(&mut Self, usize, usize) -> bool,
    ) {
        let mut size = count(self).div_ceil(2).max(1);
        loop {
            let mut at = 0;
            while at < count(self) && !self.used_up() {
                if !change(self, at, size.min(count(self) - at)) {
                    at += size;
                }
            }
            if size == 1 || self.used_up() {
                return;
            }
            size /= 2;
        }
    }

    fn leave_out_blocks(&mut self) {
        self.in_chunks(
            |s| blocks(&s.moves).len(),
            |s, at, size| {
                let blocks = blocks(&s.moves);
                let mut moves = s.moves.clone();
                moves.drain(blocks[at].0..blocks[at + size - 1].1);
                s.keep_moves(&moves)
            },
        );
    }

    /// A block moves to its neighbours of the same actor, past the next block, or to the end.
    fn move_blocks(&mut self) {
        let mut at = 0;
        while !self.used_up() {
            let blocks = blocks(&self.moves);
            let Some((from, to)) = blocks.get(at).copied() else { break };
            let same = |b: &&(usize, usize)| self.moves[b.0].actor == self.moves[from].actor;
            let earlier = blocks[..at].iter().rev().find(same).map(|b| b.1);
            let later = blocks[at + 1..].iter().find(same).map(|b| b.0);
            let next = blocks.get(at + 1).map(|b| b.1);
            let places = [earlier, later, next, Some(self.moves.len())];
            let better = places.into_iter().flatten().any(|place| {
                let mut moves = self.moves.clone();
                if place <= from {
                    moves[place..to].rotate_right(to - from);
                } else {
                    moves[from..place].rotate_left(to - from);
                }
                self.keep_moves(&moves)
            });
            if !better {
                at += 1;
            }
        }
    }

    /// What an actor did at the end of a block it may do later, or never.
    fn shorten_blocks(&mut self) {
        let mut at = 0;
        while let Some((from, to)) = blocks(&self.moves).get(at).copied() {
            let mut size = to - from - 1;
            while size > 0 && !self.used_up() {
                let mut moves = self.moves.clone();
                moves.drain(to - size..to);
                if self.keep_moves(&moves) {
                    break;
                }
                size /= 2;
            }
            // Once more at the same block if it became shorter.
            if size == 0 || self.used_up() {
                at += 1;
            }
        }
    }

    fn clear_deviations(&mut self) {
        self.in_chunks(
            |s| deviations(&s.best.choices),
            |s, at, size| {
                let mut choices = s.best.choices.clone();
                let chunk = choices.iter_mut().filter(|c| **c != 0).skip(at).take(size);
                chunk.for_each(|c| *c = 0);
                s.keep_choices(&choices)
            },
        );
    }

    fn lower_choices(&mut self) {
        let mut at = 0;
        while at < self.best.choices.len() && !self.used_up() {
            for lower in 1..self.best.choices[at] {
                let mut choices = self.best.choices.clone();
                choices[at] = lower;
                if self.keep_choices(&choices) {
                    break;
                }
            }
            at += 1;
        }
    }
}

/// Stretches of the same actor, as ranges of moves.
fn blocks(moves: &[Move]) -> Vec<(usize, usize)> {
    let mut blocks: Vec<(usize, usize)> = Vec::new();
    for (i, one) in moves.iter().enumerate() {
        match blocks.last_mut() {
            Some((from, to)) if moves[*from].actor == one.actor => *to = i + 1,
            _ => blocks.push((i, i + 1)),
        }
    }
    blocks
}

#[cfg(test)]
mod tests;
