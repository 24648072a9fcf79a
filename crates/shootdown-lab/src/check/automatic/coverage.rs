//! `shootdown check --coverage`: which statements and branches of the two libraries no hunt runs.
//!
//! The committed list, `verify/automatic/uncovered.csv`, says which these are; what is not on it
//! and is not run is new, and an error. A row names its place by the function and the text that
//! stands there, so that the list holds while lines move.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use shootdown_automutate::probes::Kind;
use shootdown_automutate::source::Source;

use crate::LabError;

/// A statement or branch, with the number of its probe.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The library and the file.
    pub file: String,
    /// The function.
    pub function: String,
    /// What is not run.
    pub what: String,
    /// Where it is now; not a part of the list.
    pub line: usize,
}

impl Place {
    fn key(&self) -> (String, String, String) {
        (self.file.clone(), self.function.clone(), self.what.clone())
    }
}

/// What came of a look.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Statements, arms and ways past an `if` that there are.
    pub all: usize,
    /// Those that no hunt comes by, by place.
    pub uncovered: Vec<Place>,
}

/// What of the sources' probes is not come by.
#[must_use]
pub fn coverage(sources: &[Source], comes_by: impl Fn(usize) -> bool) -> Coverage {
    let mut coverage = Coverage::default();
    for source in sources {
        for probe in &source.probed.probes {
            let number = coverage.all;
            coverage.all += 1;
            if comes_by(number) {
                continue;
            }
            let text = &probe.text;
            let what = match probe.kind {
                Kind::Statement => text.clone(),
                Kind::Arm => format!("arm {text}"),
                Kind::Past => format!("always {text}"),
            };
            coverage.uncovered.push(Place {
                file: format!("{}/{}", source.library.name, source.file),
                function: probe.function.clone(),
                what,
                line: probe.line,
            });
        }
    }
    coverage.uncovered.sort();
    coverage
}

impl Coverage {
    /// The places that are not on a list, or more often than there.
    ///
    /// # Errors
    /// The list can't be read.
    pub fn unlisted(&self, list: &Path) -> Result<Vec<&Place>, LabError> {
        let failed = |e: String| LabError::bad(format!("{}: {e}", list.display()));
        let mut listed: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        let mut rows = csv::Reader::from_path(list).map_err(|e| failed(e.to_string()))?;
        for row in rows.deserialize() {
            *listed.entry(row.map_err(|e| failed(e.to_string()))?).or_default() += 1;
        }
        let is_new = |place: &&Place| match listed.get_mut(&place.key()) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        };
        Ok(self.uncovered.iter().filter(is_new).collect())
    }

    /// Writes the list anew.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&self, list: &Path) -> Result<(), LabError> {
        let failed = |e: String| LabError::bad(format!("{}: {e}", list.display()));
        let mut rows = csv::Writer::from_writer(Vec::new());
        let mut write = |row: (String, String, String)| rows.serialize(row);
        write(("file".into(), "function".into(), "what".into()))
            .map_err(|e| failed(e.to_string()))?;
        for place in &self.uncovered {
            write(place.key()).map_err(|e| failed(e.to_string()))?;
        }
        let text = rows.into_inner().map_err(|e| failed(e.to_string()))?;
        fs::write(list, text).map_err(|e| failed(e.to_string()))
    }

    /// The places by file and function, for people.
    #[must_use]
    pub fn table(&self, new: &[&Place]) -> String {
        let mut text = String::new();
        let mut at = ("", "");
        for place in &self.uncovered {
            if at != (&*place.file, &*place.function) {
                at = (&place.file, &place.function);
                let _ = writeln!(text, "{} {}", place.file, place.function);
            }
            let mark = if new.contains(&place) { "NEW" } else { "" };
            let _ = writeln!(text, "  {mark:3} {:5}  {}", place.line, place.what);
        }
        text
    }

    /// All of it in a sentence.
    #[must_use]
    pub fn summary(&self) -> String {
        let covered = self.all - self.uncovered.len();
        format!("hunts run {covered} of {} statements and branches", self.all)
    }
}
