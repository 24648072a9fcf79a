//! Superpages that several users share.

use super::*;

const PHYS: u64 = 0x40_0000_0000;
const PAGE: u64 = 0x8_0000;
const PAGES: u64 = 512;

/// A leaf of 2 MiB: shared as a page is, and full where its entry is.
fn shared<F: Manual>(format: F) {
    let world = World::new(format, true, &[]);
    let mut walker = world.table.walker(0).expect("a epoch_slot");
    let acquire = |walker: &mut Walker<'_, F, _>, page, phys| {
        walker.acquire_leaf(page, PhysAddr(phys), Rights::Read, 1).map_err(|error| error.kind)
    };
    assert_eq!(acquire(&mut walker, PAGE, PHYS), Ok(Acquired::First));
    assert_eq!(acquire(&mut walker, PAGE, PHYS), Ok(Acquired::Shared));
    let seen = walker.translate(PAGE + 17).expect("mapped");
    assert_eq!((seen.phys, seen.level, seen.uses), (PhysAddr(PHYS + 17 * 4096), 1, 2));
    assert_eq!(world.pages.access(PAGE + 17).map(|found| found.0), Some(PHYS + 17 * 4096));
    assert_eq!(world.pages.size(PAGE + 17), Some(21), "one entry of the device");
    let taken = Err(MapErrorKind::AlreadyMapped);
    assert_eq!(acquire(&mut walker, PAGE, PHYS + (PAGES << 12)), taken, "other memory");
    let page = walker.acquire(PAGE + 1, PhysAddr(PHYS + 4096), Rights::Read);
    assert_eq!(page.map_err(|error| error.kind), taken, "a page of it");
    for (page, phys) in [(PAGE + 1, PHYS), (PAGE + PAGES, PHYS + 4096)] {
        assert_eq!(acquire(&mut walker, page, phys), Err(MapErrorKind::BadAddress), "not aligned");
    }
    let beyond = walker.acquire_leaf(0, PhysAddr(0), Rights::Read, 9);
    assert_eq!(beyond.map_err(|error| error.kind), Err(MapErrorKind::BadAddress), "no such leaf");
    // Where pages are is no superpage.
    walker.acquire(PAGE + PAGES + 5, PhysAddr(0x5000), Rights::Read).expect("free");
    assert_eq!(acquire(&mut walker, PAGE + PAGES, PHYS), taken);
    let most = F::max_count() - 1;
    for _ in 2..most {
        assert_eq!(acquire(&mut walker, PAGE, PHYS), Ok(Acquired::Shared));
    }
    assert_eq!(acquire(&mut walker, PAGE, PHYS), Err(MapErrorKind::CountFull));
    for n in (0..most).rev() {
        let left = if n == 0 { Released::Last } else { Released::Shared };
        assert_eq!(walker.release(PAGE), Ok(left));
    }
    assert_eq!(walker.release(PAGE), Err(UnmapError::NotMapped { page: PAGE }));
    assert_eq!(walker.translate(PAGE + 17), None);
}

pub(crate) fn superpages_are_shared() {
    shared(VtdSecondLevel::new(4, true, true).expect("four levels"));
    shared(AmdV1::new(4, true).expect("four levels"));
    shared(ArmStage1::new(4, 0).expect("four levels"));
    shared(ArmStage2::new(4).expect("four levels"));
}

#[test]
fn superpages_are_counted() {
    superpages_are_shared();
}

/// What was acquired before the one that fails is released again, and told.
#[test]
fn a_range_of_superpages_is_all_or_nothing() {
    let format = VtdSecondLevel::new(4, true, true).expect("four levels");
    let world = World::new(format, true, &[]);
    let mut walker = world.table.walker(0).expect("a epoch_slot");
    walker.acquire(PAGE + 2 * PAGES, PhysAddr(0x7000), Rights::Read).expect("free");
    walker.acquire_leaf(PAGE, PhysAddr(PHYS), Rights::Read, 1).expect("free");
    let three = range(PAGE, 3 * PAGES);
    let error = walker.acquire_all(three, PhysAddr(PHYS), Rights::Read, 1).unwrap_err();
    assert_eq!(error.kind, MapErrorKind::AlreadyMapped);
    assert_eq!(error.undone, Some(range(PAGE + PAGES, PAGES)), "the first is used by another");
    assert_eq!(walker.translate(PAGE).map(|t| t.uses), Some(1));
    assert_eq!(walker.translate(PAGE + PAGES), None);
    let part = walker.acquire_all(range(PAGE, PAGES + 1), PhysAddr(PHYS), Rights::Read, 1);
    assert_eq!(part.map_err(|e| e.kind), Err(MapErrorKind::BadAddress), "no whole leaves");
    walker.acquire_all(range(PAGE, 2 * PAGES), PhysAddr(PHYS), Rights::Read, 1).expect("free");
    for page in [PAGE, PAGE + PAGES, PAGE] {
        assert!(walker.release(page).is_ok());
    }
}
