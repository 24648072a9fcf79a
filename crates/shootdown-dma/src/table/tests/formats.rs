//! Encodings, bit by bit.

use super::super::format::word;
use super::*;

fn all_ways<F: Format>(format: F, write_only: bool) {
    let soft = F::COUNTED | F::COUNT | F::WRITTEN_BACK;
    for level in (0..format.levels()).filter(|l| format.may_be_leaf(*l)) {
        let size = 4096u64 << (9 * level);
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
    for levels in 1..=5 {
        all_ways(AmdV1::new(levels, true).unwrap().snooping(), true);
    }
    for levels in 3..=4 {
        all_ways(ArmStage1::new(levels, 3).unwrap(), false);
        all_ways(ArmStage2::new(levels).unwrap(), true);
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
    assert_eq!((AmdV1::new(6, true), AmdV1::new(0, true)), (None, None));
    assert_eq!((ArmStage1::new(4, 8), ArmStage2::new(5)), (None, None));
}
