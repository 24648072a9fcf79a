//! The protocol row by row, on a mock with synchronous interrupts: each test is one row of a table
//! in the sources, or one promise of a public function.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with the examples and benches, which use other parts
mod mock;

use mock::*;
use shootdown::cpu_set::{Bits, CpuSet};
use shootdown::gather::{Array, Gather, Nothing};
use shootdown::{
    CallError, CpuId, FlushError, Invalidate, KickError, Platform, Policy, Request, RetireError,
    Stride, Switched, VaRange, call_on, flush_everything, flush_kernel,
};

const POLICIES: [(&str, &Policy); 6] = [
    ("naive", &Policy::NAIVE),
    ("linux-4.13", &Policy::LINUX_4_13),
    ("linux-4.14", &Policy::LINUX_4_14),
    ("linux-5.13", &Policy::LINUX_5_13),
    ("linux-6.15", &Policy::LINUX_6_15),
    ("shootdown", &Policy::SHOOTDOWN),
];

fn pages(page: u64, count: u64) -> VaRange {
    VaRange::new(page << 12, count, Stride::Page4K).unwrap()
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

#[test]
fn revocation_holds_under_every_policy() {
    for (name, policy) in POLICIES {
        for facts in [&PCID, &PTI, &shootdown::Facts::X86_64_MINIMUM] {
            in_fresh_world(move || {
                boot(4, policy, facts);
                let space = new_space();
                map(space, 5, 50);
                for cpu in 0..4 {
                    switch(cpu, space);
                    assert_eq!(on_cpu(cpu, |_| access(5)), Some(50));
                }
                unmap(space, 5);
                space.flush(&here(), Request::pages(pages(5, 1))).unwrap();
                for cpu in 0..4 {
                    assert_eq!(on_cpu(cpu, |_| access(5)), None, "{name}, cpu{cpu}");
                }
            });
        }
    }
}

/// CPUs hold a loaded space's address: from another one nothing would be caught up with.
#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "was moved while it is loaded here")]
fn a_space_that_was_moved_while_it_is_loaded_is_noticed() {
    boot(1, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    switch(0, space);
    // SAFETY: the original is leaked, and not used again; neither is ever dropped.
    let moved = std::mem::ManuallyDrop::new(unsafe { std::ptr::read(space) });
    let _ = moved.flush(&here(), Request::pages(pages(5, 1)));
}

#[test]
fn a_remembered_space_keeps_its_entries_when_current_and_loses_exactly_them_when_not() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let (a, b) = (new_space(), new_space());
    map(a, 1, 10);
    map(a, 2, 20);
    map(b, 1, 11);
    assert_eq!(switch(0, a), Switched::Flushed);
    assert_eq!((access(1), access(2)), (Some(10), Some(20)));
    assert_eq!(switch(0, b), Switched::Flushed);
    assert_eq!(access(1), Some(11), "tags keep the spaces apart");
    assert_eq!(switch(0, a), Switched::Kept);
    assert_eq!(switch(0, a), Switched::Same);
    switch(0, b);
    unmap(a, 1);
    map(a, 2, 21); // not flushed, so that what is read shows whether the old entry is still there
    on_cpu(1, |pin| a.flush(pin, Request::pages(pages(1, 1)))).unwrap();
    assert_eq!(switch(0, a), Switched::Replayed);
    assert_eq!((access(1), access(2)), (None, Some(20)), "page 1 is gone, page 2 was never lost");
    let s = stats(0);
    assert_eq!((s.switches_kept, s.switches_flushed, s.switches_replayed), (2, 2, 1));
}

#[test]
fn the_machine_counts_what_its_cpus_do_those_that_went_offline_too() {
    boot(3, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    (0..3).for_each(|cpu| {
        switch(cpu, space);
    });
    on_cpu(0, |pin| space.flush(pin, Request::pages(pages(5, 1)))).unwrap();
    on_cpu(2, |pin| {
        enter_lazy(pin);
        offline(pin);
    });
    let sum = shootdown::stats::total::<Mock>();
    assert_eq!((sum.requests_pages, sum.kicks_sent, sum.kicks_received), (1, 2, 2));
    assert_eq!(sum.switches_flushed, 3);
    let lines = sum.to_string();
    assert!(lines.lines().any(|line| line == "kicks_received 2"), "{lines}");
}

#[test]
fn a_slot_that_changes_hands_is_flushed() {
    boot(1, &Policy::SHOOTDOWN, &PCID);
    let spaces: Vec<_> = (0..7).map(|_| new_space()).collect();
    for (i, space) in spaces.iter().enumerate() {
        map(space, 1, i as u64);
        switch(0, space);
        assert_eq!(access(1), Some(i as u64));
    }
    assert_eq!(stats(0).evictions, 1);
    assert_eq!(switch(0, spaces[0]), Switched::Flushed, "the least recent made room");
    assert_eq!(switch(0, spaces[6]), Switched::Kept);
}

#[test]
fn without_tags_every_change_of_space_is_a_flush() {
    boot(1, &Policy::SHOOTDOWN, &shootdown::Facts::X86_64_MINIMUM);
    let (a, b) = (new_space(), new_space());
    map(a, 1, 10);
    assert_eq!(switch(0, a), Switched::Flushed);
    access(1);
    switch(0, b);
    assert_eq!(access(1), None);
    assert_eq!(switch(0, a), Switched::Flushed);
}

#[test]
fn a_lazy_cpu_is_left_alone_for_leaves_and_reached_for_tables() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    switch(0, space);
    switch(1, space);
    on_cpu(1, |_| access(1));
    on_cpu(1, enter_lazy);
    unmap(space, 1);
    let flushed = space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    assert_eq!(flushed.interrupted, 0);
    assert_eq!(stats(0).avoided_lazy, 1);
    assert_eq!(switch(1, space), Switched::CaughtUp);
    assert_eq!(on_cpu(1, |_| access(1)), None);

    on_cpu(1, enter_lazy);
    let request = Request { freed_tables: true, ..Request::pages(pages(1, 1)) };
    assert_eq!(space.flush(&here(), request).unwrap().interrupted, 1);
    assert_eq!(world().hw.borrow()[1].root, None, "it left the space");
    assert!(!space.cpus().contains(CpuId(1)));
}

#[test]
fn linux_4_13_interrupts_a_lazy_cpu_once() {
    boot(2, &Policy::LINUX_4_13, &PCID);
    let space = new_space();
    switch(0, space);
    switch(1, space);
    on_cpu(1, enter_lazy);
    let notified = |n| {
        let flushed = space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
        assert_eq!(flushed.interrupted, n);
    };
    notified(1);
    notified(0);
}

#[test]
fn a_cpu_elsewhere_is_not_told_and_looks_for_itself() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let (a, b) = (new_space(), new_space());
    map(a, 1, 10);
    switch(0, a);
    switch(1, a);
    on_cpu(1, |_| access(1));
    switch(1, b);
    unmap(a, 1);
    assert_eq!(a.flush(&here(), Request::pages(pages(1, 1))).unwrap().interrupted, 0);
    assert_eq!(stats(0).avoided_elsewhere, 1);
    assert_eq!(switch(1, a), Switched::Replayed);
    assert_eq!(on_cpu(1, |_| access(1)), None);
}

#[test]
fn a_cpu_in_the_set_for_nothing_is_asked_to_leave_it() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let (a, b) = (new_space(), new_space());
    switch(0, a);
    switch(1, a);
    switch(1, b);
    for _ in 0..100 {
        a.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    }
    assert!(!a.cpus().contains(CpuId(1)));
    assert_eq!(stats(0).trims, 1);
    // and comes back into it
    switch(1, a);
    assert!(a.cpus().contains(CpuId(1)));
    assert_eq!(a.flush(&here(), Request::pages(pages(1, 1))).unwrap().interrupted, 1);
}

#[test]
fn linux_6_15_asks_the_whole_set_when_tables_are_freed() {
    for (policy, asked) in [(&Policy::LINUX_6_15, 1), (&Policy::SHOOTDOWN, 0)] {
        in_fresh_world(move || {
            boot(2, policy, &PCID);
            let (a, b) = (new_space(), new_space());
            map(a, 1, 10);
            switch(0, a);
            switch(1, a);
            on_cpu(1, |_| access(1));
            switch(1, b);
            let leaf = Request::pages(pages(9, 1));
            assert_eq!(a.flush(&here(), leaf).unwrap().interrupted, 0);
            unmap(a, 1);
            let freed = Request { freed_tables: true, ..leaf };
            assert_eq!(a.flush(&here(), freed).unwrap().interrupted, asked);
            assert_eq!(a.cpus().contains(CpuId(1)), asked == 0, "asked in vain, it leaves");
            assert_eq!(a.flush(&here(), freed).unwrap().interrupted, 0);
            assert_eq!(switch(1, a), Switched::Flushed, "asked or not, it finds out");
            assert_eq!(on_cpu(1, |_| access(1)), None);
        });
    }
}

#[test]
fn a_cpu_that_left_for_the_kernels_tables_stays_in_the_set_until_asked() {
    for (policy, stays) in [(&Policy::LINUX_6_15, true), (&Policy::SHOOTDOWN, false)] {
        in_fresh_world(move || {
            boot(2, policy, &PCID);
            let space = new_space();
            switch(0, space);
            switch(1, space);
            on_cpu(1, leave);
            assert_eq!(space.cpus().contains(CpuId(1)), stays);
            let asked = space.flush(&here(), Request::space()).unwrap().interrupted;
            assert_eq!((asked, space.cpus().contains(CpuId(1))), (u32::from(stays), false));
        });
    }
}

#[test]
fn several_missed_steps_are_replayed_exactly_and_too_many_are_not() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    for page in 0..100 {
        map(space, page, page);
    }
    switch(1, space);
    on_cpu(1, |_| (0..100).for_each(|p| assert_eq!(access(p), Some(p))));
    mask(1);
    let mut tickets: Vec<_> = [3, 50, 7]
        .map(|p| {
            unmap(space, p);
            space.begin_flush(&here(), Request::pages(pages(p, 1))).unwrap()
        })
        .into();
    assert!(tickets.iter_mut().all(|t| !t.poll()));
    unmask(1);
    assert!(tickets.iter_mut().all(shootdown::Ticket::poll), "one answer covers all requests");
    assert_eq!(
        on_cpu(1, |_| (access(3), access(50), access(7), access(8))),
        (None, None, None, Some(8))
    );
    let s = stats(1);
    assert_eq!((s.invalidated_strides, s.invalidated_tags, s.replayed), (3, 0, 1));

    mask(1);
    let tickets: Vec<_> =
        (0..9).map(|p| space.begin_flush(&here(), Request::pages(pages(p, 1))).unwrap()).collect();
    unmask(1);
    for ticket in tickets {
        ticket.wait(&here()).map_err(|(e, _)| e).unwrap();
    }
    assert_eq!(stats(1).invalidated_tags, 1, "nine steps do not fit the log");
}

#[test]
fn beyond_the_ceiling_the_whole_tag_goes() {
    boot(1, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    switch(0, space);
    space.flush(&here(), Request::pages(pages(1, 33))).unwrap();
    assert_eq!((stats(0).invalidated_strides, stats(0).invalidated_tags), (33, 0));
    space.flush(&here(), Request::pages(pages(1, 34))).unwrap();
    assert_eq!((stats(0).over_ceiling, stats(0).invalidated_tags), (1, 1));
    let huge = VaRange::new(0, 33, Stride::Page2M).unwrap();
    space.flush(&here(), Request::pages(huge)).unwrap();
    assert_eq!(stats(0).invalidated_strides, 66, "the ceiling counts strides, not pages");
}

#[test]
fn tables_freed_means_no_leaf_only_invalidation() {
    boot(1, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    switch(0, space);
    for freed_tables in [false, true] {
        world().invalidations.borrow_mut().clear();
        space.flush(&here(), Request { freed_tables, ..Request::pages(pages(1, 1)) }).unwrap();
        let Invalidate::Range { leaf_only, .. } = world().invalidations.borrow()[0].1 else {
            panic!("a range was asked for");
        };
        assert_eq!(leaf_only, !freed_tables);
    }
}

#[test]
fn split_tables_invalidate_the_user_half_at_the_latest_on_return() {
    boot(1, &Policy::SHOOTDOWN, &PTI);
    let (a, b) = (new_space(), new_space());
    switch(0, a);
    let entry = return_to_user(&here());
    assert!(!entry.keep && entry.tag.0 & 1 << 11 != 0, "a fresh tag's user half is empty too");
    assert!(return_to_user(&here()).keep);
    a.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    assert!(!return_to_user(&here()).keep, "the flush has left it pending");
    assert!(return_to_user(&here()).keep, "completed");
    // a kernel-range flush reaches the tags that are not loaded
    switch(0, b);
    assert_eq!(switch(0, a), Switched::Kept);
    flush_kernel::<Mock>(&here(), pages(0xf_ffff_8000_0000, 1)).unwrap();
    assert!(!return_to_user(&here()).keep);
    assert_eq!(switch(0, b), Switched::Flushed);
}

#[test]
fn kernel_ranges_and_everything_reach_all_cpus() {
    boot(3, &Policy::SHOOTDOWN, &PCID);
    flush_kernel::<Mock>(&here(), pages(7, 2)).unwrap();
    flush_everything::<Mock>(&here()).unwrap();
    flush_kernel::<Mock>(&here(), pages(7, 34)).unwrap();
    let log = world().invalidations.borrow();
    for cpu in 0..3 {
        let mine: Vec<_> = log.iter().filter(|(c, _)| *c == cpu).map(|(_, what)| *what).collect();
        // the first is the one of coming online
        assert_eq!(
            mine[1..],
            [Invalidate::Kernel(pages(7, 2)), Invalidate::Everything, Invalidate::Everything]
        );
    }
    assert_eq!(stats(0).over_ceiling, 1);
}

#[test]
fn an_empty_gather_costs_nothing_and_a_full_one_hands_back_after_the_flush() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    switch(1, space);
    let before = space.generation();
    let empty = Gather::<Mock, Array<u64, 4>>::new(space).finish(&here()).unwrap();
    assert_eq!(empty.as_slice(), []);
    assert_eq!((space.generation(), world().kicked.get()), (before, 0));

    map(space, 1, 10);
    on_cpu(1, |_| access(1));
    let mut gather = Gather::<Mock, Array<u64, 1>>::new(space);
    gather.unmapped(pages(1, 1), unmap(space, 1).unwrap()).unwrap();
    assert_eq!(gather.unmapped(pages(2, 1), 99), Err(99), "no room: the item comes back");
    mask(1);
    let deferred = gather.defer(&here()).unwrap();
    let deferred = deferred.poll().map(|_| ()).unwrap_err();
    assert_eq!(on_cpu(1, |_| access(1)), Some(10), "still cached, so still kept");
    unmask(1);
    assert_eq!(deferred.poll().map_err(|_| ()).unwrap().as_slice(), [10]);
    assert_eq!(on_cpu(1, |_| access(1)), None);
}

#[test]
fn what_is_owed_comes_back_inside_the_error() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    switch(1, space);
    let gather = || {
        let mut g = Gather::<Mock, Array<u64, 4>>::new(space);
        g.unmapped(pages(1, 1), 42).unwrap();
        g
    };
    world().may_wait.set(false);
    let (e, kept) = gather().finish(&here()).unwrap_err();
    assert_eq!((e, kept.as_slice()), (FlushError::WouldWait, &[42][..]));
    world().may_wait.set(true);

    world().refuse_kicks.set(true);
    let (e, kept) = gather().finish(&here()).unwrap_err();
    assert_eq!((e, kept.as_slice()), (FlushError::Kick(KickError::NotReady), &[42][..]));
    world().refuse_kicks.set(false);

    mask(1);
    world().patience.set(10);
    let (e, kept) = gather().finish(&here()).unwrap_err();
    assert_eq!((e, kept.as_slice()), (FlushError::Stalled(CpuId(1)), &[42][..]));
    unmask(1);
    world().patience.set(10);
    assert_eq!(gather().finish(&here()).unwrap().as_slice(), [42], "and may be tried again");
}

#[test]
fn a_stalled_call_is_taken_back() {
    for policy in [&Policy::LINUX_5_13, &Policy::SHOOTDOWN] {
        in_fresh_world(move || {
            boot(2, policy, &PCID);
            mask(1);
            world().patience.set(3);
            let ran = std::sync::atomic::AtomicU32::new(0);
            let count = |_| {
                ran.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            };
            let all = Mock::system().online();
            assert_eq!(
                call_on::<Mock, _>(&here(), &all, &count),
                Err(CallError::Stalled(CpuId(1)))
            );
            unmask(1);
            assert_eq!(ran.into_inner(), 1, "only here: the other half was taken back");
        });
    }
}

#[test]
fn a_descriptor_in_use_refuses_a_second_call() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let others = {
        let mut set = CpuSet::<1>::EMPTY;
        set.insert(CpuId(1));
        set
    };
    let outer = call_on::<Mock, _>(&here(), &others, &|_| {
        // On CPU 1, "inside an interrupt": back on CPU 0, whose descriptor is in use.
        let inner = on_cpu(0, |pin| call_on::<Mock, _>(pin, &others, &|_| {}));
        assert_eq!(inner, Err(CallError::Reentered));
    });
    assert_eq!(outer, Ok(()));
}

#[test]
fn a_space_is_retired_only_when_no_cpu_runs_in_it() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let (a, b) = (new_space(), new_space());
    switch(1, a);
    assert_eq!(a.retire(&here()), Err(RetireError::Loaded(CpuId(1))));
    on_cpu(1, enter_lazy);
    world().may_wait.set(false);
    assert_eq!(a.retire(&here()), Err(RetireError::WouldWait));
    world().may_wait.set(true);
    assert_eq!(a.retire(&here()), Ok(()));
    assert_eq!(world().hw.borrow()[1].root, None);
    switch(1, b);
    assert_eq!(b.retire(&here()), Err(RetireError::Loaded(CpuId(1))));
}

#[test]
fn a_cpu_offline_is_not_waited_for_and_comes_back_clean() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    switch(1, space);
    on_cpu(1, |_| access(1));
    on_cpu(1, offline);
    mask(1);
    unmap(space, 1);
    space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    flush_everything::<Mock>(&here()).unwrap();
    let all = CpuSet::<1>::EMPTY;
    let mut both = all;
    both.insert(CpuId(0));
    both.insert(CpuId(1));
    call_on::<Mock, _>(&here(), &both, &|cpu| assert_eq!(cpu, CpuId(0))).unwrap();
    unmask(1);
    on_cpu(1, boot_once);
    assert!(world().hw.borrow()[1].tlb.is_empty());
    switch(1, space);
    assert_eq!(on_cpu(1, |_| access(1)), None);
}

#[test]
fn deep_idle_leaves_the_space_and_keeps_the_entries() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    switch(0, space);
    access(1);
    leave(&here());
    assert!(space.cpus().is_empty());
    assert_eq!(switch(0, space), Switched::Kept);
}

#[test]
fn permission_changes_need_nothing_kept() {
    boot(1, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    let mut gather = Gather::<Mock, Nothing>::new(space);
    gather.changed(pages(1, 1));
    gather.changed(pages(9, 1));
    gather.finish(&here()).unwrap();
    assert_eq!(space.generation().0, 1, "one flush for both");
}

#[test]
fn a_kick_during_local_work_is_answered_after_it() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    map(space, 2, 20);
    switch(0, space);
    assert_eq!((access(1), access(2)), (Some(10), Some(20)));
    *world().during_invalidation.borrow_mut() = Some(Box::new(move || {
        unmap(space, 2);
        on_cpu(1, |pin| {
            let ticket = space.begin_flush(pin, Request::pages(pages(2, 1))).unwrap();
            // the kick found this CPU serving; its work is done before `flush` returns below
            drop(ticket);
        });
    }));
    unmap(space, 1);
    space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    assert_eq!((access(1), access(2)), (None, None));
}

#[test]
fn a_call_during_local_work_is_run_after_it() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    switch(0, space);
    let ran: &'static _ = Box::leak(Box::new(std::sync::atomic::AtomicU32::new(0)));
    *world().during_invalidation.borrow_mut() = Some(Box::new(move || {
        on_cpu(1, |pin| {
            world().patience.set(0);
            // CPU 0 can't run it now, and CPU 1 does not wait for long: it takes the request back
            let all = Mock::system().online();
            let called = call_on::<Mock, _>(pin, &all, &|_| {
                ran.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
            assert_eq!(called, Err(CallError::Stalled(CpuId(0))));
            world().patience.set(100);
        });
    }));
    space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    assert_eq!(ran.load(std::sync::atomic::Ordering::Relaxed), 1, "taken back, so not run late");
}

#[test]
fn a_flush_in_a_handler_that_interrupted_a_flush_sees_to_its_own_change() {
    boot(1, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    map(space, 2, 20);
    switch(0, space);
    assert_eq!((access(1), access(2)), (Some(10), Some(20)));
    *world().during_invalidation.borrow_mut() = Some(Box::new(move || {
        unmap(space, 2);
        space.flush(&here(), Request::pages(pages(2, 1))).unwrap();
        assert_eq!(access(2), None, "the inner flush has returned");
    }));
    unmap(space, 1);
    space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    assert_eq!(access(1), None);
}

#[test]
fn a_kernel_flush_reaches_the_tags_of_a_cpu_with_nothing_loaded() {
    boot(2, &Policy::SHOOTDOWN, &PTI);
    let space = new_space();
    switch(1, space);
    // a "kernel" page, cached under the tag of the space's kernel half
    map(space, 0xffff0, 7);
    assert_eq!(on_cpu(1, |_| access(0xffff0)), Some(7));
    on_cpu(1, leave);
    unmap(space, 0xffff0);
    flush_kernel::<Mock>(&here(), pages(0xffff0, 1)).unwrap();
    switch(1, space);
    assert_eq!(on_cpu(1, |_| access(0xffff0)), None);
}

#[test]
fn a_kernel_flush_reaches_what_is_cached_of_the_kernels_own_tables() {
    const PAGE: u64 = 0xffff0;
    for facts in [&PTI, &PCID] {
        in_fresh_world(move || {
            boot(2, &Policy::SHOOTDOWN, facts);
            let space = new_space();
            world().tables.borrow_mut().insert((0, PAGE), 7);
            // The mock's `load_kernel` keeps what is cached, as some hardware can.
            assert_eq!(on_cpu(1, |_| access_kernel(PAGE)), Some(7));
            if *facts == PTI {
                switch(1, space);
                assert_eq!(on_cpu(1, |_| access_kernel(PAGE)), Some(7));
            }
            world().tables.borrow_mut().remove(&(0, PAGE));
            flush_kernel::<Mock>(&here(), pages(PAGE, 1)).unwrap();
            assert_eq!(on_cpu(1, |_| access_kernel(PAGE)), None, "under the tag that is loaded");
            on_cpu(1, leave);
            assert_eq!(on_cpu(1, |_| access_kernel(PAGE)), None, "and under the kernel's own");
            switch(1, space);
            assert_eq!(on_cpu(1, |_| access_kernel(PAGE)), None);
        });
    }
}

#[test]
fn a_flush_that_succeeds_covers_the_table_flush_that_failed() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    switch(0, space);
    switch(1, space);
    on_cpu(1, enter_lazy);
    mask(1);
    world().patience.set(2);
    let tables = Request { freed_tables: true, ..Request::pages(pages(1, 1)) };
    assert_eq!(space.flush(&here(), tables), Err(FlushError::Stalled(CpuId(1))));
    unmask(1);
    on_cpu(1, |_| switch(1, space));
    on_cpu(1, enter_lazy);
    mask(1);
    world().patience.set(2);
    let leaf = space.flush(&here(), Request::pages(pages(2, 1)));
    assert_eq!(leaf, Err(FlushError::Stalled(CpuId(1))), "more than its own leaf is pending");
    unmask(1);
    space.flush(&here(), Request::pages(pages(2, 1))).unwrap();
    assert_eq!(world().hw.borrow()[1].root, None);
    // and is completed once
    switch(1, space);
    on_cpu(1, enter_lazy);
    assert_eq!(space.flush(&here(), Request::pages(pages(2, 1))).unwrap().interrupted, 0);
}

#[test]
fn a_cpu_that_left_is_not_kicked_for_the_sets_it_is_still_in() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let (a, b) = (new_space(), new_space());
    switch(1, a);
    switch(1, b);
    on_cpu(1, offline);
    let before = world().kicked.get();
    for _ in 0..200 {
        a.flush(&here(), Request::space()).unwrap();
    }
    assert_eq!(world().kicked.get(), before);
}

#[test]
fn a_kick_for_a_deferred_flush_survives_a_merged_call() {
    boot(3, &Policy::LINUX_5_13, &PCID);
    let space = new_space();
    map(space, 1, 10);
    switch(0, space);
    access(1);
    mask(0);
    unmap(space, 1);
    let mut ticket = on_cpu(1, |pin| space.begin_flush(pin, Request::pages(pages(1, 1)))).unwrap();
    assert!(!ticket.poll());
    on_cpu(2, |pin| {
        let mut only = CpuSet::<1>::EMPTY;
        only.insert(CpuId(0));
        *world().during_wait.borrow_mut() = Some(Box::new(|| unmask(0)));
        call_on::<Mock, _>(pin, &only, &|_| {}).unwrap();
    });
    assert!(ticket.poll());
    assert_eq!(access(1), None);
}

#[test]
fn user_memory_is_off_limits_to_nmis_while_a_flush_is_served() {
    boot(1, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    assert!(!shootdown::user_access_ok(&here(), space));
    switch(0, space);
    assert!(shootdown::user_access_ok(&here(), space));
    *world().during_invalidation.borrow_mut() =
        Some(Box::new(move || assert!(!shootdown::user_access_ok(&here(), space))));
    space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    on_cpu(0, enter_lazy);
    assert!(!shootdown::user_access_ok(&here(), space));
}

#[test]
fn a_cpu_without_an_allocator_or_a_policy_that_fits_does_not_come_online() {
    use shootdown::policy::PolicyError;
    use shootdown::{OnlineError, Strategy, online};
    static GUEST: shootdown::Facts = shootdown::Facts { hypervisor_may_upgrade: true, ..ARM };
    static STICKY: Policy = Policy { broadcast: Some(Strategy::Sticky), ..Policy::SHOOTDOWN };
    in_fresh_world(|| {
        world().facts.set(&RISCV);
        assert_eq!(online(irqs_off(&here())), Err(OnlineError::NoTags));
        world().policy.set(&STICKY);
        world().facts.set(&GUEST);
        let refused = PolicyError::LocalUpgraded(Strategy::Sticky);
        assert_eq!(online(irqs_off(&here())), Err(OnlineError::Policy(refused)));
        assert!(!Mock::system().online().contains(CpuId(0)), "nothing has changed");
        boot(2, &Policy::ARM64_MAINLINE, &GUEST);
    });
    in_fresh_world(|| {
        // The allocator was made for two CPUs.
        boot(2, &Policy::ARM64_MAINLINE, &ARM);
        on_cpu(2, |pin| assert_eq!(online(irqs_off(pin)), Err(OnlineError::NoTags)));
    });
}

#[test]
fn every_invalidation_is_counted_as_none_local_or_broadcast() {
    use shootdown::Strategy;
    static STICKY: Policy = Policy { broadcast: Some(Strategy::Sticky), ..Policy::SHOOTDOWN };
    boot(2, &STICKY, &ARM);
    let space = new_space();
    let flush = || space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    let counts = || {
        let s = stats(0);
        (s.invalidations_none, s.invalidations_local, s.invalidations_broadcast)
    };
    flush();
    assert_eq!(counts(), (1, 0, 0), "it never ran");
    switch(0, space);
    flush();
    assert_eq!(counts(), (1, 1, 0), "it ran here only");
    switch(1, space);
    assert_eq!(flush().interrupted, 0);
    assert_eq!(counts(), (1, 1, 1));
    assert_eq!(world().kicked.get(), 0, "nobody is interrupted");
}

#[test]
fn a_retire_that_may_not_wait_does_not_wait_for_a_switch() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let (space, next) = (new_space(), new_space());
    switch(1, space);
    *world().during_load.borrow_mut() = Some(Box::new(move || {
        on_cpu(0, |pin| {
            world().may_wait.set(false);
            assert_eq!(space.retire(pin), Err(RetireError::WouldWait));
            world().may_wait.set(true);
            world().patience.set(3);
            assert_eq!(space.retire(pin), Err(RetireError::Stalled), "a task waits");
        });
    }));
    switch(1, next);
    space.retire(&here()).unwrap();
}
