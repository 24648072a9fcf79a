//! Mappings are unmapped as a whole or not at all.

use super::*;

const PHYS: u64 = 0x40_0000_0000;

fn range_of<F: Manual>(world: &World<F>, first: u64, pages: u64) -> Vec<u64> {
    let mut walker = world.table.walker(0).expect("a epoch_slot");
    (first..first + pages).filter(|p| walker.translate(*p).is_some()).collect()
}

/// Two mappings that abut, across the end of a leaf table, and nothing behind them.
fn small<F: Manual>(format: F) {
    let mut world = World::new(format, true, &[0x1ff, 0x200, 0x202, 0x203, 0x205]);
    assert!(world.map(0x1fe, 5, PHYS, Rights::Read)); // to 0x202
    assert!(world.map(0x203, 3, PHYS, Rights::Read)); // to 0x205
    let before = range_of(&world, 0x1f0, 0x20);
    let errors = [
        // From a page, so many: the head, the tail, the middle, each side of the boundary.
        ((0x1fe, 1), UnmapError::Inside { page: 0x1fe }),
        ((0x1fe, 2), UnmapError::Inside { page: 0x1ff }),
        ((0x1fe, 4), UnmapError::Inside { page: 0x201 }),
        ((0x1ff, 4), UnmapError::Inside { page: 0x1ff }),
        ((0x200, 1), UnmapError::Inside { page: 0x200 }),
        ((0x202, 1), UnmapError::Inside { page: 0x202 }),
        ((0x200, 3), UnmapError::Inside { page: 0x200 }),
        // Longer: into the next one, all of the next one, and from within this one.
        ((0x1fe, 6), UnmapError::Several { page: 0x203 }),
        ((0x1fe, 8), UnmapError::Several { page: 0x203 }),
        ((0x202, 4), UnmapError::Inside { page: 0x202 }),
        // Longer, with nothing there, and shifted.
        ((0x203, 4), UnmapError::NotMapped { page: 0x206 }),
        ((0x1fd, 6), UnmapError::NotMapped { page: 0x1fd }),
        ((0x1fe, 9), UnmapError::Several { page: 0x203 }),
        ((0x206, 1), UnmapError::NotMapped { page: 0x206 }),
    ];
    for ((first, pages), error) in errors {
        assert_eq!(world.unmap(first, pages), Err(error), "{first:#x}+{pages}");
        assert_eq!(range_of(&world, 0x1f0, 0x20), before, "nothing has changed");
    }
    // The same for single pages by the short way.
    let mut walker = world.table.walker(1).expect("a epoch_slot");
    for page in [0x1fe, 0x200, 0x202] {
        assert_eq!(walker.unmap_page(page), Err(UnmapError::Inside { page }));
    }
    drop(walker);
    world.unmap(0x1fe, 5).expect("a mapping");
    assert_eq!(world.unmap(0x1fe, 5), Err(UnmapError::NotMapped { page: 0x1fe }), "twice");
    world.unmap(0x203, 3).expect("a mapping");
    assert!(range_of(&world, 0x1f0, 0x20).is_empty());
}

#[test]
pub(crate) fn only_whole_mappings_are_unmapped() {
    small(VtdSecondLevel::new(4, true, true).expect("four levels"));
    small(AmdV1::new(4, true).expect("four levels"));
    small(ArmStage1::new(4, 0).expect("four levels"));
    small(ArmStage2::new(3).expect("three levels"));
}

/// All starts and lengths around three mappings of one to three pages.
#[test]
fn every_small_range_is_a_mapping_or_is_refused() {
    let format = VtdSecondLevel::new(3, true, false).expect("three levels");
    for lengths in (0..27u64).map(|n| [n % 3 + 1, n / 3 % 3 + 1, n / 9 + 1]) {
        for (first, pages) in (0x1fb..0x205u64).flat_map(|f| (1..9).map(move |n| (f, n))) {
            let mut world = World::new(format, true, &[]);
            let mut at = 0x1fd;
            for n in lengths {
                assert!(world.map(at, n, PHYS + (at << 12), Rights::ReadWrite));
                at += n;
            }
            let is_one = world.units.get(&first) == Some(&pages);
            assert_eq!(world.unmap(first, pages).is_ok(), is_one, "{lengths:?} {first:#x}+{pages}");
            let left = range_of(&world, 0x1f0, 0x20).len() as u64;
            let all: u64 = lengths.iter().sum();
            assert_eq!(left, if is_one { all - pages } else { all });
        }
    }
}

#[test]
fn superpages_are_mappings_like_others() {
    let format = VtdSecondLevel::new(4, true, true).expect("four levels");
    let mut world = World::new(format, true, &[0x3_ffff, 0x4_0000, 0x8_0000, 0x8_0200]);
    // 1 page, 1 GiB, 2 MiB, 1 page; and 2 MiB behind.
    assert!(world.map(0x3_ffff, 0x4_0202, 0x3_ffff << 12, Rights::ReadWrite));
    assert!(world.map(0x8_0400, 0x200, 0x8000_0000, Rights::Read));
    let inside = |page| Err(UnmapError::Inside { page });
    assert_eq!(world.unmap(0x3_ffff, 1), inside(0x3_ffff));
    assert_eq!(world.unmap(0x3_ffff, 0x4_0001), inside(0x4_0000), "ends with a superpage");
    assert_eq!(world.unmap(0x4_0000, 0x4_0000), inside(0x4_0000), "a superpage of it");
    assert_eq!(world.unmap(0x8_0000, 0x201), inside(0x8_0000), "the tail");
    assert_eq!(world.unmap(0x8_0000, 1), Err(UnmapError::PartOfSuperpage { page: 0x8_0000 }));
    assert_eq!(world.unmap(0x8_0400, 0x1ff), Err(UnmapError::PartOfSuperpage { page: 0x8_0400 }));
    assert_eq!(world.unmap(0x8_0400, 0x201), Err(UnmapError::NotMapped { page: 0x8_0600 }));
    world.unmap(0x8_0400, 0x200).expect("a mapping of one superpage");
    world.unmap(0x3_ffff, 0x4_0202).expect("all of it");
    assert!(world.shadow.is_empty());
}

#[test]
fn parts_are_put_together() {
    let format = VtdSecondLevel::new(4, true, true).expect("four levels");
    let world = World::new(format, true, &[]);
    let mut walker = world.table.walker(0).expect("a epoch_slot");
    let mut map = |first, pages, part| {
        walker.map_part(range(first, pages), PhysAddr(first << 12), Rights::Read, part)
    };
    map(0x1ff, 1, Part::Begin).expect("free");
    map(0x200, 0x200, Part::Middle).expect("free");
    map(0x400, 3, Part::End).expect("free");
    // Beside it something that belongs to nobody who unmaps.
    map(0x403, 2, Part::Middle).expect("free");
    let out = &mut Detachments::new();
    for (first, pages) in [(0x1ff, 1), (0x1ff, 0x201), (0x200, 0x200), (0x400, 3)] {
        let refused = walker.unmap(range(first, pages), out);
        assert!(matches!(refused, Err(UnmapError::Inside { .. })), "{refused:?}");
    }
    let longer = walker.unmap(range(0x1ff, 0x206), out);
    assert_eq!(longer, Err(UnmapError::Several { page: 0x403 }));
    assert_eq!(walker.unmap(range(0x403, 2), out), Err(UnmapError::Inside { page: 0x403 }));
    assert!(walker.unmap(range(0x1ff, 0x204), out).is_ok());
    assert!(walker.unmap_part(range(0x403, 2), out).is_ok());
    let World { queue, .. } = &world;
    assert!(queue.is_empty());
}

/// AMD-Vi's leaves of any power of two.
#[test]
pub(crate) fn leaves_of_several_entries_are_not_cut() {
    let format = AmdV1::new(4, true).expect("four levels").sized();
    let eyes: Vec<u64> = (0x1ec..0x204).collect();
    let mut world = World::new(format, true, &eyes);
    // Sixteen pages that lie as their memory does, from the fourth on: 4, 8 and 4; and two behind.
    assert!(world.map(0x1ec, 16, PHYS + (0x1ec << 12), Rights::Read));
    assert!(world.map(0x1fc, 2, PHYS + (0x1fc << 12), Rights::Write));
    assert_eq!(world.unmap_part(0x1ec, 2), Err(UnmapError::PartOfSuperpage { page: 0x1ec }));
    assert_eq!(world.unmap_part(0x1ee, 2), Err(UnmapError::PartOfSuperpage { page: 0x1ee }));
    assert_eq!(world.unmap_part(0x1f0, 4), Err(UnmapError::PartOfSuperpage { page: 0x1f0 }));
    assert_eq!(world.unmap(0x1fc, 1), Err(UnmapError::PartOfSuperpage { page: 0x1fc }));
    assert_eq!(world.unmap(0x1fd, 1), Err(UnmapError::PartOfSuperpage { page: 0x1fd }));
    assert_eq!(world.unmap(0x1ec, 4), Err(UnmapError::Inside { page: 0x1ec }));
    assert_eq!(world.unmap(0x1f0, 12), Err(UnmapError::Inside { page: 0x1f0 }));
    assert_eq!(world.unmap(0x1ec, 18), Err(UnmapError::Several { page: 0x1fc }));
    world.unmap_part(0x1f0, 8).expect("a leaf");
    assert!(world.map(0x1f0, 8, PHYS, Rights::ReadWrite), "it is free");
    world.unmap_part(0x1ec, 16).expect("all of it");
    world.unmap(0x1fc, 2).expect("a mapping");
    assert!(world.shadow.is_empty());
}
