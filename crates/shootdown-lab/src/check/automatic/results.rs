//! What is known of each mutant: the committed results, and the survivors with their arguments.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::LabError;

/// What has come of a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its name.
    pub mutant: String,
    /// The stage that killed it; `None` when it survives.
    pub stage: Option<String>,
    /// The hunt or test that killed it.
    pub by: String,
    /// What that objected to.
    pub objection: String,
    /// Schedules until then, of all hunts.
    pub runs: u64,
    /// Hash of the function with the change.
    pub hash: u64,
    /// The change.
    pub change: String,
}

/// The first line of the file.
const HEAD: &str = "mutant,verdict,stage,by,objection,runs,hash,change";

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// The fields of a line.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut field, mut inside) = (Vec::new(), String::new(), false);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' if inside && rest.peek() == Some(&'"') => {
                field.push('"');
                rest.next();
            }
            '"' => inside = !inside,
            ',' if !inside => all.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    all.push(field);
    all
}

impl Row {
    fn line(&self) -> String {
        let verdict = if self.stage.is_some() { "killed" } else { "survived" };
        format!(
            "{},{verdict},{},{},{},{},{:016x},{}",
            quoted(&self.mutant),
            self.stage.as_deref().unwrap_or_default(),
            quoted(&self.by),
            quoted(&self.objection),
            self.runs,
            self.hash,
            quoted(&self.change),
        )
    }

    fn read(line: &str) -> Option<Self> {
        let [mutant, verdict, stage, by, objection, runs, hash, change] =
            fields(line).try_into().ok()?;
        Some(Self {
            mutant,
            stage: (verdict == "killed").then_some(stage),
            by,
            objection,
            runs: runs.parse().ok()?,
            hash: u64::from_str_radix(&hash, 16).ok()?,
            change,
        })
    }
}

/// The results of a file, by mutant; none where there is no file.
///
/// # Errors
/// [`LabError::BadInput`] with the line that can't be read.
pub fn read(path: &Path) -> Result<BTreeMap<String, Row>, LabError> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(BTreeMap::new()) };
    let mut rows = BTreeMap::new();
    for (n, line) in text.lines().enumerate().filter(|(_, line)| *line != HEAD) {
        let row = Row::read(line).ok_or_else(|| {
            LabError::bad(format!("{}:{}: not a result: {line}", path.display(), n + 1))
        })?;
        rows.insert(row.mutant.clone(), row);
    }
    Ok(rows)
}

/// Writes results, sorted by mutant.
///
/// # Errors
/// [`LabError::BadInput`] when the file can't be written.
pub fn write(path: &Path, rows: &BTreeMap<String, Row>) -> Result<(), LabError> {
    let mut text = format!("{HEAD}\n");
    for row in rows.values() {
        let _ = writeln!(text, "{}", row.line());
    }
    fs::write(path, text).map_err(|e| LabError::bad(format!("{}: {e}", path.display())))
}

/// Why a mutant survives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Nothing that anybody could see is different.
    Equivalent,
    /// It costs time, or does more than it must; no promise is about that.
    Performance,
    /// It breaks something that no check looks for yet.
    MissingCheck,
}

/// A survivor with its argument.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survivor {
    /// The mutant's name.
    pub mutant: String,
    /// Why it survives.
    pub class: Class,
    /// The argument.
    pub because: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Survivors {
    #[serde(default)]
    survivor: Vec<Survivor>,
}

/// The survivors of a file, by mutant.
///
/// # Errors
/// [`LabError::BadInput`] with what is wrong in the file.
pub fn survivors(path: &Path) -> Result<BTreeMap<String, Survivor>, LabError> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(BTreeMap::new()) };
    let list: Survivors =
        toml::from_str(&text).map_err(|e| LabError::bad(format!("{}: {e}", path.display())))?;
    if let Some(bare) = list.survivor.iter().find(|s| s.because.trim().is_empty()) {
        let sentence = format!("{}: {} has no argument", path.display(), bare.mutant);
        return Err(LabError::bad(sentence));
    }
    Ok(list.survivor.into_iter().map(|s| (s.mutant.clone(), s)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let killed = Row {
            mutant: "core/switch.rs:switch_to:compare:1".into(),
            stage: Some("programs".into()),
            by: "zoo/z1, or so".into(),
            objection: "panic: \"a\", b".into(),
            runs: 12,
            hash: 0xabc,
            change: "a < b => a <= b".into(),
        };
        let survived = Row { stage: None, ..killed.clone() };
        for row in [killed, survived] {
            assert_eq!(Row::read(&row.line()), Some(row));
        }
        assert_eq!(Row::read("a,b"), None);
    }

    #[test]
    fn the_committed_files_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../verify/automatic");
        let rows = read(&folder.join("shootdown.csv")).unwrap();
        let argued = survivors(&folder.join("survivors.toml")).unwrap();
        for name in argued.keys() {
            let row = rows.get(name).unwrap_or_else(|| panic!("{name} has no result"));
            assert!(row.stage.is_none(), "{name} is argued, and is killed by {}", row.by);
        }
    }
}
