//! Schedules: choosing, exploring, searching, shrinking, writing down and drawing them.
//!
//! A schedule is the list of the choices of one run ([`Outcome::choices`]). What runs it is
//! anything that takes a [`Chooser`] and gives an [`Outcome`]: the executor of the hunt, or a toy
//! in a test.
//!
//! | to | use |
//! |---|---|
//! | try many schedules, on several threads | [`search`] with a [`Strategy`] |
//! | decide at random, by priorities, with CPUs that stand still | [`Random`], [`Pct`], [`Preempted`] |
//! | explore every schedule of a small configuration | [`exhaustive`] |
//! | see a run again | [`Replay`], from one line of text with [`decode`] ([`encode`] makes the line) |
//! | find the shortest schedule that breaks the same promise | [`shrink`] |
//! | draw what happened, a column per CPU | [`draw_run`], [`draw`] |

mod code;
mod columns;
mod exhaustive;
mod pct;
mod random;
mod replay;
mod rng;
mod search;
mod shrink;
#[cfg(test)]
mod toy;

pub use code::{CodeError, decode, encode};
pub use columns::{Entry, draw, draw_run};
pub use exhaustive::{Ended, Limits, Reduction, Report, exhaustive};
pub use pct::Pct;
pub use random::{Freezing, Preempted, Random, Tuning};
pub use replay::{Replay, deviations};
pub use rng::{Odds, Rng};
pub use search::{Effort, Searched, Strategy, search, search_here};
pub use shrink::{Shrunk, same_promise, shrink};

#[cfg(doc)]
use super::Chooser;
use super::Outcome;

/// A run that broke a promise, or panicked.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Which run of the search it was, counted from 0.
    pub run: u64,
    /// What happened; its choices are the schedule.
    pub outcome: Outcome,
}
