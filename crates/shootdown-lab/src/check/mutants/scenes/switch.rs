//! Switches, lazy mode, slots, split tables, and the end of spaces.

use std::ptr::NonNull;

use shootdown::facts::SplitTables;
use shootdown::mutant::Mutant::*;
use shootdown::policy::Leave;
use shootdown::{Facts, Platform, Policy, RetireError};
use shootdown_machine::hunt::hw;
use shootdown_machine::oracle::Invariant;

use crate::check::mutants::kit::{
    deep_idle, enter, lazy, meet, page, retire, tree, unmap_kernel, user,
};
use crate::check::mutants::port::{self, Rig, Rules, TAGGED};
use crate::check::mutants::scene::Scene;

static UNSPLIT: Policy = Policy { split_lazy_line: false, ..Policy::SHOOTDOWN };
static AT_SWITCH: Policy = Policy { leave: Leave::AtSwitch, ..Policy::SHOOTDOWN };
static WHOLE: Policy = Policy { ranges: false, ..Policy::SHOOTDOWN };
static NO_LOG: Policy = Policy { range_log: false, ..Policy::SHOOTDOWN };

static SPLIT_NEAR: Facts =
    Facts { split_tables: SplitTables::Yes { invalidate_other_tag: true }, ..TAGGED };
static SPLIT_FAR: Facts =
    Facts { split_tables: SplitTables::Yes { invalidate_other_tag: false }, ..TAGGED };

const fn policy(policy: &'static Policy) -> Rules {
    Rules { policy, ..Rules::USUAL }
}

const fn split(facts: &'static Facts, policy: &'static Policy) -> Rules {
    Rules { facts, policy, ..Rules::USUAL }
}

const fn notes(policy: &'static Policy) -> Rules {
    Rules { policy, notes: true, ..Rules::USUAL }
}

/// Takes two pages of space 0 away, one after the other.
fn take_two() {
    meet(2);
    tree(0).unmap(0).expect("CPU 0 may wait");
    tree(0).unmap(1).expect("CPU 0 may wait");
}

fn back(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return take_two();
    }
    enter(0);
    user();
    enter(1);
    for _ in 0..3 {
        tree(1).space.flush(&Rig::pin(), page(0)).expect("nobody else is there");
    }
    meet(2);
    enter(0);
    user();
    user();
}

fn lazy_exit(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return take_two();
    }
    enter(0);
    user();
    lazy();
    meet(2);
    enter(0);
    user();
    user();
}

/// As [`lazy_exit`], with a look for work while lazy.
fn lazy_polls(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return take_two();
    }
    enter(0);
    user();
    lazy();
    meet(2);
    hw::without_irqs(|| {
        let _ = shootdown::poll::<Rig>(&Rig::pin());
    });
    enter(0);
    user();
    user();
}

fn lazy_away_and_back(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return take_two();
    }
    enter(0);
    user();
    lazy();
    meet(2);
    enter(1);
    enter(0);
    user();
    user();
}

fn idle_and_back(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return take_two();
    }
    enter(0);
    user();
    deep_idle();
    meet(2);
    enter(0);
    user();
    user();
}

fn three_spaces(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).unmap(0).expect("CPU 0 may wait");
        return;
    }
    enter(1);
    user();
    tree(1).space.flush(&Rig::pin(), page(0)).expect("nobody else is there");
    enter(2);
    user();
    enter(0);
    user();
    meet(2);
    user();
    user();
}

/// CPU 0 frees a leaf table that CPU 1 used, and must know then that CPU 1 has forgotten it.
fn free_and_know() {
    meet(2);
    let (change, table) = tree(0).unhook_table(0);
    let request = crate::check::mutants::kit::table(0);
    tree(0).space.flush(&Rig::pin(), request).expect("CPU 0 may wait");
    if !port::forgetting_is_over(1) {
        hw::violation(Invariant::TableReuse, "what CPU 1 did to forget may come later".to_owned());
    }
    hw::revoked(&[change]);
    hw::free_table(table);
}

fn leave_and_be_known(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return free_and_know();
    }
    enter(0);
    hw::set_irqs(false);
    meet(2);
    deep_idle();
    hw::set_irqs(true);
}

fn switch_and_be_known(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return free_and_know();
    }
    enter(1);
    for _ in 0..3 {
        tree(1).space.flush(&Rig::pin(), page(0)).expect("nobody else is there");
    }
    enter(0);
    hw::set_irqs(false);
    meet(2);
    enter(1);
    hw::set_irqs(true);
}

fn use_and_turn_lazy(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).unmap(0).expect("CPU 0 may wait");
        if !port::uses_are_over(1) {
            hw::violation(Invariant::FrameReuse, "what CPU 1 used may come later".to_owned());
        }
        return;
    }
    enter(0);
    hw::set_irqs(false);
    meet(2);
    user();
    lazy();
    hw::set_irqs(true);
}

fn freed_while_away(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).free_table(0).expect("CPU 0 may wait");
        return;
    }
    enter(0);
    user();
    enter(1);
    meet(2);
    enter(0);
    user();
}

fn freed_while_leaving(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).free_table(0).expect("CPU 0 may wait");
        return;
    }
    enter(0);
    user();
    meet(2);
    deep_idle();
}

fn retire_lazy(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        retire(0).expect("CPU 0 may wait");
        return;
    }
    enter(0);
    user();
    lazy();
    meet(2);
}

fn retire_leaving(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        retire(0).expect("CPU 0 may wait");
        return;
    }
    enter(0);
    user();
    lazy();
    meet(2);
    deep_idle();
}

/// As [`retire_leaving`], and the space's memory is given back.
fn retire_gone(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        retire(0).expect("CPU 0 may wait");
        let (at, len) = memory();
        hw::given_back(at, len);
        return;
    }
    enter(0);
    lazy();
    meet(2);
    deep_idle();
}

fn given_back_one_day() {
    let (at, len) = memory();
    hw::is_given_back(at, len);
}

/// Where the first space is.
fn memory() -> (NonNull<u8>, usize) {
    let space = tree(0).space;
    (NonNull::from(space).cast(), size_of_val(space))
}

fn retire_own(_: u8) {
    port::come_online();
    enter(0);
    user();
    lazy();
    retire(0).expect("CPU 0 may wait");
}

fn retire_active(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        let refused = retire(0);
        assert!(matches!(refused, Err(RetireError::Loaded(_))), "errors: {refused:?}");
        return;
    }
    enter(0);
    user();
    meet(2);
}

fn names(_: u8) {
    port::come_online();
    for space in 0..3 {
        enter(space);
        user();
    }
}

fn split_taken(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return take_two();
    }
    enter(0);
    user();
    meet(2);
    user();
    user();
}

fn split_back(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        return take_two();
    }
    enter(0);
    user();
    enter(1);
    meet(2);
    enter(0);
    user();
    user();
}

/// On a CPU the invalidation of the user halves of two spaces is pending.
fn split_two(_: u8) {
    port::come_online();
    enter(0);
    user();
    tree(0).unmap(0).expect("nobody else is there");
    enter(1);
    user();
    enter(0);
    user();
}

fn split_kernel(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        unmap_kernel().expect("CPU 0 may wait");
        return;
    }
    enter(1);
    user();
    enter(0);
    user();
    meet(2);
    user();
    enter(1);
    hw::kernel_code();
}

/// CPU 1 has the kernel's page cached of the kernel's own tables, to which it returns.
fn split_kernel_own(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        unmap_kernel().expect("CPU 0 may wait");
        return;
    }
    hw::kernel_code();
    enter(0);
    meet(2);
    deep_idle();
    hw::kernel_code();
}

pub static SCENES: &[Scene] = &[
    Scene::new("back", "a CPU comes back to a space whose pages are taken away", 2, back).kills(&[
        SwitchWithoutFence,
        SwitchReadsGenerationFirst,
        SwitchReadsGenerationLate,
        SlotTrusts,
        SwitchReplaysNothing,
        FlushWithoutFence,
        FlushWithoutPublish,
        NoGenerationBump,
        FilterSkipsSwitching,
        RemoteRemoval,
        AcknowledgementReadFirst,
        SwitchKeepsAck,
        LoadedRelaxed,
        ViewRelaxed,
    ]),
    Scene::new("lazy", "a CPU leaves lazy mode while pages are taken away", 2, lazy_exit).kills(&[
        LazyExitWithoutFence,
        LazyExitTrusts,
        CurrentTrusts,
        ReplayOnlyNewest,
        CatchUpReadsGenerationLate,
    ]),
    Scene::new(
        "unsplit",
        "the same, through another space, with a separate lazy flag",
        2,
        lazy_away_and_back,
    )
    .rules(policy(&UNSPLIT))
    .kills(&[LazyFlagKept]),
    Scene::new("unsplit-exit", "a CPU leaves lazy mode with a separate lazy flag", 2, lazy_exit)
        .rules(policy(&UNSPLIT))
        .kills(&[LazyFlagClearedLast]),
    Scene::new("lazy-polls", "a lazy CPU looks for work and leaves lazy mode", 2, lazy_polls)
        .kills(&[LazyAdvances]),
    Scene::new("rejoin", "a CPU comes back to a space whose set it left", 2, idle_and_back)
        .kills(&[SwitchDoesNotJoin, SwitchJoinsLate, MembershipKept]),
    Scene::new("slots", "three spaces share two slots", 2, three_spaces).kills(&[
        SwitchKeepsGeneration,
        CurrentSlotForgotten,
        EvictionKeeps,
    ]),
    Scene::new("idle-known", "a CPU goes idle, and the flusher knows", 2, leave_and_be_known)
        .rules(notes(&Policy::SHOOTDOWN))
        .kills(&[UnloadRelaxed, SnapshotRelaxed]),
    Scene::new(
        "switch-known",
        "a CPU goes elsewhere, and the flusher knows",
        2,
        switch_and_be_known,
    )
    .rules(notes(&Policy::SHOOTDOWN))
    .kills(&[SwitchAckRelaxed, AcknowledgementRelaxed]),
    Scene::new(
        "leave-known",
        "a CPU leaves the set, and the flusher knows",
        2,
        switch_and_be_known,
    )
    .rules(notes(&AT_SWITCH))
    .kills(&[RemoveRelaxed]),
    Scene::new("lazy-known", "a CPU turns lazy, and the flusher knows", 2, use_and_turn_lazy)
        .rules(notes(&Policy::SHOOTDOWN))
        .kills(&[SetLazyRelaxed]),
    Scene::new("unsplit-known", "the same with a separate lazy flag", 2, use_and_turn_lazy)
        .rules(notes(&UNSPLIT))
        .kills(&[LazyViewRelaxed]),
    Scene::new("freed-away", "a table is freed while a CPU is elsewhere", 2, freed_while_away)
        .kills(&[SwitchReplaysFreed]),
    Scene::new("freed-leaving", "a table is freed while a CPU goes idle", 2, freed_while_leaving)
        .kills(&[UnloadKeepsRoot]),
    Scene::new("retire-lazy", "a space ends that a CPU has loaded lazily", 2, retire_lazy)
        .kills(&[RetireIgnoresLazy]),
    Scene::new("retire-leaving", "a space ends that a CPU is leaving", 2, retire_leaving)
        .kills(&[RetireIgnoresSwitching]),
    Scene::new("retire-gone", "a space is given back that a CPU is leaving", 2, retire_gone)
        .setup(given_back_one_day)
        .kills(&[LeaveSetFirst]),
    Scene::new("retire-own", "a CPU ends the space it has loaded lazily", 1, retire_own)
        .kills(&[RetireIgnoresItself]),
    Scene::new("retire-active", "a space in use is not ended", 2, retire_active)
        .kills(&[RetireIgnoresActive]),
    Scene::new("names", "no space bears the name of another", 1, names).kills(&[IdReused]),
    Scene::new(
        "split-near",
        "split tables, the other half invalidated page by page",
        2,
        split_taken,
    )
    .rules(split(&SPLIT_NEAR, &Policy::SHOOTDOWN))
    .kills(&[OtherTagRangeForgotten]),
    Scene::new(
        "split-far",
        "split tables, the other half invalidated on the way out",
        2,
        split_taken,
    )
    .rules(split(&SPLIT_FAR, &Policy::SHOOTDOWN))
    .kills(&[StepLeavesNothingPending, UserHalfForgotten]),
    Scene::new("split-tags", "split tables, whole tags", 2, split_taken)
        .rules(split(&SPLIT_FAR, &WHOLE))
        .kills(&[TagLeavesNothingPending]),
    Scene::new("split-back", "split tables, a CPU comes back to a changed space", 2, split_back)
        .rules(split(&SPLIT_FAR, &NO_LOG))
        .kills(&[SwitchLeavesNothingPending]),
    Scene::new("split-two", "split tables, two of which the way out invalidates", 1, split_two)
        .rules(split(&SPLIT_FAR, &Policy::SHOOTDOWN))
        .kills(&[ReturnClearsAll]),
    Scene::new("split-kernel", "split tables, a kernel page is taken away", 2, split_kernel)
        .rules(split(&SPLIT_NEAR, &Policy::SHOOTDOWN))
        .kills(&[KernelLeavesNothingPending, OtherTagsForgotten]),
    Scene::new(
        "split-kernel-own",
        "split tables, a kernel page is taken away that is cached of the kernel's own tables",
        2,
        split_kernel_own,
    )
    .rules(Rules { keeps: true, ..split(&SPLIT_NEAR, &Policy::SHOOTDOWN) })
    .kills(&[KernelTagForgotten]),
];
