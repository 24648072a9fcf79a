//! Programs: are they there, did they succeed, and what did they print before their time was up.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wait_timeout::ChildExt;

use crate::{Error, output};

/// Finds a program, or says how to get it.
pub fn need(program: &str, hint: &str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::Missing { program: program.into(), hint: hint.into() })
}

/// Runs a program that must succeed; what it printed is shown only if it does not.
pub fn succeed(what: &str, command: &mut Command) -> Result<(), Error> {
    let failed = |why: String| Error::Failed { what: what.into(), why };
    let out = command.output().map_err(|error| failed(error.to_string()))?;
    if out.status.success() {
        return Ok(());
    }
    Err(failed(format!("{}\n{}", out.status, String::from_utf8_lossy(&out.stderr).trim_end())))
}

/// Is the output shown while it comes?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    /// All of it.
    All,
    /// None.
    Nothing,
}

/// What a program printed, and how it ended; `None` if it had to be stopped.
pub struct Ran {
    pub output: String,
    pub errors: String,
    pub status: Option<ExitStatus>,
}

/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A program that computes is given so many times its limit on a host that does other things too.
const PATIENCE: u32 = 10;

/// Runs a program until it has used `seconds` of a CPU, or waited for ten times as long; `heed`
/// hears of each line that it prints, as it comes.
pub fn run(
    command: &mut Command,
    seconds: u64,
    show: Show,
    heed: impl FnMut(&str) + Send + 'static,
) -> Result<Ran, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |why: String| Error::Failed { what: name.clone(), why };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let output = thread::spawn(move || lines(stdout, show, heed));
    let errors = thread::spawn(move || lines(stderr, Show::Nothing, |_| {}));
    let begun = Instant::now();
    let status = loop {
        let status = child.wait_timeout(LOOK).map_err(|error| failed(error.to_string()))?;
        if status.is_some() || is_over(child.id(), begun, Duration::from_secs(seconds)) {
            break status;
        }
    };
    if status.is_none() {
        // It may end by itself at this very moment, and then there is nothing to stop. What it has
        // started holds its output open, and goes with it.
        let family: Vec<String> = family(child.id()).keys().map(u32::to_string).collect();
        let _ = Command::new("kill").arg("-KILL").args(family).stderr(Stdio::null()).status();
        let _ = child.kill();
        child.wait().map_err(|error| failed(error.to_string()))?;
    }
    let text = |reader: thread::JoinHandle<String>| reader.join().expect("a reader does not panic");
    Ok(Ran { output: text(output), errors: text(errors), status })
}

/// Has a program had its time? On a busy host an emulator gets little of each second: what counts
/// is what it and its children have used of CPUs, where the host tells.
fn is_over(process: u32, begun: Instant, limit: Duration) -> bool {
    let family = family(process);
    let ticks: u64 = family.values().sum();
    let used = match family.is_empty() {
        true => begun.elapsed(),
        false => Duration::from_millis(ticks * 1000 / TICKS),
    };
    used >= limit || begun.elapsed() >= limit * PATIENCE
}

/// Ticks of a CPU's time in a second, as Linux counts them for processes (`USER_HZ`).
const TICKS: u64 = 100;

/// A process and its living descendants, with the ticks that each has used of CPUs
/// (`proc_pid_stat(5)`, fields 4, 14 and 15); nobody where the host does not tell.
fn family(process: u32) -> BTreeMap<u32, u64> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let id = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name comes second, in parentheses, and may hold anything; field 3 follows it.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        if let (Some(id), Some(parent), Some(user), Some(system)) =
            (id, number(4), number(14), number(15))
        {
            all.insert(id, (parent, user + system));
        }
    }
    let descends = |mut id: u32| {
        while id != process {
            match all.get(&id).and_then(|(parent, _)| u32::try_from(*parent).ok()) {
                Some(parent) if parent != id && parent != 0 => id = parent,
                _ => return false,
            }
        }
        all.contains_key(&process)
    };
    all.iter().filter(|(id, _)| descends(**id)).map(|(id, (_, ticks))| (*id, *ticks)).collect()
}

/// Reads a stream to its end.
fn lines(stream: Option<impl Read>, show: Show, mut heed: impl FnMut(&str)) -> String {
    let Some(stream) = stream else { return String::new() };
    let mut text = String::new();
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    // A stream that breaks off ends like any other: the verdict is missing then.
    while stream.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        let whole = String::from_utf8_lossy(&line).replace('\r', "");
        if show == Show::All {
            output::print(format_args!("{whole}"));
        }
        heed(whole.trim_end());
        text.push_str(&whole);
        line.clear();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(script: &str, seconds: u64) -> (Ran, Duration) {
        let begun = Instant::now();
        let ran = run(Command::new("sh").args(["-c", script]), seconds, Show::Nothing, |_| {});
        (ran.unwrap(), begun.elapsed())
    }

    #[test]
    fn a_program_that_computes_without_end_is_stopped() {
        // The shell waits; its child computes.
        let (ran, _) = ran("echo begun; sh -c 'while :; do :; done'; true", 1);
        assert!(ran.status.is_none());
        assert_eq!(ran.output, "begun\n");
    }

    #[test]
    fn a_program_that_waits_is_given_more_time() {
        let (ran, took) = ran("exec sleep 2", 1);
        assert!(ran.status.is_some_and(|status| status.success()), "{took:?}");
    }
}
