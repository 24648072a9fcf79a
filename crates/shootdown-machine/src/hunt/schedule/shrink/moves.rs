//! A schedule as moves: who went, and what the run chose on the way.

use crate::hunt::{Actor, Chooser, Decision, Point};

/// A choice of who goes next, with the choices that the run asked for until the next one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub(super) actor: Actor,
    /// Values and faults, in order; 0 beyond the end.
    pub(super) branches: Vec<u16>,
}

/// Notes the moves of a run that another chooser decides.
pub(super) struct Recorder<C> {
    inner: C,
    pub(super) moves: Vec<Move>,
}

impl<C> Recorder<C> {
    pub(super) fn new(inner: C) -> Self {
        Self { inner, moves: Vec::new() }
    }
}

impl<C: Chooser> Chooser for Recorder<C> {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        let decision = self.inner.choose(point);
        if let Decision::Take(taken) = decision {
            match point {
                Point::Next { candidates, .. } => {
                    let actor = candidates[taken].actor;
                    self.moves.push(Move { actor, branches: Vec::new() });
                }
                Point::Value { .. } | Point::Fault { .. } => {
                    if let Some(last) = self.moves.last_mut() {
                        last.branches.push(taken as u16);
                    }
                }
            }
        }
        decision
    }

    fn wants_state(&self) -> bool {
        self.inner.wants_state()
    }
}

/// Makes moves as far as they can be made: one whose actor can't go is left out. After the last,
/// nothing special happens.
pub(super) struct Follow<'a> {
    moves: &'a [Move],
    /// The next move.
    at: usize,
    /// The branches of the move being made that were not asked for yet.
    branches: &'a [u16],
}

impl<'a> Follow<'a> {
    pub(super) fn new(moves: &'a [Move]) -> Self {
        Self { moves, at: 0, branches: &[] }
    }
}

impl Chooser for Follow<'_> {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        Decision::Take(match point {
            Point::Next { candidates, .. } => {
                self.branches = &[];
                loop {
                    let Some(next) = self.moves.get(self.at) else { break 0 };
                    self.at += 1;
                    if let Some(i) = candidates.iter().position(|c| c.actor == next.actor) {
                        self.branches = &next.branches;
                        break i;
                    }
                }
            }
            Point::Value { .. } | Point::Fault { .. } => match self.branches.split_first() {
                Some((taken, rest)) => {
                    self.branches = rest;
                    let taken = usize::from(*taken);
                    if taken < point.options() { taken } else { 0 }
                }
                None => 0,
            },
        })
    }
}
