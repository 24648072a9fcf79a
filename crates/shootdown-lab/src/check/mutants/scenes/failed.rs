//! Flushes that fail: kicks that can't be raised, waits that are given up, and what is pending
//! after.

use shootdown::gather::{Array, Gather};
use shootdown::mutant::Mutant::*;
use shootdown::{Platform, Policy, Stride, VaRange};
use shootdown_machine::hostile::Descriptor;
use shootdown_machine::hunt::{Power, Powers, hw};

use crate::check::mutants::kit::{
    enter, hear, kit, lazy, meet, page, table, tell, tree, unmap_kernel, user,
};
use crate::check::mutants::port::{self, Rig, Rules};
use crate::check::mutants::scene::Scene;

static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

const GIVES_UP: Rules = Rules { gives_up: true, ..Rules::USUAL };
const FAILS: Powers = Powers::HOSTILE.with(Power::FailingKicks);

const fn policy(policy: &'static Policy) -> Rules {
    Rules { policy, ..Rules::USUAL }
}

/// A page is taken away; when that fails it is left at that.
fn taken(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(3);
        let _ = tree(0).unmap(0);
        return;
    }
    enter(0);
    user();
    meet(3);
    user();
    user();
}

/// A gather whose flush fails gives its items back with the error.
fn gathered(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        meet(3);
        user();
        user();
        return;
    }
    meet(3);
    let mut gather = Gather::<Rig, Array<u8, 4>>::new(tree(0).space);
    let change = hw::write_entry(tree(0).word(0), Descriptor::ABSENT);
    let range = VaRange::new(0, 1, Stride::Page4K).expect("a page");
    gather.unmapped(range, 0).expect("room");
    if gather.finish(&Rig::pin()).is_ok() {
        hw::revoked(&[change]);
    }
}

/// A table is freed. When its flush fails, the next flush that succeeds covers it too.
fn owed(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        lazy();
        meet(2);
        return;
    }
    meet(2);
    let (change, leaf) = tree(0).unhook_table(0);
    let mut done = tree(0).space.flush(&Rig::pin(), table(0)).is_ok();
    if !done {
        done = tree(0).space.flush(&Rig::pin(), page(4)).is_ok();
    }
    if done {
        hw::revoked(&[change]);
        hw::free_table(leaf);
    }
}

/// As [`owed`], with flushes that are begun and polled: the first fails to begin.
fn pending_begun(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
        lazy();
        meet(2);
        return;
    }
    meet(2);
    let pin = Rig::pin();
    let (change, leaf) = tree(0).unhook_table(0);
    let first = tree(0).space.begin_flush(&pin, table(0));
    let ticket = match first {
        Ok(ticket) => ticket,
        Err(_) => match tree(0).space.begin_flush(&pin, page(4)) {
            Ok(ticket) => ticket,
            Err(_) => return,
        },
    };
    let mut ticket = ticket;
    while !ticket.poll() {
        hw::relax();
    }
    hw::revoked(&[change]);
    hw::free_table(leaf);
}

/// Two CPUs leave changes pending: the flush that covers the first does not cover the second.
/// That one may have been answered before: CPU 1 has come back and turned lazy again.
fn pending_by_two(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        user();
        lazy();
        meet(3);
        hear(0);
        enter(0);
        user();
        lazy();
        assert!(hw::kick(shootdown::CpuId(0)));
        tell(1);
        return;
    }
    meet(3);
    if cpu == 2 {
        hear(1);
    }
    let i = cpu / 2;
    let (change, leaf) = tree(0).unhook_table(i);
    let pin = Rig::pin();
    // With interrupts off nobody is waited for: it fails.
    let mut done = hw::without_irqs(|| tree(0).space.flush(&pin, table(i)).is_ok());
    tell(usize::from(cpu));
    if !done {
        done = tree(0).space.flush(&pin, page(2)).is_ok();
    }
    if done {
        hw::revoked(&[change]);
        hw::free_table(leaf);
    }
}

/// A table is unhooked and everything is flushed. When that fails, a flush of the kernel's page, if
/// it succeeds, reaches the table too.
fn kernel_pending_once() {
    let pin = Rig::pin();
    let (change, leaf) = tree(0).unhook_table(0);
    let done = shootdown::flush_everything::<Rig>(&pin).is_ok() || unmap_kernel().is_ok();
    if done {
        hw::revoked(&[change]);
        hw::free_table(leaf);
    }
}

/// A flush of everything fails, and the next of the kernel's page does not.
fn kernel_pending(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(0);
        user();
    }
    meet(2);
    if cpu == 0 {
        kernel_pending_once();
    }
}

/// Between the two, another CPU's flush of everything is over, which had begun before, and which
/// CPU 1 had answered before the table was unhooked.
fn kernel_pending_by_two(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        user();
    }
    meet(3);
    let pin = Rig::pin();
    match cpu {
        0 => {
            let (change, leaf) = hw::without_irqs(|| {
                hear(1);
                let unhooked = tree(0).unhook_table(0);
                let refused = shootdown::flush_everything::<Rig>(&pin);
                assert!(refused.is_err(), "nobody waits with interrupts off");
                unhooked
            });
            hear(2);
            if unmap_kernel().is_ok() {
                hw::revoked(&[change]);
                hw::free_table(leaf);
            }
        }
        1 => {}
        _ => {
            let _ = shootdown::flush_everything::<Rig>(&pin);
            tell(2);
        }
    }
}

/// The others are told that CPU 1 has answered.
fn tells_of_its_answer(cpu: u8) {
    port::answer();
    if cpu == 1 {
        tell(1);
    }
}

/// CPU 0 goes on with its flush when CPU 2 has tried its own.
fn lets_the_other_fail(cpu: u8) {
    if cpu == 0 && kit().cells[0].replace(1) == 0 {
        hear(2);
    }
    port::answer();
}

/// A function is called on two CPUs. When the call is over, given up or not, it runs nowhere.
fn over(cpu: u8) {
    port::come_online();
    meet(3);
    if cpu != 0 {
        return;
    }
    let _ = shootdown::call_on::<Rig, _>(&Rig::pin(), &super::calls::set(&[1, 2]), &|_| {
        super::ran_here();
        assert!(kit().cells[0].get() == 0, "calls: the call is over, and its function runs");
    });
    kit().cells[0].set(1);
}

/// A function is called on two CPUs; when that succeeds, it has run on both.
fn call(cpu: u8) {
    port::come_online();
    meet(3);
    if cpu != 0 {
        return;
    }
    let pin = Rig::pin();
    let mut targets = Rig::system().online();
    shootdown::cpu_set::Bits::remove(&mut targets, port::number(0));
    let done = shootdown::call_on::<Rig, _>(&pin, &targets, &|_| super::ran_here());
    if done.is_ok() {
        super::all_ran(&[1, 2]);
    }
}

pub static SCENES: &[Scene] = &[
    Scene::new("kick-fails-push", "a posted flush can't raise an interrupt", 3, taken)
        .rules(policy(&Policy::LINUX_5_13))
        .powers(FAILS)
        .kills(&[PushErrorForgotten]),
    Scene::new("kick-fails-tree", "a flush by tree can't raise an interrupt", 3, taken)
        .rules(policy(&TREE))
        .powers(FAILS)
        .kills(&[TreeErrorForgotten]),
    Scene::new("kick-fails-gather", "a gather can't raise an interrupt", 3, gathered)
        .powers(FAILS)
        .kills(&[GatherErrorForgotten]),
    Scene::new("kick-fails-call", "a call can't raise an interrupt", 3, call)
        .powers(FAILS)
        .kills(&[CallErrorForgotten, CancelForgotten]),
    Scene::new("kick-fails-large-call", "a large call can't raise an interrupt", 3, call)
        .rules(policy(&TREE))
        .powers(FAILS)
        .kills(&[TreeNotTakenBack]),
    Scene::new("gives-up", "a flush gives up waiting", 3, taken)
        .rules(GIVES_UP)
        .kills(&[StallForgotten]),
    Scene::new("gives-up-tree", "a flush by tree gives up waiting", 3, taken)
        .rules(Rules { gives_up: true, ..policy(&TREE) })
        .kills(&[TreeStallForgotten]),
    Scene::new("gives-up-call", "a call gives up waiting", 3, call)
        .rules(GIVES_UP)
        .kills(&[CallStallForgotten]),
    Scene::new("gives-up-begun", "a call gives up while its function runs", 3, over)
        .rules(GIVES_UP)
        .kills(&[RetractTrusts]),
    Scene::new("pending", "what a failed flush leaves pending is flushed by the next", 2, owed)
        .rules(GIVES_UP)
        .kills(&[TablesPendingForgotten, TablesPendingIgnored, PendingCompletedByFailure]),
    Scene::new("pending-begun", "the same with flushes that are begun", 2, pending_begun)
        .powers(FAILS)
        .kills(&[BeginTablesPendingForgotten, BeginTablesPendingIgnored]),
    Scene::new(
        "pending-by-two",
        "two CPUs leave changes pending, and each flushes its own",
        3,
        pending_by_two,
    )
    .interrupt(lets_the_other_fail)
    .kills(&[TablesPendingCompletedTwice]),
    Scene::new(
        "kernel-pending",
        "what a failed flush of everything leaves pending is flushed by the next",
        2,
        kernel_pending,
    )
    .powers(FAILS)
    .kills(&[KernelPendingForgotten, KernelOutstandingIgnored]),
    Scene::new(
        "kernel-pending-by-two",
        "a flush of everything covers what failed before it",
        3,
        kernel_pending_by_two,
    )
    .interrupt(tells_of_its_answer)
    .kills(&[KernelPendingCompletedTwice]),
];
