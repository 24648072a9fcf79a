//! Why a tree can't be woven.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Why a tree can't be woven.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file can't be read or written.
    Io(PathBuf, io::Error),
    /// A file of the tree, or a text of a change, is no Rust.
    Syntax {
        /// The file, or what else it is.
        place: String,
        /// What the parser says.
        why: String,
    },
    /// A change has the number of another one, or zero.
    Number {
        /// The change.
        change: String,
        /// Its number.
        id: u32,
    },
    /// Two mutants have this name.
    Name {
        /// The name.
        change: String,
    },
    /// A mutant lacks a column, or has one that nobody knows.
    Column {
        /// The mutant.
        change: String,
        /// The column.
        column: String,
    },
    /// A change names a file that the tree does not have.
    NoFile {
        /// The change.
        change: String,
        /// The file.
        file: PathBuf,
    },
    /// A change names a function that the file does not have.
    NoFunction {
        /// The change.
        change: String,
        /// The file.
        file: PathBuf,
        /// The function.
        function: String,
    },
    /// Two libraries of one copy have a file of this name.
    Twice {
        /// The file.
        file: PathBuf,
    },
    /// The text of a change is not found in its function exactly once.
    NotOnce {
        /// The change.
        change: String,
        /// The file.
        file: PathBuf,
        /// The function.
        function: String,
        /// The text.
        text: String,
        /// How often it is found.
        times: usize,
    },
    /// The range of a change is not in the body of its function.
    Outside {
        /// The change.
        change: String,
        /// The file.
        file: PathBuf,
        /// The function.
        function: String,
        /// The range.
        range: Range<usize>,
    },
    /// Two edits of a change overlap.
    Overlap {
        /// The change.
        change: String,
        /// The file.
        file: PathBuf,
        /// The function.
        function: String,
    },
    /// With the change in, the body of the function is no Rust.
    Broken {
        /// The change.
        change: String,
        /// The file.
        file: PathBuf,
        /// The function.
        function: String,
        /// What the parser says.
        why: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Syntax { place, why } => write!(f, "{place}: {why}"),
            Self::Number { change, id } => {
                write!(f, "change `{change}`: number {id} is zero or another change's")
            }
            Self::Name { change } => write!(f, "two mutants are called `{change}`"),
            Self::Column { change, column } => {
                write!(f, "mutant `{change}`: it has no column `{column}`, or should have none")
            }
            Self::NoFile { change, file } => {
                write!(f, "change `{change}`: there is no file {}", file.display())
            }
            Self::NoFunction { change, file, function } => {
                write!(f, "change `{change}`: {} has no function `{function}`", file.display())
            }
            Self::Twice { file } => {
                write!(f, "{}: two libraries of one copy have it", file.display())
            }
            Self::NotOnce { change, file, function, text, times } => write!(
                f,
                "change `{change}`: in `{function}` of {} this text is found {times} times instead of \
                 once:\n{text}",
                file.display()
            ),
            Self::Outside { change, file, function, range } => write!(
                f,
                "change `{change}`: bytes {range:?} of {} are not in the body of `{function}`",
                file.display()
            ),
            Self::Overlap { change, file, function } => {
                write!(f, "change `{change}`: edits of `{function}` in {} overlap", file.display())
            }
            Self::Broken { change, file, function, why } => write!(
                f,
                "change `{change}`: it leaves a body of `{function}` in {} that is no Rust: {why}",
                file.display()
            ),
        }
    }
}

impl std::error::Error for Error {}
