//! `cargo xtask`: builds the bare-metal image (`kernel/`), boots it on an emulator, and says what
//! came of it; looks at the machine code of wrappers, and at the size and the layers of
//! the core.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | every case passed, and what this machine can't show is what it is known not to show |
//! | 1 | a promise was broken |
//! | 2 | bad input, a tool is missing, the image does not build, or no case was run |
//! | 3 | a case passed, but its negative control showed nothing, on a machine that is not known for that (`kernel/expect/`) |
//! | 4 | the image crashed, the machine was reset, or it did not end in time |

// First: its macros are used by all others.
#[macro_use]
mod output;

mod bench;
mod cli;
mod emulator;
mod expect;
mod image;
mod layers;
mod monitor;
mod path;
mod probes;
mod process;
mod report;
mod size;
mod wrappers;

use std::process::ExitCode;

use clap::Parser;

use cli::{Arch, Cli, Command, Iommu, MachineArgs, Suite, TestArgs};
use image::Profile;

/// What went wrong before there was anything to judge.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// A program that is not installed.
    #[error("{program} is not installed: {hint}")]
    Missing {
        /// Its name.
        program: String,
        /// How to get it.
        hint: String,
    },
    /// Something that a program needs.
    #[error("{0}")]
    Unusable(String),
    /// A program failed.
    #[error("{what} failed: {why}")]
    Failed {
        /// What was tried.
        what: String,
        /// What it said.
        why: String,
    },
    /// A file could not be used.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

/// The work of one command; what it returns is the exit code.
fn run(cli: Cli) -> Result<u8, Error> {
    match cli.command {
        Command::Image(of) => {
            if of.iso && of.arch != Arch::X86_64 {
                return Err(Error::Unusable(
                    "an ISO is made for x86-64 only: leave out --iso".into(),
                ));
            }
            let image = image::build(of.arch, Profile::Release)?;
            say!("image: {}", image.display());
            if of.iso {
                let iso = image::iso(&image, of.append.as_deref().unwrap_or(""))?;
                say!("ISO: {}, {}", iso.file.display(), iso.firmware());
            }
            Ok(0)
        }
        Command::Boot(machine) => {
            let ran = emulator::boot(&machine, Profile::Release, process::Show::All)?;
            say!("{}", ran.ended);
            Ok(ran.ended.code())
        }
        Command::Bench(of) => bench::run(&of),
        Command::Test(of) => test(&of),
        Command::Wrappers(of) => wrappers::run(&of),
        Command::Size(of) => size::run(&of),
        Command::Layers => layers::run(),
    }
}

/// Judges the cases, on each IOMMU that they are for.
fn test(TestArgs { machine, strict }: &TestArgs) -> Result<u8, Error> {
    let iommus = match (machine.suite, machine.iommu) {
        (Suite::Dma, None) => Iommu::of(machine.arch).iter().copied().map(Some).collect(),
        (_, iommu) => vec![iommu],
    };
    let expected = if *strict { Vec::new() } else { expect::unobservable(machine)? };
    let mut worst = None;
    for iommu in iommus {
        let machine = MachineArgs { iommu, ..machine.clone() };
        let ran = emulator::boot(&machine, Profile::Checked, process::Show::Nothing)?;
        let Some(code) = report::print(&machine, &ran, &expected) else { continue };
        // A broken promise before anything else.
        worst = if worst == Some(1) || code == 1 { Some(1) } else { worst.max(Some(code)) };
    }
    worst.ok_or_else(|| {
        Error::Unusable("no case was run: what the image said about it is above".into())
    })
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain!("error: {error}");
            ExitCode::from(2)
        }
    }
}
