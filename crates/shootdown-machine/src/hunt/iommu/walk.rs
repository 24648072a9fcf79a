//! Walking: which paths and translations a unit comes to know, and what a walk finds.
//!
//! Units walk at every store to a table, along every path that they know. What they find stays
//! until a command takes it away (`command.rs`).

use std::collections::BTreeSet;

use shootdown_dma::PhysAddr;

use super::cached::{Cached, Walk};
use super::device::Device;
use super::tables::{Decoded, INDEX_BITS, Place, SHEET};
use super::{Iommu, Model};
use crate::hunt::powers::Power;

/// What a walk finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Always this.
    Leaf(Cached),
    /// Perhaps nothing.
    Nothing,
}

impl Iommu {
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
    pub(super) fn unknow(&mut self, (table, index): Place, value: u64) {
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
                let unit = &mut self.units[unit];
                unit.known.retain(|leaf| leaf.domain != way.domain || !below(leaf));
                unit.tables.retain(|table| {
                    table.domain != way.domain
                        || table.level >= way.level
                        || !(first..last).contains(&table.first)
                });
            }
        }
    }

    /// The line of a word is in memory. Was it another there?
    pub fn written_back(&mut self, table: u64, index: u16) -> bool {
        self.words.write_back((table, index))
    }

    /// A page is to be a table. What a walker reads there, until it is written back, may be what
    /// was there `before`.
    pub fn had(&mut self, page: PhysAddr, before: u64) {
        if self.has(Power::StaleLines) {
            // Programs use the first and the last pages of tables.
            let ends = (0..8).chain((1 << INDEX_BITS) - 16..1 << INDEX_BITS);
            ends.for_each(|index| self.words.had((page.0, index), before));
        }
    }

    /// The words of a table that are not 0.
    pub fn words_of(&self, table: PhysAddr) -> Vec<u16> {
        self.words.of(table.0).map(|(index, _)| index).collect()
    }

    /// Where walks of a unit begin: for all that it knows of devices' entries.
    pub(super) fn tops(&self, unit: usize) -> impl Iterator<Item = Walk> + '_ {
        let level = self.model.as_ref().map_or(1, |m| m.walker.levels);
        let behind = self.devices.values().filter(move |device| device.unit == unit);
        let entries = behind.flat_map(|device| device.cached.iter().copied().chain(device.entry()));
        let tops = entries.map(move |e| Walk { domain: e.domain, level, first: 0, table: e.root });
        tops.flat_map(|top| self.sheets(top))
    }

    /// Pages of 4 KiB that an entry at this level covers.
    pub(super) fn span(&self, level: u8) -> u64 {
        self.model.as_ref().map_or(1, |m| m.walker.span(level))
    }

    /// The paths to all sheets of a table.
    pub(super) fn sheets(&self, way: Walk) -> impl Iterator<Item = Walk> + use<> {
        let sheets = self.model.as_ref().map_or(1, |m| m.walker.sheets());
        let pages = self.span(way.level) << INDEX_BITS;
        (0..sheets).map(move |n| Walk {
            first: way.first + n * pages,
            table: way.table + n * SHEET,
            ..way
        })
    }

    pub(super) fn ways(&self, unit: usize) -> impl Iterator<Item = Walk> + '_ {
        self.units[unit].walks.iter().copied().chain(self.tops(unit))
    }

    /// Walks everything that is known.
    pub(super) fn fill(&mut self) {
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
    pub(super) fn refill_devices(&mut self) {
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

    pub(super) fn scan(&mut self, unit: usize, way: Walk) {
        let words: Vec<(u16, u64)> =
            self.words.of(way.table).chain(self.words.stale_of(way.table)).collect();
        for (index, word) in words {
            self.follow(unit, way, index, word);
        }
    }

    pub(super) fn follow(&mut self, unit: usize, way: Walk, index: u16, word: u64) {
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
    pub(super) fn walk(&self, way: Walk, page: u64) -> Found {
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

    /// All translations that are in the tables for sure, below these; and the table of each.
    pub(super) fn present(&self, mut ways: Vec<Walk>) -> Vec<(Cached, Walk)> {
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
                        Found::Leaf(leaf) => leaves.push((leaf, way)),
                        Found::Nothing => {}
                    },
                }
            }
        }
        leaves
    }
}
