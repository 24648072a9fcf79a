//! Why a command failed, and the exit code that says so.

use thiserror::Error;

/// A failure of the command. Its `Display` is one sentence for the user.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// Something the user gave cannot be used: exit code 2.
    #[error("{0}")]
    BadInput(String),
    /// A promise was broken: the oracle stopped a run, or a target was missed. Exit code 1.
    #[error("{0}")]
    Broken(String),
}

impl LabError {
    /// Bad input, in one sentence.
    pub fn bad(sentence: impl Into<String>) -> Self {
        Self::BadInput(sentence.into())
    }

    /// A broken promise, in one sentence (a timeline may follow).
    pub fn broken(sentence: impl Into<String>) -> Self {
        Self::Broken(sentence.into())
    }

    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::BadInput(_) => 2,
            Self::Broken(_) => 1,
        }
    }
}
