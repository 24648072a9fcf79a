//! A hostile IOMMU: everything that it, and the devices behind it, could have cached.
//!
//! What a real one caches is a matter of chance. This one has cached every translation that was reachable at any time since
//! the last command that covers it: it walks at every store to a table, along every path that it knows, and a path that it
//! knows it keeps, through table pages that were unlinked since (paging-structure caches). So what the software has to
//! fear is a set that follows from the order of its own steps; left to chance is only when a command takes effect, and
//! when that is heard of.
//!
//! | power of the hardware | here |
//! |---|---|
//! | never evicts; prefetches any present entry at any time | `leaves` grows at every store |
//! | walks on from a cached entry after it was unlinked | `walks` is left to commands that are not leaf-only |
//! | a command takes effect at any time before it is heard of | [`Submitted::executed`], chosen when it is submitted |
//! | a device asks for translations again when it forgets them | `devices` is filled from `leaves`, also stale ones |

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shootdown_dma::invalidate::{Command, Ticket};
use shootdown_dma::{DomainId, PhysAddr};

use super::memory::mix;
use crate::io::walk::{Decoded, INDEX_BITS, Walker};
use crate::oracle::devices::Cached;

/// A path that is known: the table that decodes the pages from `first` on, at this level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Walk {
    level: u8,
    first: u64,
    table: u64,
}

#[derive(Clone, Debug)]
struct Submitted {
    ticket: Ticket,
    commands: Vec<Command>,
    executed: bool,
    denials: u8,
}

/// How often completion may be denied before it has to be told.
const DENIALS: u8 = 2;

/// The IOMMU of a hunted machine.
pub(super) struct Iommu {
    walker: Option<Walker>,
    domain: DomainId,
    root: u64,
    /// Words that are not 0, as they are visible.
    words: BTreeMap<(u64, u16), u64>,
    walks: BTreeSet<Walk>,
    leaves: BTreeSet<Cached>,
    /// What devices with caches of their own have.
    devices: Option<BTreeSet<Cached>>,
    queue: VecDeque<Submitted>,
    last: Ticket,
    completed: Ticket,
}

impl Iommu {
    pub fn new() -> Self {
        Self {
            walker: None,
            domain: DomainId(0),
            root: 0,
            words: BTreeMap::new(),
            walks: BTreeSet::new(),
            leaves: BTreeSet::new(),
            devices: None,
            queue: VecDeque::new(),
            last: Ticket(0),
            completed: Ticket(0),
        }
    }

    /// Serves devices of `domain` by the tables under `root`; `caches`: the devices have caches of their own.
    pub fn attach(&mut self, walker: Walker, domain: DomainId, root: PhysAddr, caches: bool) {
        self.walker = Some(walker);
        self.domain = domain;
        self.root = root.0;
        self.devices = caches.then(BTreeSet::new);
        self.fill();
    }

    fn top(&self) -> Option<Walk> {
        let walker = self.walker?;
        Some(Walk { level: walker.levels, first: 0, table: self.root })
    }

    /// A word of a table is visible now.
    pub fn written(&mut self, table: u64, index: u16, value: u64) {
        if value == 0 {
            self.words.remove(&(table, index));
        } else {
            self.words.insert((table, index), value);
        }
        let ways: Vec<Walk> =
            self.walks.iter().copied().chain(self.top()).filter(|w| w.table == table).collect();
        for way in ways {
            self.follow(way, index, value);
        }
        self.refill_devices();
    }

    /// The words of a table that are not 0.
    pub fn words_of(&self, table: PhysAddr) -> Vec<u16> {
        self.words.range((table.0, 0)..=(table.0, u16::MAX)).map(|(&(_, index), _)| index).collect()
    }

    /// Walks everything that is known.
    fn fill(&mut self) {
        let ways: Vec<Walk> = self.walks.iter().copied().chain(self.top()).collect();
        for way in ways {
            self.scan(way);
        }
        self.refill_devices();
    }

    fn refill_devices(&mut self) {
        if let Some(devices) = &mut self.devices {
            devices.extend(self.leaves.iter().copied());
        }
    }

    fn scan(&mut self, way: Walk) {
        let words: Vec<(u16, u64)> = self
            .words
            .range((way.table, 0)..=(way.table, u16::MAX))
            .map(|(&(_, index), &word)| (index, word))
            .collect();
        for (index, word) in words {
            self.follow(way, index, word);
        }
    }

    fn follow(&mut self, way: Walk, index: u16, word: u64) {
        let Some(walker) = self.walker else { return };
        let first = way.first + u64::from(index) * Walker::span(way.level);
        match (walker.decode)(way.level, word) {
            Decoded::Nothing => {}
            Decoded::Leaf { to, rights } => {
                let pages = Walker::span(way.level);
                self.leaves.insert(Cached { first, pages, to: to.0, writes: rights.writes() });
            }
            Decoded::Table(table) => {
                let next = Walk { level: way.level - 1, first, table: table.0 };
                if self.walks.insert(next) {
                    self.scan(next);
                }
            }
        }
    }

    /// Takes commands; `executed`: they take effect at once.
    pub fn submit(&mut self, commands: &[Command], executed: bool) -> Ticket {
        self.last.0 += 1;
        let ticket = self.last;
        if executed {
            commands.iter().for_each(|c| self.execute(*c));
        }
        let commands = commands.to_vec();
        self.queue.push_back(Submitted { ticket, commands, executed, denials: 0 });
        ticket
    }

    /// May completion be denied once more?
    pub fn may_deny(&self) -> bool {
        self.queue.front().is_some_and(|s| s.denials < DENIALS)
    }

    /// Denies it.
    pub fn deny(&mut self) {
        if let Some(first) = self.queue.front_mut() {
            first.denials += 1;
        }
    }

    /// Completes the oldest submission.
    pub fn complete_one(&mut self) {
        let Some(Submitted { ticket, commands, executed, .. }) = self.queue.pop_front() else {
            return;
        };
        if !executed {
            commands.iter().for_each(|c| self.execute(*c));
        }
        self.completed = ticket;
    }

    /// How many submissions are not complete.
    pub fn open(&self) -> usize {
        self.queue.len()
    }

    pub const fn completed(&self) -> Ticket {
        self.completed
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Pages { domain, range, leaf_only } if domain == self.domain => {
                self.leaves.retain(|leaf| !leaf.overlaps(range));
                if !leaf_only {
                    self.walks.retain(|walk| {
                        let pages = Walker::span(walk.level) << INDEX_BITS;
                        let covers =
                            walk.first <= range.last() && range.first() < walk.first + pages;
                        !covers
                    });
                }
            }
            Command::Domain(domain) if domain != self.domain => {}
            Command::Domain(_) | Command::All => {
                self.leaves.clear();
                self.walks.clear();
            }
            Command::Device { range, .. } => {
                if let Some(devices) = &mut self.devices {
                    devices.retain(|leaf| range.is_some_and(|range| !leaf.overlaps(range)));
                }
            }
            _ => {}
        }
        self.fill();
    }

    /// All that could be used.
    pub fn usable(&self) -> impl Iterator<Item = Cached> + '_ {
        self.leaves.iter().chain(self.devices.iter().flatten()).copied()
    }

    /// A path that leads to this table page.
    pub fn walks_to(&self, table: PhysAddr) -> Option<u64> {
        let mut ways = self.walks.iter().copied().chain(self.top());
        ways.find(|walk| walk.table == table.0).map(|walk| walk.first)
    }

    pub fn hash(&self) -> u64 {
        let mut hash = 0x10aa;
        let mut add = |value: u64| hash = mix(hash ^ value);
        for walk in &self.walks {
            add(walk.first ^ u64::from(walk.level) << 60 ^ walk.table.rotate_left(30));
        }
        for leaf in self.usable() {
            add(leaf.first ^ leaf.to.rotate_left(24) ^ leaf.pages << 50 ^ u64::from(leaf.writes));
        }
        for (&(table, index), &word) in &self.words {
            add(table ^ u64::from(index) << 40 ^ word.rotate_left(17));
        }
        for s in &self.queue {
            add(s.ticket.0 ^ u64::from(s.executed) << 62 ^ u64::from(s.denials) << 58);
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use shootdown_dma::{IovaRange, Rights};

    use super::*;

    /// Two levels; bit 0: present, bit 1: a table. The rest is the address.
    fn decode(level: u8, word: u64) -> Decoded {
        let to = PhysAddr(word & !0xfff);
        match word & 3 {
            3 if level > 1 => Decoded::Table(to),
            0 => Decoded::Nothing,
            _ => Decoded::Leaf { to, rights: Rights::ReadWrite },
        }
    }

    const ROOT: u64 = 0x1000;
    const TABLE: u64 = 0x2000;
    const FRAME: u64 = 0x9000;
    const DOMAIN: DomainId = DomainId(7);

    fn iommu(caches: bool) -> Iommu {
        let mut iommu = Iommu::new();
        iommu.attach(Walker { levels: 2, decode }, DOMAIN, PhysAddr(ROOT), caches);
        iommu.written(ROOT, 0, TABLE | 3);
        iommu.written(TABLE, 5, FRAME | 1);
        iommu
    }

    fn pages(leaf_only: bool) -> Command {
        let range = IovaRange::new(5, 1).unwrap();
        Command::Pages { domain: DOMAIN, range, leaf_only }
    }

    fn reaches(iommu: &Iommu) -> bool {
        iommu.usable().any(|c| c.reaches(PhysAddr(FRAME)))
    }

    #[test]
    fn what_was_cleared_stays_until_a_command_covers_it() {
        let mut iommu = iommu(false);
        iommu.written(TABLE, 5, 0);
        assert!(reaches(&iommu));
        let other = Command::Pages {
            domain: DOMAIN,
            range: IovaRange::new(6, 1).unwrap(),
            leaf_only: true,
        };
        iommu.submit(&[other, Command::Domain(DomainId(1))], true);
        assert!(reaches(&iommu), "other pages, another domain");
        iommu.submit(&[pages(true)], true);
        assert!(!reaches(&iommu));
    }

    #[test]
    fn a_command_before_the_store_helps_nothing() {
        let mut iommu = iommu(false);
        iommu.submit(&[pages(true)], true);
        iommu.written(TABLE, 5, 0);
        assert!(reaches(&iommu));
    }

    #[test]
    fn unlinked_tables_are_walked_until_walk_caches_go() {
        let mut iommu = iommu(false);
        iommu.written(TABLE, 5, 0);
        iommu.written(ROOT, 0, 0);
        iommu.submit(&[pages(true)], true);
        assert!(!reaches(&iommu));
        iommu.written(TABLE, 5, FRAME | 1);
        assert!(reaches(&iommu), "through the freed table");
        iommu.submit(&[pages(false)], true);
        assert!(iommu.walks_to(PhysAddr(TABLE)).is_none() && !reaches(&iommu));
    }

    #[test]
    fn devices_ask_again_what_they_were_told_to_forget_too_early() {
        let device = Command::Device { device: shootdown_dma::DeviceId(1), range: None };
        let mut early = iommu(true);
        early.written(TABLE, 5, 0);
        early.submit(&[device, pages(true)], true);
        assert!(reaches(&early));
        let mut late = iommu(true);
        late.written(TABLE, 5, 0);
        late.submit(&[pages(true), device], true);
        assert!(!reaches(&late));
    }

    #[test]
    fn commands_may_take_effect_as_late_as_they_are_heard_of() {
        let mut iommu = iommu(false);
        iommu.written(TABLE, 5, 0);
        let ticket = iommu.submit(&[pages(true)], false);
        assert!(reaches(&iommu) && iommu.completed() < ticket);
        iommu.complete_one();
        assert!(!reaches(&iommu) && iommu.completed() == ticket);
    }
}
