//! What the CPU does with a write to CR0, CR4 or EFER, from the manuals: which writes fault, and
//! what the others change beside the register.

use proptest::prelude::*;
use shootdown_virt::host_bits::{Effects, GuestControl};

/// Bits, as the manuals number them.
#[rustfmt::skip]
pub mod bit {
    pub const PE: u64 = 0x1;
    pub const TS: u64 = 0x8;
    pub const ET: u64 = 0x10;
    pub const NE: u64 = 0x20;
    pub const WP: u64 = 0x1_0000;
    pub const AM: u64 = 0x4_0000;
    pub const NW: u64 = 0x2000_0000;
    pub const CD: u64 = 0x4000_0000;
    pub const PG: u64 = 0x8000_0000;

    pub const VME: u64 = 0x1;
    pub const TSD: u64 = 0x4;
    pub const DE: u64 = 0x8;
    pub const PSE: u64 = 0x10;
    pub const PAE: u64 = 0x20;
    pub const MCE: u64 = 0x40;
    pub const PGE: u64 = 0x80;
    pub const PCE: u64 = 0x100;
    pub const OSFXSR: u64 = 0x200;
    pub const UMIP: u64 = 0x800;
    pub const LA57: u64 = 0x1000;
    pub const VMXE: u64 = 0x2000;
    pub const FSGSBASE: u64 = 0x1_0000;
    pub const PCIDE: u64 = 0x2_0000;
    pub const OSXSAVE: u64 = 0x4_0000;
    pub const SMEP: u64 = 0x10_0000;
    pub const SMAP: u64 = 0x20_0000;
    pub const CET: u64 = 0x80_0000;

    pub const SCE: u64 = 0x1;
    pub const LME: u64 = 0x100;
    pub const LMA: u64 = 0x400;
    pub const NXE: u64 = 0x800;
    pub const SVME: u64 = 0x1000;
}

/// Bits of CR4 that the CPUs of these tests have, beside VMXE.
pub const CR4_BITS: [u64; 15] = [
    bit::VME,
    bit::TSD,
    bit::DE,
    bit::PSE,
    bit::PAE,
    bit::MCE,
    bit::PGE,
    bit::PCE,
    bit::OSFXSR,
    bit::FSGSBASE,
    bit::PCIDE,
    bit::OSXSAVE,
    bit::SMEP,
    bit::CET,
    bit::MCE | bit::TSD,
];

/// All of them together.
pub fn cr4_has() -> u64 {
    CR4_BITS.iter().fold(0, |all, bit| all | bit)
}

pub const CR0_BITS: [u64; 10] = [
    bit::PE,
    0x2, // MP
    0x4, // EM
    bit::TS,
    bit::NE,
    bit::WP,
    bit::AM,
    bit::NW,
    bit::CD,
    bit::PG,
];

pub const EFER_HAS: u64 = bit::SCE | bit::LME | bit::NXE;

pub const EFER_VALUES: [u64; 8] = [
    0,
    bit::SCE,
    bit::LME,
    bit::LME | bit::NXE,
    bit::LME | bit::LMA | bit::SCE,
    bit::LME | bit::LMA | bit::NXE,
    bit::LME | bit::SVME,
    1 << 40,
];

/// Bits that a VMX guest changes without an exit: of CR0, of CR4.
pub fn guest_bits() -> impl Strategy<Value = (u64, u64)> {
    let cr0 = prop::sample::subsequence(vec![0x2, 0x4, bit::TS, bit::WP, bit::AM], 0..=5);
    let of_cr4 = vec![bit::VME, bit::TSD, bit::DE, bit::PGE, bit::PCE, bit::OSFXSR, bit::FSGSBASE];
    let cr4 = prop::sample::subsequence(of_cr4, 0..=7);
    let sum = |bits: Vec<u64>| bits.into_iter().sum::<u64>();
    (cr0.prop_map(sum), cr4.prop_map(sum))
}

/// A write that #GP answers.
#[derive(Debug, PartialEq, Eq)]
pub struct Faults;

/// What a general register gives to MOV.
fn operand(guest: &GuestControl, value: u64) -> u64 {
    if guest.code64 { value } else { u64::from(value as u32) }
}

/// MOV to CR4.
pub fn mov_cr4(guest: &GuestControl, value: u64) -> Result<GuestControl, Faults> {
    let value = operand(guest, value);
    let long = guest.efer & bit::LMA != 0;
    let sets = |bit| value & bit != 0 && guest.cr4 & bit == 0;
    let reserved = value & !cr4_has() != 0;
    let pae = long && value & bit::PAE == 0;
    let pcid = sets(bit::PCIDE) && (!long || guest.cr3 & 0xfff != 0);
    let cet = value & bit::CET != 0 && guest.cr0 & bit::WP == 0;
    if reserved || pae || pcid || cet {
        Err(Faults)
    } else {
        Ok(GuestControl { cr4: value, ..*guest })
    }
}

/// MOV to CR0.
pub fn mov_cr0(guest: &GuestControl, value: u64) -> Result<GuestControl, Faults> {
    let value = operand(guest, value);
    if value > u64::from(u32::MAX) {
        return Err(Faults);
    }
    let kept = CR0_BITS.iter().fold(0, |all, bit| all | bit);
    let value = value & kept | bit::ET;
    let has = |bit| value & bit != 0;
    let (pg, was) = (has(bit::PG), guest.cr0 & bit::PG != 0);
    let lme = guest.efer & bit::LME != 0;
    let faults = pg && !has(bit::PE)
        || has(bit::NW) && !has(bit::CD)
        || guest.cr4 & bit::CET != 0 && !has(bit::WP)
        || pg && !was && lme && (guest.cr4 & bit::PAE == 0 || guest.code64)
        || !pg && was && (guest.code64 || guest.cr4 & bit::PCIDE != 0);
    if faults {
        return Err(Faults);
    }
    let efer = guest.efer & !bit::LMA | if pg && lme { bit::LMA } else { 0 };
    Ok(GuestControl { cr0: value, efer, ..*guest })
}

/// CLTS.
pub fn clts(guest: &GuestControl) -> GuestControl {
    GuestControl { cr0: guest.cr0 & !bit::TS, ..*guest }
}

/// LMSW.
pub fn lmsw(guest: &GuestControl, source: u16) -> Result<GuestControl, Faults> {
    let pe = guest.cr0 & bit::PE;
    mov_cr0(guest, guest.cr0 & !0xf | u64::from(source & 0xf) | pe)
}

/// WRMSR to EFER.
pub fn wrmsr_efer(guest: &GuestControl, value: u64) -> Result<GuestControl, Faults> {
    let value = value & !bit::LMA | guest.efer & bit::LMA;
    let lme = (value ^ guest.efer) & bit::LME != 0 && guest.cr0 & bit::PG != 0;
    if value & !(EFER_HAS | bit::LMA) != 0 || lme {
        return Err(Faults);
    }
    Ok(GuestControl { efer: value, ..*guest })
}

/// What a write has to have done beside the register: translations that go (SDM 3A 4.10.4.1) and
/// page-directory pointers that are loaded (4.4.1). More is allowed.
pub fn check_effects(before: &GuestControl, after: &GuestControl, done: Effects) {
    let cr0 = before.cr0 ^ after.cr0;
    let cr4 = before.cr4 ^ after.cr4;
    let stale = cr0 & (bit::PG | bit::WP) != 0
        || cr4 & (bit::PGE | bit::PAE | bit::PSE) != 0
        || cr4 & before.cr4 & bit::PCIDE != 0
        || cr4 & after.cr4 & bit::SMEP != 0;
    assert!(!stale || done.invalidate, "{before:x?} to {after:x?} keeps translations");
    let pae = after.cr0 & bit::PG != 0 && after.cr4 & bit::PAE != 0 && after.efer & bit::LMA == 0;
    let loads = cr0 & (bit::PG | bit::CD | bit::NW) != 0
        || cr4 & (bit::PAE | bit::PGE | bit::PSE | bit::SMEP) != 0;
    assert_eq!(done.load_pdptes, pae && loads, "{before:x?} to {after:x?}");
    let expected = (after.efer != before.efer).then_some(after.efer);
    assert_eq!(done.efer, expected, "EFER");
}
