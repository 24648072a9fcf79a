//! Per-CPU tag slots: recently used spaces keep their entries over a context switch.
//!
//! A tag names a *recently used space on this CPU*, not a process. A CPU has a handful of slots;
//! each remembers a space and the generation up to which its entries are current. A switch to a
//! remembered space keeps its entries when the space's generation is the same; otherwise it flushes
//! exactly that tag. (Design: "x86/mm: Implement PCID based optimization: try to preserve old TLB
//! entries using PCID", Andy Lutomirski, 2017.)
//!
//! # Invariants
//! I1: a space is in at most one slot of a CPU. I2: a slot at generation *g* never holds entries
//! older than *g* (the master invariant). I3: a slot that is given to another space is flushed when
//! its tag is loaded.
//!
//! Everything here belongs to one CPU, and only that CPU writes it, with interrupts off.

use crate::base::ids::{SpaceId, Tag};
use crate::base::sealed::Sealed;
use crate::base::sync::{AtomicU64, Ordering};
use crate::port::policy::Victim;

/// The largest number of slots of a CPU: the recency order is kept in eight nibbles.
pub const MAX_SLOTS: usize = 8;

/// One word per tag slot. [`Slots`] implements it; the platform chooses the count. What a slot
/// remembers decides which entries are kept, so no other crate implements it:
///
/// ```compile_fail
/// # use shootdown::sync::AtomicU64;
/// # use shootdown::tags::slots::TagSlots;
/// struct Liar;
/// impl AsRef<[AtomicU64]> for Liar {
///     fn as_ref(&self) -> &[AtomicU64] { &[] }
/// }
/// impl TagSlots for Liar {
///     const EMPTY: Self = Self;
/// }
/// ```
pub trait TagSlots: Sealed + AsRef<[AtomicU64]> + Send + Sync + 'static {
    /// All words 0.
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const)] // an initializer, never read in place
    const EMPTY: Self;

    /// All words 0.
    #[cfg(loom)]
    fn empty() -> Self;
}

/// `N` words, at most [`MAX_SLOTS`]. Six of them and the words beside them fill one cache line.
#[derive(Debug)]
pub struct Slots<const N: usize>([AtomicU64; N]);

impl<const N: usize> AsRef<[AtomicU64]> for Slots<N> {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl<const N: usize> Sealed for Slots<N> {}

impl<const N: usize> TagSlots for Slots<N> {
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const)]
    const EMPTY: Self = {
        assert!(N >= 1 && N <= MAX_SLOTS, "a CPU has 1 to 8 tag slots");
        Self([const { AtomicU64::new(0) }; N])
    };

    #[cfg(loom)]
    fn empty() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// A slot's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub u8);

impl Slot {
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The hardware tag. Slot 0 has tag 1: code that does not know of tags runs under tag 0.
    pub const fn tag(self, tags_on: bool) -> Tag {
        if tags_on { Tag(self.0 as u16 + 1) } else { Tag(0) }
    }
}

/// The word of a slot: a space's id, and whether this CPU is known to be in that space's CPU set
/// (only the CPU itself ever leaves a set, so it need not read the set).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remembered(u64);

impl Remembered {
    const MEMBER: u64 = 1 << 63;

    pub const fn new(id: SpaceId, member: bool) -> Self {
        Self(id.get() | if member { Self::MEMBER } else { 0 })
    }

    pub const fn is(self, id: SpaceId) -> bool {
        self.0 & !Self::MEMBER == id.get()
    }

    pub const fn is_member(self) -> bool {
        self.0 & Self::MEMBER != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Recency order, current slot, round-robin hand, the private lazy flag, and a count of kept
/// switches, in one word that a switch rewrites anyway.
///
/// Bits 0..32: slots by recency, most recent in the lowest nibble. Bits 32..36: the round-robin
/// hand. Bit 36: lazy (only where the policy keeps that flag on the private line). Bits 40..64:
/// kept switches since the count was last moved to the statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Order(pub u64);

impl Order {
    pub const INITIAL: Self = Self(0x7654_3210);
    const LAZY: u64 = 1 << 36;
    const KEPT_SHIFT: u32 = 40;

    /// The order that a CPU keeps as `word`. The word is exclusive-ored with the initial order, so
    /// that the state of a CPU begins as zeros and takes no place in a kernel's image.
    pub const fn from_word(word: u64) -> Self {
        Self(word ^ Self::INITIAL.0)
    }

    /// The word that a CPU keeps for this order.
    pub const fn word(self) -> u64 {
        self.0 ^ Self::INITIAL.0
    }

    /// The most recent slot.
    pub const fn current(self) -> Slot {
        Slot((self.0 & 0xf) as u8)
    }

    /// The order after `slot` was used.
    #[must_use]
    pub const fn used(self, slot: Slot) -> Self {
        let mut order = self.0 as u32;
        // find the nibble of `slot`, and rotate everything below it up by one
        let mut at = 0;
        while at < 28 && (order >> at) & 0xf != slot.0 as u32 {
            at += 4;
        }
        let below = order & ((1u32 << at) - 1);
        let upto = (1u64 << (at + 4)) - 1;
        order = (order as u64 & !upto) as u32 | below << 4 | slot.0 as u32;
        Self(self.0 & !0xffff_ffff | order as u64)
    }

    /// Which of the first `n` slots is reused, and the order with the hand moved on.
    #[must_use]
    pub const fn victim(self, rule: Victim, n: u8) -> (Slot, Self) {
        match rule {
            Victim::RoundRobin => {
                let hand = (self.0 >> 32 & 0xf) as u8;
                let hand = if hand < n { hand } else { 0 };
                let next = (hand + 1) % n;
                (Slot(hand), Self(self.0 & !(0xf << 32) | (next as u64) << 32))
            }
            Victim::LeastRecent => {
                let mut at = 28;
                while at > 0 && (self.0 >> at & 0xf) as u8 >= n {
                    at -= 4;
                }
                (Slot((self.0 >> at & 0xf) as u8), self)
            }
        }
    }

    pub const fn is_lazy(self) -> bool {
        self.0 & Self::LAZY != 0
    }

    #[must_use]
    pub const fn with_lazy(self, lazy: bool) -> Self {
        Self(if lazy { self.0 | Self::LAZY } else { self.0 & !Self::LAZY })
    }

    /// Counts a kept switch; the second value is how many to add to the statistics.
    #[must_use]
    pub const fn count_kept(self) -> (Self, u64) {
        let kept = (self.0 >> Self::KEPT_SHIFT) + 1;
        let low = self.0 & ((1 << Self::KEPT_SHIFT) - 1);
        if kept >> (64 - Self::KEPT_SHIFT) != 0 {
            (Self(low), kept)
        } else {
            (Self(low | kept << Self::KEPT_SHIFT), 0)
        }
    }

    /// Kept switches not yet added to the statistics.
    pub const fn kept(self) -> u64 {
        self.0 >> Self::KEPT_SHIFT
    }
}

/// The slot among the first `n` that remembers `id`.
pub(crate) fn find(ids: &[AtomicU64], n: u8, id: SpaceId) -> Option<(Slot, Remembered)> {
    (0..n).zip(ids).find_map(|(i, word)| {
        let seen = Remembered(word.load(Ordering::Relaxed));
        seen.is(id).then_some((Slot(i), seen))
    })
}

/// What a slot remembers.
pub(crate) fn read(ids: &[AtomicU64], slot: Slot) -> Remembered {
    Remembered(ids[slot.index()].load(Ordering::Relaxed))
}

/// Makes a slot remember a space.
pub(crate) fn write(ids: &[AtomicU64], slot: Slot, what: Remembered) {
    ids[slot.index()].store(what.0, Ordering::Relaxed);
}

/// Empties every slot but one (or all).
pub(crate) fn forget_others(ids: &[AtomicU64], keep: Option<Slot>) {
    for (i, word) in ids.iter().enumerate() {
        if keep.is_none_or(|k| k.index() != i) && word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn recency_is_a_permutation_with_the_last_used_in_front() {
        let mut order = Order::INITIAL;
        let mut model: std::vec::Vec<u8> = (0..8).collect();
        for step in 0..1000u32 {
            let slot = (step * 7 + step / 3) % 8;
            #[allow(clippy::cast_possible_truncation)]
            let slot = Slot(slot as u8);
            order = order.used(slot);
            model.retain(|s| *s != slot.0);
            model.insert(0, slot.0);
            let got: std::vec::Vec<u8> = (0..8).map(|i| (order.0 >> (4 * i) & 0xf) as u8).collect();
            assert_eq!(got, model);
            assert_eq!(order.current(), slot);
            for n in 1..=8 {
                let oldest = model.iter().rev().find(|s| **s < n).copied().unwrap();
                assert_eq!(order.victim(Victim::LeastRecent, n).0, Slot(oldest));
            }
        }
    }

    #[test]
    fn round_robin_visits_every_slot_in_turn() {
        let mut order = Order::INITIAL.with_lazy(true);
        for i in 0..20 {
            let (slot, next) = order.victim(Victim::RoundRobin, 6);
            assert_eq!(slot.0, i % 6);
            order = next;
        }
        assert!(order.is_lazy());
    }

    #[test]
    fn kept_switches_are_counted_and_spilled_once() {
        let mut order = Order::INITIAL;
        let mut spilled = 0;
        for _ in 0..(1 << 24) + 5 {
            let (next, spill) = order.count_kept();
            order = next;
            spilled += spill;
        }
        assert_eq!(spilled + order.kept(), (1 << 24) + 5);
        assert_eq!(order.current(), Slot(0));
    }

    #[test]
    fn tags_are_never_zero_when_tags_are_on() {
        assert_eq!(Slot(0).tag(true), Tag(1));
        assert_eq!(Slot(3).tag(false), Tag(0));
    }
}
