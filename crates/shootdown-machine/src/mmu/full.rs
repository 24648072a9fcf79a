//! A fully associative array: any entry anywhere, found through a hash, replaced least recently
//! used first, every step in constant time.

use crate::mmu::array::{Entry, Liveness};

/// "No place" in the lists below. An index, so that a place is two bytes.
const NIL: u16 = u16::MAX;

/// Entries under a hash index, with a list in order of use.
///
/// # Invariants
/// I1: every place is either on the free list (its key is 0) or in the order list and in the index.
/// I2: the index is at most a quarter full, so that a probe is short and ends.
#[derive(Debug)]
pub(crate) struct FullArray {
    keys: Vec<u64>,
    /// Made when the first entry comes: thousands of idle CPUs cost next to nothing.
    entries: Vec<Entry>,
    newer: Vec<u16>,
    older: Vec<u16>,
    free: Vec<u16>,
    newest: u16,
    oldest: u16,
    /// Open addressing; a place's number or `NIL`.
    index: Vec<u16>,
    shift: u32,
    /// [`Liveness::deaths`] when dead entries were last looked for.
    purged: u64,
}

impl FullArray {
    pub(crate) fn new(n: usize) -> Self {
        let buckets = (n * 4).next_power_of_two();
        Self {
            keys: vec![0; n],
            entries: Vec::new(),
            newer: vec![NIL; n],
            older: vec![NIL; n],
            free: (0..n as u16).rev().collect(),
            newest: NIL,
            oldest: NIL,
            index: vec![NIL; buckets],
            shift: 64 - buckets.trailing_zeros(),
            purged: 0,
        }
    }

    /// Fibonacci hashing: the top bits of a product with 2^64 / golden ratio.
    #[inline]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn bucket(&self, key: u64) -> Option<usize> {
        let mask = self.index.len() - 1;
        let mut b = self.home(key);
        loop {
            let at = self.index[b];
            if at == NIL {
                return None;
            }
            if self.keys[at as usize] == key {
                return Some(b);
            }
            b = (b + 1) & mask;
        }
    }

    #[inline]
    pub(crate) fn find(&mut self, key: u64) -> Option<usize> {
        let at = self.index[self.bucket(key)?];
        if at != self.newest {
            self.unlink(at);
            self.link_newest(at);
        }
        Some(at as usize)
    }

    pub(crate) fn peek(&self, key: u64) -> Option<&Entry> {
        self.bucket(key).map(|b| &self.entries[usize::from(self.index[b])])
    }

    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut Entry {
        &mut self.entries[place]
    }

    fn unlink(&mut self, at: u16) {
        let (newer, older) = (self.newer[at as usize], self.older[at as usize]);
        if newer == NIL {
            self.newest = older;
        } else {
            self.older[newer as usize] = older;
        }
        if older == NIL {
            self.oldest = newer;
        } else {
            self.newer[older as usize] = newer;
        }
    }

    fn link_newest(&mut self, at: u16) {
        self.newer[at as usize] = NIL;
        self.older[at as usize] = self.newest;
        if self.newest == NIL {
            self.oldest = at;
        } else {
            self.newer[self.newest as usize] = at;
        }
        self.newest = at;
    }

    pub(crate) fn insert(&mut self, key: u64, entry: Entry, alive: &impl Liveness) {
        if let Some(at) = self.find(key) {
            self.entries[at] = entry;
            return;
        }
        if self.free.is_empty() {
            if self.purged != alive.deaths() {
                self.purged = alive.deaths();
                self.retain(|k| alive.alive(k));
            }
            if self.free.is_empty() {
                let victim = self.keys[self.oldest as usize];
                self.remove(victim);
            }
        }
        let Some(at) = self.free.pop() else { return };
        if self.entries.is_empty() {
            self.entries = vec![Entry::default(); self.keys.len()];
        }
        self.keys[at as usize] = key;
        self.entries[at as usize] = entry;
        self.link_newest(at);
        let mask = self.index.len() - 1;
        let mut b = self.home(key);
        while self.index[b] != NIL {
            b = (b + 1) & mask;
        }
        self.index[b] = at;
    }

    pub(crate) fn remove(&mut self, key: u64) -> bool {
        let Some(b) = self.bucket(key) else { return false };
        let at = self.index[b];
        self.unlink(at);
        self.keys[at as usize] = 0;
        self.free.push(at);
        self.close_gap(b);
        true
    }

    /// Moves back what was displaced past bucket `gap`, so that no probe stops early.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.index.len() - 1;
        let mut b = gap;
        loop {
            b = (b + 1) & mask;
            let at = self.index[b];
            if at == NIL {
                break;
            }
            let home = self.home(self.keys[at as usize]);
            // It may move into the gap if its home is not between the gap and itself.
            if (b.wrapping_sub(home) & mask) >= (b.wrapping_sub(gap) & mask) {
                self.index[gap] = at;
                gap = b;
            }
        }
        self.index[gap] = NIL;
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for at in 0..self.keys.len() {
            let k = self.keys[at];
            if k != 0 && !keep(k) {
                self.remove(k);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.keys.iter().zip(&self.entries).filter(|(k, _)| **k != 0).map(|(k, e)| (*k, e))
    }
}
