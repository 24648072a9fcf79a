//! Spaces that get a tag for all CPUs beside slots, step by step, on a mock with synchronous
//! interrupts.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with other tests, which use other parts
mod mock;

use mock::*;
use shootdown::facts::SplitTables;
use shootdown::tags::shared::Threshold;
use shootdown::{
    AddressSpace, CpuId, Facts, FlushError, Invalidate, KickError, OnlineError, Platform, Policy,
    Request, Stride, Switched, Tag, VaRange, online,
};

/// Every flush looks, and two CPUs are enough.
const EAGER: Threshold = Threshold { above: 1, every: 1, alone: 0 };
static PULL: Policy = Policy { shared: EAGER, ..Policy::SHOOTDOWN };
static PUSH: Policy = Policy { shared: EAGER, ..Policy::LINUX_6_15 };

fn pages(page: u64, count: u64) -> VaRange {
    VaRange::new(page << 12, count, Stride::Page4K).unwrap()
}

fn flush(cpu: u32, space: &AddressSpace<Mock>, page: u64) -> Result<u32, FlushError> {
    let flushed = on_cpu(cpu, |pin| space.flush(pin, Request::pages(pages(page, 1))));
    flushed.map(|done| done.interrupted)
}

fn tag_on(cpu: u32) -> Tag {
    world().hw.borrow()[cpu as usize].tag
}

fn in_fresh_world(f: impl FnOnce() + Send) {
    std::thread::scope(|s| s.spawn(f).join().unwrap());
}

/// A space on CPUs 0 to 2 that has a tag, loaded everywhere; the tag.
fn moved(policy: &'static Policy) -> (&'static AddressSpace<Mock>, Tag) {
    boot(4, policy, &INVLPGB);
    let space = new_space();
    (1..9).for_each(|page| map(space, page, 10 * page));
    (0..3).for_each(|cpu| {
        switch(cpu, space);
    });
    // The first flush finds it active on three CPUs; the second moves them.
    flush(0, space, 1).unwrap();
    assert!((0..3).all(|cpu| tag_on(cpu).0 < 7), "still under slots");
    assert_eq!(flush(0, space, 2), Ok(2));
    let tag = tag_on(0);
    assert!(tag.0 >= 7 && (0..3).all(|cpu| tag_on(cpu) == tag));
    (space, tag)
}

/// Two looks in a row must find nobody else flushing.
static ALONE: Policy = Policy { shared: Threshold { alone: 2, ..EAGER }, ..Policy::SHOOTDOWN };

#[test]
fn a_space_that_two_cpus_flush_at_a_time_gets_no_tag() {
    boot(4, &ALONE, &INVLPGB);
    let space = new_space();
    (0..3).for_each(|cpu| {
        switch(cpu, space);
    });
    let owned = || world().shared_tags.get().expect("there").owned(|| ());
    for _ in 0..10 {
        *world().during_invalidation.borrow_mut() = Some(Box::new(|| {
            let ticket = on_cpu(3, |pin| space.begin_flush(pin, Request::pages(pages(2, 1))));
            assert!(ticket.is_ok(), "begun in the middle of the other, and looked at by neither");
        }));
        flush(0, space, 1).unwrap();
        assert_eq!(owned(), 0);
    }
    flush(0, space, 1).unwrap();
    assert_eq!(owned(), 0, "once alone is not enough");
    flush(0, space, 1).unwrap();
    assert_eq!(owned(), 1);
}

#[test]
fn a_space_on_many_cpus_moves_and_its_flushes_interrupt_nobody() {
    for policy in [&PULL, &PUSH] {
        in_fresh_world(move || {
            let (space, tag) = moved(policy);
            let kicked = world().kicked.get();
            for cpu in 0..3 {
                assert_eq!(on_cpu(cpu, |_| access(3)), Some(30));
            }
            unmap(space, 3);
            world().invalidations.borrow_mut().clear();
            assert_eq!(flush(0, space, 3), Ok(0));
            let range = Invalidate::Range { tag, range: pages(3, 1), leaf_only: true };
            assert_eq!(*world().invalidations.borrow(), [(0, range)]);
            assert_eq!(world().kicked.get(), kicked);
            for cpu in 0..3 {
                assert_eq!(on_cpu(cpu, |_| access(3)), None);
            }
        });
    }
}

#[test]
fn what_is_cached_under_the_tag_is_kept_and_current_on_a_cpu_that_was_elsewhere() {
    let (space, tag) = moved(&PULL);
    let other = new_space();
    assert_eq!(on_cpu(1, |_| (access(4), access(5))), (Some(40), Some(50)));
    switch(1, other);
    assert_ne!(tag_on(1), tag);
    unmap(space, 4);
    assert_eq!(flush(0, space, 4), Ok(0));
    map(space, 5, 51); // not flushed: what is read says whether the entry was kept
    assert_eq!(switch(1, space), Switched::Kept);
    assert_eq!(tag_on(1), tag);
    assert_eq!(on_cpu(1, |_| (access(4), access(5))), (None, Some(50)));
}

#[test]
fn a_cpu_that_comes_later_takes_the_tag_and_not_its_old_slot() {
    boot(4, &PULL, &INVLPGB);
    let (space, other) = (new_space(), new_space());
    map(space, 1, 10);
    switch(3, space);
    assert_eq!(on_cpu(3, |_| access(1)), Some(10));
    switch(3, other);
    (0..3).for_each(|cpu| {
        switch(cpu, space);
    });
    flush(0, space, 2).unwrap();
    flush(0, space, 2).unwrap();
    unmap(space, 1);
    flush(0, space, 1).unwrap();
    switch(3, space);
    assert_eq!(tag_on(3), tag_on(0));
    assert_eq!(on_cpu(3, |_| access(1)), None, "its slot is old");
}

#[test]
fn a_lazy_cpu_moves_too_and_is_not_told_again() {
    boot(3, &PULL, &INVLPGB);
    let space = new_space();
    map(space, 1, 10);
    (0..3).for_each(|cpu| {
        switch(cpu, space);
    });
    on_cpu(2, enter_lazy);
    flush(0, space, 2).unwrap();
    flush(0, space, 2).unwrap();
    assert_eq!(tag_on(2), tag_on(0));
    let kicked = world().kicked.get();
    let freed = Request { freed_tables: true, ..Request::pages(pages(1, 1)) };
    unmap(space, 1);
    on_cpu(0, |pin| space.flush(pin, freed)).unwrap();
    assert_eq!(world().kicked.get(), kicked, "a broadcast reaches its walk caches");
    assert_eq!(switch(2, space), Switched::Same);
    assert_eq!(on_cpu(2, |_| access(1)), None);
}

#[test]
fn a_masked_cpu_holds_the_move_up_and_is_waited_for() {
    boot(3, &PULL, &INVLPGB);
    let space = new_space();
    map(space, 1, 10);
    (0..3).for_each(|cpu| {
        switch(cpu, space);
        assert_eq!(on_cpu(cpu, |_| access(1)), Some(10));
    });
    flush(0, space, 2).unwrap();
    mask(2);
    unmap(space, 1);
    world().patience.set(20);
    assert_eq!(flush(0, space, 1), Err(FlushError::Stalled(CpuId(2))));
    unmask(2);
    world().patience.set(1000);
    assert_eq!(tag_on(2), tag_on(0));
    // The failed flush is covered by the next, of whatever.
    flush(0, space, 7).unwrap();
    (0..3).for_each(|cpu| assert_eq!(on_cpu(cpu, |_| access(1)), None));
}

#[test]
fn a_failed_flush_is_made_good_under_the_tag_too() {
    boot(3, &PULL, &INVLPGB);
    let space = new_space();
    (1..3).for_each(|page| map(space, page, 10 * page));
    (0..2).for_each(|cpu| {
        switch(cpu, space);
    });
    flush(0, space, 5).unwrap();
    // CPU 2 runs it under the tag at once, CPU 1 is still under its slot.
    switch(2, space);
    assert!(tag_on(2).0 >= 7 && tag_on(1).0 < 7);
    assert_eq!(on_cpu(2, |_| access(1)), Some(10));
    unmap(space, 1);
    world().refuse_kicks.set(true);
    assert_eq!(flush(0, space, 1), Err(FlushError::Kick(KickError::NotReady)));
    world().refuse_kicks.set(false);
    assert_eq!(flush(0, space, 7), Ok(1));
    assert_eq!(on_cpu(2, |_| access(1)), None, "the page of the flush that failed");
}

#[test]
fn a_flush_that_was_begun_broadcasts_when_it_is_over() {
    boot(3, &PULL, &INVLPGB);
    let space = new_space();
    map(space, 1, 10);
    (0..2).for_each(|cpu| {
        switch(cpu, space);
    });
    flush(0, space, 5).unwrap();
    switch(2, space);
    assert_eq!(on_cpu(2, |_| access(1)), Some(10));
    unmap(space, 1);
    mask(1);
    let pin = Mock::pin();
    let mut ticket = space.begin_flush(&pin, Request::pages(pages(1, 1))).unwrap();
    assert!(!ticket.poll());
    unmask(1);
    assert!(ticket.poll());
    assert_eq!(on_cpu(2, |_| access(1)), None);
}

#[test]
fn tags_come_back_when_their_spaces_end_and_are_clean() {
    boot(2, &PULL, &INVLPGB);
    let mut seen = Vec::new();
    // Nine tags; the tenth space gets one of an ended space, after everything was invalidated
    // everywhere.
    for round in 0..12u64 {
        let space = new_space();
        map(space, 1, 100 + round);
        (0..2).for_each(|cpu| {
            switch(cpu, space);
        });
        world().invalidations.borrow_mut().clear();
        flush(0, space, 2).unwrap();
        let reset = (0, Invalidate::Everything);
        assert_eq!(world().invalidations.borrow().contains(&reset), round == 9, "round {round}");
        flush(0, space, 2).unwrap();
        seen.push(tag_on(0));
        (0..2).for_each(|cpu| assert_eq!(on_cpu(cpu, |_| access(1)), Some(100 + round)));
        (0..2).for_each(|cpu| on_cpu(cpu, leave));
        space.retire(&Mock::pin()).unwrap();
    }
    assert_eq!(seen[..9], (7..16).map(Tag).collect::<Vec<_>>());
    assert_eq!(seen[9..], [7, 8, 9].map(Tag));
}

#[test]
fn tags_that_are_also_slots_are_refused() {
    world().first_shared.set(6);
    world().facts.set(&INVLPGB);
    world().policy.set(&PULL);
    assert_eq!(online(irqs_off(&Mock::pin())), Err(OnlineError::SharedTags));
}

#[test]
fn a_policy_without_them_gives_none() {
    static NEVER: Policy = Policy { shared: Threshold::NEVER, ..Policy::SHOOTDOWN };
    boot(3, &NEVER, &INVLPGB);
    let space = new_space();
    (0..3).for_each(|cpu| {
        switch(cpu, space);
    });
    (0..100).for_each(|_| {
        flush(0, space, 1).unwrap();
    });
    assert!((0..3).all(|cpu| tag_on(cpu).0 < 7));
    assert_eq!(Mock::slot(CpuId(0)).unwrap().stats().invalidations_broadcast, 0);
}

#[test]
fn what_a_slot_has_missed_is_replayed_under_its_tag_and_not_under_the_one_for_all_cpus() {
    let (_, tag) = moved(&PULL);
    let other = new_space();
    map(other, 1, 11);
    switch(1, other);
    assert_eq!(on_cpu(1, |_| access(1)), Some(11));
    let space = new_space();
    // To the first space again, under the tag, and back to a space that has changed meanwhile.
    (0..2).for_each(|cpu| {
        switch(cpu, space);
    });
    flush(0, space, 2).unwrap();
    flush(0, space, 2).unwrap();
    assert!(tag_on(1).0 >= 7 && tag_on(1) != tag);
    unmap(other, 1);
    flush(0, other, 1).unwrap();
    assert_eq!(switch(1, other), Switched::Replayed);
    assert_eq!(on_cpu(1, |_| access(1)), None);
}

#[test]
fn with_split_tables_spaces_keep_their_slots() {
    static SPLIT: Facts = Facts {
        split_tables: SplitTables::Yes { invalidate_other_tag: true },
        tag_bits: 5,
        ..INVLPGB
    };
    boot(3, &PULL, &SPLIT);
    let space = new_space();
    (0..3).for_each(|cpu| {
        switch(cpu, space);
    });
    (0..3).for_each(|_| assert_eq!(flush(0, space, 1), Ok(2)));
    assert!((0..3).all(|cpu| tag_on(cpu).0 < 7));
    assert_eq!(Mock::slot(CpuId(0)).unwrap().stats().invalidations_broadcast, 0);
}

#[test]
fn kernel_pages_and_everything_go_by_broadcast() {
    boot(3, &Policy::SHOOTDOWN, &INVLPGB);
    let space = new_space();
    for cpu in 0..3 {
        switch(cpu, space);
    }
    let caches = || {
        world().tables.borrow_mut().insert((0, 0xffff0), 7);
        (0..3).for_each(|cpu| assert_eq!(on_cpu(cpu, |_| access_kernel(0xffff0)), Some(7)));
        world().tables.borrow_mut().remove(&(0, 0xffff0));
    };
    let gone = || (0..3).all(|cpu| on_cpu(cpu, |_| access_kernel(0xffff0)).is_none());
    mask(1);
    caches();
    shootdown::flush_kernel::<Mock>(&Mock::pin(), pages(0xffff0, 1)).unwrap();
    assert!(gone());
    caches();
    shootdown::flush_everything::<Mock>(&Mock::pin()).unwrap();
    assert!(gone());
    assert_eq!(world().kicked.get(), 0, "nobody is interrupted");
}
