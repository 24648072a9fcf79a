//! The reader, on files of our own.

use std::path::Path;

use super::*;
use crate::litmus::machine::Breakage;

fn fixtures(breakage: Breakage) -> Vec<Verdict> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/herd");
    check_directory(&folder, &Options { breakage, ..Options::default() }).unwrap()
}

fn find<'a>(verdicts: &'a [Verdict], name: &str) -> &'a Verdict {
    verdicts.iter().find(|verdict| verdict.name == name).unwrap()
}

#[test]
fn what_can_be_read_has_the_right_verdict() {
    let verdicts = fixtures(Breakage::None);
    assert_eq!(verdicts.len(), 33);
    for verdict in verdicts.iter().filter(|verdict| !verdict.name.starts_with("skipped")) {
        assert!(verdict.pass, "{verdict:#?}");
    }
    let early = find(&verdicts, "map-then-use-early");
    assert_eq!(early.expected, "forbidden with ets2; allowed");
}

#[test]
fn what_cannot_be_read_is_skipped_with_a_reason() {
    let verdicts = fixtures(Breakage::None);
    for (name, needle) in [
        ("skipped-pair", "instruction LDP"),
        ("skipped-user-entry", "entry for user mode"),
        ("skipped-no-kind", "no kinds file names it"),
        ("skipped-attribute", "entry field"),
    ] {
        let verdict = find(&verdicts, name);
        let Outcome::Unsupported(reason) = &verdict.outcome else { panic!("{verdict:#?}") };
        assert!(reason.contains(needle) && !verdict.pass, "{reason}");
    }
}

#[test]
fn a_broken_machine_fails_the_files_too() {
    let verdicts = fixtures(Breakage::NeverRetains);
    assert!(!find(&verdicts, "unmap-no-tlbi").pass);
    let verdicts = fixtures(Breakage::ForgetsToInvalidate);
    assert!(!find(&verdicts, "move-and-tell").pass);
    let verdicts = fixtures(Breakage::PromptUpdates);
    assert!(!find(&verdicts, "logged-late").pass);
    assert!(!find(&verdicts, "logged-late+dsb.st").pass);
    let verdicts = fixtures(Breakage::ImpatientSync);
    assert!(!find(&verdicts, "fault-after-branch+dmb.ld").pass);
    let verdicts = fixtures(Breakage::Sequential);
    for name in
        ["atomic-forwards", "fence-fault-load+st", "picked-address", "release-faults", "loads-pass"]
    {
        assert!(!find(&verdicts, name).pass, "{name}");
    }
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let error = check_directory(Path::new("no/such/folder"), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("no/such/folder"));
}
