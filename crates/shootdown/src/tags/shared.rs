//! How a space moves from per-CPU slots to one global tag while it runs.
//!
//! # The problem
//! A flush of a space with a global tag is one broadcast. While a CPU still runs the space under a
//! slot of its own, a broadcast by that tag misses the CPU; and a CPU that already runs the space
//! under the tag is not interrupted for it any more. While a space moves, a flush must reach both
//! kinds of CPU.
//!
//! # The protocol
//! One word of the space says under which tag it runs: *slots*, *moving* to a tag, *moved*. The
//! word changes only in this direction, until the space ends.
//! - **Assign** ([`SharedTag::assign`]): slots → moving. Of two CPUs that try, one succeeds; the
//!   other gives its tag back.
//! - **Switch**: publish that the CPU is switching; fence (that of D1, see [`crate::switch`]); read
//!   the word ([`SharedTag::tag`]). If there is a tag, load it and keep what is cached: that is
//!   current without a look at the generation, as every flush reaches it. If there is none, take a
//!   slot, as for any space. Then publish which of the two is in use.
//! - **Flush**: table stores, count, fence (D1). *Moved*: broadcast, and the flush is done
//!   ([`SharedTag::moved`]). Otherwise notify the CPUs that have the space loaded under a slot, or
//!   are switching, and wait for them; **then** read the word again, and if there is a tag by now,
//!   broadcast as well ([`SharedTag::after_asking`]). A CPU that runs the space under the tag need
//!   not acknowledge: a flush that sees it running under the tag also sees the tag.
//! - **Settle** ([`SharedTag::settle`]): when no CPU runs the space under a slot, or may be about
//!   to, moving → moved. The caller notifies CPUs that run under a slot to load the space again.
//!   Any flush may try to settle.
//!
//! # Why no flush misses a CPU
//! Take a CPU that has an old entry which it could still use after the flush. *Under a slot:* the
//! slot is loaded, because a CPU that loads a slot later looks at the generation. If the flush saw
//! the slot loaded (D1), it notified the CPU. If it did not because it saw *moved*, a settling CPU
//! saw this CPU elsewhere or under the tag; by S1 and S2 this CPU's next switch sees the word.
//! *Under the tag:* if the flush broadcast, the entry is gone. If it did not, it found no tag after
//! it had looked at all CPUs and they had acknowledged. The entry is older than the table stores,
//! so by D1 the flush saw the CPU switch to the space, or something that the CPU published later:
//! that it runs the space under the tag, an acknowledgement, or that it has left. If the flush saw
//! it switch, the flush waited for one of these. The CPU stored each of them after it had read the
//! word, so the flush, which reads the word later still, finds the tag (S3).
//!
//! # Invariants
//! I1: a space has one tag, on all CPUs, until it ends. I2: when the word says *moved*, no CPU runs
//! the space under a slot. I3: entries under the tag agree with the tables once every flush that
//! began has returned.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | S1 assign (or seeing the tag), then fence, then the set, and what its CPUs have loaded (settle) | Release, fence | S2 | store buffering: a CPU sees the tag, or the settling CPU sees that it is switching |
//! | S2 "switching", and the set; then fence (D1), then the word | fence, Acquire | S1 | |
//! | S3 the word, after the acknowledgements of CPUs (Acquire) | Acquire | S2 | the CPU read the word before it stored what the flush reads |
//! | S4 moving → moved | Release | S5 | accesses through slots are over: each CPU ended them before it published its new tag, and that came before the space was settled |
//! | S5 the word (flush) | Acquire | S4, S1 | |

use crate::base::cpu_set::Bits;
use crate::base::ids::{CpuId, Tag};
use crate::base::sync::{AtomicU32, Ordering, fence};

pub use crate::port::policy::Threshold;

/// These flags are above the bits of a tag.
const MOVING: u32 = 1 << 16;
const MOVED: u32 = 1 << 17;

/// The global tag of a space, if it has one. It is part of the space.
#[derive(Debug)]
pub struct SharedTag(AtomicU32);

/// How a CPU uses a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uses {
    /// It has another space loaded, or none.
    Nothing,
    /// It is switching, perhaps to this space.
    Unknown,
    /// It has the space loaded under a slot of its own.
    Slot,
    /// It has the space loaded under the global tag.
    Shared,
}

/// Under which tags CPUs run a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Every CPU runs it under a slot of its own.
    Slots,
    /// Some CPUs may run it under the tag, some under slots.
    Moving(Tag),
    /// Every CPU runs it under the tag.
    Moved(Tag),
}

#[allow(clippy::cast_possible_truncation)] // the low half
const fn tag_of(word: u32) -> Tag {
    Tag(word as u16)
}

impl SharedTag {
    /// Makes the word of a space without a tag.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The phase that the space is in now. [S2, S3, S5]
    #[must_use]
    pub fn phase(&self) -> Phase {
        let word = self.0.load(Ordering::Acquire);
        match (word & MOVED != 0, word & MOVING != 0) {
            (true, _) => Phase::Moved(tag_of(word)),
            (false, true) => Phase::Moving(tag_of(word)),
            (false, false) => Phase::Slots,
        }
    }

    /// The tag to load or to broadcast for, if there is one.
    #[must_use]
    pub fn tag(&self) -> Option<Tag> {
        match self.phase() {
            Phase::Slots => None,
            Phase::Moving(tag) | Phase::Moved(tag) => Some(tag),
        }
    }

    /// The tag, if a broadcast for it reaches every CPU that runs the space. (I2)
    #[must_use]
    pub fn moved(&self) -> Option<Tag> {
        match self.phase() {
            Phase::Slots | Phase::Moving(_) => None,
            Phase::Moved(tag) => Some(tag),
        }
    }

    /// The tag to broadcast for after CPUs have acknowledged: the space may have got one meanwhile.
    #[must_use]
    pub fn after_asking(&self) -> Option<Tag> {
        self.tag()
    }

    /// Gives the space a tag that has no entries on any CPU
    /// ([`super::broadcast::BroadcastTags::assign`]).
    ///
    /// # Errors
    /// Returns the tag when the space has one already.
    pub fn assign(&self, tag: Tag) -> Result<(), Tag> {
        let word = MOVING | u32::from(tag.0);
        // [S1]
        match self.0.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(tag),
        }
    }

    /// Ends the move if no CPU runs the space under a slot, or may be about to. `uses` says, with
    /// Acquire, what a CPU has loaded; `cpus` reads which CPUs may have the space loaded. Returns
    /// whether the space has moved.
    pub fn settle<C: Bits>(
        &self,
        cpus: impl Fn() -> C,
        mut uses: impl FnMut(CpuId) -> Uses,
    ) -> bool {
        let tag = match self.phase() {
            Phase::Slots => return false,
            Phase::Moving(tag) => tag,
            Phase::Moved(_) => return true,
        };
        // ORDERING: S1, S2. The word is read before the set, and before what its CPUs have loaded.
        fence(Ordering::SeqCst);
        let settled = cpus().iter().all(|cpu| match uses(cpu) {
            Uses::Nothing | Uses::Shared => true,
            Uses::Unknown | Uses::Slot => false,
        });
        if settled {
            // [S4] No other CPU changes the word in another way.
            let word = MOVED | u32::from(tag.0);
            self.0.store(word, Ordering::Release);
        }
        settled
    }

    /// Takes the tag of a space that ends: no CPU has it loaded, and none will. The caller gives
    /// the tag back to its allocator.
    #[must_use = "a tag that is not released is lost"]
    pub fn take(&self) -> Option<Tag> {
        let tag = self.tag();
        self.0.store(0, Ordering::Relaxed);
        tag
    }
}

impl Default for SharedTag {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    use crate::base::cpu_set::CpuSet;

    fn both() -> CpuSet<1> {
        let mut cpus = CpuSet::EMPTY;
        (0..2).for_each(|cpu| cpus.insert(CpuId(cpu)));
        cpus
    }

    #[test]
    fn a_space_moves_once_and_in_one_direction() {
        let space = SharedTag::new();
        assert_eq!((space.phase(), space.tag(), space.moved()), (Phase::Slots, None, None));
        assert!(!space.settle(both, |_| Uses::Nothing), "there is no tag to move to");
        assert_eq!(space.assign(Tag(9)), Ok(()));
        assert_eq!(space.assign(Tag(10)), Err(Tag(10)));
        assert_eq!((space.phase(), space.moved()), (Phase::Moving(Tag(9)), None));
        assert!(space.settle(both, |_| Uses::Shared));
        assert_eq!((space.phase(), space.moved()), (Phase::Moved(Tag(9)), Some(Tag(9))));
        assert_eq!(space.assign(Tag(10)), Err(Tag(10)));
        assert_eq!(space.take(), Some(Tag(9)));
        assert_eq!(space.phase(), Phase::Slots);
    }

    #[test]
    fn one_cpu_under_a_slot_or_on_its_way_holds_the_move_up() {
        for last in [Uses::Slot, Uses::Unknown] {
            let space = SharedTag::new();
            space.assign(Tag(0)).unwrap();
            let uses = |cpu: CpuId| if cpu.0 == 1 { last } else { Uses::Shared };
            assert!(!space.settle(both, uses));
            assert_eq!(space.phase(), Phase::Moving(Tag(0)));
            assert!(space.settle(both, |_| Uses::Nothing));
        }
    }

    #[test]
    fn the_threshold_counts_no_further_than_it_must() {
        let threshold = Threshold::LINUX_6_15;
        for active in 0..9 {
            let mut looked = 0;
            let cpus = (0..100).map(|cpu| {
                looked += 1;
                cpu % 2 == 0 && cpu / 2 < active
            });
            assert_eq!(threshold.is_exceeded(cpus), active > 3);
            assert_eq!(looked, if active > 3 { 7 } else { 100 });
        }
        let due: Vec<u64> = (0..32_000).filter(|n| threshold.is_due(*n)).collect();
        assert!((900..=1100).contains(&due.len()), "{}", due.len());
        for turn in 0..4 {
            let mine = due.iter().filter(|n| **n % 4 == turn).count();
            assert!((200..=300).contains(&mine), "every CPU's turn comes: {mine}");
        }
        assert!(!(0..999).any(|n| Threshold::NEVER.is_due(n)));
        assert!(Threshold { above: 0, every: 1, alone: 0 }.is_exceeded([false, true]));
    }
}
