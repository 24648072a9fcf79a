use std::collections::BTreeSet;

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::dma::DmaMutant;
use shootdown_machine::hunt::hw;
use shootdown_machine::oracle::Invariant;

use super::scene::Scene;
use super::*;

fn run(missing: &Missing, runs: u64) -> CheckResult {
    let settings = Settings { runs: Some(runs), ..Settings::default() };
    missing.run(&settings, &Progress::new("test", 1))
}

fn in_scene(mutant: Mutant, scene: &'static Scene) -> Missing {
    let home = Home::Scene(Staged::of(Stage::new(scene, "mutants/test")));
    Missing { mutant: mutant.into(), name: "mutants/test".to_owned(), home }
}

#[test]
fn every_mutant_has_one_home() {
    for mutant in Mutant::ALL {
        let scenes = scenes::all().filter(|s| s.kills.contains(mutant)).count();
        let elsewhere = usize::from(elsewhere::of(*mutant).is_some());
        let argued = usize::from(mutant.equivalent().is_some());
        assert_eq!(scenes + elsewhere + argued, 1, "{mutant:?}");
    }
}

#[test]
fn every_mutant_of_devices_has_one_home() {
    for mutant in DmaMutant::ALL {
        let scenes = devices::ALL.iter().filter(|s| s.kills.contains(mutant)).count();
        assert!(scenes <= 1, "{mutant:?} has {scenes} scenes");
        let missing = Missing::new((*mutant).into());
        assert!(!matches!(missing.home, Home::Nowhere), "{mutant:?}");
    }
}

#[test]
fn scenes_have_names_of_their_own_and_something_to_kill() {
    let names: BTreeSet<_> = scenes::all().map(|s| s.name).collect();
    assert_eq!(names.len(), scenes::all().count());
    for scene in scenes::all() {
        assert!(!scene.kills.is_empty() && !scene.line.is_empty(), "{}", scene.name);
    }
}

#[test]
fn a_mutant_that_is_killed_says_where_and_shows_how() {
    let result = run(&Missing::new(Mutant::NoWait.into()), 100);
    assert_eq!(result.verdict, Verdict::Pass, "{}", result.observed);
    assert!(result.observed.starts_with("killed in `taken`: revocation broken"));
    let example = result.example.expect("shown");
    assert!(example.timeline.contains("two CPUs use pages"), "{}", example.timeline);
    assert!(example.replay.is_some_and(|code| code.contains("no-wait")));
}

#[test]
fn seeds_say_how_many_schedules_a_kill_takes() {
    let settings = Settings { seeds: Some(3), ..Settings::default() };
    let result = Missing::new(Mutant::NoWait.into()).run(&settings, &Progress::new("test", 1));
    assert_eq!(result.verdict, Verdict::Pass, "{}", result.observed);
    assert!(result.observed.contains(" schedules (median of 3 seeds), "), "{}", result.observed);
    let mut kill = Kill::default();
    [5, 1, 9, 3].into_iter().for_each(|schedules| kill.takes(schedules));
    assert_eq!(kill.to_string(), "5 schedules (median of 4 seeds), 9 at most");
}

#[test]
fn a_kill_that_takes_more_than_a_tenth_of_the_schedules_fails() {
    let scene = scenes::all().find(|s| s.name == "taken").unwrap();
    let short: &Scene = Box::leak(Box::new(Scene { runs: 9, ..*scene }));
    let missing = in_scene(Mutant::NoWait, short);
    let hunted = |seeds| {
        let settings = Settings { runs: Some(100), seeds, ..Settings::default() };
        missing.run(&settings, &Progress::new("test", 1))
    };
    assert_eq!(hunted(None).verdict, Verdict::Pass, "nobody has asked");
    let result = hunted(Some(1));
    assert_eq!(result.verdict, Verdict::Fail);
    assert!(result.observed.contains(" schedules (more than 0); "), "{}", result.observed);
}

#[test]
fn a_survivor_fails_and_says_whether_its_step_was_reached() {
    let scene = |name| scenes::all().find(|s| s.name == name).unwrap();
    let vain = run(&in_scene(Mutant::TreeReadOnce, scene("names")), 3);
    assert_eq!(vain.verdict, Verdict::Fail);
    assert_eq!(vain.observed, "survives 3 schedules of `names`, which never come by the step");
    // A single CPU misses no fence.
    let reached = run(&in_scene(Mutant::SwitchWithoutFence, scene("names")), 3);
    assert_eq!(reached.verdict, Verdict::Fail);
    assert_eq!(reached.observed, "survives 3 schedules of `names`");
}

#[test]
fn a_scene_that_breaks_by_itself_kills_nothing() {
    static BROKEN: Scene =
        Scene::new("broken", "a promise is broken whatever is missing", 1, |_| {
            hw::violation(Invariant::Progress, "always".to_owned())
        });
    let result = run(&in_scene(Mutant::NoWait, &BROKEN), 3);
    assert_eq!(result.verdict, Verdict::Fail);
    assert_eq!(result.observed, "with nothing missing: progress broken in `broken`");
}

#[test]
fn a_step_that_matters_is_not_believed_to_be_equivalent() {
    let result = Missing::new(Mutant::SlotTrusts.into()).argued("It is not.", &Settings::default());
    assert_eq!(result.verdict, Verdict::Fail);
    assert!(result.observed.starts_with("master-invariant broken in `"), "{}", result.observed);
}

/// The book has a row for each scene and for each argument. What is missing is what to write there.
#[test]
fn the_book_lists_the_scenes_and_the_arguments() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/model-checking.md");
    let page = std::fs::read_to_string(page).unwrap();
    let scenes = scenes::all().map(|s| {
        let kills: Vec<_> = s.kills.iter().map(|m| m.name()).collect();
        format!("| `{}` | {} | {} |", s.name, s.line, kills.join(", "))
    });
    let devices = devices::ALL.iter().map(|s| {
        let kills: Vec<_> = s.kills.iter().map(|m| m.name()).collect();
        format!("| `{}` | {}: `{}` | {} |", s.name, s.line, s.program, kills.join(", "))
    });
    let arguments = Mutant::ALL.iter().filter_map(|m| {
        let because = m.equivalent()?;
        Some(format!("| `{}` | {because} |", m.name()))
    });
    let missing: Vec<_> = scenes
        .chain(devices)
        .chain(arguments)
        .filter(|row| !page.lines().any(|l| l == row))
        .collect();
    assert!(missing.is_empty(), "rows that the book lacks:\n{}", missing.join("\n"));
}

#[test]
fn the_summary_counts_and_names_survivors() {
    let entry = |mutant: Mutant, verdict| {
        let name = format!("mutants/{}", mutant.name());
        (name, Kind::Mutant.name(), CheckResult::new("", "", verdict))
    };
    let results = [
        entry(Mutant::NoWait, Verdict::Pass),
        entry(Mutant::NoAck, Verdict::Fail),
        entry(Mutant::TreeForwardsNothing, Verdict::Pass),
        entry(Mutant::TablesPendingRelaxed, Verdict::Pass),
        (
            "mutants/no-local-work".to_owned(),
            Kind::Mutant.name(),
            CheckResult::new("", "killed in `x`: after 99 schedules (more than 1)", Verdict::Fail),
        ),
    ];
    assert_eq!(
        summary(&results).unwrap(),
        "mutants: 2 of 4 killed, 1 of them by the model checker; 1 argued to be equivalent\n\
         survivor: no-ack (respond.rs: catch_up): The responder catches up and does not say so.\n\
         killed late: no-local-work (flush/notify.rs: local_work): The initiator does no local work."
    );
    assert_eq!(summary(&[]), None);
}
