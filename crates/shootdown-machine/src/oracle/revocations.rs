//! Changes that take something away, from when they are made to when a flush makes them binding.

use std::collections::VecDeque;

use shootdown::{CpuId, VaRange};

use crate::mmu::{Root, SlotId};
use crate::oracle::Epoch;

/// Who did something, and when in virtual time (picoseconds).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The CPU.
    pub cpu: CpuId,
    /// The time.
    pub at: u64,
}

/// What kind of table entry was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A translation.
    Leaf,
    /// A pointer to a table page.
    Table,
}

/// A revoking change that no flush has covered yet.
#[derive(Clone, Copy, Debug)]
struct Change {
    epoch: Epoch,
    slot: SlotId,
    kind: Kind,
    /// First and last address concerned.
    first: u64,
    last: u64,
    by: Stamp,
}

impl Change {
    fn covered_by(&self, token: &FlushToken) -> bool {
        self.epoch <= token.begun
            && (self.kind == Kind::Leaf || token.freed_tables)
            && token.range.is_none_or(|r| self.first <= r.last() && r.start() <= self.last)
    }
}

/// A change that has become binding, remembered for explanations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) slot: SlotId,
    /// When the change was made.
    pub(crate) changed: Epoch,
    pub(crate) changed_by: Stamp,
    /// When the flush returned.
    pub(crate) returned: Epoch,
    pub(crate) returned_by: Stamp,
}

/// A flush under way: what it covers. Give it back when the flush returns.
#[must_use = "a flush that never returns makes nothing binding"]
#[derive(Debug)]
pub struct FlushToken {
    /// `None` for the spaces of all.
    root: Option<Root>,
    range: Option<VaRange>,
    freed_tables: bool,
    begun: Epoch,
}

impl FlushToken {
    /// Whose entries; `None` for everyone's.
    #[must_use]
    pub fn root(&self) -> Option<Root> {
        self.root
    }
}

/// How many binding changes are remembered for explanations.
const REMEMBERED: usize = 4096;

/// The record of changes.
#[derive(Debug)]
pub(crate) struct Revocations {
    clock: Epoch,
    /// The latest binding or freeing.
    last_event: Epoch,
    /// By root number.
    pending: Vec<Vec<Change>>,
    bound: VecDeque<Bound>,
    actor: Stamp,
}

impl Revocations {
    pub(crate) fn new() -> Self {
        Self {
            clock: Epoch(1),
            last_event: Epoch(0),
            pending: Vec::new(),
            bound: VecDeque::new(),
            actor: Stamp { cpu: CpuId(0), at: 0 },
        }
    }

    pub(crate) fn add_space(&mut self) {
        self.pending.push(Vec::new());
    }

    pub(crate) fn act_as(&mut self, actor: Stamp) {
        self.actor = actor;
    }

    pub(crate) fn now(&self) -> Epoch {
        self.clock
    }

    /// An entry verified at this epoch or later needs no look.
    #[inline]
    pub(crate) fn last_event(&self) -> Epoch {
        self.last_event
    }

    fn tick(&mut self) -> Epoch {
        self.clock.0 += 1;
        self.clock
    }

    /// An accessed bit was cleared, or that was told, now.
    pub(crate) fn aged(&mut self) -> Epoch {
        self.tick()
    }

    /// Something was freed now.
    pub(crate) fn freed(&mut self) -> Epoch {
        self.last_event = self.tick();
        self.last_event
    }

    /// A change that takes something away.
    pub(crate) fn change(&mut self, root: Root, slot: SlotId, kind: Kind, first: u64, last: u64) {
        let change = Change { epoch: self.tick(), slot, kind, first, last, by: self.actor };
        self.pending[root.0 as usize].push(change);
    }

    pub(crate) fn begin(
        &self,
        root: Option<Root>,
        range: Option<VaRange>,
        freed_tables: bool,
    ) -> FlushToken {
        FlushToken { root, range, freed_tables, begun: self.clock }
    }

    /// Makes the covered changes binding: `bind` is told slot, kind, epoch and first address of
    /// each.
    pub(crate) fn complete(
        &mut self,
        token: &FlushToken,
        mut bind: impl FnMut(SlotId, Kind, Epoch, u64),
    ) {
        let returned = self.tick();
        let all = 0..self.pending.len();
        let roots = token.root.map_or(all, |r| r.0 as usize..r.0 as usize + 1);
        let mut any = false;
        for pending in &mut self.pending[roots] {
            pending.retain(|change| {
                if !change.covered_by(token) {
                    return true;
                }
                any = true;
                bind(change.slot, change.kind, change.epoch, change.first);
                if self.bound.len() == REMEMBERED {
                    self.bound.pop_front();
                }
                self.bound.push_back(Bound {
                    slot: change.slot,
                    changed: change.epoch,
                    changed_by: change.by,
                    returned,
                    returned_by: self.actor,
                });
                false
            });
        }
        if any {
            self.last_event = returned;
        }
    }

    /// The first binding change of this entry after `filled`, if it is still remembered.
    pub(crate) fn explain(&self, slot: SlotId, filled: Epoch) -> Option<&Bound> {
        self.bound.iter().find(|b| b.slot == slot && b.changed > filled)
    }

    /// How many changes of a space wait for a flush.
    pub(crate) fn pending(&self, root: Root) -> usize {
        self.pending[root.0 as usize].len()
    }
}
