//! Lazy unmapping, row by row, on a mock with synchronous interrupts: what is refused, who is
//! interrupted and when.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with the examples and benches, which use other parts
mod mock;

use mock::*;
use shootdown::accessed::tick;
use shootdown::gather::{Array, Gather};
use shootdown::lazy_unmap::{LazyUnmap, LazyUnmapping, Refused, Was, Why};
use shootdown::{
    AddressSpace, CpuId, FlushError, Platform, Policy, Request, Stride, VaRange, isolated,
};

static LAZY: Policy =
    Policy { lazy_unmap: Some(LazyUnmap { max_age: 10, max_pages: 8 }), ..Policy::SHOOTDOWN };
static LAZY_PUSH: Policy = Policy { lazy_unmap: LAZY.lazy_unmap, ..Policy::LINUX_5_13 };
static LAZY_NAIVE: Policy = Policy { lazy_unmap: LAZY.lazy_unmap, ..Policy::NAIVE };
static LAZY_TREE: Policy = Policy { tree_above: 1, ..LAZY };

type Lazy = LazyUnmapping<'static, Mock, Array<u64, 16>>;

fn pages(page: u64, count: u64) -> VaRange {
    VaRange::new(page << 12, count, Stride::Page4K).unwrap()
}

fn here() -> Pin {
    Mock::pin()
}

fn stats(cpu: u32) -> shootdown::stats::Snapshot {
    Mock::slot(CpuId(cpu)).unwrap().stats()
}

fn in_fresh_world(f: impl FnOnce() + Send) {
    std::thread::scope(|s| s.spawn(f).join().unwrap());
}

/// A space whose pages 1 to 3 these CPUs have cached.
fn used_by(cpus: std::ops::Range<u32>) -> &'static AddressSpace<Mock> {
    let space = new_space();
    (1..4).for_each(|page| map(space, page, 10 * page));
    for cpu in cpus {
        switch(cpu, space);
        (1..4).for_each(|page| assert!(on_cpu(cpu, |_| access(page)).is_some()));
    }
    space
}

fn put_off(
    later: &mut Lazy,
    now: u64,
    space: &'static AddressSpace<Mock>,
    page: u64,
) -> Result<(), Refused<u64>> {
    let frame = unmap(space, page).expect("mapped");
    later.unmapped(&here(), now, pages(page, 1), Was::ReadOnly, frame)
}

#[test]
fn nobody_is_told_until_frames_are_needed() {
    for policy in [&LAZY, &LAZY_PUSH, &LAZY_NAIVE, &LAZY_TREE] {
        for facts in [&PCID, &PTI, &shootdown::Facts::X86_64_MINIMUM] {
            in_fresh_world(move || {
                boot(4, policy, facts);
                let space = used_by(0..4);
                let mut later = Lazy::new(space);
                put_off(&mut later, 0, space, 1).unwrap();
                put_off(&mut later, 0, space, 3).unwrap();
                assert_eq!(world().kicked.get(), 0);
                assert_eq!(on_cpu(0, |_| access(1)), None, "this CPU has forgotten");
                assert_eq!(on_cpu(2, |_| access(1)), Some(10), "the others have not");
                assert!(space.is_pending());
                assert_eq!(later.redeem(&here()).unwrap().as_slice(), [10, 30]);
                assert!((0..4).all(|cpu| on_cpu(cpu, |_| access(1)).is_none()));
                assert!((0..4).all(|cpu| on_cpu(cpu, |_| access(3)).is_none()));
                assert!(!space.is_pending());
            });
        }
    }
}

#[test]
fn whoever_has_come_by_is_not_interrupted() {
    for policy in [&LAZY, &LAZY_TREE] {
        in_fresh_world(move || {
            boot(5, policy, &PCID);
            let space = used_by(0..5);
            let other = new_space();
            let mut later = Lazy::new(space);
            put_off(&mut later, 0, space, 1).unwrap();
            on_cpu(1, |pin| tick(irqs_off(pin)));
            switch(2, space);
            switch(3, other);
            on_cpu(4, enter_lazy);
            assert_eq!(on_cpu(1, |_| access(1)), None, "a tick");
            assert_eq!(on_cpu(2, |_| access(1)), None, "a switch to the same space");
            assert_eq!(later.redeem(&here()).unwrap().as_slice(), [10]);
            assert_eq!(world().kicked.get(), 0);
            let s = stats(0);
            assert_eq!((s.lazily_pending, s.lazily_unasked, s.lazily_by_need), (1, 1, 0));
            assert_eq!((stats(1).lazily_swept, stats(2).lazily_swept), (1, 1));
        });
    }
}

#[test]
fn what_is_old_is_flushed_by_the_next_poll() {
    boot(3, &LAZY, &PCID);
    let space = used_by(0..3);
    let mut later = Lazy::new(space);
    assert!(later.poll(&here(), 99).unwrap().is_none(), "nothing is pending");
    put_off(&mut later, 100, space, 1).unwrap();
    put_off(&mut later, 109, space, 2).unwrap();
    assert!(later.poll(&here(), 110).unwrap().is_none(), "ten is not older than ten");
    assert_eq!(world().kicked.get(), 0);
    assert_eq!(later.poll(&here(), 111).unwrap().unwrap().as_slice(), [10, 20]);
    assert_eq!((world().kicked.get(), stats(0).lazily_by_age), (2, 1));
    put_off(&mut later, 200, space, 3).unwrap();
    assert!(later.poll(&here(), 205).unwrap().is_none(), "its age counts anew");
    let _ = later.redeem(&here()).unwrap();
}

#[test]
fn what_others_have_flushed_comes_out_at_the_next_poll() {
    boot(2, &LAZY, &PCID);
    let space = used_by(0..2);
    let mut later = Lazy::new(space);
    put_off(&mut later, 0, space, 1).unwrap();
    space.flush(&here(), Request::pages(pages(9, 1))).unwrap();
    assert_eq!(on_cpu(1, |_| access(1)), None, "it catches up with all");
    assert_eq!(later.poll(&here(), 0).unwrap().unwrap().as_slice(), [10]);
    let s = stats(0);
    assert_eq!((s.completed_by_others, s.lazily_unasked, s.lazily_by_age), (1, 1, 0));
}

#[test]
fn who_relies_on_an_empty_entry_flushes() {
    boot(2, &LAZY, &PCID);
    let space = used_by(0..2);
    let mut later = Lazy::new(space);
    put_off(&mut later, 0, space, 1).unwrap();
    space.complete_pending(&here()).unwrap();
    assert_eq!(on_cpu(1, |_| access(1)), None);
    assert!(later.is_pending(), "it does not know yet");
    assert_eq!(later.redeem(&here()).unwrap().as_slice(), [10]);
    assert_eq!(world().kicked.get(), 1);
}

#[test]
fn an_address_is_flushed_before_it_is_mapped_again() {
    boot(2, &LAZY, &PCID);
    let space = used_by(0..2);
    let mut later = Lazy::new(space);
    put_off(&mut later, 0, space, 1).unwrap();
    put_off(&mut later, 0, space, 3).unwrap();
    assert!(later.may_reuse(pages(2, 1)), "between two that are pending");
    assert!(!later.may_reuse(pages(1, 1)) && !later.may_reuse(pages(3, 4)));
    later.make_way(&here(), pages(2, 1)).unwrap();
    assert_eq!(world().kicked.get(), 0);
    later.make_way(&here(), pages(0, 2)).unwrap();
    assert_eq!((world().kicked.get(), stats(0).lazily_by_need), (1, 1));
    assert_eq!(on_cpu(1, |_| access(1)), None);
    assert!(later.may_reuse(pages(1, 1)) && !later.is_pending());
    assert_eq!(later.poll(&here(), 0).unwrap().unwrap().as_slice(), [10, 30]);
}

#[test]
fn more_ranges_than_are_told_apart_cost_a_payment_and_no_more() {
    static MANY: Policy =
        Policy { lazy_unmap: Some(LazyUnmap { max_age: 10, max_pages: 99 }), ..Policy::SHOOTDOWN };
    boot(1, &MANY, &PCID);
    let space = new_space();
    let mut later = Lazy::new(space);
    for page in (0..20).step_by(2) {
        later.unmapped(&here(), 0, pages(page, 1), Was::ReadOnly, page).unwrap();
    }
    assert!((0..20).step_by(2).all(|page| !later.may_reuse(pages(page, 1))));
    assert!(later.may_reuse(pages(1, 1)));
    assert!(!later.may_reuse(pages(17, 1)), "the last range has grown over it");
    assert_eq!(later.redeem(&here()).unwrap().as_slice().len(), 10);
}

#[test]
fn an_isolated_cpu_is_interrupted_for_reuse_only() {
    boot(3, &LAZY, &PCID);
    let space = used_by(0..3);
    on_cpu(1, to_user);
    let mut later = Lazy::new(space);
    put_off(&mut later, 0, space, 1).unwrap();
    assert!(later.poll(&here(), 99).unwrap().is_none(), "CPU 1 may still use it");
    assert_eq!(world().kicked.get(), 1, "CPU 2");
    assert_eq!((on_cpu(1, |_| access(1)), on_cpu(2, |_| access(1))), (Some(10), None));
    assert!(later.poll(&here(), 999).unwrap().is_none());
    assert_eq!((world().kicked.get(), stats(0).avoided_isolated), (1, 2));
    assert!(
        !on_cpu(1, |pin| isolated::from_user(irqs_off(pin))),
        "it missed nothing of the kernel"
    );
    assert_eq!(on_cpu(1, |_| access(1)), None);
    on_cpu(1, to_user);
    assert_eq!(later.poll(&here(), 999).unwrap().unwrap().as_slice(), [10]);
    put_off(&mut later, 0, space, 2).unwrap();
    assert_eq!(later.redeem(&here()).unwrap().as_slice(), [20]);
    assert_eq!(world().kicked.get(), 3, "now both");
    assert_eq!(on_cpu(1, |_| access(2)), None);
}

#[test]
fn what_must_not_wait_is_refused_and_nothing_is_counted() {
    let why = |policy, facts, was| {
        let mut refused = None;
        in_fresh_world(|| {
            boot(2, policy, facts);
            let space = new_space();
            let before = space.generation();
            let result = Lazy::new(space).unmapped(&here(), 0, pages(1, 1), was, 7);
            let Err(Refused { why, item }) = result else { panic!("it is put off") };
            assert_eq!((item, space.generation(), space.is_pending()), (7, before, false));
            assert_eq!(stats(0).lazily_refused, 1);
            refused = Some(why);
        });
        refused.unwrap()
    };
    assert_eq!(why(&Policy::SHOOTDOWN, &PCID, Was::ReadOnly), Why::Off);
    for (was, because) in [
        (Was::MaybeWritten, Why::MaybeWritten),
        (Was::Kernel, Why::Kernel),
        (Was::Table, Why::Table),
        (Was::Device, Why::Device),
    ] {
        assert_eq!(why(&LAZY, &PCID, was), because);
        assert!(!because.to_string().is_empty());
    }
    static BROADCAST: Policy = Policy { lazy_unmap: LAZY.lazy_unmap, ..Policy::ARM64_MAINLINE };
    assert_eq!(why(&BROADCAST, &ARM, Was::ReadOnly), Why::Broadcast);
    assert_eq!(why(&LAZY, &INVLPGB, Was::NeverWritten), Why::Broadcast);
}

#[test]
fn too_much_is_refused() {
    boot(1, &LAZY, &PCID);
    let space = new_space();
    let mut later = Lazy::new(space);
    later.unmapped(&here(), 0, pages(0, 8), Was::ReadOnly, 1).unwrap();
    let more = later.unmapped(&here(), 0, pages(9, 1), Was::ReadOnly, 2);
    assert_eq!(more, Err(Refused { why: Why::Full, item: 2 }));
    let large = VaRange::new(0, 1, Stride::Page2M).unwrap();
    let _ = later.redeem(&here()).unwrap();
    let more = later.unmapped(&here(), 0, large, Was::ReadOnly, 3);
    assert_eq!(more, Err(Refused { why: Why::Full, item: 3 }), "512 pages");
    let all = VaRange::covering(0, u64::MAX, Stride::Page1G).unwrap_or(large);
    let more = later.unmapped(&here(), 0, all, Was::ReadOnly, 4);
    assert_eq!(more, Err(Refused { why: Why::Full, item: 4 }), "nor is that an overflow");
    let mut small = LazyUnmapping::<Mock, Array<u64, 1>>::new(space);
    small.unmapped(&here(), 0, pages(1, 1), Was::ReadOnly, 1).unwrap();
    let more = small.unmapped(&here(), 0, pages(2, 1), Was::ReadOnly, 2);
    assert_eq!(more, Err(Refused { why: Why::Full, item: 2 }), "no place for the item");
    assert!(small.may_reuse(pages(2, 1)));
    assert_eq!(small.redeem(&here()).unwrap().as_slice(), [1]);
}

#[test]
fn an_entry_is_not_believed_while_another_change_is_pending() {
    boot(2, &LAZY, &PCID);
    let space = used_by(0..2);
    let mut later = Lazy::new(space);
    let mut gather = Gather::<Mock, Array<u64, 1>>::new(space);
    let refused = |later: &mut Lazy| later.unmapped(&here(), 0, pages(1, 1), Was::ReadOnly, 1);
    let pending = Err(Refused { why: Why::Pending, item: 1 });
    assert_eq!(refused(&mut later), pending, "a gather is open");
    let frame = unmap(space, 3).unwrap();
    gather.unmapped(pages(3, 1), frame).unwrap();
    world().refuse_kicks.set(true);
    let failed = gather.finish(&here()).map_err(|(e, _)| e);
    assert!(matches!(failed, Err(FlushError::Kick(_))));
    assert_eq!(refused(&mut later), pending, "a flush has failed");
    world().refuse_kicks.set(false);
    space.complete_pending(&here()).unwrap();
    put_off(&mut later, 0, space, 1).unwrap();
    put_off(&mut later, 0, space, 2).unwrap();
    let mut another = Lazy::new(space);
    assert_eq!(refused(&mut another), pending, "somebody else has put off");
    let _ = later.redeem(&here()).unwrap();
}

#[test]
fn a_payment_that_fails_keeps_everything() {
    boot(2, &LAZY, &PCID);
    let space = used_by(0..2);
    let mut later = Lazy::new(space);
    put_off(&mut later, 0, space, 1).unwrap();
    world().refuse_kicks.set(true);
    assert!(matches!(later.redeem(&here()), Err(FlushError::Kick(_))));
    assert!(later.make_way(&here(), pages(1, 1)).is_err());
    assert!(later.poll(&here(), 99).is_err());
    assert!(later.is_pending() && !later.may_reuse(pages(1, 1)));
    world().refuse_kicks.set(false);
    assert_eq!(later.redeem(&here()).unwrap().as_slice(), [10]);
    assert_eq!(on_cpu(1, |_| access(1)), None);
}

#[test]
fn a_space_that_has_ended_needs_no_interrupts() {
    boot(2, &LAZY, &PCID);
    let (space, other) = (used_by(0..2), new_space());
    let mut later = Lazy::new(space);
    put_off(&mut later, 0, space, 1).unwrap();
    for cpu in 0..2 {
        switch(cpu, other);
    }
    space.retire(&here()).unwrap();
    assert_eq!(later.redeem(&here()).unwrap().as_slice(), [10]);
    assert_eq!(world().kicked.get(), 0);
}
