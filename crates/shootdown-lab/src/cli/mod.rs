//! The command line.
//!
//! Every subcommand is a `clap` argument struct with a `run(self, &Shared) -> Result<(), LabError>`
//! in the module that does the work; this module only routes, prints errors and chooses the exit
//! code: 0 when everything asked for passed, 1 when something failed, 2 on bad input and when
//! results can't be written.

mod automatic;
mod bench;
mod check;
mod list;
mod record;
mod replay;
mod shell;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::LabError;
use crate::output::{Colors, Format, View};

/// Options every subcommand takes.
#[derive(Args, Clone, Debug)]
pub struct Shared {
    /// How results are printed.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    pub format: Format,

    /// Whether tables are coloured.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: Colors,

    /// Seed of every random choice; the same seed prints the same figures on every host.
    #[arg(long, global = true, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

impl Shared {
    /// How tables are shown: every figure, or those that a default run leads with.
    fn view(&self, all: bool) -> View {
        View::new(all, self.color)
    }

    /// The form of a command whose results are no figures.
    ///
    /// # Errors
    /// A form that only figures have.
    fn table_or_json(&self, command: &str) -> Result<Format, LabError> {
        match self.format {
            Format::Table | Format::Json => Ok(self.format),
            Format::Csv | Format::Markdown => Err(LabError::bad(format!(
                "`{command}` prints a table or JSON; --format csv and markdown are for bench and replay"
            ))),
        }
    }
}

#[derive(Parser, Debug)]
#[command(name = "shootdown", version, about = ABOUT, long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    shared: Shared,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Bench(bench::BenchArgs),
    Check(check::CheckArgs),
    List(list::ListArgs),
    Record(record::RecordArgs),
    Replay(replay::ReplayArgs),
    Import(record::ImportArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

const ABOUT: &str = "Measure what keeping TLBs coherent costs, on machines you do not own";

const LONG_ABOUT: &str = "\
Measure what keeping TLBs coherent costs, on machines you do not own.

When a page table changes, every TLB that may hold the old translation must forget it before the page is \
used for something else. This command runs the Shootdown library on a software machine in virtual time \
(CPUs, TLBs, page walks, cache lines, interrupts) under several policies, from a naive one over several \
Linux versions to everything this project has, with an oracle that stops the run if a stale translation \
is ever used. Figures depend only on seed, machine profile and policy, never on the host.";

const EXAMPLES: &str = "\
Examples:
  shootdown list                                  what there is: machines, policies, experiments
  shootdown bench overlap                         a published benchmark, simulated beside published
  shootdown bench scale --policy linux-5.13,shootdown --format json

Exit codes: 0 everything passed, 1 something failed, 2 bad input, or results that can't be written.";

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` and `--version` arrive here too, with code 0. A closed pipe is no one's
            // fault.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shootdown: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Reads a command line (without the program's own name) and does nothing with it.
///
/// # Errors
/// What the user would be told, help and version included.
pub fn parse<T>(arguments: impl IntoIterator<Item = T>) -> Result<(), clap::Error>
where
    T: Into<OsString> + Clone,
{
    let name = OsString::from("shootdown");
    Cli::try_parse_from([name].into_iter().chain(arguments.into_iter().map(Into::into))).map(drop)
}

fn run(cli: Cli) -> Result<(), LabError> {
    let shared = &cli.shared;
    match cli.command {
        Command::Bench(args) => args.run(shared),
        Command::Check(args) => args.run(shared),
        Command::List(args) => args.run(shared),
        Command::Record(args) => args.run(shared),
        Command::Replay(args) => args.run(shared),
        Command::Import(args) => args.run(shared),
        Command::Completions(args) => {
            args.run(Cli::command());
            Ok(())
        }
        Command::Man(args) => args.run(Cli::command()),
    }
}
