//! How results are shown: a line for each group ([`groups`](super::groups)) or for each check as it
//! comes, and at the end what broke and a summary; or one JSON document.
//!
//! The JSON form is a contract (schema 1): a reader finds `name`, `kind`, `expected`, `observed`,
//! `pass`, `runs` and `seed` in every check; the other fields are there when they mean something.
//! Host times are in the lines only, so that the document is the same in every run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::runner::Timed;
use super::{CheckResult, Failure, Verdict};
use crate::output::{SCHEMA, emit, figure};

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    checks: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    kind: &'static str,
    expected: &'a str,
    observed: &'a str,
    pass: bool,
    runs: u64,
    seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    states: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bounds: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    witnesses: BTreeMap<&'a str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<&'a str>,
}

/// A named result.
pub type Entry = (String, &'static str, CheckResult);

/// The document of these results: one line of JSON.
#[must_use]
pub fn json(results: &[Entry]) -> String {
    let checks = results
        .iter()
        .map(|(name, kind, r)| Row {
            name,
            kind,
            expected: &r.expected,
            observed: &r.observed,
            pass: r.verdict == Verdict::Pass,
            runs: r.runs,
            seed: r.seed,
            steps: r.steps,
            states: r.states,
            depth: r.depth,
            bounds: r.bounds.as_deref(),
            witnesses: r.witnesses.iter().map(|w| (w.name.as_str(), w.seen)).collect(),
            replay: r.failure.as_ref().or(r.example.as_ref()).and_then(|f| f.replay.as_deref()),
        })
        .collect();
    serde_json::to_string(&Document { schema: SCHEMA, checks })
        .expect("results hold only strings and numbers")
}

/// Shows results as lines.
#[derive(Debug)]
pub struct Lines {
    width: usize,
}

impl Lines {
    /// Lines whose names are aligned.
    #[must_use]
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self { width: names.map(str::len).max().unwrap_or(0) }
    }

    /// One result. An exploration that found nothing says in a second line under which bounds, and
    /// what it saw.
    #[must_use]
    pub fn line(&self, name: &str, timed: &Timed) -> String {
        let r = &timed.result;
        let as_expected = r.verdict == Verdict::Pass && r.observed.starts_with(&r.expected);
        let seen = if as_expected || r.expected.is_empty() {
            r.observed.clone()
        } else {
            format!("expected {}, observed {}", r.expected, r.observed)
        };
        let width = self.width;
        let looked_at = looked_at(r, timed.took);
        let mut line = format!("{:7} {name:width$}  {seen}  ({looked_at})", r.verdict.word());
        let explored = r.states.is_some() && r.found_in.is_none();
        if let Some(bounds) = r.bounds.as_deref().filter(|_| explored) {
            let _ =
                write!(line, "\n{:7} {:width$}  under {}", "", "", bounds.trim_start_matches("; "));
            for (i, witness) in r.witnesses.iter().filter(|w| w.seen > 0).enumerate() {
                let _ = write!(line, "{} {}", if i == 0 { "; saw" } else { "," }, witness.name);
            }
        }
        line
    }
}

/// How much was looked at, in what time.
fn looked_at(r: &CheckResult, took: Duration) -> String {
    let mut parts = Vec::new();
    parts.extend(r.found_in.map(|t| format!("found in {}", duration(t))));
    let mut count = |n: Option<u64>, one: &str, many: &str| {
        if let Some(n) = n.filter(|&n| n > 0) {
            parts.push(format!("{} {}", grouped(n), if n == 1 { one } else { many }));
        }
    };
    count(Some(r.runs), "run", "runs");
    count(r.states, "state", "states");
    count(r.depth, "step deep", "steps deep");
    count(r.steps, "step", "steps");
    parts.push(duration(took));
    parts.join(", ")
}

/// A count with its thousands set apart.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts are far below 2^52
pub fn grouped(n: u64) -> String {
    figure(n as f64)
}

/// A host time, with as many digits as one reads.
#[must_use]
pub fn duration(took: Duration) -> String {
    let s = took.as_secs_f64();
    match s {
        s if s >= 60.0 => format!("{} min {:02} s", took.as_secs() / 60, took.as_secs() % 60),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.1} ms", s * 1e3),
    }
}

/// How a promise was broken, and how to see it again.
pub fn failure(failure: &Failure) {
    emit(failure.timeline.trim_end());
    if let Some(replay) = &failure.replay {
        emit(&format!("see it again: shootdown check --replay {replay}"));
    }
}

/// How many checks came out how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// What was expected was observed.
    pub passed: usize,
    /// It was not.
    pub failed: usize,
    /// A limit was reached first.
    pub unknown: usize,
    /// The machine can't decide it.
    pub skipped: usize,
}

impl Tally {
    /// Counts results.
    #[must_use]
    pub fn of(results: &[Entry]) -> Self {
        let mut tally = Self::default();
        results.iter().for_each(|(_, _, r)| tally.count(r.verdict));
        tally
    }

    /// Counts one more.
    pub fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Pass => self.passed += 1,
            Verdict::Fail => self.failed += 1,
            Verdict::Unknown => self.unknown += 1,
            Verdict::Skipped => self.skipped += 1,
        }
    }

    /// What is to be said of all of them together.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match self {
            Self { failed: 1.., .. } => Verdict::Fail,
            Self { unknown: 1.., .. } => Verdict::Unknown,
            Self { passed: 0, skipped: 1.., .. } => Verdict::Skipped,
            _ => Verdict::Pass,
        }
    }

    /// Whether everything asked for held.
    #[must_use]
    pub fn held(&self) -> bool {
        self.failed == 0 && self.unknown == 0
    }

    /// In words.
    #[must_use]
    pub fn sentence(&self) -> String {
        let mut words = format!("{} passed", self.passed);
        for (n, what) in [
            (self.failed, "failed"),
            (self.unknown, "unknown (a limit was reached)"),
            (self.skipped, "skipped"),
        ] {
            if n > 0 {
                words.push_str(&format!(", {n} {what}"));
            }
        }
        words
    }
}
