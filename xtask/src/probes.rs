//! Wrappers as the compiler makes them: `crates/shootdown-virt/probes`, built for the bare machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget};

use crate::Error;
use crate::cli::Arch;
use crate::image::{Library, library, root};
use crate::path::{Function, Success, sets_flags};
use crate::process::succeed;

/// The exception table.
const TABLE: &str = "shootdown_extable";
/// Where its entries lead.
const FIXUPS: &str = ".text.unlikely.shootdown_fixup";

/// A wrapper of a project, in a function of its own.
pub struct Probe {
    pub project: String,
    pub name: String,
    pub success: Success,
    /// Bytes beside the way that succeeds: the rest of the function, and the fix-ups.
    pub outside: u64,
    /// Entries of the exception table.
    pub entries: usize,
    /// Offsets of instructions that may fault and have no entry, or have one and may not.
    pub misnamed: Vec<u64>,
}

impl Probe {
    /// How many jumps the way that succeeds may have: one after each instruction that fails by
    /// flags.
    pub fn jumps(&self) -> usize {
        self.success.instructions.iter().filter(|instruction| sets_flags(instruction)).count()
    }
}

/// Builds the probes; returns the library, which is an archive.
fn build() -> Result<PathBuf, Error> {
    let (root, target) = (root(), Arch::X86_64.target());
    let folder = root.join("target/probes");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root.join("crates/shootdown-virt/probes"));
    cargo.args(["build", "--quiet", "--locked", "--release", "--target", target]);
    cargo.arg("--target-dir").arg(&folder);
    if let Library::FromSource = library(target)? {
        cargo.env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=core");
    }
    // What other builds want of the compiler is not for this one.
    for variable in ["CARGO_PROFILE_RELEASE_DEBUG", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        cargo.env_remove(variable);
    }
    succeed("building the probes", &mut cargo)?;
    Ok(folder.join(target).join("release/libshootdown_virt_probes.rlib"))
}

/// The object file of an archive that has one.
fn only_object(archive: &[u8]) -> object::Result<Option<&[u8]>> {
    let files = ArchiveFile::parse(archive)?;
    let mut objects = Vec::new();
    for member in files.members() {
        let member = member?;
        if member.name().ends_with(b".o") {
            objects.push(member.data(archive)?);
        }
    }
    // One unit of code generation: the manifest of the probes says so.
    Ok(if let [object] = objects[..] { Some(object) } else { None })
}

/// Builds the probes and takes them apart, in the order of their names.
pub fn all() -> Result<Vec<Probe>, Error> {
    let path = build()?;
    let data = std::fs::read(&path)
        .map_err(|source| Error::File { path: path.display().to_string(), source })?;
    let unusable = |why: String| Error::Unusable(format!("{}: {why}", path.display()));
    let object = only_object(&data).map_err(|error| unusable(error.to_string()))?;
    let object = object.ok_or_else(|| unusable("it is not made of one object file".into()))?;
    let file = object::File::parse(object).map_err(|error| unusable(error.to_string()))?;
    let table = entries(&file).map_err(unusable)?;
    let mut probes = Vec::new();
    for symbol in file.symbols().filter(ObjectSymbol::is_definition) {
        let Some((project, name)) = symbol.name().ok().and_then(|name| name.split_once("__"))
        else {
            continue;
        };
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let section = section.ok_or_else(|| unusable(format!("{name} is in no section")))?;
        let code = section.data_range(symbol.address(), symbol.size());
        let code = code.ok().flatten().ok_or_else(|| unusable(format!("{name} has no code")))?;
        let relocated: Vec<u64> = section.relocations().map(|(at, _)| at).collect();
        let function = Function::new(code, &relocated);
        let success = function
            .success()
            .ok_or_else(|| unusable(format!("{project}'s {name} calls on every way")))?;
        let mine = table.get(&section.index().0);
        let named: BTreeSet<u64> = mine.into_iter().flatten().map(|entry| entry.fault).collect();
        let fixups: u64 = mine.into_iter().flatten().map(|entry| entry.fixup_bytes).sum();
        probes.push(Probe {
            project: project.to_owned(),
            name: name.to_owned(),
            outside: function.outside(&success) + fixups,
            entries: named.len(),
            misnamed: named.symmetric_difference(&function.wrapped()).copied().collect(),
            success,
        });
    }
    probes.sort_by(|a, b| (&a.project, &a.name).cmp(&(&b.project, &b.name)));
    Ok(probes)
}

/// An entry of the exception table: the offset of the instruction in its section, and how long its
/// fix-up is.
struct Entry {
    fault: u64,
    fixup_bytes: u64,
}

/// The entries, by the section of their instructions.
fn entries(file: &object::File<'_>) -> Result<BTreeMap<usize, Vec<Entry>>, String> {
    let table = file.section_by_name(TABLE).ok_or("there is no exception table")?;
    let fixups = file.section_by_name(FIXUPS).ok_or("there are no fix-ups")?;
    let mut words = BTreeMap::new();
    for (at, relocation) in table.relocations() {
        let RelocationTarget::Symbol(index) = relocation.target() else {
            return Err(format!("the word at {at} of the exception table names no symbol"));
        };
        let symbol = file.symbol_by_index(index).map_err(|error| error.to_string())?;
        let section = symbol.section_index().ok_or("an entry names what is not in the object")?;
        words.insert(at, (section, symbol.address().wrapping_add_signed(relocation.addend())));
    }
    let mut starts: BTreeSet<u64> = words
        .values()
        .filter(|(section, _)| *section == fixups.index())
        .map(|(_, offset)| *offset)
        .collect();
    starts.insert(fixups.size());
    let mut entries: BTreeMap<usize, Vec<Entry>> = BTreeMap::new();
    for (at, (section, fault)) in words.iter().filter(|(at, _)| *at % 8 == 0) {
        let (_, fixup) = words.get(&(at + 4)).ok_or("an entry without a fix-up")?;
        let end = starts.range(fixup + 1..).next().ok_or("a fix-up beyond its section")?;
        let entry = Entry { fault: *fault, fixup_bytes: end - fixup };
        entries.entry(section.0).or_default().push(entry);
    }
    Ok(entries)
}
