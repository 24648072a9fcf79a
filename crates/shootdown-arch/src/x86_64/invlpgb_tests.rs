//! Operands against the manual's table, covers against a set of addresses.

use std::collections::BTreeSet;
use std::vec::Vec;

use super::*;

const WIDTH: LinearWidth = LinearWidth::Bits48;

fn limits(max_pages: u32) -> InvlpgbLimits {
    InvlpgbLimits { max_pages, pcide: true, nested: true, asids: 1 << 16, width: WIDTH }
}

fn anything() -> InvlpgbMatch {
    InvlpgbMatch {
        pages: None,
        pcid: None,
        asid: 0,
        globals: false,
        final_only: false,
        nested: false,
    }
}

fn pages(first: u64, count: u32, stride: Stride) -> Pages {
    Pages { first: LinearAddress::new(first, WIDTH).unwrap(), count, stride }
}

/// What the table in the module's head says the registers mean; `None` where a reserved bit is set.
fn decode(operands: InvlpgbOperands) -> Option<InvlpgbMatch> {
    let (rax, ecx, edx) = (operands.rax(), operands.ecx(), operands.edx());
    if rax & 0xfc0 != 0 || ecx & 0x7fff_0000 != 0 || edx & 0xf000_0000 != 0 || rax & 4 == 0 {
        return None;
    }
    let stride = if ecx >> 31 == 1 { Stride::Page2M } else { Stride::Page4K };
    Some(InvlpgbMatch {
        pages: (rax & 1 != 0).then(|| pages(rax & !0xfff, (ecx & 0xffff) + 1, stride)),
        pcid: (rax & 2 != 0).then(|| Pcid::new((edx >> 16) as u16).unwrap()),
        asid: (edx & 0xffff) as u16,
        globals: rax & 8 != 0,
        final_only: rax & 16 != 0,
        nested: rax & 32 != 0,
    })
}

#[test]
fn every_combination_of_fields_reads_back() {
    let named = [
        None,
        Some(pages(0, 1, Stride::Page4K)),
        Some(pages(0x7fff_ffff_f000, 1, Stride::Page4K)),
        Some(pages(0xffff_8000_0000_0000, 8, Stride::Page4K)),
        Some(pages(0x4000_0000, 8, Stride::Page2M)),
        Some(pages(0xffff_ffff_ffff_f000, 1, Stride::Page4K)),
    ];
    let pcids = || (0..=Pcid::MAX.get()).map(|raw| Pcid::new(raw).ok()).chain([None]);
    for pages in named {
        for pcid in pcids() {
            for asid in [0, 1, 0x8000, u16::MAX] {
                for flags in 0..8 {
                    let what = InvlpgbMatch {
                        pages,
                        pcid,
                        asid,
                        globals: flags & 1 != 0,
                        final_only: flags & 2 != 0,
                        nested: flags & 4 != 0,
                    };
                    let operands = limits(8).encode(&what).unwrap();
                    assert_eq!(decode(operands), Some(what));
                    if what.pages.is_none() {
                        assert_eq!((operands.rax() >> 12, operands.ecx()), (0, 0));
                    }
                }
            }
        }
    }
}

#[test]
fn the_register_layout_is_the_manuals() {
    let what = InvlpgbMatch {
        pages: Some(pages(0xffff_8123_4560_0000, 3, Stride::Page2M)),
        pcid: Some(Pcid::new(0xabc).unwrap()),
        asid: 0x1234,
        globals: true,
        final_only: true,
        nested: true,
    };
    let operands = limits(8).encode(&what).unwrap();
    assert_eq!(operands.rax(), 0xffff_8123_4560_003f);
    assert_eq!(operands.ecx(), 0x8000_0002);
    assert_eq!(operands.edx(), 0x0abc_1234);
}

#[test]
fn the_count_field_is_one_less_than_the_pages_and_never_above_the_maximum() {
    for max in (1..=64).chain([255, 65_535, 65_536, u32::MAX]) {
        let limits = limits(max);
        let real = max.min(1 << 16);
        for count in (0..=66).chain([real - 1, real, real.saturating_add(1), 65_537]) {
            let what =
                InvlpgbMatch { pages: Some(pages(0x1000, count, Stride::Page4K)), ..anything() };
            match limits.encode(&what) {
                Ok(operands) => {
                    assert!((1..=real).contains(&count));
                    assert_eq!(operands.ecx() & 0xffff, count - 1);
                }
                Err(InvlpgbError::NoPages) => assert_eq!(count, 0),
                Err(error) => {
                    assert!(count > real);
                    assert_eq!(error, InvlpgbError::TooManyPages { asked: count, max: real });
                }
            }
        }
    }
}

#[test]
fn what_would_fault_or_reach_elsewhere_is_refused() {
    let all = limits(8);
    let with = |pages| InvlpgbMatch { pages: Some(pages), ..anything() };
    let pcid = InvlpgbMatch { pcid: Some(Pcid::ZERO), ..anything() };
    assert_eq!(InvlpgbLimits { pcide: false, ..all }.encode(&pcid), Err(InvlpgbError::TagsOff));
    let nested = InvlpgbMatch { nested: true, ..anything() };
    assert_eq!(InvlpgbLimits { nested: false, ..all }.encode(&nested), Err(InvlpgbError::Nested));
    let guest = InvlpgbMatch { asid: 4, ..anything() };
    assert_eq!(InvlpgbLimits { asids: 4, ..all }.encode(&guest), Err(InvlpgbError::Asid(4)));
    assert!(InvlpgbLimits { asids: 5, ..all }.encode(&guest).is_ok());
    assert!(
        InvlpgbLimits { asids: 0, ..all }.encode(&anything()).is_ok(),
        "the host's own always is"
    );
    assert_eq!(all.encode(&with(pages(0, 2, Stride::Page1G))), Err(InvlpgbError::Stride));
    assert!(all.encode(&with(pages(0, 1, Stride::Page1G))).is_ok());
    for (first, stride) in [
        (0x7fff_ffff_f000, Stride::Page4K),
        (0x7fff_ffe0_0000, Stride::Page2M),
        (0xffff_ffff_ffff_f000, Stride::Page4K),
        (0xffff_ffff_ffe0_0000, Stride::Page2M),
    ] {
        assert_eq!(all.encode(&with(pages(first, 2, stride))), Err(InvlpgbError::NotCanonical));
        assert!(all.encode(&with(pages(first, 1, stride))).is_ok());
    }
}

/// The addresses one instruction names, by the manual: first, first + step, …
fn named(operands: InvlpgbOperands) -> Vec<u64> {
    let step = if operands.ecx() >> 31 == 1 { 1u64 << 21 } else { 1 << 12 };
    (0..=u64::from(operands.ecx() & 0xffff)).map(|i| (operands.rax() & !0xfff) + i * step).collect()
}

#[test]
fn a_cover_names_exactly_the_strides_of_the_range_each_once() {
    let half = 1u64 << 47;
    let top = half.wrapping_neg();
    for stride in [Stride::Page4K, Stride::Page2M, Stride::Page1G] {
        let step = stride.bytes();
        let ends =
            [0, step, 5 * step, half - 3 * step, half - step, top - 2 * step, top, top + step];
        let high_end = (40 * step).wrapping_neg();
        for max_pages in [1, 2, 3, 7, 8, 64, 65_536] {
            for start in ends.into_iter().chain([high_end]) {
                for count in 1..=40 {
                    let range = VaRange::new(start, count, stride).unwrap();
                    let mut seen = BTreeSet::new();
                    let mut instructions = 0;
                    for operands in limits(max_pages).cover(range, anything()).unwrap() {
                        instructions += 1;
                        let addresses = named(operands);
                        assert!(addresses.len() as u32 <= max_pages);
                        for address in addresses {
                            assert!(seen.insert(address), "{address:#x} named twice");
                        }
                    }
                    let wanted: BTreeSet<u64> = (0..count)
                        .map(|i| start + i * step)
                        .filter(|address| WIDTH.is_canonical(*address))
                        .collect();
                    assert_eq!(seen, wanted, "{start:#x} + {count} by {max_pages}");
                    let per = if stride == Stride::Page1G { 1 } else { u64::from(max_pages) };
                    assert!(instructions <= (wanted.len() as u64).div_ceil(per) + 1, "no waste");
                }
            }
        }
    }
}

#[test]
fn a_cover_keeps_the_rest_of_the_template() {
    let template = InvlpgbMatch {
        pcid: Some(Pcid::new(77).unwrap()),
        asid: 3,
        final_only: true,
        ..anything()
    };
    let range = VaRange::new(0x10_0000, 21, Stride::Page4K).unwrap();
    for operands in limits(8).cover(range, template).unwrap() {
        let what = decode(operands).unwrap();
        assert_eq!(InvlpgbMatch { pages: None, ..what }, template);
    }
    let off = InvlpgbLimits { pcide: false, ..limits(8) };
    assert_eq!(off.cover(range, template).map(|_| ()), Err(InvlpgbError::TagsOff));
}

#[cfg(target_arch = "x86_64")]
mod encoding {
    use crate::x86_64::model::bytes_between;

    core::arch::global_asm!(
        ".globl sd_invlpgb\nsd_invlpgb:",
        template!(invlpgb),
        ".globl sd_tlbsync\nsd_tlbsync:",
        template!(tlbsync),
        ".globl sd_broadcast_end\nsd_broadcast_end:",
    );

    unsafe extern "C" {
        #[link_name = "sd_invlpgb"]
        static INVLPGB: u8;
        #[link_name = "sd_tlbsync"]
        static TLBSYNC: u8;
        #[link_name = "sd_broadcast_end"]
        static END: u8;
    }

    /// 0F 01 FE and 0F 01 FF (APM vol. 3, INVLPGB and TLBSYNC).
    #[test]
    fn encodings_are_0f_01_fe_and_ff() {
        assert_eq!(bytes_between(&raw const INVLPGB, &raw const TLBSYNC), [0x0f, 0x01, 0xfe]);
        assert_eq!(bytes_between(&raw const TLBSYNC, &raw const END), [0x0f, 0x01, 0xff]);
    }
}
