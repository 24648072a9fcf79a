//! A set-associative array of entries, replaced least recently used first.

use crate::mmu::array::{Entry, KEY_PAGE_BITS, Liveness};

/// Entries in sets of equal size. A key belongs to the set its page number selects.
#[derive(Debug)]
pub(crate) struct SetArray {
    /// 0 where there is no entry.
    keys: Vec<u64>,
    /// Made when the first entry comes: thousands of idle CPUs cost next to nothing.
    entries: Vec<Entry>,
    /// When each entry was last used, in this array's own count.
    stamps: Vec<u32>,
    clock: u32,
    sets: u64,
    ways: usize,
    /// `sets - 1` when that is a mask.
    mask: Option<u64>,
}

impl SetArray {
    pub(crate) fn new(sets: usize, ways: usize) -> Self {
        let n = sets * ways;
        Self {
            keys: vec![0; n],
            entries: Vec::new(),
            stamps: vec![0; n],
            clock: 0,
            sets: sets as u64,
            ways,
            mask: sets.is_power_of_two().then_some(sets as u64 - 1),
        }
    }

    #[inline]
    fn first(&self, key: u64) -> usize {
        let page = key & KEY_PAGE_BITS;
        let set = match self.mask {
            Some(mask) => page & mask,
            None => page % self.sets,
        };
        set as usize * self.ways
    }

    #[inline]
    fn position(&self, key: u64) -> Option<usize> {
        let first = self.first(key);
        self.keys[first..first + self.ways].iter().position(|k| *k == key).map(|way| first + way)
    }

    #[inline]
    pub(crate) fn find(&mut self, key: u64) -> Option<usize> {
        let at = self.position(key)?;
        let now = self.tick();
        self.stamps[at] = now;
        Some(at)
    }

    pub(crate) fn peek(&self, key: u64) -> Option<&Entry> {
        self.position(key).map(|at| &self.entries[at])
    }

    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut Entry {
        &mut self.entries[place]
    }

    #[inline]
    fn tick(&mut self) -> u32 {
        if self.clock == u32::MAX {
            // Recency is forgotten once in four thousand million uses.
            self.stamps.fill(0);
            self.clock = 0;
        }
        self.clock += 1;
        self.clock
    }

    pub(crate) fn insert(&mut self, key: u64, entry: Entry, alive: &impl Liveness) {
        let at = self.position(key).unwrap_or_else(|| self.victim(key, alive));
        let now = self.tick();
        if self.entries.is_empty() {
            self.entries = vec![Entry::default(); self.keys.len()];
        }
        self.keys[at] = key;
        self.entries[at] = entry;
        self.stamps[at] = now;
    }

    /// An empty place, else a dead entry, else the least recently used one.
    fn victim(&self, key: u64, alive: &impl Liveness) -> usize {
        let first = self.first(key);
        let mut best = first;
        for at in first..first + self.ways {
            let k = self.keys[at];
            if k == 0 || !alive.alive(k) {
                return at;
            }
            if self.stamps[at] < self.stamps[best] {
                best = at;
            }
        }
        best
    }

    pub(crate) fn remove(&mut self, key: u64) -> bool {
        let Some(at) = self.position(key) else { return false };
        self.keys[at] = 0;
        true
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for k in &mut self.keys {
            if *k != 0 && !keep(*k) {
                *k = 0;
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.keys.iter().zip(&self.entries).filter(|(k, _)| **k != 0).map(|(k, e)| (*k, e))
    }
}
