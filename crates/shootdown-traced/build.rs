//! Weaves the mutants into a copy of the source of `shootdown`, and turns the traced atomics on.

use std::path::Path;

use shootdown_weave::Library;

fn main() {
    println!("cargo::rustc-cfg=shootdown_traced");
    let library = Library {
        source: Path::new("../shootdown/src"),
        above: &[],
        mutants: Path::new("../../verify/mutants/shootdown"),
        more: &[],
    };
    if let Err(error) = library.write() {
        panic!("{error}");
    }
}
