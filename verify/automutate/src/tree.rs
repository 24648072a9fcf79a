//! A copy of the workspace, with woven libraries in the place of the two.
//!
//! Mutants that do not compile are found by what the compiler says of the copy: an error in a
//! mutant's text drops the mutant, one in the text that was there (which no longer fits beside
//! those of its mutants) drops all that stand there. What is left is woven and compiled again,
//! until nothing is said.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use shootdown_weave::{Changed, Part, Replacement, Switch, WITHOUT_TABLE, Woven};

use crate::Error;
use crate::generate::{Edit, Name};
use crate::source::{LIBRARIES, Source, files, read};
use crate::switch::{ask, root};

/// What of a workspace is copied.
const COPIED: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    "README.md",
    "crates",
    "verify",
    "xtask",
    "docs",
    "litmus",
    "profiles",
    "recordings",
];

/// A mutant that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Its name.
    pub name: Name,
    /// The number that turns it on, from 1.
    pub number: u32,
    /// The number of the choice that it is an arm of, once it is woven.
    pub choice: usize,
}

/// A copy of the workspace.
#[derive(Debug)]
pub struct Tree {
    workspace: PathBuf,
    root: PathBuf,
}

/// What cargo is to do with the copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Build<'a> {
    /// Its arguments.
    pub arguments: &'a [&'a str],
    /// Flags of the compiler, where they are not the usual ones.
    pub flags: Option<&'a str>,
    /// The folder below the usual one that it builds in, if it has flags of its own.
    pub below: &'a str,
}

impl<'a> Build<'a> {
    /// With these arguments, and all else as usual.
    #[must_use]
    pub const fn new(arguments: &'a [&'a str]) -> Self {
        Self { arguments, flags: None, below: "" }
    }

    /// What has cargo report the errors of all packages, not of the first.
    fn goes_on(&self) -> &'static str {
        if self.arguments.first() == Some(&"test") { "--no-fail-fast" } else { "--keep-going" }
    }
}

/// What has come of a weaving.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// Mutants that compile.
    pub wanted: Vec<Wanted>,
    /// Those that do not.
    pub dropped: Vec<Name>,
    /// How often the copy was compiled.
    pub rounds: u32,
    /// Programs that were built.
    pub programs: Vec<Built>,
}

/// A program that cargo has built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Built {
    /// The target's name.
    pub name: String,
    /// The program.
    pub path: PathBuf,
    /// The folder of its package, where its tests expect to run.
    pub folder: PathBuf,
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    |error| Error::File { path: path.display().to_string(), error }
}

/// Writes a file unless it holds that text already: what has not changed is not compiled again.
fn write(path: &Path, text: &[u8]) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed(folder))?;
    }
    fs::write(path, text).map_err(failed(path))
}

impl Tree {
    /// Copies a workspace to a folder, or brings the copy there up to date.
    ///
    /// # Errors
    /// Files that can't be read or written.
    pub fn copy(workspace: &Path, root: &Path) -> Result<Self, Error> {
        let mut wanted = BTreeSet::new();
        for part in COPIED {
            let from = workspace.join(part);
            let list = if from.is_dir() {
                files(&from)?.into_iter().map(|file| format!("{part}/{file}")).collect()
            } else {
                vec![part.to_owned()]
            };
            wanted.extend(list.into_iter().filter(|file| !file.contains("/target/")));
        }
        for file in &wanted {
            let woven = LIBRARIES
                .iter()
                .any(|library| Path::new(file).starts_with(Path::new(library.folder).join("src")));
            let (from, to) = (workspace.join(file), root.join(file));
            if !woven {
                write(&to, &fs::read(&from).map_err(failed(&from))?)?;
            }
        }
        for part in ["crates", "verify"] {
            let folder = root.join(part);
            for file in files(&folder)? {
                let name = format!("{part}/{file}");
                if !wanted.contains(&name) {
                    let gone = root.join(name);
                    fs::remove_file(&gone).map_err(failed(&gone))?;
                }
            }
        }
        Ok(Self { workspace: workspace.to_owned(), root: root.to_owned() })
    }

    /// Where the copy is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where what is compiled goes. Not where the workspace's own builds go: Cargo tells packages
    /// apart by their path in their workspace, so that it would take a woven library for the one
    /// that it is a copy of.
    #[must_use]
    pub fn target(&self) -> PathBuf {
        self.root.with_file_name("build")
    }

    /// Weaves the wanted mutants and compiles the libraries until no mutant is left that does not
    /// compile.
    ///
    /// # Errors
    /// [`Error::Compile`] when no mutant is to blame.
    pub fn compile(
        &self,
        sources: &[Source],
        mut wanted: Vec<Wanted>,
        build: Build<'_>,
    ) -> Result<Compiled, Error> {
        let mut compiled = Compiled::default();
        loop {
            let woven = match self.weave(sources, &mut wanted)? {
                Ok(woven) => woven,
                Err(broken) => {
                    let (gone, left) = wanted.into_iter().partition(|one| one.number == broken);
                    let gone: Vec<Wanted> = gone;
                    compiled.dropped.extend(gone.into_iter().map(|one| one.name));
                    wanted = left;
                    continue;
                }
            };
            compiled.rounds += 1;
            let (built, errors) = self.cargo(build)?;
            if let Some(programs) = built {
                compiled.wanted = wanted;
                compiled.programs = programs;
                return Ok(compiled);
            }
            let blamed = blame(&self.root, &errors, &woven, &wanted, sources);
            let (gone, left): (Vec<_>, Vec<_>) =
                wanted.into_iter().partition(|one| blamed.contains(&one.number));
            if gone.is_empty() {
                let said: Vec<&str> =
                    errors.iter().map(|e| e.rendered.as_deref().unwrap_or(&e.message)).collect();
                return Err(Error::Compile(said.join("\n")));
            }
            compiled.dropped.extend(gone.into_iter().map(|one| one.name));
            wanted = left;
        }
    }

    /// Writes the libraries with mutants woven in, and notes where each one stands; or gives the
    /// number of one that leaves no Rust.
    fn weave(
        &self,
        sources: &[Source],
        wanted: &mut [Wanted],
    ) -> Result<Result<BTreeMap<PathBuf, Woven>, u32>, Error> {
        let by_name: BTreeMap<&Name, u32> =
            wanted.iter().map(|one| (&one.name, one.number)).collect();
        let mut numbers = sources.iter().map(|source| source.probed.probes.len()).sum();
        let mut at: BTreeMap<u32, usize> = BTreeMap::new();
        let mut all = BTreeMap::new();
        for library in LIBRARIES {
            let from = library.src(&self.workspace);
            for file in files(&from)? {
                let source = sources.iter().find(|s| s.library == library && s.file == file);
                let woven = if let Some(source) = source {
                    let words = Switch { ask: &ask, reach: "" };
                    let changes = changes(source, &by_name);
                    match Woven::new(&source.probed.text, &changes, numbers, &words)? {
                        Ok(woven) => woven,
                        Err(broken) => return Ok(Err(broken.id)),
                    }
                } else {
                    Woven::from(read(&from.join(&file))?)
                };
                for (choice, ids) in woven.choices() {
                    numbers = choice + 1;
                    at.extend(ids.iter().map(|id| (*id, choice)));
                }
                all.insert(Path::new(library.folder).join("src").join(&file), woven);
            }
        }
        for library in LIBRARIES {
            if let Some(lib) = all.get_mut(&Path::new(library.folder).join("src/lib.rs")) {
                lib.text = root(&lib.text, numbers);
            }
        }
        for (file, woven) in &all {
            write(&self.root.join(file), woven.text.as_bytes())?;
        }
        for one in wanted {
            one.choice = at.get(&one.number).copied().unwrap_or_default();
        }
        Ok(Ok(all))
    }

    /// Runs cargo in the copy: the programs that it has built, if it succeeds, and what the
    /// compiler objects to.
    fn cargo(&self, build: Build<'_>) -> Result<(Option<Vec<Built>>, Vec<Diagnostic>), Error> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(&cargo);
        command
            .args(build.arguments)
            .args([build.goes_on(), "--locked", "--quiet", "--message-format=json", "--target-dir"])
            .arg(self.target().join(build.below))
            .current_dir(&self.root)
            .env(WITHOUT_TABLE, "1")
            .stdin(Stdio::null());
        if let Some(flags) = build.flags {
            command.env("RUSTFLAGS", flags);
        }
        let output = command.output().map_err(failed(Path::new(&cargo)))?;
        let lines = String::from_utf8_lossy(&output.stdout);
        let messages: Vec<Message> =
            lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let (mut programs, mut errors) = (Vec::new(), Vec::new());
        for message in messages {
            programs.extend(message.built());
            errors.extend(message.message.filter(|said| said.level == "error"));
        }
        if output.status.success() {
            return Ok((Some(programs), Vec::new()));
        }
        if errors.is_empty() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Compile(format!("cargo ends with {}: {said}", output.status)));
        }
        Ok((None, errors))
    }
}

/// The wanted mutants of a source, as what they replace.
fn changes(source: &Source, wanted: &BTreeMap<&Name, u32>) -> Vec<Changed> {
    let mutants = source.functions.iter().flat_map(|mutated| &mutated.mutants);
    let changed = mutants.filter_map(|mutant| {
        let replace = |edit: &Edit| Replacement {
            range: source.probed.moved(&edit.at),
            text: edit.text.clone(),
        };
        let replacements = mutant.edits.iter().map(replace).collect();
        wanted.get(&mutant.name).map(|id| Changed { id: *id, replacements })
    });
    changed.collect()
}

/// A line of cargo.
#[derive(Deserialize)]
struct Message {
    message: Option<Diagnostic>,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
}

/// A target of a package.
#[derive(Deserialize)]
struct Target {
    name: String,
}

impl Message {
    /// The program that it tells of, if it does.
    fn built(&self) -> Option<Built> {
        let name = self.target.as_ref()?.name.clone();
        let folder = self.manifest_path.as_ref()?.parent()?.to_owned();
        Some(Built { name, path: self.executable.clone()?, folder })
    }
}

/// What the compiler says.
#[derive(Debug, Deserialize)]
struct Diagnostic {
    message: String,
    level: String,
    spans: Vec<Place>,
    rendered: Option<String>,
}

/// Where.
#[derive(Debug, Deserialize)]
struct Place {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
}

/// The file of the source that a file is, or is a copy of: build scripts copy the source to
/// `out/woven`, where every byte of a function is at its place.
fn original(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    let Some((package, file)) = text.split_once("/out/woven/") else { return path.to_owned() };
    let is_dma = package.rsplit('/').next().is_some_and(|name| name.starts_with("shootdown-dma"));
    Path::new(LIBRARIES[usize::from(is_dma)].folder).join("src").join(file)
}

/// The numbers of the mutants that the errors are about.
fn blame(
    root: &Path,
    errors: &[Diagnostic],
    woven: &BTreeMap<PathBuf, Woven>,
    wanted: &[Wanted],
    sources: &[Source],
) -> BTreeSet<u32> {
    let mut blamed = BTreeSet::new();
    for error in errors {
        let mut primary: Vec<&Place> = error.spans.iter().filter(|p| p.is_primary).collect();
        primary.extend(error.spans.iter().filter(|p| !p.is_primary));
        let parts = primary.iter().filter_map(|place| {
            let path = fs::canonicalize(root.join(&place.file_name)).ok()?;
            let file = original(&path);
            woven.iter().find(|(of, _)| file.ends_with(of))?.1.part(place.byte_start)
        });
        match parts.clone().next() {
            Some(Part::Change(number)) => {
                blamed.insert(number);
            }
            Some(Part::Original(choice)) => {
                let mutants: Vec<u32> = parts
                    .filter_map(|part| match part {
                        Part::Change(number) => Some(number),
                        Part::Original(_) => None,
                    })
                    .collect();
                if mutants.is_empty() {
                    let all = wanted.iter().filter(|one| one.choice == choice);
                    blamed.extend(all.map(|one| one.number));
                }
                blamed.extend(mutants);
            }
            None => {
                let around = around(root, &primary, woven);
                let ends: Vec<u32> = around
                    .iter()
                    .copied()
                    .filter(|id| ends_something(*id, wanted, sources))
                    .collect();
                blamed.extend(if ends.is_empty() { around } else { ends });
                blamed.extend(constants(error, wanted, sources));
            }
        }
    }
    blamed
}

/// The mutants that stand in, or between, the places of an error.
fn around(root: &Path, places: &[&Place], woven: &BTreeMap<PathBuf, Woven>) -> Vec<u32> {
    let Some(first) = places.first() else { return Vec::new() };
    let here = places.iter().filter(|place| place.file_name == first.file_name);
    let range = here.fold(first.byte_start..first.byte_end, |range, place| {
        range.start.min(place.byte_start)..range.end.max(place.byte_end)
    });
    let Ok(path) = fs::canonicalize(root.join(&first.file_name)) else { return Vec::new() };
    let file = original(&path);
    let found = woven.iter().find(|(of, _)| file.ends_with(of));
    found.map_or_else(Vec::new, |(_, woven)| woven.changes_in(&range).collect())
}

/// Is there a `return`, `break` or `continue` in what a mutant changes? Without it code goes on
/// where it must not: the `else` of a `let` has to end, and what was moved is used again.
fn ends_something(number: u32, wanted: &[Wanted], sources: &[Source]) -> bool {
    let Some(one) = wanted.iter().find(|one| one.number == number) else { return false };
    let all = sources.iter().flat_map(|source| &source.functions).flat_map(|f| &f.mutants);
    let change = all.into_iter().find(|m| m.name == one.name).map_or("", |m| &m.change);
    ["return", "break", "continue"].iter().any(|word| change.contains(word))
}

/// The mutants of functions that have to be constant: the error is where a constant needs one.
fn constants(error: &Diagnostic, wanted: &[Wanted], sources: &[Source]) -> Vec<u32> {
    let Some((_, rest)) = error.message.split_once("cannot call non-const") else {
        return Vec::new();
    };
    let path = rest.split('`').nth(1).unwrap_or_default();
    let name = path.rsplit("::").next().unwrap_or_default();
    let is_constant = |one: &&Wanted| {
        let source =
            sources.iter().find(|s| s.library.name == one.name.library && s.file == one.name.file);
        source.is_some_and(|source| {
            source.functions.iter().any(|mutated| {
                mutated.function.name == one.name.function
                    && mutated.function.constant.is_some()
                    && mutated.function.name.rsplit("::").next() == Some(name)
            })
        })
    };
    wanted.iter().filter(is_constant).map(|one| one.number).collect()
}
