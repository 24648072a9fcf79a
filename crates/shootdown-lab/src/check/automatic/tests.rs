//! Tests of the crates, and models for the model checker, on mutants that no hunt has killed.
//!
//! Both are built with the survivors woven in. A program of tests that comes by a survivor's
//! function is run with it; tests that fail without any mutant (in a copy of the workspace some do)
//! say nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use shootdown_automutate::source::Source;
use shootdown_automutate::tree::{Build, Built, Tree, Wanted};

use super::campaign::side_by_side;
use super::process::{Ended, Program};
use crate::LabError;
use crate::progress::Progress;

/// A layer of tests.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// Its name in results.
    pub name: &'static str,
    build: Build<'static>,
    silence: Duration,
}

/// The layers, the cheapest first.
pub const LAYERS: [Layer; 2] = [
    Layer {
        name: "tests",
        build: Build::new(&[
            "test",
            "--no-run",
            "-p",
            "shootdown",
            "-p",
            "shootdown-dma",
            "-p",
            "shootdown-dma-woven",
            "--lib",
            "--tests",
            // Each is run some hundred times.
            "--config",
            "profile.dev.opt-level=1",
        ]),
        silence: Duration::from_secs(60),
    },
    Layer {
        name: "loom",
        build: Build {
            arguments: &[
                "test",
                "--no-run",
                "--release",
                "-p",
                "shootdown-woven",
                "-p",
                "shootdown-dma-woven",
                "--test",
                "loom*",
            ],
            flags: Some("--cfg loom"),
            below: "loom",
        },
        silence: Duration::from_secs(180),
    },
];

/// What a layer has against a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Killed {
    /// The program.
    pub by: String,
    /// The test that fails, or what becomes of the program.
    pub objection: String,
}

/// What a program of tests does without a mutant.
struct Whole {
    program: Program,
    name: String,
    reached: BTreeSet<usize>,
    took: Duration,
    fail: BTreeSet<String>,
}

/// The survivors that a layer kills, by their numbers, as `take` makes them of it: it is called as
/// each is killed.
///
/// # Errors
/// What can't be compiled or started.
pub fn kill<T: Send>(
    layer: Layer,
    tree: &Tree,
    sources: &[Source],
    survivors: Vec<Wanted>,
    threads: usize,
    progress: &Progress,
    take: impl Fn(u32, Killed) -> Option<(u32, T)> + Sync,
) -> Result<BTreeMap<u32, T>, LabError> {
    progress.at(format!("compiling {}", layer.name));
    let compiled =
        tree.compile(sources, survivors, layer.build).map_err(|e| LabError::bad(e.to_string()))?;
    let notes = tree.root().with_file_name("reached");
    progress.at(format!("{} without any", layer.name));
    let built = &compiled.programs;
    let whole = side_by_side(threads, built.len(), |at| {
        Whole::new(&built[at], layer, &notes.with_extension(at.to_string()))
    });
    let mut whole = whole.into_iter().collect::<Result<Vec<_>, _>>()?;
    whole.sort_by_key(|whole| whole.took);
    progress.at(layer.name);
    progress.measure(compiled.wanted.len() as u64);
    let killed = side_by_side(threads, compiled.wanted.len(), |at| {
        let one = &compiled.wanted[at];
        progress.step();
        let reaching = whole.iter().filter(|w| w.reached.contains(&one.choice));
        let mut killed = reaching.map(|whole| whole.objection(one.number));
        let found = killed.find_map(Result::transpose);
        found.transpose().map(|killed| killed.and_then(|killed| take(one.number, killed)))
    });
    killed.into_iter().filter_map(Result::transpose).collect()
}

impl Whole {
    fn new(built: &Built, layer: Layer, notes: &Path) -> Result<Self, LabError> {
        let program = Program {
            path: built.path.clone(),
            // One thread: lines come in order, and one test can't wait for another.
            arguments: vec!["--test-threads=1".into()],
            folder: Some(built.folder.clone()),
            silence: layer.silence,
        };
        let _ = fs::remove_file(notes);
        let begun = Instant::now();
        let (fail, _) = failures(&program, 0, Some(notes))?;
        let took = begun.elapsed();
        let text = fs::read_to_string(notes).unwrap_or_default();
        let _ = fs::remove_file(notes);
        let reached = text.lines().filter_map(|line| line.parse().ok()).collect();
        let package = built.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { program, name: format!("{package}/{}", built.name), reached, took, fail })
    }

    fn objection(&self, mutant: u32) -> Result<Option<Killed>, LabError> {
        let (fail, ended) = failures(&self.program, mutant, None)?;
        let objection = match (fail.difference(&self.fail).next(), ended) {
            (Some(test), _) => Some(format!("{test} fails")),
            (None, Ended::Hangs) => Some("never ends".to_owned()),
            (None, Ended::Crashes) if fail.is_empty() => Some("the process crashes".to_owned()),
            _ => None,
        };
        Ok(objection.map(|objection| Killed { by: self.name.clone(), objection }))
    }
}

/// The tests that fail, and how the program ends.
fn failures(
    program: &Program,
    mutant: u32,
    notes: Option<&Path>,
) -> Result<(BTreeSet<String>, Ended), LabError> {
    let mut fail = BTreeSet::new();
    let ended = program.run(mutant, notes, |line| {
        let test = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
        fail.extend(test.map(str::to_owned));
    })?;
    Ok((fail, ended))
}
