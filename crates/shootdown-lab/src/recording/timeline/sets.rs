//! What the recorded kernel asked because it was traced, and which requests free tables.
//!
//! **Problem.** A CPU between two spaces is asked whatever they are. It is there for a tenth of a
//! microsecond, but for ten times as long when the switch is traced, so the recorded kernel asked
//! more CPUs than it would have. When a CPU was there is recorded.
//!
//! **Rule.** A CPU is in a space's set from its first switch to it until a flush for freed tables,
//! which asks everyone in the set, finds it elsewhere. One of the set that runs something else and
//! is between two spaces when any other flush begins is asked.

use std::collections::{BTreeMap, BTreeSet};

use super::{Act, Cause, Runs, SpaceId, Timeline};
use crate::recording::model::{Call, CallArgs, Cpu, Extent};

/// What a last-level page table serves.
const TABLE: u64 = 1 << 21;
/// Of `madvise`.
const MADV_DONTNEED: u64 = 4;

impl Cause {
    /// Whether page tables go with it: with a space, with a fork (which Linux counts among the
    /// thorough ones), and with a call that empties all that a table serves, however little was
    /// touched of it.
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

impl Timeline {
    /// How many CPUs the recorded kernel must have asked in the middle of a switch, by its rules
    /// and the recorded schedule.
    #[must_use]
    pub fn asked_while_switching(&self) -> u64 {
        let mut sets: BTreeMap<SpaceId, BTreeSet<Cpu>> = BTreeMap::new();
        let mut runs: BTreeMap<Cpu, Runs> = BTreeMap::new();
        let mut loaded: BTreeMap<Cpu, SpaceId> = BTreeMap::new();
        let mut asked = 0;
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
                    set.retain(|cpu| *cpu == step.cpu || loaded.get(cpu) == Some(&space));
                }
                Act::Flush { space, .. } => {
                    let set = sets.get(&space).into_iter().flatten();
                    let others = set.filter(|cpu| **cpu != step.cpu);
                    let elsewhere = others
                        .filter(|cpu| runs.get(cpu).and_then(|what| what.space()) != Some(space));
                    let between =
                        elsewhere.filter(|cpu| self.is_switching(**cpu, step.time, step.time));
                    asked += between.count() as u64;
                }
                _ => {}
            }
        }
        asked
    }
}
