//! What an IOMMU and devices may have cached.

use std::collections::BTreeSet;

use super::Io;
use crate::hostile::Descriptor;
use crate::litmus::machine::{Breakage, Machine, Words};
use crate::litmus::program::Place;
use crate::litmus::test::Test;

/// A cached translation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::litmus) struct Leaf {
    pub root: u8,
    pub first: u32,
    pub pages: u32,
    pub frame: u32,
    pub writes: bool,
}

/// A cached path: the table that decodes the pages from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Walk {
    pub root: u8,
    pub level: u8,
    pub first: u32,
    pub table: u8,
}

/// What a walk finds in a word.
enum Found {
    Nothing,
    Path(Walk),
    Leaf(Leaf),
}

/// Pages that an entry at this level covers.
const fn span(level: u8) -> u32 {
    1 << (level as u32 * Test::INDEX_BITS as u32)
}

impl Leaf {
    pub const fn has(&self, page: u32) -> bool {
        self.first <= page && page < self.first + self.pages
    }
}

impl Walk {
    /// Is the page below it?
    pub const fn covers(&self, page: u32) -> bool {
        self.first <= page && page < self.first + span(self.level + 1)
    }

    fn find(self, index: u32, word: Descriptor) -> Found {
        let first = self.first + index * span(self.level);
        if !word.present() {
            return Found::Nothing;
        }
        if word.has(Descriptor::LEAF) {
            return Found::Leaf(Leaf {
                root: self.root,
                first,
                pages: span(self.level),
                frame: word.frame().0,
                writes: word.has(Descriptor::WRITE),
            });
        }
        match self.level.checked_sub(1) {
            Some(level) => Found::Path(Self { level, first, table: word.next().0 as u8, ..self }),
            None => Found::Nothing,
        }
    }
}

impl Io {
    /// Everything that is reachable now is cached. After each change, and after each command.
    pub fn refresh(&mut self, machine: &Machine<'_>, words: &Words) {
        if self.devices.is_empty() {
            return;
        }
        if machine.options.breakage == Breakage::NeverRetains {
            self.walks.clear();
            self.leaves.clear();
            self.absent.clear();
            self.devices.iter_mut().for_each(|device| device.cache.clear());
        }
        let mut todo: Vec<Walk> = self.tops(machine).chain(self.walks.iter().copied()).collect();
        while let Some(way) = todo.pop() {
            for index in 0..1 << Test::INDEX_BITS {
                for word in self.readings(machine, words, way.table, index) {
                    match way.find(index, word) {
                        Found::Nothing => {}
                        Found::Path(next) => {
                            if self.walks.insert(next) {
                                todo.push(next);
                            }
                        }
                        Found::Leaf(leaf) => {
                            self.leaves.insert(leaf);
                        }
                    }
                }
            }
        }
        if machine.test.iommu.absence {
            self.remember_absence(machine, words);
        }
        for (device, of) in self.devices.iter_mut().zip(&machine.test.devices) {
            let answers = self.leaves.iter().filter(|leaf| of.caches && leaf.root == of.root);
            device.cache.extend(answers.copied());
        }
    }

    fn remember_absence(&mut self, machine: &Machine<'_>, words: &Words) {
        for root in machine.test.devices.iter().map(|device| device.root) {
            for page in machine.test.pages.iter().map(|page| page.page) {
                if self.may_find_nothing(machine, words, root, page) {
                    self.absent.insert((root, page));
                }
            }
        }
    }

    fn tops(&self, machine: &Machine<'_>) -> impl Iterator<Item = Walk> + use<> {
        let level = machine.test.levels - 1;
        let roots: BTreeSet<u8> = machine.test.devices.iter().map(|device| device.root).collect();
        roots.into_iter().map(move |root| Walk { root, level, first: 0, table: root })
    }

    /// What a walker may read in an entry.
    fn readings(
        &self,
        machine: &Machine<'_>,
        words: &Words,
        table: u8,
        index: u32,
    ) -> Vec<Descriptor> {
        let place = Place::Entry { table, index: index as u8 };
        let in_reach = usize::from(table) < machine.test.tables.len();
        let Some(word) = machine.word(place).filter(|_| in_reach) else {
            return vec![Descriptor::ABSENT];
        };
        let older = self.stale.get(&word).into_iter().flatten();
        let now = words.0[usize::from(word)].0;
        std::iter::once(&now).chain(older).map(|value| value.as_walked()).collect()
    }

    /// May a walk for this page come to nothing?
    pub fn may_find_nothing(
        &self,
        machine: &Machine<'_>,
        words: &Words,
        root: u8,
        page: u32,
    ) -> bool {
        let known = self.walks.iter().copied().filter(|way| way.root == root && way.covers(page));
        let tops = self.tops(machine).filter(|way| way.root == root);
        known.chain(tops).any(|way| {
            let index = page / span(way.level) % (1 << Test::INDEX_BITS);
            let mut words = self.readings(machine, words, way.table, index).into_iter();
            words.any(|word| matches!(way.find(index, word), Found::Nothing))
        })
    }

    /// Translations that the device may use for a page; whether each is its own cache's.
    pub fn translations(
        &self,
        device: usize,
        root: u8,
        page: u32,
    ) -> impl Iterator<Item = (Leaf, bool)> + '_ {
        let fits = move |leaf: &&Leaf| leaf.root == root && leaf.has(page);
        let units = self.leaves.iter().filter(fits).map(|leaf| (*leaf, false));
        let own = self.devices[device].cache.iter().filter(fits).map(|leaf| (*leaf, true));
        units.chain(own)
    }

    /// Does it remember that there was nothing?
    pub fn remembers_nothing(&self, root: u8, page: u32) -> bool {
        self.absent.contains(&(root, page))
    }

    /// A word of a table is about to change from `before`: a walker that does not look into caches
    /// goes on reading that.
    pub fn outdated(&mut self, machine: &Machine<'_>, word: u8, before: crate::litmus::Value) {
        if machine.test.iommu.incoherent {
            self.stale.entry(word).or_default().insert(before);
        }
    }

    /// The line of the word is in memory.
    pub fn written_back(&mut self, word: u8) {
        self.stale.remove(&word);
    }
}
