//! Functions of the library in contexts where they do not belong, or only just: what they promise
//! holds there too, or they refuse.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with the examples and benches, which use other parts
mod mock;

use mock::*;
use shootdown::gather::{Array, Gather, Nothing};
use shootdown::lazy_unmap::{LazyUnmap, LazyUnmapping, Was};
use shootdown::paravirt::PreemptedWord;
use shootdown::tags::broadcast::BroadcastTags;
use shootdown::tags::generations::CpuTag;
use shootdown::{
    AddressSpace, Facts, FlushError, IrqsOff, OnlineError, PinTagError, Platform, Policy, Request,
    Served, Stride, Switched, Tag, UserEntry, VaRange, flush_kernel,
};

type Space = &'static AddressSpace<Mock>;

fn pages(page: u64, count: u64) -> VaRange {
    VaRange::new(page << 12, count, Stride::Page4K).unwrap()
}

fn here() -> Pin {
    Mock::pin()
}

/// CPU 0 has cached page 1 of the second space, is back in the first, and goes to the second again.
/// A non-maskable handler comes when it has decided to keep what is cached, takes the page away and
/// flushes. Says what the CPU reads of the page after that.
fn taken_away_inside_a_switch(
    policy: &'static Policy,
    facts: &'static Facts,
    flush: impl Fn(Space) -> Result<(), FlushError> + 'static,
) -> Option<u64> {
    boot(1, policy, facts);
    let (space, next) = (new_space(), new_space());
    map(next, 1, 0xf00d);
    switch(0, next);
    assert_eq!(access(1), Some(0xf00d));
    switch(0, space);
    *world().during_load.borrow_mut() = Some(Box::new(move || {
        world().may_wait.set(false);
        unmap(next, 1).expect("it was mapped");
        flush(next).expect("no other CPU has the space");
        world().may_wait.set(true);
    }));
    assert_ne!(switch(0, next), Switched::Same);
    access(1)
}

#[test]
fn a_flush_inside_a_switch_to_its_space_is_complete_when_it_returns() {
    static LAZY: Policy = Policy { lazy_unmap: Some(LazyUnmap::TWO_TICKS), ..Policy::SHOOTDOWN };
    type Flush = fn(Space) -> Result<(), FlushError>;
    let flushes: [Flush; 5] = [
        |space| space.flush(&here(), Request::pages(pages(1, 1))).map(drop),
        |space| {
            let mut ticket = space.begin_flush(&here(), Request::pages(pages(1, 1)))?;
            assert!(ticket.poll());
            Ok(())
        },
        |space| {
            let mut gather = Gather::<Mock, Nothing>::new(space);
            gather.changed(pages(1, 1));
            gather.finish(&here()).map(drop).map_err(|(e, _)| e)
        },
        |space| {
            drop(space.begin_flush(&here(), Request::space()));
            space.complete_pending(&here())
        },
        |space| {
            let mut later = LazyUnmapping::<Mock, Array<u64, 1>>::new(space);
            later
                .unmapped(&here(), 0, pages(1, 1), Was::ReadOnly, 0xf00d)
                .expect("the policy wants it");
            later.redeem(&here()).map(drop)
        },
    ];
    for (i, flush) in flushes.into_iter().enumerate() {
        for facts in [&PCID, &PTI, &RISCV] {
            std::thread::spawn(move || {
                let read = taken_away_inside_a_switch(&LAZY, facts, flush);
                assert_eq!(read, None, "flush {i}, {:?}", facts.tag_scope);
            })
            .join()
            .unwrap();
        }
    }
}

#[test]
fn a_flush_of_a_kernel_range_inside_a_switch_reaches_the_tag_that_is_loaded_next() {
    boot(1, &Policy::SHOOTDOWN, &PTI);
    let (space, next) = (new_space(), new_space());
    world().tables.borrow_mut().insert((0, 9), 0xbeef);
    switch(0, next);
    assert_eq!(access_kernel(9), Some(0xbeef));
    switch(0, space);
    *world().during_load.borrow_mut() = Some(Box::new(|| {
        world().may_wait.set(false);
        world().tables.borrow_mut().remove(&(0, 9));
        flush_kernel::<Mock>(&here(), pages(9, 1)).expect("there is no other CPU");
        world().may_wait.set(true);
    }));
    switch(0, next);
    assert_eq!(access_kernel(9), None);
}

/// Is a function one that may be called without `unsafe`? Only such a one is an `Fn`. Of the two
/// methods `is_safe`, the one that borrows less is taken where it applies.
macro_rules! is_safe {
    ($function:expr, $($argument:ty),+ => $result:ty) => {{
        struct Function<F>(F);
        #[allow(dead_code)] // of the two, one is used
        trait Safe {
            fn is_safe(&self) -> bool {
                true
            }
        }
        #[allow(dead_code)]
        trait Unsafe {
            fn is_safe(&self) -> bool {
                false
            }
        }
        #[allow(clippy::unused_unit)] // some return nothing
        impl<F: Fn($($argument),+) -> $result> Safe for Function<F> {}
        impl<F> Unsafe for &Function<F> {}
        (&Function($function)).is_safe()
    }};
}

#[test]
fn what_a_later_flush_relies_on_is_not_said_by_safe_functions() {
    type Tags = BroadcastTags<64>;
    assert!(is_safe!(shootdown::poll::<Mock>, &Pin => Served), "the macro tells");
    assert!(!is_safe!(shootdown::leave::<Mock>, &Pin => ()));
    assert!(!is_safe!(shootdown::enter_lazy::<Mock>, &Pin => ()));
    assert!(!is_safe!(shootdown::offline::<Mock>, &Pin => ()));
    assert!(!is_safe!(shootdown::return_to_user::<Mock>, &Pin => UserEntry));
    assert!(!is_safe!(shootdown::isolated::to_user::<Mock>, &Pin => ()));
    assert!(
        !is_safe!(AddressSpace::<Mock>::unpin_tag, &AddressSpace<Mock>, &Pin => Result<(), PinTagError>)
    );
    assert!(!is_safe!(PreemptedWord::stopped, &PreemptedWord => ()));
    assert!(!is_safe!(PreemptedWord::resumes, &PreemptedWord => bool));
    assert!(!is_safe!(CpuTag::loaded, &CpuTag => ()));
    assert!(!is_safe!(CpuTag::deactivate, &CpuTag => ()));
    assert!(!is_safe!(Tags::release, &Tags, Tag => ()));
}

#[test]
fn where_interrupts_must_be_off_a_pin_does_not_do() {
    assert!(!is_safe!(shootdown::on_kick::<Mock>, &Pin => Served));
    assert!(is_safe!(shootdown::on_kick::<Mock>, IrqsOff<'static, Mock> => Served));
    assert!(!is_safe!(shootdown::online::<Mock>, &Pin => Result<(), OnlineError>));
    assert!(is_safe!(shootdown::online::<Mock>, IrqsOff<'static, Mock> => Result<(), OnlineError>));
    assert!(!is_safe!(shootdown::accessed::tick::<Mock>, &Pin => ()));
    assert!(is_safe!(shootdown::accessed::tick::<Mock>, IrqsOff<'static, Mock> => ()));
    assert!(!is_safe!(shootdown::isolated::from_user::<Mock>, &Pin => bool));
    assert!(is_safe!(shootdown::isolated::from_user::<Mock>, IrqsOff<'static, Mock> => bool));
}
