//! What `shootdown bench` runs.
//!
//! An experiment is a workload for the software machine (or, for native benches, for this host),
//! the policies it is run under, and the published figures its rows are held against. It reports
//! rows and, for what it promises to reproduce, [`Target`]s that say whether it did.

mod accessed;
mod broadcast;
mod bystander;
mod dma;
mod elide;
mod hot;
mod invlpgb;
mod iova;
mod lines;
mod overlap;
mod paravirt;
mod pcid;
mod reclaim;
mod rollover;
mod rr;
mod run;
mod scale;
mod slots;
mod swapout;
mod threshold;

pub(crate) use run::chance;
use shootdown::policy::Policy;

use crate::LabError;
use crate::names::{Contestant, Named, unknown};
use crate::output::Document;

/// What the user asked of an experiment.
#[derive(Clone, Debug)]
pub struct Request {
    /// A profile name or the path of a profile file; `None` for the experiment's own.
    pub machine: Option<String>,
    /// Policies to run; `None` for the experiment's own.
    pub policies: Option<Vec<Named>>,
    /// Limits the CPU counts tried; `None` for the experiment's own.
    pub cpus: Option<u32>,
    /// The seed of every random choice.
    pub seed: u64,
    /// Fewer iterations and sizes: the same figures, less precisely.
    pub quick: bool,
}

/// An option of `bench` that not every experiment has a use for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knob {
    Machine,
    Policies,
    Cpus,
}

impl Request {
    /// Refuses options the experiment has no use for: one that changes nothing would mislead.
    fn takes(&self, experiment: &str, options: &[Knob]) -> Result<(), LabError> {
        for (option, name, given) in [
            (Knob::Machine, "--machine", self.machine.is_some()),
            (Knob::Policies, "--policy", self.policies.is_some()),
            (Knob::Cpus, "--cpus", self.cpus.is_some()),
        ] {
            if given && !options.contains(&option) {
                return Err(LabError::bad(format!("`{experiment}` takes no {name}; leave it out")));
            }
        }
        Ok(())
    }

    /// The policies the user chose, for an experiment that can only run policies.
    fn runnable(&self, experiment: &str) -> Result<Option<Vec<(&'static str, Policy)>>, LabError> {
        let Some(named) = &self.policies else { return Ok(None) };
        named
            .iter()
            .map(|n| match n.contestant {
                Contestant::Policy(policy) => Ok((n.name, policy)),
                Contestant::Omniscient => Err(LabError::bad(format!(
                    "`{}` is a bound on the cost of one flush and cannot run `{experiment}`; leave it out",
                    n.name
                ))),
            })
            .collect::<Result<Vec<_>, _>>()
            .map(Some)
    }

    /// Nothing was changed that the experiment's targets depend on.
    fn is_own(&self) -> bool {
        self.machine.is_none() && self.policies.is_none() && self.cpus.is_none()
    }
}

/// Something an experiment promises, and whether it held.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// The promise, in one line.
    pub what: String,
    /// What was seen.
    pub seen: String,
    /// Whether the promise held.
    pub passed: bool,
}

/// What an experiment found.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Findings {
    /// One document per machine.
    pub documents: Vec<Document>,
    /// Promises; empty when the user changed what they depend on.
    pub targets: Vec<Target>,
}

/// Something `shootdown bench` can run.
pub trait Experiment: Sync {
    /// As typed on the command line.
    fn name(&self) -> &'static str;

    /// One line for `shootdown list`.
    fn line(&self) -> &'static str;

    /// The profile it is meant for; "native" when it measures this host.
    fn machine(&self) -> &'static str;

    /// Runs it.
    ///
    /// # Errors
    /// [`LabError::BadInput`] for a request it cannot serve, [`LabError::Broken`] when the oracle
    /// stops a run.
    fn run(&self, request: &Request) -> Result<Findings, LabError>;
}

/// Every experiment.
pub const EXPERIMENTS: &[&dyn Experiment] = &[
    &pcid::Pcid,
    &overlap::Overlap,
    &scale::Scale,
    &slots::Slots,
    &lines::Lines,
    &broadcast::Broadcast,
    &bystander::Bystander,
    &invlpgb::Invlpgb,
    &threshold::Sharing,
    &reclaim::Reclaim,
    &swapout::Swapout,
    &rollover::Rollover,
    &accessed::AccessedBits,
    &elide::Elide,
    &paravirt::Paravirt,
    &hot::Hot,
    &iova::Iova,
    &dma::Dma,
    &rr::Rr,
];

/// The experiment of that name.
///
/// # Errors
/// [`LabError::BadInput`] with the nearest names.
pub fn find(name: &str) -> Result<&'static dyn Experiment, LabError> {
    EXPERIMENTS
        .iter()
        .copied()
        .find(|e| e.name() == name)
        .ok_or_else(|| unknown("experiment", name, EXPERIMENTS.iter().map(|e| e.name())))
}
