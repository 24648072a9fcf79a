//! A process that hunts one mutant.
//!
//! It is built with the libraries that mutants are woven into, and the environment says which is
//! on. What the mutant does to the process (an endless loop, a crash, memory without end) stays its
//! own.
//!
//! | command | prints |
//! |---|---|
//! | `hunts` | each hunt: its sort and its name |
//! | `hunt SEED STAGE NUMBER,..` | what these hunts come to in a stage, until one objects |
//! | `work SEED NUMBER,..` | what these hunts have the machine do |
//!
//! A line is JSON ([`Line`]).

use std::io::Write;
use std::num::ParseIntError;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use shootdown_machine::hunt::Work;

use super::hunts::{self, Worlds};
use super::stages::{self, STAGES};

/// A line that a worker prints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// A hunt that there is.
    Hunt {
        /// Its name.
        name: String,
        /// It makes a world for each seed.
        chance: bool,
    },
    /// A hunt begins, or goes on.
    Alive(usize),
    /// A hunt has ended.
    Ended {
        /// Which.
        hunt: usize,
        /// Schedules tried.
        runs: u64,
        /// What it objects to.
        objection: Option<String>,
        /// What was seen, of what must be.
        seen: Vec<(String, u64)>,
    },
    /// What a hunt has the machine do.
    Worked {
        /// Which.
        hunt: usize,
        /// In each of its worlds that are measured.
        work: Vec<Work>,
    },
}

fn say(line: &Line) {
    let mut out = std::io::stdout().lock();
    let text = serde_json::to_string(line).expect("it can be written");
    // Nobody listens any more: the campaign was stopped, and this process with it.
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(3);
    }
}

/// Does what the arguments say.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["hunts"] => {
            for hunt in hunts::all() {
                say(&Line::Hunt { name: hunt.name, chance: hunt.worlds == Worlds::Chance });
            }
            ExitCode::SUCCESS
        }
        ["hunt", seed, stage, hunts] => {
            let (Ok(seed), Ok(stage), Ok(hunts)) = (seed.parse(), stage.parse(), numbers(hunts))
            else {
                return usage();
            };
            hunt(seed, stage, &hunts)
        }
        ["work", seed, hunts] => {
            let (Ok(seed), Ok(hunts)) = (seed.parse(), numbers(hunts)) else { return usage() };
            work(seed, &hunts)
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("this is started by `shootdown check mutants --automatic`");
    ExitCode::from(2)
}

fn numbers(text: &str) -> Result<Vec<usize>, ParseIntError> {
    text.split(',').map(str::parse).collect()
}

fn work(seed: u64, numbers: &[usize]) -> ExitCode {
    let hunts = hunts::all();
    for number in numbers {
        let Some(hunt) = hunts.get(*number) else { return usage() };
        say(&Line::Alive(*number));
        say(&Line::Worked { hunt: *number, work: stages::work(hunt, seed) });
    }
    ExitCode::SUCCESS
}

fn hunt(seed: u64, stage: usize, numbers: &[usize]) -> ExitCode {
    let hunts = hunts::all();
    let Some(stage) = STAGES.get(stage) else { return usage() };
    for number in numbers {
        let Some(hunt) = hunts.get(*number) else { return usage() };
        say(&Line::Alive(*number));
        let ended = stages::hunt(hunt, *stage, seed, &mut || say(&Line::Alive(*number)));
        let objects = ended.objection.is_some();
        say(&Line::Ended {
            hunt: *number,
            runs: ended.runs,
            objection: ended.objection,
            seen: ended.seen,
        });
        if objects {
            break;
        }
    }
    ExitCode::SUCCESS
}
