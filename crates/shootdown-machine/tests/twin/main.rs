//! A second explorer of litmus tests, with which ours must agree on every count.
//!
//! The machine is written once more, from the rules, in another representation (x86-64 with a queue
//! of stores and a program counter, the others with one status per instruction), and searched by
//! `stateright`. It shares no code with the library's `hostile` and `litmus` modules.
//!
//! Compared are the exact number of distinct states and the set of all possible ends; on three
//! configurations of some hundred to some thousand states, and on random programs. Twins with one
//! rule changed must disagree.

mod inorder;
mod memory;
mod program;
mod window;

use std::collections::BTreeSet;

use shootdown_machine::litmus::{Features, Options, Test, explore};
use stateright::{Checker, Model};

use inorder::InOrder;
use program::{Arch, Instr, Program};
use window::Window;

/// Distinct states, and every way a run can end.
type Found = (usize, BTreeSet<String>);

fn ours(program: &Program) -> Found {
    let text = program.text();
    let test = Test::parse("twin", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let found = explore(&test, Features::default(), &Options::default()).expect("small enough");
    (found.states, found.finals)
}

fn in_order(program: &Program, rules: inorder::Rules) -> Found {
    let checker = InOrder::new(program.clone(), rules).checker().spawn_bfs().join();
    checker.assert_properties();
    let ends = checker.model().ends.lock().expect("one thread").clone();
    (checker.unique_state_count(), ends)
}

fn window(program: &Program, rules: window::Rules) -> Found {
    let checker = Window::new(program.clone(), rules).checker().spawn_bfs().join();
    checker.assert_properties();
    let ends = checker.model().ends.lock().expect("one thread").clone();
    (checker.unique_state_count(), ends)
}

fn twin(program: &Program) -> Found {
    match program.arch {
        Arch::X86 => in_order(program, inorder::Rules::X86),
        arch => window(program, window::Rules::of(arch)),
    }
}

/// A shootdown by interrupt with a third CPU that knows nothing, under x86-TSO.
fn x86() -> Program {
    let invalidate = Instr::Invalidate { page: 0, broadcast: false };
    Program {
        arch: Arch::X86,
        vars: 2,
        frames: 2,
        pages: vec![Some(0), Some(0)],
        cpus: vec![
            vec![
                Instr::StoreEntry(0, None),
                invalidate,
                Instr::Interrupt(1),
                Instr::LoadVar(0),
                Instr::StorePage(1, 9),
                Instr::StoreEntry(0, Some(1)),
                Instr::LoadPage(0),
            ],
            vec![
                Instr::LoadPage(0),
                Instr::TakeInterrupt,
                invalidate,
                Instr::StoreVar(0, 1),
                Instr::LoadPage(0),
            ],
            vec![Instr::LoadVar(0), Instr::StoreVar(1, 1), Instr::LoadPage(0)],
        ],
    }
}

/// Break-before-make with a broadcast TLBI; a reader that is told too early, and one that is not
/// told and has two names for the frame.
fn arm() -> Program {
    Program {
        arch: Arch::Arm,
        vars: 1,
        frames: 2,
        pages: vec![Some(0), Some(0)],
        cpus: vec![
            vec![
                Instr::StoreEntry(0, None),
                Instr::Sync,
                Instr::StoreVar(0, 1),
                Instr::Invalidate { page: 0, broadcast: true },
                Instr::Sync,
                Instr::StoreEntry(0, Some(1)),
            ],
            vec![Instr::LoadVar(0), Instr::Sync, Instr::Context, Instr::LoadPage(0)],
            vec![Instr::StorePage(0, 7), Instr::LoadPage(1), Instr::LoadPage(0)],
        ],
    }
}

/// Loads of one word that pass each other, beside a store to it.
fn arm_loads() -> Program {
    let load = Instr::LoadPage(0);
    let cpus = vec![vec![load, load, Instr::LoadVar(0)], vec![Instr::StorePage(0, 7)]];
    Program { arch: Arch::Arm, vars: 1, frames: 1, pages: vec![Some(0)], cpus }
}

/// A mapping that appears, a fence on the CPU that makes it, and readers that may remember its
/// absence.
fn riscv() -> Program {
    Program {
        arch: Arch::Riscv,
        vars: 1,
        frames: 2,
        pages: vec![None, Some(0)],
        cpus: vec![
            vec![
                Instr::StoreEntry(0, Some(1)),
                Instr::Invalidate { page: 0, broadcast: false },
                Instr::StorePage(0, 6),
                Instr::Fence,
                Instr::StoreVar(0, 1),
            ],
            vec![
                Instr::LoadVar(0),
                Instr::Fence,
                Instr::Invalidate { page: 0, broadcast: false },
                Instr::LoadPage(0),
                Instr::LoadPage(1),
            ],
            vec![Instr::LoadPage(0), Instr::Fence, Instr::LoadVar(0)],
        ],
    }
}

fn agree(program: &Program) -> usize {
    let (ours, twins) = (ours(program), twin(program));
    assert_eq!(ours.1, twins.1, "ends differ\n{}", program.text());
    assert_eq!(ours.0, twins.0, "states differ\n{}", program.text());
    ours.0
}

#[test]
fn both_explorers_count_the_same_states_of_three_configurations() {
    let counts = [x86(), arm(), riscv()].map(|program| agree(&program));
    assert_eq!(counts, [10_369, 3211, 1099], "the figures in docs/src/second-opinions.md");
}

#[test]
fn both_explorers_agree_on_random_programs() {
    for arch in [Arch::X86, Arch::Arm, Arch::Riscv] {
        let states: usize = (0..1000).map(|seed| agree(&Program::random(arch, seed))).sum();
        assert!(states > 40_000, "{arch:?}: only {states} states");
    }
}

/// A comparison that cannot fail would prove nothing: each changed rule must change the count.
#[test]
fn a_twin_with_one_rule_changed_disagrees() {
    use inorder::Rules as X86Rules;
    use memory::Caching;

    let kind = |caching| Caching { retains: false, ..caching };
    let (program, right) = (x86(), X86Rules::X86);
    let states = ours(&program).0;
    for wrong in [
        X86Rules { caching: kind(right.caching), ..right },
        X86Rules { caching: Caching { absent: true, ..right.caching }, ..right },
        X86Rules { invlpg_serializes: false, ..right },
        X86Rules { walks_queue: false, ..right },
    ] {
        assert_ne!(in_order(&program, wrong).0, states, "{wrong:?}");
    }
    // What a fault forgets, a program that ends there can't tell in every configuration.
    let wrong = X86Rules { faults_forget: false, ..right };
    let random = |seed| Program::random(Arch::X86, seed);
    assert!((0..1000).any(|seed| in_order(&random(seed), wrong).0 != ours(&random(seed)).0));
    for (program, wrong) in [
        (arm(), |right: window::Rules| window::Rules { sync_waits_for_others: false, ..right }),
        (arm(), |right| window::Rules { coherent: false, ..right }),
        (arm(), |right| window::Rules { forwards: false, ..right }),
        (arm(), |right| window::Rules { faults_taken: true, ..right }),
        (arm_loads(), |right| window::Rules { loads_pass: false, ..right }),
        (arm(), |right| window::Rules {
            caching: Caching { retains: false, ..right.caching },
            ..right
        }),
        (riscv(), |right| window::Rules {
            caching: Caching { absent: false, ..right.caching },
            ..right
        }),
    ] as [(Program, fn(window::Rules) -> window::Rules); 7]
    {
        let wrong = wrong(window::Rules::of(program.arch));
        assert_ne!(window(&program, wrong).0, ours(&program).0, "{wrong:?}");
    }
}
