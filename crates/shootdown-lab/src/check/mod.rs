//! What `shootdown check` runs.
//!
//! A [`Check`] is one question with one answer: is this outcome reachable, is this bug found with
//! its step broken and not found with it whole, does any schedule of this world break a promise? It
//! says what it expected, what it observed, and how much it looked at.
//!
//! # No vacuous pass
//! - V1: a check that stopped at a limit says [`Verdict::Unknown`], never [`Verdict::Pass`].
//! - V2: a check names the [`Witness`]es that must have been seen; a missing one fails it.
//! - V3: results depend on the settings alone: not on the number of threads, nor on the host.
//!
//! | module | holds |
//! |---|---|
//! | [`hunted`] | scenes, and what hunting them by chance and exhaustively has in common |
//! | [`random`], [`exhaustive`], [`soak`] | the ways of hunting |
//! | [`litmus`] | litmus tests, built in and from a folder |
//! | [`zoo`] | historical bugs, found with their step broken and not with it whole |
//! | [`breakers`] | for every invariant the steps without which it breaks |
//! | [`adversary`] | which powers the adversary has |
//! | [`code`], [`replay`] | the line that shows a failure again |
//! | [`steps`] | the step that is taken out of one of the libraries, the policy that they run under |
//! | [`select`] | which checks the names on the command line mean |
//! | [`runner`] | running them side by side |
//! | [`groups`] | the line of each group |
//! | [`report`] | the lines of checks, the JSON document and the summary |

pub mod adversary;
pub mod automatic;
pub mod breakers;
pub mod code;
pub mod exhaustive;
pub mod groups;
pub mod hunted;
pub mod litmus;
pub mod mutants;
pub mod random;
pub mod replay;
pub mod report;
pub mod runner;
pub mod scenes;
pub mod select;
pub mod soak;
pub mod steps;
pub mod zoo;

use std::fmt;
use std::time::Duration;

use self::adversary::Adversary;
use self::hunted::Scene;
use self::steps::{Chosen, Removed};
use crate::progress::Progress;

/// What sort of question a check asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// A small program whose outcomes an architecture manual allows or forbids.
    Litmus,
    /// A historical bug: found with its step broken, not found with it whole.
    Zoo,
    /// A step taken out of the library: some hunt must object.
    Mutant,
    /// Programs and schedules by chance.
    Random,
    /// Every schedule of a small world.
    Exhaustive,
    /// Chance again, for as long as asked.
    Soak,
}

impl Kind {
    /// All of them, in the order in which they run.
    pub const ALL: [Self; 6] =
        [Self::Litmus, Self::Zoo, Self::Mutant, Self::Random, Self::Exhaustive, Self::Soak];

    /// As JSON has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Litmus => "litmus",
            Self::Zoo => "zoo",
            Self::Mutant => "mutant",
            Self::Random => "random",
            Self::Exhaustive => "exhaustive",
            Self::Soak => "soak",
        }
    }

    /// As typed on the command line, and the first part of a check's name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mutant => "mutants",
            other => other.name(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the user asked of the checks.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seed of every random choice.
    pub seed: u64,
    /// How many schedules a check tries; `None` for the check's own number.
    pub runs: Option<u64>,
    /// Under how many seeds each mutant is hunted, this one and those after it, none of which may
    /// take long; `None` for this one, however long it takes.
    pub seeds: Option<u64>,
    /// How many checks run side by side.
    pub threads: usize,
    /// The policy one of the libraries runs under; `None` for the check's own.
    pub policy: Option<Chosen>,
    /// What the user changed about the adversary.
    pub adversary: Adversary,
    /// A step taken out of one of the libraries, so that a check can be seen to fail.
    pub mutant: Option<Removed>,
    /// How long a soak goes on.
    pub soak: Option<soak::Limit>,
}

impl Default for Settings {
    /// Everything as each check has it, one at a time.
    fn default() -> Self {
        Self {
            seed: 1,
            runs: None,
            seeds: None,
            threads: 1,
            policy: None,
            adversary: Adversary::default(),
            mutant: None,
            soak: None,
        }
    }
}

/// What came of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// What was expected was observed, and everything was looked at.
    Pass,
    /// Something else was observed, or a witness is missing.
    Fail,
    /// A limit was reached first.
    Unknown,
    /// The machine can't decide it, and says why.
    Skipped,
}

impl Verdict {
    /// Four letters for the table.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Unknown => "UNKNOWN",
            Self::Skipped => "skip",
        }
    }
}

/// Something a check must have seen, lest it pass without having looked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Witness {
    /// What was to be seen.
    pub name: String,
    /// In how many schedules (or states) it was.
    pub seen: u64,
}

/// How a promise was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The minimal schedule, for a person: CPU columns, one event a line.
    pub timeline: String,
    /// What `shootdown check --replay` takes to show it again.
    pub replay: Option<String>,
}

/// What a check says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckResult {
    /// What should be observed.
    pub expected: String,
    /// What was.
    pub observed: String,
    /// Whether the two agree.
    pub verdict: Verdict,
    /// Schedules tried.
    pub runs: u64,
    /// Hostile steps in all of them.
    pub steps: Option<u64>,
    /// Distinct states, when every schedule was looked at.
    pub states: Option<u64>,
    /// The longest schedule.
    pub depth: Option<u64>,
    /// Under which bounds this was looked at.
    pub bounds: Option<String>,
    /// The seed, when chance played a part.
    pub seed: Option<u64>,
    /// What had to be seen.
    pub witnesses: Vec<Witness>,
    /// How a promise was broken, when one was that should not have been.
    pub failure: Option<Failure>,
    /// How a promise was broken that was meant to be: an example.
    pub example: Option<Failure>,
    /// How long the host took to find the example; for people, as all host times.
    pub found_in: Option<Duration>,
}

impl CheckResult {
    /// A result without figures.
    #[must_use]
    pub fn new(expected: impl Into<String>, observed: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            expected: expected.into(),
            observed: observed.into(),
            verdict,
            runs: 0,
            steps: None,
            states: None,
            depth: None,
            bounds: None,
            seed: None,
            witnesses: Vec::new(),
            failure: None,
            example: None,
            found_in: None,
        }
    }

    /// What was required to be seen, and how often it was. A missing one turns a pass into a
    /// failure (V2) and is named in what was observed; what broke early need not have seen
    /// everything.
    #[must_use]
    pub fn requiring(mut self, witnesses: Vec<Witness>) -> Self {
        let missing: Vec<&str> =
            witnesses.iter().filter(|w| w.seen == 0).map(|w| w.name.as_str()).collect();
        if !missing.is_empty() && self.verdict != Verdict::Fail {
            if self.verdict == Verdict::Pass {
                self.verdict = Verdict::Fail;
            }
            self.observed = format!("{}; never saw {}", self.observed, missing.join(", "));
        }
        self.witnesses.extend(witnesses);
        self
    }
}

/// Something `shootdown check` can run.
pub trait Check: Send + Sync {
    /// As typed on the command line: the kind's word, a slash, and a name of its own.
    fn name(&self) -> &str;

    /// What sort of question it asks.
    fn kind(&self) -> Kind;

    /// One line for `shootdown list checks`.
    fn line(&self) -> &str;

    /// Whether `shootdown check` without names runs it.
    fn by_default(&self) -> bool {
        true
    }

    /// The scene whose schedules its failures are, for `--replay`.
    fn scene(&self) -> Option<&dyn Scene> {
        None
    }

    /// The scene with this step of its kernel missing, if that is what the check is about.
    fn broken(&self, step: &str) -> Option<&dyn Scene> {
        let _ = step;
        None
    }

    /// Runs it. The answer depends on the settings alone (V3), but for [`CheckResult::found_in`].
    fn run(&self, settings: &Settings, progress: &Progress) -> CheckResult;
}

/// Several checks.
pub type Checks = Vec<Box<dyn Check>>;

/// Where checks come from, in the order in which they run and are listed.
const GROUPS: &[fn() -> Checks] = &[
    litmus::checks,
    zoo::checks,
    mutants::checks,
    scenes::random,
    scenes::exhaustive,
    scenes::exhaustive_devices,
    scenes::soak,
];

/// Every check.
#[must_use]
pub fn all() -> Checks {
    GROUPS.iter().flat_map(|group| group()).collect()
}

/// A seed for one use out of the run's seed and a name: what one check draws does not depend on
/// which others run (FNV-1a over the name, mixed by splitmix64).
#[must_use]
pub fn seed_for(seed: u64, name: &str) -> u64 {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    crate::experiments::chance(seed, hash)
}
