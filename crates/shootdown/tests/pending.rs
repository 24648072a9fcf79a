//! A change is pending from its count until every CPU has acknowledged: whoever finds the entry
//! cleared sees that, whatever flushes it, and whatever becomes of that flush.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with the examples and benches, which use other parts
mod mock;

use mock::*;
use shootdown::gather::{Array, Gather, Nothing};
use shootdown::lazy_unmap::{LazyUnmap, LazyUnmapping, Was, Why};
use shootdown::{
    AddressSpace, Batch, CpuId, Facts, FlushError, Invalidate, Platform, Policy, Request, Stride,
    VaRange,
};

static LAZY: Policy = Policy { lazy_unmap: Some(LazyUnmap::TWO_TICKS), ..Policy::SHOOTDOWN };

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

fn stats(cpu: u32) -> shootdown::stats::Snapshot {
    Mock::slot(CpuId(cpu)).unwrap().stats()
}

/// A space whose pages 1 to 3 CPU 1 has cached.
fn cached_on_1(policy: &'static Policy, facts: &'static Facts) -> &'static AddressSpace<Mock> {
    boot(3, policy, facts);
    let space = new_space();
    (1..4).for_each(|page| map(space, page, 10 * page));
    switch(1, space);
    (1..4).for_each(|page| assert!(on_cpu(1, |_| access(page)).is_some()));
    space
}

/// CPU 1 turns its interrupts on when it is waited for next.
fn answers_when_waited_for() {
    *world().during_wait.borrow_mut() = Some(Box::new(|| unmask(1)));
}

const POLICIES: [(&str, &Policy); 4] = [
    ("naive", &Policy::NAIVE),
    ("linux-5.13", &Policy::LINUX_5_13),
    ("shootdown", &Policy::SHOOTDOWN),
    ("lazy", &LAZY),
];

#[test]
fn a_flush_that_was_begun_is_pending_until_all_have_answered() {
    for (name, policy) in POLICIES {
        in_fresh_world(move || {
            let space = cached_on_1(policy, &PCID);
            mask(1);
            unmap(space, 1);
            let mut ticket = space.begin_flush(&here(), page(1)).unwrap();
            assert!(!ticket.poll(), "{name}: CPU 1 has its interrupts off");
            on_cpu(2, |pin| {
                assert!(space.is_pending(), "{name}");
                // Somebody who may not wait is told so, and does not go on as if the page were
                // gone.
                world().may_wait.set(false);
                assert_eq!(space.complete_pending(pin), Err(FlushError::WouldWait), "{name}");
                let gather = Gather::<Mock, Nothing>::new(space);
                assert!(gather.finish(pin).is_err(), "{name}: empty, and the page is in use");
                world().may_wait.set(true);
                answers_when_waited_for();
                space.complete_pending(pin).unwrap();
            });
            assert_eq!(on_cpu(1, |_| access(1)), None, "{name}");
            assert!(ticket.poll(), "{name}");
            assert!(!space.is_pending(), "{name}");
        });
    }
}

#[test]
fn an_empty_gather_waits_for_a_flush_that_was_begun() {
    let space = cached_on_1(&Policy::SHOOTDOWN, &PCID);
    mask(1);
    unmap(space, 1);
    let mut ticket = space.begin_flush(&here(), page(1)).unwrap();
    on_cpu(2, |pin| {
        answers_when_waited_for();
        let gather = Gather::<Mock, Nothing>::new(space);
        gather.finish(pin).unwrap_or_else(|(e, _)| panic!("{e}"));
        assert_eq!(on_cpu(1, |_| access(1)), None);
    });
    assert_eq!(stats(2).escalated_gathers, 0, "what is behind is known: a generation");
    assert!(ticket.poll());
}

#[test]
fn a_flush_is_pending_while_it_waits() {
    for (name, policy) in POLICIES {
        in_fresh_world(move || {
            let space = cached_on_1(policy, &PCID);
            mask(1);
            unmap(space, 1);
            *world().during_wait.borrow_mut() = Some(Box::new(move || {
                on_cpu(2, |pin| {
                    assert!(space.is_pending(), "{name}");
                    answers_when_waited_for();
                    space.complete_pending(pin).unwrap();
                });
                assert_eq!(on_cpu(1, |_| access(1)), None, "{name}");
            }));
            space.flush(&here(), page(1)).unwrap();
            assert!(!space.is_pending(), "{name}");
        });
    }
}

#[test]
fn nothing_is_unmapped_lazily_beside_a_flush_under_way() {
    let space = cached_on_1(&LAZY, &PCID);
    mask(1);
    let ticket = space.begin_flush(&here(), page(1)).unwrap();
    let mut later = LazyUnmapping::<Mock, Array<u64, 4>>::new(space);
    let frame = unmap(space, 2).unwrap();
    let refused = later.unmapped(&here(), 0, range(2), Was::ReadOnly, frame).unwrap_err();
    assert_eq!(refused.why, Why::Pending);
    unmask(1);
    ticket.wait(&here()).map_err(|(e, _)| e).unwrap();
    later.unmapped(&here(), 0, range(2), Was::ReadOnly, frame).unwrap();
    let frame = unmap(space, 3).unwrap();
    later.unmapped(&here(), 0, range(3), Was::ReadOnly, frame).unwrap(); // beside its own
    assert_eq!(later.redeem(&here()).unwrap().as_slice(), [20, 30]);
    assert!(!space.is_pending());
}

#[test]
fn a_ticket_that_is_dropped_leaves_its_flush_pending() {
    for freed_tables in [false, true] {
        in_fresh_world(move || {
            let space = cached_on_1(&Policy::SHOOTDOWN, &PCID);
            mask(1);
            unmap(space, 1);
            let request = Request { freed_tables, ..page(1) };
            drop(space.begin_flush(&here(), request).unwrap());
            assert!(space.is_pending());
            answers_when_waited_for();
            on_cpu(2, |pin| space.complete_pending(pin)).unwrap();
            assert_eq!(on_cpu(1, |_| access(1)), None);
            assert!(!space.is_pending());
        });
    }
}

#[test]
fn a_ticket_that_is_done_owes_nothing_when_it_is_dropped() {
    for facts in [&PCID, &ARM] {
        in_fresh_world(move || {
            let space = cached_on_1(&Policy::SHOOTDOWN, facts);
            unmap(space, 1);
            let mut ticket = space.begin_flush(&here(), page(1)).unwrap();
            assert!(ticket.poll() && ticket.poll());
            drop(ticket);
            // Nobody was to be waited for here.
            drop(new_space().begin_flush(&here(), page(1)).unwrap());
            assert!(!space.is_pending());
        });
    }
}

#[test]
fn a_batch_and_its_space_are_even_when_it_is_over() {
    for facts in [&PCID, &RISCV, &ARM] {
        in_fresh_world(move || {
            let space = cached_on_1(&Policy::SHOOTDOWN, facts);
            let mut batch = Batch::<Mock, Nothing>::new();
            for at in [1, 3] {
                unmap(space, at);
                batch.changed(space, range(at), false).unwrap();
                assert!(space.is_pending());
            }
            batch.finish(&here()).map_err(|(e, _)| e).unwrap();
            assert_eq!(on_cpu(1, |_| (access(1), access(3))), (None, None));
            assert!(!space.is_pending(), "also where hardware removes by name");
        });
    }
}

#[test]
fn flushes_that_end_in_another_order_leave_nothing_pending() {
    for facts in [&PCID, &ARM] {
        in_fresh_world(move || {
            let space = cached_on_1(&Policy::SHOOTDOWN, facts);
            mask(1);
            let mut batch = Batch::<Mock, Nothing>::new();
            batch.changed(space, range(1), false).unwrap();
            let mut ticket = space.begin_flush(&here(), page(2)).unwrap();
            answers_when_waited_for();
            space.flush(&here(), page(3)).unwrap();
            batch.finish(&here()).map_err(|(e, _)| e).unwrap();
            assert!(ticket.poll());
            assert!(!space.is_pending());
        });
    }
}

/// Nobody completes what was forgotten. Somebody flushes it once, and not again and again.
#[test]
fn a_flush_that_was_forgotten_is_flushed_once() {
    for facts in [&PCID, &ARM] {
        in_fresh_world(move || {
            let space = cached_on_1(&Policy::SHOOTDOWN, facts);
            let mut batch = Batch::<Mock, Nothing>::new();
            unmap(space, 1);
            batch.changed(space, range(1), false).unwrap();
            std::mem::forget(batch);
            assert!(space.is_pending());
            space.complete_pending(&here()).unwrap();
            assert_eq!(on_cpu(1, |_| access(1)), None);
            assert!(!space.is_pending());
            for at in [2, 3] {
                unmap(space, at);
                space.flush(&here(), page(at)).unwrap();
                assert!(
                    !space.is_pending(),
                    "a flush that is over, after the forgotten one was flushed"
                );
            }
        });
    }
}

/// CPU 2 has not taken the interrupt yet when it calls `complete_pending` itself. What it forgets
/// then is more than leaves.
#[test]
fn a_payment_for_freed_tables_removes_what_leads_to_them() {
    let space = cached_on_1(&Policy::SHOOTDOWN, &PCID);
    switch(2, space);
    mask(1);
    mask(2);
    unmap(space, 1);
    let request = Request { freed_tables: true, ..page(1) };
    let mut ticket = space.begin_flush(&here(), request).unwrap();
    world().invalidations.borrow_mut().clear();
    answers_when_waited_for();
    on_cpu(2, |pin| space.complete_pending(pin)).unwrap();
    let leaves_only = |what: &Invalidate| matches!(what, Invalidate::Range { leaf_only: true, .. });
    let done = world().invalidations.borrow();
    let on_2 = || done.iter().filter(|(cpu, _)| *cpu == 2);
    assert!(on_2().count() != 0 && !on_2().any(|(_, what)| leaves_only(what)), "{done:?}");
    assert!(ticket.poll());
}
