//! Hunting many mutants: weave, compile, see what reaches what, and try each mutant.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use shootdown_automutate::source::Source;
use shootdown_automutate::tree::{Build, Compiled, Tree, Wanted};
use shootdown_machine::hunt::Work;

use super::hunts::Worlds;
use super::process::{Ended, Program, SILENCE};
use super::results::Row;
use super::stages::STAGES;
use super::worker::Line;
use crate::LabError;
use crate::progress::Progress;

/// A witness that was seen so often without the mutant, and never with it, is missed.
const EXPECTED: u64 = 10;

/// How mutants are hunted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Seed of every hunt.
    pub seed: u64,
    /// Does any stage of hunts come? Without, no worker is built.
    pub hunts: bool,
    /// Processes side by side.
    pub threads: usize,
}

/// The binary with mutants in it, and what is known of it.
pub struct Campaign {
    /// Mutants that compile, and those that do not.
    pub compiled: Compiled,
    worker: PathBuf,
    settings: Settings,
    hunts: Vec<(String, Worlds)>,
    /// Hunts that come by a choice or a probe, by its number.
    reach: BTreeMap<usize, Vec<usize>>,
    /// What each hunt sees as it is.
    seen: Vec<BTreeMap<String, u64>>,
    /// What each hunt has the machine do as it is.
    work: Vec<Vec<Work>>,
    /// Hunts that were run in a stage as it is: nothing objects.
    controlled: Mutex<BTreeSet<(usize, usize)>>,
}

/// The stage before which the work is compared: what breaks a promise has broken it by then as a
/// rule, and what follows takes long.
const WORK: usize = 2;

/// Finds most of what does not compile, in seconds.
const CHECK: [&str; 5] = ["check", "-p", "shootdown-traced", "-p", "shootdown-dma-traced"];

/// The worker. What it hunts takes less time than a whole build with all optimizations would.
const BUILD: [&str; 16] = [
    "build",
    "--release",
    "-p",
    "shootdown-lab",
    "--bin",
    "hunt-mutants",
    "--config",
    "profile.release.debug=false",
    "--config",
    "profile.release.package.\"*\".opt-level=0",
    "--config",
    "profile.release.package.corosensei.opt-level=3",
    "--config",
    "profile.release.package.shootdown-machine.opt-level=1",
    "--config",
    "profile.release.package.shootdown-lab.opt-level=0",
];

fn failed(error: shootdown_automutate::Error) -> LabError {
    LabError::bad(error.to_string())
}

/// The stage up to which the first look at all hunts goes.
const CONTROL: [(Worlds, usize); 2] = [(Worlds::Fixed, 2), (Worlds::Chance, 3)];

impl Campaign {
    /// Compiles the mutants, of those that compile the chosen ones, and looks at all hunts without
    /// any.
    ///
    /// # Errors
    /// What can't be written, compiled or run; and a hunt that objects to the libraries as they
    /// are.
    pub fn begin(
        tree: &Tree,
        sources: &[Source],
        wanted: Vec<Wanted>,
        choose: impl FnOnce(Vec<Wanted>) -> Vec<Wanted>,
        settings: Settings,
        progress: &Progress,
    ) -> Result<Self, LabError> {
        progress.at("compiling");
        let checked = tree.compile(sources, wanted, Build::new(&CHECK)).map_err(failed)?;
        let chosen = choose(checked.wanted);
        if !settings.hunts {
            let compiled = Compiled { wanted: chosen, ..checked };
            return Ok(Self::of(compiled, PathBuf::new(), settings));
        }
        let mut compiled = tree.compile(sources, chosen, Build::new(&BUILD)).map_err(failed)?;
        compiled.dropped.extend(checked.dropped);
        compiled.rounds += checked.rounds;
        // A copy: the next build writes to the same place.
        let built = tree.target().join("release/hunt-mutants");
        let worker = tree.root().with_file_name(format!("hunt-mutants-{}", std::process::id()));
        fs::copy(&built, &worker)
            .map_err(|e| LabError::bad(format!("{}: {e}", built.display())))?;
        let mut campaign = Self::of(compiled, worker, settings);
        campaign.look(progress)?;
        Ok(campaign)
    }

    fn of(compiled: Compiled, worker: PathBuf, settings: Settings) -> Self {
        Self {
            compiled,
            worker,
            settings,
            hunts: Vec::new(),
            reach: BTreeMap::new(),
            seen: Vec::new(),
            work: Vec::new(),
            controlled: Mutex::default(),
        }
    }

    /// Does a hunt come by this choice or probe?
    #[must_use]
    pub fn comes_by(&self, number: usize) -> bool {
        self.reach.contains_key(&number)
    }

    fn worker(&self, arguments: Vec<String>) -> Program {
        Program { path: self.worker.clone(), arguments, folder: None, silence: SILENCE }
    }

    fn program(&self, stage: usize, hunts: &[usize]) -> Program {
        let (seed, stage) = (self.settings.seed.to_string(), stage.to_string());
        self.worker(vec!["hunt".into(), seed, stage, list_of(hunts)])
    }

    /// Runs every hunt without a mutant: nothing may object, and what it reaches and sees is kept.
    fn look(&mut self, progress: &Progress) -> Result<(), LabError> {
        self.worker(vec!["hunts".into()]).lines(0, None, |line| {
            if let Line::Hunt { name, chance } = line {
                self.hunts.push((name, if chance { Worlds::Chance } else { Worlds::Fixed }));
            }
        })?;
        if self.hunts.is_empty() {
            return Err(LabError::bad("the worker has no hunts: it was built of something else"));
        }
        progress.at("without any");
        progress.measure(self.hunts.len() as u64);
        let looks = side_by_side(self.settings.threads, self.hunts.len(), |hunt| {
            let look = self.look_at(hunt);
            progress.step();
            look
        });
        for (hunt, look) in looks.into_iter().enumerate() {
            let (reached, seen) = look?;
            for choice in reached {
                self.reach.entry(choice).or_default().push(hunt);
            }
            self.seen.push(seen);
        }
        let all: Vec<usize> = (0..self.hunts.len()).collect();
        let arguments = vec!["work".into(), self.settings.seed.to_string(), list_of(&all)];
        let mut work = vec![Vec::new(); all.len()];
        self.worker(arguments).lines(0, None, |line| {
            if let Line::Worked { hunt, work: of } = line {
                work[hunt] = of;
            }
        })?;
        self.work = work;
        Ok(())
    }

    /// What hunts have the machine do with a mutant, and do not have it do without.
    fn more_work(&self, mutant: u32, hunts: &[usize]) -> Result<Option<(usize, String)>, LabError> {
        let arguments = vec!["work".into(), self.settings.seed.to_string(), list_of(hunts)];
        let mut more = None;
        let mut at = hunts[0];
        let ended = self.worker(arguments).lines(mutant, None, |line| match line {
            Line::Alive(hunt) => at = hunt,
            Line::Worked { hunt, work } => {
                let mut both = work.iter().zip(&self.work[hunt]);
                let found = both.find_map(|(now, usual)| now.more_than(usual));
                let found =
                    found.map(|(what, usual, now)| format!("{now} {what} instead of {usual}"));
                more = more.take().or(found.map(|text| (hunt, text)));
            }
            _ => {}
        })?;
        let never = || (at, "never ends, and takes no step".to_owned());
        Ok(more.or_else(|| (ended == Ended::Hangs).then(never)))
    }

    fn look_at(&self, hunt: usize) -> Result<(Vec<usize>, BTreeMap<String, u64>), LabError> {
        let worlds = self.hunts[hunt].1;
        let stage = CONTROL.iter().find(|(of, _)| *of == worlds).map_or(0, |(_, stage)| *stage);
        let notes = self.worker.with_extension(format!("reached-{hunt}"));
        let _ = fs::remove_file(&notes);
        let seen = self.control(hunt, stage, Some(&notes))?;
        let text = fs::read_to_string(&notes).unwrap_or_default();
        let _ = fs::remove_file(&notes);
        let mut reached: Vec<usize> = text.lines().filter_map(|line| line.parse().ok()).collect();
        reached.sort_unstable();
        reached.dedup();
        Ok((reached, seen))
    }

    /// Runs a hunt of a stage without a mutant.
    fn control(
        &self,
        hunt: usize,
        stage: usize,
        notes: Option<&Path>,
    ) -> Result<BTreeMap<String, u64>, LabError> {
        let mut seen = BTreeMap::new();
        let mut wrong = None;
        let ended = self.program(stage, &[hunt]).lines(0, notes, |line| {
            if let Line::Ended { objection, seen: list, .. } = line {
                wrong = objection;
                seen = list.into_iter().collect();
            }
        })?;
        if let Some(objection) = wrong.or((ended != Ended::Done).then(|| format!("{ended:?}"))) {
            let (name, stage) = (&self.hunts[hunt].0, STAGES[stage].name);
            return Err(LabError::broken(format!(
                "{name} objects to the libraries as they are (stage {stage}, seed {}): {objection}",
                self.settings.seed
            )));
        }
        let mut controlled = self.controlled.lock().unwrap_or_else(|e| e.into_inner());
        let worlds = self.hunts[hunt].1;
        let covered = (0..=stage).filter(|s| STAGES[*s].worlds == worlds);
        controlled.extend(covered.map(|s| (hunt, s)));
        Ok(seen)
    }

    /// Tries mutants that have survived so far in some stages; `done` is called as each is through.
    ///
    /// # Errors
    /// A worker can't be started, or a hunt objects to the libraries as they are.
    pub fn hunt(
        &self,
        tried: &[(Wanted, Row)],
        stages: &Range<usize>,
        progress: &Progress,
        done: impl Fn(&Row) + Sync,
    ) -> Result<Vec<Row>, LabError> {
        progress.at(format!("hunting ({})", STAGES[stages.start].name));
        progress.measure(tried.len() as u64);
        let rows = side_by_side(self.settings.threads, tried.len(), |at| {
            let (wanted, row) = &tried[at];
            let row = self.try_one(wanted, row.clone(), stages.clone());
            progress.step();
            if let Ok(row) = &row {
                done(row);
            }
            row
        });
        rows.into_iter().collect()
    }

    fn try_one(
        &self,
        wanted: &Wanted,
        mut row: Row,
        stages: Range<usize>,
    ) -> Result<Row, LabError> {
        let Some(hunts) = self.reach.get(&wanted.choice) else {
            row.objection = "no hunt comes by".to_owned();
            return Ok(row);
        };
        for (stage, of) in STAGES.iter().enumerate().take(stages.end).skip(stages.start) {
            if stage == WORK
                && let Some((hunt, more)) = self.more_work(wanted.number, hunts)?
            {
                row.stage = Some("work".to_owned());
                row.by.clone_from(&self.hunts[hunt].0);
                row.objection = more;
                return Ok(row);
            }
            let hunts: Vec<usize> =
                hunts.iter().copied().filter(|hunt| self.hunts[*hunt].1 == of.worlds).collect();
            if hunts.is_empty() {
                continue;
            }
            let mut at = hunts[0];
            let mut killed = None;
            let whole = Some(stage) == CONTROL.iter().find(|(w, _)| *w == of.worlds).map(|c| c.1);
            let ended =
                self.program(stage, &hunts).lines(wanted.number, None, |line| match line {
                    Line::Alive(hunt) => at = hunt,
                    Line::Ended { hunt, runs, objection, seen } => {
                        row.runs += runs;
                        let missed = || whole.then(|| self.missed(hunt, &seen)).flatten();
                        killed =
                            killed.take().or_else(|| objection.or_else(missed).map(|o| (hunt, o)));
                    }
                    Line::Hunt { .. } | Line::Worked { .. } => {}
                })?;
            let killed = killed.or_else(|| match ended {
                Ended::Done => None,
                Ended::Hangs => Some((at, "never ends, and takes no step".to_owned())),
                Ended::Crashes => Some((at, "the process crashes".to_owned())),
            });
            if let Some((hunt, objection)) = killed {
                let known = self
                    .controlled
                    .lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .contains(&(hunt, stage));
                if !known {
                    self.control(hunt, stage, None)?;
                }
                row.stage = Some(of.name.to_owned());
                row.by.clone_from(&self.hunts[hunt].0);
                row.objection = objection;
                return Ok(row);
            }
        }
        Ok(row)
    }

    /// A witness that is seen often as it is, and not with the mutant.
    fn missed(&self, hunt: usize, seen: &[(String, u64)]) -> Option<String> {
        let missing = |name: &String| {
            let often = self.seen[hunt].get(name).is_some_and(|n| *n >= EXPECTED);
            often.then(|| format!("never sees {name}"))
        };
        seen.iter().filter(|(_, times)| *times == 0).find_map(|(name, _)| missing(name))
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.worker);
    }
}

/// Numbers as a worker takes them.
fn list_of(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Does something for each of so many numbers, with some threads, and gives back the results in
/// order.
pub fn side_by_side<T: Send>(
    threads: usize,
    count: usize,
    each: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results: Mutex<BTreeMap<usize, T>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    // A ticket: nothing else is read through it.
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    let result = each(at);
                    results.lock().unwrap_or_else(|e| e.into_inner()).insert(at, result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|e| e.into_inner()).into_values().collect()
}
