//! Weaves the mutants into a copy of the source of `shootdown-dma`, and turns the traced atomics
//! on.

use std::path::Path;

use shootdown_weave::Library;

fn main() {
    println!("cargo::rustc-cfg=shootdown_traced");
    let library = Library {
        source: Path::new("../shootdown-dma/src"),
        above: &[("vfio", Path::new("../shootdown-vfio/src"))],
        mutants: Path::new("../../verify/mutants/shootdown-dma"),
        more: &[],
    };
    if let Err(error) = library.write() {
        panic!("{error}");
    }
}
