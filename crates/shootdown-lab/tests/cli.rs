//! The command line's contract: exit codes, sentences for bad input, forms of output, help.

use std::process::{Command, Output};

use serde_json::Value;

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
    refused(&["bench", "overlaps"], &["experiment", "overlaps", "overlap"]);
    refused(&["bench", "overlap", "scael"], &["scael", "scale"]);
    refused(&["bench", "scale", "--policy", "linux-5.14"], &["policy", "linux-5.13", "linux-4.14"]);
    refused(&["bench", "scale", "--policy", "shootdown,naiv"], &["naiv", "naive"]);
    refused(&["bench", "scale", "--machine", "haswel"], &["haswel", "haswell-ep-48"]);
    refused(&["list", "machine"], &["machines"]);
}

#[test]
fn options_without_effect_are_refused() {
    refused(&["bench", "pcid", "--cpus", "4"], &["pcid", "--cpus"]);
    refused(&["bench", "hot", "--machine", "zen4"], &["hot", "--machine"]);
    refused(&["bench", "pcid", "--policy", "omniscient"], &["omniscient", "bound"]);
}

#[test]
fn profile_files_that_cannot_be_used_are_named() {
    refused(&["bench", "pcid", "--machine", "no-such-file.toml"], &["no-such-file.toml"]);
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), "name = 3\n").unwrap();
    let path = file.path().to_str().unwrap();
    refused(&["bench", "pcid", "--machine", path], &[path, "line 1"]);
}

#[test]
fn counts_out_of_range_are_refused() {
    refused(&["bench", "scale", "--cpus", "0"], &["--cpus", "2"]);
    refused(&["bench", "scale", "--cpus", "5000"], &["5000", "4096"]);
}

#[test]
fn options_that_do_not_parse_exit_with_2() {
    for args in [
        &["bench"][..],
        &["bench", "scale", "--cpus", "many"],
        &["bench", "scale", "--seed", "-1"],
        &["list", "--format", "xml"],
        &["nonsense"],
        &[],
    ] {
        assert_eq!(shootdown(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn list_has_one_line_for_each_thing() {
    let kinds = ["machines", "policies", "experiments"];
    let all: String = kinds.iter().map(|kind| out(&shootdown(&["list", kind]))).collect();
    for name in [
        "haswell-ep-48",
        "skylake-laptop",
        "zen4",
        "zen4-vm",
        "zen3-milan-36",
        "ampere-emag-32",
        "altra-80",
        "riscv-64",
        "generic-4096",
        "naive",
        "linux-4.13",
        "linux-4.14",
        "linux-5.13",
        "linux-6.15",
        "arm64-mainline",
        "shootdown",
        "sticky",
        "active",
        "trim",
        "omniscient",
        "pcid",
        "overlap",
        "scale",
        "slots",
        "lines",
        "broadcast",
        "bystander",
        "invlpgb",
        "threshold",
        "rollover",
        "paravirt",
        "hot",
        "iova",
    ] {
        let lines = all.lines().filter(|l| l.split_whitespace().next() == Some(name)).count();
        assert_eq!(lines, 1, "{name} in\n{all}");
    }
    let machines = out(&shootdown(&["list", "machines"]));
    assert!(machines.contains("zen4") && !machines.contains("linux-5.13"));
}

#[test]
fn list_without_a_kind_fits_on_a_screen() {
    let text = out(&shootdown(&["list"]));
    assert!(text.lines().count() <= 40, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for kind in ["machines", "policies", "experiments", "checks", "invariants"] {
        let line = text.lines().find(|line| line.starts_with(kind)).expect("each kind has a line");
        let count: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(count >= 5, "{line}");
    }
}

#[test]
fn list_is_narrowed_by_names_and_patterns() {
    let text = out(&shootdown(&["list", "checks", "zoo/z0*"]));
    assert!(text.contains("zoo/z01-"), "{text}");
    assert!(text.lines().skip(1).all(|line| line.trim_start().starts_with("zoo/z0")), "{text}");
    refused(&["list", "policies", "linux-9.9"], &["linux-9.9", "linux-"]);
}

#[test]
fn tables_fit_and_say_what_they_leave_out() {
    let text = out(&shootdown(&["bench", "overlap", "--quick"]));
    assert!(text.lines().all(|line| line.chars().count() <= 140), "{text}");
    let tables = text.split("\n[1]").next().unwrap();
    assert!(tables.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(tables.contains("published [1]") && tables.contains("off by"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours in a pipe");
    let coloured = out(&shootdown(&["bench", "overlap", "--quick", "--color", "always"]));
    assert!(coloured.contains('\u{1b}'), "{coloured}");
}

#[test]
fn figures_come_as_csv_and_markdown_too() {
    let text = out(&shootdown(&["bench", "overlap", "--quick", "--format", "csv"]));
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let json: Value = serde_json::from_str(&out(&shootdown(&[
        "bench", "overlap", "--quick", "--format", "json",
    ])))
    .expect("one document");
    assert_eq!(rows.records().count(), json["rows"].as_array().unwrap().len());
    let text = out(&shootdown(&["bench", "overlap", "--quick", "--format", "markdown"]));
    assert!(text.starts_with("### overlap on") && text.contains("|--"), "{text}");
    refused(&["check", "litmus", "--format", "csv"], &["check", "csv", "JSON"]);
}

#[test]
fn results_that_cannot_be_written_are_an_error_and_a_closed_pipe_is_none() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let output = Command::new(env!("CARGO_BIN_EXE_shootdown"))
        .arg("list")
        .stdout(full)
        .output()
        .expect("the binary was built");
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("can't be written"), "{}", err(&output));

    let mut child = Command::new(env!("CARGO_BIN_EXE_shootdown"))
        .args(["list", "checks"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary was built");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
}

#[test]
fn shells_and_man_know_every_subcommand() {
    for shell in ["bash", "zsh", "fish"] {
        let text = out(&shootdown(&["completions", shell]));
        assert!(text.contains("shootdown") && text.contains("replay"), "{shell}: {text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(shootdown(&["man", pages.to_str().unwrap()]).status.success());
    for page in ["shootdown.1", "shootdown-replay.1", "shootdown-check.1"] {
        let text = std::fs::read_to_string(pages.join(page)).expect("a page for each");
        assert!(text.contains(".SH"), "{page}: {text}");
    }
    refused(&["man", "/proc/nowhere"], &["/proc/nowhere", "written"]);
}

#[test]
fn list_speaks_json() {
    let output = shootdown(&["list", "policies", "--format", "json"]);
    assert!(output.status.success());
    let value: Value = serde_json::from_str(&out(&output)).expect("one JSON document");
    let names: Vec<&str> =
        value.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "naive",
            "linux-4.13",
            "linux-4.14",
            "linux-5.13",
            "linux-6.15",
            "arm64-mainline",
            "shootdown",
            "sticky",
            "active",
            "trim",
            "omniscient"
        ]
    );
}

#[test]
fn help_teaches_with_examples_and_exit_codes() {
    for args in [&["--help"][..], &["bench", "--help"], &["list", "--help"]] {
        let output = shootdown(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        let text = out(&output);
        assert!(text.contains("Examples:"), "{args:?}");
        assert!(text.contains("--seed") && text.contains("--format"), "{args:?}");
    }
    assert!(out(&shootdown(&["--help"])).contains("Exit codes"));
}

#[test]
fn bench_json_follows_schema_1_and_repeats_exactly() {
    let args = ["bench", "pcid", "--quick", "--format", "json", "--seed", "7"];
    let first = shootdown(&args);
    assert!(first.status.success(), "{}", err(&first));
    assert_eq!(err(&first), "", "no progress in a pipe");
    let text = out(&first);
    let document: Value = serde_json::from_str(text.trim_end()).expect("one JSON document");
    assert_eq!(document["schema"], 1);
    assert_eq!(document["experiment"], "pcid");
    assert_eq!(document["machine"], "skylake-laptop");
    assert_eq!(document["seed"], 7);
    let keys: Vec<&String> = document.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 5, "{keys:?}");
    let rows = document["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        let row = row.as_object().unwrap();
        assert_eq!(row.len(), 8, "{row:?}");
        for text in ["policy", "workload", "metric", "unit"] {
            assert!(row[text].is_string(), "{row:?}");
        }
        assert!(row["cpus"].is_u64() && row["value"].is_number());
        assert!(row["published"].is_number() || row["published"].is_null());
        assert!(row["source"].is_string() || row["source"].is_null());
    }
    assert_eq!(out(&shootdown(&args)), text, "the same figures in a second run");
}
