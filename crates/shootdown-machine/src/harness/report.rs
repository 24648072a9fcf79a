//! What a hunt says.

use std::collections::BTreeMap;
use std::fmt;

use shootdown::mutant::Mutant;

use super::Code;
use crate::hunt::End;
use crate::hunt::kernel::Program;
use crate::hunt::schedule;
use crate::oracle::Invariant;

/// What came of a hunt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No promise was broken, everything asked for was looked at, and the controls were found.
    Kept,
    /// A promise was broken, or the code panicked.
    Broken,
    /// Neither: a limit was reached, a witness not seen, or a control not found.
    Unknown,
}

/// A small program of which every schedule was to be explored.
#[derive(Clone, PartialEq, Debug)]
pub struct Explored {
    /// Which; `None` is a world of one's own.
    pub program: Option<Program>,
    /// What came of it.
    pub report: schedule::Report,
}

/// A step taken out of the library, and whether the hunt noticed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Control {
    /// The step.
    pub mutant: Mutant,
    /// After how many runs; `None`: not at all.
    pub found: Option<u64>,
}

/// How a promise was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What ended the run: a broken promise or a panic.
    pub end: End,
    /// The run, as short as it could be made.
    pub code: Code,
    /// Points at which the adversary did something else than the plainest: at first, and at the
    /// end.
    pub deviations: (usize, usize),
    /// Nothing more could be left out of the schedule.
    pub minimal: bool,
    /// What happened, for a person.
    pub timeline: String,
}

impl Failure {
    /// Which promise was broken; `None`: the code panicked.
    #[must_use]
    pub fn invariant(&self) -> Option<Invariant> {
        match &self.end {
            End::Violation(violation) => Some(violation.invariant),
            _ => None,
        }
    }
}

/// What a hunt saw. Its text is for a person.
#[derive(Clone, PartialEq, Debug)]
#[must_use]
pub struct Report {
    /// Programs made by chance.
    pub programs: u64,
    /// Runs by chance.
    pub runs: u64,
    /// Their steps.
    pub steps: u64,
    /// Those cut at the limit of steps.
    pub cut: u64,
    /// What was explored.
    pub explored: Vec<Explored>,
    /// The controls.
    pub controls: Vec<Control>,
    /// In how many runs each witness was reached.
    pub witnesses: BTreeMap<&'static str, u64>,
    /// What should have been seen.
    pub required: Vec<&'static str>,
    /// The first broken promise.
    pub failure: Option<Failure>,
}

impl Report {
    pub(super) const fn new(required: Vec<&'static str>) -> Self {
        Self {
            programs: 0,
            runs: 0,
            steps: 0,
            cut: 0,
            explored: Vec::new(),
            controls: Vec::new(),
            witnesses: BTreeMap::new(),
            required,
            failure: None,
        }
    }

    pub(super) fn see_all(&mut self, runs: Vec<Vec<&'static str>>) {
        for witness in runs.into_iter().flatten() {
            *self.witnesses.entry(witness).or_default() += 1;
        }
    }

    /// What the hunt comes to.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.failure.is_some() {
            Verdict::Broken
        } else if self.doubts().is_empty() {
            Verdict::Kept
        } else {
            Verdict::Unknown
        }
    }

    /// Why a hunt that found nothing proves nothing: a sentence each.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        if self.cut > 0 {
            doubts.push(format!("{} runs were cut at their limit of steps", self.cut));
        }
        for one in &self.explored {
            if !one.report.complete() {
                doubts.push(format!("not all schedules were explored: {}", one.report));
            }
        }
        for control in &self.controls {
            if control.found.is_none() {
                let name = control.mutant.name();
                doubts.push(format!("the control was not found: the library without `{name}`"));
            }
        }
        for witness in &self.required {
            if !self.witnesses.contains_key(witness) {
                doubts.push(format!("`{witness}` was never seen"));
            }
        }
        doubts
    }

    /// 0 when every promise was kept, 1 otherwise: for `std::process::exit`.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::from(self.verdict() != Verdict::Kept)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { programs, runs, steps, .. } = self;
        if *programs > 0 {
            write!(f, "{programs} programs, ")?;
        }
        writeln!(f, "{runs} schedules by chance, {steps} steps")?;
        for one in &self.explored {
            match &one.program {
                Some(program) => writeln!(f, "all schedules of `{program}`: {}", one.report)?,
                None => writeln!(f, "all schedules: {}", one.report)?,
            }
        }
        for Control { mutant, found } in &self.controls {
            let name = mutant.name();
            match found {
                Some(runs) => writeln!(f, "control {name}: found after {runs} runs")?,
                None => writeln!(f, "control {name}: NOT FOUND in as many runs as above")?,
            }
        }
        let Some(failure) = &self.failure else {
            return match self.verdict() {
                Verdict::Kept => f.write_str("every promise was kept"),
                _ => write!(f, "UNKNOWN: {}", self.doubts().join("; ")),
            };
        };
        writeln!(f)?;
        if let Some(program) = &failure.code.program {
            writeln!(f, "program: {program}")?;
        }
        writeln!(f, "{}", failure.timeline)?;
        let (before, now) = failure.deviations;
        let minimal =
            if failure.minimal { "none can be left out" } else { "shrinking stopped early" };
        writeln!(f, "{now} deviations from the plain order are left of {before}; {minimal}")?;
        write!(f, "to see it again: {}", failure.code)
    }
}
