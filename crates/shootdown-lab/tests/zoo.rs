//! `shootdown check zoo`: historical bugs are found, and only with their step broken.

use std::process::{Command, Output};

use serde_json::Value;

fn shootdown(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shootdown")).args(args).output().expect("the binary was built")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn checks(args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = shootdown(args);
    let document: Value = serde_json::from_str(&out(&output)).expect("one JSON document");
    (output.status.code(), document["checks"].as_array().expect("checks").clone())
}

/// A step of the kernel and a step of the library; by chance and exhaustively.
const TWO: [&str; 2] = ["zoo/z01-move-page", "zoo/litebox-free-unflushed"];

#[test]
fn bugs_are_found_broken_and_not_found_whole_and_replay() {
    let (code, results) = checks(&["check", TWO[0], TWO[1], "--format", "json"]);
    assert_eq!(code, Some(0));
    assert_eq!(results.len(), 2);
    for result in &results {
        let observed = result["observed"].as_str().expect("observed");
        assert!(observed.contains(" broken after "), "{observed}");
        assert!(observed.contains("whole clean in "), "{observed}");
        let witnesses = result["witnesses"].as_object().expect("witnesses");
        assert!(witnesses.values().all(|n| n.as_u64() > Some(0)), "{witnesses:?}");

        let replay = result["replay"].as_str().expect("an example");
        let output = shootdown(&["check", "--replay", replay]);
        assert_eq!(output.status.code(), Some(1), "{replay} breaks a promise again");
        let promise = observed.split(" broken").next().unwrap_or_default();
        assert!(
            out(&output).contains(&format!("broken promise \"{promise}\"")),
            "{}",
            out(&output)
        );

        // With the step whole the same schedule is harmless, or none at all any more.
        let (check, rest) = replay.split_once(':').expect("a mutant");
        let (mutant, schedule) = rest.split_once(':').expect("a schedule");
        assert!(mutant.starts_with("mutant="), "{replay}");
        let output = shootdown(&["check", "--replay", &format!("{check}:{schedule}")]);
        assert!(!out(&output).contains("broken promise"), "{}", out(&output));
    }
    assert!(results[0]["states"].is_null() && results[1]["states"].as_u64() > Some(100));
}

#[test]
fn results_do_not_depend_on_threads_or_on_what_else_runs() {
    let both =
        |threads| checks(&["check", TWO[0], TWO[1], "--threads", threads, "--format", "json"]);
    let (one, two) = (both("1"), both("2"));
    assert_eq!(one, two);
    let (_, alone) = checks(&["check", TWO[1], "--format", "json"]);
    assert_eq!(alone[0], one.1[1]);
}

#[test]
fn the_whole_is_searched_with_the_users_mutant() {
    let (code, results) = checks(&["check", TWO[1], "--mutant", "no-wait", "--format", "json"]);
    assert_eq!(code, Some(1));
    let observed = results[0]["observed"].as_str().expect("observed");
    assert!(observed.ends_with("broken, whole"), "{observed}");
}

#[test]
fn too_few_schedules_are_no_answer() {
    let (code, results) = checks(&["check", TWO[0], "--runs", "1", "--format", "json"]);
    assert_eq!((code, results[0]["pass"].as_bool()), (Some(1), Some(false)));
    let output = shootdown(&["check", TWO[0], "--runs", "1"]);
    assert!(out(&output).starts_with("UNKNOWN"), "{}", out(&output));
}
