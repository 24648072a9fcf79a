//! Global tags: they name one space on every CPU, beside tags that each CPU uses as it likes (AMD:
//! INVLPGB needs them).
//!
//! # The problem
//! On x86 a tag names whatever space its CPU last used it for ([`super::slots`]). An instruction
//! that invalidates on all CPUs can't name "the tag that each of you uses for this space". So a
//! space that runs on many CPUs gets a tag of its own, the same on all of them, out of numbers that
//! no slot uses. It keeps the tag until it ends. Entries that remain cached under the tag then must
//! not be found by the next space that gets it.
//!
//! # The protocol
//! Numbers are given out in ascending order. A number that was [released](BroadcastTags::release)
//! stays taken. When no free number is left, the allocator notes the released numbers, the caller
//! makes every CPU drop everything that is not global, and then those numbers, and only those, are
//! free again. So one such invalidation serves many spaces, and a free number never has entries on
//! any CPU.
//!
//! "None found" is an `Option`. (The Linux allocator of 2025 uses a number for it, one beyond the
//! last. Where long-lived spaces hold the tail of the numbers, it takes that number for a tag, and
//! gives it to two spaces.)
//!
//! # Invariants
//! I1: no number has two owners. I2: a number that is given out has no entries on any CPU. I3:
//! every number below the hand is taken, so if a search from the hand on finds none, none is free.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | B1 taking the lock | Acquire | B2 | the sets are seen as the last owner left them |
//! | B2 giving it back | Release | B1 | |
//! | B3 release | Release | B4 | every access under the tag is over before the tag gets another owner |
//! | B4 noting the released numbers | Acquire | B3 | |
//!
//! The lock is held for one search, or for one invalidation of everything, by a CPU that waits only
//! for hardware. The CPU that invalidates must be the one that waits for completion, so the caller
//! stays on its CPU meanwhile (AMD APM vol. 3, TLBSYNC). A release takes no lock and may be made on
//! any CPU.

use core::fmt;

use crate::base::ids::Tag;
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Numbers in a word.
const WORD: u32 = 64;

/// Why an allocator of these tags can't be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BroadcastTagsError {
    /// There are no numbers to give out.
    Empty,
    /// The sets have no room for that many numbers.
    NoRoom {
        /// Numbers asked for.
        count: u32,
        /// Numbers that the sets have room for.
        room: u32,
    },
    /// The numbers do not fit the width of a tag.
    Width {
        /// The last number.
        last: u32,
        /// The width.
        bits: u8,
    },
}

impl fmt::Display for BroadcastTagsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no tags are left beside the slots; use fewer slots"),
            Self::NoRoom { count, room } => {
                write!(f, "{count} tags do not fit into sets of {room}; use more words")
            }
            Self::Width { last, bits } => {
                write!(f, "tag {last} does not fit {bits} bits; begin lower or take fewer")
            }
        }
    }
}

impl core::error::Error for BroadcastTagsError {}

/// The allocator: one per kernel. `WORDS` words of 64 numbers each.
#[derive(Debug)]
pub struct BroadcastTags<const WORDS: usize> {
    lock: AtomicBool,
    /// The tag of number 0.
    first: u16,
    /// How many numbers there are.
    count: u32,
    /// The numbers given out since the last invalidation of everything, or still owned.
    taken: [AtomicU64; WORDS],
    /// Those of the taken numbers that were released and may still have entries.
    released: [AtomicU64; WORDS],
    /// Where the next search begins.
    hand: AtomicU32,
}

/// An allocator with room for every tag of 12 bits, the width of an x86 PCID.
pub type SharedTags = BroadcastTags<64>;

impl<const WORDS: usize> BroadcastTags<WORDS> {
    /// Makes an allocator of the tags from `first` to the last of `bits` bits. The tags below
    /// belong to slots.
    ///
    /// # Errors
    /// See [`BroadcastTagsError`].
    pub fn new(first: Tag, bits: u8) -> Result<Self, BroadcastTagsError> {
        let end = 1u32 << bits.min(16);
        Self::with_count(first, end.saturating_sub(u32::from(first.0)), bits)
    }

    /// Makes an allocator of `count` tags from `first` on.
    ///
    /// # Errors
    /// See [`BroadcastTagsError`].
    pub fn with_count(first: Tag, count: u32, bits: u8) -> Result<Self, BroadcastTagsError> {
        let Some(beyond) = count.checked_sub(1) else {
            return Err(BroadcastTagsError::Empty);
        };
        let last = u32::from(first.0).saturating_add(beyond);
        if last >= 1 << bits.min(16) {
            return Err(BroadcastTagsError::Width { last, bits });
        }
        let room = u32::try_from(WORDS).unwrap_or(u32::MAX).saturating_mul(WORD);
        if count > room {
            return Err(BroadcastTagsError::NoRoom { count, room });
        }
        Ok(Self {
            lock: AtomicBool::new(false),
            first: first.0,
            count,
            taken: core::array::from_fn(|_| AtomicU64::new(0)),
            released: core::array::from_fn(|_| AtomicU64::new(0)),
            hand: AtomicU32::new(0),
        })
    }

    /// Gives out a tag that has no entries on any CPU; `None` when every tag has an owner.
    ///
    /// It calls `wait` while another CPU holds the lock. It calls `reset` when no free number is
    /// left: when `reset` returns, every CPU has dropped everything that is not global and was
    /// cached before the call. Stay on one CPU. Don't call this from a handler, which could wait
    /// for a lock that the interrupted code holds.
    ///
    /// # Safety
    /// `reset` does what is said above: the released tags are given out again.
    pub unsafe fn assign(&self, wait: impl FnMut(), reset: impl FnOnce()) -> Option<Tag> {
        self.locked(wait, || self.assign_locked(reset))
    }

    /// Takes a tag back from a space that has ended.
    ///
    /// # Safety
    /// The tag is the caller's, and no CPU has it loaded or will load it: another space may get it
    /// afterwards.
    ///
    /// # Panics
    /// When the tag was not given out, or was released before.
    pub unsafe fn release(&self, tag: Tag) {
        let (at, bit) = place(u32::from(tag.0.wrapping_sub(self.first)));
        let owned = |set: &[AtomicU64; WORDS], order| {
            set.get(at).is_some_and(|word| word.load(order) & bit != 0)
        };
        assert!(
            owned(&self.taken, Ordering::Relaxed) && !owned(&self.released, Ordering::Relaxed),
            "{tag:?} has no owner"
        );
        if let Some(word) = self.released.get(at) {
            word.fetch_or(bit, Ordering::Release); // [B3]
        }
    }

    /// Do these tags not overlap with those up to `slots`, and do they fit this width?
    #[must_use]
    pub fn fit(&self, slots: Tag, bits: u8) -> bool {
        let last = u32::from(self.first) + self.count - 1;
        self.first > slots.0 && last < 1 << bits.min(16)
    }

    /// How many tags have an owner now.
    pub fn owned(&self, wait: impl FnMut()) -> u32 {
        self.locked(wait, || {
            let pairs = self.taken.iter().zip(&self.released);
            pairs
                .map(|(taken, released)| {
                    let owned = taken.load(Ordering::Relaxed) & !released.load(Ordering::Relaxed);
                    owned.count_ones()
                })
                .sum()
        })
    }

    fn locked<R>(&self, mut wait: impl FnMut(), f: impl FnOnce() -> R) -> R {
        // [B1]
        while self.lock.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            // `wait` may sleep until the line that was loaded last is written, so load the lock's
            // line.
            while self.lock.load(Ordering::Relaxed) {
                wait();
            }
        }
        let result = f();
        self.lock.store(false, Ordering::Release); // [B2]
        result
    }

    fn assign_locked(&self, reset: impl FnOnce()) -> Option<Tag> {
        let number = match self.find() {
            Some(number) => number,
            None if self.nothing_released() => return None,
            None => {
                self.free_released(reset);
                self.find()?
            }
        };
        let (at, bit) = place(number);
        change(&self.taken, at, |word| word | bit);
        self.hand.store(number + 1, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation)] // it fits the width, checked when this was made
        let number = number as u16;
        Some(Tag(self.first + number))
    }

    fn hand(&self) -> u32 {
        self.hand.load(Ordering::Relaxed)
    }

    /// The first free number from the hand on. (I3)
    fn find(&self) -> Option<u32> {
        let from = self.hand();
        (from / WORD..self.count.div_ceil(WORD)).find_map(|at| {
            let below = if at == from / WORD { (1 << (from % WORD)) - 1 } else { 0 };
            let taken = self.taken[at as usize].load(Ordering::Relaxed) | below;
            let number = at * WORD + taken.trailing_ones();
            (taken != u64::MAX && number < self.count).then_some(number)
        })
    }

    /// The words of `released` that have numbers.
    fn released(&self) -> &[AtomicU64] {
        &self.released[..self.count.div_ceil(WORD) as usize]
    }

    fn nothing_released(&self) -> bool {
        self.released().iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    fn free_released(&self, reset: impl FnOnce()) {
        // Noted before the invalidation: a CPU may still cache entries for a number that is
        // released later.
        let mut released = [0; WORDS];
        self.note_released(&mut released);
        reset();
        for (at, released) in released.into_iter().enumerate().take(self.released().len()) {
            change(&self.taken, at, |word| word & !released);
        }
        self.hand.store(0, Ordering::Relaxed);
    }

    fn note_released(&self, noted: &mut [u64; WORDS]) {
        for (noted, word) in noted.iter_mut().zip(self.released()) {
            *noted = word.swap(0, Ordering::Acquire); // [B4]
        }
    }
}

/// The word of a number, and its bit there.
const fn place(number: u32) -> (usize, u64) {
    ((number / WORD) as usize, 1 << (number % WORD))
}

/// Changes a word of a set. Call it under the lock.
fn change(set: &[AtomicU64], at: usize, f: impl FnOnce(u64) -> u64) {
    set[at].store(f(set[at].load(Ordering::Relaxed)), Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;

    fn assign<const W: usize>(tags: &BroadcastTags<W>) -> (Option<Tag>, bool) {
        let mut reset = false;
        // SAFETY: there is no CPU.
        let tag = unsafe { tags.assign(|| unreachable!("nobody holds the lock"), || reset = true) };
        (tag, reset)
    }

    fn release<const W: usize>(tags: &BroadcastTags<W>, tag: Tag) {
        // SAFETY: there is no CPU.
        unsafe { tags.release(tag) };
    }

    #[test]
    fn a_released_tag_comes_back_only_with_a_reset() {
        let tags = BroadcastTags::<1>::with_count(Tag(7), 3, 12).unwrap();
        let given: Vec<_> = (0..3).map(|_| assign(&tags)).collect();
        assert_eq!(given, [7, 8, 9].map(|t| (Some(Tag(t)), false)));
        assert_eq!(assign(&tags), (None, false), "all have owners, and a reset would not help");
        release(&tags, Tag(8));
        assert_eq!(tags.owned(|| ()), 2);
        assert_eq!(assign(&tags), (Some(Tag(8)), true));
        assert_eq!(assign(&tags), (None, false));
    }

    #[test]
    fn one_reset_serves_all_that_were_released() {
        let tags = BroadcastTags::<2>::new(Tag(28), 7).unwrap();
        let resets = |n| (0..n).filter(|_| assign(&tags).1).count();
        assert_eq!(resets(100), 0);
        (28..128).for_each(|t| release(&tags, Tag(t)));
        assert_eq!(resets(100), 1);
    }

    #[test]
    #[should_panic(expected = "has no owner")]
    fn a_tag_is_not_released_twice() {
        let tags = BroadcastTags::<1>::with_count(Tag(7), 3, 12).unwrap();
        let tag = assign(&tags).0.unwrap();
        release(&tags, tag);
        release(&tags, tag);
    }

    #[test]
    #[should_panic(expected = "has no owner")]
    fn the_tag_of_a_slot_is_not_taken_for_one() {
        release(&BroadcastTags::<1>::with_count(Tag(7), 3, 12).unwrap(), Tag(6));
    }

    #[test]
    fn impossible_ranges_are_refused() {
        let refused = |first, count, bits| {
            BroadcastTags::<1>::with_count(Tag(first), count, bits).map(|_| ()).unwrap_err()
        };
        assert_eq!(refused(7, 0, 12), BroadcastTagsError::Empty);
        assert_eq!(refused(7, 65, 12), BroadcastTagsError::NoRoom { count: 65, room: 64 });
        assert_eq!(refused(4095, 2, 12), BroadcastTagsError::Width { last: 4096, bits: 12 });
        assert_eq!(refused(65535, 2, 16), BroadcastTagsError::Width { last: 65536, bits: 16 });
        let none = BroadcastTags::<1>::new(Tag(16), 4).map(|_| ());
        assert_eq!(none, Err(BroadcastTagsError::Empty));
        let all = BroadcastTags::<64>::new(Tag(7), 12).unwrap();
        assert!(all.fit(Tag(6), 12) && !all.fit(Tag(7), 12) && !all.fit(Tag(6), 11));
    }

    /// Long-lived owners hold the tail of the numbers, others come and go: in this state "none
    /// found" must not be taken for a number.
    #[test]
    fn no_tag_has_two_owners_when_the_tail_is_held() {
        for count in [3, 5, 63, 64, 65] {
            let tags = BroadcastTags::<2>::with_count(Tag(7), count, 12).unwrap();
            let all: Vec<Tag> = (0..count).map(|_| assign(&tags).0.unwrap()).collect();
            let (front, tail) = all.split_at(all.len() / 2);
            let mut owned: BTreeSet<Tag> = tail.iter().copied().collect();
            front.iter().for_each(|tag| release(&tags, *tag));
            let mut resets = 0;
            for step in 0..2000u32 {
                let (tag, reset) = assign(&tags);
                resets += u32::from(reset);
                let Some(tag) = tag else {
                    let oldest = *owned.first().unwrap();
                    owned.remove(&oldest);
                    release(&tags, oldest);
                    continue;
                };
                assert!((7..7 + count).contains(&u32::from(tag.0)), "{tag:?} is no tag");
                assert!(owned.insert(tag), "{tag:?} has two owners");
                // The owners of the tail stay.
                if step % 3 != 0 {
                    owned.remove(&tag);
                    release(&tags, tag);
                }
            }
            assert!(resets > 10);
        }
    }
}
