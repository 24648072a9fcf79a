//! INVLPGB and TLBSYNC: invalidation on every CPU, by hardware (AMD, Zen 3 servers and later).
//!
//! The operands (APM vol. 3, INVLPGB):
//!
//! | register | bits | meaning |
//! |---|---|---|
//! | rax | 0 | the address is valid: match it |
//! | | 1 | the PCID is valid: match it |
//! | | 2 | the ASID is valid: match it |
//! | | 3 | global entries too |
//! | | 4 | final translations only: cached non-leaf entries may stay |
//! | | 5 | nested translations too |
//! | | 11:6 | reserved, zero |
//! | | 63:12 | page number of the first address |
//! | ecx | 15:0 | pages *beyond* the first; at most CPUID 8000_0008 EDX\[15:0\] |
//! | | 30:16 | reserved, zero |
//! | | 31 | step of 2 MiB instead of 4 KiB |
//! | edx | 15:0 | ASID; 0 is the host |
//! | | 27:16 | PCID |
//! | | 31:28 | reserved, zero |
//!
//! The count is the field implementations get wrong: it is one less than the number of pages, and
//! so is the maximum CPUID reports. [`InvlpgbMatch`] counts pages; only [`InvlpgbLimits::encode`]
//! subtracts. A PCID match faults while `CR4.PCIDE` is clear, so the limits carry that too.
//!
//! The ASID match is always on here: without it the instruction reaches into the entries of guests.
//! Inside a guest the hardware puts the guest's own ASID in its place.
//!
//! INVLPGB is weakly ordered and only starts the work. TLBSYNC, **on the same CPU**, waits until
//! every CPU has answered to all INVLPGBs of this one: code between the first INVLPGB and the
//! TLBSYNC must not migrate.

use core::fmt;

use shootdown::{Stride, VaRange};

use super::linear::{LinearAddress, LinearWidth};
use super::pcid::Pcid;

/// Pages one instruction names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    /// An address in the first page.
    pub first: LinearAddress,
    /// How many pages, the first included.
    pub count: u32,
    /// From one page to the next.
    pub stride: Stride,
}

/// Which entries one instruction removes: all that match every field that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvlpgbMatch {
    /// Only entries for these pages; `None` for every page.
    pub pages: Option<Pages>,
    /// Only entries of this PCID; `None` for every PCID.
    pub pcid: Option<Pcid>,
    /// Only entries of this address space identifier; 0 is the host's own.
    pub asid: u16,
    /// Global entries as well.
    pub globals: bool,
    /// Cached non-leaf entries may stay.
    pub final_only: bool,
    /// The nested translations of guests as well.
    pub nested: bool,
}

/// What the CPU accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvlpgbLimits {
    /// Pages one instruction can name: CPUID 8000_0008 EDX\[15:0\] **plus one**.
    pub max_pages: u32,
    /// `CR4.PCIDE` is set.
    pub pcide: bool,
    /// Nested translations can be named (CPUID 8000_0008 EBX\[21\]).
    pub nested: bool,
    /// How many ASIDs there are (CPUID 8000_000A EBX); at least 1, the host's.
    pub asids: u32,
    /// Width of linear addresses in use.
    pub width: LinearWidth,
}

/// Why a match can't be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvlpgbError {
    /// No page at all.
    NoPages,
    /// More pages than one instruction names.
    TooManyPages {
        /// Asked for.
        asked: u32,
        /// The CPU's limit.
        max: u32,
    },
    /// The instruction steps by 4 KiB or 2 MiB; larger pages go one by one.
    Stride,
    /// The pages run into addresses that can't be translated.
    NotCanonical,
    /// A PCID is named while PCIDs are off.
    TagsOff,
    /// The ASID does not exist.
    Asid(u16),
    /// Nested translations can't be named on this CPU.
    Nested,
}

impl fmt::Display for InvlpgbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPages => f.write_str("an INVLPGB of 0 pages; name at least one"),
            Self::TooManyPages { asked, max } => {
                write!(f, "{asked} pages in one INVLPGB, this CPU takes {max}; use `cover`")
            }
            Self::Stride => f.write_str("INVLPGB can't step by 1 GiB; name one page at a time"),
            Self::NotCanonical => {
                f.write_str("the pages leave the canonical addresses; clip the range")
            }
            Self::TagsOff => f.write_str("a PCID is named while CR4.PCIDE is clear; leave it out"),
            Self::Asid(asid) => write!(f, "ASID {asid} does not exist on this CPU"),
            Self::Nested => {
                f.write_str("this CPU can't invalidate nested translations by broadcast")
            }
        }
    }
}

impl core::error::Error for InvlpgbError {}

/// The three registers of one INVLPGB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InvlpgbOperands {
    rax: u64,
    ecx: u32,
    edx: u32,
}

impl InvlpgbOperands {
    /// Address and flags.
    #[must_use]
    pub const fn rax(self) -> u64 {
        self.rax
    }

    /// Count and step.
    #[must_use]
    pub const fn ecx(self) -> u32 {
        self.ecx
    }

    /// PCID and ASID.
    #[must_use]
    pub const fn edx(self) -> u32 {
        self.edx
    }
}

const VA: u64 = 1 << 0;
const PCID: u64 = 1 << 1;
const ASID: u64 = 1 << 2;
const GLOBAL: u64 = 1 << 3;
const FINAL_ONLY: u64 = 1 << 4;
const NESTED: u64 = 1 << 5;
const STEP_2M: u32 = 1 << 31;

impl InvlpgbLimits {
    /// The register values of one instruction.
    ///
    /// # Errors
    /// [`InvlpgbError`] for whatever would make the instruction fault or match something else.
    pub fn encode(&self, what: &InvlpgbMatch) -> Result<InvlpgbOperands, InvlpgbError> {
        let mut rax = ASID;
        let mut ecx = 0;
        let mut edx = u32::from(what.asid);
        if what.asid != 0 && u32::from(what.asid) >= self.asids {
            return Err(InvlpgbError::Asid(what.asid));
        }
        if let Some(pcid) = what.pcid {
            if !self.pcide {
                return Err(InvlpgbError::TagsOff);
            }
            rax |= PCID;
            edx |= u32::from(pcid.get()) << 16;
        }
        if let Some(pages) = what.pages {
            rax |= VA | pages.first.get() & !0xfff;
            ecx = self.count_field(&pages)?;
        }
        if what.nested && !self.nested {
            return Err(InvlpgbError::Nested);
        }
        for (wanted, bit) in
            [(what.globals, GLOBAL), (what.final_only, FINAL_ONLY), (what.nested, NESTED)]
        {
            if wanted {
                rax |= bit;
            }
        }
        Ok(InvlpgbOperands { rax, ecx, edx })
    }

    fn count_field(&self, pages: &Pages) -> Result<u32, InvlpgbError> {
        // The field is 16 bits wide whatever the limits say.
        let max = self.max_pages.clamp(1, 1 << 16);
        if pages.count == 0 {
            return Err(InvlpgbError::NoPages);
        }
        if pages.count > max {
            return Err(InvlpgbError::TooManyPages { asked: pages.count, max });
        }
        let beyond = pages.count - 1;
        let step = match pages.stride {
            Stride::Page4K => 0,
            Stride::Page2M => STEP_2M,
            Stride::Page1G if beyond == 0 => 0,
            Stride::Page1G => return Err(InvlpgbError::Stride),
        };
        let first = pages.first.get();
        let last = first.checked_add(u64::from(beyond) << pages.stride.shift());
        let same_half = |last: u64| (first ^ last) >> 63 == 0 && self.width.is_canonical(last);
        if !last.is_some_and(same_half) {
            return Err(InvlpgbError::NotCanonical);
        }
        Ok(step | beyond)
    }

    /// The instructions that together name exactly the strides of `range`, each once, with
    /// everything else as in `template` (whose own pages are ignored). Non-canonical parts of
    /// the range are left out: nothing can be cached for them.
    ///
    /// # Errors
    /// [`InvlpgbError`] when the template can't be encoded.
    pub fn cover(&self, range: VaRange, template: InvlpgbMatch) -> Result<Cover, InvlpgbError> {
        // Pages of a valid chunk can't fail, so this decides for every instruction of the cover.
        self.encode(&InvlpgbMatch { pages: None, ..template })?;
        let parts = self.width.clip(range);
        Ok(Cover { limits: *self, template, current: parts.low, next: parts.high })
    }
}

/// The instructions of a range: see [`InvlpgbLimits::cover`].
#[derive(Clone, Debug)]
pub struct Cover {
    limits: InvlpgbLimits,
    template: InvlpgbMatch,
    current: Option<VaRange>,
    next: Option<VaRange>,
}

impl Iterator for Cover {
    type Item = InvlpgbOperands;

    fn next(&mut self) -> Option<InvlpgbOperands> {
        let range = match self.current.take() {
            Some(range) => range,
            None => self.next.take()?,
        };
        let stride = range.stride();
        let max =
            if stride == Stride::Page1G { 1 } else { self.limits.max_pages.clamp(1, 1 << 16) };
        let count = range.count().min(u64::from(max));
        if count < range.count() {
            let rest = range.start() + (count << stride.shift());
            self.current = VaRange::new(rest, range.count() - count, stride).ok();
        }
        let first = LinearAddress::new(range.start(), self.limits.width).ok()?;
        let pages = Pages { first, count: u32::try_from(count).ok()?, stride };
        self.limits.encode(&InvlpgbMatch { pages: Some(pages), ..self.template }).ok()
    }
}

/// The templates, shared by the wrappers and the test of their encoding. Bytes, because assemblers
/// older than the instructions are still about.
#[cfg(target_arch = "x86_64")]
macro_rules! template {
    (invlpgb) => {
        ".byte 0x0f, 0x01, 0xfe"
    };
    (tlbsync) => {
        ".byte 0x0f, 0x01, 0xff"
    };
}

/// Executes INVLPGB.
///
/// # Safety
/// The CPU is at privilege level 0, has INVLPGB ([`super::Features::invlpgb`]), and the operands
/// were encoded with limits that are true of it now. The caller stays on this CPU until
/// [`tlbsync`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn invlpgb(operands: InvlpgbOperands) {
    // SAFETY: the instruction exists and its operands are within the limits (the caller's promise,
    // and I1), so it can't fault; it reads three registers and changes translation caches only.
    unsafe {
        core::arch::asm!(
            template!(invlpgb),
            in("rax") operands.rax,
            in("ecx") operands.ecx,
            in("edx") operands.edx,
            options(nostack, preserves_flags),
        );
    }
}

/// Executes TLBSYNC: waits until every INVLPGB this CPU has issued is complete everywhere.
///
/// # Safety
/// The CPU is at privilege level 0 and has INVLPGB.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn tlbsync() {
    // SAFETY: the instruction exists and is permitted (the caller's promise); it only waits.
    unsafe {
        core::arch::asm!(template!(tlbsync), options(nostack, preserves_flags));
    }
}

#[cfg(test)]
#[path = "invlpgb_tests.rs"]
mod tests;
