use proptest::prelude::*;

use super::*;
use crate::hunt::schedule::toy::{Op, Toy, dekker, locked_update, lost_update};
use crate::hunt::{Candidate, Decision, Footprint, Point};

const ALL: [Reduction; 4] = [
    Reduction::NONE,
    Reduction { cache: true, sleep: false },
    Reduction { cache: false, sleep: true },
    Reduction::FULL,
];

const COUNT: Limits = Limits { states: 1 << 20, runs: 1 << 20, time: None, first_violation: false };

fn explore(toy: &Toy, reduction: Reduction) -> Report {
    exhaustive(COUNT, reduction, &mut |c| toy.run(c), &mut |_, _| {})
}

/// Runs that came to an end, violations included.
fn ended(toy: &Toy, reduction: Reduction) -> u64 {
    let mut ended = 0;
    exhaustive(COUNT, reduction, &mut |c| toy.run(c), &mut |_, outcome| {
        ended += u64::from(outcome.end != End::Abandoned);
    });
    ended
}

#[test]
fn the_number_of_schedules_is_that_of_the_binomials() {
    let own = |w| vec![Op::Set(w, 1); 3];
    let (a, b, c) = (own(0), own(1), own(2));
    for alone in [false, true] {
        let two = Toy::new(&[&a, &b]).asks_alone(alone);
        let report = explore(&two, Reduction::NONE);
        // 6 over 3; states: those with a choice, of (3 + 1)^2.
        assert_eq!((report.runs, report.complete()), (20, true));
        assert_eq!(report.states, if alone { 15 } else { 9 });
        let three = Toy::new(&[&a, &b, &c]).asks_alone(alone);
        assert_eq!(explore(&three, Reduction::NONE).runs, 1680, "9! / (3! 3! 3!)");
        let cached = explore(&three, ALL[1]);
        // Of (3 + 1)^3: without the last one, and without the 3 * 3 in which one thread only is
        // left.
        assert_eq!(cached.states, if alone { 63 } else { 63 - 9 });
        let (slept, full) = (ended(&three, ALL[2]), ended(&three, Reduction::FULL));
        if alone {
            assert_eq!((slept, full), (1, 1), "independent threads: one order is enough");
        } else {
            // A sleeper that may have been left alone is woken.
            assert!(slept < 1680 / 4 && full < 20, "{slept} {full}");
        }
    }
}

#[test]
fn lost_updates_are_counted_exactly() {
    let all = explore(&lost_update(), Reduction::NONE);
    // Only if one thread is done before the other begins nothing is lost.
    assert_eq!((all.runs, all.violations, all.finals), (20, 18, 2));
    for reduction in ALL {
        let report = explore(&lost_update(), reduction);
        assert!(report.complete() && report.violations > 0 && report.finals == 2, "{report}");
        let report = explore(&locked_update(), reduction);
        assert!(report.complete() && report.violations == 0 && report.finals > 0, "{report}");
    }
}

#[test]
fn buffered_stores_are_hidden_until_a_fence() {
    for reduction in ALL {
        let report = explore(&dekker(false), reduction);
        assert!(report.complete() && report.violations > 0, "{report}");
        let report = explore(&dekker(true), reduction);
        // 1 0, 0 1 and 1 1.
        assert!(report.complete() && report.violations == 0 && report.finals == 3, "{report}");
    }
}

#[test]
fn the_first_violation_ends_it_and_replays() {
    let limits = Limits { first_violation: true, ..COUNT };
    let toy = lost_update();
    let report = exhaustive(limits, Reduction::FULL, &mut |c| toy.run(c), &mut |_, _| {});
    assert_eq!((report.ended, report.violations, report.complete()), (Ended::Violation, 1, false));
    let found = report.found.unwrap();
    let mut replay = crate::hunt::schedule::Replay::new(&found.outcome.choices);
    assert_eq!(toy.run(&mut replay), found.outcome);
}

#[test]
fn a_loop_that_waits_is_explored_in_full() {
    let waits = [Op::Load(0, 0), Op::While(0, 0, 0), Op::Set(1, 1)];
    let sets = [Op::Add(0, 1), Op::Set(0, 1), Op::Load(1, 1)];
    let toy = Toy::new(&[&waits, &sets]).asks_alone(true);
    let (cached, full) = (explore(&toy, ALL[1]), explore(&toy, Reduction::FULL));
    assert!(cached.complete() && full.complete(), "{cached}\n{full}");
    assert_eq!((cached.finals, cached.digest), (full.finals, full.digest));
    assert_eq!(full.finals, 2);
    let endless = explore(&toy, Reduction { cache: false, sleep: true });
    assert!(!endless.complete(), "{endless}");
}

#[test]
fn no_limit_is_a_pass() {
    let toy = lost_update();
    let cases = [
        (Limits { states: 3, ..COUNT }, Ended::States),
        (Limits { runs: 3, ..COUNT }, Ended::Runs),
        (Limits { time: Some(Duration::ZERO), ..COUNT }, Ended::Time),
    ];
    for (limits, ended) in cases {
        let report = exhaustive(limits, Reduction::FULL, &mut |c| toy.run(c), &mut |_, _| {});
        assert_eq!((report.ended, report.complete()), (ended, false));
    }
    let short = Toy { most_steps: 5, ..lost_update() };
    let report = explore(&short, Reduction::FULL);
    assert_eq!((report.ended, report.complete()), (Ended::Cut, false));
}

#[test]
fn an_executor_that_breaks_its_word_is_noticed() {
    let mut runs = 0;
    let report = exhaustive(
        COUNT,
        Reduction::FULL,
        &mut |c| {
            runs += 1;
            if runs % 3 == 0 { locked_update().run(c) } else { lost_update().run(c) }
        },
        &mut |_, _| {},
    );
    assert_eq!(report.ended, Ended::Diverged, "{report}");

    struct Blind<'a>(&'a mut dyn Chooser);
    impl Chooser for Blind<'_> {
        fn choose(&mut self, point: &Point<'_>) -> Decision {
            match point {
                Point::Next { candidates, .. } => {
                    self.0.choose(&Point::Next { candidates, state: 0 })
                }
                other => self.0.choose(other),
            }
        }
    }
    let mut run = |c: &mut dyn Chooser| lost_update().run(&mut Blind(c));
    let report = exhaustive(COUNT, Reduction::FULL, &mut run, &mut |_, _| {});
    assert_eq!(report.ended, Ended::NoState);
}

/// Says that no step touches anything.
struct Lying<'a>(&'a mut dyn Chooser);

impl Chooser for Lying<'_> {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        let Point::Next { candidates, state } = point else { return self.0.choose(point) };
        let lies: Vec<Candidate> = candidates
            .iter()
            .map(|c| {
                let footprint = Footprint { location: 0, write: false, ..c.footprint };
                Candidate { footprint, ..*c }
            })
            .collect();
        self.0.choose(&Point::Next { candidates: &lies, state: *state })
    }

    fn wants_state(&self) -> bool {
        true
    }
}

#[test]
fn footprints_that_lie_lose_states_and_are_noticed_where_they_disable_a_step() {
    let toy = lost_update().asks_alone(true);
    let lied = exhaustive(COUNT, Reduction::FULL, &mut |c| toy.run(&mut Lying(c)), &mut |_, _| {});
    assert_eq!(lied.violations, 0, "the reduction relies on footprints");
    // Each takes a lock that the other wants: one step disables the other.
    let locks = [Op::Lock(0), Op::Unlock(0)];
    let toy = Toy::new(&[&locks, &locks, &[Op::Add(0, 1)]]).asks_alone(true);
    let mut run = |c: &mut dyn Chooser| toy.run(&mut Lying(c));
    let lied = exhaustive(COUNT, Reduction::FULL, &mut run, &mut |_, _| {});
    assert!(lied.irregular > 0 && !lied.complete(), "{lied}");
    assert!(explore(&toy, Reduction::FULL).complete());
}

#[test]
fn many_cpus_are_refused() {
    let thread = [Op::Set(0, 1)];
    let threads: Vec<&[Op]> = (0..30).map(|_| &thread[..]).collect();
    let report = explore(&Toy::new(&threads), Reduction::FULL);
    assert_eq!(report.ended, Ended::TooWide);
}

#[test]
fn everything_goes_to_the_watcher_in_order() {
    let toy = lost_update();
    let mut runs = Vec::new();
    let report = exhaustive(COUNT, Reduction::FULL, &mut |c| toy.run(c), &mut |report, _| {
        runs.push(report.runs);
    });
    assert_eq!(runs, (1..=report.runs).collect::<Vec<_>>());
}

fn ops(loops: bool) -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..2usize, 0..3u8).prop_map(|(r, w)| Op::Load(r, w)),
        1 => (0..2usize, 0..3u8).prop_map(|(r, w)| Op::LoadOld(r, w)),
        2 => (0..3u8, 0..2usize).prop_map(|(w, r)| Op::Store(w, r)),
        3 => (0..3u8, 1..3u8).prop_map(|(w, v)| Op::Set(w, v)),
        1 => (0..2usize).prop_map(|r| Op::Add(r, 1)),
        1 => Just(Op::Fence),
        2 => Just(Op::Lock(3)),
        2 => Just(Op::Unlock(3)),
        1 => (0..2u8).prop_map(Op::Kick),
        1 => (0..2usize).prop_map(Op::Faulty),
        1 => (0..2usize, 0..3u8).prop_map(|(r, v)| Op::Never(r, v)),
        1 => (0..2usize, 0..2u8, 0..2usize).prop_map(move |(r, v, at)| {
            if loops { Op::While(r, v, at) } else { Op::Load(r, at as u8) }
        }),
    ]
}

fn toys(loops: bool, longest: usize) -> impl Strategy<Value = Toy> {
    let thread = || proptest::collection::vec(ops(loops), 1..=longest);
    (proptest::collection::vec(thread(), 2..=3), any::<[bool; 4]>()).prop_map(
        |(threads, [buffers, alone, asks_often, prompt])| {
            let threads: Vec<&[Op]> = threads.iter().map(Vec::as_slice).collect();
            let toy = Toy { asks_alone: alone, asks_often, prompt, ..Toy::new(&threads) };
            if buffers { toy.buffers() } else { toy }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Rule F9: a reduction is validated by exploring without it.
    #[test]
    fn reduction_loses_no_final_state(toy in toys(false, 4)) {
        let limits = Limits { runs: 5_000, ..COUNT };
        let explore = |r| exhaustive(limits, r, &mut |c| toy.run(c), &mut |_, _| {});
        let all = explore(Reduction::NONE);
        prop_assume!(all.complete());
        for reduction in &ALL[1..] {
            let reduced = explore(*reduction);
            prop_assert!(reduced.complete(), "{:?}: {}", reduction, reduced);
            prop_assert_eq!((reduced.finals, reduced.digest), (all.finals, all.digest));
            prop_assert_eq!(reduced.violations > 0, all.violations > 0);
            prop_assert!(reduced.runs <= all.runs);
        }
        // Neither alone nor together do they lose a state on the way.
        prop_assert_eq!(explore(ALL[1]).states, all.states);
        prop_assert_eq!(explore(ALL[2]).states, all.states);
        prop_assert_eq!(explore(Reduction::FULL).states, all.states);
        prop_assert!(explore(Reduction::FULL).transitions <= explore(ALL[1]).transitions);
    }

    #[test]
    fn reduction_loses_no_state_where_there_are_loops(toy in toys(true, 6)) {
        let limits = Limits { states: 600, runs: 6_000, ..COUNT };
        let explore = |r| exhaustive(limits, r, &mut |c| toy.run(c), &mut |_, _| {});
        let (cached, full) = (explore(ALL[1]), explore(Reduction::FULL));
        prop_assume!(cached.complete());
        prop_assert!(full.complete(), "{}", full);
        prop_assert_eq!((full.finals, full.digest, full.states), (cached.finals, cached.digest, cached.states));
        prop_assert_eq!(full.violations > 0, cached.violations > 0);
        prop_assert_eq!(&explore(Reduction::FULL), &full);
    }
}
