//! Hyper-V's hypercalls that flush other virtual processors: four of them, as words of an input
//! page.
//!
//! # The calls (Hyper-V Top-Level Functional Specification, "Hypercall Interface", "HvCallFlushVirtualAddress…")
//! | call | code | words of the input page |
//! |---|---|---|
//! | space | 0x0002 | root, flags, mask |
//! | list | 0x0003 | root, flags, mask, then one per run |
//! | space, extended | 0x0013 | root, flags, format, valid banks, one per valid bank |
//! | list, extended | 0x0014 | the same, then one per run |
//!
//! A mask names VPs 0 to 63. The extended calls take a sparse set instead: VPs in banks of 64, one
//! bit for each of up to 64 banks, and the contents of those whose bit is set. A run's word is the
//! address of its first page; its low 12 bits are the number of pages *beyond* the first. The root
//! is CR3 without a PCID, and is ignored with the flag "all address spaces".
//!
//! The control word holds the code (15:0), the number of words of a variable header, that is of
//! banks (26:17), the number of runs (43:32) and the run to begin with (59:48). The result word
//! holds a status (15:0, 0 is success) and the number of runs that are done (43:32); a call that
//! was cut short is made again from there.
//!
//! # What a list is good for
//! The specification speaks of virtual TLB entries for the addresses of a list. It does not say
//! what becomes of cached non-leaf entries, so [`HypervFlush::of`] asks for the whole space where
//! tables were freed. Nor does a root name the other half of split tables: there it asks for all
//! address spaces.

use core::fmt;

use shootdown::facts::SplitTables;
use shootdown::paravirt::{HypercallError, Of, PageRun, RemoteFlush};
use shootdown::{CpuId, Platform, Regime};

use super::RootFrame;
use super::hyperv_set::VpSet;

/// Words of an input page, 4 KiB.
pub const INPUT_WORDS: usize = 512;

/// Every address space, global mappings included (`HV_FLUSH_ALL_VIRTUAL_ADDRESS_SPACES`).
const ALL_SPACES: u64 = 1 << 1;
/// A set of the sparse format (`HV_GENERIC_SET_SPARSE_4K`).
const SPARSE: u64 = 0;

const SPACE: u64 = 0x0002;
const LIST: u64 = 0x0003;
/// The code of an extended call, beyond that of the simple one.
const EXTENDED: u64 = 0x0011;

/// What Hyper-V offers (CPUID 4000_0004 EAX).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HypervFeatures {
    /// Flushing by hypercall is recommended (bit 2).
    pub remote_flush: bool,
    /// So are the extended calls (bit 11).
    pub extended: bool,
}

impl HypervFeatures {
    /// Decodes the register.
    #[must_use]
    pub const fn decode(eax: u32) -> Self {
        Self { remote_flush: eax & 1 << 2 != 0, extended: eax & 1 << 11 != 0 }
    }
}

/// Why a flush has no encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HypervError {
    /// The set of VPs is empty.
    NoVps,
    /// A VP beyond 63, and the extended calls are not offered.
    NeedsExtended,
    /// A list without runs.
    NoRuns,
    /// More runs than fit the input page beside the set.
    TooManyRuns {
        /// So many fit.
        most: usize,
    },
    /// A run that is not page aligned, or not of 1 to 4096 pages.
    Run(PageRun),
    /// A CPU without a VP number below 4096.
    NoVp(CpuId),
}

impl fmt::Display for HypervError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVps => f.write_str("the set of virtual processors is empty"),
            Self::NeedsExtended => f.write_str(
                "a virtual processor beyond 63 needs the extended calls, which are not offered",
            ),
            Self::NoRuns => f.write_str("the list of pages is empty; flush the space instead"),
            Self::TooManyRuns { most } => {
                write!(f, "the input page has room for {most} runs; flush the space instead")
            }
            Self::Run(run) => {
                write!(f, "a run of {} pages at {:#x}: 1 to 4096 whole pages", run.pages, run.start)
            }
            Self::NoVp(cpu) => write!(f, "{cpu} has no virtual processor number below 4096"),
        }
    }
}

impl core::error::Error for HypervError {}

/// A flush to ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HypervFlush<'a> {
    /// Of this root under any PCID, or of all address spaces.
    pub of: Of<RootFrame>,
    /// On these virtual processors.
    pub vps: &'a VpSet,
    /// Of these pages, or of all.
    pub runs: Option<&'a [PageRun]>,
}

impl<'a> HypervFlush<'a> {
    /// The flush that the library asks for. `vps` is scratch space; `vp` gives a CPU's VP index.
    ///
    /// # Errors
    /// [`HypervError::NoVp`].
    pub fn of<P: Platform>(
        flush: &'a RemoteFlush<'_, P>,
        vps: &'a mut VpSet,
        vp: impl Fn(CpuId) -> Option<u32>,
    ) -> Result<Self, HypervError>
    where
        P::Regime: Regime<Root = RootFrame>,
    {
        *vps = VpSet::EMPTY;
        for cpu in shootdown::cpu_set::Bits::iter(flush.cpus) {
            let inserted = vp(cpu).is_some_and(|vp| vps.insert(vp));
            if !inserted {
                return Err(HypervError::NoVp(cpu));
            }
        }
        let of = match P::Regime::facts().split_tables {
            SplitTables::No => flush.of,
            _ => Of::All,
        };
        let pages = flush.pages.as_ref().filter(|_| !flush.freed_tables);
        Ok(Self { of, vps, runs: pages.map(|runs| runs.as_slice()) })
    }

    /// Writes the input page; returns the control word.
    ///
    /// # Errors
    /// See [`HypervError`]; the page holds nothing of use then.
    pub fn encode(
        &self,
        features: HypervFeatures,
        page: &mut [u64; INPUT_WORDS],
    ) -> Result<Control, HypervError> {
        let banks = self.vps.banks();
        let extended = banks.iter().skip(1).any(|bank| *bank != 0);
        if self.vps.is_empty() {
            return Err(HypervError::NoVps);
        }
        if extended && !features.extended {
            return Err(HypervError::NeedsExtended);
        }
        (page[0], page[1]) = match self.of {
            Of::Space(root) => (root.address(), 0),
            Of::All => (0, ALL_SPACES),
        };
        let mut used = 2;
        let mut variable = 0;
        if extended {
            page[2] = SPARSE;
            page[3] = 0;
            used = 4;
            for (i, bank) in banks.iter().enumerate().filter(|(_, bank)| **bank != 0) {
                page[3] |= 1 << i;
                page[used] = *bank;
                used += 1;
            }
            variable = used - 4;
        } else {
            page[used] = banks[0];
            used += 1;
        }
        let class = if extended { EXTENDED } else { 0 };
        let Some(runs) = self.runs else {
            return Ok(Control::new(SPACE + class, variable, 0));
        };
        if runs.is_empty() {
            return Err(HypervError::NoRuns);
        }
        let room = &mut page[used..];
        if runs.len() > room.len() {
            return Err(HypervError::TooManyRuns { most: room.len() });
        }
        for (word, run) in room.iter_mut().zip(runs) {
            if run.start % 4096 != 0 || !(1..=PageRun::MOST).contains(&run.pages) {
                return Err(HypervError::Run(*run));
            }
            *word = run.start | u64::from(run.pages - 1);
        }
        Ok(Control::new(LIST + class, variable, runs.len()))
    }
}

/// The control word of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control(u64);

impl Control {
    const RUNS: u32 = 32;
    const FIRST: u32 = 48;
    /// Ten bits of header words, twelve of runs.
    const fn new(code: u64, variable: usize, runs: usize) -> Self {
        Self(code | (variable as u64) << 17 | (runs as u64) << Self::RUNS)
    }

    /// The word.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    const fn runs(self) -> u64 {
        self.0 >> Self::RUNS & 0xfff
    }

    /// What to do after a call with this control word has returned `result`: `None` when everything
    /// is done, a control word to call again with when the hypervisor stopped half-way.
    ///
    /// # Errors
    /// The hypervisor's status; some of it may be done.
    pub const fn after(self, result: u64) -> Result<Option<Self>, HypercallError> {
        let status = result & 0xffff;
        if status != 0 {
            #[allow(clippy::cast_possible_truncation)] // 16 bits
            return Err(HypercallError::Status(status as u16));
        }
        let done = result >> Self::RUNS & 0xfff;
        if done >= self.runs() {
            return Ok(None);
        }
        if done <= self.0 >> Self::FIRST & 0xfff {
            // Success without progress would be asked for again for ever.
            return Err(HypercallError::Status(0));
        }
        Ok(Some(Self(self.0 & !(0xfff << Self::FIRST) | done << Self::FIRST)))
    }
}

#[cfg(test)]
#[path = "hyperv_tests.rs"]
mod tests;
