//! Flushes of one space that fail at the same time: which of their changes are pending, and which
//! are flushed.

use shootdown::gather::Nothing;
use shootdown::mutant::Mutant::*;
use shootdown::{Batch, FlushError, Platform, Stride, VaRange};
use shootdown_machine::hunt::hw;

use crate::check::mutants::kit::{enter, hear, kit, meet, page, tell, tree, user};
use crate::check::mutants::port::{self, Rig, Rules, Waits};
use crate::check::mutants::scene::Scene;

/// Takes a page of the first space, and flushes with interrupts off: nobody is waited for, and the
/// flush is pending.
fn takes_in_vain(at: u32) {
    hw::without_irqs(|| {
        let _ = tree(0).take(at);
        let _ = tree(0).space.flush(&Rig::pin(), page(at));
    });
}

/// CPU 0 puts a flush off, and flushes `by` some way. When CPU 1 has answered that, CPU 2's flush
/// of another page fails. CPU 0 relies on both pages if nobody is to be told any more.
fn pending_newest(cpu: u8, by: fn() -> Result<(), FlushError>) {
    port::come_online();
    match cpu {
        0 => {
            let mut batch: Batch<'static, Rig, Nothing> = Batch::new();
            meet(3);
            let _ = tree(0).take(0);
            let range = VaRange::new(0, 1, Stride::Page4K).expect("a page");
            batch.changed(tree(0).space, range, false).expect("room for a space");
            by().expect("CPU 0 may wait");
            core::mem::forget(batch); // that is flushed
            meet(5);
            relies_on_both(hw::without_irqs(|| tree(0).space.complete_pending(&Rig::pin())));
        }
        1 => answers_the_first(),
        _ => {
            meet(3);
            hear(4);
            takes_in_vain(1);
            tell(2);
            meet(4);
        }
    }
}

/// All is flushed, it is said.
fn relies_on_both(flushed: Result<(), FlushError>) {
    if flushed.is_ok() {
        hw::revoked(&[0, 1].map(|at| hw::latest(tree(0).word(at))));
    }
    tell(3);
}

/// CPU 1 answers once, and uses its pages again when CPU 0 is done.
fn answers_the_first() {
    enter(0);
    user();
    meet(3);
    hear(1);
    hw::set_irqs(false);
    tell(4);
    hear(3);
    user();
    hw::set_irqs(true);
}

/// CPU 0's flush and CPU 2's fail: nobody may wait. CPU 1 answers the first and not the second. CPU
/// 0 relies on both pages when all that is pending is flushed.
fn pending_older_last(cpu: u8) {
    port::come_online();
    let flushes = |at: u32| {
        let _ = tree(0).take(at);
        let _ = tree(0).space.flush(&Rig::pin(), page(at));
    };
    match cpu {
        0 => {
            meet(3);
            flushes(0);
            meet(5);
            relies_on_both(tree(0).space.complete_pending(&Rig::pin()));
        }
        1 => answers_the_first(),
        _ => {
            meet(3);
            hear(4);
            flushes(1);
            tell(2);
            meet(4);
        }
    }
}

/// CPU 1, which has answered, interrupts CPU 0. That goes on when CPU 2 has tried its flush.
fn holds_the_older(cpu: u8) {
    let first = kit().cells[usize::from(cpu)].replace(1) == 0;
    if cpu == 0 && first {
        hear(2);
    }
    port::answer();
    if cpu == 1 && first {
        assert!(hw::kick(shootdown::CpuId(0)));
        tell(1);
    }
}

fn pending_newest_flushed_by_another(cpu: u8) {
    pending_newest(cpu, || tree(0).space.complete_pending(&Rig::pin()));
}

fn pending_newest_flushed(cpu: u8) {
    pending_newest(cpu, || tree(0).space.flush(&Rig::pin(), page(4)).map(drop));
}

pub static SCENES: &[Scene] = &[
    Scene::new(
        "pending-newest",
        "a flush fails while an older change is flushed",
        3,
        pending_newest_flushed_by_another,
    )
    .interrupt(holds_the_older)
    .kills(&[PendingFlushesCurrent]),
    Scene::new(
        "pending-newest-flushed",
        "the same, where a flush of something else covers it",
        3,
        pending_newest_flushed,
    )
    .interrupt(holds_the_older)
    .kills(&[PendingCompletedByCurrent]),
    Scene::new(
        "pending-older-last",
        "of two flushes that fail the older is noted last",
        3,
        pending_older_last,
    )
    .rules(Rules { waits: Waits::Nowhere, ..Rules::USUAL })
    .interrupt(holds_the_older)
    .kills(&[PendingStores]),
];
