//! Which control bits the host owns in guest mode.
//!
//! While the guest runs, an owned bit has the host's value; the guest reads what it wrote. Few bits
//! can be owned. The others determine the meaning of the guest's own instructions and page tables:
//! a guest that reads PAE clear and is walked with PAE set does not work.
//!
//! | bit | why the host owns it |
//! |---|---|
//! | CR4.MCE | a machine check in guest mode with MCE clear takes the machine down, not the guest |
//! | CR4.VMXE | VM entry refuses a guest without it (`IA32_VMX_CR4_FIXED0`) |
//! | CR4.SMXE | the host's measured launch; GETSEC exits in a guest whatever the bit is |
//! | CR0.NE | VM entry refuses a guest without it (`IA32_VMX_CR0_FIXED0`) |
//! | CR0.CD, CR0.NW | the caches are the machine's. VM entry does not load the two bits, VMRUN does |
//! | EFER.SVME | VMRUN refuses a guest without it |

use core::fmt;

use super::register_bits::{cr0, cr4, efer};

/// The two extensions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Extension {
    /// Intel's.
    Vmx,
    /// AMD's.
    Svm,
}

/// The bits of CR0, CR4 and EFER that have the host's value while a guest runs.
///
/// CR4.MCE is always one of them, and so is what the extension itself needs: VMXE, SVME.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostBits {
    extension: Extension,
    cr0: u64,
    cr4: u64,
    efer: u64,
}

/// Why the host can't own these bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HostBitsError {
    /// CR4.MCE is missing: a machine check in the guest would take the machine down.
    NoMce,
    /// VMX: CR4.VMXE is missing, and no VM entry would succeed.
    NoVmxe,
    /// SVM: EFER.SVME is missing, and no VMRUN would succeed.
    NoSvme,
    /// Bits of CR0 that say what the guest's instructions mean.
    Cr0(u64),
    /// Bits of CR4 that say what the guest's instructions mean, or that the extension does not
    /// have.
    Cr4(u64),
    /// Bits of EFER that say what the guest's instructions mean, or that are not switched by hand.
    Efer(u64),
}

impl fmt::Display for HostBitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMce => f.write_str("CR4.MCE must be the host's; add it"),
            Self::NoVmxe => f.write_str("CR4.VMXE must be the host's on VMX; add it"),
            Self::NoSvme => f.write_str("EFER.SVME must be the host's on SVM; add it"),
            Self::Cr0(bits) => {
                write!(f, "bits {bits:#x} of CR0 can't be the host's in a guest; leave them out")
            }
            Self::Cr4(bits) => {
                write!(f, "bits {bits:#x} of CR4 can't be the host's in a guest; leave them out")
            }
            Self::Efer(bits) => {
                write!(f, "bits {bits:#x} of EFER can't be the host's in a guest; leave them out")
            }
        }
    }
}

impl core::error::Error for HostBitsError {}

impl HostBits {
    /// On VMX: MCE and VMXE; NE, CD and NW.
    pub const VMX: Self = Self {
        extension: Extension::Vmx,
        cr0: cr0::NE | cr0::CD | cr0::NW,
        cr4: cr4::MCE | cr4::VMXE,
        efer: 0,
    };

    /// On SVM: MCE, and SVME. CR0 is the guest's: its reads and writes need no exit then.
    pub const SVM: Self =
        Self { extension: Extension::Svm, cr0: 0, cr4: cr4::MCE, efer: efer::SVME };

    /// These bits and no others.
    ///
    /// # Errors
    /// [`HostBitsError`] when a bit is missing that must be the host's, or one is there that can't
    /// be.
    pub const fn new(
        extension: Extension,
        cr0: u64,
        cr4: u64,
        efer: u64,
    ) -> Result<Self, HostBitsError> {
        if cr4 & cr4::MCE == 0 {
            return Err(HostBitsError::NoMce);
        }
        let (cr4_may, efer_may) = match extension {
            Extension::Vmx => {
                if cr4 & cr4::VMXE == 0 {
                    return Err(HostBitsError::NoVmxe);
                }
                // The VM-entry control "load IA32_EFER" switches the whole register.
                (cr4::MCE | cr4::VMXE | cr4::SMXE, 0)
            }
            Extension::Svm => {
                if efer & efer::SVME == 0 {
                    return Err(HostBitsError::NoSvme);
                }
                (cr4::MCE, efer::SVME)
            }
        };
        let cr0_may = cr0::NE | cr0::CD | cr0::NW;
        if cr0 & !cr0_may != 0 {
            return Err(HostBitsError::Cr0(cr0 & !cr0_may));
        }
        if cr4 & !cr4_may != 0 {
            return Err(HostBitsError::Cr4(cr4 & !cr4_may));
        }
        if efer & !efer_may != 0 {
            return Err(HostBitsError::Efer(efer & !efer_may));
        }
        Ok(Self { extension, cr0, cr4, efer })
    }

    /// The extension that they are for.
    #[must_use]
    pub const fn extension(self) -> Extension {
        self.extension
    }

    /// Those of CR0.
    #[must_use]
    pub const fn cr0(self) -> u64 {
        self.cr0
    }

    /// Those of CR4.
    #[must_use]
    pub const fn cr4(self) -> u64 {
        self.cr4
    }

    /// Those of EFER.
    #[must_use]
    pub const fn efer(self) -> u64 {
        self.efer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every subset of the bits that could matter, and each other bit alone.
    #[test]
    fn mce_and_the_extensions_own_bit_are_always_the_hosts() {
        for bits in 0..64u64 {
            let pick = |at: u32, bit: u64| if bits >> at & 1 == 1 { bit } else { 0 };
            let cr4 =
                pick(0, cr4::MCE) | pick(1, cr4::VMXE) | pick(2, cr4::SMXE) | pick(3, cr4::PAE);
            let efer = pick(4, efer::SVME) | pick(5, efer::NXE);
            for extension in [Extension::Vmx, Extension::Svm] {
                let got = HostBits::new(extension, 0, cr4, efer);
                let may = match extension {
                    Extension::Vmx => cr4 & !cr4::SMXE == cr4::MCE | cr4::VMXE && efer == 0,
                    Extension::Svm => cr4 == cr4::MCE && efer == efer::SVME,
                };
                assert_eq!(got.is_ok(), may, "{extension:?} {cr4:#x} {efer:#x}: {got:?}");
                if let Ok(got) = got {
                    assert_eq!((got.cr0(), got.cr4(), got.efer()), (0, cr4, efer));
                    assert_eq!(got.extension(), extension);
                }
            }
        }
    }

    #[test]
    fn a_bit_that_the_guests_instructions_depend_on_is_refused_by_name() {
        let of = |cr0, cr4, efer| HostBits::new(Extension::Vmx, cr0, cr4, efer);
        let must = cr4::MCE | cr4::VMXE;
        for bit in 0..64 {
            let bit = 1u64 << bit;
            let cr0_may = bit == cr0::NE || bit == cr0::CD || bit == cr0::NW;
            assert_eq!(of(bit, must, 0).err(), (!cr0_may).then_some(HostBitsError::Cr0(bit)));
            let cr4_may = must & bit != 0 || bit == cr4::SMXE;
            assert_eq!(of(0, must | bit, 0).err(), (!cr4_may).then_some(HostBitsError::Cr4(bit)));
            assert_eq!(of(0, must, bit), Err(HostBitsError::Efer(bit)));
        }
        assert_eq!(of(0, cr4::VMXE, 0), Err(HostBitsError::NoMce));
        assert_eq!(of(0, cr4::MCE, 0), Err(HostBitsError::NoVmxe));
        assert_eq!(HostBits::new(Extension::Svm, 0, cr4::MCE, 0), Err(HostBitsError::NoSvme));
        assert_eq!(
            HostBits::new(Extension::Svm, 0, cr4::MCE | cr4::VMXE, efer::SVME),
            Err(HostBitsError::Cr4(cr4::VMXE))
        );
    }

    #[test]
    fn the_defaults_are_what_the_constructor_accepts() {
        for bits in [HostBits::VMX, HostBits::SVM] {
            let again = HostBits::new(bits.extension(), bits.cr0(), bits.cr4(), bits.efer());
            assert_eq!(again, Ok(bits));
        }
    }
}
