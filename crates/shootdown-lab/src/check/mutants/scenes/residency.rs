//! Arm: machine-wide tags and broadcasts, and when a broadcast is not needed.

use shootdown::facts::{Broadcast, Errata, SplitTables, TagScope};
use shootdown::mutant::Mutant::*;
use shootdown::residency::Strategy;
use shootdown::{Facts, Platform, Policy};
use shootdown_machine::hunt::hw::Architecture;
use shootdown_machine::hunt::{Power, Powers, hw};

use crate::check::mutants::kit::{enter, meet, page, tree, unmap_kernel, user};
use crate::check::mutants::port::{self, Rig, Rules, TAGGED};
use crate::check::mutants::scene::Scene;

static ARM: Facts = Facts {
    tag_scope: TagScope::System,
    tag_bits: 3,
    broadcast: Broadcast::Tlbi { ranges: true },
    ..TAGGED
};
/// Three tags for four spaces.
static NARROW: Facts = Facts { tag_bits: 2, ..ARM };
static SPLIT: Facts =
    Facts { split_tables: SplitTables::Yes { invalidate_other_tag: true }, tag_bits: 4, ..ARM };
static SURVIVOR: Facts = Facts { errata: Errata { survives_once: true, ..ARM.errata }, ..ARM };
static EARLY: Facts = Facts { errata: Errata { repeat_sync: true, ..ARM.errata }, ..ARM };

static ALWAYS: Policy = Policy { broadcast: Some(Strategy::Always), ..Policy::SHOOTDOWN };
static STICKY: Policy = Policy { broadcast: Some(Strategy::Sticky), ..Policy::SHOOTDOWN };
static ACTIVE: Policy = Policy { broadcast: Some(Strategy::Active), ..Policy::SHOOTDOWN };
static TRIM: Policy = Policy { broadcast: Some(Strategy::Trim), ..Policy::SHOOTDOWN };

const fn rules(facts: &'static Facts, policy: &'static Policy) -> Rules {
    Rules { facts, policy, architecture: Architecture::Aarch64, ..Rules::USUAL }
}

fn unmap(space: usize, at: u32) {
    tree(space).unmap(at).expect("a broadcast does not fail");
}

/// CPU 1 comes for the first time while CPU 0, which runs the space, takes pages away.
fn comes(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        enter(0);
        user();
        meet(2);
        unmap(0, 0);
        unmap(0, 1);
        return;
    }
    meet(2);
    enter(0);
    user();
    user();
}

/// CPU 1 has kept entries and comes back.
fn comes_back(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        enter(0);
        user();
        meet(2);
        unmap(0, 0);
        unmap(0, 1);
        return;
    }
    enter(0);
    user();
    enter(1);
    meet(2);
    enter(0);
    user();
    user();
}

/// The space has never run when CPU 0, which does not run it, takes a page away.
fn comes_first(cpu: u8) {
    port::come_online();
    meet(2);
    if cpu == 0 {
        return unmap(0, 0);
    }
    enter(0);
    user();
    user();
}

/// CPU 1 uses the space all the time.
fn stays(cpu: u8) {
    port::come_online();
    enter(0);
    user();
    meet(2);
    if cpu == 0 {
        unmap(0, 0);
        unmap(0, 1);
        return;
    }
    user();
    user();
}

/// A table goes while CPU 1, which has used it, is elsewhere, or comes back.
fn freed(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        enter(0);
        user();
        meet(2);
        tree(0).free_table(0).expect("a broadcast does not fail");
        return;
    }
    enter(0);
    user();
    enter(1);
    meet(2);
    enter(0);
    user();
}

/// CPU 1 goes through spaces until tags run out, and comes back to the first.
fn runs_out(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        enter(0);
        user();
        meet(2);
        unmap(0, 0);
        user();
        unmap(0, 1);
        return;
    }
    for space in 1..4 {
        enter(space);
        user();
    }
    meet(2);
    for space in [1, 2, 3, 0, 1] {
        enter(space);
        user();
    }
}

/// CPU 1 is asked to leave the set, and comes back.
fn trims(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        enter(0);
        meet(2);
        for _ in 0..64 {
            tree(0).space.flush(&Rig::pin(), page(3)).expect("a broadcast does not fail");
        }
        unmap(0, 0);
        meet(4);
        return;
    }
    enter(0);
    user();
    enter(1);
    meet(2);
    meet(4);
    enter(0);
    user();
}

/// A kernel page goes that CPU 1 uses.
fn kernel(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        unmap_kernel().expect("a broadcast does not fail");
        return;
    }
    enter(0);
    hw::kernel_code();
    meet(2);
    hw::kernel_code();
    hw::kernel_code();
}

pub static SCENES: &[Scene] = &[
    Scene::new(
        "arm-first",
        "a CPU comes to a space that never ran, and a page goes",
        2,
        comes_first,
    )
    .rules(rules(&ARM, &ALWAYS))
    .kills(&[EnterWithoutFence]),
    Scene::new("arm-stays", "two CPUs use pages that are taken away by broadcast", 2, stays)
        .rules(rules(&ARM, &ALWAYS))
        .kills(&[BroadcastStaysLocal, BroadcastWithoutSync]),
    Scene::new("arm-freed", "a table goes by broadcast", 2, freed)
        .rules(rules(&ARM, &ALWAYS))
        .kills(&[BroadcastLeafOnly]),
    Scene::new("arm-split", "pairs of tags, pages are taken away by broadcast", 2, stays)
        .rules(rules(&SPLIT, &ALWAYS))
        .kills(&[BroadcastUserHalfForgotten]),
    Scene::new("arm-kernel", "a kernel page is taken away by broadcast", 2, kernel)
        .rules(rules(&ARM, &ALWAYS))
        .kills(&[KernelBroadcastStaysLocal, KernelBroadcastWithoutSync]),
    Scene::new("arm-survives", "entries may survive one invalidation", 2, stays)
        .rules(rules(&SURVIVOR, &ALWAYS))
        .powers(Powers::HOSTILE.with(Power::SurvivesOnce))
        .kills(&[SurvivorForgotten]),
    Scene::new("arm-ends-early", "a sync may be over too early", 2, stays)
        .rules(rules(&EARLY, &ALWAYS))
        .powers(Powers::HOSTILE.with(Power::EarlySync))
        .kills(&[SyncNotRepeated]),
    Scene::new("sticky", "a second CPU comes to a space whose pages are taken away", 2, comes)
        .rules(rules(&ARM, &STICKY))
        .kills(&[OwnWithoutFence, OwnerNeverShared, ResidencyWithoutFence]),
    Scene::new("active", "a CPU comes back to its stale tag", 2, comes_back)
        .rules(rules(&ARM, &ACTIVE))
        .kills(&[
            ActiveWithoutFence,
            StaleTagTrusted,
            StaleNotNoted,
            StaleWithoutFence,
            ActiveOnceIsEnough,
        ]),
    Scene::new("active-comes", "a CPU comes to a space that another is active in", 2, comes)
        .rules(rules(&ARM, &ACTIVE))
        .kills(&[ActiveNotCounted]),
    Scene::new("trim", "a CPU joins the set of a space whose pages are taken away", 2, comes)
        .rules(rules(&ARM, &TRIM))
        .kills(&[JoinWithoutFence]),
    Scene::new("trim-asked", "a CPU is asked to leave the set, and comes back", 2, trims)
        .rules(rules(&ARM, &TRIM))
        .kills(&[TrimWithoutFlush]),
    Scene::new("runs-out", "tags run out while pages are taken away", 2, runs_out)
        .rules(rules(&NARROW, &STICKY))
        .kills(&[GenerationNotFlushed]),
];
