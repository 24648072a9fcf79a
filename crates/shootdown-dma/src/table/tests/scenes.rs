//! Small stories, each of which breaks when a step is missing.

use std::sync::Arc;

use super::*;

const PHYS: u64 = 0x1_2345_6000;

fn vtd() -> VtdSecondLevel {
    VtdSecondLevel::new(4, true, true).expect("four levels")
}

/// A range that crosses from one leaf table into the next.
const ACROSS: [u64; 8] = [0x1fe, 0x1ff, 0x200, 0x201, 0x202, 0x203, 0x3ff, 0x400];

fn remembered<F: Manual>(format: F, page: u64) {
    let mut world = World::new(format, true, &[0x40_0000]);
    assert!(world.map(page, 1, PHYS & !0xffff, Rights::Read));
    let table = Arc::clone(&world.table);
    let mut stays = table.walker(0).expect("a epoch_slot");
    assert!(stays.translate(page).is_some());
    let mut out = Detachments::new();
    let _ = stays.unmap(range(page, 1), &mut out).expect("mapped");
    world.pages.invalidate(range(page, 1), true);
    assert_eq!(table.sweep(usize::MAX, &mut out), Some(1));
    let gone = out.pop().expect("one");
    world.pages.invalidate(gone.range(), false);
    let before = world.pages.live();
    // SAFETY: the device was told.
    unsafe { table.finish(gone) };
    assert_eq!(stays.translate(page), None, "looks into the table that it remembers");
    // It has walked, and remembers another.
    table.collect();
    assert_eq!(world.pages.live(), before - (1 << (F::INDEX - 9)));
}

#[test]
pub(crate) fn tables_that_are_remembered_are_kept() {
    remembered(vtd(), 0x205);
}

/// A table of 16 pages, of which the third is remembered.
#[test]
pub(crate) fn tables_of_which_a_page_is_remembered_are_kept() {
    remembered(ArmStage1::<16>::with_granule(3, 0).expect("three levels"), 0x4405);
}

/// With whatever budget, and however many tables are in the way.
pub(crate) fn sweeps_come_everywhere() {
    const BUDGET: usize = 64;
    for tables in [63, 64, 65, 128, 512] {
        let mut world = World::new(vtd(), true, &[]);
        for table in 0..tables {
            assert!(world.map((table << 9) + 1, 1, PHYS, Rights::Read), "in use");
        }
        // An empty one behind them.
        assert!(world.map(1 << 18, 1, PHYS, Rights::Read));
        world.unmap(1 << 18, 1).expect("mapped");
        let mut out = Detachments::new();
        let turns = tables as usize / BUDGET + 3;
        let found = (0..turns).any(|_| world.table.sweep(BUDGET, &mut out) == Some(1));
        assert!(found, "{tables} tables");
        while let Some(gone) = out.pop() {
            world.queue.push((gone, true));
        }
    }
}

#[test]
fn sweeps_find_what_is_empty() {
    sweeps_come_everywhere();
}

/// What a CPU remembers is enough for a ring, and for the same memory in two zones far apart.
#[test]
pub(crate) fn nobody_walks_who_comes_back() {
    let world = World::new(vtd(), true, &[]);
    let mut walker = world.table.walker(0).expect("a epoch_slot");
    let ring = (0..8).map(|n| 0x40_0000 + n * 512).collect::<Vec<_>>();
    let zones = [1u64 << 34, 2 << 34].iter().flat_map(|zone| (0..4).map(move |n| zone + n * 512));
    for pages in [ring, zones.collect()] {
        let mut walks = Vec::new();
        for _ in 0..3 {
            for page in &pages {
                walker.acquire(*page, PhysAddr(PHYS), Rights::Read).expect("free");
                let _ = walker.release(*page).expect("used");
            }
            walks.push(walker.walks());
        }
        assert_eq!(walks[0], walks[2], "{walks:?}");
    }
}

#[test]
pub(crate) fn entries_are_in_memory_when_map_returns() {
    let mut world = World::new(vtd(), false, &ACROSS);
    assert!(world.map(0x1ff, 2, PHYS, Rights::ReadWrite));
    world.acquire(0x202, PHYS, Rights::Read).expect("free");
    world.acquire(0x202, PHYS, Rights::Read).expect("the same");
    world.unmap(0x1ff, 2).expect("mapped");
    let _ = world.release(0x202).expect("twice");
    let _ = world.release(0x202).expect("once");
    assert!(world.map(0x200, 512, 0x4000_0000, Rights::Write) && world.shadow.len() == 512);
}

#[test]
pub(crate) fn nobody_relies_on_what_is_not_written_back() {
    let tables = || {
        let world = World::new(vtd(), false, &[]);
        let (table, pages) = (Arc::clone(&world.table), Arc::clone(&world.pages));
        (world, table, pages)
    };
    // A second CPU maps beside the first while that has linked a table, and not yet written it
    // back.
    let (mut world, table, pages) = tables();
    world.pages.on_write_back(move || {
        let mut other = table.walker(1).expect("a epoch_slot");
        other.map(range(0x201, 1), PhysAddr(PHYS), Rights::Read).expect("free");
        assert_eq!(pages.access(0x201), Some((PHYS, Rights::Read)), "mapped, and not reached");
    });
    assert!(world.map(0x200, 1, PHYS, Rights::Read));
    // Or looks there first, so that it remembers the table.
    let (mut world, table, pages) = tables();
    assert!(world.map(0x400, 1, PHYS, Rights::Read), "the tables above are there");
    world.pages.on_write_back(move || {
        let mut other = table.walker(1).expect("a epoch_slot");
        assert_eq!(other.translate(0x201), None);
        drop(other);
        let mut other = table.walker(1).expect("a epoch_slot");
        other.map(range(0x201, 1), PhysAddr(PHYS), Rights::Read).expect("free");
        assert_eq!(pages.access(0x201), Some((PHYS, Rights::Read)), "mapped, and not reached");
    });
    assert!(world.map(0x200, 1, PHYS, Rights::Read));
    // Or shares a page while the first has not yet written it back.
    let (mut world, table, pages) = tables();
    assert!(world.map(0x200, 1, PHYS, Rights::Read));
    world.pages.on_write_back(move || {
        let mut other = table.walker(1).expect("a epoch_slot");
        let shared = other.acquire(0x201, PhysAddr(PHYS), Rights::Read);
        assert_eq!(shared, Ok(Acquired::Shared));
        assert_eq!(pages.access(0x201), Some((PHYS, Rights::Read)), "mapped, and not reached");
    });
    assert_eq!(world.acquire(0x201, PHYS, Rights::Read), Ok(Acquired::First));
}

#[test]
pub(crate) fn a_failed_map_leaves_nothing() {
    // No memory for the second table.
    let mut world = World::new(vtd(), true, &ACROSS);
    assert!(world.map(0x1fe, 1, PHYS, Rights::Read));
    world.pages.limit(0);
    assert!(!world.map(0x1ff, 4, PHYS, Rights::Read));
    world.pages.limit(usize::MAX);
    assert!(world.map(0x1ff, 4, PHYS, Rights::Read), "it can be tried again");
    // Something is in the way, behind a table that had to be made.
    let mut world = World::new(vtd(), false, &ACROSS);
    assert!(world.map(0x203, 1, PHYS, Rights::Read));
    assert!(!world.map(0x1ff, 7, PHYS, Rights::Read));
    let mut walker = world.table.walker(0).expect("a epoch_slot");
    let error = walker.map(range(0x1ff, 7), PhysAddr(PHYS), Rights::Read).unwrap_err();
    assert_eq!((error.page, error.undone), (0x203, Some(range(0x1ff, 4))));
}

#[test]
pub(crate) fn walk_caches_forget_tables_that_go_away() {
    let mut world = World::new(vtd(), true, &ACROSS);
    assert!(world.map(0x200, 512, PHYS, Rights::ReadWrite));
    world.unmap(0x200, 512).expect("mapped");
    assert_eq!(world.queue.len(), 1, "the table is of no use");
    let before = world.pages.live();
    world.settle(0);
    world.table.walker(0).expect("a epoch_slot").let_go();
    world.table.walker(1).expect("a epoch_slot").let_go();
    world.table.collect();
    assert_eq!(world.pages.live(), before - 1);
    assert!(world.map(0x201, 1, PHYS, Rights::Read));
}

#[test]
pub(crate) fn counts_do_not_wrap() {
    fn fill<F: Manual>(format: F, most: u64) {
        let mut world = World::new(format, true, &[0x77]);
        world.pages.sides(false);
        for _ in 0..most {
            world.acquire(0x77, PHYS, Rights::Read).expect("not full");
        }
        let full = world.acquire(0x77, PHYS, Rights::Read).unwrap_err();
        assert_eq!((full.kind, full.undone), (MapErrorKind::CountFull, None));
        for n in (0..most).rev() {
            let left = if n == 0 { Released::Last } else { Released::Shared };
            assert_eq!(world.release(0x77), Ok(left));
        }
        assert_eq!(world.release(0x77), Err(UnmapError::NotMapped { page: 0x77 }));
    }
    fill(vtd(), 510);
    fill(AmdV1::new(4, true).expect("four levels"), 14);
    fill(ArmStage1::new(4, 0).expect("four levels"), 2);
    fill(ArmStage2::new(3).expect("three levels"), 2);
}

#[test]
pub(crate) fn counts_go_on_beside_the_entry() {
    fn fill<F: Manual>(format: F, coherent: bool) {
        let mut world = World::new(format, coherent, &[0x77, 0x78]);
        let pages = world.table.pages();
        for most in [20, 600] {
            for _ in 0..most {
                world.acquire(0x77, PHYS, Rights::Read).expect("any number");
                world.acquire(0x78, PHYS, Rights::Read).expect("any number");
                let _ = world.release(0x78).expect("just acquired");
            }
            let other = world.acquire(0x77, PHYS, Rights::ReadWrite).unwrap_err();
            assert_eq!(other.kind, MapErrorKind::AlreadyMapped, "others' rights");
            assert_eq!(world.unmap(0x77, 1), Err(UnmapError::Counted { page: 0x77 }));
            for n in (0..most).rev() {
                let left = if n == 0 { Released::Last } else { Released::Shared };
                assert_eq!(world.release(0x77), Ok(left), "{n} of {most}");
                if n % 7 == 3 {
                    world.acquire(0x77, PHYS, Rights::Read).expect("any number");
                    assert_eq!(world.release(0x77), Ok(Released::Shared));
                }
            }
            assert_eq!(world.release(0x77), Err(UnmapError::NotMapped { page: 0x77 }));
            // And it is free for other rights.
            world.acquire(0x77, PHYS, Rights::Write).expect("free");
            assert_eq!(world.release(0x77), Ok(Released::Last));
        }
        // No memory for a side table: nothing has happened. (There is one by now, so in another
        // table.)
        world.pages.limit(usize::MAX);
        let mut users = 0;
        let page = 0x477;
        let full = loop {
            match world.acquire(page, PHYS, Rights::Read) {
                Ok(_) => users += 1,
                Err(error) => break error,
            }
            world.pages.limit(0);
        };
        assert_eq!((full.kind, full.undone), (MapErrorKind::CountFull, None));
        world.pages.limit(usize::MAX);
        world.acquire(page, PHYS, Rights::Read).expect("there is memory now");
        assert!((0..users).all(|_| world.release(page) == Ok(Released::Shared)));
        assert_eq!(world.release(page), Ok(Released::Last));
        // Side tables go with their tables.
        world.sweep();
        while !world.queue.is_empty() {
            world.settle(0);
        }
        for epoch_slot in 0..2 {
            world.table.walker(epoch_slot).expect("a epoch_slot").let_go();
        }
        world.table.collect();
        world.sweep();
        while !world.queue.is_empty() {
            world.settle(0);
        }
        assert!(world.table.pages() <= pages + 1, "{} left", world.table.pages());
        assert_eq!(world.table.pages(), world.pages.live());
    }
    for coherent in [true, false] {
        fill(vtd(), coherent);
        fill(AmdV1::new(4, true).expect("four levels"), coherent);
        fill(ArmStage1::new(4, 0).expect("four levels"), coherent);
        fill(ArmStage2::new(3).expect("three levels"), coherent);
    }
}

#[test]
pub(crate) fn dead_tables_take_nothing() {
    let world = World::new(vtd(), true, &[]);
    // One CPU remembers the table that the other takes out.
    let mut remembers = world.table.walker(0).expect("a epoch_slot");
    let phys = PhysAddr(PHYS);
    remembers.map(range(0x200, 512), phys, Rights::Read).expect("free");
    let mut out = Detachments::new();
    let mut other = world.table.walker(1).expect("a epoch_slot");
    let unmapped = other.unmap(range(0x200, 512), &mut out).expect("mapped");
    assert!(!unmapped.leaf_only && out.len() == 1);
    remembers.map(range(0x201, 1), phys, Rights::Read).expect("free");
    assert_eq!(world.pages.access(0x201), Some((PHYS, Rights::Read)), "mapped, and not reached");
}

#[test]
pub(crate) fn a_table_put_back_is_not_freed() {
    let mut world = World::new(vtd(), true, &ACROSS);
    let round = |world: &mut World<VtdSecondLevel>| {
        assert!(world.map(0x201, 1, PHYS, Rights::Read));
        world.unmap(0x201, 1).expect("mapped");
    };
    round(&mut world);
    assert_eq!(world.sweep(), 1);
    round(&mut world); // put back
    assert_eq!(world.sweep(), 0, "the first invalidation is still queue");
    world.settle(0);
    round(&mut world);
    assert_eq!(world.sweep(), 1, "and now it is not");
    assert!(world.map(0x201, 1, PHYS, Rights::Read));
    world.settle(0);
    assert!(world.map(0x202, 1, PHYS, Rights::Read));
}

#[test]
pub(crate) fn superpages_are_chosen_where_they_fit() {
    let mut world = World::new(vtd(), true, &[0x3_ffff, 0x4_0000, 0x7_ffff, 0x8_0000, 0x8_0200]);
    // 1 page, 1 GiB, 2 MiB, 1 page
    assert!(world.map(0x3_ffff, 0x4_0202, 0x3_ffff << 12, Rights::ReadWrite));
    let table = Arc::clone(&world.table);
    let level = |page| table.walker(0).unwrap().translate(page).map(|t| t.level);
    let levels = [0x3_ffff, 0x4_0000, 0x7_ffff, 0x8_0000, 0x8_01ff, 0x8_0200].map(level);
    assert_eq!(levels, [0, 2, 2, 1, 1, 0].map(Some));
    let part = world.unmap(0x8_0000, 0x100);
    assert_eq!(part, Err(UnmapError::PartOfSuperpage { page: 0x8_0000 }));
    let part = world.unmap(0x8_0100, 0x101);
    assert_eq!(part, Err(UnmapError::PartOfSuperpage { page: 0x8_0100 }));
    let shifted = world.unmap_part(0x8_0100, 0x200);
    assert!(shifted.is_err(), "as long as a superpage, and none");
    world.unmap(0x3_ffff, 0x4_0202).expect("all of it");
    // Addresses fit, memory does not.
    assert!(world.map(0x8_0000, 0x200, PHYS, Rights::Read));
    assert_eq!(level(0x8_0000), Some(0));
    world.unmap(0x8_0000, 0x200).expect("mapped");
    // Where small pages were the table stays until it is swept; superpages go elsewhere, or are
    // made of small ones.
    assert!(world.map(0x4_0000, 1, 0x1000, Rights::Read));
    world.unmap(0x4_0000, 1).expect("mapped");
    assert!(world.map(0x4_0000, 0x200, 0x4000_0000, Rights::Read));
    assert_eq!(level(0x4_0000), Some(0));
    world.unmap(0x4_0000, 0x200).expect("mapped");
    while !world.queue.is_empty() {
        world.settle(0);
    }
    assert!(world.map(0x4_0000, 0x200, 0x4000_0000, Rights::Read));
    assert_eq!(level(0x4_0000), Some(1), "the table is gone");
}

#[test]
pub(crate) fn nonsense_is_refused() {
    let mut world = World::new(vtd(), true, &ACROSS);
    let table = Arc::clone(&world.table);
    let mut walker = table.walker(1).unwrap();
    let mut kind = |first, pages, phys| {
        walker.map(range(first, pages), PhysAddr(phys), Rights::Read).unwrap_err().kind
    };
    assert_eq!(kind(1 << 36, 1, 0), MapErrorKind::OutOfRange);
    assert_eq!(kind((1 << 36) - 1, 2, 0), MapErrorKind::OutOfRange);
    assert_eq!(kind(1, u64::MAX, 0), MapErrorKind::OutOfRange);
    assert_eq!(kind(1, 1, 0x800), MapErrorKind::BadAddress);
    assert_eq!(kind(1, 2, (1 << 52) - 0x1000), MapErrorKind::BadAddress);
    assert_eq!(kind(1, 1, u64::MAX - 0xfff), MapErrorKind::BadAddress);
    assert_eq!(walker.release(1 << 36), Err(UnmapError::OutOfRange));
    assert_eq!(walker.translate(1 << 36), None);
    drop(walker);
    assert_eq!(world.unmap(1 << 36, 1), Err(UnmapError::OutOfRange));
    assert_eq!(world.unmap(0x201, 1), Err(UnmapError::NotMapped { page: 0x201 }));
    assert!(world.map(0x201, 1, PHYS, Rights::Read));
    assert_eq!(world.release(0x201), Err(UnmapError::NotCounted { page: 0x201 }));
    let other = world.acquire(0x201, PHYS, Rights::Read).unwrap_err();
    assert_eq!(other.kind, MapErrorKind::AlreadyMapped);
    world.acquire(0x202, PHYS, Rights::Read).expect("free");
    assert_eq!(world.unmap_part(0x201, 2), Err(UnmapError::Counted { page: 0x202 }));
    assert_eq!(world.unmap(0x202, 1), Err(UnmapError::Counted { page: 0x202 }));
    assert_eq!(
        world.acquire(0x202, PHYS, Rights::Write).unwrap_err().kind,
        MapErrorKind::AlreadyMapped
    );
}

#[test]
fn pages_are_acquired_together_or_not_at_all() {
    let mut world = World::new(vtd(), true, &ACROSS);
    assert!(world.map(0x203, 1, PHYS, Rights::Read));
    world.acquire(0x201, PHYS + 0x2000, Rights::Read).expect("free");
    let error = world
        .table
        .walker(0)
        .unwrap()
        .acquire_all(range(0x1ff, 6), PhysAddr(PHYS), Rights::Read, 0)
        .unwrap_err();
    assert_eq!((error.kind, error.page), (MapErrorKind::AlreadyMapped, 0x203));
    world.pages.invalidate(error.undone.expect("some were the last"), true);
    world.check();
}

#[test]
fn seats_run_out_and_come_back() {
    let world = World::new(vtd(), true, &[]);
    let a = world.table.walker(7).expect("any number will do");
    let _b = world.table.walker(7).expect("the other");
    assert!(world.table.walker(0).is_none());
    drop(a);
    assert!(world.table.walker(0).is_some());
}

#[test]
fn all_pages_are_given_back() {
    let mut world = World::new(vtd(), true, &ACROSS);
    assert!(world.map(0x1ff, 0x402, PHYS, Rights::Read));
    world.unmap_part(0x200, 0x200).expect("mapped");
    assert_eq!(world.sweep(), 0);
    assert!(world.map(0x4_0000, 1, PHYS, Rights::Read));
    world.unmap(0x4_0000, 1).expect("mapped");
    world.sweep();
    world.settle(0);
    let World { pages, table, .. } = &mut world;
    let (pages, empty) = (
        Arc::clone(pages),
        Arc::new(IoPageTable::new(vtd(), Arc::clone(pages), 1).expect("memory")),
    );
    let used = core::mem::replace(table, empty);
    let used = Arc::into_inner(used).expect("nobody else has it");
    // SAFETY: the device is not asked any more.
    unsafe { used.free() };
    assert_eq!(pages.live(), 1, "the new root");
    core::mem::forget(world);
}

#[test]
fn every_two_small_ranges_are_mapped_or_one_fails_whole() {
    // All of them around the end of a leaf table.
    let near = || (0x1fdu64..0x203).flat_map(|first| (1..6).map(move |pages| (first, pages)));
    for (first, pages) in near() {
        let mut world = World::new(vtd(), true, &ACROSS);
        assert!(world.map(first, pages, PHYS, Rights::Read));
        for (other, more) in near() {
            let overlap = range(first, pages).overlaps(range(other, more));
            assert_eq!(world.map(other, more, PHYS << 1, Rights::Write), !overlap);
            if overlap {
                let same = (other, more) == (first, pages);
                let within = range(first, pages).contains(range(other, more));
                assert_eq!(world.unmap(other, more).is_ok(), same);
                assert_eq!(same || world.unmap_part(other, more).is_ok(), within);
                if within && !same {
                    // Put back what was taken from it; then all of it, as one.
                    assert!(world.map(other, more, PHYS + ((other - first) << 12), Rights::Read));
                    world.unmap_part(first, pages).expect("mapped");
                    assert!(world.map(first, pages, PHYS, Rights::Read));
                } else if same {
                    assert!(world.map(first, pages, PHYS, Rights::Read));
                }
            } else {
                world.unmap(other, more).expect("mapped");
            }
        }
    }
}
