//! From what a tracer tells to what a recording holds.
//!
//! **Problem.** A tracer sees the whole machine. A recording is about one command; the rest matters
//! only because it occupies CPUs, evicts tags and shares counters.
//!
//! **Protocol.** [`Origins`](perf::Origins) decides whose each thread is, from the whole text; then
//! every event is kept, reduced or counted by that. The result is in order of time and every thread
//! is declared before it is named (I3, I4 of the module above).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::error::RecordingError;
use super::model::{Event, Header, Tid, Trailer};
use super::write::Writer;
use super::{perf_script, strace};

pub mod perf;
#[cfg(test)]
mod tests;

/// Which text is imported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// `perf script`.
    PerfScript,
    /// `strace -f -ttt`.
    Strace,
}

/// A recording in memory, before it is written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Imported {
    /// What happened.
    pub events: Vec<Event>,
    /// What the tracer's clock showed at time 0.
    pub clock_base: u64,
    /// CPUs seen.
    pub cpus: u16,
    /// What is known at the end.
    pub trailer: Trailer,
}

impl Imported {
    /// Writes it as a recording; returns the bytes written. The clock's base and, unless the header
    /// knows better, the number of CPUs are filled in.
    ///
    /// # Errors
    ///
    /// Those of [`Writer`].
    pub fn write(self, path: &Path, mut header: Header) -> Result<u64, RecordingError> {
        header.clock_base = self.clock_base;
        header.cpus = header.cpus.max(self.cpus);
        let mut writer = Writer::create(path, &header)?;
        for event in &self.events {
            writer.push(event)?;
        }
        writer.finish(self.trailer)
    }
}

/// Imports a text file. `root` is the first thread of the command; without it, the first program
/// that was started while the tracer ran, and without one of those, every program.
///
/// # Errors
///
/// [`RecordingError::Io`]; [`RecordingError::Text`] for a line that is not of that kind of text;
/// [`RecordingError::Empty`]; [`RecordingError::TooLong`].
pub fn text(path: &Path, source: Source, root: Option<Tid>) -> Result<Imported, RecordingError> {
    let file = File::open(path)
        .map_err(|source| RecordingError::Io { path: path.to_path_buf(), source })?;
    stream(BufReader::new(file), path, source, root)
}

/// As [`text`], from a stream; `path` is what errors call it.
///
/// # Errors
///
/// As [`text`].
pub fn stream(
    mut input: impl BufRead,
    path: &Path,
    source: Source,
    root: Option<Tid>,
) -> Result<Imported, RecordingError> {
    let mut perf = perf::Collector::default();
    let mut calls = strace::Collector::default();
    let mut raw = Vec::new();
    for number in 1.. {
        raw.clear();
        let got = input
            .read_until(b'\n', &mut raw)
            .map_err(|source| RecordingError::Io { path: path.to_path_buf(), source })?;
        if got == 0 {
            break;
        }
        // Names of threads and files need not be UTF-8; what matters here always is.
        let line = String::from_utf8_lossy(&raw);
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let taken = match source {
            Source::PerfScript => perf_script::sample(line).map(|sample| perf.extend(sample)),
            Source::Strace => calls.line(line),
        };
        taken.map_err(|expected| RecordingError::Text {
            path: path.to_path_buf(),
            line: number,
            expected,
        })?;
    }
    let (imported, expected) = match source {
        Source::PerfScript => (perf.finish(root), "perf script with sched, task and tlb events"),
        Source::Strace => (calls.finish(), "strace -f -ttt -o FILE"),
    };
    if imported.events.is_empty() {
        return Err(RecordingError::Empty { path: path.to_path_buf(), expected });
    }
    if imported.events.last().is_some_and(|last| last.time >= Event::TIME_LIMIT) {
        return Err(RecordingError::TooLong { path: path.to_path_buf() });
    }
    Ok(imported)
}
