//! Weaves the mutants into a copy of the source of `shootdown-dma` and of `shootdown-vfio`, for
//! their tests and for the model checker; and copies tests of the crate, which are run here with
//! mutants on.

use std::path::{Path, PathBuf};

use shootdown_weave::Library;

/// Tests of the crate that kill mutants.
const TESTS: [&str; 2] = ["ledger", "whole_tables"];

fn main() {
    let library = Library {
        source: Path::new("../../crates/shootdown-dma/src"),
        above: &[("vfio", Path::new("../../crates/shootdown-vfio/src"))],
        mutants: Path::new("../mutants/shootdown-dma"),
        more: &[],
    };
    if let Err(error) = library.write() {
        panic!("{error}");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets it"));
    for test in TESTS {
        let from = Path::new("../../crates/shootdown-dma/tests").join(test).with_extension("rs");
        println!("cargo::rerun-if-changed={}", from.display());
        let text =
            std::fs::read_to_string(&from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        let to = out.join(format!("{test}.rs"));
        std::fs::write(&to, bare(&text)).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
    }
}

/// A test's text without the documentation of its crate, which `include!` does not take.
fn bare(text: &str) -> String {
    let bare = |line: &str| if line.starts_with("//!") { "\n".into() } else { format!("{line}\n") };
    text.lines().map(bare).collect()
}
