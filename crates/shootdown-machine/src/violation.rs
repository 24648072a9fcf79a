//! A broken promise, with what is needed to see why.

use std::fmt;

use shootdown::CpuId;

use crate::oracle::{self, Timelines};
use crate::time::Time;

/// A promise was broken: the run stopped there.
#[derive(Clone, PartialEq, Debug)]
pub struct Violation {
    /// The invariant, by its name ([`oracle::Invariant::name`]).
    pub invariant: &'static str,
    /// What happened, in one sentence.
    pub what: String,
    /// When.
    pub at: Time,
    /// The run.
    pub seed: u64,
    /// The last events of the CPUs concerned, in the order of time.
    pub timeline: Vec<String>,
}

impl Violation {
    /// What the oracle found, with the recent events of the CPUs concerned.
    pub(crate) fn new(
        found: &oracle::Violation,
        seed: u64,
        at: Time,
        timelines: &Timelines,
    ) -> Self {
        let mut cpus: Vec<CpuId> = found.culprits.iter().map(|s| s.cpu).collect();
        cpus.push(found.cpu);
        let timeline = timelines
            .render(&cpus)
            .lines()
            .map(|l| l.strip_prefix("  ").unwrap_or(l).to_owned())
            .collect();
        Self { invariant: found.invariant.name(), what: found.to_string(), at, seed, timeline }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} broken at {} (seed {}): {}",
            self.invariant, self.at, self.seed, self.what
        )?;
        for line in &self.timeline {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}
