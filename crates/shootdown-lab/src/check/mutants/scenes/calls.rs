//! Calls, and CPUs that come and go meanwhile.

use shootdown::cpu_set::Bits;
use shootdown::mutant::Mutant::*;
use shootdown::platform::CpuSetOf;
use shootdown::{Platform, call_on};
use shootdown_machine::hunt::hw;
use shootdown_machine::oracle::Invariant;

use super::{all_ran, ran_here};
use crate::check::mutants::kit::{enter, go_offline, meet, table, tree, user};
use crate::check::mutants::port::{self, Rig, Rules};
use crate::check::mutants::scene::Scene;

/// CPUs of two words of a set: initiators in both, so that marks of words matter.
const TWO_WORDS: Rules = Rules { numbers: [64, 1, 65, 2, 66, 3, 67, 4], ..Rules::USUAL };
const NOTES: Rules = Rules { notes: true, ..Rules::USUAL };

pub(super) fn set(cpus: &[usize]) -> CpuSetOf<Rig> {
    let mut set = CpuSetOf::<Rig>::EMPTY;
    cpus.iter().for_each(|cpu| set.insert(port::number(*cpu)));
    set
}

/// CPU 0 calls CPUs 1 and 2, of which one looks for work by itself.
fn call(cpu: u8) {
    port::come_online();
    meet(3);
    if cpu == 0 {
        call_on::<Rig, _>(&Rig::pin(), &set(&[1, 2]), &|_| ran_here()).expect("a task may call");
        all_ran(&[1, 2]);
    } else if cpu == 1 {
        let _ = shootdown::poll::<Rig>(&Rig::pin());
    }
}

/// CPUs 0 and 2, of one word, call CPU 1, which looks for work by itself.
fn two_callers(cpu: u8) {
    port::come_online();
    meet(3);
    if cpu == 1 {
        let _ = shootdown::poll::<Rig>(&Rig::pin());
        let _ = shootdown::poll::<Rig>(&Rig::pin());
        return;
    }
    call_on::<Rig, _>(&Rig::pin(), &set(&[1]), &|_| ran_here()).expect("a task may call");
    all_ran(&[1]);
}

/// CPU 1 goes offline while it is called.
fn going(cpu: u8) {
    port::come_online();
    meet(2);
    if cpu == 0 {
        let online = Rig::system().online();
        call_on::<Rig, _>(&Rig::pin(), &online, &|_| ran_here()).expect("a task may call");
        return;
    }
    go_offline();
}

/// CPU 1 goes offline out of a space of which a table is freed.
fn going_freed(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        user();
        hw::set_irqs(false);
        meet(2);
        go_offline();
        return;
    }
    meet(2);
    let (change, leaf) = tree(0).unhook_table(0);
    tree(0).space.flush(&Rig::pin(), table(0)).expect("CPU 0 may wait");
    if !port::forgetting_is_over(1) {
        hw::violation(Invariant::TableReuse, "what CPU 1 did to forget may come later".to_owned());
    }
    hw::revoked(&[change]);
    hw::free_table(leaf);
}

pub static SCENES: &[Scene] = &[
    Scene::new("call", "a function is called on two CPUs", 3, call).kills(&[
        AckBeforeCall,
        CallGivesUp,
        CallDoneRelaxed,
    ]),
    Scene::new("callers", "two CPUs call one that looks for work by itself", 3, two_callers)
        .rules(TWO_WORDS)
        .kills(&[PostRelaxed, TakeRelaxed, SummaryForgotten, SummaryRelaxed, SummaryTakeRelaxed]),
    Scene::new("going", "a CPU goes offline while it is called", 2, going).kills(&[
        PostWithoutFence,
        AbsentNotTakenBack,
        OfflineWithoutFence,
        OfflineDoesNotServe,
        OfflineStaysListed,
    ]),
    Scene::new("going-freed", "a CPU goes offline while a table is freed", 2, going_freed)
        .rules(NOTES)
        .kills(&[OfflineDoesNotLeave, CommonRelaxed]),
];
