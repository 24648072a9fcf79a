//! The fuzz targets on a stable compiler: the seeds, every input that once broke something, changed
//! copies of both, and random bytes. Always the same inputs (T2).

use std::fs;
use std::path::{Path, PathBuf};

use shootdown_fuzz::TARGETS;
use shootdown_machine::hunt::kernel::Program;

/// Changed copies and random inputs per target.
const CHANGED: usize = 400;
/// No input is longer.
const LONGEST: usize = 2048;

/// Marsaglia's xorshift: numbers that are the same on every host.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, below: usize) -> usize {
        (self.next() % below.max(1) as u64) as usize
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.below(300)).map(|_| self.next() as u8).collect()
    }

    /// A copy with a few bytes changed, removed, repeated or put in.
    fn changed(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut data = seed[..seed.len().min(LONGEST)].to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(data.len());
            match self.below(5) {
                0 => data.truncate(at),
                1 if !data.is_empty() => data[at] = self.next() as u8,
                2 if !data.is_empty() => data[at] ^= 1 << self.below(8),
                3 => data.insert(at, self.next() as u8),
                _ => {
                    let end = at + self.below(data.len() - at);
                    let part = data[at..end].to_vec();
                    data.splice(at..at, part);
                }
            }
        }
        data
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files of a folder, in order of their names; none when it is not there.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("readable"))).collect()
}

fn seeds(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let root = repository();
    let mut all = files(&root.join("fuzz/corpus").join(name));
    all.extend(files(&root.join("fuzz/regressions").join(name)));
    let more: &[&str] = match name {
        "profile_text" => &["profiles"],
        "litmus_text" => &["litmus/aarch64", "litmus/riscv", "litmus/x86-64"],
        _ => &[],
    };
    all.extend(more.iter().flat_map(|folder| files(&root.join(folder))));
    all
}

fn check(name: &str) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target");
    let seeds = seeds(name);
    for (path, seed) in &seeds {
        eprintln!("{}", path.display());
        target(seed);
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..CHANGED {
        target(&random.bytes());
        if !seeds.is_empty() {
            let (_, seed) = &seeds[random.below(seeds.len())];
            target(&random.changed(seed));
        }
    }
}

/// A seed that is no program any more, because a word of the language has another name, would pass
/// without running anything.
#[test]
fn seeds_of_hunts_are_still_programs() {
    for (path, seed) in seeds("hunt_program") {
        let text = String::from_utf8_lossy(&seed);
        let program = text.split('#').next().unwrap_or_default();
        match program.parse::<Program>() {
            // Once it was accepted, which was the mistake.
            Err(said) if path.ends_with("page-outside-the-tables") => {
                assert!(said.contains("there is no page"), "{said}");
            }
            Err(said) => panic!("{}: {said}", path.display()),
            Ok(_) => assert!(!path.ends_with("page-outside-the-tables")),
        }
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested_and_fuzzed() {
            let tested = [$(stringify!($name)),*];
            let listed: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(tested[..], listed[..]);
            let mut expected: Vec<_> = listed.iter().map(|name| format!("{name}.rs")).collect();
            expected.sort();
            let found = files(&repository().join("fuzz/fuzz_targets")).into_iter();
            let name = |path: PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
            assert_eq!(found.map(|(path, _)| name(path)).collect::<Vec<_>>(), expected);
        }
    };
}

targets! {
    recording_file recording_frames import_perf import_strace profile_text profile_figures arguments
    operands plans sets litmus_text litmus_herd schedule_code hunt_program
}
