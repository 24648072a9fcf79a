//! What VT-d records of what it refuses (VT-d, chapter 11, "Fault Recording Registers"; reasons:
//! appendix A).

use bitfield_struct::bitfield;
use shootdown_dma::DeviceId;

use crate::fault::{Access, Class, Fault};

/// The upper word of a record; the lower is the address of the page.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct RecordHigh {
    /// SID: who.
    pub source: u16,
    #[bits(12)]
    __: u16,
    /// T2: with T1, the type of the request.
    pub type_2: bool,
    /// PRIV: as a supervisor.
    pub privileged: bool,
    /// EXE: execution was asked for.
    pub execute: bool,
    /// PP: there was a PASID.
    pub has_pasid: bool,
    /// FR: why.
    pub reason: u8,
    /// PV: the PASID.
    #[bits(20)]
    pub pasid: u32,
    /// AT: 0 an untranslated request, 1 for translation, 2 a translated one.
    #[bits(2)]
    pub address_type: u8,
    /// T1: 0 a write, 1 a read.
    pub type_1: bool,
    /// F: the record is one. Cleared by writing 1.
    pub recorded: bool,
}

/// Where in the walk something was wrong, in scalable mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// The root entry.
    Root,
    /// The context entry.
    Context,
    /// The entry of the PASID directory.
    PasidDirectory,
    /// The entry of the PASID table.
    PasidTable,
    /// An entry of the first stage.
    FirstStage,
    /// An entry of the second stage.
    SecondStage,
}

/// Why an access was refused (appendix A). The code is in the name of each group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// 1: there is no context table for the bus.
    RootNotPresent,
    /// 2: the device's entry is not valid.
    ContextNotPresent,
    /// 3: it says what the unit can't do.
    ContextInvalid,
    /// 4: the address is beyond what the unit, or the table, translates.
    AddressBeyondWidth,
    /// 5: it may not be written.
    NoWrite,
    /// 6: it may not be read.
    NoRead,
    /// 7: a table could not be read.
    TableUnreadable,
    /// 8: the root table could not be read.
    RootUnreadable,
    /// 9: the context table could not be read.
    ContextUnreadable,
    /// A: reserved bits of the root entry are set.
    RootReserved,
    /// B: reserved bits of the context entry are set.
    ContextReserved,
    /// C: reserved bits of an entry of a table are set.
    TableReserved,
    /// D: the device's entry allows no requests for translation, nor translated ones.
    TranslationRequestBlocked,
    /// 20: reserved bits of an interrupt request are set.
    InterruptReserved,
    /// 21: its index is beyond the table.
    InterruptIndex,
    /// 22: its entry is not valid.
    InterruptNotPresent,
    /// 23: its entry could not be read.
    InterruptUnreadable,
    /// 24: reserved bits of its entry are set.
    InterruptEntryReserved,
    /// 25: it has the old format, which is blocked.
    InterruptCompatibility,
    /// 26: its entry is another device's.
    InterruptSource,
    /// 27: its posted-interrupt descriptor could not be read.
    PostedUnreadable,
    /// 28: reserved bits of that are set.
    PostedReserved,
    /// 30: RTADDR has a mode that is none.
    BadRootMode,
    /// 31: a request has a PASID, and the mode is the legacy one.
    PasidInLegacyMode,
    /// 32: a page group request in legacy mode.
    PageRequestInLegacyMode,
    /// 38, 40, 50, 58, 70, 78: an entry could not be read.
    Unreadable(Level),
    /// 39, 41, 51, 59, 71: an entry is not valid.
    NotPresent(Level),
    /// 3A, 42, 52, 5A, 72, 7A: reserved bits of an entry are set.
    Reserved(Level),
    /// 43, 5B: an entry says what the unit can't do.
    Invalid(Level),
    /// 44: the device may not ask for translations.
    DeviceCacheOff,
    /// 45: requests may not have a PASID.
    PasidOff,
    /// 46: the PASID is beyond the directory.
    PasidTooLarge,
    /// 47: the device may not ask for pages.
    PageRequestOff,
    /// 48: the PASID of requests without one is none.
    BadRequestPasid,
    /// 5C: the device may not ask for execution.
    ExecuteOff,
    /// 5D: nor be a supervisor.
    SupervisorOff,
    /// 73: the root of the first stage could not be read.
    FirstStageRootUnreadable,
    /// 74: an entry of the first stage is at an address beyond the second stage.
    FirstStageBeyondWidth,
    /// 75, 76: the second stage does not let an entry of the first be read.
    FirstStageNotReadable,
    /// 77: nor have its flags written.
    FirstStageNotWritable,
    /// 79: the second stage does not allow it.
    SecondStageDenied,
    /// 7B: the root of the second stage is none.
    SecondStageRootInvalid,
    /// 7C, 90: a flag would have to be written, and writes do not look into caches.
    FlagsNotCoherent(Level),
    /// 80: the address is not canonical.
    NotCanonical,
    /// 81: it is a supervisor's.
    UserDenied,
    /// 82: it may not be executed.
    NoExecute,
    /// 83: the address that comes out is beyond what the machine has.
    OutputBeyondWidth,
    /// 84: the address that goes into the second stage is beyond what that translates.
    SecondStageBeyondWidth,
    /// 85: it may not be written.
    ScalableNoWrite,
    /// 86: it may not be read.
    ScalableNoRead,
    /// 87: the address that comes out is that of interrupts.
    OutputIsInterrupt,
    /// Another code.
    Unknown(u8),
}

impl Reason {
    /// What a code says.
    #[must_use]
    pub const fn of(code: u8) -> Self {
        use Level::{Context, FirstStage, PasidDirectory, PasidTable, Root, SecondStage};
        match code {
            0x01 => Self::RootNotPresent,
            0x02 => Self::ContextNotPresent,
            0x03 => Self::ContextInvalid,
            0x04 => Self::AddressBeyondWidth,
            0x05 => Self::NoWrite,
            0x06 => Self::NoRead,
            0x07 => Self::TableUnreadable,
            0x08 => Self::RootUnreadable,
            0x09 => Self::ContextUnreadable,
            0x0a => Self::RootReserved,
            0x0b => Self::ContextReserved,
            0x0c => Self::TableReserved,
            0x0d => Self::TranslationRequestBlocked,
            0x20 => Self::InterruptReserved,
            0x21 => Self::InterruptIndex,
            0x22 => Self::InterruptNotPresent,
            0x23 => Self::InterruptUnreadable,
            0x24 => Self::InterruptEntryReserved,
            0x25 => Self::InterruptCompatibility,
            0x26 => Self::InterruptSource,
            0x27 => Self::PostedUnreadable,
            0x28 => Self::PostedReserved,
            0x30 => Self::BadRootMode,
            0x31 => Self::PasidInLegacyMode,
            0x32 => Self::PageRequestInLegacyMode,
            0x38 => Self::Unreadable(Root),
            0x39 => Self::NotPresent(Root),
            0x3a => Self::Reserved(Root),
            0x40 => Self::Unreadable(Context),
            0x41 => Self::NotPresent(Context),
            0x42 => Self::Reserved(Context),
            0x43 => Self::Invalid(Context),
            0x44 => Self::DeviceCacheOff,
            0x45 => Self::PasidOff,
            0x46 => Self::PasidTooLarge,
            0x47 => Self::PageRequestOff,
            0x48 => Self::BadRequestPasid,
            0x50 => Self::Unreadable(PasidDirectory),
            0x51 => Self::NotPresent(PasidDirectory),
            0x52 => Self::Reserved(PasidDirectory),
            0x58 => Self::Unreadable(PasidTable),
            0x59 => Self::NotPresent(PasidTable),
            0x5a => Self::Reserved(PasidTable),
            0x5b => Self::Invalid(PasidTable),
            0x5c => Self::ExecuteOff,
            0x5d => Self::SupervisorOff,
            0x70 => Self::Unreadable(FirstStage),
            0x71 => Self::NotPresent(FirstStage),
            0x72 => Self::Reserved(FirstStage),
            0x73 => Self::FirstStageRootUnreadable,
            0x74 => Self::FirstStageBeyondWidth,
            0x75 | 0x76 => Self::FirstStageNotReadable,
            0x77 => Self::FirstStageNotWritable,
            0x78 => Self::Unreadable(SecondStage),
            0x79 => Self::SecondStageDenied,
            0x7a => Self::Reserved(SecondStage),
            0x7b => Self::SecondStageRootInvalid,
            0x7c => Self::FlagsNotCoherent(SecondStage),
            0x80 => Self::NotCanonical,
            0x81 => Self::UserDenied,
            0x82 => Self::NoExecute,
            0x83 => Self::OutputBeyondWidth,
            0x84 => Self::SecondStageBeyondWidth,
            0x85 => Self::ScalableNoWrite,
            0x86 => Self::ScalableNoRead,
            0x87 => Self::OutputIsInterrupt,
            0x90 => Self::FlagsNotCoherent(FirstStage),
            other => Self::Unknown(other),
        }
    }

    /// What kind of mistake it is.
    #[must_use]
    pub const fn class(self) -> Class {
        use Level::{FirstStage, SecondStage};
        match self {
            Self::AddressBeyondWidth
            | Self::NoWrite
            | Self::NoRead
            | Self::NotPresent(FirstStage | SecondStage)
            | Self::SecondStageDenied
            | Self::FirstStageBeyondWidth
            | Self::FirstStageNotReadable
            | Self::FirstStageNotWritable
            | Self::NotCanonical
            | Self::UserDenied
            | Self::NoExecute
            | Self::OutputBeyondWidth
            | Self::SecondStageBeyondWidth
            | Self::ScalableNoWrite
            | Self::ScalableNoRead
            | Self::OutputIsInterrupt => Class::Translation,
            Self::RootNotPresent
            | Self::ContextNotPresent
            | Self::ContextInvalid
            | Self::TranslationRequestBlocked
            | Self::BadRootMode
            | Self::PasidInLegacyMode
            | Self::PageRequestInLegacyMode
            | Self::NotPresent(_)
            | Self::Invalid(_)
            | Self::DeviceCacheOff
            | Self::PasidOff
            | Self::PasidTooLarge
            | Self::PageRequestOff
            | Self::BadRequestPasid
            | Self::ExecuteOff
            | Self::SupervisorOff
            | Self::SecondStageRootInvalid => Class::Configuration,
            Self::TableUnreadable
            | Self::RootUnreadable
            | Self::ContextUnreadable
            | Self::RootReserved
            | Self::ContextReserved
            | Self::TableReserved
            | Self::Unreadable(_)
            | Self::Reserved(_)
            | Self::FirstStageRootUnreadable
            | Self::FlagsNotCoherent(_) => Class::Structure,
            Self::InterruptReserved
            | Self::InterruptIndex
            | Self::InterruptNotPresent
            | Self::InterruptUnreadable
            | Self::InterruptEntryReserved
            | Self::InterruptCompatibility
            | Self::InterruptSource
            | Self::PostedUnreadable
            | Self::PostedReserved => Class::Interrupt,
            Self::Unknown(_) => Class::Other,
        }
    }
}

/// What was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// An access was refused.
    Refused {
        /// The address of its page; of an interrupt, its index is at 63:48.
        page: u64,
        /// All else.
        high: RecordHigh,
        /// Why, decoded.
        reason: Reason,
    },
    /// There were more than there was room for.
    Lost,
}

impl Record {
    /// The record in these two words, if it is one.
    #[must_use]
    pub const fn decode(low: u64, high: u64) -> Option<Self> {
        let high = RecordHigh::from_bits(high);
        if !high.recorded() {
            return None;
        }
        let reason = Reason::of(high.reason());
        Some(Self::Refused { page: low & !0xfff, high, reason })
    }
}

impl From<Record> for Fault {
    fn from(record: Record) -> Self {
        match record {
            Record::Refused { page, high, reason } => Self {
                device: Some(DeviceId(u32::from(high.source()))),
                pasid: high.has_pasid().then_some(high.pasid()),
                address: (reason.class() != Class::Interrupt).then_some(page),
                access: match (high.type_2(), high.type_1()) {
                    (false, false) => Some(Access::Write),
                    (false, true) => Some(Access::Read),
                    // A request for pages; an atomic operation, which writes.
                    (true, false) => None,
                    (true, true) => Some(Access::Write),
                },
                class: reason.class(),
            },
            Record::Lost => {
                Self { device: None, pasid: None, address: None, access: None, class: Class::Lost }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F 127, T1 126, AT 125:124, PV 123:104, FR 103:96, PP 95, EXE 94, PRIV 93, T2 92, SID 79:64,
    /// FI 63:12.
    #[test]
    fn fields_are_where_the_manual_has_them() {
        let high = 1 << 63 | 1 << 62 | 2 << 60 | 0xf_ffff << 40 | 6 << 32 | 1 << 31 | 0x1234;
        let record = Record::decode(0xabcd_e123, high).unwrap();
        let Record::Refused { page, high, reason } = record else { panic!("{record:?}") };
        assert_eq!((page, reason), (0xabcd_e000, Reason::NoRead));
        assert_eq!((high.source(), high.pasid(), high.address_type()), (0x1234, 0xf_ffff, 2));
        let fault = Fault {
            device: Some(DeviceId(0x1234)),
            pasid: Some(0xf_ffff),
            address: Some(0xabcd_e000),
            access: Some(Access::Read),
            class: Class::Translation,
        };
        assert_eq!(Fault::from(record), fault);
        assert_eq!(Record::decode(0xabcd_e123, 6 << 32), None);
        for (word, bit) in [
            (RecordHigh::new().with_type_2(true), 28),
            (RecordHigh::new().with_privileged(true), 29),
            (RecordHigh::new().with_execute(true), 30),
        ] {
            assert_eq!(word.into_bits(), 1 << bit, "{word:?}");
        }
    }

    /// Appendix A has these codes, and no others.
    #[test]
    fn every_defined_reason_is_decoded_and_others_are_kept() {
        let defined = [0x01..=0x0d, 0x20..=0x28, 0x30..=0x32, 0x38..=0x3a, 0x40..=0x48];
        let more = [0x50..=0x52, 0x58..=0x5d, 0x70..=0x7c, 0x80..=0x87, 0x90..=0x90];
        for code in 0..=u8::MAX {
            let known = defined.iter().chain(&more).any(|codes| codes.contains(&code));
            match Reason::of(code) {
                Reason::Unknown(kept) => assert!(!known && kept == code, "{code:#x}"),
                reason => assert!(known && reason.class() != Class::Other, "{code:#x}"),
            }
        }
        let classes = [(2, Class::Configuration), (5, Class::Translation), (8, Class::Structure)];
        for (code, class) in classes.into_iter().chain([(0x22, Class::Interrupt)]) {
            assert_eq!(Reason::of(code).class(), class);
        }
    }

    /// T2 and T1: a write, a read, a request for pages, an atomic operation.
    #[test]
    fn the_type_of_a_request_is_two_bits() {
        let access = |type_bits: u64| {
            Fault::from(Record::decode(0, 1 << 63 | 5 << 32 | type_bits).unwrap()).access
        };
        assert_eq!(access(0), Some(Access::Write));
        assert_eq!(access(1 << 62), Some(Access::Read));
        assert_eq!(access(1 << 28), None);
        assert_eq!(access(1 << 62 | 1 << 28), Some(Access::Write));
    }
}
