//! `shootdown check`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::Shared;
use super::automatic::AutomaticArgs;
use crate::LabError;
use crate::check::adversary::Adversary;
use crate::check::groups::Groups;
use crate::check::report::{self, Entry, Lines, Tally};
use crate::check::runner::Timed;
use crate::check::select::select;
use crate::check::soak::Limit;
use crate::check::steps::{self, Chosen};
use crate::check::{self, Check, CheckResult, Failure, Kind, Settings, Verdict, runner};
use crate::names::{Contestant, Named};
use crate::output::{Format, emit};
use crate::progress::Progress;

/// Hunt for broken promises: litmus tests, bug zoo, mutants, random and exhaustive schedules.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Hunt for broken promises: litmus tests, bug zoo, mutants, random and exhaustive schedules.\n\n\
        Without names the default set runs, a few minutes on two cores. A name is a kind (litmus, zoo, \
        mutants, random, exhaustive, soak), a check, the beginning of a check's name, or a pattern \
        with * and ?; `shootdown list checks` shows them all.\n\n\
        Each kind prints one line when its checks are done; then each check that failed is shown whole, \
        with what was observed, the shortest schedule that does it and a code that shows it again. With \
        -v, or where one check is asked for, each check prints a line. A check that stopped at a limit \
        says UNKNOWN and counts as failed; so does one that never saw what it has to see.",
    after_long_help = "Examples:\n  \
        shootdown check                            the default set\n  \
        shootdown check zoo                        every historical bug, found and not found\n  \
        shootdown check 'litmus/riscv/*' mutants   checks by pattern and by kind\n  \
        shootdown check random --seed 7 --format json\n  \
        shootdown check random --mutant no-wait    see it fail\n  \
        shootdown check soak --hours 8\n  \
        shootdown check mutants --seeds 20         how many schedules each mutant takes to kill\n  \
        shootdown check mutants --automatic        a sample of mutants that nobody wrote\n  \
        shootdown check --coverage                 what of the libraries no hunt runs\n\n\
        Exit codes: 0 everything asked for held, 1 something did not, 2 bad input."
)]
pub struct CheckArgs {
    /// Which checks [default: all but the long ones].
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Schedules a check tries, where it tries a number of them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub runs: Option<u64>,

    /// Hunts each mutant under so many seeds, and prints how many schedules it took to kill it.
    /// More than a tenth of those that are tried fail it [default: one seed, however many it
    /// takes].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: Option<u64>,

    /// A line for each check, and not only for each kind.
    #[arg(short, long)]
    pub verbose: bool,

    /// Checks that run side by side [default: one a core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    /// The adversary's powers, instead of each check's own; a memory model (sc, tso, weak) alone
    /// changes only that.
    #[arg(long, value_name = "POWER,..", value_delimiter = ',')]
    pub powers: Option<Vec<String>>,

    /// Powers taken from the adversary.
    #[arg(long, value_name = "POWER,..", value_delimiter = ',')]
    pub without: Vec<String>,

    /// Take a step out of one of the libraries first, to see that the checks object.
    #[arg(long, value_name = "MUTANT")]
    pub mutant: Option<String>,

    /// How long `soak` goes on.
    #[arg(long, value_name = "H", conflicts_with = "steps")]
    pub hours: Option<f64>,

    /// How many hostile steps `soak` takes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: Option<u64>,

    /// Run the litmus tests of a folder: herd's .litmus files with their kinds files, and our own
    /// .lit.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["hours", "steps", "replay", "mutant", "runs"])]
    pub litmus: Option<PathBuf>,

    /// Show a failing schedule again, from the code that the failure printed.
    #[arg(long, value_name = "CODE", conflicts_with_all = ["names", "hours", "steps", "runs"])]
    pub replay: Option<String>,

    /// Policy that a library runs under: one of `shootdown list policies`, or strict, strict-ish
    /// or lazy for devices [default: each check's own].
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,

    #[command(flatten)]
    pub automatic: AutomaticArgs,
}

impl CheckArgs {
    pub(super) fn run(self, shared: &Shared) -> Result<(), LabError> {
        let format = shared.table_or_json("check")?;
        if self.automatic.automatic || self.automatic.coverage {
            return self.automatic(shared);
        }
        // Everything is looked up before anything runs: a mistyped name must not cost minutes.
        let all = check::all();
        if let Some(code) = &self.replay {
            return replay(&all, code, format);
        }
        if let Some(folder) = &self.litmus {
            if self.names.iter().any(|name| name != "litmus") {
                return Err(LabError::bad(
                    "--litmus runs the tests of its folder only; leave the names out",
                ));
            }
            return directory(folder, format);
        }
        let settings = self.settings(shared)?;
        let chosen: Vec<&dyn Check> =
            select(&all, &self.names)?.into_iter().map(|i| all[i].as_ref()).collect();
        if chosen.is_empty() {
            return Err(LabError::bad(
                "there is nothing to check; `shootdown list checks` shows what there is",
            ));
        }
        if settings.soak.is_some() && !chosen.iter().any(|c| c.kind() == Kind::Soak) {
            return Err(LabError::bad("--hours and --steps are for `shootdown check soak`"));
        }
        if self.seeds.is_some() && !chosen.iter().any(|c| c.kind() == Kind::Mutant) {
            return Err(LabError::bad("--seeds is for `shootdown check mutants`"));
        }
        let verbose = self.verbose || self.seeds.is_some();
        conclude(&run(&chosen, &settings, format, verbose), format)
    }

    fn automatic(&self, shared: &Shared) -> Result<(), LabError> {
        if !self.names.iter().all(|name| name == Kind::Mutant.word()) {
            return Err(LabError::bad(
                "--automatic is for `shootdown check mutants`; --among takes the beginning of their names",
            ));
        }
        self.automatic.run(shared, self.threads.map_or_else(cores, usize::from))
    }

    fn settings(&self, shared: &Shared) -> Result<Settings, LabError> {
        let policy = self.policy.as_deref().map(steps::policy).transpose()?;
        if let Some(Chosen::Core(Named { name, contestant: Contestant::Omniscient, .. })) = policy {
            return Err(LabError::bad(format!(
                "`{name}` is a bound on the cost of one flush and cannot be hunted; leave it out"
            )));
        }
        Ok(Settings {
            seed: shared.seed,
            runs: self.runs,
            seeds: self.seeds,
            threads: self.threads.map_or_else(cores, usize::from),
            policy,
            adversary: Adversary::new(self.powers.as_deref(), &self.without)?,
            mutant: self.mutant.as_deref().map(steps::removed).transpose()?,
            soak: self.soak()?,
        })
    }

    fn soak(&self) -> Result<Option<Limit>, LabError> {
        let Some(hours) = self.hours else { return Ok(self.steps.map(Limit::Steps)) };
        /// Ten years: who asks for more has mistyped.
        const MOST: f64 = 87_600.0;
        if !(hours > 0.0 && hours <= MOST) {
            return Err(LabError::bad(format!(
                "--hours {hours} is not a time; give 0.5 or 8, say"
            )));
        }
        Ok(Some(Limit::Time(Duration::from_secs_f64(hours * 3600.0))))
    }
}

/// Runs the tests of a folder: the verdict on each is what is asked for.
fn directory(folder: &Path, format: Format) -> Result<(), LabError> {
    let (results, times): (Vec<Entry>, Vec<Duration>) =
        check::litmus::directory(folder)?.into_iter().unzip();
    match format {
        Format::Json => emit(&report::json(&results)),
        _ => {
            let lines = Lines::of(results.iter().map(|(name, _, _)| name.as_str()));
            for (entry, took) in results.iter().zip(times) {
                emit(&lines.line(&entry.0, &check::litmus::timed(entry, took)));
            }
            emit(&format!("\n{}", Tally::of(&results).sentence()));
        }
    }
    conclude(&results, format)
}

/// Shows a failing schedule again. That it fails is what was to be seen, and is said by the exit
/// code too.
fn replay(all: &[Box<dyn Check>], code: &str, format: Format) -> Result<(), LabError> {
    let entry = [check::replay::replay(all, code)?];
    match format {
        Format::Json => emit(&report::json(&entry)),
        _ => {
            if let Some(failure) = &entry[0].2.failure {
                emit(failure.timeline.trim_end());
            }
        }
    }
    match &entry[0].2 {
        r if r.verdict == Verdict::Pass => Ok(()),
        r => Err(LabError::broken(r.observed.clone())),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What is printed of results as they come: a line for each, or for each group; and what broke, at
/// the end.
struct Shown {
    lines: Lines,
    groups: Groups,
    verbose: bool,
    /// Who asks for one check wants to see what it is about.
    alone: bool,
    /// What is shown at the end: of each check that did not hold what is said of it, and how it
    /// broke.
    broken: Vec<(String, Option<Failure>)>,
}

impl Shown {
    fn new<'a>(
        names: impl ExactSizeIterator<Item = &'a str>,
        kinds: impl Iterator<Item = Kind>,
        verbose: bool,
    ) -> Self {
        let alone = names.len() == 1;
        let (lines, groups) = (Lines::of(names), Groups::new(kinds));
        Self { lines, groups, verbose: verbose || alone, alone, broken: Vec::new() }
    }

    /// A result has come, so long after the beginning. What is printed now.
    fn add(&mut self, name: &str, timed: Timed, elapsed: Duration) -> Option<String> {
        let line = self.lines.line(name, &timed);
        let group = self.groups.add(&timed.result, elapsed);
        let CheckResult { verdict, failure, example, .. } = timed.result;
        let held = matches!(verdict, Verdict::Pass | Verdict::Skipped);
        if !held && !self.verbose {
            self.broken.push((line.clone(), failure));
        } else if failure.is_some() {
            self.broken.push((format!("{name}:"), failure));
        }
        if self.alone && example.is_some() {
            self.broken.push((format!("{name}:"), example));
        }
        if self.verbose { Some(line) } else { group }
    }

    /// All that broke, whole.
    fn failures(&self) {
        for (said, failure) in &self.broken {
            emit(&format!("\n{said}"));
            if let Some(failure) = failure {
                report::failure(failure);
            }
        }
    }
}

/// Runs the checks, showing results as they come.
fn run(checks: &[&dyn Check], settings: &Settings, format: Format, verbose: bool) -> Vec<Entry> {
    let begun = Instant::now();
    let (names, kinds) = (checks.iter().map(|c| c.name()), checks.iter().map(|c| c.kind()));
    let mut shown = Shown::new(names, kinds, verbose);
    let progress = Progress::new("check", checks.len() as u64);
    let mut results = Vec::new();
    runner::run(checks, settings, &progress, |check, timed| {
        results.push((check.name().to_owned(), check.kind().name(), timed.result.clone()));
        let line = shown.add(check.name(), timed, begun.elapsed());
        if let (Some(line), Format::Table) = (line, format) {
            progress.aside(|| emit(&line));
        }
    });
    drop(progress);
    match format {
        Format::Json => emit(&report::json(&results)),
        _ => {
            shown.failures();
            if let Some(words) = check::mutants::summary(&results) {
                emit(&format!("\n{words}"));
            }
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
        for (name, _, r) in results.iter().filter(|(_, _, r)| r.verdict != Verdict::Pass) {
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
