//! A broken promise, with what is needed to see why.

use std::fmt;

use crate::time::Time;

/// A promise was broken: the run stopped there.
#[derive(Clone, PartialEq, Debug)]
pub struct Breach {
    /// The invariant, by its name in the contract: `revocation`, `reuse`, `master`, `progress`.
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

impl fmt::Display for Breach {
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

impl std::error::Error for Breach {}
