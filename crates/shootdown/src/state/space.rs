//! Address spaces: each has an id that is never reused, a generation, and the set of CPUs that may
//! hold entries.
//!
//! # The writer's protocol
//! The writer (1) changes the page tables; (2) increments the generation; (3) reads the CPU set and
//! what its CPUs have loaded, and notifies the CPUs that must act; (4) waits. Steps 2 to 4 are
//! [`AddressSpace::flush`].
//!
//! # Invariants
//! I1: the generation counts revoking changes and only grows. I2: every CPU that has the space
//! loaded, or is loading it and will not look at the generation again, is in the set. I3: a CPU
//! enters and leaves the set by itself. A remote removal is unsound: between the initiator's look
//! at the CPU and its removal, the CPU may have begun to load the space and found its bit still
//! set.
//!
//! The set therefore over-approximates; the published state of each CPU (`state/cpu.rs`) filters
//! it.

use crate::base::cpu_set::{Bits, Mask};
use crate::base::ids::{Generation, SpaceId, Tag};
use crate::base::sync::{
    AtomicBool, AtomicU32, AtomicU64, Ordering, prefetch, prefetch_write, reads,
};
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::regime::Regime;
use crate::state::cpu::PerCpu;
use crate::state::pending::PendingFlushes;
use crate::state::range_log::RangeLog;
use crate::state::residency::Residency;
use crate::tags::generations::SpaceTag;
use crate::tags::shared::SharedTag;
use crate::tags::versioned::Versioned;

/// An address space, as far as coherence is concerned. The kernel keeps it beside its page tables.
///
/// Before it is dropped, and before its root table is freed, it must be [`retire`](Self::retire)d.
#[repr(C)]
pub struct AddressSpace<P: Platform> {
    hot: Hot<P>,
    pub(crate) log: RangeLog,
    pub(crate) residency: Residency<P::Mask>,
    pub(crate) pending: PendingFlushes,
    pub(crate) cold: Cold,
}

/// What a switch reads: one line.
#[repr(align(64))]
struct Hot<P: Platform> {
    generation: AtomicU64,
    /// The generation of the last flush that failed although tables were freed; 0 when no such
    /// flush is pending.
    pending: AtomicU64,
    id: SpaceId,
    root: <P::Regime as Regime>::Root,
    /// The machine-wide tag, where tags are machine-wide.
    tag: SpaceTag,
    /// The global tag, where each CPU has tags of its own.
    shared: SharedTag,
    /// How often accessed bits of the space were cleared.
    ages: AtomicU64,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cold {
    pub retired: AtomicBool,
    /// Stale members of the set that flushes have found since the last trim.
    stale: AtomicU64,
    /// Checks in a row that found no other CPU flushing the space.
    alone: AtomicU32,
    /// How many broadcasts for the space were reported complete, where hardware reports that too
    /// early.
    completions: AtomicU64,
}

#[cfg(shootdown_traced)]
impl<P: Platform> AddressSpace<P> {
    pub(crate) const GENERATION: usize =
        core::mem::offset_of!(Self, hot) + core::mem::offset_of!(Hot<P>, generation);
    pub(crate) const PENDING: usize =
        core::mem::offset_of!(Self, hot) + core::mem::offset_of!(Hot<P>, pending);
    pub(crate) const SHARED_TAG: usize =
        core::mem::offset_of!(Self, hot) + core::mem::offset_of!(Hot<P>, shared);
    pub(crate) const TAG: usize =
        core::mem::offset_of!(Self, hot) + core::mem::offset_of!(Hot<P>, tag);
    pub(crate) const AGES: usize =
        core::mem::offset_of!(Self, hot) + core::mem::offset_of!(Hot<P>, ages);
    pub(crate) const PENDING_FLUSHES: usize = core::mem::offset_of!(Self, pending);
    pub(crate) const COLD: usize = core::mem::offset_of!(Self, cold);
}

impl<P: Platform> AddressSpace<P> {
    /// Makes a new space over the tables under `root`; no CPU has it loaded.
    ///
    /// # Panics
    /// When 2^62 spaces have been made.
    #[must_use]
    pub fn new(root: <P::Regime as Regime>::Root) -> Self {
        Self {
            hot: Hot {
                generation: AtomicU64::new(0),
                pending: AtomicU64::new(0),
                id: P::system().next_id(),
                root,
                tag: SpaceTag::new(),
                shared: SharedTag::new(),
                ages: AtomicU64::new(0),
            },
            log: RangeLog::new(),
            residency: Residency::new(),
            pending: PendingFlushes::new(),
            cold: Cold {
                retired: AtomicBool::new(false),
                stale: AtomicU64::new(0),
                alone: AtomicU32::new(0),
                completions: AtomicU64::new(0),
            },
        }
    }

    /// The space's id.
    #[must_use]
    pub fn id(&self) -> SpaceId {
        reads(&self.hot.id);
        self.hot.id
    }

    /// The root of its tables.
    #[must_use]
    pub fn root(&self) -> <P::Regime as Regime>::Root {
        reads(&self.hot.root);
        self.hot.root
    }

    /// Is the space still where this CPU loaded it? CPUs hold its address (contract of
    /// [`switch_to`](crate::switch_to)): if the space were moved, no CPU would catch up with it.
    #[cfg(not(any(shootdown_traced, loom)))]
    pub(crate) fn is_in_place(&self, me: &PerCpu<P>) -> bool {
        let held = me.private.space.load(Ordering::Relaxed);
        me.loaded().id() != self.id().get() || held.is_null() || core::ptr::eq(held, self)
    }

    pub(crate) fn space_tag(&self) -> &SpaceTag {
        &self.hot.tag
    }

    pub(crate) fn ages(&self) -> &AtomicU64 {
        &self.hot.ages
    }

    pub(crate) fn shared_tag(&self) -> &SharedTag {
        &self.hot.shared
    }

    /// The machine-wide tag that the space has now; `None` before it first runs, and where tags are
    /// not machine-wide.
    #[must_use]
    pub fn tag(&self) -> Option<Tag> {
        P::tags()?.tag_of(&self.hot.tag)
    }

    /// How many revoking changes were counted.
    #[must_use]
    pub fn generation(&self) -> Generation {
        // ORDERING: F2: Acquire, with the Release in `bump`
        Generation(self.hot.generation.load(Ordering::Acquire))
    }

    /// CPUs that may have the space loaded. The set over-approximates.
    #[must_use]
    pub fn cpus(&self) -> CpuSetOf<P> {
        self.residency.cpus.snapshot()
    }

    /// Prefetches, for writing, the line with the generation, and the log.
    pub(crate) fn expect_to_change(&self) {
        prefetch_write(&self.hot);
        if P::policy().range_log {
            self.log.expect_to_record();
        }
    }

    /// Prefetches what this CPU, which is current to `have`, needs to catch up.
    pub(crate) fn expect_to_catch_up(&self, have: Generation) {
        prefetch(&self.hot);
        if P::policy().range_log {
            self.log.prefetch_after(have);
        }
    }

    /// Counts a change; returns its generation.
    pub(crate) fn bump(&self) -> Generation {
        // ORDERING: F1: Release, with the Acquire in `generation`
        Generation(self.hot.generation.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Records that a flush for freed tables failed: the next flush must cover them too.
    pub(crate) fn mark_tables_pending(&self, generation: Generation) {
        self.hot.pending.fetch_max(generation.0, Ordering::AcqRel);
    }

    /// The generation of a failed flush for freed tables, if one is pending.
    pub(crate) fn pending_tables(&self) -> Option<u64> {
        Some(self.hot.pending.load(Ordering::Relaxed)).filter(|g| *g != 0)
    }

    /// A flush is done: clears what was pending when it began, if nothing newer is pending.
    pub(crate) fn completed_tables(&self, pending: u64) {
        let _ = self.hot.pending.compare_exchange(pending, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Counts stale members of the set that a flush found; returns whether it is time to ask them
    /// to leave the set.
    ///
    /// To read a stale member's line costs about as much as one transfer; to ask it to leave costs
    /// it an interrupt, which is some ten times that. So a stale member may be read
    /// [`Self::TRIM_AFTER`] times before it is asked.
    pub(crate) fn note_stale(&self, stale: u64) -> bool {
        let sum = self.cold.stale.load(Ordering::Relaxed) + stale;
        let trim = sum >= Self::TRIM_AFTER * stale.max(1);
        self.cold.stale.store(if trim { 0 } else { sum }, Ordering::Relaxed);
        trim
    }

    const TRIM_AFTER: u64 = 64;

    /// A broadcast was reported complete, too early. Returns its number, which a CPU acknowledges
    /// when it has been in the kernel since then.
    pub(crate) fn count_completion(&self) -> u64 {
        // ORDERING: E2, with the Acquire in `completions`
        self.cold.completions.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// How many broadcasts for the space were reported complete, where that is counted.
    pub(crate) fn completions(&self) -> u64 {
        // ORDERING: E2, with the Release in `count_completion`
        self.cold.completions.load(Ordering::Acquire)
    }

    /// Records whether a check found no other CPU flushing the space; returns whether it found none
    /// `enough` times in a row. This is a hint: of two checks at the same time, one may be lost.
    pub(crate) fn note_alone(&self, alone: bool, enough: u32) -> bool {
        if enough == 0 {
            return true;
        }
        let row = if alone { self.cold.alone.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.cold.alone.store(row, Ordering::Relaxed);
        row >= enough
    }
}

impl<P: Platform> Drop for AddressSpace<P> {
    fn drop(&mut self) {
        debug_assert!(
            self.cold.retired.load(Ordering::Relaxed) || self.cpus().is_empty(),
            "{} is dropped without having been retired: a CPU may still walk its tables",
            self.id()
        );
    }
}
