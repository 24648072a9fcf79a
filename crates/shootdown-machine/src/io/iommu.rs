//! An IOMMU as it is built: what it caches, what it reads, and how long that takes.
//!
//! # The problem
//! What translation costs a device depends on what the IOMMU has cached, and that on what software
//! maps where, and on what it tells it to forget. So the caches are here with their sizes, and a
//! miss reads the page tables that the library has written, word by word.
//!
//! # The protocol
//! A request of a device is looked up in the device's own cache if it has one (ATC), then in the
//! context cache (which tables?), the IOTLB, and the walk caches, from the lowest table on; then
//! the rest of the way is read. So many walks are under way at a time; others wait. An entry is
//! there from the time its walk begins, and usable when it ends: requests for the same page
//! meanwhile wait for the same walk. Absence is not cached. A request for which there is no
//! entry, or none that allows it, is a fault: recorded and counted, and the device gets nothing.
//!
//! Commands ([`Iommu::execute`]) forget what they cover, in no time; how long they take is the
//! queue's ([`queue`](super::queue)).
//!
//! # Invariants
//! - I1: an entry was read from the tables at the time of the request that put it there.
//! - I2: nothing is forgotten but by a command, or for want of room.

use std::collections::{BTreeMap, VecDeque};

use shootdown_dma::invalidate::Command;
use shootdown_dma::{DeviceId, DomainId, PhysAddr};

use super::cache::Cache;
use super::walk::{Decoded, INDEX_BITS, Walker};
use crate::oracle::devices::Cached;
use crate::profile::IommuCosts;

/// Words of page tables, as the unit reads them.
pub trait Words {
    /// A word of a table.
    fn word(&self, table: PhysAddr, index: usize) -> u64;
}

/// Which pages an entry translates, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    domain: DomainId,
    first: u64,
    pages: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    to: u64,
    reads: bool,
    writes: bool,
    /// When the walk that found it is over, ps.
    ready: u64,
}

/// A table that pages from `first` on are looked up in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Way {
    domain: DomainId,
    first: u64,
}

#[derive(Clone, Copy, Debug)]
struct Attached {
    domain: DomainId,
    root: PhysAddr,
    caches: bool,
}

/// Pages of memory that a device gets to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// The physical page; `None`: a fault.
    pub page: Option<PhysAddr>,
    /// When the device knows, ps.
    pub ready: u64,
}

/// A request that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When, ps.
    pub at: u64,
    /// Who.
    pub device: DeviceId,
    /// For which page.
    pub page: u64,
    /// It wanted to write.
    pub write: bool,
}

/// Faults that are kept, the newest.
const FAULTS: usize = 64;

/// What an IOMMU has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct IommuCounts {
    /// Requests of devices.
    pub requests: u64,
    /// Of them found in the device's own cache.
    pub device_hits: u64,
    /// Found in the IOTLB.
    pub hits: u64,
    /// Not found there.
    pub misses: u64,
    /// Words of tables read.
    pub reads: u64,
    /// Requests refused.
    pub faults: u64,
    /// Commands taken, waits apart.
    pub commands: u64,
    /// Waits completed.
    pub waits: u64,
    /// Entries that commands have made it forget.
    pub forgotten: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Iommu {
    costs: IommuCosts,
    walker: Walker,
    iotlb: Cache<Key, Entry>,
    /// By the level of the table that they lead to, from 1 on.
    ways: [Cache<Way, PhysAddr>; 3],
    contexts: Cache<DeviceId, ()>,
    devices: BTreeMap<DeviceId, Attached>,
    atcs: BTreeMap<DeviceId, Cache<Key, Entry>>,
    /// When each walker is done, ps.
    walkers: Vec<u64>,
    faults: VecDeque<Fault>,
    counts: IommuCounts,
}

impl Iommu {
    /// A unit that walks tables of this kind.
    #[must_use]
    pub fn new(costs: IommuCosts, walker: Walker) -> Self {
        Self {
            costs,
            walker,
            iotlb: Cache::new(costs.entries, costs.ways),
            ways: [costs.lower, costs.upper, costs.top].map(Cache::full),
            contexts: Cache::full(costs.contexts),
            devices: BTreeMap::new(),
            atcs: BTreeMap::new(),
            walkers: vec![0; costs.walkers as usize],
            faults: VecDeque::new(),
            counts: IommuCounts::default(),
        }
    }

    /// A device's entry: its domain, and the root of its tables. `own`: entries of a cache of its
    /// own; 0: it has none.
    pub fn attach(&mut self, device: DeviceId, domain: DomainId, root: PhysAddr, own: u32) {
        self.devices.insert(device, Attached { domain, root, caches: own != 0 });
        if own != 0 {
            self.atcs.insert(device, Cache::full(own));
        }
    }

    /// What it has done so far.
    #[must_use]
    pub const fn counts(&self) -> IommuCounts {
        self.counts
    }

    pub(super) const fn counts_mut(&mut self) -> &mut IommuCounts {
        &mut self.counts
    }

    /// The newest faults, oldest first.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter()
    }

    /// A device asks for a page at `now` (ps).
    pub fn translate(
        &mut self,
        now: u64,
        (device, page, write): (DeviceId, u64, bool),
        words: &impl Words,
    ) -> Translation {
        self.counts.requests += 1;
        let Some(attached) = self.devices.get(&device).copied() else {
            return self.fault(Fault { at: now, device, page, write }, now);
        };
        if !attached.caches {
            return self.translate_here(now, attached, (device, page, write), words);
        }
        let Attached { domain, .. } = attached;
        let key = Key { domain, first: page, pages: 1 };
        let own = self.atcs.get_mut(&device).and_then(|atc| atc.find(0, key)).copied();
        if let Some(entry) = own.filter(|e| e.allows(write)) {
            self.counts.device_hits += 1;
            return Translation { page: Some(PhysAddr(entry.to)), ready: now.max(entry.ready) };
        }
        let mut found = self.translate_here(now, attached, (device, page, write), words);
        found.ready += self.costs.ask.ps();
        if let (Some(to), Some(atc)) = (found.page, self.atcs.get_mut(&device)) {
            let entry = Entry { to: to.0, reads: !write, writes: write, ready: found.ready };
            atc.put(0, key, entry);
        }
        found
    }

    /// The unit's part.
    fn translate_here(
        &mut self,
        now: u64,
        Attached { domain, root, .. }: Attached,
        (device, page, write): (DeviceId, u64, bool),
        words: &impl Words,
    ) -> Translation {
        let fault = Fault { at: now, device, page, write };
        let mut time = now;
        if self.contexts.find(0, device).is_none() {
            self.contexts.put(0, device, ());
            // A word of the root table, and one of the context table.
            time += 2 * self.costs.read.ps();
            self.counts.reads += 2;
        }
        if let Some((key, entry)) = self.cached(domain, page) {
            let ready = entry.ready.max(time + self.costs.hit.ps());
            self.counts.hits += 1;
            return match entry.allows(write) {
                true => Translation { page: Some(entry.at(key, page)), ready },
                false => self.fault(fault, ready),
            };
        }
        self.counts.misses += 1;
        let free = (0..self.walkers.len()).min_by_key(|n| self.walkers[*n]).unwrap_or(0);
        let begins = time.max(self.walkers[free]);
        let (found, reads) = self.walk(domain, root, page, words);
        self.counts.reads += reads;
        let ready = begins + self.costs.miss.ps() + reads * self.costs.read.ps();
        self.walkers[free] = ready;
        let Some((key, entry)) = found else { return self.fault(fault, ready) };
        let entry = Entry { ready, ..entry };
        self.iotlb.put(Self::hash(key), key, entry);
        match entry.allows(write) {
            true => Translation { page: Some(entry.at(key, page)), ready },
            false => self.fault(fault, ready),
        }
    }

    /// Neighbours fall into neighbouring sets.
    const fn hash(key: Key) -> u64 {
        key.first / key.pages
    }

    fn cached(&mut self, domain: DomainId, page: u64) -> Option<(Key, Entry)> {
        let walker = self.walker;
        (1..=self.walker.levels).find_map(|level| {
            let pages = walker.span(level);
            let key = Key { domain, first: page & !(pages - 1), pages };
            self.iotlb.find(Self::hash(key), key).map(|entry| (key, *entry))
        })
    }

    /// Reads the rest of the way. Also returns how many words that were.
    fn walk(
        &mut self,
        domain: DomainId,
        root: PhysAddr,
        page: u64,
        words: &impl Words,
    ) -> (Option<(Key, Entry)>, u64) {
        let walker = self.walker;
        let top = self.walker.levels;
        let first = |level: u8| page & !((walker.span(level) << INDEX_BITS) - 1);
        let mut level = 1;
        let mut table = loop {
            if level == top {
                break root;
            }
            let way = Way { domain, first: first(level) };
            if let Some(table) = self.ways[usize::from(level) - 1].find(0, way) {
                break *table;
            }
            level += 1;
        };
        let mut reads = 0;
        loop {
            let pages = walker.span(level);
            #[allow(clippy::cast_possible_truncation)] // nine bits
            let index = (page / pages) as usize % (1 << INDEX_BITS);
            reads += 1;
            match (self.walker.decode)(level, words.word(table, index)) {
                Decoded::Nothing => return (None, reads),
                Decoded::Leaf { to, rights } => {
                    let key = Key { domain, first: page & !(pages - 1), pages };
                    let (reads_too, writes) = (rights.reads(), rights.writes());
                    let entry = Entry { to: to.0, reads: reads_too, writes, ready: 0 };
                    return (Some((key, entry)), reads);
                }
                Decoded::Table(below) => {
                    level -= 1;
                    table = below;
                    let way = Way { domain, first: first(level) };
                    self.ways[usize::from(level) - 1].put(0, way, below);
                }
            }
        }
    }

    /// Where the tables lead now, whatever is cached.
    #[must_use]
    pub fn look_up(&self, device: DeviceId, page: u64, words: &impl Words) -> Option<PhysAddr> {
        let walker = self.walker;
        let mut table = self.devices.get(&device)?.root;
        let mut level = self.walker.levels;
        loop {
            let pages = walker.span(level);
            #[allow(clippy::cast_possible_truncation)] // nine bits
            let index = (page / pages) as usize % (1 << INDEX_BITS);
            match (self.walker.decode)(level, words.word(table, index)) {
                Decoded::Nothing => return None,
                Decoded::Leaf { to, .. } => return Some(PhysAddr(to.0 + ((page % pages) << 12))),
                Decoded::Table(below) => table = below,
            }
            level -= 1;
        }
    }

    fn fault(&mut self, fault: Fault, ready: u64) -> Translation {
        self.counts.faults += 1;
        if self.faults.len() == FAULTS {
            self.faults.pop_front();
        }
        self.faults.push_back(fault);
        Translation { page: None, ready }
    }

    /// Forgets what a command covers.
    pub fn execute(&mut self, command: Command) {
        let walker = self.walker;
        self.counts.commands += 1;
        self.counts.forgotten += match command {
            Command::Pages { domain, range, leaf_only } => {
                if !leaf_only {
                    for (level, ways) in (1..).zip(&mut self.ways) {
                        let pages = walker.span(level) << INDEX_BITS;
                        ways.retain(|way, _| {
                            let covers =
                                way.first <= range.last() && range.first() < way.first + pages;
                            way.domain != domain || !covers
                        });
                    }
                }
                self.iotlb.retain(|key, entry| {
                    key.domain != domain || !entry.cached(*key).overlaps(range)
                })
            }
            Command::Domain(domain) => {
                self.ways
                    .iter_mut()
                    .for_each(|ways| _ = ways.retain(|way, _| way.domain != domain));
                self.iotlb.retain(|key, _| key.domain != domain)
            }
            Command::Device { device, range } => self.atcs.get_mut(&device).map_or(0, |atc| {
                atc.retain(|key, entry| {
                    range.is_some_and(|range| !entry.cached(*key).overlaps(range))
                })
            }),
            Command::Config { device, .. } => self.contexts.retain(|d, ()| *d != device),
            _ => {
                self.ways.iter_mut().for_each(|ways| _ = ways.retain(|_, _| false));
                self.iotlb.retain(|_, _| false)
            }
        };
    }

    /// All translations that a request could be served by.
    pub fn usable(&self) -> impl Iterator<Item = Cached> + '_ {
        let own = self.atcs.values().flat_map(Cache::iter);
        self.iotlb.iter().chain(own).map(|(key, entry)| entry.cached(*key))
    }

    /// A cached way that leads to this table: the first page of it.
    #[must_use]
    pub fn walks_to(&self, table: PhysAddr) -> Option<u64> {
        let mut ways = self.ways.iter().flat_map(Cache::iter);
        ways.find(|(_, to)| *to == table).map(|(way, _)| way.first)
    }
}

impl Entry {
    const fn allows(&self, write: bool) -> bool {
        if write { self.writes } else { self.reads }
    }

    const fn at(&self, key: Key, page: u64) -> PhysAddr {
        PhysAddr(self.to + ((page - key.first) << 12))
    }

    const fn cached(&self, key: Key) -> Cached {
        Cached {
            domain: key.domain.0,
            first: key.first,
            pages: key.pages,
            to: self.to,
            reads: self.reads,
            writes: self.writes,
        }
    }
}

#[cfg(test)]
mod tests;
