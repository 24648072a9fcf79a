//! What a hypervisor does of a flush, step by step, on a mock with synchronous interrupts.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with other tests, which use other parts
mod mock;

use mock::*;
use shootdown::cpu_set::{Bits, CpuSet};
use shootdown::paravirt::PreemptedWord;
use shootdown::{
    AddressSpace, CallError, CpuId, FlushError, Platform, Policy, Request, Stride, VaRange,
    call_on, flush_everything, flush_kernel,
};

static MARKS: Policy = Policy::SHOOTDOWN;
static TREE: Policy = Policy { tree_above: 1, ..MARKS };
static PUSH: Policy = Policy::LINUX_5_13;
static CALLS: Policy = Policy { hypercall_from: 2, ..MARKS };
static TREE_CALLS: Policy = Policy { tree_above: 1, ..CALLS };
static PUSH_CALLS: Policy = Policy { hypercall_from: 2, ..PUSH };

fn pages(page: u64, count: u64) -> VaRange {
    VaRange::new(page << 12, count, Stride::Page4K).unwrap()
}

fn in_fresh_world(f: impl FnOnce() + Send) {
    std::thread::scope(|s| s.spawn(f).join().unwrap());
}

fn each(policies: &[&'static Policy], f: impl Fn(&'static AddressSpace<Mock>) + Sync) {
    for policy in policies {
        in_fresh_world(|| f(guest(policy)));
    }
}

/// A guest whose CPUs 0 to 3 run in a space and have cached its pages 1 to 8; CPU 4 has left for
/// another.
fn guest(policy: &'static Policy) -> &'static AddressSpace<Mock> {
    let words = std::array::from_fn(|_| PreemptedWord::new());
    world().words.set(Some(Box::leak(Box::new(words))));
    boot(5, policy, &PCID);
    let (space, other) = (new_space(), new_space());
    (1..9).for_each(|page| map(space, page, 10 * page));
    for cpu in 0..5 {
        switch(cpu, space);
        on_cpu(cpu, |_| (1..9).for_each(|page| assert_eq!(access(page), Some(10 * page))));
    }
    switch(4, other);
    space
}

fn cached(cpu: u32, page: u64) -> bool {
    world().hw.borrow()[cpu as usize].tlb.keys().any(|(_, p)| *p == page)
}

fn stats(cpu: u32) -> shootdown::stats::Snapshot {
    Mock::slot(CpuId(cpu)).unwrap().stats()
}

fn flush(space: &AddressSpace<Mock>, request: Request) -> Result<u32, FlushError> {
    on_cpu(0, |pin| space.flush(pin, request)).map(|done| done.interrupted)
}

#[test]
fn nobody_waits_for_a_preempted_cpu_and_it_forgets_before_it_runs() {
    each(&[&MARKS, &TREE, &PUSH], |space| {
        deschedule(2);
        deschedule(3);
        deschedule(4);
        unmap(space, 1);
        assert_eq!(flush(space, Request::pages(pages(1, 1))), Ok(1));
        assert_eq!(stats(0).marked_preempted, 2);
        assert!(!cached(1, 1) && cached(2, 1) && cached(3, 1));
        unmap(space, 2);
        assert_eq!(flush(space, Request::pages(pages(2, 1))), Ok(1), "marked once more");
        assert!(resume(2) && resume(3));
        assert!(!resume(4), "it was elsewhere, and looks when it comes back");
        assert!((1..9).all(|page| !cached(2, page) && !cached(3, page)));
        on_cpu(2, |_| assert_eq!((access(1), access(2), access(3)), (None, None, Some(30))));
        switch(4, space);
        on_cpu(4, |_| assert_eq!((access(1), access(2)), (None, None)));
        // Its slot's generation stayed behind, and it catches up like any other.
        unmap(space, 3);
        assert_eq!(flush(space, Request::pages(pages(3, 1))), Ok(4));
        on_cpu(2, |_| assert_eq!(access(3), None));
    });
}

#[test]
fn a_flush_that_cannot_wait_succeeds_when_all_others_are_preempted() {
    each(&[&MARKS, &PUSH], |space| {
        (1..4).for_each(deschedule);
        world().may_wait.set(false);
        assert_eq!(flush(space, Request::space()), Ok(0));
        let ticket = on_cpu(0, |pin| space.begin_flush(pin, Request::space()).unwrap().poll());
        assert!(ticket);
        let range = pages(1, 1);
        assert_eq!(on_cpu(0, |pin| flush_kernel::<Mock>(pin, range)), Err(FlushError::WouldWait));
        deschedule(4);
        assert_eq!(on_cpu(0, |pin| flush_kernel::<Mock>(pin, range)), Ok(()));
        assert_eq!(on_cpu(0, flush_everything::<Mock>), Ok(()));
        assert!((1..5).all(resume));
    });
}

#[test]
fn calls_are_never_left_to_the_hypervisor() {
    each(&[&MARKS, &CALLS], |_| {
        (1..4).for_each(deschedule);
        world().may_wait.set(false);
        let mut set = CpuSet::EMPTY;
        (1..4).for_each(|cpu| set.insert(CpuId(cpu)));
        let called = on_cpu(0, |pin| call_on::<Mock, _>(pin, &set, &|_| ()));
        assert_eq!(called, Err(CallError::WouldWait));
        assert!((1..4).all(|cpu| !resume(cpu)) && world().hypercalls.borrow().is_empty());
    });
}

#[test]
fn a_hypercall_names_who_would_be_interrupted_and_what_is_to_be_forgotten() {
    each(&[&CALLS, &TREE_CALLS, &PUSH_CALLS], |space| {
        unmap(space, 1);
        unmap(space, 2);
        assert_eq!(flush(space, Request::pages(pages(1, 2))), Ok(0));
        assert!((0..4).all(|cpu| !cached(cpu, 1) && !cached(cpu, 2) && cached(cpu, 3)));
        on_cpu(3, enter_lazy);
        assert_eq!(
            flush(space, Request { freed_tables: true, ..Request::pages(pages(3, 1)) }),
            Ok(0)
        );
        assert_eq!(flush(space, Request::space()), Ok(0));
        on_cpu(0, |pin| flush_kernel::<Mock>(pin, pages(9, 1))).unwrap();
        on_cpu(0, flush_everything::<Mock>).unwrap();
        let expected = [
            (0b1110, vec![(0x1000, 2)], false),
            (0b1110, vec![(0x3000, 1)], true),
            (0b1110, vec![], true),
            (0b1_1110, vec![(0x9000, 1)], false),
            (0b1_1110, vec![], true),
        ];
        assert_eq!(*world().hypercalls.borrow(), expected);
        assert_eq!(stats(0).handed_to_hypervisor, 3 * 3 + 2 * 4);
        assert_eq!(world().kicked.get(), 0);
    });
}

#[test]
fn few_cpus_are_interrupted_and_preempted_ones_do_not_count() {
    each(&[&CALLS, &TREE_CALLS, &PUSH_CALLS], |space| {
        deschedule(2);
        deschedule(3);
        assert_eq!(flush(space, Request::pages(pages(1, 1))), Ok(1));
        assert!(world().hypercalls.borrow().is_empty());
        assert!(resume(2) && resume(3));
    });
}

#[test]
fn a_hypercall_that_fails_interrupts_them_all() {
    each(&[&CALLS, &TREE_CALLS, &PUSH_CALLS], |space| {
        world().refuse_hypercalls.set(true);
        unmap(space, 1);
        assert_eq!(flush(space, Request::pages(pages(1, 1))), Ok(3));
        assert!((0..4).all(|cpu| !cached(cpu, 1)));
        on_cpu(0, flush_everything::<Mock>).unwrap();
        assert_eq!((stats(0).hypercall_failed, stats(0).handed_to_hypervisor), (2, 0));
    });
}
