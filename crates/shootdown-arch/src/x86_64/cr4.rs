//! CR4: the bits translation depends on, and the oldest way to drop every entry.
//!
//! Changing `CR4.PGE` in either direction removes every entry of every PCID, global ones included,
//! and every paging-structure-cache entry (SDM 4.10.4.1): what a CPU without INVPCID has for
//! "everything". Setting `CR4.PCIDE` faults unless CR3 names PCID 0 (SDM 3A 4.10.1).

use core::fmt;

use super::pcid::Pcid;

/// A value of CR4. Bits this crate has no business with pass through unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cr4(u64);

/// Why `CR4.PCIDE` can't be set now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cr4Error {
    /// CR3 names another PCID than 0.
    PcidInUse(Pcid),
    /// `CR4.PGE` is clear: there would be no way to drop everything without INVPCID.
    NoGlobalPages,
}

impl fmt::Display for Cr4Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PcidInUse(pcid) => {
                write!(
                    f,
                    "the low bits of CR3 are {:#x}; load PCID 0 before turning PCIDs on",
                    pcid.get()
                )
            }
            Self::NoGlobalPages => f.write_str("CR4.PGE is clear; set it before turning PCIDs on"),
        }
    }
}

impl core::error::Error for Cr4Error {}

impl Cr4 {
    const PGE: u64 = 1 << 7;
    const LA57: u64 = 1 << 12;
    const PCIDE: u64 = 1 << 17;

    /// A value read from the register.
    #[must_use]
    pub const fn from_bits(raw: u64) -> Self {
        Self(raw)
    }

    /// The register value.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Global pages are on.
    #[must_use]
    pub const fn pge(self) -> bool {
        self.0 & Self::PGE != 0
    }

    /// PCIDs are on.
    #[must_use]
    pub const fn pcide(self) -> bool {
        self.0 & Self::PCIDE != 0
    }

    /// Five levels of tables are in use.
    #[must_use]
    pub const fn la57(self) -> bool {
        self.0 & Self::LA57 != 0
    }

    /// The same value with global pages the other way round.
    #[must_use]
    pub const fn with_pge_flipped(self) -> Self {
        Self(self.0 ^ Self::PGE)
    }

    /// The same value with PCIDs on, given what CR3 holds now.
    ///
    /// # Errors
    /// [`Cr4Error`] when the CPU would fault, or when nothing could drop every entry afterwards.
    pub const fn with_pcide(self, cr3: u64) -> Result<Self, Cr4Error> {
        let pcid = Pcid::of_cr3(cr3);
        if pcid.get() != 0 {
            return Err(Cr4Error::PcidInUse(pcid));
        }
        if !self.pge() {
            return Err(Cr4Error::NoGlobalPages);
        }
        Ok(Self(self.0 | Self::PCIDE))
    }
}

/// The templates, shared by the wrappers and the test of their encoding.
#[cfg(target_arch = "x86_64")]
macro_rules! template {
    (read $to:tt) => {
        concat!("mov ", $to, ", cr4")
    };
    (write $from:tt) => {
        concat!("mov cr4, ", $from)
    };
}

/// Reads CR4.
///
/// # Safety
/// The CPU is at privilege level 0.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[must_use]
pub unsafe fn read_cr4() -> Cr4 {
    let value;
    // SAFETY: reading the register is permitted (the caller's promise) and changes nothing.
    unsafe {
        core::arch::asm!(template!(read "{0}"), out(reg) value, options(nomem, nostack, preserves_flags));
    }
    Cr4(value)
}

/// Writes CR4.
///
/// # Safety
/// The CPU is at privilege level 0, and running on with these control bits is sound: the CPU has
/// every feature that is set, and no code of the kernel relies on a bit that changes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn write_cr4(value: Cr4) {
    // SAFETY: the caller's promise. Without `nomem` earlier page-table stores stay before it.
    unsafe {
        core::arch::asm!(template!(write "{0}"), in(reg) value.0, options(nostack, preserves_flags));
    }
}

/// Removes every entry of this CPU by changing `CR4.PGE` and changing it back.
///
/// # Safety
/// The CPU is at privilege level 0, has global pages (CPUID.1.EDX\[13\]), and no interrupt handler
/// that may run here writes other bits of CR4 (its change would be undone).
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn toggle_pge() {
    // SAFETY: the feature exists and the last write restores what was there, both by the caller's
    // promise; in between, only global pages differ, which changes no translation.
    unsafe {
        let before = read_cr4();
        write_cr4(before.with_pge_flipped());
        write_cr4(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flipping_twice_restores_every_bit() {
        for bit in 0..64 {
            let value = Cr4::from_bits(1 << bit);
            assert_eq!(value.with_pge_flipped().bits() ^ value.bits(), 0x80);
            assert_eq!(value.with_pge_flipped().with_pge_flipped(), value);
            assert_eq!(
                (value.pge(), value.la57(), value.pcide()),
                (bit == 7, bit == 12, bit == 17)
            );
        }
    }

    #[test]
    fn pcids_are_turned_on_only_where_the_cpu_accepts_it() {
        let on = Cr4::from_bits(0x6a0);
        for raw in 0..=Pcid::MAX.get() {
            let got = on.with_pcide(0x7000 | u64::from(raw));
            if raw == 0 {
                assert_eq!(got, Ok(Cr4::from_bits(0x6a0 | 1 << 17)));
            } else {
                assert_eq!(got, Err(Cr4Error::PcidInUse(Pcid::new(raw).unwrap())));
            }
        }
        assert_eq!(Cr4::from_bits(0x620).with_pcide(0x7000), Err(Cr4Error::NoGlobalPages));
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
    assembled!(reads, "cr4_read", read);
    assembled!(writes, "cr4_write", write);

    /// 0F 20 /4 reads, 0F 22 /4 writes (SDM vol. 2B, MOV to/from control registers).
    #[test]
    fn encoding_is_0f_20_and_0f_22_slash_4() {
        for (table, opcode) in [(reads(), 0x20), (writes(), 0x22)] {
            for (register, bytes) in table {
                let mut expected = std::vec::Vec::new();
                expected.extend(rex(false, 4, register));
                expected.extend([0x0f, opcode, register_operand(4, register)]);
                assert_eq!(bytes, expected, "register {register}");
            }
        }
    }
}
