//! A failing run as one line: the adversary, the program, the schedule.
//!
//! `weak+speculation : pages=2; switch a | unmap a0; switch a | user : 1r4h2q7k3m0d`. A world of
//! one's own has no program. In a shell it needs quotes.

use std::fmt;
use std::str::FromStr;

use crate::hunt::Powers;
use crate::hunt::kernel::Program;
use crate::hunt::schedule::{self, decode, encode};

/// A failing run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    /// The adversary.
    pub powers: Powers,
    /// What ran, unless it was a world of one's own.
    pub program: Option<Program>,
    /// What was chosen.
    pub schedule: Vec<u16>,
}

/// A line that is no code.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// It does not have all parts.
    #[error(
        "the line is not `powers : program : schedule` (`powers : schedule` for a world of your own): copy it whole"
    )]
    Parts,
    /// The powers can't be read.
    #[error("the powers: {0}")]
    Powers(String),
    /// The program can't be read.
    #[error("the program: {0}")]
    Program(String),
    /// The schedule can't be read.
    #[error(transparent)]
    Schedule(#[from] schedule::CodeError),
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} : ", self.powers)?;
        if let Some(program) = &self.program {
            write!(f, "{program} : ")?;
        }
        f.write_str(&encode(&self.schedule))
    }
}

impl FromStr for Code {
    type Err = CodeError;

    fn from_str(text: &str) -> Result<Self, CodeError> {
        let (powers, rest) = text.split_once(':').ok_or(CodeError::Parts)?;
        let (program, schedule) = match rest.rsplit_once(':') {
            Some((program, schedule)) => {
                (Some(program.trim().parse().map_err(CodeError::Program)?), schedule)
            }
            None => (None, rest),
        };
        Ok(Self {
            powers: powers.trim().parse().map_err(CodeError::Powers)?,
            program,
            schedule: decode(schedule.trim())?,
        })
    }
}
