//! DSB and ISB, and the sequence that completes a TLBI.
//!
//! # Encoding (Arm ARM C6.2, DSB and ISB)
//! DSB is `1101_0101_0000_0011_0011` CRm `1_00_11111`; CRm holds the domain in bits 3:2 (0 outer, 1
//! non-shareable, 2 inner, 3 full system) and the accesses in bits 1:0 (2 stores, 3 all). ISB is
//! `0xd503_3fdf`.
//!
//! # Completion (Arm ARM D8.17, "TLB maintenance instructions and the memory order model")
//! A TLBI is complete on the CPUs of a domain when a DSB of that domain, on the CPU that issued it,
//! is. An ISB then keeps this CPU's own later instructions from using what was fetched or
//! translated before.
//!
//! On CPUs with one of the *repeat* errata (1286807, 2441007, 2441009, 4118414 and others) the DSB
//! may complete before accesses through the old entries do. Another TLBI, of anything, and another
//! DSB wait for them. Once per completion is enough, however many TLBIs there were
//! ([`Completion`]).

use super::tlbi::{Domain, Tlbi};

/// A barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Barrier {
    /// DSB for stores only: makes table stores visible to walkers.
    Stores(Domain),
    /// DSB for everything: completes TLBIs, and walks.
    Full(Domain),
    /// ISB.
    Instructions,
}

/// The CRm field of a DSB for a domain, without the accesses.
macro_rules! domain {
    (Local) => {
        0b0100
    };
    (Inner) => {
        0b1000
    };
    (Outer) => {
        0b0000
    };
}

const STORES: u32 = 0b10;
const ALL: u32 = 0b11;

impl Barrier {
    /// The instruction word.
    #[must_use]
    pub const fn word(self) -> u32 {
        const fn crm(domain: Domain) -> u32 {
            match domain {
                Domain::Local => domain!(Local),
                Domain::Inner => domain!(Inner),
                Domain::Outer => domain!(Outer),
            }
        }
        match self {
            Self::Stores(domain) => 0xd503_309f | (crm(domain) | STORES) << 8,
            Self::Full(domain) => 0xd503_309f | (crm(domain) | ALL) << 8,
            Self::Instructions => 0xd503_3fdf,
        }
    }
}

/// Executes a barrier. Safe: it changes nothing.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub fn barrier(what: Barrier) {
    macro_rules! run {
        ($word:expr) => {
            // SAFETY: the word is a barrier, which changes nothing but the order of accesses. The compiler is
            // told that it may touch memory, so that no access moves across it.
            unsafe {
                core::arch::asm!(".inst {w}", w = const $word, options(nostack, preserves_flags))
            }
        };
    }
    match what {
        Barrier::Stores(Domain::Local) => run!(Barrier::Stores(Domain::Local).word()),
        Barrier::Stores(Domain::Inner) => run!(Barrier::Stores(Domain::Inner).word()),
        Barrier::Stores(Domain::Outer) => run!(Barrier::Stores(Domain::Outer).word()),
        Barrier::Full(Domain::Local) => run!(Barrier::Full(Domain::Local).word()),
        Barrier::Full(Domain::Inner) => run!(Barrier::Full(Domain::Inner).word()),
        Barrier::Full(Domain::Outer) => run!(Barrier::Full(Domain::Outer).word()),
        Barrier::Instructions => run!(Barrier::Instructions.word()),
    }
}

/// One instruction of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Completing {
    /// A barrier.
    Barrier(Barrier),
    /// A TLBI whose operand does not matter.
    Tlbi(Tlbi),
}

/// The instructions after the last TLBI, in order.
#[derive(Clone, Debug)]
pub struct Completion {
    domain: Domain,
    repeat: bool,
    at: u8,
}

impl Completion {
    /// Completes the TLBIs of a domain. `repeat`: some CPU has one of the errata above. They
    /// concern broadcasts only.
    #[must_use]
    pub const fn new(domain: Domain, repeat: bool) -> Self {
        Self { domain, repeat: repeat && !matches!(domain, Domain::Local), at: 0 }
    }
}

impl Iterator for Completion {
    type Item = Completing;

    #[inline]
    fn next(&mut self) -> Option<Completing> {
        let full = Completing::Barrier(Barrier::Full(self.domain));
        let step = match (self.at, self.repeat) {
            (0, _) | (2, true) => full,
            (1, true) => Completing::Tlbi(Tlbi { domain: self.domain, ..Tlbi::DUMMY }),
            (1, false) | (3, true) => Completing::Barrier(Barrier::Instructions),
            _ => return None,
        };
        self.at += 1;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Words that an assembler (LLVM's) made of the mnemonics.
    #[test]
    fn every_barrier_is_the_assemblers_word() {
        for (barrier, word) in [
            (Barrier::Stores(Domain::Local), 0xd503_369f), // dsb nshst
            (Barrier::Stores(Domain::Inner), 0xd503_3a9f), // dsb ishst
            (Barrier::Stores(Domain::Outer), 0xd503_329f), // dsb oshst
            (Barrier::Full(Domain::Local), 0xd503_379f),   // dsb nsh
            (Barrier::Full(Domain::Inner), 0xd503_3b9f),   // dsb ish
            (Barrier::Full(Domain::Outer), 0xd503_339f),   // dsb osh
            (Barrier::Instructions, 0xd503_3fdf),          // isb
        ] {
            assert_eq!(barrier.word(), word, "{barrier:?}");
        }
    }

    #[test]
    fn a_broadcast_is_completed_twice_where_an_erratum_asks() {
        let words = |domain, repeat| -> Vec<u32> {
            Completion::new(domain, repeat)
                .map(|step| match step {
                    Completing::Barrier(barrier) => barrier.word(),
                    Completing::Tlbi(tlbi) => tlbi.instruction().word(0),
                })
                .collect()
        };
        let (ish, nsh, isb) = (0xd503_3b9f, 0xd503_379f, 0xd503_3fdf);
        assert_eq!(words(Domain::Inner, false), [ish, isb]);
        assert_eq!(words(Domain::Inner, true), [ish, 0xd508_83a0, ish, isb]);
        assert_eq!(words(Domain::Outer, true), [0xd503_339f, 0xd508_81a0, 0xd503_339f, isb]);
        for repeat in [false, true] {
            assert_eq!(words(Domain::Local, repeat), [nsh, isb]);
        }
    }
}
