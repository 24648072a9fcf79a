//! What an SMMUv3 records (IHI 0070, 7.3: "Event records").

use bitfield_struct::bitfield;
use shootdown_dma::DeviceId;

use crate::fault::{Access, Class, Fault};

/// Bytes of a record.
pub const EVENT: usize = 32;

/// A record's first word.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Event0 {
    /// The event's number.
    pub code: u8,
    #[bits(3)]
    __: u8,
    /// SSV: there is a substream.
    pub has_substream: bool,
    /// SubstreamID.
    #[bits(20)]
    pub substream: u32,
    /// StreamID.
    pub stream: u32,
}

/// What was being accessed when it failed (CLASS).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EventClass {
    /// A context descriptor.
    Context = 0,
    /// A table.
    Walk = 1,
    /// The access's own address.
    Input = 2,
    /// Reserved.
    Reserved = 3,
}

impl EventClass {
    const fn into_bits(self) -> u8 {
        self as u8
    }

    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Context,
            1 => Self::Walk,
            2 => Self::Input,
            _ => Self::Reserved,
        }
    }
}

/// The second word of a record about an access. Those about streams' entries have only zeros, or
/// what the unit likes, there.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Event1 {
    /// STAG: by which a stalled access is resumed.
    pub stall_tag: u16,
    #[bits(15)]
    __: u16,
    /// Stall: the access waits.
    pub stalled: bool,
    __: bool,
    /// PnU: it was privileged.
    pub privileged: bool,
    /// InD: it was a fetch of instructions.
    pub instruction: bool,
    /// RnW: it was a read.
    pub read: bool,
    #[bits(2)]
    __: u8,
    /// NSIPA.
    pub non_secure_ipa: bool,
    /// S2: the second stage has refused it.
    pub stage_2: bool,
    /// CLASS.
    #[bits(2)]
    pub class: EventClass,
    #[bits(22)]
    __: u32,
}

/// What has happened (7.3, in the manual's names).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// 01, F_UUT: a transaction that is not supported.
    UnsupportedTransaction,
    /// 02, C_BAD_STREAMID: the table has no such stream.
    BadStreamId,
    /// 03, F_STE_FETCH: the stream's entry could not be read.
    StreamEntryUnreadable,
    /// 04, C_BAD_STE: it is not valid.
    BadStreamEntry,
    /// 05, F_BAD_ATS_TREQ: a request for translation that is not allowed.
    BadTranslationRequest,
    /// 06, F_STREAM_DISABLED: accesses without a substream are refused.
    StreamDisabled,
    /// 07, F_TRANSL_FORBIDDEN: a translated access that is not allowed.
    TranslatedForbidden,
    /// 08, C_BAD_SUBSTREAMID: there is no such substream.
    BadSubstreamId,
    /// 09, F_CD_FETCH: the context descriptor could not be read.
    ContextUnreadable,
    /// 0A, C_BAD_CD: it is not valid.
    BadContext,
    /// 0B, F_WALK_EABT: a table could not be read.
    TableUnreadable,
    /// 10, F_TRANSLATION: there is no translation.
    Translation,
    /// 11, F_ADDR_SIZE: an address is too large.
    AddressSize,
    /// 12, F_ACCESS: the access flag is not set.
    AccessFlag,
    /// 13, F_PERMISSION: the right is missing.
    Permission,
    /// 20, F_TLB_CONFLICT: two translations match.
    TlbConflict,
    /// 21, F_CFG_CONFLICT: two entries do.
    ConfigurationConflict,
    /// 24, E_PAGE_REQUEST: a hint that a page is wanted.
    PageRequest,
    /// 25, F_VMS_FETCH: the structure of a virtual machine could not be read.
    VirtualMachineUnreadable,
    /// Another number. E0 to EF are the implementation's.
    Unknown(u8),
}

impl Kind {
    /// What a number says.
    #[must_use]
    pub const fn of(code: u8) -> Self {
        match code {
            0x01 => Self::UnsupportedTransaction,
            0x02 => Self::BadStreamId,
            0x03 => Self::StreamEntryUnreadable,
            0x04 => Self::BadStreamEntry,
            0x05 => Self::BadTranslationRequest,
            0x06 => Self::StreamDisabled,
            0x07 => Self::TranslatedForbidden,
            0x08 => Self::BadSubstreamId,
            0x09 => Self::ContextUnreadable,
            0x0a => Self::BadContext,
            0x0b => Self::TableUnreadable,
            0x10 => Self::Translation,
            0x11 => Self::AddressSize,
            0x12 => Self::AccessFlag,
            0x13 => Self::Permission,
            0x20 => Self::TlbConflict,
            0x21 => Self::ConfigurationConflict,
            0x24 => Self::PageRequest,
            0x25 => Self::VirtualMachineUnreadable,
            other => Self::Unknown(other),
        }
    }

    /// What kind of mistake it is.
    #[must_use]
    pub const fn class(self) -> Class {
        match self {
            Self::Translation | Self::AddressSize | Self::AccessFlag | Self::Permission => {
                Class::Translation
            }
            Self::BadStreamId
            | Self::BadStreamEntry
            | Self::BadTranslationRequest
            | Self::StreamDisabled
            | Self::TranslatedForbidden
            | Self::BadSubstreamId
            | Self::BadContext => Class::Configuration,
            Self::StreamEntryUnreadable
            | Self::ContextUnreadable
            | Self::TableUnreadable
            | Self::VirtualMachineUnreadable
            | Self::TlbConflict
            | Self::ConfigurationConflict => Class::Structure,
            Self::UnsupportedTransaction | Self::PageRequest | Self::Unknown(_) => Class::Other,
        }
    }

    /// Is the address of the access in the third word?
    const fn has_address(self) -> bool {
        matches!(
            self,
            Self::UnsupportedTransaction
                | Self::BadTranslationRequest
                | Self::TranslatedForbidden
                | Self::TableUnreadable
                | Self::Translation
                | Self::AddressSize
                | Self::AccessFlag
                | Self::Permission
                | Self::TlbConflict
                | Self::PageRequest
        )
    }

    /// Does the second word say whether it was a read?
    const fn has_access(self) -> bool {
        matches!(
            self,
            Self::UnsupportedTransaction
                | Self::TranslatedForbidden
                | Self::TableUnreadable
                | Self::Translation
                | Self::AddressSize
                | Self::AccessFlag
                | Self::Permission
                | Self::TlbConflict
        )
    }
}

/// What was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// An event.
    Event {
        /// What has happened.
        kind: Kind,
        /// Whose it was.
        who: Event0,
        /// How.
        how: Event1,
        /// The third word: the address of the access, or (F_STE_FETCH, F_CD_FETCH) of what could
        /// not be read.
        address: u64,
        /// The fourth word: the address at the second stage, or (F_WALK_EABT) of what could not be
        /// read.
        second: u64,
    },
    /// The queue was full, and events were lost.
    Lost,
}

impl Record {
    /// The record in these four words.
    #[must_use]
    pub const fn decode(words: [u64; 4]) -> Self {
        let who = Event0::from_bits(words[0]);
        let how = Event1::from_bits(words[1]);
        Self::Event { kind: Kind::of(who.code()), who, how, address: words[2], second: words[3] }
    }
}

impl From<Record> for Fault {
    fn from(record: Record) -> Self {
        match record {
            Record::Event { kind, who, how, address, .. } => Self {
                device: Some(DeviceId(who.stream())),
                pasid: who.has_substream().then_some(who.substream()),
                address: kind.has_address().then_some(address),
                access: kind.has_access().then_some(if how.read() {
                    Access::Read
                } else {
                    Access::Write
                }),
                class: kind.class(),
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

    /// 7.3: number 7:0, SSV 11, SubstreamID 31:12, StreamID 63:32; STAG 79:64, Stall 95, PnU 97,
    /// InD 98, RnW 99, NSIPA 102, S2 103, CLASS 105:104; the address 191:128.
    #[test]
    fn fields_are_those_of_7_3() {
        let words = [0x13 | 1 << 11 | 0xf_fffe << 12 | 8 << 32, 1 << 35, 0xdead_b000, 0];
        let fault = Fault {
            device: Some(DeviceId(8)),
            pasid: Some(0xf_fffe),
            address: Some(0xdead_b000),
            access: Some(Access::Read),
            class: Class::Translation,
        };
        assert_eq!(Fault::from(Record::decode(words)), fault);
        for (word, bit) in [
            (Event1::new().with_stalled(true), 95),
            (Event1::new().with_privileged(true), 97),
            (Event1::new().with_instruction(true), 98),
            (Event1::new().with_read(true), 99),
            (Event1::new().with_non_secure_ipa(true), 102),
            (Event1::new().with_stage_2(true), 103),
            (Event1::new().with_class(EventClass::Walk), 104),
        ] {
            assert_eq!(word.into_bits(), 1 << (bit - 64), "{word:?}");
        }
        assert_eq!(Event1::from(2 << 40).class(), EventClass::Input);
    }

    #[test]
    fn every_event_of_7_3_is_decoded_and_others_are_kept() {
        let defined = [0x01..=0x0b, 0x10..=0x13, 0x20..=0x21, 0x24..=0x25];
        for code in 0..=u8::MAX {
            let known = defined.iter().any(|codes| codes.contains(&code));
            assert_eq!(Kind::of(code) != Kind::Unknown(code), known, "{code:#x}");
        }
        // What has no address, and is no access, says neither.
        let bad = Fault::from(Record::decode([4 | 8 << 32, 0, 0x1000, 0]));
        assert_eq!((bad.address, bad.access, bad.class), (None, None, Class::Configuration));
    }
}
