//! Spaces whose tag is pinned, on a mock with synchronous interrupts.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with other tests, which use other parts
mod mock;

use mock::*;
use shootdown::facts::SplitTables;
use shootdown::residency::Strategy;
use shootdown::{
    AddressSpace, Facts, Invalidate, PinTagError, Platform, Policy, Request, RetireError, Stride,
    Tag, VaRange,
};

const fn by(strategy: Strategy) -> Policy {
    Policy { broadcast: Some(strategy), ..Policy::SHOOTDOWN }
}
static STRATEGIES: [Policy; 4] =
    [by(Strategy::Always), by(Strategy::Sticky), by(Strategy::Active), by(Strategy::Trim)];
static SPLIT: Facts =
    Facts { tag_bits: 4, split_tables: SplitTables::Yes { invalidate_other_tag: true }, ..ARM };

fn in_fresh_world(f: impl FnOnce() + Send) {
    std::thread::scope(|s| s.spawn(f).join().unwrap());
}

fn pin_tag(space: &AddressSpace<Mock>) -> Result<Tag, PinTagError> {
    space.pin_tag(&Mock::pin())
}

fn unpin(space: &AddressSpace<Mock>) -> Result<(), PinTagError> {
    // SAFETY: there is no device.
    unsafe { space.unpin_tag(&Mock::pin()) }
}

/// Flushes a page, and says what was broadcast for it (the mock runs nothing that was not synced).
fn flush(space: &AddressSpace<Mock>) -> u64 {
    let broadcasts = || Mock::slot(shootdown::CpuId(0)).unwrap().stats().invalidations_broadcast;
    let before = broadcasts();
    let page = VaRange::new(0x1000, 1, Stride::Page4K).unwrap();
    space.flush(&Mock::pin(), Request::pages(page)).unwrap();
    broadcasts() - before
}

#[test]
fn a_pinned_space_always_broadcasts_and_an_unpinned_one_when_it_must() {
    for policy in &STRATEGIES {
        in_fresh_world(move || {
            boot(2, policy, &ARM);
            let space = new_space();
            switch(0, space);
            let always = policy.broadcast == Some(Strategy::Always);
            assert_eq!(flush(space), u64::from(always));
            let tag = pin_tag(space).unwrap();
            assert_eq!(pin_tag(space), Ok(tag), "pins add up");
            for _ in 0..2 {
                assert_eq!(flush(space), 1);
                world().invalidations.borrow_mut().clear();
                unpin(space).unwrap();
                assert_eq!(*world().invalidations.borrow(), [(0, Invalidate::Tag(tag))]);
                assert!(world().broadcasts.borrow().is_empty(), "synced");
            }
            assert_eq!(flush(space), u64::from(always));
            assert_eq!(unpin(space), Err(PinTagError::NotPinned));
        });
    }
}

#[test]
fn a_space_that_never_ran_is_flushed_where_its_device_is() {
    boot(2, &STRATEGIES[2], &ARM);
    let space = new_space();
    assert_eq!(flush(space), 0);
    let tag = pin_tag(space).unwrap();
    assert_eq!(space.tag(), Some(tag));
    assert_eq!(flush(space), 1);
}

#[test]
fn no_rollover_takes_a_pinned_tag_away() {
    for policy in &STRATEGIES {
        in_fresh_world(move || {
            boot(2, policy, &ARM);
            let pinned = new_space();
            let tag = pin_tag(pinned).unwrap();
            for _ in 0..40 {
                let other = new_space();
                switch(0, other);
                assert_ne!(other.tag(), Some(tag));
            }
            assert_eq!((pinned.tag(), flush(pinned)), (Some(tag), 1));
            switch(0, pinned);
            assert_eq!((pinned.tag(), flush(pinned)), (Some(tag), 1));
        });
    }
}

#[test]
fn what_cannot_be_pinned_is_said() {
    in_fresh_world(|| {
        // Seven tags to give out, and four CPUs: two may be pinned, as one is always left.
        boot(4, &STRATEGIES[1], &ARM);
        let spaces: Vec<_> = (0..3).map(|_| new_space()).collect();
        assert!(pin_tag(spaces[0]).is_ok() && pin_tag(spaces[1]).is_ok());
        assert_eq!(pin_tag(spaces[2]), Err(PinTagError::NoPinLeft));
        unpin(spaces[0]).unwrap();
        assert!(pin_tag(spaces[2]).is_ok());
    });
    for (policy, facts) in [
        (&Policy::SHOOTDOWN, &PCID),
        (&Policy::SHOOTDOWN, &RISCV),
        (&Policy::SHOOTDOWN, &Facts::X86_64_MINIMUM),
        (&Policy::LINUX_5_13, &ARM),
    ] {
        in_fresh_world(move || {
            boot(2, policy, facts);
            assert_eq!(pin_tag(new_space()), Err(PinTagError::NoBroadcast));
        });
    }
}

#[test]
fn a_pinned_space_does_not_end() {
    boot(2, &STRATEGIES[2], &ARM);
    let space = new_space();
    switch(0, space);
    pin_tag(space).unwrap();
    on_cpu(0, leave);
    assert_eq!(space.retire(&Mock::pin()), Err(RetireError::Pinned));
    unpin(space).unwrap();
    assert_eq!(space.retire(&Mock::pin()), Ok(()));
}

#[test]
fn a_device_is_given_the_tag_of_the_user_half() {
    boot(2, &STRATEGIES[1], &SPLIT);
    let space = new_space();
    let tag = pin_tag(space).unwrap();
    assert_eq!((tag.0 & 1, space.tag()), (1, Some(Tag(tag.0 - 1))));
}
