//! Accessed bits: what a CPU still uses after a switch or a tick.

use shootdown::accessed::{Accessed, AccessedPolicy, tick};
use shootdown::mutant::Mutant::*;
use shootdown::{Platform, Policy};

use crate::check::mutants::kit::{deep_idle, enter, enter_now, honours, meet, tree, user};
use crate::check::mutants::port::{self, Rig, Rules};
use crate::check::mutants::scene::Scene;

static NUMBER: Policy =
    Policy { accessed: AccessedPolicy::all(Accessed::Generation), ..Policy::SHOOTDOWN };
static ONE_SLOT: Policy = Policy { slots: 1, ..NUMBER };
static FLAG: Policy =
    Policy { accessed: AccessedPolicy::all(Accessed::AtSwitch), ..Policy::SHOOTDOWN };

const fn policy(policy: &'static Policy) -> Rules {
    Rules { policy, ..Rules::USUAL }
}

/// CPU 0 clears the bit of a page that CPU 1 uses, while that does this twice.
fn aged_while(cpu: u8, way: fn()) {
    port::come_online();
    if cpu == 0 {
        return tree(0).age(0);
    }
    enter(0);
    user();
    for _ in 0..2 {
        honours(way);
        user();
    }
}

fn same(cpu: u8) {
    aged_while(cpu, || enter_now(0));
}

fn another(cpu: u8) {
    aged_while(cpu, || {
        enter_now(1);
        enter_now(0);
    });
}

fn ticks(cpu: u8) {
    aged_while(cpu, || tick(port::irqs_off(&Rig::pin())));
}

/// As [`same`], by a CPU that was out of the set when the bit was cleared, or came into it just
/// then.
fn joins(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        return tree(0).age(0);
    }
    enter(0);
    user();
    meet(2);
    deep_idle();
    enter(0);
    user();
    honours(|| enter_now(0));
}

/// Two spaces take the only slot from each other, both with one clearing behind them.
fn hands_over(_: u8) {
    port::come_online();
    for space in 0..2 {
        enter(space);
        user();
        tree(space).age(0);
        honours(|| enter_now(space));
        user();
    }
}

pub static SCENES: &[Scene] = &[
    Scene::new(
        "aged-same",
        "an accessed bit is cleared, and a CPU switches to the same space",
        2,
        same,
    )
    .rules(policy(&NUMBER))
    .kills(&[AgeNotCounted, AgeIgnored, AgeWithoutPublish]),
    Scene::new("aged-back", "the same, and the CPU comes back from another space", 2, another)
        .rules(policy(&NUMBER))
        .kills(&[AgeReadFirst]),
    Scene::new("aged-tick", "an accessed bit is cleared, and a CPU ticks", 2, ticks)
        .rules(policy(&NUMBER))
        .kills(&[TickForgotten]),
    Scene::new("aged-slot", "two spaces whose bits were cleared share a slot", 1, hands_over)
        .rules(policy(&ONE_SLOT))
        .kills(&[AgeOfSlotKept]),
    Scene::new("aged-flag", "the same as aged-same by flags, through another space", 2, another)
        .rules(policy(&FLAG))
        .kills(&[DueNotRaised, DueIgnored]),
    Scene::new("aged-join", "a flag is raised while a CPU comes back into the set", 2, joins)
        .rules(policy(&FLAG))
        .kills(&[AgeWithoutFence, JoinerTrusts]),
];
