//! What is known of each mutant: the committed results, and the survivors with their arguments.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shootdown_automutate::generate::Mutant;

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

impl Row {
    /// Nothing has killed it yet.
    #[must_use]
    pub fn new(mutant: &Mutant) -> Self {
        Self {
            mutant: mutant.name.to_string(),
            stage: None,
            by: String::new(),
            objection: String::new(),
            runs: 0,
            hash: mutant.hash,
            change: mutant.change.clone(),
        }
    }
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
struct Line {
    mutant: String,
    verdict: Verdict,
    stage: String,
    by: String,
    objection: String,
    runs: u64,
    hash: String,
    change: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Killed,
    Survived,
}

impl From<Row> for Line {
    fn from(row: Row) -> Self {
        Self {
            mutant: row.mutant,
            verdict: if row.stage.is_some() { Verdict::Killed } else { Verdict::Survived },
            stage: row.stage.unwrap_or_default(),
            by: row.by,
            objection: row.objection,
            runs: row.runs,
            hash: format!("{:016x}", row.hash),
            change: row.change,
        }
    }
}

impl Line {
    fn row(self) -> Option<Row> {
        Some(Row {
            mutant: self.mutant,
            stage: (self.verdict == Verdict::Killed).then_some(self.stage),
            by: self.by,
            objection: self.objection,
            runs: self.runs,
            hash: u64::from_str_radix(&self.hash, 16).ok()?,
            change: self.change,
        })
    }
}

/// The results of a file, by mutant; none where there is no file.
///
/// # Errors
/// [`LabError::BadInput`] with the line that can't be read.
pub fn read(path: &Path) -> Result<BTreeMap<String, Row>, LabError> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(BTreeMap::new()) };
    let failed = |why: String| LabError::bad(format!("{}: {why}", path.display()));
    let mut rows = BTreeMap::new();
    for line in csv::Reader::from_reader(text.as_bytes()).deserialize() {
        let line: Line = line.map_err(|e| failed(e.to_string()))?;
        let (mutant, hash) = (line.mutant.clone(), line.hash.clone());
        let row = line.row().ok_or_else(|| failed(format!("{mutant}: {hash} is no hash")))?;
        rows.insert(mutant, row);
    }
    Ok(rows)
}

/// Writes results, sorted by mutant.
///
/// # Errors
/// [`LabError::BadInput`] when the file can't be written.
pub fn write(path: &Path, rows: &BTreeMap<String, Row>) -> Result<(), LabError> {
    let failed = |why: String| LabError::bad(format!("{}: {why}", path.display()));
    let mut lines = csv::Writer::from_writer(Vec::new());
    for row in rows.values() {
        lines.serialize(Line::from(row.clone())).map_err(|e| failed(e.to_string()))?;
    }
    let text = lines.into_inner().map_err(|e| failed(e.to_string()))?;
    fs::write(path, text).map_err(|e| failed(e.to_string()))
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
    /// Its change in a line: the argument is about no other that comes to have the same name.
    pub change: String,
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
    use shootdown_automutate::scope::Scope;
    use shootdown_automutate::source::sources;

    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let killed = Row {
            mutant: "core/ops/switch/mod.rs:switch_to:compare:1".into(),
            stage: Some("programs".into()),
            by: "zoo/z1, or so".into(),
            objection: "panic: \"a\", b".into(),
            runs: 12,
            hash: 0xabc,
            change: "a < b => a <= b".into(),
        };
        let survived = Row { stage: None, ..killed.clone() };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results.csv");
        let rows: BTreeMap<String, Row> = [
            (killed.mutant.clone(), killed.clone()),
            ("b".to_owned(), Row { mutant: "b".into(), ..survived }),
        ]
        .into();
        write(&file, &rows).unwrap();
        let again = read(&file).unwrap();
        assert_eq!(again.values().collect::<Vec<_>>(), rows.values().collect::<Vec<_>>());
        fs::write(&file, "mutant,verdict\na,lost\n").unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("results.csv"));
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

    #[test]
    fn arguments_are_about_mutants_that_can_be_made() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = workspace.join("verify/automatic");
        let scope = Scope::new(&fs::read_to_string(folder.join("scope.toml")).unwrap()).unwrap();
        let sources = sources(&workspace, &scope, false).unwrap();
        let all = sources.iter().flat_map(|source| &source.functions).flat_map(|f| &f.mutants);
        let changes: BTreeMap<String, &str> =
            all.map(|mutant| (mutant.name.to_string(), mutant.change.as_str())).collect();
        for (name, survivor) in survivors(&folder.join("survivors.toml")).unwrap() {
            assert_eq!(
                changes.get(&name),
                Some(&survivor.change.as_str()),
                "the argument for {name} is about something else: look again"
            );
        }
    }
}
