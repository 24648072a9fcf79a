//! From explorations to a verdict.

use std::fmt::Write as _;

use super::error::RunError;
use super::explore::{Explored, explore};
use super::machine::Options;
use super::test::{Arch, Case, Expectation, Test};

/// How a test came out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As published, on every machine that the test names.
    Pass,
    /// Not so; the text says what was found instead.
    Fail(String),
    /// Our machine cannot decide the test; the text says why. Never counted as passed.
    Unsupported(String),
    /// The exploration was not finished: the answer is not known.
    Unknown(String),
}

/// What running a test gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The test's name.
    pub name: String,
    /// Its architecture.
    pub arch: Arch,
    /// Where the expected verdict comes from.
    pub source: String,
    /// The expected verdicts, as text: `forbidden; allowed with ets2`.
    pub expected: String,
    /// What was observed, in the same form.
    pub observed: String,
    /// The result.
    pub outcome: Outcome,
    /// Is the result [`Outcome::Pass`]?
    pub pass: bool,
    /// The published verdict itself is in doubt, and why.
    pub uncertain: Option<String>,
    /// Distinct states, over all machines of the test.
    pub states: usize,
    /// Steps between them.
    pub transitions: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// Distinct endings.
    pub finals: usize,
    /// Witnesses reached, and witnesses asked for.
    pub witnesses: (usize, usize),
}

/// Runs a test on every machine that it gives a verdict for.
#[must_use]
pub fn run(test: &Test, options: &Options) -> Verdict {
    let expected = list(test.cases().iter().map(|case| (*case, case.expected.to_string())));
    let mut verdict = Verdict {
        name: test.name().to_owned(),
        arch: test.arch(),
        source: test.source().to_owned(),
        expected,
        observed: String::new(),
        outcome: Outcome::Pass,
        pass: false,
        uncertain: test.uncertain().map(str::to_owned),
        states: 0,
        transitions: 0,
        depth: 0,
        finals: 0,
        witnesses: (0, 0),
    };
    if let Some(reason) = test.unsupported() {
        "not run".clone_into(&mut verdict.observed);
        verdict.outcome = Outcome::Unsupported(reason.to_owned());
        return verdict;
    }
    let (mut observed, mut problems) = (Vec::new(), Vec::new());
    for case in test.cases() {
        match explore(test, case.features, options) {
            Ok(found) => {
                verdict.add(&found);
                let (seen, problem) = judge(test, *case, &found);
                observed.push((*case, seen.to_string()));
                if let Some(problem) = problem {
                    problems.push(with_features(*case, problem));
                }
            }
            Err(RunError::Unsupported(reason)) => {
                verdict.outcome = Outcome::Unsupported(reason);
                break;
            }
            Err(error) => {
                verdict.outcome = Outcome::Unknown(error.to_string());
                break;
            }
        }
    }
    if verdict.outcome == Outcome::Pass && !problems.is_empty() {
        verdict.outcome = Outcome::Fail(problems.join("; "));
    }
    verdict.observed = list(observed.into_iter());
    verdict.pass = verdict.outcome == Outcome::Pass;
    verdict
}

impl Verdict {
    fn add(&mut self, found: &Explored) {
        self.states += found.states;
        self.transitions += found.transitions;
        self.depth = self.depth.max(found.depth);
        self.finals += found.finals.len();
        self.witnesses.0 += found.witnesses.iter().filter(|reached| **reached).count();
        self.witnesses.1 += found.witnesses.len();
    }
}

/// What was seen, and what is wrong with it if something is.
fn judge(test: &Test, case: Case, found: &Explored) -> (&'static str, Option<String>) {
    let seen = match (found.yes, found.no) {
        (0, 0) => return ("no ending", Some("no run comes to an end".to_owned())),
        (0, _) => "never",
        (_, 0) => "always",
        _ => "sometimes",
    };
    let right = match case.expected {
        Expectation::Allowed => found.yes > 0,
        Expectation::Forbidden => found.yes == 0,
        Expectation::Required => found.no == 0,
    };
    if !right {
        return (seen, Some(format!("{} but {seen} observed", case.expected)));
    }
    let missing: Vec<String> = (1..)
        .zip(&found.witnesses)
        .filter(|(_, reached)| !**reached)
        .map(|(number, _)| number.to_string())
        .collect();
    if missing.is_empty() || test.witnesses.is_empty() {
        return (seen, None);
    }
    (seen, Some(format!("witness {} never reached: the test proves nothing", missing.join(", "))))
}

fn with_features(case: Case, mut problem: String) -> String {
    let features = case.features.to_string();
    if !features.is_empty() {
        let _ = write!(problem, " with {features}");
    }
    problem
}

fn list(parts: impl Iterator<Item = (Case, String)>) -> String {
    parts.map(|(case, text)| with_features(case, text)).collect::<Vec<_>>().join("; ")
}
