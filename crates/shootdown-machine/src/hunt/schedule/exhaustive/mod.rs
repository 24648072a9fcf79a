//! Every schedule there is: depth first, by running again.
//!
//! # Problem
//!
//! The state of a run lives on the stacks of coroutines and cannot be copied. So an exhaustive
//! search runs the program again for every branch: it replays the choices up to the branch, takes
//! the next option there and goes on with option 0. Without more, this takes as many runs as there
//! are schedules: C(20, 10) = 184,756 for two CPUs of ten steps each, of which most end in the same
//! states.
//!
//! # Reduction
//!
//! - **State caching** ([`Reduction::cache`]): a run is abandoned in a state that was seen before.
//!   States are told apart by the 64-bit hash that the executor makes of the *whole* state, the
//!   oracle's memory included. Two of n states share a hash with a probability of about n^2 / 2^65:
//!   3 in 10 million for 3 million states. Then a state is missed; nothing else happens.
//! - **Sleep sets** ([`Reduction::sleep`]; P. Godefroid, LNCS 1032, 1996): when all that follows an
//!   actor's step t in a state has been explored, the step need not be taken after the step u of
//!   another actor either, as long as only steps are taken that are independent of t: `t u` and `u
//!   t` lead to the same states. t *sleeps* until a step that depends on it.
//!
//! Together: a state is stored with the steps that slept in it. When it is seen again, it need not
//! be explored again if all those sleep now too. Otherwise only those that slept then and do not
//! now are explored, and the intersection is stored. No reachable state is missed:
//!
//! > Claim: for every visited state s, with Z the set stored last for s, and every path w from s of
//! > which no equivalent path (independent neighbours exchanged) begins with a step in Z, the state
//! > at the end of w is visited. Proof by induction on the length of w. Let F be the steps with
//! > which paths equivalent to w begin. None is in Z, so all were taken from s, in one visit or
//! > another. Let V be the latest visit that took one, t the first of F that V took. No other step
//! > of F slept then: what an earlier visit took is in no later set. The child was entered with the
//! > steps asleep that slept at t and are independent of t. If the rest of w, or a path equivalent
//! > to it, began with one of those, then that step would be in F and asleep at t. So none does,
//! > and the rest of w, one step shorter, satisfies the claim at the child. The first state is
//! > entered with nothing asleep.
//!
//! The proof needs no acyclic state space: a loop that waits leads to a state seen before.
//! A step that has several outcomes (values, faults) sleeps only when all of them have been
//! explored.
//!
//! # What the executor owes
//!
//! 1. The same choices give the same run. Checked: a replay that finds other options ends the
//!    search ([`Ended::Diverged`]).
//! 2. The candidates, their footprints and all that follows depend on the state that was hashed,
//!    and on nothing else (the order of candidates aside). Equal states, equal hash.
//! 3. A step independent of another neither enables nor disables it, nor changes its footprint, and
//!    both orders lead to the same states (as sets, where steps have several outcomes). Checked in
//!    part: [`Report::irregular`] counts sleeping steps that are gone, or have another footprint,
//!    after a step they are independent of. They are woken. So a kick depends on every step where
//!    interrupts are taken at once: the others can't go until it is taken.
//! 4. Where the chooser wants the state, the executor should ask who goes next also where one actor
//!    only can (and note no choice), so that the search sees every step. An executor that does not
//!    is explored as well, but few steps can sleep: of two CPUs none.
//! 5. [`Reduction::NONE`] explores without all this, and must find the same final states
//!    ([`Report::finals`], [`Report::digest`]).
//!
//! A search that did not see everything says so ([`Ended`]): it is never a pass.

mod explorer;
mod seen;

use std::fmt;
use std::time::{Duration, Instant};

use self::explorer::Explorer;
use self::seen::Seen;
use super::Found;
use crate::hunt::{Chooser, End, Outcome};

/// What need not be explored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction {
    /// What follows a state seen before.
    pub cache: bool,
    /// Independent steps in both orders.
    pub sleep: bool,
}

impl Reduction {
    /// Everything that may be skipped is.
    pub const FULL: Self = Self { cache: true, sleep: true };
    /// Every schedule is run to its end. Only for runs that always end.
    pub const NONE: Self = Self { cache: false, sleep: false };
}

/// When to give up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most distinct states. Each takes about 20 to 40 bytes.
    pub states: usize,
    /// The most runs.
    pub runs: u64,
    /// The longest time.
    pub time: Option<Duration>,
    /// The search ends with the first broken promise; otherwise it counts them.
    pub first_violation: bool,
}

impl Default for Limits {
    /// Twelve million states (half a GB), no limit of runs and time, and the first violation ends
    /// it.
    fn default() -> Self {
        Self { states: 12 << 20, runs: u64::MAX, time: None, first_violation: true }
    }
}

/// How a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// Everything was explored.
    Complete,
    /// At the first broken promise.
    Violation,
    /// At [`Limits::states`].
    States,
    /// At [`Limits::runs`].
    Runs,
    /// At [`Limits::time`].
    Time,
    /// All branches were tried, but some runs were cut off at their own limit of steps.
    Cut,
    /// The same choices gave another run.
    Diverged,
    /// The executor gave no hash of the state.
    NoState,
    /// More than 21 CPUs, or more than 64 candidates at once.
    TooWide,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Complete => "complete",
            Self::Violation => "a promise was broken",
            Self::States => "stopped at the limit of states",
            Self::Runs => "stopped at the limit of runs",
            Self::Time => "stopped at the limit of time",
            Self::Cut => "some runs were cut off at their limit of steps",
            Self::Diverged => {
                "the same choices gave another run: the executor is not deterministic"
            }
            Self::NoState => "the executor gave no hash of its state",
            Self::TooWide => "too many CPUs: at most 21 with at most 64 candidates at once",
        })
    }
}

/// What an exhaustive search saw.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Distinct states at which there was a choice of who goes next.
    pub states: u64,
    /// Ways from one such state to the next that were explored.
    pub transitions: u64,
    /// Runs, abandoned ones included.
    pub runs: u64,
    /// The most choices in one run.
    pub depth: usize,
    /// Why it ended.
    pub ended: Ended,
    /// Distinct states in which runs finished.
    pub finals: u64,
    /// A hash of the set of those states. Equal sets, equal digests, in whatever order they came.
    pub digest: u64,
    /// Runs that broke a promise, or panicked.
    pub violations: u64,
    /// Times a step changed another that it is said to be independent of: not 0, and the
    /// footprints lie.
    pub irregular: u64,
    /// The first of them.
    pub found: Option<Found>,
}

impl Report {
    /// Was everything explored, and with footprints that can be trusted?
    #[must_use]
    pub fn complete(&self) -> bool {
        self.ended == Ended::Complete && self.irregular == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, runs, depth, finals, violations, .. } = self;
        write!(
            f,
            "{states} states, {transitions} transitions, {runs} runs, depth {depth}, \
             {finals} final states, {violations} violations: {}",
            self.ended
        )?;
        if self.irregular > 0 {
            write!(f, "; footprints wrong {} times", self.irregular)?;
        }
        Ok(())
    }
}

/// Explores every schedule.
///
/// `run` is the executor; `watch` is told every outcome, in the same order in every search (for
/// witnesses, or a bar that shows how far it is).
pub fn exhaustive(
    limits: Limits,
    reduction: Reduction,
    run: &mut dyn FnMut(&mut dyn Chooser) -> Outcome,
    watch: &mut dyn FnMut(&Report, &Outcome),
) -> Report {
    let begun = Instant::now();
    let mut explorer = Explorer::new(reduction, limits.states);
    let mut finals = Seen::default();
    let mut report = Report {
        states: 0,
        transitions: 0,
        runs: 0,
        depth: 0,
        ended: Ended::Complete,
        finals: 0,
        digest: 0,
        violations: 0,
        irregular: 0,
        found: None,
    };
    let mut cut = false;
    report.ended = loop {
        if report.runs == limits.runs {
            break Ended::Runs;
        }
        if limits.time.is_some_and(|t| begun.elapsed() >= t) {
            break Ended::Time;
        }
        explorer.begin();
        let outcome = run(&mut explorer);
        explorer.end();
        report.runs += 1;
        report.states = explorer.states();
        report.transitions = explorer.transitions;
        report.depth = report.depth.max(explorer.depth());
        report.irregular = explorer.irregular;
        match &outcome.end {
            End::Finished => {
                if finals.insert(outcome.state) {
                    report.finals += 1;
                    report.digest = report.digest.wrapping_add(super::rng::mix(outcome.state));
                }
            }
            End::Violation(_) | End::Panic(_) => report.violations += 1,
            End::Abandoned => {}
            End::Limit => cut = true,
        }
        watch(&report, &outcome);
        let violation = outcome.end.is_failure();
        if violation && report.found.is_none() {
            report.found = Some(Found { run: report.runs - 1, outcome });
        }
        if let Some(trouble) = explorer.trouble() {
            break trouble;
        }
        if violation && limits.first_violation {
            break Ended::Violation;
        }
        if !explorer.advance() {
            break if cut { Ended::Cut } else { Ended::Complete };
        }
    };
    report
}

#[cfg(test)]
mod tests;
