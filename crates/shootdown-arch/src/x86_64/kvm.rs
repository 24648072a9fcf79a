//! KVM's steal-time record, for the one byte in it that says whether a virtual CPU runs.
//!
//! A guest puts one record per virtual CPU into memory and writes its physical address into an MSR
//! of that CPU (Linux, Documentation/virt/kvm/x86/msr.rst and cpuid.rst). KVM then keeps it up to
//! date, and honours the mark that [`PreemptedWord`] sets.
//!
//! | offset | bytes | holds |
//! |---|---|---|
//! | 0 | 8 | nanoseconds stolen |
//! | 8 | 4 | version: odd while KVM writes |
//! | 12 | 4 | flags: none |
//! | 16 | 1 | preempted: bit 0 it does not run, bit 1 it must forget before it does |
//! | 17 | 47 | nothing |

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64};

use shootdown::paravirt::PreemptedWord;

/// One virtual CPU's record. It must not move once KVM knows of it.
///
/// ```
/// use shootdown_arch::x86_64::StealTime;
/// static CPU0: StealTime = StealTime::new();
/// let _shown_to_the_library = CPU0.preempted();           // Platform::preempted
/// let _written_to_the_msr = StealTime::register(0x7000)?; // where CPU0 lies in physical memory
/// # Ok::<(), shootdown_arch::x86_64::StealTimeError>(())
/// ```
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StealTime {
    _steal: AtomicU64,
    _version: AtomicU32,
    _flags: AtomicU32,
    preempted: PreemptedWord,
    _rest: [u8; 47],
}

const _: () = {
    assert!(core::mem::offset_of!(StealTime, preempted) == 16);
    assert!(size_of::<StealTime>() == 64);
};

/// Why a record was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StealTimeError {
    /// The address is no multiple of 64.
    Misaligned(u64),
}

impl fmt::Display for StealTimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned(at) => {
                write!(f, "steal-time record at {at:#x}: must lie at a multiple of 64")
            }
        }
    }
}

impl core::error::Error for StealTimeError {}

impl StealTime {
    /// `MSR_KVM_STEAL_TIME`.
    pub const MSR: u32 = 0x4b56_4d03;

    /// The record of a CPU that runs.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            _steal: AtomicU64::new(0),
            _version: AtomicU32::new(0),
            _flags: AtomicU32::new(0),
            preempted: PreemptedWord::new(),
            _rest: [0; 47],
        }
    }

    /// What [`shootdown::Platform::preempted`] returns for the CPU.
    #[must_use]
    pub const fn preempted(&self) -> &PreemptedWord {
        &self.preempted
    }

    /// The value of the MSR that turns the record at this physical address on.
    ///
    /// # Errors
    /// See [`StealTimeError`].
    pub const fn register(physical: u64) -> Result<u64, StealTimeError> {
        if physical % 64 != 0 {
            return Err(StealTimeError::Misaligned(physical));
        }
        Ok(physical | 1)
    }
}

impl Default for StealTime {
    fn default() -> Self {
        Self::new()
    }
}

/// What KVM offers (CPUID 4000_0001, or as far above as KVM's leaves begin).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvmFeatures {
    /// There is a steal-time record (EAX bit 5).
    pub steal_time: bool,
    /// A mark in it makes a CPU forget (EAX bit 9, `KVM_FEATURE_PV_TLB_FLUSH`).
    pub flush: bool,
    /// Virtual CPUs are never descheduled, the host says: there is nothing to gain (EDX bit 0,
    /// `KVM_HINTS_REALTIME`).
    pub dedicated: bool,
}

impl KvmFeatures {
    /// Decodes the leaf's registers.
    #[must_use]
    pub const fn decode(eax: u32, edx: u32) -> Self {
        Self { steal_time: eax & 1 << 5 != 0, flush: eax & 1 << 9 != 0, dedicated: edx & 1 != 0 }
    }

    /// Is it worth showing the library the records?
    #[must_use]
    pub const fn marks(self) -> bool {
        self.steal_time && self.flush && !self.dedicated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_lies_where_kvm_writes_it() {
        let record = StealTime::new();
        let (whole, byte) = (&raw const record, &raw const *record.preempted());
        assert_eq!(byte.addr() - whole.addr(), 16);
        assert_eq!((PreemptedWord::PREEMPTED, PreemptedWord::FLUSH), (1, 2));
        assert_eq!(align_of::<StealTime>(), 64);
    }

    #[test]
    fn a_record_is_registered_where_it_is_aligned() {
        assert_eq!(StealTime::register(0x7fc0), Ok(0x7fc1));
        assert_eq!(StealTime::register(0x7fe0), Err(StealTimeError::Misaligned(0x7fe0)));
    }

    #[test]
    fn a_host_that_never_deschedules_needs_no_marks() {
        assert!(KvmFeatures::decode(1 << 5 | 1 << 9, 0).marks());
        assert!(!KvmFeatures::decode(1 << 5 | 1 << 9, 1).marks());
        assert!(!KvmFeatures::decode(1 << 5, 0).marks());
        assert!(!KvmFeatures::decode(1 << 9, 0).marks());
    }
}
