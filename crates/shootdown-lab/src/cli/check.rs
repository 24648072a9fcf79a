//! `shootdown check`.

use std::time::Instant;

use clap::Args;

use super::Shared;
use crate::LabError;
use crate::check::report::{self, Entry, Lines, Tally};
use crate::check::{self, Check, Settings, runner};
use crate::names;
use crate::output::{Format, emit};
use crate::progress::Progress;

/// Hunt for broken promises: litmus tests, bug zoo, mutants, random and exhaustive schedules.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Hunt for broken promises: litmus tests, bug zoo, mutants, random and exhaustive schedules.\n\n\
        Without names the default set runs, a few minutes on two cores. A name is a kind (litmus, zoo, \
        mutants, random, exhaustive, models), a check, the beginning of a check's name, or a pattern \
        with * and ?; `shootdown list checks` shows them all.\n\n\
        Each check prints one line: what was observed (and what was expected, where that differs), and \
        how much was looked at. A check that stopped at a limit says UNKNOWN and counts as failed; so \
        does one that never saw what it has to see.",
    after_long_help = "Examples:\n  \
        shootdown check                            the default set\n  \
        shootdown check zoo                        every historical bug, found and not found\n  \
        shootdown check 'litmus/arm-*' mutants     checks by pattern and by kind\n  \
        shootdown check random --seed 7 --format json\n\n\
        Exit codes: 0 everything asked for held, 1 something did not, 2 bad input."
)]
pub struct CheckArgs {
    /// Which checks [default: all but the long ones].
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Schedules a check tries, where it tries a number of them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub runs: Option<u64>,

    /// Checks that run side by side [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// Policy the library runs under [default: each check's own].
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
}

impl CheckArgs {
    pub(super) fn run(self, shared: &Shared) -> Result<(), LabError> {
        // Everything is looked up before anything runs: a mistyped name must not cost minutes.
        let policy = self.policy.as_deref().map(names::policy).transpose()?;
        let all = check::all();
        let chosen: Vec<&dyn Check> = check::select::select(&all, &self.names)?
            .into_iter()
            .map(|i| all[i].as_ref())
            .collect();
        if chosen.is_empty() {
            return Err(LabError::bad(
                "there is nothing to check; `shootdown list checks` shows what there is",
            ));
        }
        let settings = Settings {
            seed: shared.seed,
            runs: self.runs,
            threads: self.threads.map_or_else(cores, usize::from),
            policy,
        };
        conclude(&run(&chosen, &settings, shared.format), shared.format)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs the checks, showing each result as it comes.
fn run(checks: &[&dyn Check], settings: &Settings, format: Format) -> Vec<Entry> {
    let begun = Instant::now();
    let lines = Lines::new(checks);
    let progress = Progress::new("check", checks.len() as u64);
    let mut results = Vec::new();
    runner::run(checks, settings, &progress, |check, timed| {
        if format == Format::Table {
            progress.aside(|| emit(&lines.line(check.name(), &timed)));
        }
        results.push((check.name().to_owned(), check.kind().name(), timed.result));
    });
    drop(progress);
    match format {
        Format::Json => emit(&report::json(&results)),
        Format::Table => {
            report::failures(&results);
            let words = Tally::of(&results).sentence();
            emit(&format!("\n{words}, in {}", report::duration(begun.elapsed())));
        }
    }
    results
}

/// The exit code: one sentence when not everything held. JSON has said what, and the table too.
fn conclude(results: &[Entry], format: Format) -> Result<(), LabError> {
    let tally = Tally::of(results);
    if tally.held() {
        return Ok(());
    }
    if format == Format::Json {
        // Standard output holds one document; who watches the terminal learns it here.
        for (name, _, r) in results.iter().filter(|(_, _, r)| r.verdict != check::Verdict::Pass) {
            eprintln!(
                "{} {name}: expected {}, observed {}",
                r.verdict.word(),
                r.expected,
                r.observed
            );
        }
    }
    Err(LabError::broken(format!("not every check passed: {}", tally.sentence())))
}
