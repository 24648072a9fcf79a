//! SFENCE.VMA and Svinval: which entries they remove, and how they are encoded.
//!
//! # Which entries (Privileged, SFENCE.VMA)
//!
//! | address | ASID | removes |
//! |---|---|---|
//! | – | – | everything: every address, every ASID, global entries, every level |
//! | – | yes | everything of the ASID at every level, global entries excepted |
//! | yes | – | *leaf* entries for the address, of every ASID, global ones included |
//! | yes | yes | *leaf* entries for the address under the ASID, global ones excepted |
//!
//! An address that the mode can't translate removes nothing, and no fault is raised. ASID bits
//! beyond those that the hart implements are ignored; those beyond bit 15 must be zero.
//!
//! # Order
//! SFENCE.VMA does three things at once: stores that this hart has made or seen come before the
//! walks that follow; entries go; walks that began before install nothing. It does **not** order
//! ordinary loads and stores with each other. Svinval takes the three apart, so that many
//! invalidations share two fences: SFENCE.W.INVAL (stores before), SINVAL.VMA any number of times
//! (entries), SFENCE.INVAL.IR (walks after). A SINVAL.VMA outside of the two is ordered with
//! nothing ([`super::Steps`] never yields one).
//!
//! # Encoding
//! `funct7 | rs2 | rs1 | 000 | 00000 | 1110011` (SYSTEM), with the ASID in rs2 and the address in
//! rs1:
//!
//! | instruction | funct7 | rs2 | rs1 |
//! |---|---|---|---|
//! | SFENCE.VMA | 0001001 | ASID or x0 | address or x0 |
//! | SINVAL.VMA | 0001011 | ASID or x0 | address or x0 |
//! | SFENCE.W.INVAL | 0001100 | 0 | 0 |
//! | SFENCE.INVAL.IR | 0001100 | 1 | 0 |
//!
//! The wrappers write them by number, so that they assemble without Svinval being named. One macro
//! holds the numbers for the tests and for the instructions.

use crate::asid::Asid;

/// Which entries a fence removes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fence {
    /// Only leaf entries for this address; `None` for every address and every level.
    pub address: Option<u64>,
    /// Only entries of this ASID that are not global; `None` for every entry of every ASID.
    pub asid: Option<Asid>,
}

impl Fence {
    /// Everything.
    pub const ALL: Self = Self { address: None, asid: None };

    /// Everything of an ASID that is not global.
    #[must_use]
    pub const fn asid(asid: Asid) -> Self {
        Self { address: None, asid: Some(asid) }
    }

    /// The leaf entries for an address.
    #[must_use]
    pub const fn page(address: u64, asid: Option<Asid>) -> Self {
        Self { address: Some(address), asid }
    }

    /// Does it remove an entry? `leaf`: it is a leaf entry for a page of 2^`shift` bytes at `page`;
    /// otherwise it is one of a higher level. `asid`: whose it is; `None` for a global one.
    #[must_use]
    pub const fn removes(self, page: u64, shift: u32, leaf: bool, asid: Option<Asid>) -> bool {
        let address_fits = match self.address {
            None => true,
            Some(address) => leaf && address >> shift == page >> shift,
        };
        let asid_fits = match (self.asid, asid) {
            (None, _) => true,
            (Some(named), Some(asid)) => named.get() == asid.get(),
            (Some(_), None) => false,
        };
        address_fits && asid_fits
    }
}

/// An instruction without its registers' contents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Instruction {
    /// SFENCE.VMA.
    Sfence(Fence),
    /// SINVAL.VMA.
    Sinval(Fence),
    /// SFENCE.W.INVAL.
    WInval,
    /// SFENCE.INVAL.IR.
    InvalIr,
}

/// The fields of an instruction word that are not registers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Word {
    /// funct7.
    pub funct7: u8,
    /// The address is in a register (otherwise x0).
    pub has_address: bool,
    /// The ASID is in a register; otherwise rs2 is this number.
    pub rs2: Result<(), u8>,
}

impl Word {
    /// The instruction word, with the address and the ASID in these registers where there are any.
    #[must_use]
    pub const fn encode(self, address: u8, asid: u8) -> u32 {
        let rs1 = if self.has_address { address as u32 & 31 } else { 0 };
        let rs2 = match self.rs2 {
            Ok(()) => asid as u32 & 31,
            Err(fixed) => fixed as u32,
        };
        (self.funct7 as u32) << 25 | rs2 << 20 | rs1 << 15 | 0b111_0011
    }
}

macro_rules! numbers {
    (sfence) => {
        0b000_1001
    };
    (sinval) => {
        0b000_1011
    };
    (batch) => {
        0b000_1100
    };
}

impl Instruction {
    /// How it is encoded.
    #[must_use]
    pub const fn word(self) -> Word {
        let (funct7, fence) = match self {
            Self::Sfence(fence) => (numbers!(sfence), fence),
            Self::Sinval(fence) => (numbers!(sinval), fence),
            Self::WInval => {
                return Word { funct7: numbers!(batch), has_address: false, rs2: Err(0) };
            }
            Self::InvalIr => {
                return Word { funct7: numbers!(batch), has_address: false, rs2: Err(1) };
            }
        };
        let rs2 = if fence.asid.is_some() { Ok(()) } else { Err(0) };
        Word { funct7, has_address: fence.address.is_some(), rs2 }
    }
}

/// One of the two instructions with a [`Fence`], by its number. An operand that is there may hold
/// zero but must not be x0, which the register class `reg` never is.
#[cfg(target_arch = "riscv64")]
macro_rules! with_operands {
    ($name:ident, $fence:expr) => {
        match ($fence.address, $fence.asid) {
            (None, None) => core::arch::asm!(
                ".insn r 0x73, 0, {f}, x0, x0, x0",
                f = const numbers!($name), options(nostack)),
            (None, Some(asid)) => core::arch::asm!(
                ".insn r 0x73, 0, {f}, x0, x0, {asid}",
                f = const numbers!($name), asid = in(reg) u64::from(asid.get()), options(nostack)),
            (Some(address), None) => core::arch::asm!(
                ".insn r 0x73, 0, {f}, x0, {address}, x0",
                f = const numbers!($name), address = in(reg) address, options(nostack)),
            (Some(address), Some(asid)) => core::arch::asm!(
                ".insn r 0x73, 0, {f}, x0, {address}, {asid}",
                f = const numbers!($name), address = in(reg) address,
                asid = in(reg) u64::from(asid.get()), options(nostack)),
        }
    };
}

/// Executes SFENCE.VMA.
///
/// # Safety
/// The hart is in supervisor mode, and `mstatus.TVM` does not trap the instruction.
#[cfg(target_arch = "riscv64")]
#[inline(always)]
pub unsafe fn fence(what: Fence) {
    // SAFETY: the caller's promise.
    unsafe { execute(Instruction::Sfence(what)) }
}

/// Executes an instruction.
///
/// # Safety
/// As for [`fence()`]; and the hart has Svinval, for every other instruction than SFENCE.VMA.
#[cfg(target_arch = "riscv64")]
#[inline(always)]
pub unsafe fn execute(what: Instruction) {
    // SAFETY: the instruction exists and is permitted (the caller's promise); it reads at most two
    // registers and changes translation caches only. The compiler is told that it may touch
    // memory, so that no access moves across it.
    unsafe {
        match what {
            Instruction::Sfence(fence) => with_operands!(sfence, fence),
            Instruction::Sinval(fence) => with_operands!(sinval, fence),
            Instruction::WInval => core::arch::asm!(
                ".insn r 0x73, 0, {f}, x0, x0, x0", f = const numbers!(batch), options(nostack)),
            Instruction::InvalIr => core::arch::asm!(
                ".insn r 0x73, 0, {f}, x0, x0, x1", f = const numbers!(batch), options(nostack)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asid::AsidWidth;

    const X0: u8 = 0;
    const RA: u8 = 1;
    const A0: u8 = 10;
    const A1: u8 = 11;
    const T6: u8 = 31;

    fn forms() -> [Fence; 4] {
        [
            Fence::ALL,
            Fence::asid(Asid::ZERO),
            Fence::page(0, None),
            Fence::page(0, Some(Asid::ZERO)),
        ]
    }

    /// Words that an assembler (LLVM's) made of the mnemonics.
    #[test]
    fn every_instruction_is_the_assemblers_word() {
        let [all, asid, page, both] = forms();
        let word = |what: Instruction, address, asid| what.word().encode(address, asid);
        for (fence, sfence, sinval) in [
            (all, 0x1200_0073, 0x1600_0073),
            (asid, 0x12b0_0073, 0x16b0_0073),
            (page, 0x1205_0073, 0x1605_0073),
            (both, 0x12b5_0073, 0x16b5_0073),
        ] {
            assert_eq!(word(Instruction::Sfence(fence), A0, A1), sfence);
            assert_eq!(word(Instruction::Sinval(fence), A0, A1), sinval);
        }
        assert_eq!(word(Instruction::Sfence(both), T6, RA), 0x121f_8073);
        assert_eq!(word(Instruction::Sinval(both), T6, RA), 0x161f_8073);
        assert_eq!(word(Instruction::WInval, A0, A1), 0x1800_0073);
        assert_eq!(word(Instruction::InvalIr, A0, A1), 0x1810_0073);
    }

    /// Zero is an address and an ASID like any other; only x0 says "every".
    #[test]
    fn an_operand_of_zero_is_no_missing_operand() {
        let words = forms().map(|f| Instruction::Sfence(f).word());
        for (i, a) in words.iter().enumerate() {
            for b in &words[i + 1..] {
                assert_ne!(a, b);
                assert_ne!(a.encode(A0, A1), b.encode(A0, A1));
            }
        }
        // What would go wrong if an operand were put into x0.
        let [all, .., both] = words;
        assert_eq!(both.encode(X0, X0), all.encode(A0, A1));
    }

    /// The table of the module, row by row.
    #[test]
    fn fences_remove_what_the_manual_says() {
        let asid = |raw| Asid::new(raw, AsidWidth::BITS_16).unwrap();
        let (mine, other) = (asid(5), asid(6));
        // (leaf, asid) of entries at the named address, then the same at another address.
        let entries = [
            (0x1000, true, Some(mine)),
            (0x1000, false, Some(mine)),
            (0x1000, true, Some(other)),
            (0x1000, true, None),
            (0x1000, false, None),
            (0x2000, true, Some(mine)),
            (0x2000, true, None),
        ];
        let removed =
            |fence: Fence| entries.map(|(page, leaf, of)| fence.removes(page, 12, leaf, of));
        assert_eq!(removed(Fence::ALL), [true; 7]);
        assert_eq!(removed(Fence::asid(mine)), [true, true, false, false, false, true, false]);
        assert_eq!(
            removed(Fence::page(0x1abc, None)),
            [true, false, true, true, false, false, false]
        );
        assert_eq!(
            removed(Fence::page(0x1000, Some(mine))),
            [true, false, false, false, false, false, false]
        );
        // A large page goes by any of its addresses.
        assert!(Fence::page(0x3f_f000, Some(mine)).removes(0x20_0000, 21, true, Some(mine)));
        assert!(!Fence::page(0x40_0000, Some(mine)).removes(0x20_0000, 21, true, Some(mine)));
    }
}
