//! What is pending in a space, row by row, on a mock with synchronous interrupts: batches across
//! spaces, gathers at the same time, and whose flush covers whose change.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with the examples and benches, which use other parts
mod mock;

use mock::*;
use shootdown::gather::{Array, Gather, Nothing};
use shootdown::{
    AddressSpace, Batch, CpuId, FlushError, Invalidate, KickError, Platform, Policy, Request,
    Stride, VaRange,
};

const POLICIES: [(&str, &Policy); 6] = [
    ("naive", &Policy::NAIVE),
    ("linux-4.13", &Policy::LINUX_4_13),
    ("linux-4.14", &Policy::LINUX_4_14),
    ("linux-5.13", &Policy::LINUX_5_13),
    ("linux-6.15", &Policy::LINUX_6_15),
    ("shootdown", &Policy::SHOOTDOWN),
];

static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

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

/// Runs the space on a CPU, which caches the page.
fn caches(cpu: u32, space: &'static AddressSpace<Mock>, page: u64) {
    switch(cpu, space);
    assert!(on_cpu(cpu, |_| access(page)).is_some());
}

/// Clears the page's entry for a batch.
fn put_off(
    batch: &mut Batch<'_, Mock, Array<u64, 8>>,
    space: &'static AddressSpace<Mock>,
    page: u64,
) {
    let frame = unmap(space, page).expect("mapped");
    batch.unmapped(space, pages(page, 1), false, frame).expect("room");
}

#[test]
fn a_batch_reaches_every_space_under_every_policy() {
    for facts in [&PCID, &PTI, &shootdown::Facts::X86_64_MINIMUM, &RISCV, &ARM, &INVLPGB] {
        for (name, policy) in POLICIES.into_iter().chain([("tree", &TREE)]) {
            in_fresh_world(move || {
                boot(5, policy, facts);
                let spaces = [new_space(), new_space()];
                for space in spaces {
                    (1..4).for_each(|page| map(space, page, 10 * page));
                }
                for cpu in 0..5 {
                    let space = spaces[cpu as usize % 2];
                    (1..4).for_each(|page| caches(cpu, space, page));
                }
                let mut batch = Batch::<Mock, Array<u64, 8>>::default();
                for page in [1, 3] {
                    spaces.iter().for_each(|space| put_off(&mut batch, space, page));
                }
                assert!(spaces.iter().all(|space| space.is_pending()));
                let frames = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
                assert_eq!(frames.as_slice(), [10, 10, 30, 30]);
                assert!((0..5).all(|cpu| on_cpu(cpu, |_| access(1)).is_none()), "{name}");
                assert!((0..5).all(|cpu| on_cpu(cpu, |_| access(3)).is_none()), "{name}");
            });
        }
    }
}

#[test]
fn a_cpu_is_interrupted_once_for_a_batch() {
    boot(4, &Policy::SHOOTDOWN, &PCID);
    let spaces: Vec<_> = (0..3).map(|_| new_space()).collect();
    for (space, cpu) in spaces.iter().zip(1..) {
        (0..4).for_each(|page| map(space, page, page));
        (0..4).for_each(|page| caches(cpu, space, page));
    }
    let mut batch = Batch::<Mock, Array<u64, 16>>::default();
    for page in 0..4 {
        for space in &spaces {
            let frame = unmap(space, page).unwrap();
            batch.unmapped(space, pages(page, 1), false, frame).unwrap();
        }
    }
    assert_eq!(world().kicked.get(), 0, "nobody is notified while entries are cleared");
    let _ = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!(world().kicked.get(), 3, "once each");
    let s = stats(0);
    assert_eq!((s.pending, s.completed, s.completed_by_others), (12, 3, 0));
}

#[test]
fn who_has_caught_up_meanwhile_is_not_told() {
    boot(4, &Policy::SHOOTDOWN, &PCID);
    let (space, other) = (new_space(), new_space());
    map(space, 1, 10);
    (1..4).for_each(|cpu| caches(cpu, space, 1));
    let mut batch = Batch::default();
    put_off(&mut batch, space, 1);
    switch(1, other);
    switch(1, space); // looks at the generation on its way back
    assert_eq!(on_cpu(1, |_| access(1)), None);
    on_cpu(2, enter_lazy);
    let _ = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!(world().kicked.get(), 1, "CPU 3: CPU 1 is current, and CPU 2 looks when it returns");
    assert_eq!(on_cpu(3, |_| access(1)), None);
}

#[test]
fn who_finds_an_entry_cleared_flushes_that_space_only() {
    boot(3, &Policy::SHOOTDOWN, &PCID);
    let (a, b) = (new_space(), new_space());
    map(a, 1, 10);
    map(b, 1, 20);
    caches(1, a, 1);
    caches(2, b, 1);
    let mut batch = Batch::default();
    put_off(&mut batch, a, 1);
    put_off(&mut batch, b, 1);
    a.complete_pending(&here()).unwrap();
    assert_eq!(on_cpu(1, |_| access(1)), None);
    assert_eq!(on_cpu(2, |_| access(1)), Some(20), "b is pending still");
    assert!(!a.is_pending() && b.is_pending());
    let kicked = world().kicked.get();
    a.complete_pending(&here()).unwrap();
    assert_eq!(world().kicked.get(), kicked, "completed once");
    assert_eq!(stats(0).completed, 1);
    let _ = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!(on_cpu(2, |_| access(1)), None);
}

#[test]
fn a_newer_flush_covers_where_cpus_catch_up() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    map(space, 2, 20);
    caches(1, space, 1);
    caches(1, space, 2);
    let mut batch = Batch::default();
    put_off(&mut batch, space, 1);
    space.flush(&here(), Request::pages(pages(2, 1))).unwrap();
    assert_eq!(on_cpu(1, |_| access(1)), None);
    assert!(!space.is_pending());
    let kicked = world().kicked.get();
    let _ = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!(world().kicked.get(), kicked, "nobody is behind");
    assert_eq!(stats(0).completed_by_others, 1);
}

#[test]
fn a_range_covers_nothing_else_where_hardware_removes_by_name() {
    boot(2, &Policy::SHOOTDOWN, &ARM);
    let space = new_space();
    map(space, 1, 10);
    map(space, 7, 70);
    caches(0, space, 7);
    caches(1, space, 1);
    let mut batch = Batch::default();
    put_off(&mut batch, space, 1);
    space.flush(&here(), Request::pages(pages(7, 1))).unwrap();
    assert!(space.is_pending(), "page 1 was not named");
    space.complete_pending(&here()).unwrap();
    assert_eq!(on_cpu(1, |_| access(1)), None);
    assert!(!space.is_pending());
    let _ = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
}

#[test]
fn hardware_that_broadcasts_is_waited_for_once() {
    boot(3, &Policy::ARM64_MAINLINE, &ARM);
    let spaces = [new_space(), new_space()];
    for (space, cpu) in spaces.iter().zip(1..) {
        map(space, 1, 10);
        caches(cpu, space, 1);
    }
    let syncs = world().syncs.get();
    let mut batch = Batch::default();
    spaces.iter().for_each(|space| put_off(&mut batch, space, 1));
    let _ = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!(world().syncs.get(), syncs + 1);
    assert!((1..3).all(|cpu| on_cpu(cpu, |_| access(1)).is_none()));
    assert_eq!(stats(0).invalidations_broadcast, 2);
}

#[test]
fn dirty_pages_are_flushed_before_they_are_written_back_and_others_are_not() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    map(space, 2, 20);
    caches(1, space, 1);
    caches(1, space, 2);
    let mut batch = Batch::<Mock, Array<u64, 8>>::default();
    put_off(&mut batch, space, 1);
    batch.before_write_back(&here()).unwrap();
    assert_eq!(on_cpu(1, |_| access(1)), Some(10), "a clean page can wait");
    let frame = unmap(space, 2).unwrap();
    batch.unmapped(space, pages(2, 1), true, frame).unwrap();
    batch.before_write_back(&here()).unwrap();
    assert_eq!(on_cpu(1, |_| access(2)), None);
    assert!(!batch.is_pending());
    let kicked = world().kicked.get();
    batch.before_write_back(&here()).unwrap();
    let frames = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!((frames.as_slice(), world().kicked.get()), (&[10, 20][..], kicked));
}

#[test]
fn a_full_batch_says_so_and_room_can_be_made() {
    boot(1, &Policy::SHOOTDOWN, &PCID);
    let spaces: Vec<_> = (0..3).map(|_| new_space()).collect();
    let mut batch = Batch::<Mock, Array<u64, 8>, 2>::default();
    for space in &spaces[..2] {
        batch.make_room(&here(), space).unwrap();
        batch.changed(space, pages(1, 1), false).unwrap();
    }
    assert_eq!(batch.unmapped(spaces[2], pages(1, 1), false, 9), Err(9));
    assert!(spaces[2].is_pending(), "pending all the same");
    spaces[2].complete_pending(&here()).unwrap();
    assert!(!spaces[2].is_pending() && batch.is_pending());
    batch.make_room(&here(), spaces[0]).unwrap();
    assert!(batch.is_pending(), "it has a place");
    batch.make_room(&here(), spaces[2]).unwrap();
    assert!(!batch.is_pending(), "completed to make room");
    batch.changed(spaces[2], pages(1, 1), false).unwrap();
    let _ = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
}

#[test]
fn what_a_batch_could_not_flush_is_pending_and_comes_back() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    caches(1, space, 1);
    let mut batch = Batch::default();
    put_off(&mut batch, space, 1);
    world().refuse_kicks.set(true);
    let Err((error, batch)) = batch.finish(&here()) else { panic!("CPU 1 was not reached") };
    assert_eq!(error, FlushError::Kick(KickError::NotReady));
    assert!(space.is_pending() && batch.is_pending());
    assert_eq!(space.complete_pending(&here()), Err(error));
    world().refuse_kicks.set(false);
    let frames = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!((frames.as_slice(), on_cpu(1, |_| access(1))), (&[10][..], None));
    assert!(!space.is_pending());
}

#[test]
fn a_retired_space_needs_no_payment() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    caches(1, space, 1);
    let mut batch = Batch::default();
    put_off(&mut batch, space, 1);
    on_cpu(1, enter_lazy);
    space.retire(&here()).unwrap();
    let kicked = world().kicked.get();
    let frames = batch.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!((frames.as_slice(), world().kicked.get()), (&[10][..], kicked));
}

#[test]
fn a_gather_beside_another_flushes_what_that_one_has_cleared() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    caches(1, space, 1);
    let mut first = Gather::<Mock, Array<u64, 1>>::new(space);
    let frame = unmap(space, 1).unwrap();
    first.unmapped(pages(1, 1), frame).unwrap();
    // Somebody else comes by, finds nothing there, and relies on it.
    let second = Gather::<Mock, Nothing>::new(space);
    second.finish(&here()).unwrap_or_else(|(e, _)| panic!("{e}"));
    assert_eq!(on_cpu(1, |_| access(1)), None);
    assert_eq!(stats(0).escalated_gathers, 1);
    let whole = world()
        .invalidations
        .borrow()
        .iter()
        .any(|(cpu, what)| *cpu == 1 && matches!(what, Invalidate::Tag(_)));
    assert!(whole, "what the other has cleared, and where, is not known");
    first.finish(&here()).map_err(|(e, _)| e).unwrap();
    assert_eq!(stats(0).escalated_gathers, 1, "by now it is the only one");
    assert!(!space.is_pending());
    let kicked = world().kicked.get();
    Gather::<Mock, Nothing>::new(space).finish(&here()).unwrap_or_else(|(e, _)| panic!("{e}"));
    assert_eq!(world().kicked.get(), kicked, "nothing is pending");
}

#[test]
fn a_gather_is_open_until_it_is_done() {
    boot(2, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    map(space, 1, 10);
    caches(1, space, 1);
    mask(1);
    let mut gather = Gather::<Mock, Array<u64, 1>>::new(space);
    gather.unmapped(pages(1, 1), unmap(space, 1).unwrap()).unwrap();
    let deferred = gather.defer(&here()).map_err(|(e, _)| e).unwrap();
    let Err(deferred) = deferred.poll() else { panic!("CPU 1 has not acknowledged") };
    assert!(space.is_pending());
    unmask(1);
    let Ok(frames) = deferred.poll() else { panic!("CPU 1 has acknowledged") };
    assert_eq!(frames.as_slice(), [10]);
    assert!(!space.is_pending());
}

#[test]
fn what_a_gather_could_not_flush_is_pending() {
    for (name, policy) in POLICIES {
        in_fresh_world(move || {
            boot(2, policy, &PCID);
            let space = new_space();
            map(space, 1, 10);
            caches(1, space, 1);
            let mut gather = Gather::<Mock, Array<u64, 1>>::new(space);
            gather.unmapped(pages(1, 1), unmap(space, 1).unwrap()).unwrap();
            world().refuse_kicks.set(true);
            assert!(gather.finish(&here()).is_err(), "{name}");
            world().refuse_kicks.set(false);
            assert!(space.is_pending(), "{name}");
            // Somebody who has nothing to flush of its own.
            let gather = Gather::<Mock, Nothing>::new(space);
            gather.finish(&here()).unwrap_or_else(|(e, _)| panic!("{name}: {e}"));
            assert_eq!(on_cpu(1, |_| access(1)), None, "{name}");
            assert!(!space.is_pending(), "{name}");
        });
    }
}

#[test]
fn a_refused_flush_is_counted_and_pending() {
    // A handler that interrupts a posted call of its CPU can't post another; the change must not be
    // lost with it.
    boot(2, &Policy::LINUX_5_13, &PCID);
    let space = new_space();
    map(space, 1, 10);
    map(space, 2, 20);
    caches(1, space, 1);
    caches(1, space, 2);
    mask(1);
    *world().during_wait.borrow_mut() = Some(Box::new(move || {
        unmap(space, 2);
        let refused = space.flush(&here(), Request::pages(pages(2, 1)));
        assert_eq!(refused.unwrap_err(), FlushError::Reentered);
        unmask(1);
    }));
    unmap(space, 1);
    space.flush(&here(), Request::pages(pages(1, 1))).unwrap();
    assert!(space.is_pending());
    space.complete_pending(&here()).unwrap();
    assert_eq!(on_cpu(1, |_| access(2)), None);
}
