//! What can be wrong with a recording, said so that its owner can act on it: which file, where, and
//! what should have been there.

use std::io;
use std::path::PathBuf;

/// Why a recording could not be read, written or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The operating system refused a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// The file is not a whole, sound recording.
    #[error("{}: byte {offset}: {problem}", path.display())]
    Bad {
        /// The file.
        path: PathBuf,
        /// Where the frame (or field) begins that could not be used.
        offset: u64,
        /// What is wrong there.
        problem: Problem,
    },
    /// A line of a text to import makes no sense.
    #[error("{}: line {line}: expected {expected}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What should have been there.
        expected: &'static str,
    },
    /// A text to import holds nothing to record.
    #[error("{}: no usable event; expected the output of {expected}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// Which command's output was expected.
        expected: &'static str,
    },
    /// A text to import spans more time than a recording can ([`super::Event::TIME_LIMIT`]).
    #[error("{}: its last event comes more than 13 days after the first; import a part of it", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// An event is older than the one before it (I3).
    #[error("event at {time} ns comes after one at {previous} ns; events must be in order of time")]
    Unordered {
        /// Of the offending event.
        time: u64,
        /// Of the one before.
        previous: u64,
    },
    /// Neither tracer can be used; each with what would make it work.
    #[error("cannot record: {0}")]
    Tracer(String),
    /// The tracer ran and failed.
    #[error("{tool} failed ({status}): {message}")]
    ToolFailed {
        /// Which tool.
        tool: &'static str,
        /// How it ended.
        status: String,
        /// The last it said.
        message: String,
    },
}

/// What is wrong at one place of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file ends early.
    #[error("the file ends here; expected {expected}")]
    Truncated {
        /// What was to follow.
        expected: &'static str,
    },
    /// It does not begin like a recording.
    #[error("not a shootdown recording; expected the bytes 89 53 44 52 0d 0a 1a 0a, found {}", hex(*found))]
    Foreign {
        /// The first bytes instead.
        found: [u8; 8],
    },
    /// It is of another version of the format.
    #[error("format version {found}; expected version {known} (the only one this program reads)")]
    Version {
        /// The file's.
        found: u16,
        /// Ours.
        known: u16,
    },
    /// The bytes changed since they were written.
    #[error("damaged: checksum {found:08x}; expected {expected:08x}")]
    Checksum {
        /// Of the bytes as they are.
        found: u32,
        /// As noted when they were written.
        expected: u32,
    },
    /// The bytes are as written, but say nothing meaningful.
    #[error("malformed; expected {expected}")]
    Malformed {
        /// What should have been there.
        expected: &'static str,
    },
    /// There is more after the last frame.
    #[error("bytes after the trailer; expected the end of the file")]
    TrailingBytes,
}

fn hex(bytes: [u8; 8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}
