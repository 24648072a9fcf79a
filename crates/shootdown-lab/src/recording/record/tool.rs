//! Running a tracer.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::perf;
use crate::recording::error::RecordingError;

/// Buffer for all CPUs together, in pages, and the least and most for one CPU (a power of two
/// each).
///
/// perf reads its buffers in a busy loop as long as events keep coming, which would take a CPU away
/// from the recorded program, and have it switched to whenever the program sleeps. So it is told to
/// wait until a quarter of a buffer is full, runs at the lowest priority, and the buffers hold what
/// it does not get to: 64 MiB are 700,000 events, or a second of the busiest program seen.
const BUFFER_PAGES: usize = 1 << 16;
const LEAST_PAGES: usize = 1 << 10;
const MOST_PAGES: usize = 1 << 14;

/// Bytes of a page, for perf's options; a larger one only makes its threshold lower.
const PAGE: usize = 4096;

fn buffer_pages() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).next_power_of_two();
    (BUFFER_PAGES / cpus).clamp(LEAST_PAGES, MOST_PAGES)
}

/// How long perf may take to obey; opening every event on a machine of hundreds of CPUs takes
/// seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A perf that records the whole machine on demand, spoken to through two pipes in the scratch
/// directory.
#[derive(Debug)]
pub struct Session {
    perf: Child,
    control: File,
    answers: Receiver<()>,
    /// What perf says; shown only when it fails, for it warns about tracepoints it cannot print in
    /// full.
    messages: PathBuf,
}

impl Session {
    /// Starts perf with its events off.
    pub fn start(scratch: &Path, data: &Path, events: &str) -> Result<Self, RecordingError> {
        let start = || {
            let (control, answer) = (scratch.join("control"), scratch.join("answer"));
            let made = Command::new("mkfifo").args([&control, &answer]).status()?;
            if !made.success() {
                return Err(io::Error::other("mkfifo failed"));
            }
            let pipes = format!("fifo:{},{}", control.display(), answer.display());
            let pages = buffer_pages();
            let messages = scratch.join("messages");
            let perf = Command::new("nice")
                .args(["-n", "19", "perf", "record", "-q", "-a", "-D", "-1", "-k", perf::CLOCK])
                .args(["-m", &pages.to_string(), &format!("--mmap-flush={}B", pages * PAGE / 4)])
                .args(["--control", &pipes, "-e", events, "-o"])
                .arg(data)
                .stdin(Stdio::null())
                .stderr(File::create(&messages)?)
                .spawn()?;
            // Open for both directions, a pipe opens at once and never ends, whatever becomes of
            // perf.
            let both = |path| OpenOptions::new().read(true).write(true).open(path);
            let (control, answer) = (both(&control)?, both(&answer)?);
            let (sender, answers) = channel();
            // Ends with the process if perf never answers.
            std::thread::spawn(move || {
                let lines = BufReader::new(answer).lines().map_while(Result::ok);
                for _ in lines.filter(|line| line.trim_end_matches('\0').contains("ack")) {
                    if sender.send(()).is_err() {
                        break;
                    }
                }
            });
            Ok(Self { perf, control, answers, messages })
        };
        start().map_err(|error| not_started("perf record", &error))
    }

    /// Gives perf a command and waits until it has obeyed.
    pub fn ask(&mut self, what: &str) -> Result<(), RecordingError> {
        let failed = |error: io::Error| not_started("perf record", &error);
        writeln!(self.control, "{what}").map_err(failed)?;
        let steps = 10 * PATIENCE.as_secs();
        for _ in 0..steps {
            match self.answers.recv_timeout(Duration::from_millis(100)) {
                Ok(()) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(status) = self.perf.try_wait().map_err(failed)? {
                        return Err(self::failed(
                            "perf record",
                            status,
                            b"its own message is above",
                        ));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // Nobody waits for it any more; it must not outlive us.
        let _ = self.perf.kill();
        Err(failed(io::Error::other(format!("perf did not answer to `{what}`"))))
    }

    /// Waits until perf has written its data.
    pub fn end(mut self) -> Result<(), RecordingError> {
        match self.perf.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failed(status)),
            Err(error) => Err(not_started("perf record", &error)),
        }
    }

    fn failed(&self, status: ExitStatus) -> RecordingError {
        failed("perf record", status, &std::fs::read(&self.messages).unwrap_or_default())
    }
}

/// The first line of `name FLAG`, or why there is none.
pub fn version(name: &'static str, flag: &str, package: &str) -> Result<String, String> {
    match Command::new(name).arg(flag).stdin(Stdio::null()).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().next().unwrap_or(name).trim();
            Ok(line.replace(" version ", " ").replace(" -- ", " "))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(format!("{name} is not installed (Debian: apt-get install {package})"))
        }
        Err(error) => Err(format!("{name} cannot be run: {error}")),
    }
}

/// An error for a tool that ended badly, with the last line it printed.
pub fn failed(tool: &'static str, status: ExitStatus, stderr: &[u8]) -> RecordingError {
    let text = String::from_utf8_lossy(stderr);
    let message = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").trim();
    RecordingError::ToolFailed { tool, status: status.to_string(), message: message.to_owned() }
}

/// An error for a tool that could not be started.
pub fn not_started(tool: &'static str, error: &io::Error) -> RecordingError {
    RecordingError::ToolFailed {
        tool,
        status: "not started".to_owned(),
        message: error.to_string(),
    }
}
