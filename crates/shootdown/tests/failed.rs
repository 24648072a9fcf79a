//! What is pending in a space when flushes fail at the same time.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with other tests, the examples and benches, which use other parts
mod mock;

use std::mem::ManuallyDrop;

use mock::*;
use shootdown::gather::Nothing;
use shootdown::{AddressSpace, Batch, FlushError, KickError, Policy, Request, Stride, VaRange};

fn range(page: u64) -> VaRange {
    VaRange::new(page << 12, 1, Stride::Page4K).unwrap()
}

fn page(page: u64) -> Request {
    Request::pages(range(page))
}

/// A batch that may be dropped while changes of it are pending: where a test fails.
fn batch<'a>() -> ManuallyDrop<Batch<'a, Mock, Nothing>> {
    ManuallyDrop::new(Batch::new())
}

fn finish(batch: ManuallyDrop<Batch<'_, Mock, Nothing>>) {
    let batch = ManuallyDrop::into_inner(batch);
    let done = on_cpu(0, |pin| batch.finish(pin).map_err(|(error, _)| error));
    done.expect("everybody can be reached");
}

/// A space that three CPUs use pages 5 and 6 of.
fn three() -> &'static AddressSpace<Mock> {
    boot(3, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    for cpu in 0..3 {
        for at in [5, 6, 7] {
            map(space, at, 10 * at);
        }
        switch(cpu, space);
        assert_eq!(on_cpu(cpu, |_| (access(5), access(6))), (Some(50), Some(60)));
    }
    space
}

/// CPU 1 unmaps page 6, and its flush fails to reach CPU 2.
fn fails_on_the_way(space: &'static AddressSpace<Mock>) {
    *world().after_kick.borrow_mut() = Some(Box::new(move || {
        let before = world().unreachable.replace(1 << 2);
        unmap(space, 6);
        let failed = on_cpu(1, |pin| space.flush(pin, page(6))).unwrap_err();
        assert!(matches!(failed, FlushError::Kick(KickError::Unreachable(_))), "{failed}");
        world().unreachable.set(before);
    }));
}

/// Somebody finds page 6 unmapped, and relies on it.
fn relies(space: &AddressSpace<Mock>) {
    world().unreachable.set(0);
    assert!(space.is_pending());
    on_cpu(0, |pin| space.complete_pending(pin)).expect("everybody can be reached now");
    assert!(!space.is_pending());
    for cpu in 0..3 {
        assert_eq!(on_cpu(cpu, |_| (access(5), access(6))), (None, None), "cpu{cpu}");
    }
}

/// CPU 0's flush (generation 1) reaches CPU 2 and not CPU 1. Before it says so, CPU 1's flush
/// (generation 2) fails to reach CPU 2. In the space the newer of the two is pending, although the
/// older one was noted last.
#[test]
fn of_two_failed_flushes_the_newer_is_owed_whichever_is_noted_last() {
    let space = three();
    fails_on_the_way(space);
    world().unreachable.set(1 << 1);
    unmap(space, 5);
    let failed = on_cpu(0, |pin| space.flush(pin, page(5))).unwrap_err();
    assert!(matches!(failed, FlushError::Kick(KickError::Unreachable(_))), "{failed}");
    relies(space);
}

/// What is completed is what CPUs were asked for, and not what was counted while they were.
#[test]
fn a_payment_covers_nothing_that_was_counted_after_it_began() {
    let space = three();
    let mut batch = batch();
    unmap(space, 5);
    batch.changed(space, range(5), false).expect("room for a space");
    fails_on_the_way(space);
    on_cpu(0, |pin| space.complete_pending(pin)).expect("everybody can be reached");
    relies(space);
    finish(batch);
}

#[test]
fn a_batch_pays_for_nothing_that_was_counted_after_it() {
    let space = three();
    let mut batch = batch();
    unmap(space, 5);
    batch.changed(space, range(5), false).expect("room for a space");
    fails_on_the_way(space);
    finish(batch);
    relies(space);
}

#[test]
fn a_flush_pays_for_nothing_that_was_counted_after_it() {
    let space = three();
    let mut batch = batch();
    unmap(space, 5);
    batch.changed(space, range(5), false).expect("room for a space");
    unmap(space, 7);
    fails_on_the_way(space);
    on_cpu(0, |pin| space.flush(pin, page(7))).expect("everybody can be reached");
    relies(space);
    finish(batch);
}

/// CPU 1 runs one space, and acknowledges at once; CPU 2 runs the other, and acknowledges when it
/// is waited for.
#[test]
fn a_batch_waits_for_each_of_its_spaces() {
    for first in [0, 1] {
        std::thread::scope(|s| {
            s.spawn(move || {
                boot(3, &Policy::SHOOTDOWN, &PCID);
                let spaces = [new_space(), new_space()];
                for (cpu, space) in (1..).zip(spaces) {
                    map(space, 5, 50);
                    switch(cpu, space);
                    assert_eq!(on_cpu(cpu, |_| access(5)), Some(50));
                }
                let mut batch = batch();
                for space in [spaces[first], spaces[1 - first]] {
                    unmap(space, 5);
                    batch.changed(space, range(5), false).expect("room for two spaces");
                }
                mask(2);
                *world().during_wait.borrow_mut() = Some(Box::new(|| unmask(2)));
                finish(batch);
                for cpu in [1, 2] {
                    assert_eq!(on_cpu(cpu, |_| access(5)), None, "cpu{cpu}");
                }
            });
        });
    }
}
