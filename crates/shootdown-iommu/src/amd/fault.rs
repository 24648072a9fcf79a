//! What AMD-Vi logs (AMD-Vi 2.5, "Event Logging").

use bitfield_struct::bitfield;
use shootdown_dma::DeviceId;

use crate::fault::{Access, Class, Fault};

/// Bytes of an entry of the log.
pub const EVENT: usize = 16;

/// The first word of an event; the second is an address.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct EventLow {
    /// DeviceID.
    pub device: u16,
    /// PASID, bits 19 to 16.
    #[bits(4)]
    pub pasid_high: u32,
    #[bits(12)]
    __: u16,
    /// DomainID, or PASID, bits 15 to 0.
    pub domain: u16,
    /// GN: the address is a guest's, and there is a PASID.
    pub guest: bool,
    /// NX: execution was asked for.
    pub execute: bool,
    /// US: by a user.
    pub user: bool,
    /// I: it was an interrupt.
    pub interrupt: bool,
    /// PR: there was a translation.
    pub present: bool,
    /// RW: it was a write.
    pub write: bool,
    /// PE: the right was missing.
    pub permission: bool,
    /// RZ: reserved bits, or a level that is none.
    pub reserved: bool,
    /// TR: the device has asked for a translation.
    pub translation_request: bool,
    #[bits(3)]
    __: u8,
    /// EventCode.
    #[bits(4)]
    pub code: u8,
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// 1: the device's entry says what is reserved.
    IllegalDeviceEntry,
    /// 2: there is no translation, or none with this right.
    PageFault,
    /// 3: the device's entry could not be read.
    DeviceEntryUnreadable,
    /// 4: a table could not be read.
    TableUnreadable,
    /// 5: a command is none. The unit reads no more until it is told to.
    IllegalCommand,
    /// 6: a command could not be read. The same.
    CommandUnreadable,
    /// 7: a device has not acknowledged an invalidation.
    InvalidationTimeout,
    /// 8: a request of a kind that the device's entry does not allow.
    InvalidRequest,
    /// 9: a request for pages that is none.
    InvalidPageRequest,
    /// A: a performance counter has come around.
    CounterZero,
    /// B: a guest's event could not be delivered.
    GuestEvent,
    /// C: a virtual IOMMU has failed.
    VirtualUnit,
    /// D: memory is another's (SEV-SNP).
    OwnerFault,
    /// E: the table of owners could not be read.
    OwnerTableUnreadable,
    /// Another code.
    Unknown(u8),
}

impl Kind {
    /// What a code says.
    #[must_use]
    pub const fn of(code: u8) -> Self {
        match code {
            1 => Self::IllegalDeviceEntry,
            2 => Self::PageFault,
            3 => Self::DeviceEntryUnreadable,
            4 => Self::TableUnreadable,
            5 => Self::IllegalCommand,
            6 => Self::CommandUnreadable,
            7 => Self::InvalidationTimeout,
            8 => Self::InvalidRequest,
            9 => Self::InvalidPageRequest,
            0xa => Self::CounterZero,
            0xb => Self::GuestEvent,
            0xc => Self::VirtualUnit,
            0xd => Self::OwnerFault,
            0xe => Self::OwnerTableUnreadable,
            other => Self::Unknown(other),
        }
    }

    const fn class(self, flags: EventLow) -> Class {
        match self {
            _ if flags.interrupt() && matches!(self, Self::PageFault | Self::InvalidRequest) => {
                Class::Interrupt
            }
            Self::PageFault | Self::OwnerFault => Class::Translation,
            Self::IllegalDeviceEntry | Self::InvalidRequest | Self::InvalidPageRequest => {
                Class::Configuration
            }
            Self::DeviceEntryUnreadable | Self::TableUnreadable | Self::OwnerTableUnreadable => {
                Class::Structure
            }
            Self::IllegalCommand | Self::CommandUnreadable | Self::InvalidationTimeout => {
                Class::Command
            }
            Self::CounterZero | Self::GuestEvent | Self::VirtualUnit | Self::Unknown(_) => {
                Class::Other
            }
        }
    }

    /// Is the device's id in it?
    const fn names_device(self) -> bool {
        !matches!(
            self,
            Self::IllegalCommand
                | Self::CommandUnreadable
                | Self::CounterZero
                | Self::VirtualUnit
                | Self::Unknown(_)
        )
    }

    /// Whether it is about an access of a device to memory.
    const fn is_access(self) -> bool {
        self.names_device() && !matches!(self, Self::InvalidationTimeout | Self::GuestEvent)
    }
}

/// What was logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// An event.
    Event {
        /// What has happened.
        kind: Kind,
        /// All of its first word.
        low: EventLow,
        /// Its second word: an address of the device's, or of a command.
        address: u64,
    },
    /// The log was full, and has begun again.
    Lost,
}

impl Record {
    /// The event in these two words.
    #[must_use]
    pub const fn decode(low: u64, high: u64) -> Self {
        let low = EventLow::from_bits(low);
        Self::Event { kind: Kind::of(low.code()), low, address: high }
    }
}

impl From<Record> for Fault {
    fn from(record: Record) -> Self {
        match record {
            Record::Event { kind, low, address } => {
                let write = if low.write() { Access::Write } else { Access::Read };
                Self {
                    device: kind.names_device().then_some(DeviceId(low.device().into())),
                    pasid: (kind.is_access() && low.guest())
                        .then_some(low.pasid_high() << 16 | u32::from(low.domain())),
                    address: kind.is_access().then_some(address),
                    access: kind.is_access().then_some(write),
                    class: kind.class(low),
                }
            }
            Record::Lost => {
                Self { device: None, pasid: None, address: None, access: None, class: Class::Lost }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2.5.3 IO_PAGE_FAULT: a write by 00:05.0 of domain 0x1234.
    #[test]
    fn a_page_fault_is_that_of_2_5() {
        let record = Record::decode(0x2020_1234_0000_0028, 0xdead_b000);
        let Record::Event { kind, low, address } = record else { panic!("{record:?}") };
        assert_eq!((kind, low.domain(), address), (Kind::PageFault, 0x1234, 0xdead_b000));
        let fault = Fault {
            device: Some(DeviceId(0x28)),
            pasid: None,
            address: Some(0xdead_b000),
            access: Some(Access::Write),
            class: Class::Translation,
        };
        assert_eq!(Fault::from(record), fault);
        let guest = Fault::from(Record::decode(0x2001_1234_000f_0028, 0));
        assert_eq!((guest.pasid, guest.access), (Some(0xf_1234), Some(Access::Read)));
        let interrupt = Fault::from(Record::decode(0x2008_0000_0000_0028, 0));
        assert_eq!(interrupt.class, Class::Interrupt);
    }

    #[test]
    fn flags_are_those_of_2_5() {
        for (word, bit) in [
            (EventLow::new().with_guest(true), 48),
            (EventLow::new().with_execute(true), 49),
            (EventLow::new().with_user(true), 50),
            (EventLow::new().with_interrupt(true), 51),
            (EventLow::new().with_present(true), 52),
            (EventLow::new().with_write(true), 53),
            (EventLow::new().with_permission(true), 54),
            (EventLow::new().with_reserved(true), 55),
            (EventLow::new().with_translation_request(true), 56),
        ] {
            assert_eq!(word.into_bits(), 1 << bit, "{word:?}");
        }
    }

    /// Commands are no device's; a timeout is one's, and no access.
    #[test]
    fn what_is_no_access_has_none() {
        let illegal = Fault::from(Record::decode(5 << 60, 0x1000));
        assert_eq!((illegal.device, illegal.address), (None, None));
        assert_eq!((illegal.access, illegal.class), (None, Class::Command));
        let silent = Fault::from(Record::decode(7 << 60 | 0x1234, 0x1000));
        assert_eq!((silent.device, silent.access), (Some(DeviceId(0x1234)), None));
        assert_eq!(silent.class, Class::Command);
        for code in 0..16 {
            let known = (1..=0xe).contains(&code);
            assert_eq!(Kind::of(code) != Kind::Unknown(code), known, "{code}");
        }
    }
}
