//! Weaves the mutants into a copy of the source of `shootdown`, for the model checker.

use std::path::Path;

use shootdown_weave::Library;

fn main() {
    println!("cargo::rerun-if-env-changed=CARGO_CFG_LOOM");
    if std::env::var_os("CARGO_CFG_LOOM").is_none() {
        return; // nothing but models for `loom` uses it
    }
    let library = Library {
        source: Path::new("../../crates/shootdown/src"),
        above: &[],
        mutants: Path::new("../mutants/shootdown"),
        more: &[],
    };
    if let Err(error) = library.write() {
        panic!("{error}");
    }
}
