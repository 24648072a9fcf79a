//! Handlers that come at bad moments, and waits with interrupts off.

use shootdown::facts::SplitTables;
use shootdown::mutant::Mutant::*;
use shootdown::{CallError, Facts, Platform, Served, call_on, user_access_ok};
use shootdown_machine::hunt::hw;

use super::calls::set;
use super::ran_here;
use crate::check::mutants::kit::{
    enter, enter_now, kit, lazy, meet, page, retire, table, tree, unmap_kernel, user,
};
use crate::check::mutants::port::{self, Rig, Rules, TAGGED, Waits};
use crate::check::mutants::scene::Scene;

static SPLIT: Facts =
    Facts { split_tables: SplitTables::Yes { invalidate_other_tag: true }, ..TAGGED };

const ANYWHERE: Rules = Rules { waits: Waits::Anywhere, ..Rules::USUAL };

/// CPU 1 looks for work with interrupts on while two pages are taken away.
fn polls(cpu: u8) {
    port::come_online();
    if cpu != 1 {
        meet(3);
        tree(0).unmap(u32::from(cpu) / 2).expect("tasks may wait");
        return;
    }
    enter(0);
    user();
    meet(3);
    for _ in 0..3 {
        let _ = shootdown::poll::<Rig>(&Rig::pin());
    }
    user();
}

/// CPU 1, lazy, looks for work with interrupts on, and so leaves the space a table of which is
/// freed.
fn leaves_while_it_polls(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).free_table(0).expect("tasks may wait");
        return;
    }
    enter(0);
    user();
    lazy();
    meet(2);
    let _ = shootdown::poll::<Rig>(&Rig::pin());
    let _ = shootdown::poll::<Rig>(&Rig::pin());
}

/// CPU 1 retires the space that it has loaded lazily, interrupts on, while it is asked for
/// something else.
fn retires_while_called(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        call_on::<Rig, _>(&Rig::pin(), &set(&[1]), &|_| ran_here()).expect("tasks may wait");
        return;
    }
    enter(0);
    user();
    lazy();
    meet(2);
    retire(0).expect("nobody else has it loaded");
}

/// The handler is maskable, and switches have interrupts off: nobody may ask it to come back.
fn answers_once(_: u8) {
    let served = shootdown::on_kick(port::irqs_off(&Rig::pin()));
    assert!(served == Served::Done, "progress: to be repeated, and nothing is under way");
}

/// The handler touches user memory, and then answers.
fn touches_first(cpu: u8) {
    if cpu == 1 {
        hw::user_code();
    }
    port::answer();
}

/// CPU 1 looks for work with interrupts on; its handler takes a table away by itself.
fn handler_frees(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).unmap(4).expect("tasks may wait");
        return;
    }
    enter(0);
    user();
    meet(2);
    let _ = shootdown::poll::<Rig>(&Rig::pin());
    let _ = shootdown::poll::<Rig>(&Rig::pin());
}

/// As [`handler_frees`], with a CPU that is lazy and told of a freed table.
fn handler_frees_lazy(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).free_table(1).expect("tasks may wait");
        return;
    }
    enter(0);
    user();
    lazy();
    meet(2);
    let _ = shootdown::poll::<Rig>(&Rig::pin());
    let _ = shootdown::poll::<Rig>(&Rig::pin());
}

fn frees_in_handler(cpu: u8) {
    if cpu == 1 && kit().cells[0].replace(1) == 0 {
        let (change, leaf) = tree(0).unhook_table(0);
        if tree(0).space.flush(&Rig::pin(), table(0)).is_ok() {
            hw::revoked(&[change]);
            hw::free_table(leaf);
        }
    }
    port::answer();
}

/// CPU 0 calls CPU 1; a handler that comes in between calls CPU 2, and is refused.
fn reenters(cpu: u8) {
    port::come_online();
    meet(3);
    if cpu == 0 {
        let done = call_on::<Rig, _>(&Rig::pin(), &set(&[1]), &|_| ran_here());
        done.expect("a task may call");
        super::all_ran(&[1]);
    } else if cpu == 2 {
        // Something for the handler of CPU 0.
        assert!(hw::kick(shootdown::CpuId(0)));
    }
}

fn calls_in_handler(cpu: u8) {
    if cpu == 0 {
        let done = call_on::<Rig, _>(&Rig::pin(), &set(&[2]), &|_| ran_here());
        assert!(matches!(done, Ok(()) | Err(CallError::Reentered | CallError::WouldWait)));
    }
    port::answer();
}

/// CPU 2 has CPUs 0 and 1 run a function that flushes a space that both use.
fn flushing_function(cpu: u8) {
    port::come_online();
    if cpu != 2 {
        enter(0);
        meet(3);
        return;
    }
    meet(3);
    call_on::<Rig, _>(&Rig::pin(), &set(&[0, 1]), &|_| {
        let _ = tree(0).space.flush(&Rig::pin(), page(1));
    })
    .expect("a task may call");
}

/// Two CPUs flush the space that the other one uses, with interrupts off, on a port that lets them
/// wait so.
fn deaf_flushers(cpu: u8) {
    port::come_online();
    enter(usize::from(cpu));
    user();
    meet(2);
    let other = tree(usize::from(1 - cpu));
    hw::without_irqs(|| other.unmap(0).expect("this port lets them"));
    user();
}

/// Kicks are not maskable: they come in the middle of switches.
fn unmasked(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).unmap(0).expect("tasks may wait");
        tree(0).free_table(1).expect("tasks may wait");
        return;
    }
    enter(0);
    user();
    lazy();
    meet(2);
    enter_now(0);
    user();
    enter_now(1);
    user();
    enter_now(0);
    user();
}

/// A handler that is not maskable comes while CPU 1 goes back to a space that it remembers. CPU 0
/// raises it, and is not online.
fn comes_back(cpu: u8) {
    if cpu == 0 {
        meet(2);
        assert!(hw::kick(shootdown::CpuId(1)));
        return;
    }
    port::come_online();
    enter(1);
    user();
    enter(0);
    user();
    meet(2);
    enter_now(1);
    user();
}

/// The non-maskable handler takes a page and a table of the other space away.
fn takes_from_the_other(cpu: u8) {
    if cpu == 1 && kit().cells[0].replace(1) == 0 {
        tree(1).unmap(0).expect("nobody else has it");
        tree(1).free_table(1).expect("nobody else has it");
    }
    port::answer();
}

/// The non-maskable handler takes a page of the kernel away.
fn takes_from_the_kernel(cpu: u8) {
    if cpu == 1 && kit().cells[0].replace(1) == 0 {
        unmap_kernel().expect("nobody else is online");
    }
    port::answer();
}

/// The non-maskable handler reads user memory of space 0, if it may, after it has answered and
/// before.
fn reads_if_it_may(cpu: u8) {
    let read = || {
        if cpu == 1 && user_access_ok::<Rig>(&Rig::pin(), tree(0).space) {
            // The space that the handler means, and no other.
            assert!(hw::loaded().is_some_and(|(root, _)| root == tree(0).space.root()));
            hw::user_code();
        }
    };
    read();
    port::answer();
    read();
}

/// CPU 1 serves and uses a space; non-maskable handlers read its memory.
fn read_by_handlers(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        tree(0).unmap(0).expect("tasks may wait");
        tree(0).unmap(1).expect("tasks may wait");
        return;
    }
    enter(0);
    user();
    meet(2);
    port::answer();
    port::answer();
    enter_now(1);
    lazy();
    enter_now(0);
    user();
    lazy();
}

pub static SCENES: &[Scene] = &[
    Scene::new("polls", "a CPU looks for work while its handlers do", 3, polls)
        .kills(&[NestedForgotten, NestedServes]),
    Scene::new(
        "polls-and-touches",
        "handlers touch user memory while their CPU catches up",
        3,
        polls,
    )
    .interrupt(touches_first)
    .kills(&[EarlyAckInTask]),
    Scene::new(
        "leaves-while-it-polls",
        "handlers come while their CPU leaves a space",
        2,
        leaves_while_it_polls,
    )
    .interrupt(answers_once)
    .kills(&[UnloadingAsksAgain]),
    Scene::new(
        "retires-while-called",
        "a handler comes while its CPU leaves the space that it retires",
        2,
        retires_while_called,
    )
    .interrupt(answers_once)
    .kills(&[RetireLeavesOpenly]),
    Scene::new("handler-frees", "a handler flushes while its CPU catches up", 2, handler_frees)
        .interrupt(frees_in_handler)
        .kills(&[NestedWorkForgotten]),
    Scene::new(
        "handler-frees-lazy",
        "a handler flushes while its CPU leaves",
        2,
        handler_frees_lazy,
    )
    .interrupt(frees_in_handler)
    .kills(&[UnloadingWorkForgotten]),
    Scene::new("reenters", "a handler calls while its CPU does", 3, reenters)
        .rules(ANYWHERE)
        .interrupt(calls_in_handler)
        .kills(&[BusyIgnored]),
    Scene::new("flushing-function", "called functions flush", 3, flushing_function)
        .rules(ANYWHERE)
        .steps(4_000)
        .kills(&[WaitsWhileServing]),
    Scene::new("deaf-flushers", "two CPUs flush and wait with interrupts off", 2, deaf_flushers)
        .rules(ANYWHERE)
        .steps(4_000)
        .kills(&[TurnNeverPolls]),
    Scene::new("unmasked", "kicks come in the middle of switches", 2, unmasked)
        .kills(&[ServesWhileSwitching]),
    Scene::new(
        "flushed-inside-a-switch",
        "non-maskable handlers flush the space that their CPU is on its way to",
        2,
        comes_back,
    )
    .interrupt(takes_from_the_other)
    .kills(&[SwitchingWorkBySlot]),
    Scene::new(
        "kernel-flushed-inside-a-switch",
        "split tables, and non-maskable handlers flush a kernel page while their CPU switches",
        2,
        comes_back,
    )
    .rules(Rules { facts: &SPLIT, ..Rules::USUAL })
    .interrupt(takes_from_the_kernel)
    .kills(&[SwitchingKernelFlush]),
    Scene::new("read-by-handlers", "non-maskable handlers read user memory", 2, read_by_handlers)
        .interrupt(reads_if_it_may)
        .kills(&[UserAccessWhileServing, UserAccessElsewhere, UserAccessLazy]),
];
