//! A schedule again, from its list of choices.

use crate::hunt::{Chooser, Decision, Point};

/// Takes the choices of a list, one per point with more than one option, and 0 after its end.
///
/// A choice that a point does not have (the list is of another schedule) counts as 0, so that every
/// list is a schedule; what was really taken is in the outcome.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hunt::schedule::toy::{dekker, handshake};
    use crate::hunt::schedule::{Random, Rng};

    #[test]
    fn a_run_comes_again_from_its_choices() {
        for toy in [dekker(false), dekker(true).asks_alone(true), handshake(3, 3)] {
            for run in 0..200 {
                let first = toy.run(&mut Random::new(Rng::of_run(1, run)));
                assert_eq!(toy.run(&mut Replay::new(&first.choices)), first);
                // Zeros at the end are not needed.
                let end = first.choices.iter().rposition(|c| *c != 0).map_or(0, |i| i + 1);
                assert_eq!(toy.run(&mut Replay::new(&first.choices[..end])), first);
            }
        }
    }

    #[test]
    fn a_choice_that_there_is_not_is_0() {
        let plain = dekker(true).run(&mut Replay::new(&[]));
        assert_eq!(dekker(true).run(&mut Replay::new(&[900; 50])), plain);
        assert_eq!(deviations(&plain.choices), 0);
    }
}
