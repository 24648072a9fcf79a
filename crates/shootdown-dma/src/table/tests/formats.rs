//! Encodings, bit by bit.

use super::super::format::word;
use super::manual;
use super::*;

fn all_ways<F: Format>(format: F, write_only: bool) {
    let soft = F::COUNTED | F::COUNT | F::WRITTEN_BACK;
    for level in (0..format.levels()).filter(|l| format.may_be_leaf(*l)) {
        let size = 1u64 << (F::GRANULE + F::INDEX * level);
        let addresses = (0..48).map(|bit| 1u64 << bit).filter(|a| a % size == 0);
        for phys in addresses.chain([0, (1 << format.phys_bits()) - size]) {
            for rights in [Rights::Read, Rights::Write, Rights::ReadWrite] {
                let leaf = format.leaf(PhysAddr(phys), rights, level);
                assert_eq!(leaf & soft, 0, "bits that are ours are clear");
                let granted =
                    if rights == Rights::Write && !write_only { Rights::ReadWrite } else { rights };
                let says = Decoded::Leaf(PhysAddr(phys), granted);
                assert_eq!(format.decode(leaf, level), says);
                assert_eq!(format.decode(leaf | soft, level), says, "our bits say nothing");
                assert_eq!(F::meaning(leaf | soft | F::HARDWARE), F::meaning(leaf));
            }
        }
        if level > 0 {
            let link = format.table(PhysAddr(0x1_2345_6000), level);
            let says = Decoded::Table(PhysAddr(0x1_2345_6000));
            assert_eq!(link & (F::WRITTEN_BACK | F::PENDING), 0);
            assert_eq!(format.decode(link | F::WRITTEN_BACK | F::PENDING, level), says);
        }
    }
    for level in 0..format.levels() {
        let gone = word::detached(0xf_ffff_ffff_f000);
        assert_eq!(format.decode(word::EMPTY, level), Decoded::Empty);
        assert_eq!(format.decode(word::TOMBSTONE | 0x5000, level), Decoded::Tombstone);
        assert_eq!(format.decode(gone, level), Decoded::Detached(PhysAddr(0xf_ffff_ffff_f000)));
        for word in [word::TOMBSTONE, gone] {
            assert_eq!(word & (0b11 | 0b11 << 61), 0, "no format takes anything from it");
        }
    }
    assert_eq!(F::count(F::COUNTED | F::COUNT), F::max_count());
    assert_eq!((F::count(F::COUNTED | F::one()), F::count(F::COUNT)), (1, 0));
    assert_eq!((F::COUNT & F::WRITTEN_BACK, (F::COUNT | F::WRITTEN_BACK) & F::COUNTED), (0, 0));
    assert_eq!((F::BEGINS | F::ENDS) & !F::COUNT, 0);
}

#[test]
fn every_format_says_what_it_was_told() {
    for levels in 3..=5 {
        all_ways(VtdSecondLevel::new(levels, true, true).unwrap().snooping(), true);
    }
    for levels in 1..=6 {
        all_ways(AmdV1::new(levels, true).unwrap().snooping(), true);
    }
    for levels in 3..=4 {
        all_ways(ArmStage1::new(levels, 3).unwrap(), false);
        all_ways(ArmStage2::new(levels).unwrap(), true);
        all_ways(ArmStage1::<14>::with_granule(levels, 3).unwrap(), false);
        all_ways(ArmStage1::<16>::with_granule(levels - 1, 3).unwrap(), false);
    }
    for bits in 32..=48 {
        all_ways(ArmStage2::<12>::for_width(bits).unwrap(), true);
        all_ways(ArmStage2::<14>::for_width(bits).unwrap(), true);
        all_ways(ArmStage2::<16>::for_width(bits).unwrap(), true);
    }
}

#[test]
fn words_are_as_the_manuals_have_them() {
    let phys = PhysAddr(0x12_3456_0000_0000 & 0xf_ffff_ffff_f000);
    let vtd = VtdSecondLevel::new(4, true, true).unwrap();
    assert_eq!(vtd.leaf(PhysAddr(0x20_0000), Rights::Read, 1), 0x20_0000 | 1 | 1 << 7);
    assert_eq!(vtd.snooping().leaf(PhysAddr(0x5000), Rights::Write, 0), 0x5000 | 2 | 1 << 11);
    assert_eq!((vtd.table(PhysAddr(0x5000), 3), vtd.address_width()), (0x5003, 2));
    let amd = AmdV1::new(4, true).unwrap();
    assert_eq!(amd.leaf(phys, Rights::ReadWrite, 0), phys.0 | 1 | 3 << 61);
    assert_eq!(amd.table(PhysAddr(0x5000), 2), 0x5000 | 1 | 2 << 9 | 3 << 61);
    let one = ArmStage1::new(4, 2).unwrap();
    let attributes = 2 << 2 | 1 << 6 | 3 << 8 | 1 << 10 | 1 << 11 | 1 << 54;
    assert_eq!(one.leaf(PhysAddr(0x5000), Rights::ReadWrite, 0), 0x5000 | 3 | attributes);
    assert_eq!(one.leaf(PhysAddr(0x20_0000), Rights::Read, 1), 0x20_0000 | 1 | attributes | 1 << 7);
    let two = ArmStage2::new(4).unwrap();
    let attributes = 0xf << 2 | 3 << 8 | 1 << 10 | 1 << 54;
    assert_eq!(two.leaf(PhysAddr(0x5000), Rights::Write, 0), 0x5000 | 3 | attributes | 1 << 7);
    assert_eq!(two.table(PhysAddr(0x5000), 1), 0x5003);
}

#[test]
fn widths_are_chosen_by_capability() {
    let levels = |sagaw: u64, bits| {
        VtdSecondLevel::from_capability(sagaw << 8, bits).map(|format| format.levels())
    };
    assert_eq!(levels(0b01110, 39), Some(3));
    assert_eq!(levels(0b01110, 40), Some(4));
    assert_eq!(levels(0b01100, 32), Some(4));
    assert_eq!(levels(0b00110, 57), Some(4), "the largest that there is");
    assert_eq!(levels(0b10001, 39), None);
    assert_eq!(VtdSecondLevel::new(2, true, true), None);
    assert_eq!((AmdV1::new(7, true), AmdV1::new(0, true)), (None, None));
    assert_eq!((ArmStage1::new(4, 8), ArmStage2::new(5)), (None, None));
}

/// Every page number of tables that resolve few bits, and some of all the others: what is put there
/// is where the manual looks for it, in the table that it looks in.
#[test]
fn entries_are_where_the_manual_looks_for_them() {
    fn each<F: Manual>(format: F) {
        let bits = format.page_bits();
        let mut pages: Vec<u64> = (0..bits).flat_map(|n| [1 << n, (2 << n) - 1]).collect();
        pages.push((1 << bits) - (1 << (bits - 1)) / 3 - 1);
        let world = World::new(format, true, &[]);
        let phys = |page: u64| (page << F::GRANULE) & 0xf_ffff_ffff | 1 << 40;
        let mut walker = world.table.walker(0).expect("a epoch_slot");
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(walker.table().last_page(), (1 << bits) - 1);
        for page in pages.iter().copied() {
            assert_eq!(world.pages.access(page), None, "{page:#x}");
            walker.map(range(page, 1), PhysAddr(phys(page)), Rights::Read).expect("free");
        }
        for page in pages.iter().copied() {
            assert_eq!(world.pages.access(page), Some((phys(page), Rights::Read)), "{page:#x}");
            assert_eq!(walker.unmap_page(page), Ok(PhysAddr(phys(page))));
        }
        drop(walker);
        let table = Arc::clone(&world.table);
        // All that is left is the root.
        let mut out = Detachments::new();
        for _ in 0..64 {
            let _ = table.sweep(usize::MAX, &mut out);
            while let Some(gone) = out.pop() {
                world.pages.invalidate(gone.range(), false);
                // SAFETY: the device was told.
                unsafe { table.finish(gone) };
            }
            for epoch_slot in 0..2 {
                table.walker(epoch_slot).expect("a epoch_slot").let_go();
            }
        }
        table.collect();
        let root = (format.root_tables() as usize) << (F::INDEX - 9);
        assert_eq!(
            (table.pages(), world.pages.live()),
            (root, root),
            "{:?} levels",
            format.levels()
        );
    }
    for levels in 3..=5 {
        each(VtdSecondLevel::new(levels, true, true).unwrap());
    }
    for levels in 2..=6 {
        each(AmdV1::new(levels, true).unwrap());
    }
    for levels in 3..=4 {
        each(ArmStage1::new(levels, 0).unwrap());
        each(ArmStage1::<14>::with_granule(levels, 0).unwrap());
        each(ArmStage1::<16>::with_granule(levels - 1, 0).unwrap());
        each(ArmStage2::new(levels).unwrap());
    }
    for bits in 32..=48 {
        each(ArmStage2::<12>::for_width(bits).unwrap());
        each(ArmStage2::<14>::for_width(bits).unwrap());
        each(ArmStage2::<16>::for_width(bits).unwrap());
    }
}

/// The levels where walks begin, and how many tables are there: as Linux's io-pgtable-arm chooses
/// them for the same widths.
#[test]
fn roots_are_concatenated_where_that_saves_a_level() {
    let four =
        |bits| ArmStage2::<12>::for_width(bits).map(|f| (f.levels(), f.root_tables(), f.s2sl0()));
    assert_eq!(four(32), Some((2, 4, 0)));
    assert_eq!([39, 40, 42, 43].map(four), [1, 2, 8, 16].map(|n| Some((3, n, 1))));
    assert_eq!([44, 48].map(four), [1, 1].map(|n| Some((4, n, 2))));
    let sixteen =
        |bits| ArmStage2::<14>::for_width(bits).map(|f| (f.levels(), f.root_tables(), f.s2sl0()));
    assert_eq!([40, 47, 48].map(sixteen), [Some((2, 16, 1)), Some((3, 1, 2)), Some((3, 2, 2))]);
    let large =
        |bits| ArmStage2::<16>::for_width(bits).map(|f| (f.levels(), f.root_tables(), f.s2sl0()));
    assert_eq!(
        [42, 46, 47, 48].map(large),
        [Some((2, 1, 1)), Some((2, 16, 1)), Some((3, 1, 2)), Some((3, 1, 2))]
    );
    assert_eq!((four(31), four(49), ArmStage2::<13>::for_width(40)), (None, None, None));
}

/// Every size of leaf that AMD-Vi has: as the specification writes it, and as it is read again.
#[test]
fn sizes_are_in_the_address_as_the_manual_has_them() {
    let amd = AmdV1::new(4, true).unwrap().sized();
    let read = |phys, level| amd.leaf(PhysAddr(phys), Rights::Read, level);
    let bits = 1 | 1 << 61;
    // 8 KiB: no ones. 16 KiB: one. 64 KiB: three. 1 MiB: seven. 4 MiB: nine.
    assert_eq!(amd.enlarge(read(0x8000, 0), 0, 1), 0x8000 | 7 << 9 | bits);
    assert_eq!(amd.enlarge(read(0x8000, 0), 0, 2), 0x9000 | 7 << 9 | bits);
    assert_eq!(amd.enlarge(read(0x1_0000, 0), 0, 4), 0x1_7000 | 7 << 9 | bits);
    assert_eq!(amd.enlarge(read(0x10_0000, 0), 0, 8), 0x17_f000 | 7 << 9 | bits);
    assert_eq!(amd.enlarge(read(0x40_0000, 1), 1, 1), 0x5f_f000 | 7 << 9 | bits);
    for level in 0..3 {
        for order in 1..=8 {
            let size = 12 + 9 * level + order;
            for n in [0u64, 1, 2, 3, 5, (1 << (52 - size)) - 1] {
                let word = amd.enlarge(read(n << size, level), level, order);
                assert_eq!(
                    amd.decode(word, level),
                    Decoded::Leaf(PhysAddr(n << size), Rights::Read)
                );
                assert_eq!(amd.order(word, level), order);
                let lowest = 12 + 9 * level;
                let says = manual::Says::Leaf(n << size, size, Rights::Read);
                assert_eq!(amd.says(word, lowest), says);
            }
        }
        assert_eq!(amd.order(read(0, level), level), 0);
    }
}

/// All starts and lengths of eight bits: the fewest leaves that there can be, each as large as the
/// manual allows.
#[test]
fn ranges_are_mapped_in_the_fewest_leaves() {
    let format = AmdV1::new(3, true).unwrap().sized();
    let world = World::new(format, true, &[]);
    let mut walker = world.table.walker(0).expect("a epoch_slot");
    let base = 1u64 << 40;
    for (first, pages) in (1..64u64).flat_map(|f| (1..64u64).map(move |n| (f, n))) {
        let part = range(first, pages);
        walker.map(part, PhysAddr(base + (first << 12)), Rights::Read).expect("free");
        // As a walk finds them.
        let mut leaves = 0;
        let mut page = first;
        while page < first + pages {
            let (phys, _) = world.pages.access(page).expect("mapped");
            assert_eq!(phys, base + (page << 12));
            let size = world.pages.size(page).expect("a leaf");
            let fits =
                (0..9).rev().find(|n| page % (1 << n) == 0 && (1 << n) <= first + pages - page);
            assert_eq!(Some(size - 12), fits, "{first:#x}+{pages}: at {page:#x}");
            page += 1 << (size - 12);
            leaves += 1;
        }
        assert_eq!(page, first + pages);
        assert!(leaves <= 2 * 6);
        let mut out = Detachments::new();
        let unmapped = walker.unmap(part, &mut out).expect("mapped");
        world.pages.invalidate(unmapped.range, unmapped.leaf_only);
        assert_eq!(world.pages.access(first), None);
    }
}
