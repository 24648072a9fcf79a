//! Which calls of the two libraries no hunted program contains. The list below says why, and does
//! not grow by itself: a function that is new, and called by no program, fails here; so does a line
//! of the list that is not true any more.
//!
//! Names are compared, and no types: what has the name of something that is called counts as
//! called.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Files of the core whose public functions kernels call.
const CORE: &[&str] = &[
    "memory/accessed.rs",
    "memory/epoch.rs",
    "memory/gather.rs",
    "memory/lazy_unmap.rs",
    "memory/reclaim.rs",
    "memory/spurious.rs",
    "ops/call.rs",
    "ops/come_by.rs",
    "ops/flush/acknowledge.rs",
    "ops/flush/everywhere.rs",
    "ops/flush/mod.rs",
    "ops/isolated.rs",
    "ops/online.rs",
    "ops/pinned.rs",
    "ops/respond.rs",
    "ops/retire.rs",
    "ops/switch/mod.rs",
    "port/paravirt.rs",
    "state/cpu.rs",
    "state/space.rs",
];

/// Files of the library of devices whose public functions drivers and their kernels call.
const DEVICES: &[&str] = &[
    "bounce/guarded.rs",
    "domain/map.rs",
    "domain/map_at.rs",
    "domain/mod.rs",
    "domain/settle.rs",
    "domain/two_step.rs",
    "domain/unmap.rs",
    "domain/window.rs",
];

/// What no program calls, and why.
const UNCALLED: &[(&str, &str, &str)] = &[
    ("bounce/guarded.rs", "bounced", "what is bounced of a buffer, to look at"),
    ("bounce/guarded.rs", "pool", "to look at"),
    ("domain/mod.rs", "host", "to look at"),
    ("domain/mod.rs", "table_pages", "to look at"),
    ("domain/settle.rs", "invalidate_all", "two-step mapping calls it for stale reservations"),
    ("domain/unmap.rs", "unmap_raw", "as `unmap`, for who keeps numbers"),
    ("ops/call.rs", "cancel", INSIDE),
    ("ops/call.rs", "fire", INSIDE),
    ("ops/call.rs", "is_busy", INSIDE),
    ("ops/call.rs", "take_deferred", INSIDE),
    ("ops/call.rs", "to_tree", INSIDE),
    ("state/cpu.rs", "id", INSIDE),
    ("state/cpu.rs", "is_lazy", INSIDE),
    ("state/cpu.rs", "with_lazy", INSIDE),
    ("state/cpu.rs", "reset_stats", "counters carry no protocol"),
    ("ops/flush/acknowledge.rs", "generation", "a number to look at; the library reads it itself"),
    ("port/paravirt.rs", "mark", "the library's half of the word"),
    ("ops/isolated.rs", "forgot", INSIDE),
    ("state/space.rs", "generation", "as above"),
    ("state/space.rs", "id", "a name to look at; the library reads it itself"),
];

const INSIDE: &str = "not public: its type is the library's own";

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of crates").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The names of public functions of a file, without those of its tests.
fn functions(text: &str) -> BTreeSet<String> {
    let text = text.split("mod tests {").next().unwrap_or_default();
    let declared = text.lines().filter_map(|line| {
        let words = line.trim_start().strip_prefix("pub ")?;
        let words = words.strip_prefix("const ").unwrap_or(words);
        let words = words.strip_prefix("unsafe ").unwrap_or(words);
        let name = words.strip_prefix("fn ")?;
        name.split(|c: char| c != '_' && !c.is_alphanumeric()).next()
    });
    declared.map(str::to_owned).collect()
}

/// Every word that is followed by an argument list, perhaps after types, in the files of a folder.
fn called(folder: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    for entry in std::fs::read_dir(&folder).expect("a folder of the hunt") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|end| end == "rs") {
            let text = read(&path);
            for (at, _) in text.match_indices('(').chain(text.match_indices("::<")) {
                let word = text[..at].rsplit(|c: char| c != '_' && !c.is_alphanumeric()).next();
                names.extend(word.filter(|word| !word.is_empty()).map(str::to_owned));
            }
        }
    }
    names
}

fn uncalled(library: &str, files: &[&str], called: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut rest = Vec::new();
    for file in files {
        let declared = functions(&read(&crates().join(library).join("src").join(file)));
        assert!(!declared.is_empty(), "{library}'s {file} has no public function: look elsewhere");
        let uncalled = declared.into_iter().filter(|name| !called.contains(name));
        rest.extend(uncalled.map(|name| ((*file).to_owned(), name)));
    }
    rest
}

#[test]
fn programs_call_all_that_kernels_and_drivers_can_call() {
    let mut found = uncalled("shootdown", CORE, &called("src/hunt/kernel"));
    found.extend(uncalled("shootdown-dma", DEVICES, &called("src/hunt/dma")));
    let listed = |file: &str, name: &str| UNCALLED.iter().any(|(f, n, _)| (*f, *n) == (file, name));
    let new: Vec<_> = found.iter().filter(|(file, name)| !listed(file, name)).collect();
    assert!(new.is_empty(), "no hunted program calls {new:?}");
    let is_found = |file: &str, name: &str| found.iter().any(|(f, n)| (&**f, &**n) == (file, name));
    let stale: Vec<_> = UNCALLED.iter().filter(|(file, name, _)| !is_found(file, name)).collect();
    assert!(stale.is_empty(), "called by now, or gone: {stale:?}");
}
