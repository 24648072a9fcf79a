//! The formats of an SMMUv3's tables (IHI 0070, chapter 5: "Data structure formats").
//!
//! | structure | words | section |
//! |---|---|---|
//! | [`Level1Stream`] | 1: a table of stream table entries | 5.1 |
//! | [`Stream0`], [`Stream1`], [`Stream2`], [`Stream3`] | 8, the rest zeros: a stream | 5.2 |
//! | [`Level1Context`] | 1: a table of context descriptors | 5.3 |
//! | [`Context0`], [`Context1`], MAIR, ... | 8: tables, their format, ASID | 5.4 |

use bitfield_struct::bitfield;
use shootdown_dma::table::{ArmStage1, ArmStage2};
use shootdown_dma::{DomainId, PhysAddr};

/// Bytes of a stream table entry, and of a context descriptor.
pub const ENTRY: usize = 64;

/// A descriptor of the first level of a stream table (5.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Level1Stream {
    /// Span: the table has 2^(n - 1) entries; 0: there is none.
    #[bits(5)]
    pub span: u32,
    __: bool,
    /// L2Ptr: its address, in 64 bytes.
    #[bits(46)]
    pub table: u64,
    #[bits(12)]
    __: u16,
}

/// What becomes of a stream's accesses (5.2, Config).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum StreamConfig {
    /// They are refused, and nothing is recorded.
    Abort = 0,
    /// They pass.
    Bypass = 4,
    /// By the first stage.
    Stage1 = 5,
    /// By the second stage.
    Stage2 = 6,
    /// By both.
    Nested = 7,
}

impl StreamConfig {
    const fn into_bits(self) -> u8 {
        self as u8
    }

    const fn from_bits(bits: u8) -> Self {
        match bits {
            4 => Self::Bypass,
            5 => Self::Stage1,
            6 => Self::Stage2,
            7 => Self::Nested,
            _ => Self::Abort, // 0b0xx
        }
    }
}

/// A stream table entry's first word (5.2).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Stream0 {
    /// V.
    pub valid: bool,
    /// Config.
    #[bits(3)]
    pub config: StreamConfig,
    /// S1Fmt: of a table of context descriptors: 0 one level, 1 and 2 two, with tables of 4 and 64
    /// KiB.
    #[bits(2)]
    pub context_format: u8,
    /// S1ContextPtr: the address of the context descriptor, or their table, in 64 bytes.
    #[bits(46)]
    pub context: u64,
    #[bits(7)]
    __: u8,
    /// S1CDMax: there are 2^n.
    #[bits(5)]
    pub contexts: u32,
}

/// A stream table entry's second word (5.2: bits 127 to 64).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Stream1 {
    /// S1DSS: accesses without a substream are 0 refused, 1 passed, 2 those of substream 0.
    #[bits(2)]
    pub default_substream: u8,
    /// S1CIR: how context descriptors are read: 1 write-back.
    #[bits(2)]
    pub context_inner: u8,
    /// S1COR.
    #[bits(2)]
    pub context_outer: u8,
    /// S1CSH: 3 inner shareable.
    #[bits(2)]
    pub context_share: u8,
    #[bits(19)]
    __: u32,
    /// S1STALLD: no access is stalled.
    pub no_stall: bool,
    /// EATS: 0 the device may have no cache, 1 it may.
    #[bits(2)]
    pub device_cache: u8,
    /// STRW: 0 the regime of EL1, 2 that of EL2.
    #[bits(2)]
    pub world: u8,
    #[bits(12)]
    __: u16,
    /// SHCFG: 1: shareability is the access's own.
    #[bits(2)]
    pub shareability: u8,
    #[bits(18)]
    __: u32,
}

impl Stream1 {
    /// Context descriptors write-back and inner shareable.
    pub const CACHEABLE: Self =
        Self::new().with_context_inner(1).with_context_outer(1).with_context_share(3);
}

/// A stream table entry's third word (5.2: bits 191 to 128): the second stage.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Stream2 {
    /// S2VMID.
    pub vmid: u16,
    #[bits(16)]
    __: u16,
    /// S2T0SZ.
    #[bits(6)]
    pub t0sz: u64,
    /// S2SL0: the level at which walks begin.
    #[bits(2)]
    pub start_level: u64,
    /// S2IR0: how tables are read: 1 write-back.
    #[bits(2)]
    pub inner: u8,
    /// S2OR0.
    #[bits(2)]
    pub outer: u8,
    /// S2SH0: 3 inner shareable.
    #[bits(2)]
    pub share: u8,
    /// S2TG: the granule.
    #[bits(2)]
    pub granule: u64,
    /// S2PS: bits of output addresses, as IDR5.OAS.
    #[bits(3)]
    pub output_size: u64,
    /// S2AA64: tables of AArch64.
    pub aarch64: bool,
    /// S2ENDI.
    pub big_endian: bool,
    /// S2AFFD: the access flag does not matter.
    pub ignore_access_flag: bool,
    /// S2PTW: tables of the first stage are not in device memory.
    pub protected_walk: bool,
    /// S2HD: the dirty flag is written.
    pub dirty: bool,
    /// S2HA: the access flag is written.
    pub accessed: bool,
    /// S2S: faults stall.
    pub stall: bool,
    /// S2R: faults are recorded.
    pub record: bool,
    #[bits(5)]
    __: u8,
}

/// A stream table entry's fourth word (5.2: bits 255 to 192).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Stream3 {
    #[bits(4)]
    __: u8,
    /// S2TTB: the root, in 16 bytes.
    #[bits(48)]
    pub root: u64,
    #[bits(12)]
    __: u16,
}

/// A descriptor of the first level of a table of context descriptors (5.3).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Level1Context {
    /// V.
    pub valid: bool,
    #[bits(11)]
    __: u16,
    /// L2Ptr: the number of its page.
    #[bits(40)]
    pub table: u64,
    #[bits(12)]
    __: u16,
}

/// A context descriptor's first word (5.4).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Context0 {
    /// T0SZ: addresses have 64 - n bits.
    #[bits(6)]
    pub t0sz: u64,
    /// TG0: the granule.
    #[bits(2)]
    pub granule: u64,
    /// IR0: how tables are read: 1 write-back.
    #[bits(2)]
    pub inner: u8,
    /// OR0.
    #[bits(2)]
    pub outer: u8,
    /// SH0: 3 inner shareable.
    #[bits(2)]
    pub share: u8,
    /// EPD0: there are no tables for the lower half.
    pub no_lower: bool,
    /// ENDI.
    pub big_endian: bool,
    #[bits(14)]
    __: u16,
    /// EPD1: there are no tables for the upper half.
    pub no_upper: bool,
    /// V.
    pub valid: bool,
    /// IPS: bits of output addresses, as IDR5.OAS.
    #[bits(3)]
    pub output_size: u64,
    /// AFFD: the access flag does not matter.
    pub ignore_access_flag: bool,
    /// WXN.
    pub write_execute_never: bool,
    /// UWXN.
    pub user_write_execute_never: bool,
    /// TBI: the highest byte is ignored.
    #[bits(2)]
    pub top_byte_ignored: u8,
    /// PAN.
    pub privileged_access_never: bool,
    /// AA64: tables of AArch64.
    pub aarch64: bool,
    /// HD: the dirty flag is written.
    pub dirty: bool,
    /// HA: the access flag is written.
    pub accessed: bool,
    /// S: faults stall.
    pub stall: bool,
    /// R: faults are recorded.
    pub record: bool,
    /// A: and end the access with an abort.
    pub abort: bool,
    /// ASET: the ASID is not shared with CPUs.
    pub private_asid: bool,
    /// ASID.
    pub asid: u16,
}

/// A context descriptor's second word (5.4: bits 127 to 64).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Context1 {
    /// NSCFG0.
    pub non_secure: bool,
    /// HAD0: hierarchical attributes are off.
    pub no_hierarchy: bool,
    #[bits(2)]
    __: u8,
    /// TTB0: the root, in 16 bytes.
    #[bits(48)]
    pub root: u64,
    #[bits(12)]
    __: u16,
}

/// MAIR's first field: normal memory, write-back. It is a context descriptor's fourth word.
pub const WRITE_BACK: u64 = 0xff;

/// Words 0, 1 and 3 of the context descriptor of a domain; the others are zero.
///
/// Faults are recorded and end the access: nobody stalls. The ASID is not the CPUs'.
#[must_use]
pub const fn context<const G: u32>(
    tables: &ArmStage1<G>,
    output_size: u64,
    root: PhysAddr,
    id: DomainId,
) -> (Context0, Context1, u64) {
    let shape = Context0::new()
        .with_t0sz(tables.t0sz())
        .with_granule(tables.tg0())
        .with_inner(1)
        .with_outer(1)
        .with_share(3)
        .with_no_upper(true)
        .with_valid(true)
        .with_output_size(output_size)
        .with_aarch64(true)
        .with_record(true)
        .with_abort(true)
        .with_private_asid(true)
        .with_asid(id.0);
    (shape, Context1::new().with_root(root.0 >> 4), WRITE_BACK)
}

/// The first word of the entry of a stream that the first stage translates, by one context
/// descriptor.
#[must_use]
pub const fn stage_1(context: PhysAddr) -> Stream0 {
    Stream0::new().with_valid(true).with_config(StreamConfig::Stage1).with_context(context.0 >> 6)
}

/// Words 0, 2 and 3 of the entry of a stream that the second stage translates; the others are zero.
#[must_use]
pub const fn stage_2<const G: u32>(
    tables: &ArmStage2<G>,
    output_size: u64,
    root: PhysAddr,
    id: DomainId,
) -> (Stream0, Stream2, Stream3) {
    let shape = Stream2::new()
        .with_vmid(id.0)
        .with_t0sz(tables.s2t0sz())
        .with_start_level(tables.s2sl0())
        .with_inner(1)
        .with_outer(1)
        .with_share(3)
        .with_granule(tables.s2tg())
        .with_output_size(output_size)
        .with_aarch64(true)
        .with_record(true);
    let config = Stream0::new().with_valid(true).with_config(StreamConfig::Stage2);
    (config, shape, Stream3::new().with_root(root.0 >> 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 5.1 and 5.3.
    #[test]
    fn first_levels_are_those_of_5_1_and_5_3() {
        let streams = Level1Stream::new().with_span(9).with_table(0x4000 >> 6);
        assert_eq!(streams.into_bits(), 0x4009);
        let contexts = Level1Context::new().with_valid(true).with_table(5);
        assert_eq!(contexts.into_bits(), 0x5001);
    }

    #[test]
    fn stream_entries_are_those_of_5_2() {
        assert_eq!(stage_1(PhysAddr(0x8000_0040)).into_bits(), 0x8000_0040 | 5 << 1 | 1);
        let table = Stream0::new().with_contexts(10).with_context_format(2);
        assert_eq!(table.into_bits(), 10 << 59 | 2 << 4);
        for (config, code) in [
            (StreamConfig::Abort, 0),
            (StreamConfig::Bypass, 4),
            (StreamConfig::Stage2, 6),
            (StreamConfig::Nested, 7),
        ] {
            assert_eq!(Stream0::new().with_config(config).into_bits(), code << 1);
            assert_eq!(Stream0::from(code << 1).config(), config);
        }
        assert_eq!(Stream1::CACHEABLE.into_bits(), 1 << 2 | 1 << 4 | 3 << 6);
        for (word, bit) in [
            (Stream1::new().with_no_stall(true), 27),
            (Stream1::new().with_device_cache(1), 28),
            (Stream1::new().with_world(1), 30),
            (Stream1::new().with_shareability(1), 44),
        ] {
            assert_eq!(word.into_bits(), 1 << bit, "{word:?}");
        }
    }

    /// The bits of the second stage, counted from the beginning of the entry.
    #[test]
    fn second_stages_are_those_of_5_2() {
        for (word, bit) in [
            (Stream2::new().with_t0sz(1), 160),
            (Stream2::new().with_start_level(1), 166),
            (Stream2::new().with_inner(1), 168),
            (Stream2::new().with_outer(1), 170),
            (Stream2::new().with_share(1), 172),
            (Stream2::new().with_granule(1), 174),
            (Stream2::new().with_output_size(1), 176),
            (Stream2::new().with_aarch64(true), 179),
            (Stream2::new().with_big_endian(true), 180),
            (Stream2::new().with_ignore_access_flag(true), 181),
            (Stream2::new().with_protected_walk(true), 182),
            (Stream2::new().with_dirty(true), 183),
            (Stream2::new().with_accessed(true), 184),
            (Stream2::new().with_stall(true), 185),
            (Stream2::new().with_record(true), 186),
        ] {
            assert_eq!(word.into_bits(), 1 << (bit - 128), "{word:?}");
        }
        let tables = ArmStage2::new(4).unwrap();
        let (config, shape, root) = stage_2(&tables, 5, PhysAddr(0x1_2345_6000), DomainId(7));
        assert_eq!(config.into_bits(), 6 << 1 | 1);
        // 48 bits, from level 0, 4 KiB.
        assert_eq!(shape.into_bits() & 0xffff_ffff, 7);
        assert_eq!(
            shape.into_bits() >> 32,
            16 | 2 << 6 | 1 << 8 | 1 << 10 | 3 << 12 | 5 << 16 | 1 << 19 | 1 << 26
        );
        assert_eq!(root.into_bits(), 0x1_2345_6000);
    }

    /// T0SZ 5:0, TG0 7:6, IR0 9:8, OR0 11:10, SH0 13:12, EPD0 14, ENDI 15, EPD1 30, V 31, IPS
    /// 34:32, AFFD 35, TBI 39:38, AA64 41, HD 42, HA 43, S 44, R 45, A 46, ASET 47, ASID 63:48.
    #[test]
    fn context_descriptors_are_those_of_5_4() {
        let tables = ArmStage1::new(3, 0).unwrap();
        let (shape, root, attributes) = context(&tables, 2, PhysAddr(0x4000_1000), DomainId(0xabc));
        let expected = 25 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 30 | 1 << 31 | 2 << 32 | 1 << 41;
        assert_eq!(shape.into_bits(), expected | 1 << 45 | 1 << 46 | 1 << 47 | 0xabc << 48);
        assert_eq!((root.into_bits(), attributes), (0x4000_1000, 0xff));
        for (word, bit) in [
            (Context0::new().with_granule(1), 6),
            (Context0::new().with_no_lower(true), 14),
            (Context0::new().with_big_endian(true), 15),
            (Context0::new().with_ignore_access_flag(true), 35),
            (Context0::new().with_top_byte_ignored(1), 38),
            (Context0::new().with_dirty(true), 42),
            (Context0::new().with_accessed(true), 43),
            (Context0::new().with_stall(true), 44),
        ] {
            assert_eq!(word.into_bits(), 1 << bit, "{word:?}");
        }
        assert_eq!(Context1::new().with_no_hierarchy(true).into_bits(), 2);
    }
}
