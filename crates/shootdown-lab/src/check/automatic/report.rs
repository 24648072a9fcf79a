//! What is said of mutants that were tried.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::coverage::{self, Coverage};
use super::results::{self, Row, Survivor};
use crate::LabError;
use crate::output::emit;
use crate::progress::Progress;

/// What is known so far, printed and written as it comes.
pub struct Report<'a> {
    /// What came of the mutants that were tried.
    pub rows: Vec<Row>,
    /// All results that still hold.
    pub known: BTreeMap<String, Row>,
    /// Where they are committed.
    pub file: PathBuf,
    /// The survivors with an argument.
    pub argued: &'a BTreeMap<String, Survivor>,
    /// Write them.
    pub record: bool,
    /// Print each.
    pub shown: bool,
}

impl Report<'_> {
    /// What came of a mutant in the end.
    pub fn take(&mut self, row: &Row, progress: &Progress) {
        if self.shown {
            progress.aside(|| emit(&line(row, self.argued)));
        }
        self.rows.push(row.clone());
        self.note(row);
    }

    fn note(&mut self, row: &Row) {
        // What tests have killed, a campaign without them does not bring back.
        let keeps = |known: &Row| known.hash == row.hash && known.stage.is_some();
        if row.stage.is_some() || !self.known.get(&row.mutant).is_some_and(keeps) {
            self.known.insert(row.mutant.clone(), row.clone());
        }
    }

    /// Writes the results, if they are to be.
    ///
    /// # Errors
    /// [`LabError::BadInput`] when the file can't be written.
    pub fn write(&self) -> Result<(), LabError> {
        if self.record { results::write(&self.file, &self.known) } else { Ok(()) }
    }
}

/// The survivors that nobody has argued.
pub fn unargued<'a>(
    rows: &'a [Row],
    argued: &'a BTreeMap<String, Survivor>,
) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(|row| row.stage.is_none() && !argued.contains_key(&row.mutant))
}

/// A mutant in a line.
fn line(row: &Row, argued: &BTreeMap<String, Survivor>) -> String {
    let Row { mutant, by, objection, runs, change, .. } = row;
    match (&row.stage, argued.get(mutant)) {
        (Some(stage), _) => format!("killed    {mutant}  {stage}: {by}: {objection}, {runs} runs"),
        (None, Some(survivor)) => format!("argued    {mutant}  {}", survivor.because),
        (None, None) => format!("SURVIVES  {mutant}  {change}  {objection} {runs} runs"),
    }
}

/// All in a line.
pub fn summary(
    generated: usize,
    dropped: usize,
    rows: &[Row],
    argued: &BTreeMap<String, Survivor>,
) -> String {
    format!(
        "{generated} mutants can be made; {dropped} of those drawn do not compile; {}",
        counts(rows, argued)
    )
}

/// How many were killed, are argued and survive.
pub fn counts(rows: &[Row], argued: &BTreeMap<String, Survivor>) -> String {
    let killed = rows.iter().filter(|row| row.stage.is_some()).count();
    let unknown = unargued(rows, argued).count();
    let known = rows.len() - killed - unknown;
    format!("{} tried: {killed} killed, {known} argued, {unknown} survive", rows.len())
}

/// All as JSON.
pub fn json(
    rows: &[Row],
    argued: &BTreeMap<String, Survivor>,
    covered: Option<&Coverage>,
) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "mutant": row.mutant,
                "change": row.change,
                "killed": row.stage.is_some(),
                "stage": row.stage,
                "by": row.by,
                "objection": row.objection,
                "runs": row.runs,
                "argued": argued.get(&row.mutant).map(|survivor| &survivor.because),
            })
        })
        .collect();
    let place = |place: &coverage::Place| {
        let coverage::Place { file, function, what, line } = place;
        serde_json::json!({ "file": file, "function": function, "line": line, "what": what })
    };
    let covered = covered.map(|covered| {
        let uncovered: Vec<_> = covered.uncovered.iter().map(place).collect();
        serde_json::json!({ "places": covered.all, "uncovered": uncovered })
    });
    serde_json::json!({ "schema": 1, "mutants": rows, "coverage": covered }).to_string()
}
