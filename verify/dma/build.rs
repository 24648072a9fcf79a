//! Weaves the mutants into a copy of the source of `shootdown-dma`, for its tests and for the model
//! checker.

use std::path::Path;

use shootdown_weave::Library;

fn main() {
    let library = Library {
        source: Path::new("../../crates/shootdown-dma/src"),
        mutants: Path::new("../mutants/shootdown-dma"),
        more: &[],
    };
    if let Err(error) = library.write() {
        panic!("{error}");
    }
}
