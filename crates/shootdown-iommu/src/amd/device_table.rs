//! An entry of AMD-Vi's device table: 256 bits (AMD-Vi 2.2.2, "Device Table Entry Format").

use bitfield_struct::bitfield;
use shootdown_dma::table::AmdV1;
use shootdown_dma::{DomainId, PhysAddr};

/// Bytes of an entry.
pub const ENTRY: usize = 32;

/// Bits 63 to 0: what accesses go through.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Translation {
    /// V: the entry is valid. *What is not valid lets its device through*, untranslated.
    pub valid: bool,
    /// TV: what is said of translation is.
    pub translation_valid: bool,
    #[bits(5)]
    __: u8,
    /// HAD: accessed (1) and dirty (3) flags.
    #[bits(2)]
    pub accessed_dirty: u8,
    /// Mode: levels of the tables; 0: none, addresses are physical.
    #[bits(3)]
    pub mode: u64,
    /// Host page table root pointer: the number of its page.
    #[bits(40)]
    pub root: u64,
    /// PPR: the device may ask for pages.
    pub page_requests: bool,
    /// GPRP: and is answered with a PASID.
    pub page_request_pasid: bool,
    /// GIoV: requests without a PASID have PASID 0.
    pub guest_without_pasid: bool,
    /// GV: there are guest tables.
    pub guest_valid: bool,
    /// GLX: levels of the table of those, less one.
    #[bits(2)]
    pub guest_levels: u8,
    /// GCR3 table root pointer, bits 14 to 12.
    #[bits(3)]
    pub guest_root_low: u8,
    /// IR: it may read.
    pub read: bool,
    /// IW: it may write.
    pub write: bool,
    __: bool,
}

/// Bits 127 to 64: the domain, and how special requests are answered.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Domain {
    /// DomainID.
    pub domain: u16,
    /// GCR3 table root pointer, bits 30 to 15.
    pub guest_root_middle: u16,
    /// I: the device has a cache, and may ask for translations.
    pub device_cache: bool,
    /// SE: of a device's page faults one is logged.
    pub suppress_repeated: bool,
    /// SA: none is.
    pub suppress_all: bool,
    /// IoCtl: port I/O.
    #[bits(2)]
    pub port_io: u8,
    /// Cache.
    pub cache: bool,
    /// SD: no snooping for requests that say so.
    pub snoop_disable: bool,
    /// EX: the exclusion range.
    pub exclusion: bool,
    /// SysMgt: system management requests.
    #[bits(2)]
    pub system_management: u8,
    /// SATS: secure ATS.
    pub secure_ats: bool,
    /// GCR3 table root pointer, bits 51 to 31.
    #[bits(21)]
    pub guest_root_high: u32,
}

/// Bits 191 to 128: interrupts.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Interrupts {
    /// IV: they are remapped.
    pub valid: bool,
    /// IntTabLen: the table has 2^n entries.
    #[bits(4)]
    pub length: u8,
    /// IG: what is not remapped is not logged.
    pub ignore: bool,
    /// Interrupt table root pointer, in 64 bytes.
    #[bits(46)]
    pub table: u64,
    #[bits(4)]
    __: u8,
    /// InitPass.
    pub pass_init: bool,
    /// EIntPass.
    pub pass_external: bool,
    /// NMIPass.
    pub pass_nmi: bool,
    __: bool,
    /// IntCtl: fixed and arbitrated: 0 aborted, 1 not remapped, 2 remapped.
    #[bits(2)]
    pub control: u8,
    /// Lint0Pass.
    pub pass_lint0: bool,
    /// Lint1Pass.
    pub pass_lint1: bool,
}

/// The entry of a device that reaches nothing: valid, without tables and without rights.
pub const BLOCKED: Translation = Translation::new().with_valid(true).with_translation_valid(true);

/// The first word of the entry of a device that reaches what these tables map.
#[must_use]
pub const fn translated(tables: &AmdV1, root: PhysAddr) -> Translation {
    BLOCKED.with_mode(tables.mode()).with_root(root.0 >> 12).with_read(true).with_write(true)
}

/// The second.
#[must_use]
pub const fn domain(id: DomainId) -> Domain {
    Domain::new().with_domain(id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2.2.2: V 0, TV 1, HAD 8:7, Mode 11:9, root 51:12, IR 61, IW 62.
    #[test]
    fn translation_is_that_of_2_2_2() {
        assert_eq!(BLOCKED.into_bits(), 0b11);
        let tables = AmdV1::new(4, true).unwrap();
        let word = translated(&tables, PhysAddr(0x1_2345_6000)).into_bits();
        assert_eq!(word, 0x6000_0001_2345_6803);
        let highest = translated(&tables, PhysAddr(0x000f_ffff_ffff_f000)).into_bits();
        assert_eq!(highest, 0x600f_ffff_ffff_f803);
        for (word, bit) in [
            (Translation::new().with_page_requests(true), 52),
            (Translation::new().with_page_request_pasid(true), 53),
            (Translation::new().with_guest_without_pasid(true), 54),
            (Translation::new().with_guest_valid(true), 55),
            (Translation::new().with_guest_levels(1), 56),
            (Translation::new().with_guest_root_low(1), 58),
            (Translation::new().with_read(true), 61),
            (Translation::new().with_write(true), 62),
            (Translation::new().with_accessed_dirty(1), 7),
        ] {
            assert_eq!(word.into_bits(), 1 << bit, "{word:?}");
        }
    }

    /// Bits are counted from the beginning of the entry, as in the manual's table.
    #[test]
    fn domain_and_interrupts_are_those_of_2_2_2() {
        assert_eq!(domain(DomainId(0xabcd)).into_bits(), 0xabcd);
        for (word, bit) in [
            (Domain::new().with_guest_root_middle(1), 80),
            (Domain::new().with_device_cache(true), 96),
            (Domain::new().with_suppress_repeated(true), 97),
            (Domain::new().with_suppress_all(true), 98),
            (Domain::new().with_port_io(1), 99),
            (Domain::new().with_cache(true), 101),
            (Domain::new().with_snoop_disable(true), 102),
            (Domain::new().with_exclusion(true), 103),
            (Domain::new().with_system_management(1), 104),
            (Domain::new().with_guest_root_high(1), 107),
        ] {
            assert_eq!(word.into_bits(), 1 << (bit - 64), "{word:?}");
        }
        for (word, bit) in [
            (Interrupts::new().with_valid(true), 128),
            (Interrupts::new().with_length(1), 129),
            (Interrupts::new().with_ignore(true), 133),
            (Interrupts::new().with_table(1), 134),
            (Interrupts::new().with_pass_init(true), 184),
            (Interrupts::new().with_pass_external(true), 185),
            (Interrupts::new().with_pass_nmi(true), 186),
            (Interrupts::new().with_control(1), 188),
            (Interrupts::new().with_pass_lint0(true), 190),
            (Interrupts::new().with_pass_lint1(true), 191),
        ] {
            assert_eq!(word.into_bits(), 1 << (bit - 128), "{word:?}");
        }
    }
}
