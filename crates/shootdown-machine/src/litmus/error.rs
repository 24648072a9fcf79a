//! What is wrong with a test file, where, and what to do about it.

/// A test that can't be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}:{line}: {problem}; {help}")]
#[non_exhaustive]
pub struct ParseError {
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1; 0 if the file as a whole is meant.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub help: String,
}

/// A problem whose place the caller knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem {
    pub problem: String,
    pub help: String,
}

impl Problem {
    pub fn new(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: help.into() }
    }

    pub fn at(self, file: &str, line: usize) -> ParseError {
        ParseError { file: file.to_owned(), line, problem: self.problem, help: self.help }
    }
}

/// Why a test could not be run to its end. Never a verdict.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// More states than the options allow.
    #[error(
        "more than {0} states: the answer is not known; raise the limit or make the test smaller"
    )]
    Limit(usize),
    /// The hostile hardware gave up.
    #[error("the machine cannot hold the test: {0}")]
    Hardware(#[from] crate::hostile::HostileError),
    /// The test asks for something that its machine does not have.
    #[error("{0}")]
    Unsupported(String),
}
