//! One IOMMU: what it has cached, and what it was told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shootdown_dma::IovaRange;
use shootdown_dma::invalidate::{Command, Ticket};

use super::cached::{Cached, Walk};

/// Commands that were submitted together.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    pub ticket: Ticket,
    pub commands: Vec<Command>,
    /// They have taken effect.
    pub executed: bool,
    /// How often it was denied that it is complete.
    pub denials: u8,
}

/// Accesses that have begun with a translation that was forgotten since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flying {
    /// They are over when this is complete: it made the cache forget.
    pub until: Ticket,
    /// The device whose cache had it; `None`: the unit's own.
    pub device: Option<u32>,
    pub leaf: Cached,
}

/// One unit.
#[derive(Debug, Default)]
pub(super) struct Unit {
    /// Paths that are known.
    pub walks: BTreeSet<Walk>,
    /// Translations.
    pub leaves: BTreeSet<Cached>,
    /// Translations that a command came by, and that survived it.
    pub spared: BTreeSet<Cached>,
    /// Translations that it has been told of since they were made: of all others it may remember
    /// that there was nothing.
    pub known: BTreeSet<Cached>,
    /// Tables that it has been told of since they were linked: of others it may remember that
    /// there was none, and a command for leaves alone does not change that.
    pub tables: BTreeSet<Walk>,
    /// What was forgotten and is in use by accesses that began before.
    pub flying: Vec<Flying>,
    /// How often it has failed.
    pub faults: u8,
    /// It could not be told something, and nobody has waited since.
    pub was_full: bool,
    pub queue: VecDeque<Submitted>,
    pub last: Ticket,
    pub completed: Ticket,
}

/// Which translations a command is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// Of this domain; `None`: of all.
    pub domain: Option<u16>,
    /// Of these pages; `None`: of all.
    pub range: Option<IovaRange>,
}

impl Reach {
    pub fn has(&self, leaf: &Cached) -> bool {
        self.domain.is_none_or(|domain| domain == leaf.domain)
            && self.range.is_none_or(|range| leaf.overlaps(range))
    }

    pub fn walks(&self, walk: &Walk, pages: u64) -> bool {
        let covers =
            |range: IovaRange| walk.first <= range.last() && range.first() < walk.first + pages;
        self.domain.is_none_or(|domain| domain == walk.domain) && self.range.is_none_or(covers)
    }
}

/// What a command has come by.
pub(super) struct Forgotten {
    /// What is not there any more.
    pub gone: Vec<Cached>,
    /// Something is, though it was meant.
    pub survived: bool,
}

/// Takes translations out of a cache; returns what was taken. `whole`: one that is partly meant is
/// taken out as a whole.
pub(super) fn take(cache: &mut BTreeSet<Cached>, reach: Reach, whole: bool) -> Vec<Cached> {
    let taken: Vec<Cached> = cache.iter().copied().filter(|leaf| reach.has(leaf)).collect();
    for leaf in &taken {
        cache.remove(leaf);
        if let (false, Some(range)) = (whole, reach.range) {
            cache.extend(leaf.without(range));
        }
    }
    taken
}

impl Unit {
    /// Each translation survives the first command: those that it is the first for. They are not to
    /// be taken.
    pub fn spare(&mut self, reach: Reach) -> Vec<Cached> {
        let meant: Vec<Cached> =
            self.leaves.iter().copied().filter(|leaf| reach.has(leaf)).collect();
        let spared: Vec<Cached> =
            meant.into_iter().filter(|leaf| !self.spared.remove(leaf)).collect();
        self.spared.extend(&spared);
        spared
    }

    /// Forgets what a command is for. `whole`: as [`take`] has it. `survives`: each translation
    /// survives the first command.
    pub fn forget(&mut self, reach: Reach, whole: bool, survives: bool) -> Forgotten {
        let spared = if survives { self.spare(reach) } else { Vec::new() };
        spared.iter().for_each(|leaf| {
            self.leaves.remove(leaf);
        });
        let gone = take(&mut self.leaves, reach, whole);
        let survived = !spared.is_empty();
        self.leaves.extend(spared);
        Forgotten { gone, survived }
    }

    pub fn hash(&self, add: &mut impl FnMut(u64)) {
        for (set, mark) in [(&self.walks, 0), (&self.tables, 0x7ab1e)] {
            for walk in set {
                let level = u64::from(walk.level) << 60;
                let table = walk.table.rotate_left(30);
                add(walk.first ^ level ^ table ^ u64::from(walk.domain) << 44 ^ mark);
            }
        }
        for (set, mark) in [(&self.leaves, 0x1eaf), (&self.spared, 0x57a4e), (&self.known, 0x104)] {
            set.iter().for_each(|leaf| super::add_leaf(leaf, mark, add));
        }
        for Flying { until, device, leaf } in &self.flying {
            let device = device.map_or(0, |device| u64::from(device) + 1);
            super::add_leaf(leaf, 0xf17 ^ until.0 << 16 ^ device << 48, add);
        }
        for s in &self.queue {
            add(s.ticket.0 ^ u64::from(s.executed) << 62 ^ u64::from(s.denials) << 58);
        }
        add(self.completed.0 ^ self.last.0 << 32 ^ u64::from(self.faults) << 60);
    }
}

/// Devices by their number.
pub(super) type Devices = BTreeMap<u32, super::device::Device>;
