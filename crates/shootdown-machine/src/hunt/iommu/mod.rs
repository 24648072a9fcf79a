//! Hostile IOMMUs: everything that they, and the devices behind them, could have cached.
//!
//! What a real one caches is a matter of chance. These have cached every translation that was reachable at any time since
//! the last command that covers it: they walk at every store to a table, along every path that they know, and a path that they
//! know they keep, through table pages that were unlinked since (paging-structure caches). So what the software has to
//! fear is a set that follows from the order of its own steps; left to chance is only when a command takes effect, and
//! when that is heard of.
//!
//! | power of the hardware | here | switch |
//! |---|---|---|
//! | never evicts | leaves stay until a command covers them | always |
//! | prefetches any present entry at any time | leaves grow at every store | [`Power::Speculation`] |
//! | remembers that there was nothing, until told | `known` has what it does not | [`Power::RemembersAbsence`] |
//! | walks on from a cached entry after it was unlinked | `walks` is left to commands that are not leaf-only | [`Power::WalkCaches`] |
//! | a command takes effect at any time before it is heard of | chosen when it is submitted | [`Power::LateInvalidation`] |
//! | a device asks for translations again when it forgets them | its cache is filled from the unit's, also with stale ones | the device has a cache |
//! | accesses that have begun go on until completion | what is forgotten early is `flying` | [`Power::InFlight`] |
//! | reads memory, not CPUs' caches | words have older values until they are written back | [`Power::StaleLines`] |
//! | reads an entry of several words at several times | `device.rs` | [`Power::TornEntries`] |
//! | keeps what it has read of a device's entry | `device.rs` | [`Power::CachedEntries`] |
//! | a translation survives one command | `spared` | [`Power::SurvivesOnce`] |
//! | caches a large page in pieces, and forgets a piece | [`Cached::without`] | [`Power::Fracture`] |
//!
//! What depends on the model of the hardware (remembering absence, reading memory, surviving) happens only if the world says that it has
//! such a model ([`Model`]), since its kernel must be told. Queues in memory, and their errors, are not here: units are told by
//! commands, as the library's engine makes them; its queues have tests of their own.

mod cached;
mod device;
mod seen;
mod tables;
#[cfg(test)]
mod tests;
mod unit;

pub use cached::Cached;
pub use device::{Half, VALID};
pub use tables::{Decoded, Walker};

use std::collections::{BTreeMap, BTreeSet};

use shootdown_dma::invalidate::{Command, Ticket};
use shootdown_dma::{DeviceId, DomainId, IovaRange, PhysAddr};

use super::memory::mix;
use super::powers::{Power, Powers};
use cached::Walk;
use device::Device;
use tables::{INDEX_BITS, Place, SHEET, Words};
use unit::{Devices, Flying, Reach, Submitted, Unit, take};

/// What IOMMUs there are, and what they are like.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// How they read tables.
    pub walker: Walker,
    /// How many there are.
    pub units: usize,
    /// They look into CPUs' caches when they walk.
    pub coherent: bool,
    /// They remember what was not mapped (VT-d's caching mode, AMD-Vi's NpCache).
    pub remembers_absence: bool,
    /// A translation may survive one command (an erratum).
    pub survives_once: bool,
    /// How often it may be denied that commands are complete, before it has to be told.
    pub denials: u8,
}

/// Adds a translation to a hash.
fn add_leaf(leaf: &Cached, mark: u64, add: &mut impl FnMut(u64)) {
    let rights = u64::from(leaf.writes) | u64::from(leaf.reads) << 1 | u64::from(leaf.domain) << 8;
    add(leaf.first ^ leaf.to.rotate_left(24) ^ leaf.pages << 50 ^ mix(mark ^ rights << 32));
}

/// The same command in pages of 4 KiB.
fn small_pages(command: Command, model: Option<Model>) -> Command {
    let scale = model.map_or(0, |model| model.walker.granule - 12);
    let scaled = |range: IovaRange| {
        IovaRange::new(range.first() << scale, range.pages() << scale).expect("a range")
    };
    match command {
        Command::Pages { domain, range, leaf_only } => {
            Command::Pages { domain, range: scaled(range), leaf_only }
        }
        Command::Device { device, range } => Command::Device { device, range: range.map(scaled) },
        other => other,
    }
}

/// What a walk finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// Always this.
    Leaf(Cached),
    /// Perhaps nothing.
    Nothing,
}

/// The IOMMUs of a hunted machine, and the devices behind them.
pub(super) struct Iommu {
    powers: Powers,
    model: Option<Model>,
    words: Words,
    units: Vec<Unit>,
    devices: Devices,
}

impl Iommu {
    pub fn new(powers: Powers) -> Self {
        let (words, devices) = (Words::default(), BTreeMap::new());
        Self { powers, model: None, words, units: Vec::new(), devices }
    }

    /// There are such.
    pub fn set_up(&mut self, model: Model) {
        self.model = Some(model);
        self.units = (0..model.units).map(|_| Unit::default()).collect();
    }

    fn has(&self, power: Power) -> bool {
        let model = |f: fn(&Model) -> bool| self.model.as_ref().is_some_and(f);
        self.powers.has(power)
            && match power {
                Power::StaleLines => model(|m| !m.coherent),
                Power::RemembersAbsence => model(|m| m.remembers_absence),
                Power::SurvivesOnce => model(|m| m.survives_once),
                _ => true,
            }
    }

    // ------------------------------------------------------------ devices

    /// There is a device behind a unit; it has a cache of its own, or not. It is served when its entry says so.
    pub fn plug(&mut self, device: DeviceId, unit: usize, caches: bool) {
        let device = self.devices.entry(device.0).or_insert_with(|| Device::new(device.0, unit));
        device.plugged = true;
        device.atc = caches.then(BTreeSet::new);
        self.fill();
    }

    /// The device is gone, with all that it had cached.
    pub fn unplug(&mut self, device: DeviceId) {
        if let Some(device) = self.devices.get_mut(&device.0) {
            (device.plugged, device.atc) = (false, None);
        }
    }

    /// Writes a word of a device's entry.
    pub fn write_entry(&mut self, device: DeviceId, half: Half, value: u64) {
        let (torn, kept) = (self.has(Power::TornEntries), self.has(Power::CachedEntries));
        let Some(unit) = self.devices.get(&device.0).map(|device| device.unit) else { return };
        let before: BTreeSet<u16> = self.tops(unit).map(|top| top.domain).collect();
        if let Some(device) = self.devices.get_mut(&device.0) {
            device.write(half, value, torn, kept);
        }
        if self.has(Power::RemembersAbsence) {
            // Of a domain that nobody was in, nobody has looked at anything yet.
            let new = self.tops(unit).filter(|top| !before.contains(&top.domain));
            let known = self.present(new.collect());
            self.units[unit].known.extend(known);
        }
        self.fill();
    }

    // ------------------------------------------------------------ tables

    /// Could a walker tell these words of a table from each other, at any level?
    pub fn differ(&self, before: u64, after: u64) -> bool {
        self.model.is_none_or(|Model { walker, .. }| {
            (1..=walker.levels)
                .any(|level| (walker.decode)(level, before) != (walker.decode)(level, after))
        })
    }

    /// A word of a table is visible now.
    pub fn written(&mut self, table: u64, index: u16, value: u64) {
        let stale = self.has(Power::StaleLines);
        let place = (table, index);
        self.unknow(place, value);
        self.words.store(place, value, stale);
        if !self.has(Power::WalkCaches) {
            return self.fill();
        }
        for unit in 0..self.units.len() {
            for way in self.ways(unit).filter(|w| w.table == table).collect::<Vec<_>>() {
                self.follow(unit, way, index, value);
            }
        }
        self.refill_devices();
    }

    /// A word changes: of what it led to, and does not lead to any more, nothing is known.
    fn unknow(&mut self, (table, index): Place, value: u64) {
        let Some(Model { walker, .. }) = self.model.filter(|_| self.has(Power::RemembersAbsence))
        else {
            return;
        };
        let before = self.words.now((table, index));
        for unit in 0..self.units.len() {
            for way in self.ways(unit).filter(|w| w.table == table).collect::<Vec<_>>() {
                if (walker.decode)(way.level, before) == (walker.decode)(way.level, value) {
                    continue;
                }
                let first = way.first + u64::from(index) * walker.span(way.level);
                let last = first + walker.span(way.level);
                let below = |leaf: &Cached| (first..last).contains(&leaf.first);
                self.units[unit].known.retain(|leaf| leaf.domain != way.domain || !below(leaf));
            }
        }
    }

    /// The line of a word is in memory. Was it another there?
    pub fn written_back(&mut self, table: u64, index: u16) -> bool {
        self.words.write_back((table, index))
    }

    /// The words of a table that are not 0.
    pub fn words_of(&self, table: PhysAddr) -> Vec<u16> {
        self.words.of(table.0).map(|(index, _)| index).collect()
    }

    /// Where walks of a unit begin: for all that it knows of devices' entries.
    fn tops(&self, unit: usize) -> impl Iterator<Item = Walk> + '_ {
        let level = self.model.as_ref().map_or(1, |m| m.walker.levels);
        let behind = self.devices.values().filter(move |device| device.unit == unit);
        let entries = behind.flat_map(|device| device.cached.iter().copied().chain(device.entry()));
        let tops = entries.map(move |e| Walk { domain: e.domain, level, first: 0, table: e.root });
        tops.flat_map(|top| self.sheets(top))
    }

    /// Pages of 4 KiB that an entry at this level covers.
    fn span(&self, level: u8) -> u64 {
        self.model.as_ref().map_or(1, |m| m.walker.span(level))
    }

    /// The paths to all sheets of a table.
    fn sheets(&self, way: Walk) -> impl Iterator<Item = Walk> + use<> {
        let sheets = self.model.as_ref().map_or(1, |m| m.walker.sheets());
        let pages = self.span(way.level) << INDEX_BITS;
        (0..sheets).map(move |n| Walk {
            first: way.first + n * pages,
            table: way.table + n * SHEET,
            ..way
        })
    }

    fn ways(&self, unit: usize) -> impl Iterator<Item = Walk> + '_ {
        self.units[unit].walks.iter().copied().chain(self.tops(unit))
    }

    /// Walks everything that is known.
    fn fill(&mut self) {
        for unit in 0..self.units.len() {
            if !self.has(Power::WalkCaches) {
                self.units[unit].walks.clear();
            }
            for way in self.ways(unit).collect::<BTreeSet<_>>() {
                self.scan(unit, way);
            }
        }
        self.refill_devices();
    }

    /// Devices ask their unit again.
    fn refill_devices(&mut self) {
        let Self { devices, units, .. } = self;
        for device in devices.values_mut() {
            let entry = device.entry();
            let Device { unit, cached, atc: Some(atc), plugged: true, .. } = device else {
                continue;
            };
            let serves = |leaf: &&Cached| {
                cached.iter().chain(&entry).any(|entry| entry.domain == leaf.domain)
            };
            atc.extend(units[*unit].leaves.iter().filter(serves).copied());
        }
    }

    fn scan(&mut self, unit: usize, way: Walk) {
        let words: Vec<(u16, u64)> =
            self.words.of(way.table).chain(self.words.stale_of(way.table)).collect();
        for (index, word) in words {
            self.follow(unit, way, index, word);
        }
    }

    fn follow(&mut self, unit: usize, way: Walk, index: u16, word: u64) {
        let Some(Model { walker, .. }) = self.model else { return };
        let first = way.first + u64::from(index) * walker.span(way.level);
        match (walker.decode)(way.level, word) {
            Decoded::Nothing => {}
            Decoded::Leaf { .. } if !self.has(Power::Speculation) => {}
            Decoded::Leaf { to, rights } => {
                let leaf = Cached {
                    domain: way.domain,
                    first,
                    pages: walker.span(way.level),
                    to: to.0,
                    reads: rights.reads(),
                    writes: rights.writes(),
                };
                self.units[unit].leaves.insert(leaf);
            }
            Decoded::Table(table) => {
                let next = Walk { level: way.level - 1, first, table: table.0, ..way };
                for next in self.sheets(next) {
                    if self.units[unit].walks.insert(next) {
                        self.scan(unit, next);
                    }
                }
            }
        }
    }

    /// What a walk of a page finds by all that it may read; a path that is cached is not taken.
    fn walk(&self, way: Walk, page: u64) -> Found {
        let Some(Model { walker, .. }) = self.model else { return Found::Nothing };
        let (number, span) = (page / walker.span(way.level), walker.span(way.level));
        #[allow(clippy::cast_possible_truncation)] // nine bits
        let index = number as u16 & ((1 << INDEX_BITS) - 1);
        // Whichever sheet of it the path leads to.
        let table = way.table & !(walker.sheets() * SHEET - 1);
        let sheet = table + (number >> INDEX_BITS & (walker.sheets() - 1)) * SHEET;
        let first = page - page % span;
        let mut found = None;
        for word in self.words.possible((sheet, index)) {
            let this = match (walker.decode)(way.level, word) {
                Decoded::Nothing => Found::Nothing,
                Decoded::Leaf { to, rights } => Found::Leaf(Cached {
                    domain: way.domain,
                    first,
                    pages: span,
                    to: to.0,
                    reads: rights.reads(),
                    writes: rights.writes(),
                }),
                Decoded::Table(table) => {
                    self.walk(Walk { level: way.level - 1, first, table: table.0, ..way }, page)
                }
            };
            match found {
                None => found = Some(this),
                Some(before) if before == this => {}
                Some(_) => return Found::Nothing,
            }
        }
        found.unwrap_or(Found::Nothing)
    }

    // ------------------------------------------------------------ commands

    /// May a unit take commands later than they are submitted?
    pub fn may_delay(&self) -> bool {
        self.has(Power::LateInvalidation)
    }

    /// A unit takes commands; `executed`: they take effect at once.
    pub fn submit(&mut self, unit: usize, commands: &[Command], executed: bool) -> Ticket {
        let commands: Vec<Command> = commands.iter().map(|c| small_pages(*c, self.model)).collect();
        let at = &mut self.units[unit];
        at.last.0 += 1;
        let ticket = at.last;
        at.queue.push_back(Submitted { ticket, commands: commands.clone(), executed, denials: 0 });
        if executed {
            commands.iter().for_each(|c| self.execute(unit, *c, Some(ticket)));
        }
        ticket
    }

    /// May completion be denied once more?
    pub fn may_deny(&self, unit: usize) -> bool {
        let most = self.model.map_or(0, |model| model.denials);
        self.has(Power::LateInvalidation)
            && self.units[unit].queue.front().is_some_and(|s| s.denials < most)
    }

    /// Denies it.
    pub fn deny(&mut self, unit: usize) {
        if let Some(first) = self.units[unit].queue.front_mut() {
            first.denials += 1;
        }
    }

    /// Completes the oldest submission.
    pub fn complete_one(&mut self, unit: usize) {
        let Some(Submitted { ticket, commands, executed, .. }) = self.units[unit].queue.pop_front()
        else {
            return;
        };
        if !executed {
            commands.iter().for_each(|c| self.execute(unit, *c, None));
        }
        let unit = &mut self.units[unit];
        unit.flying.retain(|flying| flying.until > ticket);
        unit.completed = ticket;
    }

    /// Has a unit submissions that are not complete?
    pub fn is_busy(&self) -> bool {
        self.units.iter().any(|unit| !unit.queue.is_empty())
    }

    /// How many submissions are not complete.
    pub fn open(&self, unit: usize) -> usize {
        self.units[unit].queue.len()
    }

    pub fn completed(&self, unit: usize) -> Ticket {
        self.units[unit].completed
    }

    pub fn last(&self, unit: usize) -> Ticket {
        self.units[unit].last
    }

    /// A command takes effect. Accesses that it makes stale go on until `flying` is complete. `None`: it is complete, and all that it is
    /// for are over, whichever command made the cache forget.
    pub fn execute(&mut self, unit: usize, command: Command, flying: Option<Ticket>) {
        let whole = !self.has(Power::Fracture);
        let survives = self.has(Power::SurvivesOnce);
        let (device, reach) = match command {
            Command::Pages { domain, range, .. } => {
                (None, Reach { domain: Some(domain.0), range: Some(range) })
            }
            Command::Domain(domain) => (None, Reach { domain: Some(domain.0), range: None }),
            Command::Device { device, range } => (Some(device), Reach { domain: None, range }),
            Command::Config { device, .. } => {
                if let Some(device) = self.devices.get_mut(&device.0) {
                    device.forget();
                }
                return self.fill();
            }
            _ => (None, Reach { domain: None, range: None }),
        };
        let leaf_only = matches!(command, Command::Pages { leaf_only: true, .. });
        let taken = if let Some(device) = device {
            let cache = self.devices.get_mut(&device.0).and_then(|device| device.atc.as_mut());
            cache.map_or(Vec::new(), |cache| take(cache, reach, whole))
        } else {
            if !leaf_only {
                let walker = self.model.map(|model| model.walker);
                let pages = |walk: &Walk| walker.map_or(1, |w| w.span(walk.level)) << INDEX_BITS;
                self.units[unit].walks.retain(|walk| !reach.walks(walk, pages(walk)));
            }
            self.know(unit, reach);
            self.units[unit].forget(reach, whole, survives)
        };
        let device = device.map(|device| device.0);
        let in_flight = &mut self.units[unit].flying;
        match flying {
            Some(until) if self.powers.has(Power::InFlight) => {
                let all = taken.into_iter().map(|leaf| Flying { until, device, leaf });
                in_flight.extend(all);
            }
            Some(_) => {}
            None => in_flight.retain(|f| f.device != device || !reach.has(&f.leaf)),
        }
        self.fill();
    }

    /// Units remember nothing of what was there before.
    pub fn know_all(&mut self) {
        for unit in 0..self.units.len() {
            self.know(unit, Reach { domain: None, range: None });
        }
    }

    /// What is there now, and was reached by a command, is not remembered as absent any more.
    fn know(&mut self, unit: usize, reach: Reach) {
        if !self.has(Power::RemembersAbsence) {
            return;
        }
        let tops: BTreeSet<Walk> = self.tops(unit).collect();
        let mut known = BTreeSet::new();
        for leaf in self.present(tops.into_iter().collect()) {
            // A large page is known when the command reaches all of it.
            let all = reach
                .range
                .is_none_or(|r| r.first() <= leaf.first && leaf.first + leaf.pages <= r.last() + 1);
            if reach.has(&leaf) && all {
                known.insert(leaf);
            }
        }
        self.units[unit].known.extend(known);
    }

    /// All translations that are in the tables for sure, below these.
    fn present(&self, mut ways: Vec<Walk>) -> Vec<Cached> {
        let mut leaves = Vec::new();
        while let Some(way) = ways.pop() {
            for (index, word) in self.words.of(way.table).collect::<Vec<_>>() {
                let first = way.first + u64::from(index) * self.span(way.level);
                let Some(Model { walker, .. }) = self.model else { continue };
                let decode = |word| (walker.decode)(way.level, word);
                if self.words.possible((way.table, index)).any(|w| decode(w) != decode(word)) {
                    continue;
                }
                match decode(word) {
                    Decoded::Nothing => {}
                    Decoded::Table(table) => {
                        let next = Walk { level: way.level - 1, first, table: table.0, ..way };
                        ways.extend(self.sheets(next));
                    }
                    Decoded::Leaf { .. } => match self.walk(way, first) {
                        Found::Leaf(leaf) => leaves.push(leaf),
                        Found::Nothing => {}
                    },
                }
            }
        }
        leaves
    }

    // ------------------------------------------------------------ what the oracle asks

    /// All that could be used.
    pub fn usable(&self) -> impl Iterator<Item = Cached> + '_ {
        let units = self.units.iter();
        let own = units.flat_map(|u| u.leaves.iter().chain(u.flying.iter().map(|f| &f.leaf)));
        own.chain(self.devices.values().flat_map(|d| d.atc.iter().flatten())).copied()
    }

    /// The device accesses a page: what a walk finds is cached.
    pub fn touch(&mut self, range: IovaRange) {
        if self.has(Power::Speculation) {
            return; // it is there already
        }
        for unit in 0..self.units.len() {
            for top in self.tops(unit).collect::<BTreeSet<_>>() {
                let mut page = range.first();
                while page <= range.last() {
                    let Found::Leaf(leaf) = self.walk(top, page) else {
                        page += 1;
                        continue;
                    };
                    self.units[unit].leaves.insert(leaf);
                    page = leaf.first + leaf.pages;
                }
            }
        }
        self.refill_devices();
    }

    /// The kernel begins to use a device. `false`: its unit remembers that it had no tables.
    pub fn serve(&mut self, device: DeviceId) -> bool {
        let remembers = self.has(Power::RemembersAbsence);
        let Some(device) = self.devices.get_mut(&device.0) else { return false };
        device.served = device.known || !remembers;
        device.served
    }

    /// The first page of a range at which a device of this domain that is in use could find nothing, and why. `tag`: by a unit's number, the tag there.
    pub fn faults(
        &self,
        range: IovaRange,
        tag: impl Fn(usize) -> DomainId,
    ) -> Option<(u64, &'static str)> {
        for device in self.devices.values().filter(|d| d.plugged && d.served) {
            let unit = &self.units[device.unit];
            let Some(entry) = device.entry().filter(|e| e.domain == tag(device.unit).0) else {
                continue;
            };
            let remembers = self.has(Power::RemembersAbsence);
            let levels = self.model.as_ref().map_or(1, |m| m.walker.levels);
            let top = Walk { domain: entry.domain, level: levels, first: 0, table: entry.root };
            let mut page = range.first();
            while page <= range.last() {
                match self.walk(top, page) {
                    Found::Nothing => return Some((page, "may still read that nothing is there")),
                    Found::Leaf(leaf) if remembers && !unit.known.contains(&leaf) => {
                        return Some((page, "remembers that nothing was there"));
                    }
                    Found::Leaf(leaf) => page = leaf.first + leaf.pages,
                }
            }
        }
        None
    }

    /// A path that leads to this table page.
    pub fn walks_to(&self, table: PhysAddr) -> Option<u64> {
        let mut ways = (0..self.units.len()).flat_map(|unit| self.ways(unit));
        ways.find(|walk| walk.table == table.0).map(|walk| walk.first)
    }

    pub fn hash(&self) -> u64 {
        let mut hash = 0x10aa;
        let mut add = |value: u64| hash = mix(hash ^ value);
        self.words.hash(&mut add);
        self.units.iter().for_each(|unit| unit.hash(&mut add));
        self.devices.values().for_each(|device| device.hash(&mut add));
        hash
    }
}
