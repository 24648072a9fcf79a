//! Recording a command.
//!
//! **Problem.** Tracepoints need a tool, a mounted tracefs and permission, and each may be missing.
//! The user should hear which, and what to do about it, before the command has run for an hour.
//!
//! **Protocol.** `perf::usable` tries a recording of nothing. If it works, perf records the whole
//! machine while the command runs (switches of other programs decide which CPU may be left alone),
//! and its text is imported as it comes; nothing but the recording remains. Otherwise strace does
//! what it can, and why is said. With neither, nothing is run.

use std::path::{Path, PathBuf};

use super::error::RecordingError;
use super::import::Imported;
use super::model::{Trailer, What};
use super::{Writer, host};

mod perf;
mod strace;
mod tool;

/// Who observes the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracer {
    /// Linux's perf: everything.
    Perf,
    /// strace: system calls only.
    Strace,
}

/// What to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file to write.
    pub output: PathBuf,
    /// The command, argument by argument; not empty.
    pub command: Vec<String>,
    /// Who observes it; `None`: perf if it can be used, otherwise strace.
    pub tracer: Option<Tracer>,
}

/// What was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Who observed it, with version.
    pub tool: String,
    /// Why not perf, when perf was not used though nobody asked for strace.
    pub why_not_perf: Option<String>,
    /// Size of the file.
    pub bytes: u64,
    /// Remote flushes in the recording.
    pub remote_flushes: u64,
    /// The recording's trailer.
    pub trailer: Trailer,
}

/// Runs the command under a tracer and writes the recording.
///
/// # Errors
///
/// [`RecordingError::Tracer`] when no tracer can be used (the command has not run then),
/// [`RecordingError::ToolFailed`], and those of writing. No file is left behind.
pub fn run(options: &Options) -> Result<Summary, RecordingError> {
    let mut header = host::header();
    header.command.clone_from(&options.command);
    // Fails now rather than after the command has run.
    drop(Writer::create(&options.output, &header)?);
    let scratch = Scratch::new()?;
    let mut why_not_perf = None;
    let tracer = match options.tracer {
        Some(Tracer::Perf) => perf::usable(scratch.path()).map(|tool| (Tracer::Perf, tool)),
        Some(Tracer::Strace) => strace::usable().map(|tool| (Tracer::Strace, tool)),
        None => match perf::usable(scratch.path()) {
            Ok(tool) => Ok((Tracer::Perf, tool)),
            Err(perf) => match strace::usable() {
                Ok(tool) => {
                    why_not_perf = Some(perf);
                    Ok((Tracer::Strace, tool))
                }
                Err(strace) => Err(format!("{perf}; {strace}")),
            },
        },
    };
    let (tracer, tool) = tracer.map_err(RecordingError::Tracer)?;
    header.tool.clone_from(&tool);
    let (imported, clock) = match tracer {
        Tracer::Perf => (perf::record(&options.command, scratch.path())?, perf::CLOCK),
        Tracer::Strace => (strace::record(&options.command, scratch.path())?, strace::CLOCK),
    };
    header.clock = clock.to_owned();
    let summary = Summary {
        tool,
        why_not_perf,
        bytes: 0,
        remote_flushes: remote_flushes(&imported),
        trailer: Trailer { events: imported.events.len() as u64, ..imported.trailer.clone() },
    };
    let bytes = imported.write(&options.output, header)?;
    Ok(Summary { bytes, ..summary })
}

fn remote_flushes(imported: &Imported) -> u64 {
    imported.events.iter().filter(|e| matches!(e.what, What::RemoteFlush { .. })).count() as u64
}

/// A directory for the tracer's own file, gone when this is.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, RecordingError> {
        let path = std::env::temp_dir().join(format!("shootdown-record-{}", std::process::id()));
        match std::fs::create_dir_all(&path) {
            Ok(()) => Ok(Self(path)),
            Err(source) => Err(RecordingError::Io { path, source }),
        }
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left in the temporary directory is for the system to sweep.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
