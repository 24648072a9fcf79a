//! INVPCID: entries of any PCID, loaded or not, in four kinds.
//!
//! The operand is a type in a register and a 128-bit descriptor in memory (SDM vol. 2A, INVPCID):
//!
//! | bits | meaning |
//! |---|---|
//! | 11:0 | PCID (types 0 and 1) |
//! | 63:12 | reserved, must be zero |
//! | 127:64 | linear address, canonical (type 0) |
//!
//! The instruction faults (#GP) on a type above 3, on a reserved bit, on a non-canonical address of
//! type 0, and on a PCID other than 0 of types 0 and 1 while `CR4.PCIDE` is clear. [`Invpcid`]
//! can't express the first three; [`Invpcid::allowed`] answers the fourth. Guests have brought
//! hosts down with such operands; descriptors that come from elsewhere go through
//! [`InvpcidDescriptor::decode`].

use core::fmt;

use super::linear::{LinearAddress, LinearError, LinearWidth};
use super::pcid::Pcid;

/// One INVPCID operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invpcid {
    /// Type 0: the entries for one page under one PCID, global ones excepted.
    Address {
        /// Whose entries.
        pcid: Pcid,
        /// An address in the page.
        address: LinearAddress,
    },
    /// Type 1: every entry of one PCID, global ones excepted.
    Context(Pcid),
    /// Type 2: every entry of every PCID, global ones included.
    AllWithGlobals,
    /// Type 3: every entry of every PCID, global ones excepted.
    AllButGlobals,
}

/// The memory operand: 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(16))]
pub struct InvpcidDescriptor {
    low: u64,
    address: u64,
}

/// Why a type and a descriptor are no INVPCID operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvpcidError {
    /// The type is above 3.
    Type(u64),
    /// These reserved bits of the low half are set.
    Reserved(u64),
    /// The address of a type-0 operation can't be translated.
    Address(LinearError),
}

impl fmt::Display for InvpcidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(kind) => write!(f, "INVPCID type {kind} does not exist; use 0 to 3"),
            Self::Reserved(bits) => {
                write!(f, "reserved bits {bits:#x} of the INVPCID descriptor are set; clear them")
            }
            Self::Address(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for InvpcidError {}

impl Invpcid {
    /// The type: the register operand.
    #[must_use]
    pub const fn kind(self) -> u64 {
        match self {
            Self::Address { .. } => 0,
            Self::Context(_) => 1,
            Self::AllWithGlobals => 2,
            Self::AllButGlobals => 3,
        }
    }

    /// The memory operand. Fields a type ignores are zero.
    #[must_use]
    pub const fn descriptor(self) -> InvpcidDescriptor {
        let (pcid, address) = match self {
            Self::Address { pcid, address } => (pcid, address.get()),
            Self::Context(pcid) => (pcid, 0),
            Self::AllWithGlobals | Self::AllButGlobals => (Pcid::ZERO, 0),
        };
        InvpcidDescriptor { low: pcid.get() as u64, address }
    }

    /// Does the instruction accept this operation in this state of `CR4.PCIDE`?
    #[must_use]
    pub const fn allowed(self, pcide: bool) -> bool {
        match self {
            Self::Address { pcid, .. } | Self::Context(pcid) => pcide || pcid.get() == 0,
            Self::AllWithGlobals | Self::AllButGlobals => true,
        }
    }
}

impl InvpcidDescriptor {
    /// A descriptor as found in memory, low half first, unchecked.
    #[must_use]
    pub const fn from_raw(low: u64, address: u64) -> Self {
        Self { low, address }
    }

    /// The two halves, low half first.
    #[must_use]
    pub const fn raw(self) -> (u64, u64) {
        (self.low, self.address)
    }

    /// The operation this descriptor and a type name: what a hypervisor asks before it acts for a
    /// guest.
    ///
    /// # Errors
    /// Whatever would make the instruction fault, [`Invpcid::allowed`] aside.
    pub const fn decode(self, kind: u64, width: LinearWidth) -> Result<Invpcid, InvpcidError> {
        if kind > 3 {
            return Err(InvpcidError::Type(kind));
        }
        let reserved = self.low & !(Pcid::MAX.get() as u64);
        if reserved != 0 {
            return Err(InvpcidError::Reserved(reserved));
        }
        let pcid = Pcid::of_cr3(self.low);
        Ok(match kind {
            0 => match LinearAddress::new(self.address, width) {
                Ok(address) => Invpcid::Address { pcid, address },
                Err(error) => return Err(InvpcidError::Address(error)),
            },
            1 => Invpcid::Context(pcid),
            2 => Invpcid::AllWithGlobals,
            _ => Invpcid::AllButGlobals,
        })
    }
}

/// The template, shared by the wrapper and the test of its encoding.
#[cfg(target_arch = "x86_64")]
macro_rules! template {
    ($kind:tt, $descriptor:tt) => {
        concat!("invpcid ", $kind, ", [", $descriptor, "]")
    };
}

/// Executes INVPCID.
///
/// # Safety
/// The CPU is at privilege level 0, has INVPCID (CPUID.7.EBX\[10\]), and the operation is
/// [allowed](Invpcid::allowed) in the present state of `CR4.PCIDE`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn invpcid(operation: Invpcid) {
    let descriptor = operation.descriptor();
    // SAFETY: the instruction exists and is permitted (the caller's promise); its operands come
    // from `Invpcid`, so none of its other faults is possible (I1). It reads 16 bytes that live
    // until the end of this function and writes nothing but the translation caches. The
    // compiler is told that it may touch memory, so that no access moves across it.
    unsafe {
        core::arch::asm!(
            template!("{0}", "{1}"),
            in(reg) operation.kind(),
            in(reg) &raw const descriptor,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTHS: [LinearWidth; 2] = [LinearWidth::Bits48, LinearWidth::Bits57];
    const ADDRESSES: [u64; 8] = [
        0,
        0x1000,
        0x7fff_ffff_f000,
        0x8000_0000_0000,
        0x00ff_ffff_ffff_f000,
        0x0100_0000_0000_0000,
        0xffff_8000_0000_0000,
        u64::MAX,
    ];

    fn all_operations(width: LinearWidth) -> impl Iterator<Item = Invpcid> {
        let pcids = || (0..=Pcid::MAX.get()).map(|raw| Pcid::new(raw).unwrap());
        let addresses =
            move || ADDRESSES.into_iter().filter_map(move |a| LinearAddress::new(a, width).ok());
        pcids()
            .flat_map(move |pcid| {
                addresses().map(move |address| Invpcid::Address { pcid, address })
            })
            .chain(pcids().map(Invpcid::Context))
            .chain([Invpcid::AllWithGlobals, Invpcid::AllButGlobals])
    }

    #[test]
    fn every_operation_has_the_manuals_layout_and_reads_back() {
        for width in WIDTHS {
            for operation in all_operations(width) {
                let (low, address) = operation.descriptor().raw();
                let (pcid, linear) = match operation {
                    Invpcid::Address { pcid, address } => (pcid.get(), address.get()),
                    Invpcid::Context(pcid) => (pcid.get(), 0),
                    _ => (0, 0),
                };
                assert_eq!((low, address), (u64::from(pcid), linear));
                let back =
                    InvpcidDescriptor::from_raw(low, address).decode(operation.kind(), width);
                assert_eq!(back, Ok(operation));
                assert!(operation.allowed(true));
                assert_eq!(operation.allowed(false), operation.kind() > 1 || pcid == 0);
            }
        }
    }

    #[test]
    fn the_descriptor_in_memory_is_128_bits_little_end_first() {
        assert_eq!(size_of::<InvpcidDescriptor>(), 16);
        let address = LinearAddress::new(0xffff_8123_4567_8000, LinearWidth::Bits48).unwrap();
        let pcid = Pcid::new(0xabc).unwrap();
        let (low, high) = Invpcid::Address { pcid, address }.descriptor().raw();
        let memory = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        assert_eq!(
            memory,
            [0xbc, 0x0a, 0, 0, 0, 0, 0, 0, 0x00, 0x80, 0x67, 0x45, 0x23, 0x81, 0xff, 0xff]
        );
        assert_eq!(core::mem::offset_of!(InvpcidDescriptor, low), 0);
        assert_eq!(core::mem::offset_of!(InvpcidDescriptor, address), 8);
    }

    #[test]
    fn what_would_fault_is_refused() {
        for width in WIDTHS {
            for bit in 12..64 {
                for kind in 0..4 {
                    let got = InvpcidDescriptor::from_raw(1 << bit | 5, 0).decode(kind, width);
                    assert_eq!(got, Err(InvpcidError::Reserved(1 << bit)));
                }
            }
            for kind in [4, 5, 1 << 32, u64::MAX] {
                let got = InvpcidDescriptor::from_raw(0, 0).decode(kind, width);
                assert_eq!(got, Err(InvpcidError::Type(kind)));
            }
            for address in ADDRESSES {
                for kind in 0..4 {
                    let got = InvpcidDescriptor::from_raw(0, address).decode(kind, width);
                    assert_eq!(got.is_ok(), kind != 0 || width.is_canonical(address));
                }
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod encoding {
    use crate::x86_64::model::{bytes_between, memory_operand, rex};

    macro_rules! encode {
        ($(($kind:literal, $kind_reg:literal, $base:literal, $base_reg:literal)),* $(,)?) => {
            $(core::arch::global_asm!(
                concat!(".globl sd_invpcid_", $kind, "_", $base),
                concat!("sd_invpcid_", $kind, "_", $base, ":"),
                template!($kind_reg, $base_reg),
                concat!(".globl sd_invpcid_", $kind, "_", $base, "_end"),
                concat!("sd_invpcid_", $kind, "_", $base, "_end:"),
            );)*
            fn table() -> std::vec::Vec<(u8, u8, &'static [u8])> {
                std::vec![$({
                    unsafe extern "C" {
                        #[link_name = concat!("sd_invpcid_", $kind, "_", $base)]
                        static START: u8;
                        #[link_name = concat!("sd_invpcid_", $kind, "_", $base, "_end")]
                        static END: u8;
                    }
                    ($kind, $base, bytes_between(&raw const START, &raw const END))
                }),*]
            }
        };
    }

    macro_rules! pairs {
        ([] $bases:tt [$($done:tt)*]) => { encode!($($done),*); };
        ([($k:literal, $kr:literal) $($kinds:tt)*] [$(($b:literal, $br:literal))*] [$($done:tt)*]) => {
            pairs!([$($kinds)*] [$(($b, $br))*] [$($done)* $(($k, $kr, $b, $br))*]);
        };
    }

    pairs!(
        [(0, "rax") (1, "rcx") (2, "rdx") (3, "rbx") (4, "rsp") (5, "rbp") (6, "rsi") (7, "rdi")
         (8, "r8") (9, "r9") (10, "r10") (11, "r11") (12, "r12") (13, "r13") (14, "r14") (15, "r15")]
        [(0, "rax") (1, "rcx") (2, "rdx") (3, "rbx") (4, "rsp") (5, "rbp") (6, "rsi") (7, "rdi")
         (8, "r8") (9, "r9") (10, "r10") (11, "r11") (12, "r12") (13, "r13") (14, "r14") (15, "r15")]
        []
    );

    /// 66 0F 38 82 /r (SDM vol. 2A, INVPCID), for all 256 pairs of registers.
    #[test]
    fn encoding_is_66_0f_38_82_slash_r() {
        let table = table();
        assert_eq!(table.len(), 256);
        for (kind, base, bytes) in table {
            let mut expected = std::vec![0x66];
            expected.extend(rex(false, kind, base));
            expected.extend([0x0f, 0x38, 0x82]);
            expected.extend(memory_operand(kind, base));
            assert_eq!(bytes, expected, "type in register {kind}, descriptor at register {base}");
        }
    }
}
