//! VT-d's registers (VT-d, chapter 11: "Register Descriptions").
//!
//! Reserved bits that may be 1 in later versions are not preserved: each write of a register builds
//! its value anew, except for GCMD, whose states come from GSTS ([`GlobalStatus::states`]).

use bitfield_struct::bitfield;

use crate::bus::registers;

/// CAP: what the unit can do.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Capability {
    /// ND: there are 2^(4 + 2 n) domain ids.
    #[bits(3)]
    pub domains: u32,
    /// AFL: faults may be logged in memory.
    pub advanced_fault_log: bool,
    /// RWBF: write buffers have to be flushed by a register.
    pub write_buffers: bool,
    /// PLMR: memory below 4 GiB may be protected.
    pub protected_low: bool,
    /// PHMR: memory above 4 GiB may be protected.
    pub protected_high: bool,
    /// CM: what is not present may be cached.
    pub caching_mode: bool,
    /// SAGAW: bit 1: tables of 3 levels, bit 2: of 4, bit 3: of 5.
    #[bits(5)]
    pub address_widths: u32,
    #[bits(3)]
    __: u8,
    /// MGAW: bits of addresses, less one.
    #[bits(6)]
    pub max_width: u32,
    /// ZLR: reads of no bytes from pages that may only be written.
    pub zero_length_reads: bool,
    __: bool,
    /// FRO: where the fault records are, in 16 bytes.
    #[bits(10)]
    pub fault_offset: usize,
    /// SLLPS: bit 0: pages of 2 MiB, bit 1: of 1 GiB.
    #[bits(4)]
    pub superpages: u32,
    __: bool,
    /// PSI: invalidation of pages.
    pub page_selective: bool,
    /// NFR: fault records, less one.
    #[bits(8)]
    pub fault_records: usize,
    /// MAMV: the logarithm of the largest block of pages.
    #[bits(6)]
    pub max_mask: u32,
    /// DWD: it drains writes.
    pub drains_writes: bool,
    /// DRD: it drains reads.
    pub drains_reads: bool,
    /// FS1GP: the first stage has pages of 1 GiB.
    pub first_stage_1g: bool,
    #[bits(2)]
    __: u8,
    /// PI: interrupts are posted.
    pub posted_interrupts: bool,
    /// FS5LP: the first stage has five levels.
    pub first_stage_5_level: bool,
    /// ECMDS: it has enhanced commands.
    pub enhanced_commands: bool,
    /// ESIRTPS: it invalidates interrupt entries when the table changes.
    pub enhanced_set_interrupt_table: bool,
    /// ESRTPS: it invalidates entries and translations when the root table changes.
    pub enhanced_set_root: bool,
}

/// ECAP: what else.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ExtendedCapability {
    /// C: it reads the CPUs' caches when it walks.
    pub coherent: bool,
    /// QI: it has a queue.
    pub queue: bool,
    /// DT: devices may have caches.
    pub device_caches: bool,
    /// IR: interrupts are remapped.
    pub interrupt_remapping: bool,
    /// EIM: to x2APIC ids.
    pub extended_interrupts: bool,
    __: bool,
    /// PT: entries may pass by translation.
    pub pass_through: bool,
    /// SC: accesses may be made to snoop.
    pub snoop_control: bool,
    /// IRO: where the registers are by which the IOTLB is invalidated, in 16 bytes.
    #[bits(10)]
    pub iotlb_offset: usize,
    #[bits(2)]
    __: u8,
    /// MHMV: the largest mask of interrupt entries.
    #[bits(4)]
    pub max_handle_mask: u32,
    __: bool,
    /// MTS: memory types.
    pub memory_types: bool,
    /// NEST: nested translation.
    pub nested: bool,
    #[bits(2)]
    __: u8,
    /// PRS: devices may ask for pages.
    pub page_requests: bool,
    /// ERS: they may ask for execution.
    pub execute_requests: bool,
    /// SRS: or as supervisors.
    pub supervisor_requests: bool,
    __: bool,
    /// NWFS: no-write flag.
    pub no_write: bool,
    /// EAFS: the extended accessed flag.
    pub extended_accessed: bool,
    /// PSS: bits of PASIDs, less one.
    #[bits(5)]
    pub pasid_bits: u32,
    /// PASID: requests may have one.
    pub pasid: bool,
    /// DIT: invalidations of devices are throttled.
    pub throttles_devices: bool,
    /// PDS: requests for pages are drained.
    pub page_request_drain: bool,
    /// SMTS: scalable mode.
    pub scalable: bool,
    /// VCS: virtual commands.
    pub virtual_commands: bool,
    /// SSADS: accessed and dirty flags of the second stage.
    pub second_stage_dirty: bool,
    /// SSTS: a second stage in scalable mode.
    pub second_stage: bool,
    /// FSTS: a first stage.
    pub first_stage: bool,
    /// SMPWCS: coherence of walks is a matter of entries.
    pub page_walk_coherency: bool,
    /// RPS: requests without a PASID have that of the context entry.
    pub request_pasid: bool,
    #[bits(14)]
    __: u16,
}

/// GCMD: commands, and states that are wanted. Write only.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct GlobalCommand {
    #[bits(23)]
    __: u32,
    /// CFI: interrupts of the old format pass.
    pub compatible_interrupts: bool,
    /// SIRTP: go by the new table of interrupts.
    pub set_interrupt_table: bool,
    /// IRE: interrupts are remapped.
    pub interrupt_remapping: bool,
    /// QIE: the queue is read.
    pub queue: bool,
    /// WBF: flush write buffers.
    pub flush_write_buffers: bool,
    /// EAFL: faults are logged in memory.
    pub advanced_fault_log: bool,
    /// SFL: go by the new log.
    pub set_fault_log: bool,
    /// SRTP: go by the new root table.
    pub set_root: bool,
    /// TE: accesses are translated.
    pub translation: bool,
}

/// GSTS: what has become of it.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct GlobalStatus {
    #[bits(23)]
    __: u32,
    /// CFIS.
    pub compatible_interrupts: bool,
    /// IRTPS.
    pub interrupt_table: bool,
    /// IRES.
    pub interrupt_remapping: bool,
    /// QIES.
    pub queue: bool,
    /// WBFS: it flushes still.
    pub flushes_write_buffers: bool,
    /// AFLS.
    pub advanced_fault_log: bool,
    /// FLS.
    pub fault_log: bool,
    /// RTPS: it goes by the new root table.
    pub root: bool,
    /// TES.
    pub translation: bool,
}

impl GlobalStatus {
    /// The states, to be written to GCMD with one change: what GSTS says, without the
    /// bits of commands that act once (mask 96FF_FFFF; chapter 11, "Global Command Register").
    #[must_use]
    pub const fn states(self) -> GlobalCommand {
        GlobalCommand::from_bits(self.into_bits() & 0x96ff_ffff)
    }
}

/// RTADDR: the root table.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct RootTable {
    #[bits(10)]
    __: u16,
    /// TTM: 0 legacy, 1 scalable, 3: all requests are aborted.
    #[bits(2)]
    pub mode: u8,
    /// The number of its page.
    #[bits(52)]
    pub page: u64,
}

/// CCMD: invalidation of context entries without a queue.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ContextCommand {
    /// DID.
    pub domain: u16,
    /// SID.
    pub source: u16,
    /// FM.
    #[bits(2)]
    pub function_mask: u8,
    #[bits(25)]
    __: u32,
    /// CAIG: what was done.
    #[bits(2)]
    pub done: u8,
    /// CIRG: 1 all, 2 those of a domain, 3 those of a device.
    #[bits(2)]
    pub granularity: u8,
    /// ICC: do it; still 1 while it is being done.
    pub go: bool,
}

/// IOTLB: invalidation of translations without a queue. Where it is is up to
/// [`ExtendedCapability::iotlb_offset`].
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct IotlbCommand {
    #[bits(32)]
    __: u32,
    /// DID.
    pub domain: u16,
    /// DW: writes are drained.
    pub drain_writes: bool,
    /// DR: reads are drained.
    pub drain_reads: bool,
    #[bits(7)]
    __: u8,
    /// IAIG: what was done.
    #[bits(2)]
    pub done: u8,
    __: bool,
    /// IIRG: 1 all, 2 those of a domain, 3 pages.
    #[bits(2)]
    pub granularity: u8,
    __: bool,
    /// IVT: do it; still 1 while it is being done.
    pub go: bool,
}

/// FSTS: what went wrong. Flags are cleared by writing 1.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FaultStatus {
    /// PFO: a record was lost.
    pub overflow: bool,
    /// PPF: there are records. Read only.
    pub pending: bool,
    /// AFO: the log in memory is full.
    pub advanced_overflow: bool,
    /// APF: there is something in the log.
    pub advanced_pending: bool,
    /// IQE: the command at the head of the queue is not taken.
    pub queue_error: bool,
    /// ICE: a device has acknowledged an invalidation that was not sent.
    pub completion_error: bool,
    /// ITE: a device has not acknowledged.
    pub timeout: bool,
    /// PRO: requests for pages were lost. Obsolete.
    pub page_request_overflow: bool,
    /// FRI: the first record, if there are any.
    pub record: u8,
    __: u16,
}

/// FECTL: interrupts about faults.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FaultControl {
    #[bits(30)]
    __: u32,
    /// IP: one is held back. Read only.
    pub pending: bool,
    /// IM: they are held back.
    pub masked: bool,
}

/// FEDATA: what is written to interrupt.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FaultData {
    /// The value.
    pub value: u32,
}

/// FEADDR: where to, the lower half.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FaultAddress {
    /// The lower half.
    pub value: u32,
}

/// FEUADDR: and the upper.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FaultUpperAddress {
    /// The upper half.
    pub value: u32,
}

/// PMEN: memory that no device reaches, while translation is off or on.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ProtectedMemory {
    /// PRS: it is protected. Read only.
    pub is_protected: bool,
    #[bits(30)]
    __: u32,
    /// EPM: it is to be.
    pub protect: bool,
}

/// IQH: the slot that is read next.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct QueueHead {
    #[bits(4)]
    __: u8,
    /// Its number, of slots of 128 bits.
    #[bits(15)]
    pub slot: u64,
    #[bits(45)]
    __: u64,
}

/// IQT: the slot that is written next.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct QueueTail {
    #[bits(4)]
    __: u8,
    /// Its number, of slots of 128 bits.
    #[bits(15)]
    pub slot: u64,
    #[bits(45)]
    __: u64,
}

/// IQA: the ring.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct QueueAddress {
    /// QS: it has 2^n pages.
    #[bits(3)]
    pub size: u32,
    __: u8,
    /// DW: slots have 256 bits.
    pub wide: bool,
    /// The number of its first page.
    #[bits(52)]
    pub page: u64,
}

/// VER: the version.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Version {
    /// What is before the point is at 7:4.
    #[bits(4)]
    pub minor: u8,
    /// The major version.
    #[bits(4)]
    pub major: u8,
    #[bits(24)]
    __: u32,
}

registers! {
    Version: u32 at 0x00;
    Capability: u64 at 0x08;
    ExtendedCapability: u64 at 0x10;
    GlobalCommand: u32 at 0x18;
    GlobalStatus: u32 at 0x1c;
    RootTable: u64 at 0x20;
    ContextCommand: u64 at 0x28;
    FaultStatus: u32 at 0x34;
    FaultControl: u32 at 0x38;
    FaultData: u32 at 0x3c;
    FaultAddress: u32 at 0x40;
    FaultUpperAddress: u32 at 0x44;
    ProtectedMemory: u32 at 0x64;
    QueueHead: u64 at 0x80;
    QueueTail: u64 at 0x88;
    QueueAddress: u64 at 0x90;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CAP and ECAP as QEMU 7.2 has them, read with chapter 11 in hand.
    #[test]
    fn capabilities_of_qemu() {
        let cap = Capability::from(0x00d2_008c_2226_0206);
        assert_eq!((cap.domains(), cap.address_widths(), cap.max_width()), (6, 0b10, 38));
        assert_eq!((cap.fault_offset() * 16, cap.fault_records()), (0x220, 0));
        assert_eq!((cap.superpages(), cap.max_mask()), (0b11, 18));
        assert!(cap.page_selective() && cap.drains_reads() && cap.drains_writes());
        assert!(!cap.caching_mode() && !cap.write_buffers() && !cap.enhanced_set_root());
        assert!(Capability::from(0x00d2_008c_222f_0686).caching_mode());
        let ecap = ExtendedCapability::from(0xf42);
        assert!(!ecap.coherent() && ecap.queue() && ecap.pass_through());
        assert_eq!(ecap.iotlb_offset() * 16, 0xf0);
    }

    /// One bit of each register that is looked at, by its number in chapter 11.
    #[test]
    fn bits_are_where_chapter_11_has_them() {
        for (register, bit) in [
            (Capability::new().with_write_buffers(true), 4),
            (Capability::new().with_protected_low(true), 5),
            (Capability::new().with_protected_high(true), 6),
            (Capability::new().with_caching_mode(true), 7),
            (Capability::new().with_page_selective(true), 39),
            (Capability::new().with_drains_writes(true), 54),
            (Capability::new().with_drains_reads(true), 55),
            (Capability::new().with_posted_interrupts(true), 59),
            (Capability::new().with_enhanced_set_root(true), 63),
        ] {
            assert_eq!(register.into_bits(), 1 << bit, "{register:?}");
        }
        for (register, bit) in [
            (ExtendedCapability::new().with_device_caches(true), 2),
            (ExtendedCapability::new().with_snoop_control(true), 7),
            (ExtendedCapability::new().with_nested(true), 26),
            (ExtendedCapability::new().with_page_requests(true), 29),
            (ExtendedCapability::new().with_supervisor_requests(true), 31),
            (ExtendedCapability::new().with_no_write(true), 33),
            (ExtendedCapability::new().with_pasid(true), 40),
            (ExtendedCapability::new().with_throttles_devices(true), 41),
            (ExtendedCapability::new().with_scalable(true), 43),
            (ExtendedCapability::new().with_second_stage(true), 46),
            (ExtendedCapability::new().with_first_stage(true), 47),
            (ExtendedCapability::new().with_request_pasid(true), 49),
        ] {
            assert_eq!(register.into_bits(), 1 << bit, "{register:?}");
        }
        for (command, bit) in [
            (GlobalCommand::new().with_translation(true), 31),
            (GlobalCommand::new().with_set_root(true), 30),
            (GlobalCommand::new().with_set_fault_log(true), 29),
            (GlobalCommand::new().with_flush_write_buffers(true), 27),
            (GlobalCommand::new().with_queue(true), 26),
            (GlobalCommand::new().with_interrupt_remapping(true), 25),
            (GlobalCommand::new().with_compatible_interrupts(true), 23),
        ] {
            assert_eq!(command.into_bits(), 1 << bit, "{command:?}");
        }
        for (status, bit) in [
            (GlobalStatus::new().with_translation(true), 31),
            (GlobalStatus::new().with_root(true), 30),
            (GlobalStatus::new().with_queue(true), 26),
        ] {
            assert_eq!(status.into_bits(), 1 << bit, "{status:?}");
        }
        assert_eq!(QueueAddress::new().with_page(5).with_size(2).into_bits(), 0x5002);
        assert_eq!(QueueAddress::new().with_wide(true).into_bits(), 1 << 11);
        assert_eq!(QueueTail::new().with_slot(3).into_bits(), 0x30);
        assert_eq!(RootTable::new().with_mode(1).with_page(7).into_bits(), 0x7400);
        assert_eq!(
            ContextCommand::new().with_go(true).with_granularity(1).into_bits(),
            1 << 63 | 1 << 61
        );
        assert_eq!(
            IotlbCommand::new()
                .with_go(true)
                .with_granularity(1)
                .with_drain_reads(true)
                .with_drain_writes(true)
                .into_bits(),
            1 << 63 | 1 << 60 | 1 << 49 | 1 << 48
        );
        let faults = FaultStatus::from(0x0371);
        assert!(faults.overflow() && faults.queue_error());
        assert!(faults.completion_error() && faults.timeout() && !faults.pending());
        assert_eq!(faults.record(), 3);
        assert_eq!(FaultControl::new().with_masked(true).into_bits(), 1 << 31);
        assert_eq!(ProtectedMemory::new().with_protect(true).into_bits(), 1 << 31);
        assert_eq!(ProtectedMemory::new().with_is_protected(true).into_bits(), 1);
    }

    /// Global Command Register: the mask is 96FF_FFFF.
    #[test]
    fn commands_that_act_once_are_not_repeated() {
        let all = GlobalStatus::from(u32::MAX).states();
        assert!(all.translation() && all.queue() && all.interrupt_remapping());
        assert!(all.advanced_fault_log() && all.compatible_interrupts());
        assert!(!all.set_root() && !all.set_fault_log() && !all.flush_write_buffers());
        assert!(!all.set_interrupt_table());
    }
}
