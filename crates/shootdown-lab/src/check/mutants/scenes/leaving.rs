//! CPUs that leave a space, and are interrupted, while somebody ends it.

use std::ptr::NonNull;

use shootdown::mutant::Mutant::*;
use shootdown::policy::Leave;
use shootdown::{CpuId, Platform, Policy, RetireError};
use shootdown_machine::hunt::hw;

use crate::check::mutants::kit::{enter, enter_now, leave_now, meet, tree, user};
use crate::check::mutants::port::{self, Rig, Rules};
use crate::check::mutants::scene::Scene;

static AT_SWITCH: Policy = Policy { leave: Leave::AtSwitch, ..Policy::SHOOTDOWN };

/// CPU 1 leaves the space, and a non-maskable kick comes meanwhile. CPU 0 ends the space and gives
/// its memory back.
fn ended(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        user();
        meet(2);
        leave_now();
        return;
    }
    meet(2);
    assert!(hw::kick(CpuId(1)));
    let space = tree(0).space;
    loop {
        match space.retire(&Rig::pin()) {
            Ok(()) => break,
            Err(RetireError::Loaded(_)) => hw::relax(),
            Err(error) => panic!("errors: {error}"),
        }
    }
    hw::given_back(NonNull::from(space).cast(), size_of_val(space));
}

fn is_given_back() {
    let space = tree(0).space;
    hw::is_given_back(NonNull::from(space).cast(), size_of_val(space));
}

/// CPU 1 switches, and a handler that comes meanwhile ends the space that it leaves.
fn ended_by_a_handler(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        user();
        meet(2);
        enter_now(1);
        return;
    }
    meet(2);
    assert!(hw::kick(CpuId(1)));
}

fn ends(cpu: u8) {
    port::answer();
    if cpu == 1 {
        let _ = tree(0).space.retire(&Rig::pin());
    }
}

pub static SCENES: &[Scene] = &[
    Scene::new("leaving-ended", "a space is ended while a CPU that leaves it is kicked", 2, ended)
        .rules(Rules { policy: &AT_SWITCH, ..Rules::USUAL })
        .setup(is_given_back)
        .kills(&[ExpectsWhileSwitching]),
    Scene::new(
        "leaving-handler",
        "a space is ended by a handler of the CPU that leaves it",
        2,
        ended_by_a_handler,
    )
    .interrupt(ends)
    .kills(&[RetireWaitsAnywhere]),
];
