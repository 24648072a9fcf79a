use std::sync::atomic::AtomicUsize;

use super::*;
use crate::hunt::schedule::toy::{Toy, dekker, handshake, locked_update};
use crate::hunt::schedule::{decode, encode};

fn on(threads: usize, strategy: &Strategy, toy: &Toy, runs: u64) -> (Searched, Vec<u64>) {
    let mut seen = Vec::new();
    let effort = Effort { threads, ..Effort::runs(runs) };
    let make = || |c: &mut dyn Chooser| toy.run(c);
    let searched = search(strategy, effort, make, |run, _| seen.push(run));
    (searched, seen)
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let strategies = [
        Strategy::random(7),
        Strategy::tuned(7, Tuning::EVEN),
        Strategy::pct(7, 3, 20),
        Strategy::random(7).freezing(Freezing::USUAL),
    ];
    for strategy in &strategies {
        for toy in [handshake(3, 4), locked_update()] {
            let one = on(1, strategy, &toy, 3000);
            assert_eq!(one.1, (0..one.0.runs).collect::<Vec<_>>());
            for threads in [2, 3, 7] {
                assert_eq!(on(threads, strategy, &toy, 3000), one);
            }
            let mut run = |c: &mut dyn Chooser| toy.run(c);
            assert_eq!(search_here(strategy, Effort::runs(3000), &mut run, &mut |_, _| {}), one.0);
        }
    }
}

#[test]
fn the_failing_run_replays_from_its_number_and_from_its_line() {
    let toy = handshake(3, 4);
    let strategy = Strategy::random(1);
    let found = on(2, &strategy, &toy, 100_000).0.found.unwrap();
    assert_eq!(toy.run(&mut *strategy.chooser(found.run)), found.outcome);
    let line = encode(&found.outcome.choices);
    assert_eq!(toy.run(&mut Replay::new(&decode(&line).unwrap())), found.outcome);
    let again = Effort { first: found.run, ..Effort::runs(1) };
    let mut run = |c: &mut dyn Chooser| toy.run(c);
    assert_eq!(search_here(&strategy, again, &mut run, &mut |_, _| {}).found, Some(found));
}

#[test]
fn a_search_says_how_far_it_came() {
    let (whole, _) = on(2, &Strategy::random(1), &locked_update(), 100);
    assert_eq!((whole.runs, whole.cut, whole.found, whole.out_of_time), (100, 0, None, false));
    assert!(whole.steps >= 1000);
    let short = Toy { most_steps: 5, ..locked_update() };
    assert_eq!(on(2, &Strategy::random(1), &short, 100).0.cut, 100);
    for threads in [1, 2] {
        let effort = Effort { time: Some(Duration::ZERO), threads, ..Effort::runs(100) };
        let make = || |c: &mut dyn Chooser| short.run(c);
        let late = search(&Strategy::random(1), effort, make, |_, _| {});
        assert_eq!((late.runs, late.out_of_time), (0, true));
    }
}

#[test]
fn every_thread_makes_its_own() {
    let made = AtomicUsize::new(0);
    let effort = Effort { threads: 3, ..Effort::runs(10) };
    let toy = dekker(true);
    let make = || {
        made.fetch_add(1, Ordering::Relaxed);
        |c: &mut dyn Chooser| toy.run(c)
    };
    search(&Strategy::random(1), effort, make, |_, _| {});
    assert_eq!(made.into_inner(), 3);
}

#[test]
#[should_panic(expected = "a scoped thread panicked")]
fn a_panic_ends_the_search() {
    let effort = Effort { threads: 2, ..Effort::runs(u64::MAX) };
    let toy = locked_update();
    let runs = AtomicUsize::new(0);
    let make = || {
        |c: &mut dyn Chooser| {
            assert!(runs.fetch_add(1, Ordering::Relaxed) != 50, "planted");
            toy.run(c)
        }
    };
    search(&Strategy::random(1), effort, make, |_, _| {});
}

#[test]
fn the_length_is_that_of_the_longest_of_a_few_runs() {
    let length = Strategy::length_of(&mut |c| handshake(2, 10).run(c));
    assert!((10..=25).contains(&length), "{length}");
    assert_eq!(Strategy::length_of(&mut |c| Toy::new(&[&[]]).run(c)), 1);
}
