//! Large calls.

use shootdown::mutant::Mutant::*;
use shootdown::{Platform, Policy, call_on};
use shootdown_machine::hunt::hw;

use super::calls::set;
use super::{all_ran, all_ran_times, ran_here};
use crate::check::mutants::kit::{enter, go_offline, hear, kit, meet, tell, tree, user};
use crate::check::mutants::port::{self, Rig, Rules};
use crate::check::mutants::scene::Scene;

static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

const fn numbers(numbers: [u32; 8]) -> Rules {
    Rules { policy: &TREE, numbers, ..Rules::USUAL }
}

/// All of one group.
const GROUP: Rules = numbers([0, 1, 2, 3, 4, 5, 6, 7]);
/// Of two groups of one word.
const WORD: Rules = numbers([0, 1, 17, 2, 18, 3, 19, 4]);
/// Of the first and the last group of a word.
const ENDS: Rules = numbers([0, 1, 49, 2, 50, 3, 51, 4]);
/// Of two words.
const WORDS: Rules = numbers([0, 1, 65, 2, 66, 3, 67, 4]);

/// CPU 0 calls CPUs 1 and 2 twice.
fn twice(cpu: u8) {
    call_twice(cpu, &[1, 2]);
}

/// CPU 0 calls CPUs 1 to 3 twice.
fn three_twice(cpu: u8) {
    call_twice(cpu, &[1, 2, 3]);
}

fn call_twice(cpu: u8, others: &[usize]) {
    port::come_online();
    meet(others.len() as u64 + 1);
    if cpu != 0 {
        return;
    }
    for time in 1..=2 {
        call_on::<Rig, _>(&Rig::pin(), &set(others), &|_| ran_here()).expect("a task may call");
        all_ran_times(others, time);
    }
}

/// Two calls of two functions in the same place, while CPU 1 looks for work by itself.
fn looked_for(cpu: u8) {
    port::come_online();
    meet(3);
    if cpu == 0 {
        let targets = set(&[1, 2]);
        call_on::<Rig, _>(&Rig::pin(), &targets, &|_| ran_here()).expect("a task may call");
        call_on::<Rig, _>(&Rig::pin(), &targets, &|_| kit().cells[hw::this_cpu().index()].set(1))
            .expect("a task may call");
        for cpu in [1, 2] {
            assert!(kit().cells[cpu].get() == 1, "calls: acknowledged, and another function ran");
        }
    } else if cpu == 1 {
        looks();
    }
}

/// Looks for work now and then.
fn looks() {
    for _ in 0..3 {
        let _ = shootdown::poll::<Rig>(&Rig::pin());
    }
}

/// CPU 0 calls CPUs 1 and 2, then 2 and 3, in the same place; CPU 1 looks for work by itself.
fn moved_on(cpu: u8) {
    port::come_online();
    meet(4);
    if cpu == 0 {
        call_on::<Rig, _>(&Rig::pin(), &set(&[1, 2]), &|_| ran_here()).expect("a task may call");
        all_ran(&[1, 2]);
        call_on::<Rig, _>(&Rig::pin(), &set(&[2, 3]), &|_| ran_here()).expect("a task may call");
        all_ran(&[3]);
        all_ran_times(&[2], 2);
    } else if cpu == 1 {
        looks();
    }
}

/// CPU 0 calls CPUs 2 and 3, then 1 and 2, in the same place. CPU 1 looks for work by itself, and
/// an interrupt may come in between, whose handler waits for the second call.
fn replaced(cpu: u8) {
    port::come_online();
    meet(4);
    if cpu == 0 {
        assert!(hw::kick(shootdown::CpuId(1)));
        call_on::<Rig, _>(&Rig::pin(), &set(&[2, 3]), &|_| ran_here()).expect("a task may call");
        all_ran(&[2, 3]);
        tell(4);
        call_on::<Rig, _>(&Rig::pin(), &set(&[1, 2]), &|_| ran_here()).expect("a task may call");
        all_ran(&[1]);
        all_ran_times(&[2], 2);
    } else if cpu == 1 {
        looks();
    }
}

fn lets_it_be_replaced(cpu: u8) {
    if cpu == 1 && kit().cells[1].replace(1) == 0 {
        hear(4);
    }
    port::answer();
}

/// Pages are taken away from CPUs that are told by a tree.
fn taken(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        enter(0);
        meet(3);
        tree(0).unmap(0).expect("CPU 0 may wait");
        tree(0).unmap(1).expect("CPU 0 may wait");
        return;
    }
    enter(0);
    user();
    meet(3);
    user();
    user();
}

/// CPU 1 goes offline while a large call is made.
fn going(cpu: u8) {
    port::come_online();
    meet(3);
    if cpu == 0 {
        let online = Rig::system().online();
        call_on::<Rig, _>(&Rig::pin(), &online, &|_| ran_here()).expect("a task may call");
    } else if cpu == 1 {
        go_offline();
    }
}

pub static SCENES: &[Scene] = &[
    Scene::new("tree", "a large call to one group, twice", 3, twice).rules(GROUP).kills(&[
        TreeFirstReports,
        TreeGroupNotReset,
        TreeGroupRelaxed,
        TreeDoneRelaxed,
        TreeDoneSeenRelaxed,
    ]),
    Scene::new("tree-groups", "a large call to two groups, one of two CPUs, twice", 4, three_twice)
        .rules(WORD)
        .kills(&[TreeWordNotReset, TreeWordRelaxed, TreeGroupResetLate]),
    Scene::new(
        "tree-last-group",
        "a large call to the first and the last group of a word, twice",
        3,
        twice,
    )
    .rules(ENDS)
    .kills(&[TreeLastGroupUncounted]),
    Scene::new("tree-words", "a large call to two words, twice", 3, twice)
        .rules(WORDS)
        .kills(&[TreeWaitsForLastWord]),
    Scene::new(
        "tree-looked-for",
        "large calls to a CPU that looks for work by itself",
        3,
        looked_for,
    )
    .rules(GROUP)
    .kills(&[TreeTicketRelaxed]),
    Scene::new(
        "tree-moved-on",
        "a CPU looks for large calls that no longer concern it",
        4,
        moved_on,
    )
    .rules(GROUP)
    .kills(&[TreeTicketSeenRelaxed]),
    Scene::new("tree-replaced", "a large call is replaced while a CPU reads it", 4, replaced)
        .rules(GROUP)
        .interrupt(lets_it_be_replaced)
        .kills(&[TreeWithoutReleaseFence, TreeWithoutAcquireFence, TreeReadOnce, TreeClaimIgnored]),
    Scene::new("tree-taken", "pages are taken away by large calls", 3, taken)
        .rules(GROUP)
        .kills(&[NoWaitTree]),
    Scene::new("tree-going", "a CPU goes offline during a large call", 3, going)
        .rules(GROUP)
        .kills(&[TreeWithoutFence, TreeAbsentNotCounted]),
];
