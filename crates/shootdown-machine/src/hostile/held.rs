//! A bounded, ordered set of cached entries with marks.
//!
//! # Invariants
//! - I1: strictly ascending by entry: two sets with the same content are equal, and hash alike.
//! - I2: an entry that is met again keeps only the marks that the new copy has too: the new copy was made
//!   after whatever marked the old one.

/// What is about to happen to an entry. Each of the masks holds one bit per issuing CPU, and each is a
/// subset of the one before: the bits say how far the removal has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Marks {
    /// CPUs whose issued removal covers it and has not been synced.
    pub doomed: u16,
    /// Of those, the ones that synced once on a machine whose first sync comes early.
    pub early: u16,
    /// Of those, the ones that issued the removal again.
    pub again: u16,
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

/// An entry of the set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Slot<T> {
    pub entry: T,
    pub marks: Marks,
}

/// What inserting did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inserted {
    /// It was not there.
    New,
    /// It was there, just as usable.
    Known,
    /// It was there, but about to go.
    Renewed,
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

impl<T: Copy + Ord> Held<T> {
    /// Adds an entry with these marks; a known one keeps only the marks that both copies have.
    pub fn insert(&mut self, entry: T, marks: Marks, capacity: usize) -> Inserted {
        match self.slots.binary_search_by(|slot| slot.entry.cmp(&entry)) {
            Ok(at) => {
                let both = self.slots[at].marks.and(marks);
                if self.slots[at].marks == both {
                    return Inserted::Known;
                }
                self.slots[at].marks = both;
                Inserted::Renewed
            }
            Err(_) if self.slots.len() >= capacity => Inserted::Full,
            Err(at) => {
                self.slots.insert(at, Slot { entry, marks });
                Inserted::New
            }
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Slot<T>> + ExactSizeIterator {
        self.slots.iter()
    }

    pub fn at(&self, at: usize) -> Option<(T, Marks)> {
        self.slots.get(at).map(|slot| (slot.entry, slot.marks))
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

    #[test]
    fn sets_with_the_same_content_are_equal() {
        let mut a = Held::default();
        let mut b = Held::default();
        for x in [3, 1, 2] {
            assert_eq!(a.insert(x, Marks::default(), 9), Inserted::New);
        }
        for x in [1, 2, 3, 2] {
            b.insert(x, Marks::default(), 9);
        }
        assert_eq!(a, b);
        assert!(b.retain(|&x, _| x != 2));
        assert_eq!((b.len(), b.at(1).map(|(x, _)| x)), (2, Some(3)));
    }

    #[test]
    fn an_entry_met_again_is_a_new_copy() {
        let mut set = Held::default();
        set.insert(1, Marks { doomed: 1, ..Marks::default() }, 9);
        assert_eq!(set.insert(1, Marks::default(), 9), Inserted::Renewed);
        assert_eq!(set.iter().next().unwrap().marks, Marks::default());
    }

    #[test]
    fn a_full_set_says_so() {
        let mut set = Held::default();
        set.insert(1, Marks::default(), 1);
        assert_eq!(set.insert(2, Marks::default(), 1), Inserted::Full);
        assert_eq!(set.insert(1, Marks::default(), 1), Inserted::Known);
    }
}
