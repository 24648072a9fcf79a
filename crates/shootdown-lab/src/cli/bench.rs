//! `shootdown bench`.

use clap::Args;

use super::Shared;
use crate::LabError;
use crate::experiments::{self, Request, Target};
use crate::names;
use crate::output::{Format, emit};

/// Run experiments; published figures stand beside the simulated ones.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Run experiments; published figures stand beside the simulated ones.\n\n\
        Each experiment has a machine, policies and CPU counts of its own, chosen to match what was \
        published; the options below change them. What an experiment promises to reproduce is checked \
        and listed as targets, PASS or FAIL, while nothing they depend on was changed. The exit \
        code is 1 when one failed, or when the oracle stopped a run.\n\n\
        A table has policies as columns, or numbers of CPUs where these vary, and the published figure \
        below the simulated one. It shows as much as fills a screen; --all shows the rest.",
    after_long_help = "Examples:\n  \
        shootdown bench pcid                       context switches with and without tags\n  \
        shootdown bench overlap scale              two experiments, one after the other\n  \
        shootdown bench scale --machine zen4 --policy linux-5.13,shootdown --cpus 16\n  \
        shootdown bench hot --format json          native nanoseconds on this host"
)]
pub struct BenchArgs {
    /// Which experiments; `shootdown list experiments` shows them.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,

    /// Machine to simulate: a profile's name or the path of a profile file.
    #[arg(long, value_name = "PROFILE")]
    pub machine: Option<String>,

    /// Policies to compare, separated by commas.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub policy: Option<Vec<String>>,

    /// Use at most this many CPUs.
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,

    /// Every figure, and not only as many as fill a screen.
    #[arg(long)]
    pub all: bool,

    /// Fewer iterations and sizes: a first look in seconds.
    #[arg(long)]
    pub quick: bool,
}

impl BenchArgs {
    pub(super) fn run(self, shared: &Shared) -> Result<(), LabError> {
        // Everything is looked up before anything runs: a mistyped name must not cost minutes.
        let chosen =
            self.names.iter().map(|n| experiments::find(n)).collect::<Result<Vec<_>, _>>()?;
        let policies = self.policy.as_deref().map(names::policies).transpose()?;
        let request = Request {
            machine: self.machine,
            policies,
            cpus: self.cpus,
            seed: shared.seed,
            quick: self.quick,
        };
        let mut failed = 0;
        for experiment in chosen {
            let findings = experiment.run(&request)?;
            for document in &findings.documents {
                emit(&document.render(shared.format, &shared.view(self.all)));
            }
            failed += findings.targets.iter().filter(|t| !t.passed).count();
            print_targets(&findings.targets, shared.format);
        }
        match failed {
            0 => Ok(()),
            1 => Err(LabError::broken("one target failed")),
            n => Err(LabError::broken(format!("{n} targets failed"))),
        }
    }
}

/// Targets belong to the table; in other forms they must not disturb the documents on standard
/// output, so that only failed ones are said, on standard error.
fn print_targets(targets: &[Target], format: Format) {
    for target in targets {
        let line = format!(
            "{} {}: {}",
            if target.passed { "PASS" } else { "FAIL" },
            target.what,
            target.seen
        );
        match format {
            Format::Table => emit(&line),
            _ if !target.passed => eprintln!("{line}"),
            _ => {}
        }
    }
}
