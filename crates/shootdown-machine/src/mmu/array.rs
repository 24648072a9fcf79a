//! Entries and the keys they are found by; one array of either shape.
//!
//! A key is one number, so that a probe is one comparison: the page number, the page size, and the
//! *context*, which stands for "this tag since its last whole invalidation" (see [`super::tags`]).
//! Forgetting a tag therefore costs nothing: its context is replaced and no key matches any more.
//! Entries of dead contexts count as empty when a place is needed.

use shootdown::Stride;

use crate::mmu::full::FullArray;
use crate::mmu::geometry::Array;
use crate::mmu::set::SetArray;
use crate::mmu::{Frame, SlotId};
use crate::oracle::Epoch;

/// The page-number part of a key: 36 bits.
pub(crate) const KEY_PAGE_BITS: u64 = (1 << 36) - 1;
const SIZE_SHIFT: u32 = 36;
const CONTEXT_SHIFT: u32 = 38;
/// Contexts are numbers of this many bits, starting at 1 so that no key is 0.
pub(crate) const CONTEXT_BITS: u32 = 64 - CONTEXT_SHIFT;

/// The key of page number `page` (in units of `size`) in a context.
#[inline]
pub(crate) const fn key(page: u64, size: u8, context: u32) -> u64 {
    page | (size as u64) << SIZE_SHIFT | (context as u64) << CONTEXT_SHIFT
}

/// The key of the page of this size that holds 4 KiB page number `vpn`.
#[inline]
pub(crate) const fn page_key(vpn: u64, size: Stride, context: u32) -> u64 {
    key(vpn >> (9 * size as u32), size as u8, context)
}

/// The context a key is in.
#[inline]
pub(crate) const fn context_of(key: u64) -> u32 {
    (key >> CONTEXT_SHIFT) as u32
}

/// First and last 4 KiB page number that a leaf key covers.
pub(crate) const fn span_of(key: u64) -> (u64, u64) {
    let shift = 9 * (key >> SIZE_SHIFT & 3) as u32;
    let first = (key & KEY_PAGE_BITS) << shift;
    (first, first + ((1 << shift) - 1))
}

/// A cached translation, or a cached non-leaf entry (then `frame` names the next table).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) frame: Frame,
    /// The rights below, the way a hit needs them: one mask.
    pub(crate) rights: u32,
    /// The table entry it was made from.
    pub(crate) slot: SlotId,
    /// When it was made.
    pub(crate) filled: Epoch,
    /// When the oracle last found it sound; nothing before that need be looked at again.
    pub(crate) verified: Epoch,
}

impl Default for Entry {
    fn default() -> Self {
        Self { frame: Frame(0), rights: 0, slot: SlotId(0), filled: Epoch(0), verified: Epoch(0) }
    }
}

/// Bits of [`Entry::rights`].
pub(crate) mod rights {
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const USER: u32 = 2;
    /// The dirty bit is known to be set in the table.
    pub(crate) const DIRTY: u32 = 4;
}

/// Which contexts still exist.
pub(crate) trait Liveness {
    fn alive(&self, key: u64) -> bool;
    /// How many have died so far: while it stands still, a search for dead entries finds no new
    /// ones.
    fn deaths(&self) -> u64;
}

/// A TLB array of either shape.
#[derive(Debug)]
pub(crate) enum Entries {
    Set(SetArray),
    Full(FullArray),
}

/// Up to this many entries a search of all beats a hash.
const SCAN: u16 = 8;

impl Entries {
    pub(crate) fn new(shape: Array) -> Self {
        let n = usize::from(shape.entries);
        if !shape.fully_associative() {
            return Self::Set(SetArray::new(n / usize::from(shape.ways), usize::from(shape.ways)));
        }
        if shape.entries <= SCAN {
            Self::Set(SetArray::new(1, n))
        } else {
            Self::Full(FullArray::new(n))
        }
    }

    /// Finds the place of an entry and makes it the most recently used one.
    #[inline]
    pub(crate) fn find(&mut self, key: u64) -> Option<usize> {
        match self {
            Self::Set(a) => a.find(key),
            Self::Full(a) => a.find(key),
        }
    }

    /// An entry, without using it.
    pub(crate) fn peek(&self, key: u64) -> Option<&Entry> {
        match self {
            Self::Set(a) => a.peek(key),
            Self::Full(a) => a.peek(key),
        }
    }

    /// The entry at a place that [`Entries::find`] gave.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut Entry {
        match self {
            Self::Set(a) => a.at(place),
            Self::Full(a) => a.at(place),
        }
    }

    /// Adds or replaces the entry of `key`, at the expense of an empty or dead place if there is
    /// one, else of the least recently used entry.
    pub(crate) fn insert(&mut self, key: u64, entry: Entry, alive: &impl Liveness) {
        match self {
            Self::Set(a) => a.insert(key, entry, alive),
            Self::Full(a) => a.insert(key, entry, alive),
        }
    }

    pub(crate) fn remove(&mut self, key: u64) -> bool {
        match self {
            Self::Set(a) => a.remove(key),
            Self::Full(a) => a.remove(key),
        }
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(u64) -> bool) {
        match self {
            Self::Set(a) => a.retain(keep),
            Self::Full(a) => a.retain(keep),
        }
    }

    pub(crate) fn for_each(&self, mut f: impl FnMut(u64, &Entry)) {
        match self {
            Self::Set(a) => a.iter().for_each(|(k, e)| f(k, e)),
            Self::Full(a) => a.iter().for_each(|(k, e)| f(k, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Contexts 1 to 3, some of them dead.
    #[derive(Default)]
    struct Deaths {
        dead: [bool; 4],
        deaths: u64,
    }

    impl Liveness for Deaths {
        fn alive(&self, key: u64) -> bool {
            !self.dead[context_of(key) as usize]
        }

        fn deaths(&self) -> u64 {
            self.deaths
        }
    }

    /// Per set: the keys, most recently used first.
    struct Naive {
        sets: Vec<Vec<u64>>,
        ways: usize,
    }

    impl Naive {
        fn set(&mut self, key: u64) -> &mut Vec<u64> {
            let n = self.sets.len() as u64;
            &mut self.sets[((key & KEY_PAGE_BITS) % n) as usize]
        }

        fn find(&mut self, key: u64) -> bool {
            let set = self.set(key);
            let Some(i) = set.iter().position(|k| *k == key) else { return false };
            let k = set.remove(i);
            set.insert(0, k);
            true
        }

        fn insert(&mut self, key: u64, alive: &Deaths) {
            if self.find(key) {
                return;
            }
            let ways = self.ways;
            let set = self.set(key);
            if set.len() == ways {
                set.retain(|k| alive.alive(*k));
                set.truncate(ways - 1);
            }
            set.insert(0, key);
        }
    }

    fn shapes() -> impl Strategy<Value = (u16, u16)> {
        prop_oneof![Just((8, 2)), Just((12, 4)), Just((6, 0)), Just((20, 0)), Just((9, 3))]
    }

    proptest! {
        #[test]
        fn arrays_keep_what_the_least_recently_used_rule_says(
            (entries, ways) in shapes(),
            ops in prop::collection::vec((0u8..12, 0u64..24, 1u32..4), 1..300),
        ) {
            let mut array = Entries::new(Array { entries, ways, holds: [true; 3] });
            let ways = if ways == 0 { entries } else { ways };
            let sets = vec![Vec::new(); usize::from(entries / ways)];
            let mut naive = Naive { sets, ways: usize::from(ways) };
            let mut deaths = Deaths::default();
            for (op, page, context) in ops {
                let k = key(page, 0, context);
                match op {
                    0..5 if deaths.alive(k) => {
                        let entry = Entry { frame: Frame(page as u32), ..Entry::default() };
                        array.insert(k, entry, &deaths);
                        naive.insert(k, &deaths);
                    }
                    5..10 if deaths.alive(k) => {
                        let place = array.find(k);
                        prop_assert_eq!(place.is_some(), naive.find(k));
                        if let Some(place) = place {
                            prop_assert_eq!(array.at(place).frame, Frame(page as u32));
                        }
                    }
                    10 if deaths.alive(k) => {
                        let had = naive.set(k).iter().position(|x| *x == k);
                        if let Some(i) = had {
                            naive.set(k).remove(i);
                        }
                        prop_assert_eq!(array.remove(k), had.is_some());
                    }
                    11 if page == 0 && !deaths.dead[context as usize] => {
                        deaths.dead[context as usize] = true;
                        deaths.deaths += 1;
                    }
                    _ => {}
                }
                let mut kept = Vec::new();
                array.for_each(|k, _| kept.extend(deaths.alive(k).then_some(k)));
                let mut expected: Vec<_> = naive.sets.concat();
                expected.retain(|k| deaths.alive(*k));
                kept.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(kept, expected);
            }
        }
    }
}
