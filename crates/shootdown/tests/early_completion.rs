//! Hardware that says too early that a broadcast is complete: what ends the accesses in flight, and
//! who knows of it.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with the examples and benches, which use other parts
mod mock;

use mock::*;
use shootdown::facts::Errata;
use shootdown::{
    AddressSpace, Batch, Facts, Platform, Policy, Request, Strategy, Stride, VaRange,
    gather::Nothing,
};

static EARLY: Facts = Facts { errata: Errata { completes_early: true, ..ARM.errata }, ..ARM };
static ALWAYS: Policy = Policy { broadcast: Some(Strategy::Always), ..Policy::SHOOTDOWN };
static STICKY: Policy = Policy { broadcast: Some(Strategy::Sticky), ..Policy::SHOOTDOWN };

fn range(page: u64) -> VaRange {
    VaRange::new(page << 12, 1, Stride::Page4K).unwrap()
}

fn page(page: u64) -> Request {
    Request::pages(range(page))
}

fn here() -> Pin {
    Mock::pin()
}

fn in_fresh_world(f: impl FnOnce() + Send) {
    std::thread::scope(|s| s.spawn(f).join().unwrap());
}

/// Two spaces; CPU 1 uses pages 1 and 2 of the first.
fn cached_on_1(policy: &'static Policy) -> [&'static AddressSpace<Mock>; 2] {
    boot(3, policy, &EARLY);
    let spaces = [new_space(), new_space()];
    for page in [1, 2] {
        map(spaces[0], page, 10 * page);
    }
    switch(1, spaces[0]);
    assert_eq!(on_cpu(1, |_| (access(1), access(2))), (Some(10), Some(20)));
    spaces
}

/// CPU 1 goes elsewhere, takes the interrupt there, and comes back.
fn takes_it_elsewhere(spaces: [&'static AddressSpace<Mock>; 2]) {
    switch(1, spaces[1]);
    unmask(1);
    switch(1, spaces[0]);
}

#[test]
fn who_was_interrupted_in_another_space_has_answered() {
    for policy in [&ALWAYS, &STICKY] {
        in_fresh_world(move || {
            let spaces = cached_on_1(policy);
            mask(1);
            *world().during_wait.borrow_mut() = Some(Box::new(move || takes_it_elsewhere(spaces)));
            unmap(spaces[0], 1);
            spaces[0].flush(&here(), page(1)).unwrap();
            assert_eq!(on_cpu(1, |_| access(1)), None);
        });
    }
}

#[test]
fn a_ticket_hears_of_it_too() {
    let spaces = cached_on_1(&ALWAYS);
    mask(1);
    unmap(spaces[0], 1);
    let mut ticket = spaces[0].begin_flush(&here(), page(1)).unwrap();
    assert!(!ticket.poll());
    takes_it_elsewhere(spaces);
    assert!(ticket.poll());
}

#[test]
fn a_batch_hears_of_it_too() {
    let spaces = cached_on_1(&ALWAYS);
    mask(1);
    let mut batch = Batch::<Mock, Nothing>::new();
    unmap(spaces[0], 1);
    batch.changed(spaces[0], range(1), false).unwrap();
    *world().during_wait.borrow_mut() = Some(Box::new(move || takes_it_elsewhere(spaces)));
    batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!(on_cpu(1, |_| access(1)), None);
}

/// CPU 2 has counted its change, and not invalidated yet, when CPU 0's flush interrupts CPU 1. That
/// is no answer to CPU 2.
#[test]
fn an_interrupt_answers_for_what_was_complete_before_it() {
    let spaces = cached_on_1(&ALWAYS);
    unmap(spaces[0], 1);
    *world().during_invalidation.borrow_mut() = Some(Box::new(move || {
        on_cpu(0, |pin| {
            unmap(spaces[0], 2);
            spaces[0].flush(pin, page(2)).unwrap();
        });
        mask(1);
        *world().during_wait.borrow_mut() = Some(Box::new(|| unmask(1)));
    }));
    on_cpu(2, |pin| spaces[0].flush(pin, page(1))).unwrap();
    assert_eq!(on_cpu(1, |_| (access(1), access(2))), (None, None));
}
