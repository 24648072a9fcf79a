//! `shootdown check`: the command line's contract, and that what it says is so.

use std::process::{Command, Output};

use serde_json::Value;
use shootdown_machine::oracle::Invariant;

fn shootdown(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shootdown")).args(args).output().expect("the binary was built")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exit code 2, nothing on standard output, and one line on standard error that holds every word.
fn refused(args: &[&str], words: &[&str]) {
    let output = shootdown(args);
    let said = err(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert_eq!(out(&output), "", "{args:?}");
    assert_eq!(said.trim_end().lines().count(), 1, "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: `{word}` is not in: {said}");
    }
}

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    refused(&["check", "zooo"], &["check", "zooo"]);
    refused(&["check", "--policy", "linux-5.14"], &["policy", "linux-5.13"]);
    refused(&["check", "--mutant", "no-wiat"], &["mutant", "no-wiat", "no-wait"]);
    refused(&["check", "--powers", "speculaton"], &["power", "speculaton", "speculation"]);
    refused(&["check", "--without", "walk-cache"], &["power", "walk-cache", "walk-caches"]);
}

#[test]
fn options_that_contradict_are_refused() {
    refused(&["check", "--policy", "omniscient"], &["omniscient", "bound"]);
    refused(&["check", "--powers", "sc,tso"], &["one", "sc", "tso"]);
    refused(&["check", "--without", "weak"], &["weak", "--powers"]);
    refused(&["check", "soak", "--hours", "0"], &["--hours"]);
    refused(&["check", "soak", "--hours", "NaN"], &["--hours"]);
    for args in [
        &["check", "soak", "--hours", "1", "--steps", "5"][..],
        &["check", "zoo", "--replay", "x:1"],
    ] {
        assert_eq!(shootdown(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    for args in [
        &["check", "--runs", "0"][..],
        &["check", "--runs", "many"],
        &["check", "--threads", "0"],
        &["check", "--threads", "70000"],
        &["check", "--seed", "-1"],
    ] {
        assert_eq!(shootdown(args).status.code(), Some(2), "{args:?}");
    }
}

/// Two that pass and, with a step missing, one that does not; of two kinds.
const SHORT: [&str; 3] = ["zoo/z01-move-page", "zoo/litebox-free-unflushed", "exhaustive/unmap"];

#[test]
fn a_group_prints_one_line_and_with_v_each_check_does() {
    let output = shootdown(&[&["check"], &SHORT[..]].concat());
    let text = out(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "two groups, nothing, the summary:\n{text}");
    assert!(lines[0].starts_with("pass    zoo         2 passed  ("), "{text}");
    assert!(lines[1].starts_with("pass    exhaustive  1 passed  ("), "{text}");
    assert!(lines[3].starts_with("3 passed, in "), "{text}");
    for flag in ["-v", "--verbose"] {
        let text = out(&shootdown(&[&["check", flag], &SHORT[..]].concat()));
        for check in SHORT {
            assert!(text.lines().any(|l| l.starts_with(&format!("pass    {check}"))), "{text}");
        }
        assert!(!text.contains("2 passed  ("), "{text}");
    }
}

#[test]
fn what_fails_is_shown_whole_after_the_groups() {
    let with = [&["check"], &SHORT[..], &["--mutant", "no-wait"]].concat();
    let output = shootdown(&with);
    assert_eq!(output.status.code(), Some(1));
    let text = out(&output);
    let mut rest = &text[..];
    for words in [
        "FAIL    exhaustive  0 passed, 1 failed  (",
        "\n\nFAIL    exhaustive/unmap",
        "broken promise \"revocation\"",
        "see it again: shootdown check --replay exhaustive/unmap:",
        " failed, in ",
    ] {
        let (_, after) = rest.split_once(words).unwrap_or_else(|| panic!("`{words}`:\n{text}"));
        rest = after;
    }
    // Each check has its own.
    let failed = text.lines().filter(|l| l.starts_with("FAIL    zoo/")).count();
    assert_eq!(failed, 2, "{text}");
}

#[test]
fn help_teaches_with_examples_and_exit_codes() {
    let output = shootdown(&["check", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    let text = out(&output);
    for word in ["Examples:", "Exit codes:", "--seed", "--format", "UNKNOWN"] {
        assert!(text.contains(word), "{word} is not in\n{text}");
    }
}

#[test]
fn every_invariant_is_listed_with_its_sentence_and_its_places() {
    let output = shootdown(&["list", "checks", "--format", "json"]);
    assert!(output.status.success());
    let value: Value = serde_json::from_str(&out(&output)).expect("one JSON document");
    let invariants: Vec<&Value> =
        value.as_array().unwrap().iter().filter(|e| e["kind"] == "invariants").collect();
    assert_eq!(invariants.len(), Invariant::ALL.len());
    let page = include_str!("../../../docs/src/invariants.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    for i in invariants {
        let sentence = i["line"].as_str().expect("a sentence").to_lowercase();
        assert!(page.contains(&format!("*{sentence}.*")), "the book has another one for {i}");
        for fact in ["checked", "mutants", "upheld"] {
            assert!(i["facts"][fact].as_str().is_some_and(|s| !s.is_empty()), "{fact} of {i}");
        }
    }
    let table = out(&shootdown(&["list", "checks"]));
    assert!(table.contains("master-invariant") && table.contains("upheld:"), "{table}");
    assert!(!table.contains("linux-5.13"), "only checks and invariants:\n{table}");
}
