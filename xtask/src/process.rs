//! Programs: are they there, did they succeed, and what did they print before their time was up.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

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

/// Runs a program for no longer than `seconds`; `heed` hears of each line that it prints, as it comes.
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
    let limit = Duration::from_secs(seconds);
    let status = child.wait_timeout(limit).map_err(|error| failed(error.to_string()))?;
    if status.is_none() {
        // It may end by itself at this very moment, and then there is nothing to stop.
        let _ = child.kill();
        child.wait().map_err(|error| failed(error.to_string()))?;
    }
    let text = |reader: thread::JoinHandle<String>| reader.join().expect("a reader does not panic");
    Ok(Ran { output: text(output), errors: text(errors), status })
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
