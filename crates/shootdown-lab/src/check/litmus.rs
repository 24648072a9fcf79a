//! Litmus tests: those that are built in, one check each, and those of a folder.
//!
//! What the machine can't decide is skipped, with the reason; it counts neither as passed nor as
//! failed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shootdown_machine::litmus::{self, Options, Outcome, Test, check_directory, embedded};

use super::report::Entry;
use super::runner::Timed;
use super::{Check, CheckResult, Checks, Kind, Settings, Verdict};
use crate::LabError;
use crate::progress::Progress;

/// A test that is built in.
struct Litmus {
    name: String,
    line: String,
    path: &'static str,
    text: &'static str,
}

impl Check for Litmus {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> Kind {
        Kind::Litmus
    }

    fn line(&self) -> &str {
        &self.line
    }

    fn run(&self, _: &Settings, _: &Progress) -> CheckResult {
        match Test::parse(self.path, self.text) {
            Ok(test) => result(&litmus::run(&test, &Options::default())),
            Err(e) => CheckResult::new("a test", e.to_string(), Verdict::Fail),
        }
    }
}

/// Every test that is built in.
#[must_use]
pub fn checks() -> Checks {
    embedded()
        .iter()
        .map(|file| -> Box<dyn Check> {
            let line = Test::parse(file.path, file.text).map_or_else(
                |e| e.to_string(),
                |test| {
                    let expected: Vec<String> =
                        test.cases().iter().map(|c| c.expected.to_string()).collect();
                    format!("{} [{}]", expected.join(", "), test.source())
                },
            );
            let name = format!("litmus/{}", file.path.trim_end_matches(".lit"));
            Box::new(Litmus { name, line, path: file.path, text: file.text })
        })
        .collect()
}

fn result(verdict: &litmus::Verdict) -> CheckResult {
    let (word, observed) = match &verdict.outcome {
        Outcome::Pass => (Verdict::Pass, verdict.observed.clone()),
        Outcome::Fail(why) => (Verdict::Fail, why.clone()),
        Outcome::Unsupported(why) => (Verdict::Skipped, format!("skipped: {why}")),
        Outcome::Unknown(why) => (Verdict::Unknown, format!("UNKNOWN: {why}")),
        // The enum may grow; what is not known to be a pass is none.
        #[allow(unreachable_patterns)]
        _ => (Verdict::Unknown, verdict.observed.clone()),
    };
    let mut result = CheckResult::new(&verdict.expected, observed, word);
    result.runs = 1;
    result.states = Some(verdict.states as u64);
    result.depth = Some(verdict.depth as u64);
    result.bounds = Some(format!("{}: {}", verdict.arch, verdict.source));
    result
}

/// Runs the tests of a folder and below: herd's `.litmus` files against the verdicts of the kinds
/// files beside them, and our own `.lit` files.
///
/// # Errors
/// [`LabError::BadInput`] when something can't be read, or there is no test.
pub fn directory(path: &Path) -> Result<Vec<(Entry, Duration)>, LabError> {
    let begun = Instant::now();
    let options = Options::default();
    let mut verdicts = check_directory(path, &options).map_err(|e| LabError::bad(e.to_string()))?;
    let mut own = Vec::new();
    own_files(path, &mut own)?;
    for file in own {
        let text = std::fs::read_to_string(&file).map_err(|e| unreadable(&file, &e))?;
        let name = file.display().to_string();
        let test = Test::parse(&name, &text).map_err(|e| LabError::bad(e.to_string()))?;
        verdicts.push(litmus::run(&test, &options));
    }
    if verdicts.is_empty() {
        return Err(LabError::bad(format!("{} holds no .litmus and no .lit file", path.display())));
    }
    let each = begun.elapsed() / u32::try_from(verdicts.len()).unwrap_or(u32::MAX);
    Ok(verdicts
        .iter()
        .map(|v| ((format!("litmus/{}", v.name), Kind::Litmus.name(), result(v)), each))
        .collect())
}

fn unreadable(path: &Path, e: &std::io::Error) -> LabError {
    LabError::bad(format!("{}: {e}", path.display()))
}

/// The `.lit` files of a folder and below, in the order of their paths.
fn own_files(folder: &Path, own: &mut Vec<PathBuf>) -> Result<(), LabError> {
    let failed = |e: std::io::Error| unreadable(folder, &e);
    let entries: Result<Vec<_>, _> = std::fs::read_dir(folder).map_err(failed)?.collect();
    let mut paths: Vec<PathBuf> = entries.map_err(failed)?.iter().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            own_files(&path, own)?;
        } else if path.extension().is_some_and(|e| e == "lit") {
            own.push(path);
        }
    }
    Ok(())
}

/// An entry as a timed result, for the table.
#[must_use]
pub fn timed(entry: &Entry, took: Duration) -> Timed {
    Timed { result: entry.2.clone(), took }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_subfolders_are_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../litmus");
        let mut own = Vec::new();
        own_files(&folder, &mut own).unwrap();
        assert_eq!(own.len(), embedded().len());
    }
}
