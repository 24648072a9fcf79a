//! Why a guest was left, and why it was not entered (SDM vol. 3D, appendix C).

use core::fmt;

use crate::failure::Failure;

/// The field of the exit reason.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExitReason(u32);

impl ExitReason {
    /// An exception or an NMI.
    pub const EXCEPTION_OR_NMI: u16 = 0;
    /// An external interrupt.
    pub const EXTERNAL_INTERRUPT: u16 = 1;
    /// A triple fault.
    pub const TRIPLE_FAULT: u16 = 2;
    /// CPUID.
    pub const CPUID: u16 = 10;
    /// HLT.
    pub const HLT: u16 = 12;
    /// VMCALL.
    pub const VMCALL: u16 = 18;
    /// An access to a control register.
    pub const CONTROL_REGISTER: u16 = 28;
    /// IN or OUT.
    pub const IO: u16 = 30;
    /// RDMSR.
    pub const RDMSR: u16 = 31;
    /// WRMSR.
    pub const WRMSR: u16 = 32;
    /// The guest's state is invalid.
    pub const GUEST_STATE: u16 = 33;
    /// An MSR of the list could not be loaded.
    pub const MSR_LOADING: u16 = 34;
    /// A machine check during the entry.
    pub const MACHINE_CHECK: u16 = 41;
    /// A violation of the EPT.
    pub const EPT_VIOLATION: u16 = 48;
    /// A misconfigured entry of the EPT.
    pub const EPT_MISCONFIGURATION: u16 = 49;

    /// The field's value.
    #[must_use]
    pub const fn from_bits(raw: u32) -> Self {
        Self(raw)
    }

    /// The field's value.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The basic exit reason.
    #[must_use]
    pub const fn basic(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// The guest was not entered (bit 31).
    #[must_use]
    pub const fn entry_failed(self) -> bool {
        self.0 >> 31 != 0
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit {}", self.basic())
    }
}

/// Does this VM-exit interruption information say that a non-maskable interrupt ended the guest?
///
/// The CPU has not called the host's handler, and holds further NMIs until an IRET. The hypervisor
/// runs the handler by a frame of its own that ends in IRET, commonly by INT 2, before it may be
/// moved to another CPU.
#[must_use]
pub const fn is_nmi(interruption: u32) -> bool {
    /// Valid; type 2 in bits 10:8; vector 2.
    const NMI: u32 = 1 << 31 | 2 << 8 | 2;
    interruption & (1 << 31 | 0x7ff) == NMI
}

/// Why a guest was not entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EntryError {
    /// VMLAUNCH or VMRESUME failed (or VMWRITE of the host's RSP and RIP before it).
    Failed(Failure),
    /// Exit 33: the guest's state is invalid. The qualification says more for a few of the checks.
    GuestState {
        /// The exit qualification.
        qualification: u64,
    },
    /// Exit 34: the CPU refused to load an MSR of the list.
    MsrLoading {
        /// Its number in the list, from 1.
        entry: u64,
    },
    /// Exit 41: a machine check came during the entry. The host's handler must be called before the
    /// host may move to another CPU ([`host_bits`](crate::host_bits)).
    MachineCheck,
    /// Another exit with bit 31, which the manual did not list when this was written.
    Other(ExitReason),
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => failure.fmt(f),
            Self::GuestState { qualification } => {
                write!(f, "exit 33: the guest's state is invalid (qualification {qualification})")
            }
            Self::MsrLoading { entry } => {
                write!(f, "exit 34: entry {entry} of the list of MSRs could not be loaded")
            }
            Self::MachineCheck => f.write_str("exit 41: a machine check during the entry"),
            Self::Other(reason) => write!(f, "{reason}: the entry failed"),
        }
    }
}

impl core::error::Error for EntryError {}

/// What an exit came to.
pub(super) const fn outcome(
    reason: ExitReason,
    qualification: u64,
) -> Result<ExitReason, EntryError> {
    if !reason.entry_failed() {
        return Ok(reason);
    }
    Err(match reason.basic() {
        ExitReason::GUEST_STATE => EntryError::GuestState { qualification },
        ExitReason::MSR_LOADING => EntryError::MsrLoading { entry: qualification },
        ExitReason::MACHINE_CHECK => EntryError::MachineCheck,
        _ => EntryError::Other(reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nmi_is_no_exception_with_its_vector() {
        assert!(is_nmi(0x8000_0202) && is_nmi(0x8000_1202));
        assert!(!is_nmi(0x0000_0202) && !is_nmi(0x8000_0302) && !is_nmi(0x8000_0212));
    }

    #[test]
    fn an_entry_that_failed_is_no_exit() {
        let of = |raw| outcome(ExitReason::from_bits(raw), 4);
        assert_eq!(of(33), Ok(ExitReason::from_bits(33)));
        assert_eq!(of(1 << 31 | 33), Err(EntryError::GuestState { qualification: 4 }));
        assert_eq!(of(1 << 31 | 34), Err(EntryError::MsrLoading { entry: 4 }));
        assert_eq!(of(1 << 31 | 41), Err(EntryError::MachineCheck));
        let other = ExitReason::from_bits(1 << 31 | 99);
        assert_eq!(of(1 << 31 | 99), Err(EntryError::Other(other)));
    }
}
