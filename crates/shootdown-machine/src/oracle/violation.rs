//! Broken promises: what was promised, who broke it, and how it came about.

use std::fmt;

use shootdown::CpuId;

use crate::mmu::Root;
use crate::oracle::{Stamp, Timelines};

/// A promise of the coherence contract, by name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Invariant {
    /// After a flush returned, nobody uses the old translation.
    Revocation,
    /// Nobody reaches a frame that was freed since.
    FrameReuse,
    /// No walker reads a table page that was freed since.
    TableReuse,
    /// A tag loaded with its entries kept has entries of the loaded tables only.
    TagReuse,
    /// A tag loaded with its entries kept has none older than a flush that has returned.
    MasterInvariant,
    /// After a flush that was told of freed tables returned, no walk starts from an entry that
    /// leads to one.
    WalkCacheReuse,
    /// Every wait ends.
    Progress,
    /// A CPU never has two translations of different size for one page.
    OneSize,
    /// Nobody writes a frame whose contents were copied.
    CopyIsolation,
    /// Nobody writes a frame that was written back, without making it dirty again.
    WriteBack,
    /// A permission that was given is used after few faults.
    UpgradeSoundness,
    /// A call that has returned has run everywhere.
    CallCompletes,
    /// What can't be done is refused, and only that.
    ErrorsTotal,
    /// An entry whose accessed bit was cleared goes within the bound of the policy.
    AccessedBound,
    /// An address is not mapped again before what was unmapped there lazily is gone.
    RangeReuse,
    /// What was unmapped lazily is used no longer than the policy allows.
    LazyBound,
    /// Nobody uses the memory of a space that was retired.
    SpaceReuse,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Revocation,
        Self::FrameReuse,
        Self::TableReuse,
        Self::TagReuse,
        Self::MasterInvariant,
        Self::WalkCacheReuse,
        Self::Progress,
        Self::OneSize,
        Self::CopyIsolation,
        Self::WriteBack,
        Self::UpgradeSoundness,
        Self::CallCompletes,
        Self::ErrorsTotal,
        Self::AccessedBound,
        Self::RangeReuse,
        Self::LazyBound,
        Self::SpaceReuse,
    ];

    /// Its name, as reports and tests write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Revocation => "revocation",
            Self::FrameReuse => "frame-reuse",
            Self::TableReuse => "table-reuse",
            Self::TagReuse => "tag-reuse",
            Self::MasterInvariant => "master-invariant",
            Self::WalkCacheReuse => "walk-cache-reuse",
            Self::Progress => "progress",
            Self::OneSize => "one-size",
            Self::CopyIsolation => "copy-isolation",
            Self::WriteBack => "write-back",
            Self::UpgradeSoundness => "upgrade-soundness",
            Self::CallCompletes => "call-completes",
            Self::ErrorsTotal => "errors-total",
            Self::AccessedBound => "accessed-bound",
            Self::RangeReuse => "range-reuse",
            Self::LazyBound => "lazy-bound",
            Self::SpaceReuse => "space-reuse",
        }
    }

    /// The promise in one sentence.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Revocation => {
                "when a flush for a revoking change returns, no CPU starts an access through the old translation"
            }
            Self::FrameReuse => {
                "a frame is not given to anyone else before the invalidation that covers it is complete"
            }
            Self::TableReuse => {
                "a page-table page is not given to anyone else while a walker can still reach it"
            }
            Self::TagReuse => {
                "a tag is not given to another space before the entries under it are invalidated"
            }
            Self::MasterInvariant => {
                "a CPU's slot for a space at generation g never holds entries older than g"
            }
            Self::WalkCacheReuse => {
                "when a flush for freed tables returns, no walk starts from a cached entry that leads to one"
            }
            Self::Progress => "every flush and every wait ends if all CPUs take their interrupts",
            Self::OneSize => {
                "no CPU that runs code has two usable translations of different size for one page"
            }
            Self::CopyIsolation => {
                "while and after a page is copied, nobody writes the old frame through what was allowed before"
            }
            Self::WriteBack => {
                "when a page is written back, nobody writes it through an entry that will not make it dirty again"
            }
            Self::UpgradeSoundness => {
                "when the tables allow an access, it goes through after a bounded number of spurious faults"
            }
            Self::CallCompletes => "when a call returns, its function has run on every CPU asked",
            Self::ErrorsTotal => {
                "what can't be done is refused with an error that leaves everything as it was, and nothing else is"
            }
            Self::AccessedBound => {
                "after a switch or a tick of a CPU, it uses no entry whose accessed bit had been cleared before"
            }
            Self::RangeReuse => {
                "an address that was unmapped lazily is not mapped again while a CPU can still use what was there"
            }
            Self::LazyBound => {
                "after a switch, a tick, or a way in from isolated user mode of a CPU, it uses nothing that had been unmapped lazily before"
            }
            Self::SpaceReuse => {
                "when a space was retired, no CPU reads or writes its memory any more"
            }
        }
    }

    /// When, and by which part of the machine, it is checked.
    #[must_use]
    pub const fn checked_by(self) -> &'static str {
        match self {
            Self::Revocation => {
                "at every access through a cached entry, and for every CPU running user code when a flush returns (mmu)"
            }
            Self::FrameReuse => "at every access through a cached entry (mmu)",
            Self::TableReuse => "when a root is loaded and at every step of every walk (mmu)",
            Self::TagReuse => "when a tag is loaded with its entries kept (mmu)",
            Self::MasterInvariant => {
                "at every access through an entry that a load of its tag has kept (mmu)"
            }
            Self::WalkCacheReuse => "at every walk that starts from a cached table (mmu)",
            Self::Progress => "when no CPU can go on, or the time of a run is up (engine)",
            Self::OneSize => "for all that a CPU has cached, when it runs code (hunt)",
            Self::CopyIsolation => {
                "for all that a CPU has cached, when it runs user code after a frame was sealed for a copy (hunt)"
            }
            Self::WriteBack => {
                "for all that a CPU has cached, when it runs user code after a frame was written back (hunt)"
            }
            Self::UpgradeSoundness => "at every store of user code that faults (hunt)",
            Self::CallCompletes => "when a call returns (hunt)",
            Self::ErrorsTotal => "when a CPU comes online (hunt)",
            Self::AccessedBound => {
                "for all that a CPU has cached, when a switch or a tick of it ends (kernel)"
            }
            Self::RangeReuse => {
                "for all that a CPU has cached, when it runs user code after the address was mapped again (hunt)"
            }
            Self::LazyBound => {
                "for all that a CPU has cached, when it has unmapped, and when a switch, a tick or a way in of it ends (hunt)"
            }
            Self::SpaceReuse => {
                "at every access of the library to a space, plain reads among them (hunt)"
            }
        }
    }

    /// Which part of the core upholds it.
    #[must_use]
    pub const fn upheld_by(self) -> &'static str {
        match self {
            Self::Revocation => {
                "flush: change, raise the generation, read who may hold entries, wait for them"
            }
            Self::FrameReuse => "gather: frames come out of a finished flush only",
            Self::TableReuse => "gather and flush: freed tables reach lazy CPUs too",
            Self::TagReuse => {
                "tags: a slot that changes its space is loaded without keeping entries"
            }
            Self::MasterInvariant => {
                "switch: a slot behind its space's generation is loaded without keeping"
            }
            Self::WalkCacheReuse => "flush: freed tables are never invalidated leaf-only",
            Self::Progress => "call: whoever waits serves others",
            Self::OneSize => {
                "the kernel: break, flush, make; and flush: a large page's range is covered whole"
            }
            Self::CopyIsolation | Self::WriteBack => {
                "the kernel: it flushes what is pending before it takes contents; and flush: revocation"
            }
            Self::UpgradeSoundness => {
                "the kernel: a spurious fault invalidates; and flush: no flush is needed to widen"
            }
            Self::CallCompletes => "call: a CPU leaves the set after the function ran",
            Self::ErrorsTotal => "space, cpu: conditions are looked at before anything changes",
            Self::AccessedBound => {
                "accessed: a switch compares how often accessed bits were cleared, and flushes"
            }
            Self::RangeReuse => {
                "lazy unmap: addresses that are pending are flushed before they are mapped"
            }
            Self::LazyBound => {
                "lazy unmap: whoever comes by compares generations; polls flush what is older than allowed"
            }
            Self::SpaceReuse => {
                "space: CPUs leave the set as their last touch, and who retires waits until all have"
            }
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which one.
    pub invariant: Invariant,
    /// The CPU that did what nobody may do.
    pub cpu: CpuId,
    /// The tables it had loaded.
    pub root: Option<Root>,
    /// The address it accessed.
    pub va: Option<u64>,
    /// Who made the change that was missed, and who said it was flushed.
    pub culprits: Vec<Stamp>,
    /// What happened, for a person.
    pub details: String,
}

impl Violation {
    /// A violation that an engine finds itself (a deadlock, say).
    #[must_use]
    pub fn new(invariant: Invariant, cpu: CpuId, details: String) -> Self {
        Self { invariant, cpu, root: None, va: None, culprits: Vec::new(), details }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken promise \"{}\" on {}", self.invariant, self.cpu)?;
        if let Some(va) = self.va {
            write!(f, " at address {va:#x}")?;
        }
        if let Some(root) = self.root {
            write!(f, " under {root}")?;
        }
        write!(f, ": {}. Promised: {}.", self.details, self.invariant.sentence())
    }
}

impl std::error::Error for Violation {}

/// A violation with all that is needed to see it again: the seed and what the CPUs did before.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{violation}\n  seed {seed}, at {} ns\n{timeline}", at / 1000)]
pub struct ViolationReport {
    /// What was broken.
    pub violation: Violation,
    /// The seed of the run.
    pub seed: u64,
    /// Virtual time of the violation in picoseconds.
    pub at: u64,
    /// What the CPUs concerned did before, oldest first.
    pub timeline: String,
}

impl ViolationReport {
    /// Puts a violation together with the recent events of the CPUs concerned.
    #[must_use]
    pub fn new(violation: Violation, seed: u64, at: u64, timelines: &Timelines) -> Self {
        let mut cpus: Vec<CpuId> = violation.culprits.iter().map(|s| s.cpu).collect();
        cpus.push(violation.cpu);
        let timeline = timelines.render(&cpus);
        Self { violation, seed, at, timeline }
    }
}
