//! AMD-Vi's registers (AMD-Vi, chapter 3: "Registers", "IOMMU MMIO Registers").

use bitfield_struct::bitfield;

use crate::bus::registers;

/// The device table (MMIO offset 0000h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct DeviceTable {
    /// Size: pages of it, less one.
    #[bits(9)]
    pub size: u64,
    #[bits(3)]
    __: u8,
    /// The number of its first page.
    #[bits(40)]
    pub page: u64,
    #[bits(12)]
    __: u16,
}

/// The command buffer (0008h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct CommandBuffer {
    #[bits(12)]
    __: u16,
    /// The number of its first page.
    #[bits(40)]
    pub page: u64,
    #[bits(4)]
    __: u8,
    /// ComLen: it has 2^n slots; 8 to 15.
    #[bits(4)]
    pub length: u32,
    #[bits(4)]
    __: u8,
}

/// The event log (0010h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct EventLog {
    #[bits(12)]
    __: u16,
    /// The number of its first page.
    #[bits(40)]
    pub page: u64,
    #[bits(4)]
    __: u8,
    /// EventLen: it has 2^n entries; 8 to 15.
    #[bits(4)]
    pub length: u32,
    #[bits(4)]
    __: u8,
}

/// What the unit is to do (0018h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// IommuEn: accesses are translated.
    pub enabled: bool,
    /// HtTunEn: HyperTransport tunnel.
    pub tunnel: bool,
    /// EventLogEn.
    pub events: bool,
    /// EventIntEn: events interrupt.
    pub event_interrupts: bool,
    /// ComWaitIntEn: so do completion waits that ask for it.
    pub wait_interrupts: bool,
    /// InvTimeOut: how long a device has to acknowledge: 0 for ever, 1 to 6: 1 ms to 100 s.
    #[bits(3)]
    pub invalidation_timeout: u8,
    /// PassPW.
    pub pass_posted: bool,
    /// ResPassPW.
    pub response_pass_posted: bool,
    /// Coherent: device table entries are read from caches.
    pub coherent: bool,
    /// Isoc.
    pub isochronous: bool,
    /// CmdBufEn: the command buffer is read.
    pub commands: bool,
    /// PPRLogEn: requests for pages are logged.
    pub page_requests: bool,
    /// PprIntEn: and interrupt.
    pub page_request_interrupts: bool,
    /// PPREn: and are answered.
    pub page_request_answers: bool,
    /// GTEn: guests' tables.
    pub guest_translation: bool,
    #[bits(47)]
    __: u64,
}

/// EFR: what the unit can do (0030h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ExtendedFeatures {
    /// PreFSup: it has a command to prefetch.
    pub prefetch: bool,
    /// PPRSup: devices may ask for pages.
    pub page_requests: bool,
    /// XTSup: x2APIC.
    pub x2apic: bool,
    /// NXSup.
    pub no_execute: bool,
    /// GTSup: guests' tables.
    pub guest_translation: bool,
    __: bool,
    /// IASup: it has a command to invalidate everything.
    pub invalidate_all: bool,
    /// GASup: guests' APICs.
    pub guest_apic: bool,
    /// HESup: hardware error registers.
    pub hardware_errors: bool,
    /// PCSup: performance counters.
    pub performance_counters: bool,
    /// HATS: host tables have 4 levels, and n more.
    #[bits(2)]
    pub host_levels: u32,
    /// GATS: guest tables have 4 levels, and n more.
    #[bits(2)]
    pub guest_levels: u32,
    #[bits(50)]
    __: u64,
}

/// Where the unit reads commands (2000h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct CommandHead {
    #[bits(4)]
    __: u8,
    /// The slot.
    #[bits(15)]
    pub slot: u64,
    #[bits(45)]
    __: u64,
}

/// Where software writes commands (2008h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct CommandTail {
    #[bits(4)]
    __: u8,
    /// The slot.
    #[bits(15)]
    pub slot: u64,
    #[bits(45)]
    __: u64,
}

/// Where software reads events (2010h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct EventHead {
    #[bits(4)]
    __: u8,
    /// The entry.
    #[bits(15)]
    pub entry: u64,
    #[bits(45)]
    __: u64,
}

/// Where the unit writes events (2018h).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct EventTail {
    #[bits(4)]
    __: u8,
    /// The entry.
    #[bits(15)]
    pub entry: u64,
    #[bits(45)]
    __: u64,
}

/// What the unit does (2020h). Interrupts and overflows are cleared by writing 1.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// EventOverflow: an event was lost, and none is logged any more.
    pub event_overflow: bool,
    /// EventLogInt: there is one.
    pub event_interrupt: bool,
    /// ComWaitInt.
    pub wait_interrupt: bool,
    /// EventLogRun: events are logged.
    pub events_run: bool,
    /// CmdBufRun: commands are read.
    pub commands_run: bool,
    /// PprOverflow.
    pub page_request_overflow: bool,
    /// PprInt.
    pub page_request_interrupt: bool,
    /// PprLogRun.
    pub page_requests_run: bool,
    #[bits(56)]
    __: u64,
}

registers! {
    DeviceTable: u64 at 0x0000;
    CommandBuffer: u64 at 0x0008;
    EventLog: u64 at 0x0010;
    Control: u64 at 0x0018;
    ExtendedFeatures: u64 at 0x0030;
    CommandHead: u64 at 0x2000;
    CommandTail: u64 at 0x2008;
    EventHead: u64 at 0x2010;
    EventTail: u64 at 0x2018;
    Status: u64 at 0x2020;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_chapter_3_has_them() {
        for (register, bit) in [
            (Control::new().with_enabled(true), 0),
            (Control::new().with_tunnel(true), 1),
            (Control::new().with_events(true), 2),
            (Control::new().with_event_interrupts(true), 3),
            (Control::new().with_wait_interrupts(true), 4),
            (Control::new().with_invalidation_timeout(1), 5),
            (Control::new().with_pass_posted(true), 8),
            (Control::new().with_response_pass_posted(true), 9),
            (Control::new().with_coherent(true), 10),
            (Control::new().with_isochronous(true), 11),
            (Control::new().with_commands(true), 12),
            (Control::new().with_page_requests(true), 13),
            (Control::new().with_guest_translation(true), 16),
        ] {
            assert_eq!(register.into_bits(), 1 << bit, "{register:?}");
        }
        for (register, bit) in [
            (Status::new().with_event_overflow(true), 0),
            (Status::new().with_event_interrupt(true), 1),
            (Status::new().with_events_run(true), 3),
            (Status::new().with_commands_run(true), 4),
            (Status::new().with_page_requests_run(true), 7),
        ] {
            assert_eq!(register.into_bits(), 1 << bit, "{register:?}");
        }
        let table = DeviceTable::new().with_page(0x1234).with_size(511);
        assert_eq!(table.into_bits(), 0x123_41ff);
        let ring = CommandBuffer::new().with_page(5).with_length(8);
        assert_eq!(ring.into_bits(), 0x0800_0000_0000_5000);
        assert_eq!(EventLog::from(ring.into_bits()).length(), 8);
        assert_eq!(CommandTail::new().with_slot(0x7fff).into_bits(), 0x7_fff0);
        assert_eq!(EventTail::from(0x7_fff0).entry(), 0x7fff);
    }

    /// EFR as QEMU 7.2 has it.
    #[test]
    fn features_of_qemu() {
        let features = ExtendedFeatures::from(0x29d3);
        assert!(features.invalidate_all() && features.prefetch() && features.page_requests());
        assert!(features.guest_translation() && features.hardware_errors());
        assert_eq!((features.host_levels(), features.guest_levels()), (2, 2));
    }
}
