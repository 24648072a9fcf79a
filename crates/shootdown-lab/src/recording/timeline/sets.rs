//! What the recorded kernel asks beyond what any policy of this project asks.
//!
//! **Problem.** Linux clears CPU sets lazily since 6.14: a CPU that turns to another space stays in the set of the old one. A flush of leaf entries
//! leaves it alone, since it looks at the generation when it comes back. A flush that frees tables asks
//! everyone in the set. No policy of this project does both, so what it costs the recorded kernel cannot be
//! replayed; but it follows from the schedule. The other thing is the tracer's: a CPU between two spaces is
//! asked whatever they are, and it is there for a tenth of a microsecond, but for ten times as long when the
//! switch is traced. When it was there is recorded.
//!
//! **Rules.** A CPU is in a space's set from its first switch to it. Asked when it has another space loaded,
//! it leaves the set; asked when it keeps the space lazily, it unloads it, but stays in the set until it is
//! asked once more. One of the set that runs something else and is between two spaces when a flush begins
//! is asked.

use std::collections::{BTreeMap, BTreeSet};

use super::{Act, Cause, Runs, SpaceId, Timeline};
use crate::recording::model::{Call, CallArgs, Cpu, Extent};

/// What a last-level page table serves.
const TABLE: u64 = 1 << 21;
/// Of `madvise`.
const MADV_DONTNEED: u64 = 4;

impl Cause {
    /// Whether page tables go with it: with a space, with a fork (which Linux counts among the thorough
    /// ones), and with a call that empties all that a table serves, however little was touched of it.
    #[must_use]
    pub const fn frees_tables(self, extent: Extent) -> bool {
        match self {
            Self::Teardown => true,
            Self::Unknown => matches!(extent, Extent::Everything),
            Self::WriteFault(_) => false,
            Self::Call(CallArgs { call, addr, len, mode, .. }) => {
                let empties = match call {
                    Call::Munmap => true,
                    Call::Madvise => mode == MADV_DONTNEED,
                    _ => false,
                };
                let end = addr.saturating_add(len);
                match addr.checked_next_multiple_of(TABLE) {
                    Some(first) => empties && first <= end && end - first >= TABLE,
                    None => false,
                }
            }
        }
    }
}

/// Requests beyond those to CPUs that have the space loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beyond {
    /// To CPUs that were in the set for nothing.
    pub in_set: u64,
    /// To CPUs between two spaces.
    pub switching: u64,
}

impl Timeline {
    /// What the recorded kernel must have asked beyond, by its rules and the recorded schedule.
    #[must_use]
    pub fn asked_beyond(&self) -> Beyond {
        let mut sets: BTreeMap<SpaceId, BTreeSet<Cpu>> = BTreeMap::new();
        let mut runs: BTreeMap<Cpu, Runs> = BTreeMap::new();
        let mut loaded: BTreeMap<Cpu, SpaceId> = BTreeMap::new();
        let mut asked = Beyond::default();
        for step in &self.steps {
            match step.act {
                Act::Run(what) => {
                    runs.insert(step.cpu, what);
                    if let Some(space) = what.space() {
                        loaded.insert(step.cpu, space);
                        sets.entry(space).or_default().insert(step.cpu);
                    }
                }
                Act::Flush { space, extent, cause } if cause.frees_tables(extent) => {
                    let Some(set) = sets.get_mut(&space) else { continue };
                    set.retain(|cpu| {
                        let here = loaded.get(cpu) == Some(&space);
                        let lazy = runs.get(cpu).is_none_or(|what| what.space().is_none());
                        if *cpu == step.cpu {
                            return true;
                        }
                        asked.in_set += u64::from(!here);
                        if here && lazy {
                            loaded.remove(cpu);
                        }
                        here
                    });
                }
                Act::Flush { space, .. } => {
                    let set = sets.get(&space).into_iter().flatten();
                    let others = set.filter(|cpu| **cpu != step.cpu);
                    let elsewhere = others
                        .filter(|cpu| runs.get(cpu).and_then(|what| what.space()) != Some(space));
                    let between =
                        elsewhere.filter(|cpu| self.is_switching(**cpu, step.time, step.time));
                    asked.switching += between.count() as u64;
                }
                _ => {}
            }
        }
        asked
    }
}
