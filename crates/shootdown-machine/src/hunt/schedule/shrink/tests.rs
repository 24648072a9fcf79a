use proptest::prelude::*;

use super::*;
use crate::hunt::schedule::toy::{Op, Toy, dekker, handshake, lost_update};
use crate::hunt::schedule::{
    Effort, Limits, Reduction, Replay, Strategy as Schedules, Tuning, exhaustive, search_here,
};

fn failing(toy: &Toy, seed: u64) -> Outcome {
    let strategy = Schedules::tuned(seed, Tuning::EVEN);
    let mut run = |c: &mut dyn Chooser| toy.run(c);
    let searched = search_here(&strategy, Effort::runs(100_000), &mut run, &mut |_, _| {});
    searched.found.expect("a toy with a bug fails some time").outcome
}

fn shrunk(toy: &Toy, failure: &Outcome) -> Shrunk {
    shrink(failure, 10_000, &mut |c| toy.run(c), &same_promise(failure))
}

/// The lowest cost of all failing schedules.
fn least(toy: &Toy, failure: &Outcome) -> (usize, u64, u64) {
    let fails = same_promise(failure);
    let mut least = (usize::MAX, 0, 0);
    let limits = Limits { first_violation: false, ..Limits::default() };
    let mut watch = |_: &_, outcome: &Outcome| {
        if fails(outcome) {
            least = least.min(cost(outcome));
        }
    };
    exhaustive(limits, Reduction::NONE, &mut |c| toy.run(c), &mut watch);
    least
}

#[test]
fn a_lost_update_is_one_switch() {
    for seed in 0..50 {
        let toy = lost_update();
        let failure = failing(&toy, seed);
        let shrunk = shrunk(&toy, &failure);
        assert_eq!((shrunk.deviations.1, shrunk.minimal), (1, true), "{shrunk:?}");
        assert_eq!(toy.run(&mut Replay::new(&shrunk.outcome.choices)).end, failure.end);
    }
}

#[test]
fn buffered_stores_need_nothing_special() {
    for seed in 0..50 {
        let toy = dekker(false);
        let shrunk = shrunk(&toy, &failing(&toy, seed));
        assert!(shrunk.outcome.choices.is_empty() && shrunk.minimal, "{shrunk:?}");
    }
}

#[test]
fn a_handshake_keeps_the_switches_that_it_needs() {
    for depth in 2..=4 {
        // Whoever is done lets the other go without being switched away from.
        let switches = depth - 1;
        let toy = handshake(depth, 8);
        for seed in 0..10 {
            let shrunk = shrunk(&toy, &failing(&toy, seed));
            assert_eq!((shrunk.deviations.1, shrunk.minimal), (switches, true), "{shrunk:?}");
        }
    }
}

#[test]
fn the_same_promise_stays_broken() {
    // Register 1 of thread 0 says which of two promises is broken; the second is easier to break.
    let reads = [Op::Load(0, 0), Op::Never(0, 2), Op::Load(0, 1), Op::Add(1, 1)];
    let sets = [Op::Set(0, 2), Op::Set(1, 1), Op::Set(0, 0)];
    let toy = Toy::new(&[&reads, &sets]).wrong(|_, r| r[0][0] == 0);
    let limits = Limits { first_violation: false, ..Limits::default() };
    let mut failures: Vec<Outcome> = Vec::new();
    exhaustive(limits, Reduction::NONE, &mut |c| toy.run(c), &mut |_, outcome| {
        if outcome.end.is_failure() {
            failures.push(outcome.clone());
        }
    });
    let ends: Vec<_> = failures.iter().map(|f| shrunk(&toy, f).outcome.end).collect();
    assert!(failures.iter().map(|f| &f.end).eq(&ends));
    ends.iter().find(|e| **e != ends[0]).expect("both promises are broken by some schedule");
}

#[test]
fn what_does_not_fail_again_is_left_alone() {
    let toy = lost_update();
    let failure = failing(&toy, 1);
    let other = Toy::new(&[&[Op::Set(0, 1)], &[Op::Set(0, 2)]]);
    let shrunk = shrink(&failure, 100, &mut |c| other.run(c), &same_promise(&failure));
    assert_eq!((shrunk.runs, shrunk.minimal), (1, false));
    assert_eq!(deviations(&shrunk.outcome.choices), deviations(&failure.choices));
}

#[test]
fn runs_are_bounded() {
    let toy = handshake(4, 8);
    let failure = failing(&toy, 3);
    for most in [0, 1, 2, 5, 20] {
        let shrunk = shrink(&failure, most, &mut |c| toy.run(c), &same_promise(&failure));
        // One more sees the moves.
        assert!(shrunk.runs <= most.max(1) && !shrunk.minimal, "{most}: {}", shrunk.runs);
        assert!(cost(&shrunk.outcome) <= cost(&failure));
        assert!(shrunk.outcome.end.is_failure());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Not a theorem (finding the shortest schedule is hard), but nearly so on systems of this size.
    #[test]
    fn of_small_systems_about_the_shortest_schedule_is_found(
        own in 0..3usize, other in 0..3usize, seed in 0..1000u64,
    ) {
        let add = |pad| {
            let mut ops = vec![Op::Load(0, 0), Op::Add(0, 1), Op::Store(0, 0)];
            ops.extend(vec![Op::Set(2, 1); pad]);
            ops
        };
        let toy = Toy::new(&[&add(own), &add(other), &[Op::Set(1, 1), Op::LoadOld(0, 1)]]);
        let toy = toy.wrong(|words, r| words[0] != 2 && r[2][0] == 0);
        let failure = failing(&toy, seed);
        let shrunk = shrunk(&toy, &failure);
        prop_assert!(shrunk.minimal);
        let (least, found) = (least(&toy, &failure), cost(&shrunk.outcome));
        prop_assert!(found.0 <= least.0 + 1 && least <= found, "{:?} {:?}", least, found);
    }
}
