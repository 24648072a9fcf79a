//! What mutants are tried with, and in which order.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use shootdown_automutate::generate::Mutant;
use shootdown_automutate::source::Source;
use shootdown_automutate::tree::{Tree, Wanted};

use super::Options;
use super::campaign::Campaign;
use super::report::Report;
use super::results::Row;
use super::stages::STAGES;
use super::tests::{self, Killed, Layer};
use crate::LabError;
use crate::progress::Progress;

/// What mutants are tried with.
pub enum Step {
    /// Stages of hunts.
    Hunts(Range<usize>),
    /// Tests of the crates, or models for the model checker.
    Tests(Layer),
}

/// All of them, the cheapest first: a survivor takes as long as all of them together.
pub fn steps(options: &Options) -> Vec<Step> {
    let stages = options.stages.unwrap_or(usize::MAX).min(STAGES.len());
    let hunts = |range: Range<usize>| Step::Hunts(range.start.min(stages)..range.end.min(stages));
    let all = if options.tests {
        let [tests, models] = tests::LAYERS;
        vec![
            hunts(0..2),
            Step::Tests(tests),
            hunts(2..4),
            Step::Tests(models),
            hunts(4..usize::MAX),
        ]
    } else {
        vec![hunts(0..usize::MAX)]
    };
    all.into_iter().filter(|step| !matches!(step, Step::Hunts(range) if range.is_empty())).collect()
}

/// Stages that a mutant is tried in which no hunt is expected to kill.
const A_LOOK: usize = 2;

/// Mutants of one binary are tried.
pub struct Trial<'a, 'r> {
    /// The copy that they are woven into.
    pub tree: &'a Tree,
    /// What they were made of.
    pub sources: &'a [Source],
    /// What the user asks for.
    pub options: &'a Options,
    /// Where results go.
    pub report: &'a Mutex<Report<'r>>,
}

impl Trial<'_, '_> {
    /// Tries all of them; gives back those that survive. Those that no hunt is expected to kill are
    /// looked at only (`leave_alone`), unless tests are asked too.
    ///
    /// # Errors
    /// What can't be compiled or started, and a hunt that objects to the libraries as they are.
    pub fn all(
        &self,
        campaign: &Campaign,
        numbered: &BTreeMap<u32, &Mutant>,
        steps: &[Step],
        leave_alone: impl Fn(&Mutant) -> bool,
        progress: &Progress,
    ) -> Result<Vec<Row>, LabError> {
        let wanted = campaign.compiled.wanted.iter();
        let mut tried: Vec<(Wanted, Row)> =
            wanted.map(|one| (one.clone(), Row::new(numbered[&one.number]))).collect();
        for step in steps {
            match step {
                Step::Hunts(stages) => {
                    let mut parts = vec![(stages.clone(), std::mem::take(&mut tried))];
                    if !self.options.tests {
                        let all = std::mem::take(&mut parts[0].1);
                        let (looked, others) = all
                            .into_iter()
                            .partition(|(one, _)| leave_alone(numbered[&one.number]));
                        let look = stages.start..stages.end.min(A_LOOK);
                        parts = vec![(look, looked), (stages.clone(), others)];
                    }
                    for (stages, part) in parts {
                        let rows = campaign.hunt(&part, &stages, progress, |row| {
                            self.hunted(row, progress);
                        })?;
                        tried.extend(part.into_iter().map(|(one, _)| one).zip(rows));
                    }
                }
                Step::Tests(layer) if !tried.is_empty() => {
                    let wanted = tried.iter().map(|(one, _)| one.clone()).collect();
                    let threads = self.options.threads;
                    let take = |number: u32, killed: Killed| {
                        let row = tried.iter().find(|(one, _)| one.number == number);
                        let mut row = row?.1.clone();
                        row.stage = Some(layer.name.to_owned());
                        (row.by, row.objection) = (killed.by, killed.objection);
                        self.hunted(&row, progress);
                        Some((number, row))
                    };
                    let killed = tests::kill(
                        *layer,
                        self.tree,
                        self.sources,
                        wanted,
                        threads,
                        progress,
                        take,
                    )?;
                    for (one, row) in &mut tried {
                        if let Some(killed) = killed.get(&one.number) {
                            row.clone_from(killed);
                        }
                    }
                }
                Step::Tests(_) => {}
            }
            tried.retain(|(_, row)| row.stage.is_none());
        }
        Ok(tried.into_iter().map(|(_, row)| row).collect())
    }

    /// What is known of a mutant by now.
    fn hunted(&self, row: &Row, progress: &Progress) {
        let mut report = self.report.lock().unwrap_or_else(|e| e.into_inner());
        if row.stage.is_some() {
            report.take(row, progress);
            // A campaign that is stopped keeps what it knows; what can't be written is said at its
            // end.
            let _ = report.write();
        }
    }
}
