//! The formats of VT-d's tables of devices (VT-d, chapter 9: "Translation Structure Formats").
//!
//! | table | entries | mode |
//! |---|---|---|
//! | root table | [`RootEntry`], one for each bus | legacy |
//! | | [`ScalableRootEntry`], twice for each bus | scalable |
//! | context table | [`ContextLow`], [`ContextHigh`] | legacy |
//! | | [`ScalableContextLow`], [`ScalableContextHigh`], and two words of zeros | scalable |
//! | PASID directory | [`PasidDirectoryEntry`], one for 64 PASIDs | scalable |
//! | PASID table | [`PasidEntry0`], [`PasidEntry1`], [`PasidEntry2`], and five words of zeros | scalable |
//!
//! [`Vtd`](super::Vtd) uses legacy mode: in scalable mode slots of the queue have 256 bits, which
//! the library's queue does not write. The formats of scalable mode are here for kernels that have
//! a queue of their own.

use bitfield_struct::bitfield;

/// A root entry's first word (9.1); the second is reserved.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct RootEntry {
    /// P.
    pub present: bool,
    #[bits(11)]
    __: u16,
    /// CTP: the number of the context table's page.
    #[bits(52)]
    pub table: u64,
}

/// One of the two words of a root entry in scalable mode: of devices 0 to 15, and of 16 to 31
/// (9.2).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ScalableRootEntry {
    /// LP or UP.
    pub present: bool,
    #[bits(11)]
    __: u16,
    /// LCTP or UCTP: the number of the context table's page.
    #[bits(52)]
    pub table: u64,
}

/// Which requests a context entry translates (9.3, TT).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TranslationType {
    /// Those that are not translated; others are refused.
    Untranslated = 0,
    /// The same, and the device may ask for translations, and use what it has.
    WithDeviceCache = 1,
    /// None: addresses are physical.
    PassThrough = 2,
    /// The unit refuses the entry.
    Reserved = 3,
}

impl TranslationType {
    const fn into_bits(self) -> u8 {
        self as u8
    }

    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Untranslated,
            1 => Self::WithDeviceCache,
            2 => Self::PassThrough,
            _ => Self::Reserved,
        }
    }
}

/// A context entry's first word (9.3).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ContextLow {
    /// P.
    pub present: bool,
    /// FPD: faults are not recorded.
    pub faults_hidden: bool,
    /// TT.
    #[bits(2)]
    pub translation: TranslationType,
    __: u8,
    /// SSPTPTR: the number of the root's page.
    #[bits(52)]
    pub root: u64,
}

/// A context entry's second word (9.3).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ContextHigh {
    /// AW: levels of the tables, less two.
    #[bits(3)]
    pub width: u64,
    /// Ignored by the unit.
    #[bits(4)]
    pub available: u8,
    __: bool,
    /// DID.
    pub domain: u16,
    #[bits(40)]
    __: u64,
}

/// A context entry's first word in scalable mode (9.4).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ScalableContextLow {
    /// P.
    pub present: bool,
    /// FPD: faults are not recorded.
    pub faults_hidden: bool,
    /// DTE: the device may ask for translations.
    pub device_cache: bool,
    /// PASIDE: requests may have a PASID.
    pub pasids: bool,
    /// PRE: the device may ask for pages.
    pub page_requests: bool,
    #[bits(4)]
    __: u8,
    /// PDTS: the directory has 2^(n + 7) entries.
    #[bits(3)]
    pub directory_size: u32,
    /// PASIDDIRPTR: the number of the directory's page.
    #[bits(52)]
    pub directory: u64,
}

/// A context entry's second word in scalable mode (9.4).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ScalableContextHigh {
    /// RID_PASID: the PASID of requests that have none.
    #[bits(20)]
    pub request_pasid: u32,
    /// RID_PRIV: such are a supervisor's.
    pub request_privileged: bool,
    #[bits(43)]
    __: u64,
}

/// An entry of a PASID directory (9.5): of 64 PASIDs.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct PasidDirectoryEntry {
    /// P.
    pub present: bool,
    /// FPD: faults are not recorded.
    pub faults_hidden: bool,
    #[bits(10)]
    __: u16,
    /// SMPTBLPTR: the number of the PASID table's page.
    #[bits(52)]
    pub table: u64,
}

/// How a PASID is translated (9.6, PGTT).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum GuestTranslation {
    /// By the first stage alone.
    FirstStage = 1,
    /// By the second alone.
    SecondStage = 2,
    /// By both.
    Nested = 3,
    /// Not at all: addresses are physical.
    PassThrough = 4,
    /// The unit refuses the entry.
    Reserved = 0,
}

impl GuestTranslation {
    const fn into_bits(self) -> u8 {
        self as u8
    }

    const fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::FirstStage,
            2 => Self::SecondStage,
            3 => Self::Nested,
            4 => Self::PassThrough,
            _ => Self::Reserved,
        }
    }
}

/// The first word of an entry of a PASID table (9.6).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct PasidEntry0 {
    /// P.
    pub present: bool,
    /// FPD: faults are not recorded.
    pub faults_hidden: bool,
    /// AW: levels of the second stage, less two.
    #[bits(3)]
    pub width: u64,
    /// SSEE: the second stage may allow execution.
    pub execute: bool,
    /// PGTT.
    #[bits(3)]
    pub translation: GuestTranslation,
    /// SSADE: the second stage has accessed and dirty flags.
    pub accessed_dirty: bool,
    #[bits(2)]
    __: u8,
    /// SSPTPTR: the number of the second stage's root.
    #[bits(52)]
    pub second_stage: u64,
}

/// The second word of an entry of a PASID table (9.6: bits 127 to 64).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct PasidEntry1 {
    /// DID.
    pub domain: u16,
    #[bits(7)]
    __: u8,
    /// PWSNP: walks look into caches.
    pub walk_snoop: bool,
    /// PGSNP: so do accesses.
    pub page_snoop: bool,
    #[bits(39)]
    __: u64,
}

/// The third word of an entry of a PASID table (9.6: bits 191 to 128).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct PasidEntry2 {
    /// SRE: the device may be a supervisor.
    pub supervisor: bool,
    /// ERE: the device may ask for execution.
    pub execute: bool,
    /// FSPM: levels of the first stage, less four.
    #[bits(2)]
    pub levels: u64,
    /// WPE: supervisors too can't write to what is read only.
    pub write_protect: bool,
    /// NXE: execution may be forbidden.
    pub no_execute: bool,
    /// SMEP.
    pub smep: bool,
    /// EAFE: the extended accessed flag.
    pub extended_accessed: bool,
    #[bits(4)]
    __: u8,
    /// FSPTPTR: the number of the first stage's root.
    #[bits(52)]
    pub first_stage: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_entries_are_those_of_9_1_and_9_2() {
        assert_eq!(
            RootEntry::new().with_present(true).with_table(0x1_2345).into_bits(),
            0x1234_5001
        );
        let upper = ScalableRootEntry::new().with_present(true).with_table(0xf_ffff_ffff_ffff);
        assert_eq!(upper.into_bits(), 0xffff_ffff_ffff_f001);
    }

    /// 9.3: a 4-level domain 0xabcd with its root at 0x1000, by a device with a cache.
    #[test]
    fn context_entries_are_those_of_9_3() {
        let low = ContextLow::new()
            .with_present(true)
            .with_translation(TranslationType::WithDeviceCache)
            .with_root(1);
        assert_eq!(low.into_bits(), 0x1005);
        assert_eq!(ContextLow::new().with_faults_hidden(true).into_bits(), 2);
        let through = ContextLow::new().with_translation(TranslationType::PassThrough);
        assert_eq!(through.into_bits(), 0b10 << 2);
        assert_eq!(ContextLow::from(3 << 2).translation(), TranslationType::Reserved);
        assert_eq!(ContextHigh::new().with_width(2).with_domain(0xabcd).into_bits(), 0xab_cd02);
        assert_eq!(ContextHigh::new().with_available(0xf).into_bits(), 0x78);
    }

    #[test]
    fn scalable_context_entries_are_those_of_9_4() {
        let low = ScalableContextLow::new().with_present(true).with_directory(3);
        assert_eq!(low.with_directory_size(5).into_bits(), 0x3a01);
        for (word, bit) in [
            (ScalableContextLow::new().with_faults_hidden(true), 1),
            (ScalableContextLow::new().with_device_cache(true), 2),
            (ScalableContextLow::new().with_pasids(true), 3),
            (ScalableContextLow::new().with_page_requests(true), 4),
        ] {
            assert_eq!(word.into_bits(), 1 << bit, "{word:?}");
        }
        let high = ScalableContextHigh::new().with_request_pasid(0xf_fffe);
        assert_eq!(high.with_request_privileged(true).into_bits(), 0x1f_fffe);
    }

    #[test]
    fn pasid_entries_are_those_of_9_5_and_9_6() {
        let directory = PasidDirectoryEntry::new().with_present(true).with_table(9);
        assert_eq!(directory.into_bits(), 0x9001);
        let second = PasidEntry0::new()
            .with_present(true)
            .with_width(2)
            .with_translation(GuestTranslation::SecondStage)
            .with_second_stage(4);
        assert_eq!(second.into_bits(), 0x4000 | 2 << 6 | 2 << 2 | 1);
        assert_eq!(PasidEntry0::new().with_execute(true).into_bits(), 1 << 5);
        assert_eq!(PasidEntry0::new().with_accessed_dirty(true).into_bits(), 1 << 9);
        for (kind, code) in [
            (GuestTranslation::FirstStage, 1),
            (GuestTranslation::Nested, 3),
            (GuestTranslation::PassThrough, 4),
        ] {
            assert_eq!(PasidEntry0::new().with_translation(kind).into_bits(), code << 6);
            assert_eq!(PasidEntry0::from(code << 6).translation(), kind);
        }
        assert_eq!(PasidEntry0::from(7 << 6).translation(), GuestTranslation::Reserved);
        let word = PasidEntry1::new().with_domain(0xabcd).with_walk_snoop(true);
        assert_eq!(word.with_page_snoop(true).into_bits(), 0x0180_abcd);
        let first = PasidEntry2::new().with_supervisor(true).with_levels(1).with_first_stage(6);
        assert_eq!(first.into_bits(), 0x6000 | 1 << 2 | 1);
        for (word, bit) in [
            (PasidEntry2::new().with_execute(true), 1),
            (PasidEntry2::new().with_write_protect(true), 4),
            (PasidEntry2::new().with_no_execute(true), 5),
            (PasidEntry2::new().with_smep(true), 6),
            (PasidEntry2::new().with_extended_accessed(true), 7),
        ] {
            assert_eq!(word.into_bits(), 1 << bit, "{word:?}");
        }
    }
}
