//! What the fuzz targets do.
//!
//! **Problem.** A coverage-guided fuzzer needs a nightly compiler and hours; the promise "no input
//! makes this panic" should be checked by every run of the tests.
//!
//! **Protocol.** Each target is a function of bytes that panics when a promise is broken.
//! `fuzz_targets/` hands it to libFuzzer; `tests/replay.rs` hands it the corpus, every input that
//! once broke something, and random bytes from fixed seeds.
//!
//! **Invariants.**
//! - T1: a target never panics for any input, unless the code under test is wrong.
//! - T2: a target is a pure function of its input: no clock, no randomness, no files.
//! - T3: what a target compares with is written from manuals and formats, not from the code under
//!   test.

mod arguments;
mod bytes;
mod hunts;
mod imports;
mod litmus;
mod operands;
mod plans;
mod profile;
mod recording;
mod sets;

pub use bytes::Bytes;

/// A target: a name and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("recording_file", recording::file),
    ("recording_frames", recording::frames),
    ("import_perf", imports::perf),
    ("import_strace", imports::strace),
    ("profile_text", profile::text),
    ("profile_figures", profile::figures),
    ("arguments", arguments::command_line),
    ("operands", operands::operands),
    ("plans", plans::plans),
    ("sets", sets::sets),
    ("litmus_text", litmus::text),
    ("litmus_herd", litmus::herd),
    ("schedule_code", hunts::schedule),
    ("hunt_program", hunts::program),
];

/// The target of that name.
///
/// # Panics
/// When there is none: the list above and `fuzz_targets/` have drifted apart.
pub fn run(name: &str, data: &[u8]) {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, target) = found.unwrap_or_else(|| panic!("there is no target `{name}`"));
    target(data);
}
