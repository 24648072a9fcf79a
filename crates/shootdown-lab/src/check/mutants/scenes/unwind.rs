//! Functions that panic while a call is in flight, here or there.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shootdown::mutant::Mutant::*;
use shootdown::{Platform, Policy, call_on};
use shootdown_machine::hunt::hw;
use shootdown_machine::oracle::Invariant;

use super::calls::set;
use super::{all_ran, ran_here};
use crate::check::mutants::kit::{enter, hear, kit, meet, tell, tree, user};
use crate::check::mutants::port::{self, Rig, Rules};
use crate::check::mutants::scene::Scene;

static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };
const LARGE: Rules = Rules { policy: &TREE, ..Rules::USUAL };

/// Without a word on the terminal.
fn unwind() -> ! {
    resume_unwind(Box::new("on purpose"))
}

/// Says whether `f` has unwound.
fn unwinds(f: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

/// CPU 0 calls itself, CPU 1 and CPU 2, and its own part unwinds. Then the call is over; and the
/// next one is not refused.
fn here(cpu: u8) {
    port::come_online();
    meet(3);
    if cpu != 0 {
        hear(4);
        let _ = shootdown::poll::<Rig>(&Rig::pin());
        return;
    }
    let unwound = unwinds(|| {
        let _ = call_on::<Rig, _>(&Rig::pin(), &set(&[0, 1, 2]), &|_| {
            if hw::this_cpu().0 == 0 {
                unwind();
            }
            for _ in 0..2 {
                if kit().cells[0].get() != 0 {
                    let what = "the call is over, and its function runs".to_owned();
                    hw::violation(Invariant::CallCompletes, what);
                }
                ran_there();
            }
        });
    });
    assert!(unwound, "its own part unwinds");
    kit().cells[0].set(1);
    tell(4);
    call_on::<Rig, _>(&Rig::pin(), &set(&[1, 2]), &|_| ran_here()).expect("a task may call");
    all_ran(&[1, 2]);
}

/// A step that others may come between.
fn ran_there() {
    kit().flags[5].load(shootdown::sync::Ordering::Relaxed);
}

/// CPU 0 calls CPU 1, where the function unwinds, and then unmaps a page there.
fn there(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        user();
        meet(2);
        user();
        return;
    }
    meet(2);
    call_on::<Rig, _>(&Rig::pin(), &set(&[1]), &|_| unwind()).expect("a task may call");
    tree(0).unmap(0).expect("CPU 0 may wait");
}

/// CPUs 0 and 2 call CPU 1, where the function of one unwinds.
fn there_of_two(cpu: u8) {
    port::come_online();
    meet(3);
    match cpu {
        0 => call_on::<Rig, _>(&Rig::pin(), &set(&[1]), &|_| unwind()).expect("a task may call"),
        1 => {}
        _ => {
            call_on::<Rig, _>(&Rig::pin(), &set(&[1]), &|_| ran_here()).expect("a task may call");
            all_ran(&[1]);
        }
    }
}

/// The kernel's handler catches what unwinds, and looks again.
fn catches(_: u8) {
    while unwinds(port::answer) {}
}

pub static SCENES: &[Scene] = &[
    Scene::new("unwound", "a call's own part unwinds", 3, here)
        .kills(&[UnwoundCallForgotten, UnwoundBegunNotWaited]),
    Scene::new("unwound-large", "a large call's own part unwinds", 3, here)
        .rules(LARGE)
        .kills(&[UnwoundTreeForgotten]),
    Scene::new("unwound-there", "a called function unwinds, and its CPU serves others", 2, there)
        .interrupt(catches)
        .kills(&[UnwoundServesForGood, UnwoundFunctionUnacknowledged]),
    Scene::new("unwound-of-two", "one of two called functions unwinds", 3, there_of_two)
        .interrupt(catches)
        .kills(&[UnwoundRequestsLost]),
];
