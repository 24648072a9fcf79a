//! Operands of SVM instructions. A value that exists is one that the instruction accepts.

use core::fmt;

/// Why memory can't be a VMCB, or a number an ASID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OperandError {
    /// The address is not aligned to 4096 bytes.
    Misaligned(u64),
    /// The address has more than this many bits.
    TooWide {
        /// The address.
        address: u64,
        /// Bits of an address that the CPU accepts.
        bits: u8,
    },
    /// ASID 0 is the host's.
    HostAsid,
    /// The CPU has no ASID with this number. VMRUN and INVLPGA of some CPUs accept it without an
    /// error.
    NoSuchAsid {
        /// The number.
        asid: u32,
        /// How many there are.
        count: u32,
    },
    /// The CPU can't flush one ASID alone (CPUID 8000_000A, EDX bit 6): flush all, or take a new
    /// one.
    NoFlushByAsid,
}

impl fmt::Display for OperandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned(address) => {
                write!(f, "{address:#x} is not aligned to 4096 bytes; give a whole page")
            }
            Self::TooWide { address, bits } => {
                write!(f, "{address:#x} has more than {bits} bits; give memory below that")
            }
            Self::HostAsid => f.write_str("ASID 0 is the host's; give a guest another one"),
            Self::NoSuchAsid { asid, count } => {
                write!(f, "ASID {asid}: this CPU has {count}, of which 0 is the host's")
            }
            Self::NoFlushByAsid => f.write_str(
                "this CPU can't flush one ASID alone; flush all of them, or give the guest a new one",
            ),
        }
    }
}

impl core::error::Error for OperandError {}

/// The physical address of a page that VMRUN, VMLOAD and VMSAVE accept, and VM_HSAVE_PA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmcbAddress(u64);

impl VmcbAddress {
    /// The page at this physical address, on a CPU with `physical_bits` physical address bits.
    ///
    /// # Errors
    /// [`OperandError::Misaligned`], [`OperandError::TooWide`].
    pub const fn new(address: u64, physical_bits: u8) -> Result<Self, OperandError> {
        if address & 0xfff != 0 {
            return Err(OperandError::Misaligned(address));
        }
        if physical_bits < 64 && address >> physical_bits != 0 {
            return Err(OperandError::TooWide { address, bits: physical_bits });
        }
        Ok(Self(address))
    }

    /// The address.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// An address-space identifier of a guest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asid(u32);

impl Asid {
    /// The identifier with this number, on a CPU that has `count` of them (CPUID 8000_000A, EBX), 0
    /// included.
    ///
    /// # Errors
    /// [`OperandError::HostAsid`], [`OperandError::NoSuchAsid`].
    pub const fn new(asid: u32, count: u32) -> Result<Self, OperandError> {
        if asid == 0 {
            return Err(OperandError::HostAsid);
        }
        if asid >= count {
            return Err(OperandError::NoSuchAsid { asid, count });
        }
        Ok(Self(asid))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// What VMRUN removes before the guest runs (APM vol. 2, 15.16). It happens when VMRUN succeeds;
/// one that fails has not done it, so the field is reset only after an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TlbControl {
    /// Nothing.
    #[default]
    Nothing,
    /// Entries of every ASID, the host's too.
    AllAsids,
    /// Entries of this guest's ASID.
    ThisAsid,
    /// Entries of this guest's ASID, global ones excepted.
    ThisAsidButGlobals,
}

impl TlbControl {
    /// How much a value of the field removes, for comparison.
    pub(super) const fn width(bits: u8) -> u8 {
        match bits {
            0 => 0,
            7 => 1,
            3 => 2,
            _ => 3,
        }
    }

    /// The value of the field; 3 and 7 need a CPU that can flush by ASID.
    ///
    /// # Errors
    /// [`OperandError::NoFlushByAsid`] on one that can't.
    pub const fn bits(self, flush_by_asid: bool) -> Result<u8, OperandError> {
        match self {
            Self::Nothing => Ok(0),
            Self::AllAsids => Ok(1),
            Self::ThisAsid if flush_by_asid => Ok(3),
            Self::ThisAsidButGlobals if flush_by_asid => Ok(7),
            Self::ThisAsid | Self::ThisAsidButGlobals => Err(OperandError::NoFlushByAsid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vmcb_is_a_whole_page_within_the_cpus_width() {
        assert_eq!(VmcbAddress::new(0x5000, 40).map(VmcbAddress::get), Ok(0x5000));
        assert_eq!(VmcbAddress::new(0x5008, 40), Err(OperandError::Misaligned(0x5008)));
        let wide = OperandError::TooWide { address: 1 << 40, bits: 40 };
        assert_eq!(VmcbAddress::new(1 << 40, 40), Err(wide));
    }

    #[test]
    fn an_asid_is_one_of_the_cpus_and_not_the_hosts() {
        assert_eq!(Asid::new(0, 16), Err(OperandError::HostAsid));
        assert_eq!(Asid::new(15, 16).map(Asid::get), Ok(15));
        assert_eq!(Asid::new(16, 16), Err(OperandError::NoSuchAsid { asid: 16, count: 16 }));
        assert_eq!(Asid::new(1, 0), Err(OperandError::NoSuchAsid { asid: 1, count: 0 }));
    }

    #[test]
    fn a_flush_of_one_asid_needs_a_cpu_that_can() {
        use TlbControl::{AllAsids, Nothing, ThisAsid, ThisAsidButGlobals};
        let bits =
            |by_asid| [Nothing, AllAsids, ThisAsid, ThisAsidButGlobals].map(|c| c.bits(by_asid));
        let no = Err(OperandError::NoFlushByAsid);
        assert_eq!(bits(true), [Ok(0), Ok(1), Ok(3), Ok(7)]);
        assert_eq!(bits(false), [Ok(0), Ok(1), no, no]);
    }
}
