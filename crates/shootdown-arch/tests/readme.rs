//! The code that the README and the porting guide show is the code of `examples/port`, which is
//! compiled.

use std::fs;
use std::path::Path;

/// Does the file's text contain everything below the line of the example, as a code block?
fn shows(readme: &str, example: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme_text = fs::read_to_string(here.join(readme)).expect("the README is there");
    let code =
        fs::read_to_string(here.join("examples/port").join(example)).expect("the example too");
    let (_, shown) = code.split_once("// ---\n").expect("a line");
    let block = format!("\n{shown}```");
    assert!(
        readme_text.contains(&block),
        "copy examples/port/{example}, below the line, to {readme}"
    );
}

#[test]
fn the_crates_readme_shows_the_hardware_half() {
    shows("README.md", "hardware.rs");
}

#[test]
fn the_porting_guide_shows_the_kernels_half() {
    shows("../../docs/src/porting.md", "kernel.rs");
}
