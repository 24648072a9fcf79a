//! A schedule again, from its list of choices.

use crate::hunt::{Chooser, Decision, Point};

/// Takes the choices of a list, one per point with more than one option, and 0 after its end.
///
/// A choice that a point does not have (the list is of another schedule) counts as 0, so that every list
/// is a schedule; what was really taken is in the outcome.
#[derive(Clone, Debug)]
pub struct Replay<'a> {
    choices: std::slice::Iter<'a, u16>,
}

impl<'a> Replay<'a> {
    /// Of this list.
    #[must_use]
    pub fn new(choices: &'a [u16]) -> Self {
        Self { choices: choices.iter() }
    }
}

impl Chooser for Replay<'_> {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        if point.options() < 2 {
            return Decision::Take(0);
        }
        let taken = self.choices.next().map_or(0, |c| usize::from(*c));
        Decision::Take(if taken < point.options() { taken } else { 0 })
    }
}

/// How many choices of a schedule are not 0.
#[must_use]
pub fn deviations(choices: &[u16]) -> usize {
    choices.iter().filter(|c| **c != 0).count()
}
