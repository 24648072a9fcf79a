//! Why a unit is not set up, does not acknowledge a step, or admits no device.

use core::fmt;

use shootdown_dma::invalidate::queue::RingError;

/// What a unit lacks that the library needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unfit {
    /// It has no queue (VT-d: ECAP.QI).
    NoQueue,
    /// It walks no tables in a format of the library (VT-d: CAP.SAGAW; SMMUv3: IDR0.S1P and TTF,
    /// IDR5.GRAN4K).
    NoTables,
    /// It does not read the CPUs' caches, and the [memory](crate::Memory) is not written back.
    NotCoherent,
    /// Translation is on, in a mode that can't be left while it is on (VT-d: RTADDR.TTM). The host
    /// has to keep all devices behind the unit from DMA, and to turn translation off.
    OtherMode,
    /// The hardware fixes the addresses of its queue or its tables (SMMUv3: IDR1.QUEUES_PRESET,
    /// TABLES_PRESET).
    Preset,
    /// Its queue, or its table of streams, is smaller than the library needs (SMMUv3: IDR1.CMDQS,
    /// SIDSIZE).
    TooSmall,
    /// It interrupts by wires only (SMMUv3: IDR0.MSI).
    NoMessages,
}

/// A step that is requested by a register, and that the unit has to acknowledge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Stores to memory that it had buffered are done (VT-d: GCMD.WBF).
    WriteBuffers,
    /// It uses the new root table, or stream table.
    Tables,
    /// It invalidates what it has cached of devices' entries.
    ForgetEntries,
    /// It invalidates all translations.
    ForgetTranslations,
    /// It takes all that was in the queue.
    DrainQueue,
    /// The queue is on.
    QueueOn,
    /// The queue is off.
    QueueOff,
    /// The log of events is on or off.
    Events,
    /// Translation is on.
    TranslationOn,
    /// Translation is off.
    TranslationOff,
    /// Memory that firmware had protected is not protected any more (VT-d: PMEN).
    Protection,
    /// What it does with accesses while translation is off (SMMUv3: GBPA).
    Bypass,
    /// Interrupts are on or off (SMMUv3: IRQ_CTRL).
    Interrupts,
}

/// Why a unit is not set up, not reset, or not turned off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// It lacks a feature.
    Unfit(Unfit),
    /// It has not acknowledged this step until [`Bus::relax`](crate::Bus::relax) gave up.
    Timeout(Step),
    /// There is no memory for its structures.
    NoMemory,
    /// The library makes no queue on its ring.
    Ring(RingError),
    /// Other CPUs use the queue, and did not leave it until [`Bus::relax`](crate::Bus::relax) gave
    /// up.
    Busy,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoQueue => "the unit has no invalidation queue",
            Self::NoTables => "the unit walks no tables that the library makes",
            Self::NotCoherent => "the unit does not read caches; write its memory back",
            Self::OtherMode => "translation is on in another mode; stop all devices, turn it off",
            Self::Preset => "the unit's queues or tables have a fixed place",
            Self::TooSmall => "the unit's queue or its table of streams is too small",
            Self::NoMessages => "the unit interrupts by wires, not by messages",
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WriteBuffers => "to flush its write buffers",
            Self::Tables => "a new table of devices",
            Self::ForgetEntries => "to forget devices' entries",
            Self::ForgetTranslations => "to forget all translations",
            Self::DrainQueue => "to empty its queue",
            Self::QueueOn => "that its queue is on",
            Self::QueueOff => "that its queue is off",
            Self::Events => "its log of events",
            Self::TranslationOn => "that translation is on",
            Self::TranslationOff => "that translation is off",
            Self::Protection => "that memory is not protected any more",
            Self::Bypass => "what becomes of accesses while translation is off",
            Self::Interrupts => "its interrupts",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unfit(why) => why.fmt(f),
            Self::Timeout(step) => write!(f, "the unit does not acknowledge {step}"),
            Self::NoMemory => f.write_str("there is no memory for the unit's structures"),
            Self::Ring(why) => why.fmt(f),
            Self::Busy => f.write_str("others do not leave the queue; try again"),
        }
    }
}

impl core::error::Error for Error {}

impl From<RingError> for Error {
    fn from(error: RingError) -> Self {
        Self::Ring(error)
    }
}

/// Why a device was not admitted. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AdmitError {
    /// The table of devices does not reach that far.
    NoSuchDevice,
    /// Its entry is valid: it was admitted, and not expelled since.
    Admitted,
    /// The unit can't tag translations with the id (VT-d: 0, or more than CAP.ND).
    BadId,
    /// The root is not the address of a table.
    BadRoot,
    /// There is no memory for a table of entries.
    NoMemory,
}

impl fmt::Display for AdmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchDevice => "the unit's table of devices does not reach as far",
            Self::Admitted => "the device is admitted already; expel it first",
            Self::BadId => "the unit can't tag translations with this domain id",
            Self::BadRoot => "the root is no address of a page table",
            Self::NoMemory => "there is no memory for a table of devices' entries",
        })
    }
}

impl core::error::Error for AdmitError {}
