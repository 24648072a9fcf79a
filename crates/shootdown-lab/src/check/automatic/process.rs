//! Worker processes: what they print, and what becomes of them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use shootdown_automutate::switch::{REACHED, SWITCH};

use super::worker::Line;
use crate::LabError;

/// How long a worker may compute and say nothing: many times what 64 schedules take.
pub const SILENCE: Duration = Duration::from_secs(8);

/// Who has used no CPU for so many times as long waits for what never comes, or for a very busy
/// host.
const ASLEEP: u32 = 20;

/// Ticks of a CPU's time in a second, as Linux counts them for processes (`USER_HZ`).
const TICKS: u64 = 100;

/// Memory that a worker may take, in KiB: some mutants allocate without end.
const MEMORY: u64 = 8 << 20;

/// How a worker ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With all that was asked of it.
    Done,
    /// It said nothing for long, and was stopped.
    Hangs,
    /// By itself, too early.
    Crashes,
}

/// A worker's program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The folder it runs in, if that matters.
    pub folder: Option<PathBuf>,
    /// How long it may say nothing.
    pub silence: Duration,
}

impl Program {
    /// Runs it with this mutant on (0: none), and hands on each line that it prints. What it
    /// reaches goes to a file, if one is given.
    ///
    /// # Errors
    /// It can't be started.
    pub fn run(
        &self,
        mutant: u32,
        reached: Option<&Path>,
        mut line: impl FnMut(&str),
    ) -> Result<Ended, LabError> {
        let limited = format!("ulimit -v {MEMORY}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limited]).arg(&self.path).args(&self.arguments);
        command.env(SWITCH, mutant.to_string()).env("RUST_BACKTRACE", "0").env_remove(REACHED);
        if let Some(reached) = reached {
            command.env(REACHED, reached);
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command
            .spawn()
            .map_err(|e| LabError::bad(format!("{} can't be started: {e}", self.path.display())))?;
        let out = child.stdout.take().expect("it is piped");
        let (sender, receiver) = mpsc::channel();
        let reader = thread::spawn(move || {
            for text in BufReader::new(out).lines() {
                let Ok(text) = text else { return };
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        // What it has used of a CPU when it last said something: on a busy host it may have used
        // none since.
        let mut used = Duration::ZERO;
        let mut said = Instant::now();
        let ended = loop {
            match receiver.recv_timeout(self.silence) {
                Ok(text) => {
                    line(&text);
                    used = cpu_time(child.id());
                    said = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {
                    let busy = cpu_time(child.id()).saturating_sub(used);
                    if busy < self.silence && said.elapsed() < self.silence * ASLEEP {
                        continue;
                    }
                    stop(&mut child);
                    break Ended::Hangs;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    // It has closed its output, so it ends.
                    break match child.wait() {
                        Ok(status) if status.success() => Ended::Done,
                        _ => Ended::Crashes,
                    };
                }
            }
        };
        // The reader ends with the pipe.
        let _ = reader.join();
        Ok(ended)
    }

    /// The same for workers that print [`Line`]s.
    ///
    /// # Errors
    /// As [`Program::run`].
    pub fn lines(
        &self,
        mutant: u32,
        reached: Option<&Path>,
        mut line: impl FnMut(Line),
    ) -> Result<Ended, LabError> {
        self.run(mutant, reached, |text| {
            if let Ok(said) = serde_json::from_str(text) {
                line(said);
            }
        })
    }
}

/// What a process has used of CPUs, in its own time and the system's; nothing where the host does
/// not tell.
fn cpu_time(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name comes second, in parentheses; what follows has its fields 3, 4, .. (proc(5)).
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks = fields.skip(14 - 3).take(2).filter_map(|field| field.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 1000 / TICKS)
}

fn stop(child: &mut Child) {
    // It may have ended by itself just now.
    let _ = child.kill();
    let _ = child.wait();
}
