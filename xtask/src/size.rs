//! `cargo xtask size`: what a kernel for x86-64 links of the core, and keeps for each CPU.
//!
//! `crates/shootdown/probe` is built for a bare machine in release mode with link-time
//! optimization: a flush, a switch and the handler of the interrupt, for up to 256 CPUs, with facts
//! that are found at boot and the policy that ships. All that is the port's is foreign. Of the one
//! object that comes out, text is the sum of its executable sections (functions of the language's
//! own library are others' objects), and the state of a CPU is the symbol `PROBE_CPUS` by the number
//! of CPUs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use object::read::archive::ArchiveFile;
use object::{Object, ObjectSection, ObjectSymbol, SectionKind};

use crate::Error;
use crate::cli::{Arch, SizeArgs};
use crate::image::{Library, library, root};
use crate::process::succeed;

/// How far above its record a size may be: compilers differ by a few in a hundred.
const TOLERANCE_PERCENT: u64 = 5;

/// CPUs that the probe has state for.
const CPUS: u64 = 256;

/// What is measured of the probe.
struct Probe {
    text: u64,
    /// Bytes of state for each CPU.
    state: u64,
    /// Of these, those that are kept in the image, as they do not begin as zeros.
    initialized: u64,
    functions: Vec<(u64, String)>,
}

/// Builds the probe with a feature or without; returns the library.
fn build(features: &[&str]) -> Result<PathBuf, Error> {
    let (root, target) = (root(), Arch::X86_64.target());
    let folder = root.join("target/size");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root.join("crates/shootdown/probe"));
    cargo.args(["build", "--quiet", "--locked", "--release", "--target", target]);
    cargo.arg("--target-dir").arg(&folder).arg("--features").arg(features.join(","));
    if let Library::FromSource = library(target)? {
        cargo.env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=core");
    }
    // What other builds want of the compiler is not for this one.
    for variable in ["CARGO_PROFILE_RELEASE_DEBUG", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        cargo.env_remove(variable);
    }
    succeed("building the probe of the core's size", &mut cargo)?;
    Ok(folder.join(target).join("release/libshootdown_probe.a"))
}

/// The object of the archive that defines the probe's state.
fn measure(archive: &[u8]) -> object::Result<Option<Probe>> {
    for member in ArchiveFile::parse(archive)?.members() {
        let data = member?.data(archive)?;
        let Ok(file) = object::File::parse(data) else { continue };
        let symbol = |name: &str| file.symbols().find(|s| s.name() == Ok(name));
        let Some(state) = symbol("PROBE_CPUS") else { continue };
        let section = state.section_index().and_then(|at| file.section_by_index(at).ok());
        let zeros = section.is_some_and(|s| s.kind() == SectionKind::UninitializedData);
        let text = file.sections().filter(|s| s.kind() == SectionKind::Text);
        let bytes = state.size() / CPUS;
        let mut functions: Vec<(u64, String)> = file
            .symbols()
            .filter(|s| s.kind() == object::SymbolKind::Text && s.size() > 0)
            .map(|s| (s.size(), s.name().unwrap_or("?").to_owned()))
            .collect();
        functions.sort_by(|a, b| b.cmp(a));
        return Ok(Some(Probe {
            text: text.map(|s| s.size()).sum(),
            state: bytes,
            initialized: if zeros { 0 } else { bytes },
            functions,
        }));
    }
    Ok(None)
}

fn probe(features: &[&str]) -> Result<Probe, Error> {
    let path = build(features)?;
    let data = read(&path)?;
    let unusable = |why: String| Error::Unusable(format!("{}: {why}", path.display()));
    measure(&data)
        .map_err(|error| unusable(error.to_string()))?
        .ok_or_else(|| unusable("no object in it defines PROBE_CPUS".into()))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File { path: path.display().to_string(), source })
}

fn path() -> PathBuf {
    root().join("crates/shootdown/budgets.txt")
}

/// Measures; returns the exit code.
pub fn run(of: &SizeArgs) -> Result<u8, Error> {
    let (plain, invlpgb) = (probe(&[])?, probe(&["invlpgb"])?);
    let figures = [
        ("text", plain.text, "flush, switch and interrupt handler"),
        ("text-invlpgb", invlpgb.text, "the same, with tags for all CPUs (INVLPGB)"),
        ("cpu-state", plain.state, "state of a CPU, counters included"),
        ("cpu-state-initialized", plain.initialized, "of these, in the image (.data)"),
    ];
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header(["size", "bytes", "what"]);
    for (name, bytes, what) in figures {
        table.add_row([name, &bytes.to_string(), what]);
    }
    say!("{table}");
    say!("x86_64, release, link-time optimization, facts found at boot, {CPUS} CPUs");
    if of.functions {
        plain.functions.iter().for_each(|(bytes, name)| say!("{bytes:6} {name}"));
    }
    let figures = figures.map(|(name, bytes, _)| (name, bytes));
    if of.record {
        record(&figures)?;
    }
    if !of.check {
        return Ok(0);
    }
    let path = path();
    let text = String::from_utf8_lossy(&read(&path)?).into_owned();
    let budgets = budgets(&text).map_err(|line| {
        Error::Unusable(format!("{}:{line}: give a name and a number", path.display()))
    })?;
    let faults = beyond(&figures, budgets);
    faults.iter().for_each(|fault| say!("{fault}"));
    say!("{} sizes, {} outside their budgets", figures.len(), faults.len());
    Ok(u8::from(!faults.is_empty()))
}

fn record(figures: &[(&str, u64)]) -> Result<(), Error> {
    let mut text = String::from("# Bytes of the core in a kernel: `cargo xtask size --record`.\n");
    for (name, bytes) in figures {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {bytes}");
    }
    let path = path();
    std::fs::write(&path, text)
        .map_err(|source| Error::File { path: path.display().to_string(), source })?;
    say!("recorded in {}", path.display());
    Ok(())
}

/// Reads the record; an error is the number of a line.
fn budgets(text: &str) -> Result<BTreeMap<&str, u64>, usize> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let parsed = line.split_once(' ').and_then(|(name, n)| Some((name, n.parse().ok()?)));
            parsed.ok_or(number + 1)
        })
        .collect()
}

/// What is above its budget, has none, or is measured no more.
fn beyond<'a>(figures: &[(&'a str, u64)], mut budgets: BTreeMap<&'a str, u64>) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, bytes) in figures {
        match budgets.remove(name) {
            None => faults.push(format!("{name}: {bytes}, not recorded yet: record it (--record)")),
            Some(budget) if *bytes > budget + budget * TOLERANCE_PERCENT / 100 => {
                faults.push(format!(
                    "{name}: {bytes}, recorded {budget}: more than {TOLERANCE_PERCENT} % above"
                ));
            }
            Some(_) => {}
        }
    }
    faults
        .extend(budgets.keys().map(|name| format!("{name}: recorded, and not measured any more")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_its_budget_is_named() {
        let beyond = |figures: &[(&str, u64)]| {
            let faults = beyond(figures, budgets("# sizes\ntext 1000\nstate 0\n").unwrap());
            faults.iter().map(|f| f.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(beyond(&[("text", 1050), ("state", 0)]), [""; 0]);
        assert_eq!(beyond(&[("text", 1051), ("state", 0)]), ["text"]);
        assert_eq!(beyond(&[("text", 0), ("state", 1)]), ["state"]);
        assert_eq!(beyond(&[("text", 0), ("other", 1)]), ["other", "state"]);
        assert_eq!(budgets("text\n"), Err(1));
    }
}
