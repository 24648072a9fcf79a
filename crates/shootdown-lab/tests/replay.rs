//! Replays of this repository's recordings: the oracle stays silent, the figures repeat, the
//! predictions hold, and bad input is refused.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use shootdown::policy::Policy;
use shootdown_lab::machines;
use shootdown_lab::recording::timeline::{Act, Timeline};
use shootdown_lab::replay::spread::spread;
use shootdown_lab::replay::{self, Recorded, Replayed};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name)
}

fn recorded(name: &str) -> Recorded {
    Recorded::open(&path(name)).expect("a sound recording")
}

fn run(timeline: &Timeline, machine: &str, policy: Policy, cpus: u32) -> Replayed {
    let profile = machines::find(machine).expect("built in");
    replay::run(timeline, &profile, policy, cpus, 1).expect("the oracle is silent")
}

/// Within so many percent.
fn near(value: u64, truth: u64, percent: u64) -> bool {
    value.abs_diff(truth) * 100 <= truth * percent
}

/// The policy of the recorded kernel's time predicts what it asked: exactly where processes share
/// nothing and whoever was asked was asked for standing in a set.
#[test]
fn predictions_hold() {
    for (name, percent) in [
        ("go-gc", 5),
        ("rustc", 5),
        ("unmap-stress", 5),
        ("sysbench-fileio-mmap", 5),
        ("make-j2", 0),
        ("sort-loop", 0),
    ] {
        let recorded = recorded(&format!("{name}.sdr"));
        let predicted = run(&recorded.timeline, "zen4-vm", Policy::LINUX_6_15, 2).interrupts();
        let truth = recorded.timeline.truth.remote_flushes;
        assert!(near(predicted, truth, percent), "{name}: {predicted} of {truth}");
        let traced = predicted + recorded.timeline.asked_while_switching();
        assert!(near(traced, truth, percent), "{name}: {traced} of {truth}");
    }
}

/// This project's policy does not ask those who merely stand in the set, and the oracle is silent.
#[test]
fn who_is_elsewhere_need_not_be_asked_for_freed_tables() {
    for name in ["make-j2.sdr", "sort-loop.sdr"] {
        let timeline = recorded(name).timeline;
        assert_eq!(run(&timeline, "zen4-vm", Policy::SHOOTDOWN, 2).interrupts(), 0, "{name}");
    }
}

#[test]
fn figures_repeat_and_policies_differ() {
    let timeline = recorded("rustc.sdr").timeline;
    let policies = [
        Policy::NAIVE,
        Policy::LINUX_4_13,
        Policy::LINUX_4_14,
        Policy::LINUX_6_15,
        Policy::SHOOTDOWN,
    ];
    let runs = policies.map(|policy| run(&timeline, "zen4-vm", policy, 2));
    let again = run(&timeline, "zen4-vm", Policy::SHOOTDOWN, 2);
    assert_eq!(runs[4].outcome, again.outcome);
    let computing = runs[0].computing;
    assert!(runs.iter().all(|run| run.interrupts() <= runs[0].interrupts()));
    assert!(runs[4].spent() < runs[0].spent());
    assert!(computing > shootdown_machine::Time::ZERO);
}

#[test]
fn s1_to_s5_copies_on_more_cpus_do_the_same_things_elsewhere() {
    let timeline = recorded("rustc.sdr").timeline;
    let flushes = |t: &Timeline| {
        let own = |act: &Act| match act {
            Act::Flush { space, .. } => t.spaces[space.0 as usize],
            _ => false,
        };
        t.steps.iter().filter(|step| own(&step.act)).count()
    };
    let copies = spread(&timeline, 8, 3);
    assert_eq!(flushes(&copies), 3 * flushes(&timeline));
    assert_eq!(copies.spaces.len(), 3 * timeline.spaces.len());
    assert_eq!(copies, spread(&timeline, 8, 3));
    assert!(run(&copies, "zen4", Policy::SHOOTDOWN, 8).interrupts() > 0);
    // On one CPU there is nobody to ask.
    assert_eq!(run(&spread(&timeline, 1, 1), "zen4", Policy::SHOOTDOWN, 1).interrupts(), 0);
}

fn shootdown(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_shootdown"))
        .args(arguments)
        .output()
        .expect("the command runs")
}

fn refused(arguments: &[&str]) -> String {
    let output = shootdown(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "one sentence: {text}");
    text
}

#[test]
fn bad_input_is_refused_with_its_place() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| dir.path().join(name).display().to_string();
    let sound = std::fs::read(path("rustc.sdr")).expect("readable");
    let sound_path = path("rustc.sdr").display().to_string();

    std::fs::write(file("cut.sdr"), &sound[..1000]).expect("writable");
    let text = refused(&["replay", &file("cut.sdr")]);
    assert!(text.contains("cut.sdr: byte 1000: the file ends here; expected"), "{text}");

    let mut damaged = sound;
    damaged[5000] ^= 1;
    std::fs::write(file("damaged.sdr"), damaged).expect("writable");
    assert!(refused(&["replay", &file("damaged.sdr")]).contains("damaged: checksum"));

    std::fs::write(file("foreign.sdr"), "Dear Sir or Madam").expect("writable");
    let text = refused(&["replay", &file("foreign.sdr")]);
    assert!(text.contains("foreign.sdr: byte 0: not a shootdown recording"), "{text}");
    assert!(refused(&["replay", &file("none.sdr")]).contains("none.sdr"));

    let text = refused(&["import", "strace", &file("foreign.sdr"), "-o", &file("out.sdr")]);
    assert!(text.contains("foreign.sdr: line 1: expected"), "{text}");
    assert!(!dir.path().join("out.sdr").exists(), "nothing half-written");

    assert!(refused(&["replay", &sound_path, "--policy", "linux-5.31"]).contains("linux-5.13"));
    assert!(refused(&["replay", &sound_path, "--machine", "zen"]).contains("zen4"));
    assert!(refused(&["replay", &sound_path, "--cpus", "0"]).contains("--cpus 0"));
    assert!(refused(&["replay", &sound_path, "--copies", "0"]).contains("--copies 0"));
    let text = refused(&["record", "-o", &file("no/such/dir.sdr"), "--", "true"]);
    assert!(text.contains("dir.sdr"), "{text}");
}
