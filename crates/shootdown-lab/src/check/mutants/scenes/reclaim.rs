//! Flushes that are put off: batches across spaces, gathers at the same time, and whose flush
//! covers whose.

use shootdown::gather::{Array, Gather, Nothing};
use shootdown::mutant::Mutant::*;
use shootdown::{Batch, Policy, Stride, VaRange};
use shootdown::{FlushError, Platform};
use shootdown_machine::hostile::Frame;
use shootdown_machine::hunt::{Power, Powers, hw};
use shootdown_machine::oracle::Invariant;

use crate::check::mutants::kit::{enter, meet, page, tree, user};
use crate::check::mutants::port::{self, Rig, Rules};
use crate::check::mutants::scene::Scene;

const FAILS: Powers = Powers::HOSTILE.with(Power::FailingKicks);
static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

const fn policy(policy: &'static Policy) -> Rules {
    Rules { policy, ..Rules::USUAL }
}

type Frames = Array<Frame, 4>;

fn range(at: u32) -> VaRange {
    VaRange::new(u64::from(at) << 12, 1, Stride::Page4K).expect("a page")
}

/// CPU 1 uses the first space and CPU 2 the second, before and after the pages go.
fn uses(cpu: u8) {
    enter(usize::from(cpu) - 1);
    user();
    meet(3);
    user();
    user();
}

/// The page of a space, unmapped for a batch.
fn put_off(batch: &mut Batch<'static, Rig, Frames>, space: usize, dirty: bool) -> hw::Change {
    let frame = hw::read_entry(tree(space).word(0)).frame();
    let change = tree(space).take(0);
    batch.unmapped(tree(space).space, range(0), dirty, frame).expect("there is room");
    change
}

/// The page of each of two spaces goes in one batch, which is finished again if it fails.
fn batch(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        return uses(cpu);
    }
    meet(3);
    finish_two();
}

fn finish_two() {
    let pin = Rig::pin();
    let mut batch = Batch::default();
    let changes = [put_off(&mut batch, 0, false), put_off(&mut batch, 1, false)];
    let done = match batch.finish(&pin) {
        Err((_, batch)) => batch.finish(&pin),
        done => done,
    };
    match done {
        Ok(frames) => {
            hw::revoked(&changes);
            frames.for_each(hw::free_frame);
        }
        Err((_, batch)) => core::mem::forget(batch),
    }
}

/// A dirty page is written back before the batch is finished.
fn write_back(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        return uses(cpu);
    }
    meet(3);
    let pin = Rig::pin();
    let frame = hw::read_entry(tree(0).word(0)).frame();
    let mut batch = Batch::default();
    let changes = [put_off(&mut batch, 0, true), put_off(&mut batch, 1, false)];
    batch.before_write_back(&pin).expect("CPU 0 may wait");
    hw::seal(frame, Invariant::WriteBack);
    let frames = batch.finish(&pin).unwrap_or_else(|(e, _)| panic!("CPU 0 may wait: {e}"));
    hw::revoked(&changes);
    frames.for_each(hw::free_frame);
}

/// CPU 0's batch comes while CPU 1, which uses the same space, waits for CPU 0 to answer a flush.
fn batch_meets_flush(cpu: u8) {
    port::come_online();
    if cpu != 0 {
        enter(usize::from(cpu) - 1);
        user();
        meet(3);
        let _ = tree(usize::from(cpu) - 1).unmap(1);
        user();
        user();
        return;
    }
    enter(0);
    meet(3);
    finish_two();
}

/// Who comes to an entry that somebody else has cleared: nothing is to be used of it any more.
fn relies_on_it(done: Result<(), FlushError>) {
    if done.is_ok() {
        hw::revoked(&[hw::latest(tree(0).word(0))]);
    }
}

/// CPU 1 uses the page until it is told; CPU 0 `clears` it, under the table lock so to speak, and
/// sees to the flush in some way; CPU 2 `finds` it cleared.
fn found(cpu: u8, clears: fn(fn()), finds: fn() -> Result<(), FlushError>) {
    port::come_online();
    match cpu {
        0 => clears(|| meet(3)),
        1 => {
            enter(0);
            user();
            meet(1);
            user();
            user();
        }
        _ => {
            meet(3);
            relies_on_it(finds());
        }
    }
}

/// As [`found`], with what CPU 1 does last before it answers, which must be over for CPU 2 too.
fn found_over(cpu: u8, clears: fn(fn()), finds: fn() -> Result<(), FlushError>) {
    port::come_online();
    match cpu {
        0 => {
            meet(3);
            clears(|| meet(5));
        }
        1 => {
            enter(0);
            hw::set_irqs(false);
            meet(3);
            user();
            hw::set_irqs(true);
        }
        _ => {
            meet(3);
            meet(5);
            if finds().is_ok() && !port::uses_are_over(1) {
                hw::violation(Invariant::FrameReuse, "what CPU 1 used may come later".to_owned());
            }
        }
    }
}

fn completes() -> Result<(), FlushError> {
    tree(0).space.complete_pending(&Rig::pin())
}

fn gathers_nothing() -> Result<(), FlushError> {
    let gather = Gather::<Rig, Nothing>::new(tree(0).space);
    gather.finish(&Rig::pin()).map(drop).map_err(|(e, _)| e)
}

/// For a batch that is finished later.
fn clears_for_batch(unlock: fn()) {
    let mut batch = Batch::default();
    let _ = put_off(&mut batch, 0, false);
    unlock();
    if let Err((_, batch)) = batch.finish(&Rig::pin()) {
        core::mem::forget(batch);
    }
}

/// And flushes in vain: with interrupts off nobody is waited for.
fn clears_without_need(unlock: fn()) {
    let _ = tree(0).take(0);
    let _ = hw::without_irqs(|| tree(0).space.flush(&Rig::pin(), page(0)));
    unlock();
}

/// In a gather.
fn clears_in_gather(unlock: fn()) {
    let mut gather = Gather::<Rig, Nothing>::new(tree(0).space);
    let _ = tree(0).take(0);
    gather.changed(range(0));
    unlock();
    gather.finish(&Rig::pin()).unwrap_or_else(|(e, _)| panic!("CPU 0 may wait: {e}"));
}

fn found_pending(cpu: u8) {
    found(cpu, clears_for_batch, completes);
}

fn found_failed(cpu: u8) {
    found(cpu, clears_without_need, completes);
}

fn nested(cpu: u8) {
    found(cpu, clears_in_gather, gathers_nothing);
}

fn nested_over(cpu: u8) {
    found_over(cpu, clears_in_gather, gathers_nothing);
}

const NOTES: Rules = Rules { notes: true, ..Rules::USUAL };

pub static SCENES: &[Scene] = &[
    Scene::new("batch", "pages of two spaces go in one batch", 3, batch).kills(&[
        BatchFlushesNothing,
        BatchFlushesFirstOnly,
        PendingAsksNobody,
        PullWaitsFirst,
    ]),
    Scene::new("batch-push", "the same with posted requests", 3, batch)
        .rules(policy(&Policy::LINUX_5_13))
        .kills(&[BatchPushedToFirst]),
    Scene::new("batch-tree", "a batch by tree, while its targets flush", 3, batch_meets_flush)
        .rules(policy(&TREE))
        .kills(&[BatchTreeCatchesNothing]),
    Scene::new("batch-fails", "a batch can't raise an interrupt", 3, batch)
        .powers(FAILS)
        .kills(&[BatchErrorForgotten]),
    Scene::new("batch-write-back", "a dirty page is written back first", 3, write_back)
        .kills(&[DirtyUnmappingForgotten]),
    Scene::new(
        "found-pending",
        "who finds an entry cleared calls `complete_pending`",
        3,
        found_pending,
    )
    .kills(&[OutstandingIgnored, PutOffForgotten]),
    Scene::new("found-failed", "a flush failed before somebody finds the entry", 3, found_failed)
        .kills(&[FailedFlushForgotten]),
    Scene::new("nested", "a gather with nothing in it, beside another", 3, nested).kills(&[
        GatherNotCounted,
        NestedGatherIgnored,
        GatherClosesFirst,
    ]),
    Scene::new("nested-over", "who finds no other gather relies on the answers", 3, nested_over)
        .rules(NOTES)
        .kills(&[GathersSeenRelaxed]),
];
