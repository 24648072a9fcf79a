//! The suite, and the proof that it can fail.

use std::collections::BTreeSet;

use super::*;

fn tests() -> Vec<Test> {
    embedded().iter().map(|file| Test::parse(file.path, file.text).unwrap()).collect()
}

fn failing(breakage: Breakage) -> BTreeSet<String> {
    let options = Options { breakage, ..Options::default() };
    tests()
        .iter()
        .map(|test| run(test, &options))
        .filter(|verdict| matches!(verdict.outcome, Outcome::Fail(_)))
        .map(|verdict| format!("{}/{}", verdict.arch, verdict.name))
        .collect()
}

#[test]
fn every_file_of_the_folder_is_built_in() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../litmus");
    let mut files = BTreeSet::new();
    for arch in ["x86-64", "aarch64", "riscv"] {
        for file in std::fs::read_dir(format!("{folder}/{arch}")).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".lit") {
                files.insert(format!("{arch}/{name}"));
            }
        }
    }
    let built_in: BTreeSet<String> = embedded().iter().map(|f| f.path.to_owned()).collect();
    assert_eq!(files, built_in);
}

#[test]
fn names_are_unique_and_match_their_files() {
    let mut names = BTreeSet::new();
    for (file, test) in embedded().iter().zip(tests()) {
        assert!(file.path.ends_with(&format!("/{}.lit", test.name())), "{}", file.path);
        assert!(names.insert((test.arch(), test.name().to_owned())), "{}", file.path);
    }
}

#[test]
fn every_verdict_is_right() {
    let mut passed = [0; 3];
    for test in tests() {
        let verdict = run(&test, &Options::default());
        match &verdict.outcome {
            Outcome::Pass => passed[test.arch() as usize] += 1,
            Outcome::Unsupported(reason) => {
                assert_eq!(Some(reason.as_str()), test.unsupported());
                assert!(!verdict.pass);
            }
            Outcome::Fail(_) | Outcome::Unknown(_) => panic!("{verdict:#?}"),
        }
    }
    assert!(passed[0] >= 50 && passed[1] >= 60 && passed[2] >= 30, "{passed:?}");
}

#[test]
fn results_are_the_same_twice() {
    for test in tests().iter().filter(|test| test.name().starts_with('M')) {
        let options = Options::default();
        assert_eq!(run(test, &options), run(test, &options));
    }
}

/// Each broken machine fails tests; these among them.
#[test]
fn a_broken_machine_fails_the_suite() {
    let broken: [(Breakage, &[&str]); 5] = [
        (
            Breakage::NeverRetains,
            &[
                "x86-64/no-invlpg",
                "x86-64/walk-cache-survives",
                "x86-64/remote-without-invlpg",
                "aarch64/V2I-load-DSB-ISB",
                "aarch64/needTLBI1",
                "riscv64/map-faults-twice",
                "riscv64/shootdown-early-ack",
                "x86-64/dma-address-reused-early",
                "aarch64/dma-table+dsb-tlbi.leaf-sync",
            ],
        ),
        (
            Breakage::FlushesAll,
            &[
                "x86-64/invlpg-other-page",
                "x86-64/walk-cache-invpcid-other-tag",
                "x86-64/invpcid-nonglobal-spares-globals",
                "aarch64/MP.RT.EL1+dsb-tlbi-dsb+dsb-isb",
                "aarch64/TLBI-wrong-asid",
                "riscv64/sfence-other-page",
                "x86-64/dma-table-freed-as-leaf",
            ],
        ),
        (
            Breakage::Sequential,
            &[
                "x86-64/mask-race-unfenced",
                "x86-64/store-buffering",
                "aarch64/coWRExpNExp",
                "aarch64/MP+dmb.st+dsb.st-tlbi-dsb-isb",
                "aarch64/ROT.inv+po",
                "riscv64/sinval-without-w-inval",
                "aarch64/dma-map+po",
                "riscv64/dma-unmap-unfenced",
            ],
        ),
        (
            Breakage::ForgetsToInvalidate,
            &[
                "x86-64/invlpg-own-read",
                "x86-64/shootdown",
                "aarch64/TA1",
                "riscv64/sinval",
                "x86-64/dma-unmap",
                "aarch64/dma-table+dsb-tlbi-sync",
            ],
        ),
        (
            Breakage::ImpatientSync,
            &[
                "aarch64/RBS+dsb-tlbiis-dsb",
                "aarch64/WBM+dsb-tlbiis-dsb",
                "aarch64/coRR-pte9",
                "x86-64/dma-late-write",
                "riscv64/dma-late-write",
            ],
        ),
    ];
    for (breakage, expected) in broken {
        let failing = failing(breakage);
        for name in expected {
            assert!(failing.contains(*name), "{breakage:?} passes {name}");
        }
    }
}

#[test]
fn a_limit_is_unknown_and_never_a_pass() {
    let options = Options { max_states: 3, ..Options::default() };
    for test in tests().iter().filter(|test| test.unsupported().is_none()) {
        let verdict = run(test, &options);
        let small = verdict.states <= 6;
        assert!(matches!(verdict.outcome, Outcome::Unknown(_)) || small, "{verdict:#?}");
        assert!(!verdict.pass || small);
    }
}

#[test]
fn a_forbidden_outcome_without_a_witness_is_refused() {
    let text = "test t\narch x86-64\nsource s\nverdict forbidden\nmap x -> invalid\ncpu 0\n  r0 = load x\n\
                exists 0:r0 = 1\n";
    let error = Test::parse("t", text).unwrap_err();
    assert!(error.problem.contains("witness"), "{error}");
}

#[test]
fn a_witness_that_is_not_reached_fails_the_test() {
    let text = "test t\narch x86-64\nsource s\nverdict forbidden\nframe f\nmap x -> f\ncpu 0\n\
                \x20 r0 = load x\nexists 0:r0 = 1\nwitness 0:r0 = 2\n";
    let verdict = run(&Test::parse("t", text).unwrap(), &Options::default());
    assert!(matches!(&verdict.outcome, Outcome::Fail(why) if why.contains("witness 1")));
}

#[test]
fn every_machine_that_differs_is_named() {
    let text = "test t\narch aarch64\nsource s\nverdict allowed\nverdict allowed with ets2\n\
                verdict required with ha\nframe f = 1\nmap x -> f\ncpu 0\n\
                \x20 r0 = load x\nexists 0:r0 = 2\n";
    let verdict = run(&Test::parse("t", text).unwrap(), &Options::default());
    let why = "allowed but never observed; allowed but never observed with ets2; \
               required but never observed with ha";
    assert_eq!(verdict.outcome, Outcome::Fail(why.to_owned()));
}

#[test]
fn errors_name_the_line_and_what_to_do() {
    let head = "test t\narch aarch64\nsource s\nverdict allowed\nframe f\nmap x -> f\ncpu 0\n";
    for (line, needle) in [
        ("  tlbi vae9is x", "vae9is"),
        ("  mfence", "aarch64"),
        ("  r0 = load q", "`q` is not declared"),
        ("  store x 1", "`=`"),
        ("  if r0 == 1 goto NOWHERE", "NOWHERE"),
        ("  dmb ishlost", "ishlost"),
        ("  r99 = load x", "r99"),
        ("  store pte(x, 3) = f", "level 3"),
        ("  iommu.device 0 x", "no such device"),
        ("  iommu.wait x = 1", "variable"),
        ("  write.back x", "entries"),
        ("device 1", "not next"),
        ("device 0\n  dsb ish", "no device"),
    ] {
        let error = Test::parse("file", &format!("{head}{line}\nexists always\n")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(needle) || error.help.contains(needle), "{text}");
        let lines = line.lines().count();
        assert!(
            text.starts_with(&format!("file:{}: ", 7 + lines)) && !error.help.is_empty(),
            "{text}"
        );
    }
}
