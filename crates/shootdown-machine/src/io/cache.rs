//! A cache of sets, from which what was used longest ago goes.

/// Sets of `ways` entries.
#[derive(Clone, Debug)]
pub(super) struct Cache<K, V> {
    /// The entry used last at the end.
    sets: Vec<Vec<(K, V)>>,
    ways: usize,
}

impl<K: Copy + Eq, V> Cache<K, V> {
    /// A cache of so many entries, of which `ways` make a set (at least one of each).
    pub fn new(entries: u32, ways: u32) -> Self {
        let ways = ways.clamp(1, entries.max(1));
        let sets = (entries.max(1) / ways).max(1);
        Self { sets: (0..sets).map(|_| Vec::new()).collect(), ways: ways as usize }
    }

    /// One set of so many.
    pub fn full(entries: u32) -> Self {
        Self::new(entries, entries)
    }

    fn set(&mut self, hash: u64) -> &mut Vec<(K, V)> {
        let sets = self.sets.len() as u64;
        &mut self.sets[(hash % sets) as usize]
    }

    /// What it has for a key, which is used now.
    pub fn find(&mut self, hash: u64, key: K) -> Option<&mut V> {
        let set = self.set(hash);
        let at = set.iter().rposition(|(k, _)| *k == key)?;
        let last = set.len() - 1;
        set[at..].rotate_left(1);
        Some(&mut set[last].1)
    }

    /// Puts an entry, in the place of one of the same key, or of the one that was used longest ago.
    pub fn put(&mut self, hash: u64, key: K, value: V) {
        let ways = self.ways;
        let set = self.set(hash);
        if let Some(at) = set.iter().position(|(k, _)| *k == key) {
            set.remove(at);
        } else if set.len() == ways {
            set.remove(0);
        }
        set.push((key, value));
    }

    /// Forgets what does not stay; says how many that were.
    pub fn retain(&mut self, mut stays: impl FnMut(&K, &V) -> bool) -> u64 {
        let before = self.len();
        for set in &mut self.sets {
            set.retain(|(k, v)| stays(k, v));
        }
        (before - self.len()) as u64
    }

    /// All that it has.
    pub fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.sets.iter().flatten()
    }

    pub fn len(&self) -> usize {
        self.sets.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes() {
        let mut cache = Cache::new(4, 2);
        for key in [0u64, 2, 4] {
            if key == 4 {
                assert_eq!(cache.find(0, 0), Some(&mut 0));
            }
            cache.put(key, key, key);
        }
        assert_eq!((cache.find(0, 0).copied(), cache.len()), (Some(0), 2));
        assert_eq!((cache.find(2, 2).copied(), cache.find(4, 4).copied()), (None, Some(4)));
        cache.put(1, 1, 1);
        assert_eq!(cache.len(), 3, "another set");
        cache.put(1, 1, 7);
        assert_eq!((cache.find(1, 1).copied(), cache.len()), (Some(7), 3), "the same key");
        assert_eq!(cache.retain(|k, _| *k == 1), 2);
    }
}
