//! `shootdown check mutants`: what it prints, and its exit code.

use std::process::{Command, Output};

use serde_json::Value;

fn check(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shootdown"));
    command.arg("check").args(args).output().expect("the binary was built")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One of each home: a scene, the model checker, an argument.
const THREE: [&str; 3] =
    ["mutants/flush-without-fence", "mutants/tree-forwards-nothing", "mutants/insert-relaxed"];

#[test]
fn killed_mutants_say_where_and_are_counted() {
    let output = check(&[&THREE[..], &["-v"]].concat());
    let text = out(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for words in [
        "killed in `back`: ",
        "killed by the model checker: `the_first_cpu_of_a_word_passes_the_kick_on`",
        "no difference in ",
        "mutants: 2 of 2 killed, 1 of them by the model checker; 1 argued to be equivalent",
    ] {
        assert!(text.contains(words), "`{words}` is not in:\n{text}");
    }
}

#[test]
fn seeds_print_a_line_for_each_mutant() {
    let output = check(&[&THREE[..], &["--seeds", "2"]].concat());
    let text = out(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(text.lines().filter(|l| l.contains(" schedules (median of 2 seeds), ")).count(), 1);
    let refused = check(&["litmus", "--seeds", "2"]);
    assert_eq!(refused.status.code(), Some(2), "{}", out(&refused));
}

#[test]
fn the_same_figures_come_from_one_thread_and_from_three() {
    let json = |threads| {
        let args = [&THREE[..], &["--format", "json", "--threads", threads]].concat();
        out(&check(&args))
    };
    let one = json("1");
    assert_eq!(one, json("3"));
    let value: Value = serde_json::from_str(&one).expect("one JSON document");
    for c in value["checks"].as_array().unwrap() {
        assert_eq!((c["kind"].as_str(), c["pass"].as_bool()), (Some("mutant"), Some(true)), "{c}");
    }
}

#[test]
fn a_survivor_is_named_and_fails_the_command() {
    // One schedule is too few to miss one Release.
    let output = check(&["mutants/loaded-relaxed", "--runs", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let text = out(&output);
    assert!(text.contains("survives 1 schedules of `back`"), "{text}");
    assert!(text.contains("survivor: loaded-relaxed (ops/switch/mod.rs: switch_to): "), "{text}");
}

#[test]
fn a_killing_schedule_is_shown_and_replays() {
    let text = out(&check(&["mutants/no-wait"]));
    assert!(text.contains("CPU 0") && text.contains("broken promise \"revocation\""), "{text}");
    let code = text.lines().find_map(|l| l.strip_prefix("see it again: shootdown check --replay "));
    let again = check(&["--replay", code.expect("a code")]);
    assert_eq!(again.status.code(), Some(1), "{}", out(&again));
    assert!(out(&again).contains("broken promise \"revocation\""), "{}", out(&again));
}
