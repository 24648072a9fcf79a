//! The tags that CPUs ran under when a generation began, sorted by number.

use super::holders::number_of;
use crate::base::sync::{AtomicU32, AtomicU64, Ordering};

/// Ids in ascending order of their numbers, each number once. They are read and written under the
/// allocator's lock.
#[derive(Debug)]
pub(super) struct Reserved<const CPUS: usize> {
    ids: [AtomicU64; CPUS],
    len: AtomicU32,
}

impl<const CPUS: usize> Reserved<CPUS> {
    pub(super) fn new() -> Self {
        Self { ids: core::array::from_fn(|_| AtomicU64::new(0)), len: AtomicU32::new(0) }
    }

    /// The place of a number in the table.
    pub(super) fn find(&self, number: usize) -> Option<usize> {
        let (mut low, mut high) = (0, self.len.load(Ordering::Relaxed) as usize);
        while low < high {
            let middle = (low + high) / 2;
            let found = number_of(self.ids[middle].load(Ordering::Relaxed));
            if found == number {
                return Some(middle);
            }
            if found < number { low = middle + 1 } else { high = middle }
        }
        None
    }

    /// The id at a place.
    pub(super) fn get(&self, at: usize) -> u64 {
        self.ids[at].load(Ordering::Relaxed)
    }

    /// Replaces the id at a place by its renewal, which has the same number.
    pub(super) fn renew(&self, at: usize, id: u64) {
        self.ids[at].store(id, Ordering::Relaxed);
    }

    /// Fills the table with these ids, at most one for each CPU.
    pub(super) fn fill(&self, ids: impl Iterator<Item = u64>) {
        let mut len = 0;
        for id in ids {
            self.ids[len].store(id, Ordering::Relaxed);
            len += 1;
        }
        let len = sort_by_number(&self.ids[..len]);
        #[allow(clippy::cast_possible_truncation)] // at most CPUS
        self.len.store(len as u32, Ordering::Relaxed);
    }
}

/// Sorts ids by number, without allocation, and drops repetitions; returns how many are left. (Heap
/// sort has the same cost for every order.)
fn sort_by_number(ids: &[AtomicU64]) -> usize {
    let get = |i: usize| ids[i].load(Ordering::Relaxed);
    let set = |i: usize, id: u64| ids[i].store(id, Ordering::Relaxed);
    let sift = |mut root: usize, end: usize| {
        let id = get(root);
        loop {
            let mut child = 2 * root + 1;
            if child >= end {
                break;
            }
            if child + 1 < end && number_of(get(child)) < number_of(get(child + 1)) {
                child += 1;
            }
            if number_of(get(child)) <= number_of(id) {
                break;
            }
            set(root, get(child));
            root = child;
        }
        set(root, id);
    };
    for root in (0..ids.len() / 2).rev() {
        sift(root, ids.len());
    }
    for end in (1..ids.len()).rev() {
        let (first, last) = (get(0), get(end));
        set(0, last);
        set(end, first);
        sift(0, end);
    }
    let mut kept = 0;
    for i in 0..ids.len() {
        if kept == 0 || get(kept - 1) != get(i) {
            set(kept, get(i));
            kept += 1;
        }
    }
    kept
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn sorting_leaves_each_number_once() {
        for n in 0..9u64 {
            let ids: Vec<AtomicU64> = (0..n).map(|i| AtomicU64::new(i * 5 % 4 + 1)).collect();
            let kept = sort_by_number(&ids);
            let numbers: Vec<u64> = ids[..kept].iter().map(|i| i.load(Ordering::Relaxed)).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            assert_eq!(kept as u64, n.min(4));
        }
    }
}
