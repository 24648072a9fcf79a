//! An SMMUv3's registers (IHI 0070, chapter 6: "Memory map and registers"), those of the Non-secure
//! programming interface.

use bitfield_struct::bitfield;

use crate::bus::registers;

/// IDR0: what the unit can do.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Idr0 {
    /// S2P: a second stage.
    pub stage_2: bool,
    /// S1P: a first stage.
    pub stage_1: bool,
    /// TTF: bit 1: tables of AArch64.
    #[bits(2)]
    pub table_formats: u8,
    /// COHACC: it reads the CPUs' caches.
    pub coherent: bool,
    /// BTM: it takes part in the CPUs' broadcast invalidations.
    pub broadcast: bool,
    /// HTTU: flags of accessed (1), and dirty (2), are written.
    #[bits(2)]
    pub flags: u8,
    /// DORMHINT.
    pub dormant_hint: bool,
    /// HYP: entries of EL2.
    pub hypervisor: bool,
    /// ATS: devices may have caches.
    pub device_caches: bool,
    /// NS1ATS.
    pub no_stage_1_split: bool,
    /// ASID16.
    pub asid_16: bool,
    /// MSI: interrupts, and SYNCs, may be stores.
    pub messages: bool,
    /// SEV: a SYNC may send an event.
    pub events: bool,
    /// ATOS: addresses may be translated by registers.
    pub address_translation: bool,
    /// PRI: devices may ask for pages.
    pub page_requests: bool,
    /// VMW.
    pub vmid_wildcards: bool,
    /// VMID16.
    pub vmid_16: bool,
    /// CD2L: tables of context descriptors may have two levels.
    pub two_level_contexts: bool,
    /// VATOS.
    pub stage_2_address_translation: bool,
    /// TTENDIAN.
    #[bits(2)]
    pub endianness: u8,
    __: bool,
    /// STALL_MODEL: 0 both, 1 no stall, 2 stall alone.
    #[bits(2)]
    pub stall: u8,
    /// TERM_MODEL.
    pub terminate: bool,
    /// ST_LEVEL: 1: the stream table may have two levels.
    #[bits(2)]
    pub stream_levels: u8,
    #[bits(3)]
    __: u8,
}

/// IDR1: how large things are.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Idr1 {
    /// SIDSIZE: bits of stream ids.
    #[bits(6)]
    pub stream_bits: u32,
    /// SSIDSIZE: bits of substream ids.
    #[bits(5)]
    pub substream_bits: u32,
    /// PRIQS.
    #[bits(5)]
    pub page_request_queue: u32,
    /// EVENTQS: the logarithm of the longest event queue.
    #[bits(5)]
    pub event_queue: u32,
    /// CMDQS: and of the longest command queue.
    #[bits(5)]
    pub command_queue: u32,
    /// ATTR_PERMS_OVR.
    pub permissions_override: bool,
    /// ATTR_TYPES_OVR.
    pub types_override: bool,
    /// REL: places are relative.
    pub relative: bool,
    /// QUEUES_PRESET: queues have a fixed place.
    pub queues_preset: bool,
    /// TABLES_PRESET: so has the stream table.
    pub tables_preset: bool,
    /// ECMDQ.
    pub enhanced_queues: bool,
}

/// IDR3: ranges, among others.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Idr3 {
    #[bits(2)]
    __: u8,
    /// HAD: hierarchical attributes may be off.
    pub no_hierarchy: bool,
    /// PBHA.
    pub page_attributes: bool,
    /// XNX.
    pub execute_never: bool,
    /// PPS.
    pub page_request_pasids: bool,
    __: bool,
    /// MPAM.
    pub partitions: bool,
    /// FWB.
    pub forced_write_back: bool,
    /// STT: small tables.
    pub small_tables: bool,
    /// RIL: ranges can be invalidated.
    pub ranges: bool,
    /// BBML: 0 to 2: how a block may be replaced by pages.
    #[bits(2)]
    pub break_before_make: u8,
    #[bits(19)]
    __: u32,
}

/// IDR5: granules and addresses.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Idr5 {
    /// OAS: output addresses have 32, 36, 40, 42, 44, 48 or 52 bits (0 to 6).
    #[bits(3)]
    pub output_size: u64,
    __: bool,
    /// GRAN4K.
    pub granule_4k: bool,
    /// GRAN16K.
    pub granule_16k: bool,
    /// GRAN64K.
    pub granule_64k: bool,
    #[bits(3)]
    __: u8,
    /// VAX: 1: addresses of 52 bits.
    #[bits(2)]
    pub virtual_extension: u8,
    #[bits(4)]
    __: u8,
    /// STALL_MAX.
    pub stalls: u16,
}

/// CR0: what is on.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cr0 {
    /// SMMUEN: accesses are translated.
    pub translation: bool,
    /// PRIQEN.
    pub page_requests: bool,
    /// EVENTQEN.
    pub events: bool,
    /// CMDQEN.
    pub commands: bool,
    /// ATSCHK: what devices have translated is checked.
    pub check_translated: bool,
    __: bool,
    /// VMW.
    #[bits(3)]
    pub vmid_wildcard: u8,
    #[bits(23)]
    __: u32,
}

/// CR0ACK: what is on, by now. The same fields.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cr0Ack {
    /// As in [`Cr0`].
    pub value: u32,
}

/// CR1: how tables and queues are accessed.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cr1 {
    /// QUEUE_IC: 1 write-back.
    #[bits(2)]
    pub queue_inner: u8,
    /// QUEUE_OC.
    #[bits(2)]
    pub queue_outer: u8,
    /// QUEUE_SH: 3 inner shareable.
    #[bits(2)]
    pub queue_share: u8,
    /// TABLE_IC.
    #[bits(2)]
    pub table_inner: u8,
    /// TABLE_OC.
    #[bits(2)]
    pub table_outer: u8,
    /// TABLE_SH.
    #[bits(2)]
    pub table_share: u8,
    #[bits(20)]
    __: u32,
}

impl Cr1 {
    /// All of them write-back and inner shareable.
    pub const CACHEABLE: Self = Self::new()
        .with_queue_inner(1)
        .with_queue_outer(1)
        .with_queue_share(3)
        .with_table_inner(1)
        .with_table_outer(1)
        .with_table_share(3);
}

/// CR2: what else.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cr2 {
    /// E2H.
    pub host_el2: bool,
    /// RECINVSID: streams beyond the table are recorded.
    pub record_bad_streams: bool,
    /// PTM: it ignores the CPUs' broadcast invalidations.
    pub private_maintenance: bool,
    #[bits(29)]
    __: u32,
}

/// GBPA: what becomes of accesses while the unit is off.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Gbpa {
    #[bits(20)]
    __: u32,
    /// ABORT: they are refused.
    pub abort: bool,
    #[bits(10)]
    __: u16,
    /// UPDATE: take the rest; still 1 while that is being done.
    pub update: bool,
}

/// IRQ_CTRL: what interrupts.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct IrqCtrl {
    /// GERROR_IRQEN: errors.
    pub errors: bool,
    /// PRIQ_IRQEN.
    pub page_requests: bool,
    /// EVENTQ_IRQEN: events.
    pub events: bool,
    #[bits(29)]
    __: u32,
}

/// IRQ_CTRLACK: what interrupts by now. The same fields.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct IrqCtrlAck {
    /// As in [`IrqCtrl`].
    pub value: u32,
}

/// GERROR, GERRORN: errors, and those that were acknowledged. One is there while its bits differ.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Gerror {
    /// CMDQ_ERR: the command at the head is refused. The library's queue handles it.
    pub command: bool,
    __: bool,
    /// EVENTQ_ABT_ERR: an event could not be written, and is lost.
    pub event_abort: bool,
    /// PRIQ_ABT_ERR.
    pub page_request_abort: bool,
    /// MSI_CMDQ_ABT_ERR: the store of a SYNC was refused.
    pub command_message_abort: bool,
    /// MSI_EVENTQ_ABT_ERR: that of an interrupt about events.
    pub event_message_abort: bool,
    /// MSI_PRIQ_ABT_ERR.
    pub page_request_message_abort: bool,
    /// MSI_GERROR_ABT_ERR: that of an interrupt about errors.
    pub error_message_abort: bool,
    /// SFM_ERR: the unit is in service failure mode: it translates nothing any more, and stops.
    pub service_failure: bool,
    #[bits(23)]
    __: u32,
}

/// GERRORN: see [`Gerror`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Gerrorn {
    /// As in [`Gerror`].
    pub value: u32,
}

/// STRTAB_BASE: the stream table.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct StreamTable {
    #[bits(6)]
    __: u8,
    /// Its address, in 64 bytes.
    #[bits(46)]
    pub address: u64,
    #[bits(10)]
    __: u16,
    /// RA: the allocation hint.
    pub read_allocate: bool,
    __: bool,
}

/// STRTAB_BASE_CFG: its shape.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct StreamTableShape {
    /// LOG2SIZE: bits of the ids that it is for.
    #[bits(6)]
    pub bits: u32,
    /// SPLIT: bits that the second level resolves: 6, 8 or 10.
    #[bits(5)]
    pub split: u32,
    #[bits(5)]
    __: u8,
    /// FMT: 0 one level, 1 two.
    #[bits(2)]
    pub two_level: u8,
    #[bits(14)]
    __: u16,
}

/// CMDQ_BASE: the command queue.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct CommandQueue {
    /// LOG2SIZE.
    #[bits(5)]
    pub bits: u32,
    /// Its address, in 32 bytes.
    #[bits(47)]
    pub address: u64,
    #[bits(10)]
    __: u16,
    /// RA.
    pub read_allocate: bool,
    __: bool,
}

/// CMDQ_PROD: where software writes.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CommandProd {
    /// Index, and round.
    #[bits(20)]
    pub position: u32,
    #[bits(12)]
    __: u16,
}

/// CMDQ_CONS: where the unit reads, and why it does not.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct CommandCons {
    /// Index, and round.
    #[bits(20)]
    pub position: u32,
    #[bits(4)]
    __: u8,
    /// ERR: 0 none, 1 illegal, 2 not read, 3 a device has not acknowledged.
    #[bits(7)]
    pub error: u8,
    __: bool,
}

/// EVENTQ_BASE: the event queue.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct EventQueue {
    /// LOG2SIZE.
    #[bits(5)]
    pub bits: u32,
    /// Its address, in 32 bytes.
    #[bits(47)]
    pub address: u64,
    #[bits(10)]
    __: u16,
    /// WA.
    pub write_allocate: bool,
    __: bool,
}

/// EVENTQ_PROD, on page 1: where the unit writes.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct EventProd {
    /// Index, and round.
    #[bits(20)]
    pub position: u32,
    #[bits(11)]
    __: u16,
    /// OVFLG: differs from OVACKFLG when events were lost.
    pub overflow: bool,
}

/// EVENTQ_CONS, on page 1: where software reads.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct EventCons {
    /// Index, and round.
    #[bits(20)]
    pub position: u32,
    #[bits(11)]
    __: u16,
    /// OVACKFLG: that events were lost is known.
    pub overflow: bool,
}

/// GERROR_IRQ_CFG0 and EVENTQ_IRQ_CFG0: where an interrupt is stored; 0: it is a wire.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct MessageAddress {
    #[bits(2)]
    __: u8,
    /// The address, in 4 bytes.
    #[bits(50)]
    pub address: u64,
    #[bits(12)]
    __: u16,
}

registers! {
    Idr0: u32 at 0x00;
    Idr1: u32 at 0x04;
    Idr3: u32 at 0x0c;
    Idr5: u32 at 0x14;
    Cr0: u32 at 0x20;
    Cr0Ack: u32 at 0x24;
    Cr1: u32 at 0x28;
    Cr2: u32 at 0x2c;
    Gbpa: u32 at 0x44;
    IrqCtrl: u32 at 0x50;
    IrqCtrlAck: u32 at 0x54;
    Gerror: u32 at 0x60;
    Gerrorn: u32 at 0x64;
    StreamTable: u64 at 0x80;
    StreamTableShape: u32 at 0x88;
    CommandQueue: u64 at 0x90;
    CommandProd: u32 at 0x98;
    CommandCons: u32 at 0x9c;
    EventQueue: u64 at 0xa0;
    EventProd: u32 at 0x1_00a8;
    EventCons: u32 at 0x1_00ac;
}

/// GERROR_IRQ_CFG0, 1 and 2: address, data, attributes.
pub const ERROR_MESSAGE: [usize; 3] = [0x68, 0x70, 0x74];
/// EVENTQ_IRQ_CFG0, 1 and 2.
pub const EVENT_MESSAGE: [usize; 3] = [0xb0, 0xb8, 0xbc];
/// Attributes of a message: a device's memory, nGnRE.
pub const MESSAGE_ATTRIBUTES: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// IDR0, 1, 3 and 5 as QEMU 7.2 has them.
    #[test]
    fn identification_of_qemu() {
        let idr0 = Idr0::from(0x0d40_101a);
        assert!(idr0.stage_1() && !idr0.stage_2() && idr0.coherent() && idr0.asid_16());
        assert!(!idr0.messages() && !idr0.device_caches() && !idr0.broadcast());
        assert_eq!((idr0.table_formats(), idr0.stream_levels(), idr0.stall()), (2, 1, 1));
        let idr1 = Idr1::from(0x0273_0010);
        assert_eq!((idr1.stream_bits(), idr1.command_queue(), idr1.event_queue()), (16, 19, 19));
        assert!(Idr3::from(0x1404).ranges());
        assert_eq!(Idr3::from(0x1404).break_before_make(), 2);
        let idr5 = Idr5::from(0x74);
        assert!(idr5.granule_4k() && idr5.granule_16k() && idr5.granule_64k());
        assert_eq!(idr5.output_size(), 4);
    }

    #[test]
    fn bits_are_where_chapter_6_has_them() {
        for (register, bit) in [
            (Idr0::new().with_messages(true), 13),
            (Idr0::new().with_events(true), 14),
            (Idr0::new().with_page_requests(true), 16),
            (Idr0::new().with_vmid_16(true), 18),
            (Idr0::new().with_two_level_contexts(true), 19),
            (Idr0::new().with_endianness(1), 21),
            (Idr0::new().with_stall(1), 24),
            (Idr0::new().with_terminate(true), 26),
            (Idr0::new().with_stream_levels(1), 27),
        ] {
            assert_eq!(register.into_bits(), 1 << bit, "{register:?}");
        }
        for (register, bit) in [
            (Idr1::new().with_substream_bits(1), 6),
            (Idr1::new().with_relative(true), 28),
            (Idr1::new().with_queues_preset(true), 29),
            (Idr1::new().with_tables_preset(true), 30),
        ] {
            assert_eq!(register.into_bits(), 1 << bit, "{register:?}");
        }
        let on = Cr0::new().with_translation(true).with_events(true).with_commands(true);
        assert_eq!(on.into_bits(), 0b1101);
        assert_eq!(Cr0::new().with_check_translated(true).into_bits(), 1 << 4);
        assert_eq!(Cr1::CACHEABLE.into_bits(), 0b11_01_01_11_01_01);
        let cr2 = Cr2::new().with_record_bad_streams(true).with_private_maintenance(true);
        assert_eq!(cr2.into_bits(), 0b110);
        assert_eq!(Gbpa::new().with_abort(true).with_update(true).into_bits(), 1 << 31 | 1 << 20);
        assert_eq!(IrqCtrl::new().with_errors(true).with_events(true).into_bits(), 0b101);
        for (register, bit) in [
            (Gerror::new().with_command(true), 0),
            (Gerror::new().with_event_abort(true), 2),
            (Gerror::new().with_page_request_abort(true), 3),
            (Gerror::new().with_command_message_abort(true), 4),
            (Gerror::new().with_event_message_abort(true), 5),
            (Gerror::new().with_error_message_abort(true), 7),
            (Gerror::new().with_service_failure(true), 8),
        ] {
            assert_eq!(register.into_bits(), 1 << bit, "{register:?}");
        }
        assert_eq!(StreamTable::new().with_address(0x1000 >> 6).into_bits(), 0x1000);
        let shape = StreamTableShape::new().with_bits(16).with_split(8).with_two_level(1);
        assert_eq!(shape.into_bits(), 1 << 16 | 8 << 6 | 16);
        assert_eq!(CommandQueue::new().with_bits(8).with_address(0x2000 >> 5).into_bits(), 0x2008);
        let cons = CommandCons::from(3 << 24 | 0x105);
        assert_eq!((cons.error(), cons.position()), (3, 0x105));
        assert_eq!(EventCons::new().with_overflow(true).with_position(2).into_bits(), 1 << 31 | 2);
        let to = MessageAddress::new().with_address(0x0802_0040 >> 2);
        assert_eq!(to.into_bits(), 0x0802_0040);
    }
}
