//! Encodings against words that an assembler (LLVM's) made of the mnemonics, operands against the
//! manual's bit positions.

use super::super::granule::Level;
use super::*;
use crate::asid::AsidWidth;

fn all(asid: Asid) -> [(Operation, [u32; 3]); 10] {
    let depth = |leaf_only| if leaf_only { Depth::Leaves } else { Depth::Tables };
    let of = |operation, words| (operation, words);
    let one = |asid, leaf_only| {
        let page = Page::new(0x1000, Granule::K4, depth(leaf_only));
        Operation::Page { asid, page }
    };
    let many = |asid, leaf_only| {
        let span = Span::new(0x40_0000, Granule::K4, 4, depth(leaf_only), false).unwrap();
        Operation::Range { asid, span }
    };
    [
        // local, inner, outer; register x0 (XZR for VMALLE1)
        of(Operation::All, [0xd508_871f, 0xd508_831f, 0xd508_811f]),
        of(Operation::Asid(asid), [0xd508_8740, 0xd508_8340, 0xd508_8140]),
        of(one(Some(asid), false), [0xd508_8720, 0xd508_8320, 0xd508_8120]),
        of(one(Some(asid), true), [0xd508_87a0, 0xd508_83a0, 0xd508_81a0]),
        of(one(None, false), [0xd508_8760, 0xd508_8360, 0xd508_8160]),
        of(one(None, true), [0xd508_87e0, 0xd508_83e0, 0xd508_81e0]),
        of(many(Some(asid), false), [0xd508_8620, 0xd508_8220, 0xd508_8520]),
        of(many(Some(asid), true), [0xd508_86a0, 0xd508_82a0, 0xd508_85a0]),
        of(many(None, false), [0xd508_8660, 0xd508_8260, 0xd508_8560]),
        of(many(None, true), [0xd508_86e0, 0xd508_82e0, 0xd508_85e0]),
    ]
}

#[test]
fn every_instruction_is_the_assemblers_word() {
    for (operation, words) in all(Asid::ZERO) {
        for (domain, word) in [Domain::Local, Domain::Inner, Domain::Outer].into_iter().zip(words) {
            let tlbi = Tlbi { operation, domain };
            let register = if tlbi.operand().is_some() { 0 } else { 31 };
            assert_eq!(tlbi.instruction().word(register), word, "{tlbi:?}");
            for register in 0..31 {
                let word = word & !31 | u32::from(register);
                assert_eq!(tlbi.instruction().word(register), word);
            }
        }
    }
}

#[test]
fn only_what_names_an_asid_carries_one() {
    for raw in [0, 1, 0xff, 0x100, 0xabcd, 0xffff] {
        let asid = Asid::new(raw, AsidWidth::BITS_16).unwrap();
        for (operation, _) in all(asid) {
            let operand = Tlbi { operation, domain: Domain::Inner }.operand();
            let named = match operation {
                Operation::All => {
                    assert_eq!(operand, None);
                    continue;
                }
                Operation::Asid(_) => true,
                Operation::Page { asid, .. } | Operation::Range { asid, .. } => asid.is_some(),
            };
            let expected = if named { u64::from(raw) } else { 0 };
            assert_eq!(operand.unwrap() >> 48, expected, "{operation:?}");
        }
        let whole = Tlbi { operation: Operation::Asid(asid), domain: Domain::Local };
        assert_eq!(whole.operand(), Some(u64::from(raw) << 48));
    }
}

#[test]
fn a_page_operand_is_the_address_shifted_and_the_hint() {
    for bit in 0..64 {
        let expected = if (12..56).contains(&bit) { 1u64 << (bit - 12) } else { 0 };
        for granule in Granule::ALL {
            for depth in [Depth::Tables, Depth::Leaves, Depth::LeavesAt(Level::Three)] {
                let page = Page::new(1 << bit, granule, depth);
                let kept = (granule.shift()..56).contains(&bit);
                assert_eq!(page.operand() & ((1 << 44) - 1), if kept { expected } else { 0 });
            }
        }
    }
    let ttl = |granule, level| Page::new(0, granule, Depth::LeavesAt(level)).operand() >> 44;
    assert_eq!(ttl(Granule::K4, Level::One), 0b0101);
    assert_eq!(ttl(Granule::K4, Level::Two), 0b0110);
    assert_eq!(ttl(Granule::K4, Level::Three), 0b0111);
    assert_eq!(ttl(Granule::K16, Level::One), 0, "reserved without LPA2");
    assert_eq!(ttl(Granule::K16, Level::Two), 0b1010);
    assert_eq!(ttl(Granule::K16, Level::Three), 0b1011);
    assert_eq!(ttl(Granule::K64, Level::One), 0b1101);
    assert_eq!(ttl(Granule::K64, Level::Two), 0b1110);
    assert_eq!(ttl(Granule::K64, Level::Three), 0b1111);
}

#[test]
fn a_page_has_no_hint_where_tables_were_freed() {
    for granule in Granule::ALL {
        for (depth, leaf_only) in [(Depth::Tables, false), (Depth::Leaves, true)] {
            let page = Page::new(0, granule, depth);
            assert_eq!((page.leaf_only(), page.operand() >> 44), (leaf_only, 0));
        }
    }
}

#[test]
fn the_dummy_is_vale1is_of_zero() {
    assert_eq!(Tlbi::DUMMY.instruction().word(0), 0xd508_83a0);
    assert_eq!(Tlbi::DUMMY.operand(), Some(0));
}
