//! A bounded, ordered set of cached entries with marks.
//!
//! # Invariants
//! - I1: strictly ascending by entry: two sets with the same content are equal, and hash alike.
//! - I2: an entry that is met again keeps only the marks that the new copy has too: the new copy
//!   was made after whatever marked the old one.

use std::hash::{Hash, Hasher};

/// What is about to happen to an entry. Each of the masks holds one bit per outstanding removal
/// ([`super::late`]), and each is a subset of the one before: they say how far the removal has
/// come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Marks {
    /// The removals that were issued when it was there already, and cover it.
    pub doomed: u32,
    /// Of those, the ones whose CPU synced once on a machine whose first sync comes early.
    pub early: u32,
    /// Of those, the ones whose CPU has removed it again.
    pub again: u32,
    /// It has survived an invalidation.
    pub survived: bool,
    /// It is gone from the TLB; only accesses that this CPU has translated ahead still use it.
    pub ahead: bool,
}

impl Marks {
    /// What two copies of an entry have in common: the freer copy decides.
    fn and(self, other: Self) -> Self {
        Self {
            doomed: self.doomed & other.doomed,
            early: self.early & other.early,
            again: self.again & other.again,
            survived: self.survived && other.survived,
            ahead: self.ahead && other.ahead,
        }
    }
}

impl Hash for Marks {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let flags = u64::from(self.survived) << 1 | u64::from(self.ahead);
        state.write_u64(u64::from(self.doomed) << 2 | flags);
        if self.early != 0 {
            state.write_u64(u64::from(self.early) << 32 | u64::from(self.again));
        }
    }
}

/// What can be an entry.
pub(super) trait Entry: Copy + Ord + Hash {
    /// The most significant part of the order, in one number: it decides most comparisons.
    fn key(&self) -> u64;
}

/// An entry of the set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot<T> {
    /// The entry's key.
    key: u64,
    pub entry: T,
    pub marks: Marks,
}

impl<T: Hash> Hash for Slot<T> {
    /// The key is part of the entry.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.entry.hash(state);
        self.marks.hash(state);
    }
}

/// What inserting did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inserted {
    /// It was not there.
    New,
    /// It was there, just as usable.
    Known,
    /// It was there, but about to go; these are the marks it has now.
    Renewed(Marks),
    /// There is no room for it.
    Full,
}

/// The set.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Held<T> {
    slots: Vec<Slot<T>>,
}

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T: Entry> Held<T> {
    /// Adds an entry with these marks; a known one keeps only the marks that both copies have.
    #[inline]
    pub fn insert(&mut self, entry: T, marks: Marks, capacity: usize) -> Inserted {
        let key = entry.key();
        let len = self.slots.len();
        // Most sets are small, and most entries are met again: a scan of the keys is the quickest.
        let from = self.slots.iter().take_while(|slot| slot.key < key).count();
        let order = |slot: &Slot<T>| slot.key == key && slot.entry < entry;
        let at = from + self.slots[from..].iter().take_while(|slot| order(slot)).count();
        match self.slots.get_mut(at) {
            Some(known) if known.key == key && known.entry == entry => {
                let both = known.marks.and(marks);
                if known.marks == both {
                    return Inserted::Known;
                }
                known.marks = both;
                Inserted::Renewed(both)
            }
            _ if len >= capacity => Inserted::Full,
            _ => {
                self.slots.insert(at, Slot { key, entry, marks });
                Inserted::New
            }
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Slot<T>> + ExactSizeIterator {
        self.slots.iter()
    }

    pub fn at(&self, at: usize) -> Option<(&T, Marks)> {
        self.slots.get(at).map(|slot| (&slot.entry, slot.marks))
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// Changes marks.
    pub fn each(&mut self, mut change: impl FnMut(&T, &mut Marks)) {
        for slot in &mut self.slots {
            change(&slot.entry, &mut slot.marks);
        }
    }

    /// Keeps what `keep` says, which may change marks; whether something went.
    pub fn retain(&mut self, mut keep: impl FnMut(&T, &mut Marks) -> bool) -> bool {
        let before = self.slots.len();
        self.slots.retain_mut(|slot| keep(&slot.entry, &mut slot.marks));
        self.slots.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Entry for u64 {
        fn key(&self) -> u64 {
            self / 2
        }
    }

    #[test]
    fn sets_with_the_same_content_are_equal() {
        let mut a = Held::<u64>::default();
        let mut b = Held::<u64>::default();
        for x in [3, 1, 2] {
            assert_eq!(a.insert(x, Marks::default(), 9), Inserted::New);
        }
        for x in [1, 2, 3, 2] {
            b.insert(x, Marks::default(), 9);
        }
        assert_eq!(a, b);
        assert!(b.retain(|&x, _| x != 2));
        assert_eq!((b.len(), b.at(1).map(|(x, _)| *x)), (2, Some(3)));
    }

    #[test]
    fn an_entry_met_again_is_a_new_copy() {
        let mut set = Held::<u64>::default();
        set.insert(1, Marks { doomed: 1, ..Marks::default() }, 9);
        assert_eq!(set.insert(1, Marks::default(), 9), Inserted::Renewed(Marks::default()));
        assert_eq!(set.iter().next().unwrap().marks, Marks::default());
    }

    #[test]
    fn a_full_set_says_so() {
        let mut set = Held::<u64>::default();
        set.insert(1, Marks::default(), 1);
        assert_eq!(set.insert(2, Marks::default(), 1), Inserted::Full);
        assert_eq!(set.insert(1, Marks::default(), 1), Inserted::Known);
    }
}
