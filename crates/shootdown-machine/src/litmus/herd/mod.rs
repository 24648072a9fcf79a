//! Reader of herd's `.litmus` files for AArch64 virtual memory.
//!
//! Arm publishes some nine hundred such tests with verdicts. We keep none of them: a user points
//! the checker at a checkout. Our machine has a part of their instructions and one level of tables,
//! so:
//!
//! - a file that needs anything else is *skipped*, and the reason says what
//!   ([`Outcome::Unsupported`]);
//! - verdicts come from the kinds files beside the tests, never from the file's own quantifier; a
//!   test without a verdict is skipped; plain kinds and ETS2 kinds are two verdicts of one test,
//!   other variants are not read;
//! - a fault goes to the thread's handler (the column `P0.F`) if it has one. Else it ends the
//!   thread, as where herd is called with `-variant fatal` (what the catalogue's README says to do);
//!   with `Variant=handled` (or `imprecise`) the access is done once more, and a run in which it
//!   faults again is not looked at.

mod condition;
mod init;
mod kinds;
mod program;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use init::{Init, Known};
use kinds::Kinds;
use program::{Layout, OnFaults, Translator, invalidated};
use text::Outline;

use super::device::Iommu;
use super::machine::Options;
use super::parse::names::empty_table;
use super::test::{Arch, Case, Faults, Features, Managed, Page, Program, Test, Word};
use super::value::Value;
use super::verdict::{Outcome, Verdict, run};

/// Why a file is skipped.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Skip(String);

/// What is quoted from a file may have been several lines.
fn one_line(what: &str) -> String {
    what.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Skip {
    fn syntax(what: &str) -> Self {
        Self(format!("not understood: {}", one_line(what)))
    }

    fn feature(what: &str) -> Self {
        Self(format!("our machine has no {}", one_line(what)))
    }

    fn mnemonic(what: &str) -> Self {
        Self(format!("our machine has no instruction {}", one_line(what)))
    }
}

/// A folder that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}; name a folder with .litmus files")]
pub struct DirectoryError {
    /// The file or folder.
    pub path: String,
    /// Why.
    pub source: std::io::Error,
}

/// Runs every `.litmus` file in a folder and below, in the order of their paths.
///
/// # Errors
/// [`DirectoryError`] if something can't be read. What is read and not understood is skipped with a
/// reason in its verdict.
pub fn check_directory(path: &Path, options: &Options) -> Result<Vec<Verdict>, DirectoryError> {
    let mut folder = Folder::default();
    folder.collect(path)?;
    let mut verdicts = Vec::new();
    for file in &folder.tests {
        let text = read(file)?;
        verdicts.push(folder.check(file, &text, options));
    }
    Ok(verdicts)
}

/// Runs one `.litmus` test, as [`check_directory`] does, with the text of a kinds file.
#[must_use]
pub fn check_herd(file: &str, text: &str, kinds: &str, options: &Options) -> Verdict {
    let kinds = (PathBuf::from("kinds.txt"), Features::default(), Kinds::parse(kinds));
    Folder { tests: Vec::new(), kinds: vec![kinds] }.check(Path::new(file), text, options)
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> DirectoryError {
    let path = path.display().to_string();
    move |source| DirectoryError { path, source }
}

fn read(path: &Path) -> Result<String, DirectoryError> {
    let bytes = std::fs::read(path).map_err(failed(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[derive(Default)]
struct Folder {
    tests: Vec<PathBuf>,
    /// Kinds files by the features they speak of.
    kinds: Vec<(PathBuf, Features, Kinds)>,
}

impl Folder {
    fn collect(&mut self, path: &Path) -> Result<(), DirectoryError> {
        let entries = std::fs::read_dir(path).map_err(failed(path))?;
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.map_err(failed(path))?.path());
        }
        paths.sort();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            if path.is_dir() {
                self.collect(&path)?;
            } else if name.ends_with(".litmus") {
                self.tests.push(path);
            } else if let Some(features) = features_of(&name) {
                let kinds = Kinds::parse(&read(&path)?);
                self.kinds.push((path, features, kinds));
            }
        }
        Ok(())
    }

    fn check(&self, file: &Path, text: &str, options: &Options) -> Verdict {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let skipped = |name: String, source: String, reason: Skip| Verdict {
            name,
            arch: Arch::Aarch64,
            source,
            expected: String::new(),
            observed: "not run".to_owned(),
            outcome: Outcome::Unsupported(reason.0),
            pass: false,
            uncertain: None,
            states: 0,
            transitions: 0,
            depth: 0,
            finals: 0,
            witnesses: (0, 0),
        };
        let source = file.display().to_string();
        let outline = match Outline::of(text) {
            Ok(outline) => outline,
            Err(reason) => return skipped(stem, source, reason),
        };
        let name = outline.name.clone();
        let test = self.cases(&name, file).and_then(|cases| translate(&outline, &source, cases));
        match test {
            Ok(test) => run(&test, options),
            Err(reason) => skipped(name, source, reason),
        }
    }

    /// The verdicts that the kinds files beside or above the test give.
    fn cases(&self, name: &str, file: &Path) -> Result<Vec<Case>, Skip> {
        let mut cases: Vec<Case> = Vec::new();
        for (path, features, kinds) in &self.kinds {
            let beside = path.parent().is_some_and(|folder| file.starts_with(folder));
            if !beside {
                continue;
            }
            let contradiction = || Skip(format!("two verdicts in {}", path.display()));
            if let Some(expected) = kinds.of(name).map_err(|()| contradiction())? {
                match cases.iter().find(|case| case.features == *features) {
                    None => cases.push(Case { features: *features, expected }),
                    Some(case) if case.expected == expected => {}
                    Some(_) => return Err(contradiction()),
                }
            }
        }
        if cases.is_empty() {
            return Err(Skip("no verdict: no kinds file names it".to_owned()));
        }
        Ok(cases)
    }
}

/// Which machine a kinds file speaks of, if it is one that we read.
fn features_of(name: &str) -> Option<Features> {
    let stem = name.strip_suffix("kinds.txt")?.trim_end_matches('-');
    let variant = stem.rsplit('-').next().unwrap_or_default();
    match variant {
        "" | "vmsa" => Some(Features::default()),
        "ets2" => Some(Features { ets2: true, ..Features::default() }),
        _ => None,
    }
}

/// Makes a test of ours of a file.
fn translate(outline: &Outline, source: &str, mut cases: Vec<Case>) -> Result<Test, Skip> {
    let setup = header(outline, &mut cases)?;
    let mut init = Init::parse(&outline.init)?;
    let handlers = outline.handlers.iter().enumerate();
    let handlers = handlers.filter_map(|(thread, cells)| Some((thread, cells.as_ref()?)));
    for (thread, cells) in outline.threads.iter().enumerate().chain(handlers) {
        for name in invalidated(cells, &init, thread) {
            init.page(&name);
        }
    }
    for name in faulting(&outline.condition) {
        init.page(&name);
    }
    let layout = layout(&init)?;
    let mut threads = Vec::new();
    for (thread, cells) in outline.threads.iter().enumerate() {
        let faults = match outline.handlers[thread].as_deref() {
            Some(handler) => OnFaults::Handler(handler),
            None if setup.retries => OnFaults::Retry,
            None => OnFaults::End,
        };
        let mut translator = Translator::new(&layout, &init, thread, largest(outline, &init));
        if setup.user[thread] {
            translator.user();
        }
        threads.push(translator.thread(cells, faults)?);
    }
    if threads.len() > super::parse::MAX_PROGRAMS {
        return Err(Skip::feature("room for so many threads"));
    }
    let proposition = condition::proposition(&outline.condition)?;
    let goal = condition::parse(proposition, &layout, &threads)?;
    let words = |names: &BTreeMap<String, usize>| {
        let mut words = vec![Word { name: String::new(), initial: Value::default() }; names.len()];
        for (name, at) in names {
            let initial = init.values.get(name).copied().unwrap_or_default();
            words[*at] = Word { name: name.clone(), initial: Value::number(initial) };
        }
        words
    };
    let vars = layout.vars.iter().map(|(name, at)| (name.clone(), usize::from(*at))).collect();
    let mut table = empty_table("root");
    let mut pages = vec![];
    for (name, page) in &layout.pages {
        let default = init::Content::parse("()")?;
        let content = init.entries.get(name).unwrap_or(&default);
        table.entries[usize::from(*page)] = content.value(name, &layout.frames)?;
        pages.push((*page, Page { name: name.clone(), page: u32::from(*page) }));
    }
    pages.sort_by_key(|(page, _)| *page);
    let mut cpus = Vec::new();
    for (thread, code) in threads.into_iter().enumerate() {
        let mut registers = Vec::new();
        for ((_, register), known) in init.registers.iter().filter(|((t, _), _)| *t == thread) {
            match known {
                Known::Number(number) => registers.push((*register, Value::number(*number))),
                Known::Content(content) => {
                    // An entry without an output address is completed by the location it is written
                    // to; herd gives it the null one. Only one location can be
                    // meant.
                    let own = only_entry(&init, thread);
                    let value = content.value(own.unwrap_or_default(), &layout.frames)?;
                    registers.push((*register, value));
                }
                _ => {}
            }
        }
        let tag = super::parse::barriers::DEFAULT_TAG;
        let (user, managed) = (setup.user[thread], Some(setup.managed[thread]));
        cpus.push(Program { root: 0, tag, code, user, managed, registers });
    }
    Ok(Test {
        name: outline.name.clone(),
        arch: Arch::Aarch64,
        source: source.to_owned(),
        cases,
        unsupported: None,
        uncertain: None,
        faults: Faults::Stop,
        levels: 1,
        vars: words(&vars),
        frames: words(&layout.frames),
        tables: vec![table],
        pages: pages.into_iter().map(|(_, page)| page).collect(),
        cpus,
        iommu: Iommu::default(),
        devices: vec![],
        goal,
        witnesses: vec![],
    })
}

/// The location of the one entry whose address the thread has.
fn only_entry(init: &Init, thread: usize) -> Option<&str> {
    let mut entries = init.registers.iter().filter_map(|((t, _), known)| match known {
        Known::Entry(name) if *t == thread => Some(name.as_str()),
        _ => None,
    });
    let first = entries.next()?;
    entries.all(|other| other == first).then_some(first)
}

/// What the header says of threads and faults.
struct Setup {
    /// Per thread.
    managed: Vec<Managed>,
    /// Per thread: does it run in user mode?
    user: Vec<bool>,
    /// An access that faulted is done once more; a second fault of it is not looked at.
    retries: bool,
}

/// What the header says; the features of every case among it.
fn header(outline: &Outline, cases: &mut [Case]) -> Result<Setup, Skip> {
    let threads = outline.threads.len();
    let mut setup = Setup {
        managed: vec![Managed::default(); threads],
        user: vec![false; threads],
        retries: false,
    };
    for (key, value) in &outline.header {
        match key.as_str() {
            "variant" => {
                for variant in value.split([',', ' ']).filter(|v| !v.is_empty()) {
                    match variant.to_ascii_lowercase().as_str() {
                        "vmsa" => {}
                        "fatal" | "precise" => setup.retries = false,
                        "handled" | "imprecise" => setup.retries = true,
                        other => return Err(Skip::feature(&format!("variant {other}"))),
                    }
                }
            }
            "tthm" => setup.managed = hardware_management(value, threads)?,
            "el0" => {
                for word in value.split([',', ' ']).filter(|word| !word.is_empty()) {
                    let number = word.trim_start_matches('P').parse::<usize>().ok();
                    let number = number.filter(|n| *n < threads);
                    let number = number.ok_or_else(|| Skip::syntax(&format!("EL0={value}")))?;
                    setup.user[number] = true;
                }
            }
            other => return Err(Skip::feature(&format!("header line {other}={value}"))),
        }
    }
    for case in cases {
        case.features.ha = setup.managed.iter().any(|managed| managed.ha);
        case.features.hd = setup.managed.iter().any(|managed| managed.hd);
    }
    Ok(setup)
}

/// The largest number that the file names as data.
fn largest(outline: &Outline, init: &Init) -> u64 {
    let mut largest = init.values.values().copied().max().unwrap_or_default();
    for known in init.registers.values() {
        if let Known::Number(number) = known {
            largest = largest.max(*number);
        }
    }
    let handlers = outline.handlers.iter().flatten();
    for cell in outline.threads.iter().chain(handlers).flatten() {
        let text = cell.rsplit(':').next().unwrap_or_default().trim();
        let moved = text.strip_prefix("MOV").and_then(|rest| rest.split(',').nth(1));
        largest = largest.max(moved.and_then(init::number).unwrap_or_default());
        if text.starts_with("ADD") || text.starts_with("LSL") {
            largest = u64::MAX;
        }
    }
    largest
}

/// `HA`, `HD`, or `P0:HA P1:HA` one by one.
fn hardware_management(text: &str, threads: usize) -> Result<Vec<Managed>, Skip> {
    let mut named = vec![Managed::default(); threads];
    for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
        let (who, mode) = match word.split_once(':') {
            Some((thread, mode)) => {
                let number = thread.trim_start_matches('P').parse::<usize>().ok();
                let number = number.filter(|n| *n < threads);
                let number = number.ok_or_else(|| Skip::syntax(&format!("TTHM={text}")))?;
                (number..number + 1, mode)
            }
            None => (0..threads, word),
        };
        let modes = match mode.to_ascii_uppercase().as_str() {
            "HA" => (true, false),
            "HD" => (true, true),
            _ => return Err(Skip::feature(&format!("TTHM={text}"))),
        };
        for thread in who {
            named[thread].ha |= modes.0;
            named[thread].hd |= modes.1;
        }
    }
    Ok(named)
}

/// Locations that the condition names in faults.
fn faulting(condition: &str) -> Vec<String> {
    let lower = condition.replace("Fault(", "fault(");
    let calls = lower.split("fault(").skip(1);
    calls
        .filter_map(|call| call.split(')').next())
        .filter_map(|inner| inner.split(',').nth(1))
        .map(|name| name.trim().to_owned())
        .filter(|name| init::is_name(name))
        .collect()
}

/// Gives locations their places: pages with frames, and variables for what nobody translates.
fn layout(init: &Init) -> Result<Layout, Skip> {
    let mut layout =
        Layout { vars: BTreeMap::new(), pages: BTreeMap::new(), frames: BTreeMap::new() };
    for name in &init.locations {
        if init.pages.contains(name) {
            let at = layout.pages.len();
            layout.pages.insert(name.clone(), at as u8);
            layout.frames.insert(name.clone(), at);
        } else {
            let at = layout.vars.len() as u8;
            layout.vars.insert(name.clone(), at);
        }
    }
    if layout.pages.len() > 1 << Test::INDEX_BITS {
        return Err(Skip::feature("room for so many pages"));
    }
    Ok(layout)
}
