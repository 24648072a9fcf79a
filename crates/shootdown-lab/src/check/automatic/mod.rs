//! `shootdown check mutants --automatic`: mutants that nobody wrote.
//!
//! Mutants that were written by hand show that the checks find what their authors thought of. These
//! are made from the text of the two libraries ([`shootdown_automutate`]): a statement left out, a
//! comparison off by one, an ordering weakened, wherever there is one. Many are woven into one
//! binary, each behind a switch, and every one is hunted with the scenes that the other checks
//! have, the cheapest first, until something objects: a broken promise, a panic, a run that never
//! ends, a process that hangs or crashes, or something that must be seen and no longer is.
//!
//! A mutant that nothing objects to *survives*. The list of survivors says of each why: nothing is
//! different, or only the time it takes is, or a check is missing.
//!
//! | module | holds |
//! |---|---|
//! | [`hunts`], [`stages`] | what a mutant is hunted with, in which order and for how long |
//! | [`worker`], [`process`] | processes that hunt one mutant each |
//! | [`tests`] | tests of the crates and models for the model checker, on what hunts leave |
//! | [`campaign`] | compiling many mutants, and hunting each |
//! | [`trial`] | what is tried first, and what of that survives |
//! | [`coverage`] | what no hunt runs |
//! | [`results`] | the committed results, and the survivors with their arguments |
//! | [`report`] | what is said of them |

pub mod campaign;
pub mod coverage;
pub mod hunts;
pub mod process;
pub mod report;
pub mod results;
pub mod stages;
pub mod tests;
pub mod trial;
pub mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use shootdown_automutate::generate::Mutant;
use shootdown_automutate::scope::Scope;
use shootdown_automutate::source::{Source, sources};
use shootdown_automutate::tree::{Tree, Wanted};

use self::campaign::Campaign;
use self::report::{Report, counts, json, summary, unargued};
use self::results::Row;
use self::trial::{Step, Trial, steps};
use crate::LabError;
use crate::experiments::chance;
use crate::output::{Format, emit};
use crate::progress::Progress;

/// What the user asks for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Make and hunt mutants.
    pub mutants: bool,
    /// Say which statements and branches no hunt runs.
    pub coverage: bool,
    /// How many mutants; `None` for all.
    pub sample: Option<usize>,
    /// Seed of the sample and of the hunts.
    pub seed: u64,
    /// Only mutants whose names begin like this.
    pub among: Option<String>,
    /// Only mutants that a hunt kills according to the results.
    pub recorded: bool,
    /// Only mutants that survive according to the results.
    pub survivors: bool,
    /// Leave out those that the results know already, and write what is found to them.
    pub record: bool,
    /// Try what hunts leave with the tests of the crates and the models for the model checker.
    pub tests: bool,
    /// Stages that are tried; `None` for all.
    pub stages: Option<usize>,
    /// Processes side by side.
    pub threads: usize,
    /// How results are printed.
    pub format: Format,
}

/// The workspace that this was built from, or the one that the user is in.
fn workspace() -> Result<PathBuf, LabError> {
    let here = std::env::current_dir().unwrap_or_default();
    let mut places = here
        .ancestors()
        .map(Path::to_owned)
        .chain([Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")]);
    let found = places.find(|place| place.join("verify/automatic/scope.toml").is_file());
    found.and_then(|place| place.canonicalize().ok()).ok_or_else(|| {
        LabError::bad(
            "automatic mutants are made from the libraries' source; \
             run this in a checkout of the project",
        )
    })
}

/// Every mutant of the sources.
fn mutants(sources: &[Source]) -> Vec<&Mutant> {
    let functions = sources.iter().flat_map(|source| &source.functions);
    functions.flat_map(|one| &one.mutants).collect()
}

/// A sample by seed: each mutant has a number by chance that follows from its name, and the lowest
/// are taken, so that the sample changes little when the libraries do.
fn sample(mut all: Vec<&Mutant>, seed: u64, size: usize) -> Vec<&Mutant> {
    let drawn = |m: &Mutant| chance(seed, super::seed_for(seed, &m.name.to_string()));
    all.sort_by_cached_key(|mutant| (drawn(mutant), mutant.name.clone()));
    all.truncate(size);
    all
}

/// More are drawn than are wanted: some do not compile.
const SPARE: usize = 2;

/// Mutants of one binary: more take too long to compile.
const TOGETHER: usize = 4_000;

/// Makes mutants, hunts them, and says what came of it.
///
/// # Errors
/// [`LabError::Broken`] when a mutant survives that the list of survivors does not know.
pub fn run(options: &Options) -> Result<(), LabError> {
    let begun = Instant::now();
    let workspace = workspace()?;
    let folder = workspace.join("verify/automatic");
    let scope = folder.join("scope.toml");
    let text = fs::read_to_string(&scope)
        .map_err(|e| LabError::bad(format!("{}: {e}", scope.display())))?;
    let scope = Scope::new(&text).map_err(|e| LabError::bad(e.to_string()))?;
    let sources =
        sources(&workspace, &scope, options.coverage).map_err(|e| LabError::bad(e.to_string()))?;
    let mut argued = results::survivors(&folder.join("survivors.toml"))?;
    let file = folder.join("shootdown.csv");
    let mut known = results::read(&file)?;

    let all = if options.mutants { mutants(&sources) } else { Vec::new() };
    let generated = all.len();
    if options.mutants {
        let made: BTreeMap<String, &Mutant> =
            all.iter().map(|m| (m.name.to_string(), *m)).collect();
        argued.retain(|name, s| made.get(name).is_some_and(|m| m.change == s.change));
        if options.record {
            // Results of functions that have changed since.
            known.retain(|name, row| made.get(name).is_some_and(|m| m.hash == row.hash));
        }
    }
    let among = options.among.as_deref().unwrap_or_default();
    let by_tests = |row: &Row| tests::LAYERS.iter().any(|l| row.stage.as_deref() == Some(l.name));
    let is_wanted = |m: &Mutant| {
        let name = m.name.to_string();
        let row = known.get(&name).filter(|row| row.hash == m.hash && row.stage.is_some());
        let recorded = row.is_some_and(|row| !by_tests(row));
        let survives = known.get(&name).is_some_and(|row| row.stage.is_none());
        name.starts_with(among)
            && (recorded || !options.recorded)
            && (survives || !options.survivors)
            && (row.is_none() || !options.record)
    };
    let chosen: Vec<_> = all.into_iter().filter(|m| is_wanted(m)).collect();
    if chosen.is_empty() && options.mutants {
        return Err(LabError::bad(format!(
            "of {generated} mutants none is left that begins with `{among}` and is asked for; \
             names look like core/ops/switch/mod.rs:switch_to:compare:1"
        )));
    }
    let size = options.sample.unwrap_or(usize::MAX);
    let chosen = sample(chosen, options.seed, size.saturating_mul(SPARE));
    // Of what hunts can't kill: what tests have, says the file.
    let recorded: BTreeMap<String, Row> = known
        .iter()
        .filter(|(_, row)| by_tests(row))
        .map(|(n, r)| (n.clone(), r.clone()))
        .collect();
    let report = Mutex::new(Report {
        rows: Vec::new(),
        known,
        file,
        argued: &argued,
        record: options.record,
        shown: options.format == Format::Table,
    });
    let tree = Tree::copy(&workspace, &workspace.join("target/automatic/tree"))
        .map_err(|e| LabError::bad(e.to_string()))?;
    let steps = steps(options);
    let settings = campaign::Settings {
        seed: options.seed,
        hunts: options.coverage || steps.iter().any(|step| matches!(step, Step::Hunts(_))),
        threads: options.threads,
    };
    let (mut dropped, mut left) = (0, size);
    let mut covered = None;
    let parts = chosen.chunks(TOGETHER).chain(chosen.is_empty().then_some(&[][..]));
    for part in parts {
        let progress = Progress::new("automatic", 1);
        let numbered: BTreeMap<u32, &Mutant> = (1..).zip(part.iter().copied()).collect();
        let wanted = numbered.iter().map(|(number, mutant)| Wanted {
            name: mutant.name.clone(),
            number: *number,
            choice: 0,
        });
        let campaign = Campaign::begin(
            &tree,
            &sources,
            wanted.collect(),
            |compile| sample_of(compile, &numbered, options.seed, left),
            settings,
            &progress,
        )?;
        if options.coverage && covered.is_none() {
            covered = Some(coverage::coverage(&sources, |probe| campaign.comes_by(probe)));
        }
        dropped += campaign.compiled.dropped.len();
        left -= campaign.compiled.wanted.len();
        let trial = Trial { tree: &tree, sources: &sources, options, report: &report };
        let leave_alone = |m: &Mutant| {
            let name = m.name.to_string();
            argued.contains_key(&name) || recorded.get(&name).is_some_and(|row| row.hash == m.hash)
        };
        let mut survivors = trial.all(&campaign, &numbered, &steps, leave_alone, &progress)?;
        if !options.tests {
            for row in &mut survivors {
                if let Some(known) = recorded.get(&row.mutant).filter(|r| r.hash == row.hash) {
                    row.clone_from(known);
                }
            }
        }
        let mut report = report.lock().unwrap_or_else(|e| e.into_inner());
        for row in &survivors {
            report.take(row, &progress);
        }
        report.write()?;
        if left == 0 {
            break;
        }
    }
    let Report { mut rows, known, file, .. } =
        report.into_inner().unwrap_or_else(|e| e.into_inner());
    rows.sort_by(|a, b| a.mutant.cmp(&b.mutant));
    let took = super::report::duration(begun.elapsed());
    let mut wrong = Vec::new();
    if let Some(covered) = &covered {
        let list = folder.join("uncovered.csv");
        if options.record {
            covered.write(&list)?;
        }
        let new = covered.unlisted(&list)?;
        if options.format == Format::Table {
            emit(&format!("\n{}\n{}, in {took}", covered.table(&new), covered.summary()));
        }
        if !new.is_empty() {
            wrong.push(format!(
                "{} statements or branches are run by no hunt and are not in \
                 verify/automatic/uncovered.csv",
                new.len()
            ));
        }
    }
    if options.format == Format::Json {
        emit(&json(&rows, &argued, covered.as_ref()));
    } else if options.mutants {
        emit(&format!("\n{}, in {took}", summary(generated, dropped, &rows, &argued)));
        if options.record {
            let all: Vec<Row> = known.into_values().collect();
            emit(&format!("{}: {}", file.display(), counts(&all, &argued)));
        }
    }
    let unknown: BTreeSet<&str> = unargued(&rows, &argued).map(|row| row.mutant.as_str()).collect();
    if !unknown.is_empty() {
        wrong.push(format!(
            "{} mutants survive without an argument in verify/automatic/survivors.toml",
            unknown.len()
        ));
    }
    if wrong.is_empty() { Ok(()) } else { Err(LabError::broken(wrong.join("; "))) }
}

/// Of what compiles, as many as are left to try: those that the seed draws first.
fn sample_of(
    compiled: Vec<Wanted>,
    numbered: &BTreeMap<u32, &Mutant>,
    seed: u64,
    size: usize,
) -> Vec<Wanted> {
    let mutants = compiled.iter().map(|wanted| numbered[&wanted.number]);
    let taken: BTreeSet<_> =
        sample(mutants.collect(), seed, size).into_iter().map(|m| &m.name).collect();
    compiled.into_iter().filter(|wanted| taken.contains(&wanted.name)).collect()
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn hunts_have_names_of_their_own() {
        let names: Vec<String> = hunts::all().into_iter().map(|hunt| hunt.name).collect();
        let different: BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        for kind in ["breakers/", "scenes/", "zoo/", "exhaustive/", "random/"] {
            assert!(names.iter().any(|name| name.starts_with(kind)), "no {kind}");
        }
    }

    #[test]
    fn a_sample_follows_from_the_seed() {
        let workspace = workspace().unwrap();
        let text = fs::read_to_string(workspace.join("verify/automatic/scope.toml")).unwrap();
        let sources = sources(&workspace, &Scope::new(&text).unwrap(), false).unwrap();
        let names = |seed, size| -> Vec<String> {
            sample(mutants(&sources), seed, size).iter().map(|m| m.name.to_string()).collect()
        };
        assert_eq!(names(1, 60), names(1, 60));
        assert_ne!(names(1, 60), names(2, 60));
        assert_eq!(names(1, 60), names(1, 80)[..60], "a larger sample begins with the smaller one");
        let all: BTreeSet<String> = names(1, usize::MAX).into_iter().collect();
        assert_eq!(all.len(), mutants(&sources).len(), "every mutant has a name of its own");
        assert!(all.len() > 5_000, "{}", all.len());
    }
}
