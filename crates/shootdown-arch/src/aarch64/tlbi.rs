//! TLBI: every operation of the EL1&0 regime, with its operand and its encoding.
//!
//! # Operands (Arm ARM C5.5, one page per instruction)
//!
//! | operation | 63:48 | 47:44 | 43:0 |
//! |---|---|---|---|
//! | VMALLE1 | none: the register is XZR | | |
//! | ASIDE1 | ASID | zero | zero |
//! | VAE1, VALE1 | ASID | TTL | VA\[55:12\] |
//! | VAAE1, VAALE1 | zero | TTL | VA\[55:12\] |
//! | RVAE1, RVALE1, RVAAE1, RVAALE1 | see [`Span`] | | |
//!
//! *L* is "last level": leaf entries only; *A* is every ASID. TTL is a hint: bits 47:46 are the
//! granule, bits 45:44 the level of the leaf; 0 is "any level". A wrong hint may invalidate
//! **nothing**. So it is given only by who knows every leaf, and can't be given where tables were
//! freed ([`Depth`]).
//!
//! # Encodings
//! A TLBI is `SYS #op1, Cn, Cm, #op2, Xt`, that is `1101_0101_0000_1` op1 Cn Cm op2 Rt (Arm ARM
//! C6.2, SYS). For EL1, op1 is 0 and Cn is 8; Cm chooses single or range and the domain, op2 the
//! kind of match:
//!
//! | Cm | local | inner | outer | | op2 | 0 | 1 | 2 | 3 | 5 | 7 |
//! |---|---|---|---|---|---|---|---|---|---|---|---|
//! | single | 7 | 3 | 1 | | single | VMALL | VA | ASID | VAA | VAL | VAAL |
//! | range | 6 | 2 | 5 | | range | | RVA | | RVAA | RVAL | RVAAL |
//!
//! The wrappers use the generic form, so that they assemble without the CPU features being named.
//! One macro writes both the table that the tests read and the instructions.
//!
//! At EL2 of a host with `HCR_EL2.{E2H,TGE}` = {1,1} the same instructions act on the EL2&0 regime
//! (C5.5).

use super::granule::{Depth, Granule};
use super::span::Span;
use crate::asid::Asid;

/// Which CPUs an operation reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Domain {
    /// This one (a hypervisor may make it the inner domain: `HCR_EL2.FB`).
    Local,
    /// Every CPU of the inner shareable domain: all that run one operating system.
    Inner,
    /// Every CPU of the outer shareable domain (FEAT_TLBIOS).
    Outer,
}

/// The operand of a single-page operation: an address, and what is known of its leaf.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Page {
    va: u64,
    ttl: u64,
    leaf_only: bool,
}

impl Page {
    /// The page of an address. The top byte is ignored.
    #[must_use]
    pub const fn new(address: u64, granule: Granule, depth: Depth) -> Self {
        let ttl = match depth.hint(granule) {
            None => 0,
            Some(level) => granule.field() | (level.number() as u64) << 44,
        };
        // The operand holds VA[55:12]; bits below the granule are zero.
        let va = address >> granule.shift() << granule.shift();
        Self { va, ttl, leaf_only: depth.leaf_only() }
    }

    /// The address, as far as the operand holds it: bits 55:12.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.va & 0x00ff_ffff_ffff_f000
    }

    /// Cached non-leaf entries may stay.
    #[must_use]
    pub const fn leaf_only(self) -> bool {
        self.leaf_only
    }

    const fn operand(self) -> u64 {
        self.ttl | self.address() >> 12
    }
}

/// Which entries an operation removes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Everything of the regime: every ASID, global entries, every level (VMALLE1).
    All,
    /// Every non-global entry of an ASID, every level (ASIDE1).
    Asid(Asid),
    /// What translates an address (VAE1, VALE1, VAAE1, VAALE1).
    Page {
        /// Non-global entries of this ASID only; `None` for every ASID. Global leaf entries go in
        /// any case.
        asid: Option<Asid>,
        /// The address.
        page: Page,
    },
    /// What translates a range of addresses (FEAT_TLBIRANGE: RVAE1, RVALE1, RVAAE1, RVAALE1).
    Range {
        /// As for a page.
        asid: Option<Asid>,
        /// The range.
        span: Span,
    },
}

/// One TLBI.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tlbi {
    /// Which entries.
    pub operation: Operation,
    /// On which CPUs.
    pub domain: Domain,
}

/// The numbers of a SYS instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sys {
    /// op1.
    pub op1: u8,
    /// CRn.
    pub crn: u8,
    /// CRm.
    pub crm: u8,
    /// op2.
    pub op2: u8,
}

impl Sys {
    /// The instruction word with this register (31: XZR).
    #[must_use]
    pub const fn word(self, register: u8) -> u32 {
        0xd508_0000
            | (self.op1 as u32 & 7) << 16
            | (self.crn as u32 & 15) << 12
            | (self.crm as u32 & 15) << 8
            | (self.op2 as u32 & 7) << 5
            | register as u32 & 31
    }
}

macro_rules! operations {
    ($($kind:ident $op2:literal: $local:literal $inner:literal $outer:literal;)*) => {
        /// What the table distinguishes.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum Kind { $($kind),* }

        impl Kind {
            const fn sys(self, domain: Domain) -> Sys {
                match self {
                    $(Self::$kind => Sys {
                        op1: 0,
                        crn: 8,
                        crm: match domain {
                            Domain::Local => $local,
                            Domain::Inner => $inner,
                            Domain::Outer => $outer,
                        },
                        op2: $op2,
                    },)*
                }
            }

            /// # Safety
            /// As [`tlbi`].
            #[cfg(target_arch = "aarch64")]
            #[inline(always)]
            unsafe fn execute(self, domain: Domain, operand: u64) {
                // SAFETY: the instruction exists and is permitted at this exception level (the caller's
                // promise); it reads one register and changes translation caches only. The compiler is
                // told that it may touch memory, so that no access moves across it.
                unsafe {
                    match (self, domain) {
                        $((Self::$kind, Domain::Local) => core::arch::asm!(
                            concat!("sys #0, C8, C", $local, ", #", $op2, ", {0}"),
                            in(reg) operand, options(nostack, preserves_flags)),
                        (Self::$kind, Domain::Inner) => core::arch::asm!(
                            concat!("sys #0, C8, C", $inner, ", #", $op2, ", {0}"),
                            in(reg) operand, options(nostack, preserves_flags)),
                        (Self::$kind, Domain::Outer) => core::arch::asm!(
                            concat!("sys #0, C8, C", $outer, ", #", $op2, ", {0}"),
                            in(reg) operand, options(nostack, preserves_flags)),)*
                    }
                }
            }
        }
    };
}

operations! {
    // kind op2: local inner outer
    Vmalle1 0: 7 3 1;
    Vae1 1: 7 3 1;
    Aside1 2: 7 3 1;
    Vaae1 3: 7 3 1;
    Vale1 5: 7 3 1;
    Vaale1 7: 7 3 1;
    Rvae1 1: 6 2 5;
    Rvaae1 3: 6 2 5;
    Rvale1 5: 6 2 5;
    Rvaale1 7: 6 2 5;
}

impl Tlbi {
    /// The operation that repairs errata whose sync completes too early is a dummy of this form:
    /// VALE1IS with a zero operand.
    pub const DUMMY: Self = Self {
        operation: Operation::Page {
            asid: Some(Asid::ZERO),
            page: Page::new(0, Granule::K4, Depth::Leaves),
        },
        domain: Domain::Inner,
    };

    const fn kind(self) -> Kind {
        match self.operation {
            Operation::All => Kind::Vmalle1,
            Operation::Asid(_) => Kind::Aside1,
            Operation::Page { asid, page } => match (asid, page.leaf_only()) {
                (Some(_), false) => Kind::Vae1,
                (Some(_), true) => Kind::Vale1,
                (None, false) => Kind::Vaae1,
                (None, true) => Kind::Vaale1,
            },
            Operation::Range { asid, span } => match (asid, span.leaf_only()) {
                (Some(_), false) => Kind::Rvae1,
                (Some(_), true) => Kind::Rvale1,
                (None, false) => Kind::Rvaae1,
                (None, true) => Kind::Rvaale1,
            },
        }
    }

    /// The instruction.
    #[must_use]
    pub const fn instruction(self) -> Sys {
        self.kind().sys(self.domain)
    }

    /// The operand; `None` where the register must be XZR.
    #[must_use]
    pub const fn operand(self) -> Option<u64> {
        let (asid, rest) = match self.operation {
            Operation::All => return None,
            Operation::Asid(asid) => (Some(asid), 0),
            Operation::Page { asid, page, .. } => (asid, page.operand()),
            Operation::Range { asid, span, .. } => (asid, span.operand()),
        };
        Some(match asid {
            Some(asid) => asid.field() | rest,
            None => rest,
        })
    }
}

/// Executes a TLBI. It only starts the work: a DSB of the domain completes it.
///
/// # Safety
/// The CPU is at EL1, or at EL2 of a host that runs in the EL2&0 regime. It has the instruction:
/// ranges need FEAT_TLBIRANGE, the outer domain FEAT_TLBIOS.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn tlbi(what: Tlbi) {
    // SAFETY: the caller's promise.
    unsafe {
        match what.operand() {
            Some(operand) => what.kind().execute(what.domain, operand),
            None => vmalle1(what.domain),
        }
    }
}

/// VMALLE1 and its domains: the register field must be XZR, which no register class hands out.
///
/// # Safety
/// As [`tlbi`].
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn vmalle1(domain: Domain) {
    // SAFETY: as in `Kind::execute`.
    unsafe {
        match domain {
            Domain::Local => {
                core::arch::asm!("sys #0, C8, C7, #0", options(nostack, preserves_flags))
            }
            Domain::Inner => {
                core::arch::asm!("sys #0, C8, C3, #0", options(nostack, preserves_flags))
            }
            Domain::Outer => {
                core::arch::asm!("sys #0, C8, C1, #0", options(nostack, preserves_flags))
            }
        }
    }
}

#[cfg(test)]
#[path = "tlbi_tests.rs"]
mod tests;
