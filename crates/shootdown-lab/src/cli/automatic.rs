//! `shootdown check mutants --automatic`.

use clap::Args;

use super::Shared;
use crate::LabError;
use crate::check::automatic::{self, Options};

/// Mutants that nobody wrote.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Automatic mutants")]
pub struct AutomaticArgs {
    /// With `mutants`: make mutants from the text of the libraries (a statement left out, `<` for
    /// `<=`, a weaker ordering), compile them into a copy, and hunt each. Needs a checkout of the
    /// project, and cargo.
    #[arg(long, conflicts_with_all = [
        "runs", "powers", "without", "mutant", "hours", "steps", "litmus", "replay", "policy",
    ])]
    pub automatic: bool,

    /// Print which statements and branches of the two libraries no hunt runs; an error if one is
    /// not in verify/automatic/uncovered.csv. With --automatic, beside the mutants.
    #[arg(long)]
    pub coverage: bool,

    /// How many of them, drawn by the seed.
    #[arg(long, value_name = "N", default_value_t = 60, requires = "automatic", value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: u32,

    /// All of them: hours.
    #[arg(long, requires = "automatic", conflicts_with = "sample")]
    pub whole: bool,

    /// Only those whose names begin like this: `core/`, `dma/table/`,
    /// `core/ops/switch/mod.rs:switch_to:`.
    #[arg(long, value_name = "BEGINNING", requires = "automatic")]
    pub among: Option<String>,

    /// Only those that verify/automatic/shootdown.csv says a hunt kills, and whose function has
    /// not changed since: each must still be killed.
    #[arg(long, requires = "automatic", conflicts_with = "record")]
    pub recorded: bool,

    /// Only those that verify/automatic/shootdown.csv says survive.
    #[arg(long, requires = "automatic", conflicts_with = "recorded")]
    pub survivors: bool,

    /// Leave out mutants whose result is in verify/automatic/shootdown.csv and still holds, and
    /// add what is found; write verify/automatic/uncovered.csv anew.
    #[arg(long)]
    pub record: bool,

    /// Try what no hunt kills with the crates' tests and the models for the model checker; without
    /// it, what verify/automatic/shootdown.csv says of them counts.
    #[arg(long, requires = "automatic")]
    pub tests: bool,

    /// Hunt only in so many stages, of the cheapest first; 0 leaves hunting out.
    #[arg(long, value_name = "N", requires = "automatic")]
    pub stages: Option<u8>,
}

impl AutomaticArgs {
    pub(super) fn run(&self, shared: &Shared, threads: usize) -> Result<(), LabError> {
        automatic::run(&Options {
            mutants: self.automatic,
            coverage: self.coverage,
            sample: (!self.whole).then_some(self.sample as usize),
            seed: shared.seed,
            among: self.among.clone(),
            recorded: self.recorded,
            survivors: self.survivors,
            record: self.record,
            tests: self.tests,
            stages: self.stages.map(usize::from),
            threads,
            format: shared.format,
        })
    }
}
