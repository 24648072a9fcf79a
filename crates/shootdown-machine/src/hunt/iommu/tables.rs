//! What a walker may read: page tables as they are, as they were when their lines were written back
//! last, and all between.

use std::collections::BTreeMap;

pub use crate::io::walk::{Decoded, Walker};
pub(super) use crate::io::walk::{INDEX_BITS, SHEET};

/// A table, and a place in it.
pub type Place = (u64, u16);

/// The words of all tables.
#[derive(Debug, Default)]
pub struct Words {
    /// Words that are not 0, as CPUs see them.
    now: BTreeMap<Place, u64>,
    /// What a walker that does not look into CPUs' caches may read as well, until the line is
    /// written back.
    stale: BTreeMap<Place, Vec<u64>>,
}

impl Words {
    pub fn now(&self, place: Place) -> u64 {
        self.now.get(&place).copied().unwrap_or(0)
    }

    /// All that a walker may read there.
    pub fn possible(&self, place: Place) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.now(place))
            .chain(self.stale.get(&place).into_iter().flatten().copied())
    }

    /// Stores a word. `cached`: the walker may go on reading what was there.
    pub fn store(&mut self, place: Place, value: u64, cached: bool) {
        let before =
            if value == 0 { self.now.remove(&place) } else { self.now.insert(place, value) };
        let before = before.unwrap_or(0);
        if cached && before != value {
            let stale = self.stale.entry(place).or_default();
            if !stale.contains(&before) {
                stale.push(before);
            }
        }
    }

    /// Before it was part of a table, the word was this in memory.
    pub fn had(&mut self, place: Place, before: u64) {
        self.stale.entry(place).or_default().push(before);
    }

    /// The line of a word is written back: what it was is gone. Was there anything?
    pub fn write_back(&mut self, place: Place) -> bool {
        self.stale.remove(&place).is_some()
    }

    /// The words of a table that are not 0.
    pub fn of(&self, table: u64) -> impl Iterator<Item = (u16, u64)> + '_ {
        let all = (table, 0)..=(table, u16::MAX);
        self.now.range(all).map(|(&(_, index), &word)| (index, word))
    }

    /// Words of a table that a walker may read as well.
    pub fn stale_of(&self, table: u64) -> impl Iterator<Item = (u16, u64)> + '_ {
        let all = (table, 0)..=(table, u16::MAX);
        let words = self.stale.range(all);
        words.flat_map(|(&(_, index), words)| words.iter().map(move |word| (index, *word)))
    }

    /// Adds all of it to a hash.
    pub fn hash(&self, add: &mut impl FnMut(u64)) {
        for (&(table, index), &word) in &self.now {
            add(table ^ u64::from(index) << 40 ^ word.rotate_left(17));
        }
        for (&(table, index), words) in &self.stale {
            for word in words {
                add(table ^ u64::from(index) << 41 ^ word.rotate_left(18) ^ 0x57a1e);
            }
        }
    }
}
