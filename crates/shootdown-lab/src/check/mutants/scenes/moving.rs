//! x86 with INVLPGB: a space goes over from slots to a tag for all CPUs, while it runs and is
//! flushed.
//!
//! Every flush looks whether the space should have a tag: the first one that is over gives it one.

use shootdown::facts::Broadcast;
use shootdown::mutant::Mutant::*;
use shootdown::tags::shared::Threshold;
use shootdown::{Facts, Platform, Policy};
use shootdown_machine::hunt::{Power, Powers, hw};
use shootdown_machine::oracle::Invariant;

use crate::check::mutants::kit::{
    self, deep_idle, enter, hear, lazy, meet, page, retire, tell, tree, user,
};
use crate::check::mutants::port::{self, Rig, Rules, TAGGED};
use crate::check::mutants::scene::Scene;

static INVLPGB: Facts = Facts { broadcast: Broadcast::Invlpgb { max_pages: 8 }, ..TAGGED };
static AT_ONCE: Policy =
    Policy { shared: Threshold { above: 0, every: 1, alone: 0 }, ..Policy::SHOOTDOWN };

/// So many tags for all CPUs.
const fn tags(shared_tags: u8) -> Rules {
    Rules { facts: &INVLPGB, policy: &AT_ONCE, shared_tags, ..Rules::USUAL }
}

const NOTES: Rules = Rules { notes: true, ..tags(2) };

/// Flushes a page in which nothing has changed, and so gives the space a tag, or settles its move.
fn flush(space: usize) {
    tree(space).space.flush(&Rig::pin(), page(3)).expect("tasks may wait");
}

fn unmap(space: usize, at: u32) {
    tree(space).unmap(at).expect("tasks may wait");
}

/// CPU 1 was in the space, and comes back while it gets a tag and pages of it are taken away.
fn comes(cpu: u8) {
    port::come_online();
    enter(0);
    user();
    if cpu == 0 {
        meet(2);
        flush(0);
        unmap(0, 0);
        unmap(0, 1);
        return;
    }
    enter(1);
    meet(2);
    enter(0);
    user();
    user();
}

/// CPU 1 comes back to a space that has a tag already, and all of whose CPUs run under it.
fn comes_late(cpu: u8) {
    port::come_online();
    enter(0);
    user();
    if cpu == 0 {
        flush(0);
        flush(0);
        meet(2);
        unmap(0, 0);
        unmap(0, 1);
        return;
    }
    enter(1);
    meet(2);
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
        flush(0);
        unmap(0, 0);
        unmap(0, 1);
        return;
    }
    user();
    user();
    user();
}

/// The same, and a table goes.
fn stays_freed(cpu: u8) {
    port::come_online();
    enter(0);
    user();
    meet(2);
    if cpu == 0 {
        flush(0);
        tree(0).free_table(0).expect("tasks may wait");
        return;
    }
    user();
    user();
}

/// Both CPUs use the space and flush it.
fn both_flush(cpu: u8) {
    port::come_online();
    enter(0);
    user();
    meet(2);
    if cpu == 0 {
        unmap(0, 0);
        unmap(0, 1);
        return;
    }
    flush(0);
    user();
    user();
}

/// CPU 1 goes from a space with a tag to one without, that gets one.
fn two_spaces(cpu: u8) {
    port::come_online();
    match cpu {
        0 => {
            meet(3);
            unmap(0, 0);
            unmap(0, 1);
        }
        1 => {
            enter(1);
            flush(1);
            flush(1);
            meet(3);
            enter(0);
            user();
            user();
        }
        _ => {
            enter(0);
            meet(3);
            flush(0);
        }
    }
}

/// CPU 1 replays what it has missed of a space under a slot, when it comes from one under the tag.
fn replays(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        return unmap(1, 0);
    }
    enter(1);
    user();
    enter(0);
    flush(0);
    flush(0);
    user();
    meet(2);
    enter(1);
    user();
    enter(0);
    user();
}

/// CPU 1 goes from a space under a slot to one under the tag, and is told there.
fn told_under_tag(cpu: u8) {
    port::come_online();
    match cpu {
        0 => {
            enter(0);
            flush(0);
            meet(2);
            unmap(1, 0);
            for _ in 0..2 {
                flush(0);
            }
        }
        _ => {
            enter(1);
            user();
            meet(2);
            enter(0);
            user();
            enter(1);
            user();
        }
    }
}

/// A page is taken away by a ticket.
fn by_ticket(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        meet(3);
        enter(0);
        user();
        user();
        return;
    }
    enter(0);
    meet(3);
    if cpu == 2 {
        flush(0);
        return;
    }
    let unmapped = tree(0).unmap_by(0, || {
        let mut ticket = tree(0).space.begin_flush(&Rig::pin(), page(0))?;
        while !ticket.poll() {
            hw::relax();
        }
        Ok::<_, shootdown::FlushError>(())
    });
    unmapped.expect("kicks do not fail here");
}

/// CPU 1 runs under the tag and CPU 2 under a slot, and CPU 0's kicks fail.
fn kicks_fail(cpu: u8, begun: bool) {
    port::come_online();
    match cpu {
        0 => {
            enter(0);
            meet(3);
            flush_until_done();
            tell(0);
            hear(1);
            let change = tree(0).take(0);
            let first = if begun {
                tree(0).space.begin_flush(&Rig::pin(), page(0)).map(|ticket| {
                    let _ = ticket.wait(&Rig::pin());
                })
            } else {
                tree(0).space.flush(&Rig::pin(), page(0)).map(drop)
            };
            if first.is_ok() || flush_until_done() {
                hw::revoked(&[change]);
            }
        }
        1 => {
            meet(3);
            hear(0);
            enter(0);
            user();
            tell(1);
            user();
            user();
            user();
        }
        _ => {
            enter(0);
            meet(3);
        }
    }
}

fn flush_until_done() -> bool {
    (0..20).any(|_| tree(0).space.flush(&Rig::pin(), page(3)).is_ok())
}

fn kick_fails(cpu: u8) {
    kicks_fail(cpu, false);
}

fn kick_fails_begun(cpu: u8) {
    kicks_fail(cpu, true);
}

/// The one tag goes from a space that ends to another, and CPU 1 has run both.
fn comes_back_clean(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        enter(0);
        flush(0);
        tell(0);
        enter(2);
        meet(2);
        retire(0).expect("nobody uses it");
        enter(1);
        flush(1);
        tell(1);
        return;
    }
    hear(0);
    enter(0);
    user();
    enter(2);
    meet(2);
    hear(1);
    enter(1);
    user();
}

/// The one tag is released while CPU 1 has the space that ends loaded lazily.
fn ends_lazily(cpu: u8) {
    port::come_online();
    match cpu {
        0 => {
            enter(0);
            flush(0);
            tell(0);
            deep_idle();
            meet(3);
            retire(0).expect("CPU 0 may wait");
        }
        1 => {
            hear(0);
            enter(0);
            user();
            lazy();
            meet(3);
            hear(1);
            enter(1);
            user();
        }
        _ => {
            enter(1);
            meet(3);
            flush(1);
            flush(1);
            tell(1);
        }
    }
}

/// CPU 1 raises the interrupt of CPU 0, whose handler flushes while CPU 0 may be giving out a tag.
fn flushes_alone(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        hear(0);
        let _ = hw::kick(shootdown::CpuId(0));
        return;
    }
    enter(0);
    tell(0);
    flush(0);
    deep_idle();
}

fn handler_flushes(cpu: u8) {
    port::answer();
    if cpu == 0 {
        let _ = tree(0).space.flush(&Rig::pin(), page(0));
    }
}

/// CPU 1 has used the space under a slot when it is told to take the tag.
fn moves_and_is_known(cpu: u8) {
    port::come_online();
    enter(0);
    meet(2);
    if cpu == 0 {
        flush(0);
        tell(0);
        meet(4);
        unmap(0, 0);
        return known();
    }
    hear(0);
    hw::set_irqs(false);
    meet(4);
    user();
    hw::set_irqs(true);
}

fn known() {
    if !port::uses_are_over(1) {
        hw::violation(Invariant::FrameReuse, "what CPU 1 used may come later".to_owned());
    }
}

/// CPU 1 has used the space under a slot and left, CPU 2 settles the move, CPU 0 relies on that.
fn settled_by_another(cpu: u8) {
    port::come_online();
    match cpu {
        0 => {
            hear(1);
            unmap(0, 0);
            known();
        }
        1 => {
            enter(0);
            user();
            tell(1);
        }
        _ => {
            enter(0);
            hear(1);
            flush(0);
            flush(0);
        }
    }
}

/// CPU 1 goes from a slot to a space under the tag, and CPU 0 frees a table of the one it has left.
fn leaves_and_is_known(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        let (change, table) = tree(1).unhook_table(0);
        tree(1).space.flush(&Rig::pin(), kit::table(0)).expect("CPU 0 may wait");
        if !port::forgetting_is_over(1) {
            hw::violation(
                Invariant::TableReuse,
                "what CPU 1 did to forget may come later".to_owned(),
            );
        }
        hw::revoked(&[change]);
        return hw::free_table(table);
    }
    enter(0);
    flush(0);
    flush(0);
    enter(1);
    hw::set_irqs(false);
    meet(2);
    enter(0);
    hw::set_irqs(true);
}

pub static SCENES: &[Scene] = &[
    Scene::new("moving", "a CPU comes back to a space that gets a tag for all CPUs", 2, comes)
        .rules(tags(2))
        .kills(&[
            SharedTagNotLoaded,
            SharedTagNotLookedAtAgain,
            SharedTagReadFirst,
            SharedStayUnsaid,
        ]),
    Scene::new("moved", "a CPU comes back to a space that has one", 2, comes_late)
        .rules(tags(2))
        .kills(&[MovedNotBroadcast, SharedBroadcastWithoutSync, SharedBroadcastEarly]),
    Scene::new("moving-used", "a CPU uses a space that gets a tag for all CPUs", 2, stays)
        .rules(tags(2))
        .kills(&[FilterForgetsSlots, MoveOverLoadsNothing, MoveOverUnsaid, MovingCountsAsMoved]),
    Scene::new("moving-freed", "the same, and a table is freed", 2, stays_freed)
        .rules(tags(2))
        .kills(&[MoveOverSaysFirst]),
    Scene::new(
        "moving-both",
        "both CPUs flush a space that gets a tag for all CPUs",
        2,
        both_flush,
    )
    .rules(tags(2))
    .kills(&[SettleIgnoresSlots, LoadedTagOfSlot, SharedTagOverwritten]),
    Scene::new(
        "moving-between",
        "a CPU comes from a space with a tag to one that gets one",
        3,
        two_spaces,
    )
    .rules(tags(2))
    .kills(&[SettleReadsSetFirst, SettleWithoutSharedFence, SettleIgnoresSwitching]),
    Scene::new(
        "moved-replays",
        "a CPU comes from the tag to a slot that has missed a step",
        2,
        replays,
    )
    .rules(tags(2))
    .kills(&[SharedStayRemembered]),
    Scene::new(
        "moved-told",
        "a CPU under the tag is told, and goes back to its slot",
        2,
        told_under_tag,
    )
    .rules(tags(2))
    .kills(&[SharedAcknowledgesBySlot]),
    Scene::new("moving-ticket", "a page of such a space is taken away by a ticket", 3, by_ticket)
        .rules(tags(2))
        .kills(&[TicketNotLookedAtAgain]),
    Scene::new(
        "moving-kick-fails",
        "a flush of such a space can't raise an interrupt",
        3,
        kick_fails,
    )
    .rules(tags(2))
    .powers(Powers::HOSTILE.with(Power::FailingKicks))
    .kills(&[SharedFlushNotPending]),
    Scene::new("moving-begun-fails", "the same of a flush that is begun", 3, kick_fails_begun)
        .rules(tags(2))
        .powers(Powers::HOSTILE.with(Power::FailingKicks))
        .kills(&[SharedBeginNotPending]),
    Scene::new(
        "moved-ends",
        "the only tag goes from a space that ends to another",
        2,
        comes_back_clean,
    )
    .rules(tags(1))
    .kills(&[SharedResetLocal, SharedResetWithoutSync]),
    Scene::new(
        "moved-ends-lazily",
        "the same, and a CPU has the first loaded lazily",
        3,
        ends_lazily,
    )
    .rules(tags(1))
    .kills(&[SharedTagReleasedEarly]),
    Scene::new(
        "moving-in-handler",
        "a handler flushes while its CPU gives out a tag",
        2,
        flushes_alone,
    )
    .rules(tags(2))
    .interrupt(handler_flushes)
    .kills(&[HandlersAssign]),
    Scene::new("moving-known", "a CPU takes the tag, and the flusher knows", 2, moves_and_is_known)
        .rules(NOTES)
        .kills(&[MoveOverRelaxed]),
    Scene::new(
        "settled-known",
        "a third CPU settles the move, and the flusher knows",
        3,
        settled_by_another,
    )
    .rules(NOTES)
    .kills(&[SharedTagRelaxed]),
    Scene::new(
        "moved-known",
        "a CPU goes to a space under the tag, and the flusher knows",
        2,
        leaves_and_is_known,
    )
    .rules(NOTES)
    .kills(&[SharedLoadedRelaxed]),
];
