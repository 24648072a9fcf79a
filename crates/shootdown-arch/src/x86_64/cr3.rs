//! CR3: which tables are walked, under which PCID, and whether entries survive the load.
//!
//! | bits | `CR4.PCIDE` clear | `CR4.PCIDE` set |
//! |---|---|---|
//! | 11:0 | cache control in bits 3 and 4, otherwise ignored | PCID |
//! | M-1:12 | root frame | root frame |
//! | 62:M | reserved, must be zero | reserved, must be zero |
//! | 63 | reserved | keep: do not invalidate the PCID's entries; reads as zero |
//!
//! (SDM 3A 4.5 and 2.5, M = MAXPHYADDR; bits 62:61 switch linear-address masking on CPUs that have
//! it.) Without keep, the load removes every entry of the PCID being loaded, global ones excepted
//! (SDM 4.10.4.1). Setting bit 63 while PCIDs are off faults, so [`Cr3::untagged`] has no way to
//! ask for it.

use core::fmt;

use super::pcid::Pcid;
use crate::root::RootError;

/// The frame of a top-level table: 4 KiB aligned, within the physical addresses of the CPU
/// ([`super::Features::physical_bits`]).
pub type RootFrame = crate::root::RootFrame<52>;

/// A value for CR3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cr3 {
    root: RootFrame,
    tag: Option<Pcid>,
    keep: bool,
}

/// These bits of a CR3 value are none this crate knows in the given mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cr3Error(pub u64);

impl fmt::Display for Cr3Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bits {:#x} of the CR3 value are reserved or unknown in this mode", self.0)
    }
}

impl core::error::Error for Cr3Error {}

impl Cr3 {
    const KEEP: u64 = 1 << 63;

    /// For a CPU with `CR4.PCIDE` clear: every non-global entry goes.
    #[must_use]
    pub const fn untagged(root: RootFrame) -> Self {
        Self { root, tag: None, keep: false }
    }

    /// For a CPU with `CR4.PCIDE` set: with `keep`, the entries of the PCID stay.
    #[must_use]
    pub const fn tagged(root: RootFrame, pcid: Pcid, keep: bool) -> Self {
        Self { root, tag: Some(pcid), keep }
    }

    /// The root frame.
    #[must_use]
    pub const fn root(self) -> RootFrame {
        self.root
    }

    /// The PCID; `None` for a CPU without.
    #[must_use]
    pub const fn pcid(self) -> Option<Pcid> {
        self.tag
    }

    /// Do the PCID's entries survive the load?
    #[must_use]
    pub const fn keep(self) -> bool {
        self.keep
    }

    /// The register value.
    #[must_use]
    pub const fn bits(self) -> u64 {
        let tag = match self.tag {
            Some(pcid) => pcid.get() as u64,
            None => 0,
        };
        self.root.address() | tag | if self.keep { Self::KEEP } else { 0 }
    }

    /// Reads a register value back.
    ///
    /// # Errors
    /// [`Cr3Error`] with the bits that have no meaning here: the cache-control bits and bit 63
    /// without PCIDs, and everything between the physical address width and bit 63.
    pub const fn parse(raw: u64, pcide: bool, physical_bits: u8) -> Result<Self, Cr3Error> {
        let low = raw & 0xfff;
        let keep = raw & Self::KEEP != 0;
        let address = raw & !(0xfff | Self::KEEP);
        let root = match RootFrame::new(address, physical_bits) {
            Ok(root) => root,
            Err(RootError::TooHigh { address, physical_bits }) => {
                return Err(Cr3Error(address >> physical_bits << physical_bits));
            }
            Err(RootError::Misaligned(_)) => return Err(Cr3Error(low)),
        };
        if pcide {
            return Ok(Self::tagged(root, Pcid::of_cr3(raw), keep));
        }
        let unknown = raw & (0xfff | Self::KEEP);
        if unknown != 0 { Err(Cr3Error(unknown)) } else { Ok(Self::untagged(root)) }
    }
}

/// The templates, shared by the wrappers and the test of their encoding.
#[cfg(target_arch = "x86_64")]
macro_rules! template {
    (read $to:tt) => {
        concat!("mov ", $to, ", cr3")
    };
    (write $from:tt) => {
        concat!("mov cr3, ", $from)
    };
}

/// Reads CR3.
///
/// # Safety
/// The CPU is at privilege level 0.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[must_use]
pub unsafe fn read_cr3() -> u64 {
    let value;
    // SAFETY: reading the register is permitted (the caller's promise) and changes nothing.
    unsafe {
        core::arch::asm!(template!(read "{0}"), out(reg) value, options(nomem, nostack, preserves_flags));
    }
    value
}

/// Writes CR3.
///
/// # Safety
/// The CPU is at privilege level 0. `CR4.PCIDE` is set if and only if the value is
/// [tagged](Cr3::tagged). The tables under the root map whatever the CPU executes and touches next,
/// and stay valid until another root is loaded. With keep, every entry this CPU holds under the
/// PCID agrees with those tables.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn write_cr3(value: Cr3) {
    // SAFETY: no reserved bit is set (I1, and the caller matches tags to the mode); the mappings in
    // force afterwards are the caller's promise. Without `nomem` no access moves across the switch.
    unsafe { write_raw(value.bits()) }
}

/// Writes a value that came from CR3 or from a [`Cr3`].
///
/// # Safety
/// As for [`write_cr3`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn write_raw(value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(template!(write "{0}"), in(reg) value, options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pcid_and_keep_lands_in_its_bits() {
        for physical_bits in [36, 46, 52] {
            let top = (1u64 << physical_bits) - 0x1000;
            for address in [0, 0x1000, 0x1234_5000, top] {
                let root = RootFrame::new(address, physical_bits).unwrap();
                for raw in 0..=Pcid::MAX.get() {
                    let pcid = Pcid::new(raw).unwrap();
                    for keep in [false, true] {
                        let value = Cr3::tagged(root, pcid, keep);
                        assert_eq!(value.bits(), address | u64::from(raw) | u64::from(keep) << 63);
                        assert_eq!(Cr3::parse(value.bits(), true, physical_bits), Ok(value));
                    }
                }
                let value = Cr3::untagged(root);
                assert_eq!(value.bits(), address);
                assert_eq!(Cr3::parse(address, false, physical_bits), Ok(value));
            }
        }
    }

    #[test]
    fn reserved_bits_are_named() {
        for bit in 46..63 {
            for pcide in [false, true] {
                assert_eq!(Cr3::parse(0x1000 | 1 << bit, pcide, 46), Err(Cr3Error(1 << bit)));
            }
        }
        for bit in (0..12).chain([63]) {
            assert_eq!(Cr3::parse(0x1000 | 1 << bit, false, 46), Err(Cr3Error(1 << bit)));
            assert!(Cr3::parse(0x1000 | 1 << bit, true, 46).is_ok());
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod encoding {
    use crate::x86_64::model::{assembled, register_operand, rex};

    macro_rules! read {
        ($reg:tt) => {
            template!(read $reg)
        };
    }
    macro_rules! write {
        ($reg:tt) => {
            template!(write $reg)
        };
    }
    assembled!(reads, "cr3_read", read);
    assembled!(writes, "cr3_write", write);

    /// 0F 20 /3 reads, 0F 22 /3 writes (SDM vol. 2B, MOV to/from control registers).
    #[test]
    fn encoding_is_0f_20_and_0f_22_slash_3() {
        for (table, opcode) in [(reads(), 0x20), (writes(), 0x22)] {
            for (register, bytes) in table {
                let mut expected = std::vec::Vec::new();
                expected.extend(rex(false, 3, register));
                expected.extend([0x0f, opcode, register_operand(3, register)]);
                assert_eq!(bytes, expected, "register {register}");
            }
        }
    }
}
