//! `shootdown record` and `shootdown import`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::Shared;
use crate::LabError;
use crate::output::{Document, Format, Row, emit};
use crate::recording::RecordingError;
use crate::recording::import::{self, Source};
use crate::recording::model::{Header, Tid, What};
use crate::recording::record::{self, Options, Tracer};

/// Record a real program on this Linux machine.
///
/// Runs COMMAND under perf's tracepoints (context switches, flushes, interrupts, memory system
/// calls, page faults) and keeps what `shootdown replay` needs, usually a few bytes an event. Needs
/// root or kernel.perf_event_paranoid=-1, and a mounted tracefs. Where perf cannot be used strace
/// records the memory system calls alone.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// The recording to write (an .sdr file). It appears when it is whole.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Who observes the command [default: perf, or strace where perf cannot be used].
    #[arg(long, value_enum)]
    tracer: Option<TracerName>,
    /// The command and its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum TracerName {
    Perf,
    Strace,
}

/// Make a recording from the text of perf or strace.
///
/// For machines on which only those tools can run: take the text there, import it here. Which
/// events and options to use is in docs/src/recording-format.md.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// What the text is.
    #[arg(value_enum)]
    from: SourceName,
    /// The text.
    text: PathBuf,
    /// The recording to write (an .sdr file). It appears when it is whole.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The first thread of the command [default: the first program started in the text].
    #[arg(long, value_name = "TID")]
    root: Option<u32>,
    /// The kernel release the text comes from, for the recording's header.
    #[arg(long, default_value = "", value_name = "RELEASE", hide_default_value = true)]
    kernel: String,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum SourceName {
    /// `perf script --ns -F pid,tid,cpu,time,event,trace`
    PerfScript,
    /// `strace -f -ttt -o TEXT`
    Strace,
}

impl From<RecordingError> for LabError {
    fn from(error: RecordingError) -> Self {
        Self::bad(error.to_string())
    }
}

impl RecordArgs {
    pub(super) fn run(self, shared: &Shared) -> Result<(), LabError> {
        let tracer = self.tracer.map(|name| match name {
            TracerName::Perf => Tracer::Perf,
            TracerName::Strace => Tracer::Strace,
        });
        let options = Options { output: self.output, command: self.command, tracer };
        let summary = record::run(&options)?;
        if let Some(why) = &summary.why_not_perf {
            eprintln!(
                "shootdown: recorded with strace, without CPUs, interrupts and faults: {why}"
            );
        }
        if summary.trailer.lost > 0 {
            eprintln!("shootdown: perf lost {} events; record a shorter run", summary.trailer.lost);
        }
        if let Some(status) = summary.trailer.exit_status.filter(|status| *status != 0) {
            eprintln!("shootdown: the command ended with exit status {status}");
        }
        let trailer = &summary.trailer;
        let mut figures = vec![
            ("size", "bytes", summary.bytes),
            ("events", "events", trailer.events),
            ("duration", "ns", trailer.duration),
            ("remote flushes", "requests", summary.remote_flushes),
            ("remote flushes by other programs", "requests", trailer.foreign_remote_flushes),
        ];
        if let Some(counts) = &trailer.tlb_interrupts {
            figures.push((
                "TLB interrupts of the whole machine",
                "interrupts",
                counts.iter().sum(),
            ));
        }
        report("record", &options.output, shared, &figures);
        Ok(())
    }
}

/// Prints what a recording holds: a few lines to read, or rows.
fn report(command: &str, path: &Path, shared: &Shared, figures: &[(&str, &str, u64)]) {
    let workload = path.display().to_string();
    match shared.format {
        Format::Table | Format::Markdown => {
            emit(&workload);
            for (what, unit, value) in figures {
                emit(&format!("  {what}: {value} {unit}"));
            }
        }
        Format::Json | Format::Csv => {
            let mut document = Document::new(command, "native", shared.seed);
            for (what, unit, value) in figures {
                #[expect(clippy::cast_precision_loss, reason = "figures are far below 2^52")]
                document.push(Row::new("recorded", &workload, 0, what, unit, *value as f64));
            }
            emit(&document.render(shared.format, &shared.view(true)));
        }
    }
}

impl ImportArgs {
    pub(super) fn run(self, shared: &Shared) -> Result<(), LabError> {
        let (source, tool) = match self.from {
            SourceName::PerfScript => (Source::PerfScript, "perf script"),
            SourceName::Strace => (Source::Strace, "strace"),
        };
        let imported = import::text(&self.text, source, self.root.map(Tid))?;
        let events = imported.events.len();
        let remote =
            imported.events.iter().filter(|e| matches!(e.what, What::RemoteFlush { .. })).count();
        let header = Header {
            kernel: self.kernel,
            page_size: 4096,
            tool: format!("{tool} (imported)"),
            ..Header::default()
        };
        let bytes = imported.write(&self.output, header)?;
        let figures = [
            ("size", "bytes", bytes),
            ("events", "events", events as u64),
            ("remote flushes", "requests", remote as u64),
        ];
        report("import", &self.output, shared, &figures);
        Ok(())
    }
}
