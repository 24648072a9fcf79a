//! Sets of CPUs, up to 4096 and beyond, iterated by cluster.
//!
//! The same bits have two shapes: [`CpuSet`] is a value (a snapshot, a target list),
//! [`AtomicCpuSet`] is shared. Both are arrays of 64-bit words with the word count as a const
//! parameter, so a kernel for 64 CPUs pays for one word and a kernel for 4096 CPUs for 64. With the
//! traits [`Bits`] and [`Mask`] the rest of the crate is written once for every width.
//!
//! # Invariants
//! I1: a CPU inserts and removes only *itself* in a space's set (see `state/space.rs` for why a
//! remote removal is unsound). I2: an insertion reads the bit first, so a set that already contains
//! the CPU is read and not dirtied.

use crate::base::ids::CpuId;
use crate::base::sealed::Sealed;
use crate::base::sync::{AtomicU64, Ordering};

/// CPUs per word: also the unit in which large calls are sent and acknowledged.
pub const WORD: usize = 64;

/// A fixed-width set of CPUs, as a value.
///
/// A call waits for the CPUs of a set before the memory that they read goes away, so only this
/// crate may say what a set contains:
///
/// ```compile_fail
/// # use shootdown::cpu_set::Bits;
/// #[derive(Clone, Copy)]
/// struct Liar;
/// impl Bits for Liar {
///     const EMPTY: Self = Self;
///     fn words(&self) -> &[u64] { &[] }
///     fn words_mut(&mut self) -> &mut [u64] { &mut [] }
/// }
/// ```
pub trait Bits: Sealed + Copy + Send + Sync + 'static {
    /// The empty set.
    const EMPTY: Self;

    /// The words, lowest CPUs first.
    fn words(&self) -> &[u64];

    /// The words, for changes.
    fn words_mut(&mut self) -> &mut [u64];

    /// How many CPUs the type can name.
    #[must_use]
    fn capacity() -> usize {
        Self::EMPTY.words().len() * WORD
    }

    /// Adds a CPU. A CPU beyond the capacity is a bug of the caller: debug builds assert it, others
    /// ignore it, as such a CPU can't have come online ([`crate::cpu::OnlineError::TooMany`]).
    fn insert(&mut self, cpu: CpuId) {
        debug_assert!(cpu.index() < Self::capacity(), "{cpu} is beyond this set's width");
        if let Some(w) = self.words_mut().get_mut(cpu.index() / WORD) {
            *w |= 1 << (cpu.index() % WORD);
        }
    }

    /// Removes a CPU.
    fn remove(&mut self, cpu: CpuId) {
        if let Some(w) = self.words_mut().get_mut(cpu.index() / WORD) {
            *w &= !(1 << (cpu.index() % WORD));
        }
    }

    /// Is the CPU in the set?
    fn contains(&self, cpu: CpuId) -> bool {
        self.words().get(cpu.index() / WORD).is_some_and(|w| w & (1 << (cpu.index() % WORD)) != 0)
    }

    /// Is the set empty?
    fn is_empty(&self) -> bool {
        self.words().iter().all(|w| *w == 0)
    }

    /// How many CPUs are in the set.
    #[inline(never)]
    fn len(&self) -> u32 {
        self.words().iter().map(|w| w.count_ones()).sum()
    }

    /// The CPUs, lowest first.
    fn iter(&self) -> Iter<'_> {
        Iter { words: self.words(), at: 0, rest: self.words().first().copied().unwrap_or(0) }
    }
}

/// Iterator over the CPUs of a set.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    words: &'a [u64],
    at: usize,
    rest: u64,
}

impl Iterator for Iter<'_> {
    type Item = CpuId;

    #[allow(clippy::cast_possible_truncation)] // a CPU number fits u32 by construction
    fn next(&mut self) -> Option<CpuId> {
        while self.rest == 0 {
            self.at += 1;
            self.rest = *self.words.get(self.at)?;
        }
        let bit = self.rest.trailing_zeros();
        self.rest &= self.rest - 1;
        Some(CpuId((self.at * WORD) as u32 + bit))
    }
}

/// A set of up to `64 * W` CPUs, as a value.
///
/// ```
/// use shootdown::{CpuId, cpu_set::{Bits, CpuSet}};
/// let mut set = CpuSet::<2>::EMPTY;
/// set.insert(CpuId(3));
/// set.insert(CpuId(100));
/// assert_eq!(set.iter().map(|c| c.0).collect::<Vec<_>>(), [3, 100]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuSet<const W: usize>([u64; W]);

impl<const W: usize> Sealed for CpuSet<W> {}

impl<const W: usize> Bits for CpuSet<W> {
    const EMPTY: Self = Self([0; W]);

    fn words(&self) -> &[u64] {
        &self.0
    }

    fn words_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }
}

/// A shared set of CPUs. As with [`Bits`], no other crate implements it:
///
/// ```compile_fail
/// # use shootdown::cpu_set::{AtomicCpuSet, CpuSet, Mask};
/// # use shootdown::sync::AtomicU64;
/// struct Liar(AtomicU64);
/// impl Mask for Liar {
///     type Set = CpuSet<1>;
///     type Acks = <AtomicCpuSet<1> as Mask>::Acks;
///     const EMPTY: Self = Self(AtomicU64::new(0));
///     const ACKS: Self::Acks = <AtomicCpuSet<1> as Mask>::ACKS;
///     fn words(&self) -> &[AtomicU64] { &[] }
///     fn summary(&self) -> &AtomicU64 { &self.0 }
/// }
/// ```
pub trait Mask: Sealed + Send + Sync + 'static {
    /// The value type of the same width.
    type Set: Bits;

    /// Acknowledgement counters for a call to a set of this width (see `ops/tree.rs`).
    type Acks: AsRef<[AckWord]> + Send + Sync + 'static;

    /// The empty set.
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const)] // an initializer, never read in place
    const EMPTY: Self;

    /// Counters at rest.
    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const)] // an initializer, never read in place
    const ACKS: Self::Acks;

    /// The empty set.
    #[cfg(loom)]
    fn empty() -> Self;

    /// Counters at rest.
    #[cfg(loom)]
    fn acks() -> Self::Acks;

    /// The words, lowest CPUs first.
    fn words(&self) -> &[AtomicU64];

    /// Bit *i*: a word whose index is *i* modulo 64 was non-zero once. It saves a large machine the
    /// reading of words whose CPUs were never in the set.
    fn summary(&self) -> &AtomicU64;

    /// Adds a CPU if it is not in the set yet; returns whether it was added.
    ///
    /// This is not a fence: a caller that needs one executes it (see the Dekker table in
    /// `ops/switch/mod.rs`).
    fn insert(&self, cpu: CpuId) -> bool {
        debug_assert!(cpu.index() < Self::Set::capacity(), "{cpu} is beyond this set's width");
        let bit = 1 << (cpu.index() % WORD);
        let Some(word) = self.words().get(cpu.index() / WORD) else {
            return false;
        };
        if word.load(Ordering::Relaxed) & bit != 0 {
            return false;
        }
        let new = word.fetch_or(bit, Ordering::AcqRel) & bit == 0;
        let in_summary = 1 << (cpu.index() / WORD % WORD);
        let marked = self.words().len() == 1;
        if !marked && self.summary().load(Ordering::Relaxed) & in_summary == 0 {
            self.summary().fetch_or(in_summary, Ordering::AcqRel);
        }
        new
    }

    /// Removes a CPU if it is in the set; returns whether it was removed.
    fn remove(&self, cpu: CpuId) -> bool {
        let bit = 1 << (cpu.index() % WORD);
        let Some(word) = self.words().get(cpu.index() / WORD) else {
            return false;
        };
        if word.load(Ordering::Relaxed) & bit == 0 {
            return false;
        }
        // ORDERING: Release: what the CPU did as a member is over for a CPU that reads the set
        // without it (Acquire below, C4)
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Is the CPU in the set?
    fn contains(&self, cpu: CpuId) -> bool {
        self.words()
            .get(cpu.index() / WORD)
            .is_some_and(|w| w.load(Ordering::Acquire) & (1 << (cpu.index() % WORD)) != 0)
    }

    /// Returns a copy. It reads each word once; CPUs may enter and leave between words.
    #[inline(never)]
    fn snapshot(&self) -> Self::Set {
        let mut set = Self::Set::EMPTY;
        let words = self.words();
        let marks = || self.summary().load(Ordering::Acquire);
        let mut summary = if words.len() == 1 { 1 } else { marks() };
        while summary != 0 {
            let first = summary.trailing_zeros() as usize;
            summary &= summary - 1;
            for w in (first..words.len()).step_by(WORD) {
                set.words_mut()[w] = words[w].load(Ordering::Acquire);
            }
        }
        set
    }

    /// Those CPUs of `set` that are in this set too. It reads only the words that it needs.
    #[inline(never)]
    fn common(&self, set: &Self::Set) -> Self::Set {
        let mut common = *set;
        for (to, from) in common.words_mut().iter_mut().zip(self.words()) {
            if *to != 0 {
                *to &= from.load(Ordering::Acquire);
            }
        }
        common
    }
}

/// CPUs per lowest group: as many as x2APIC addresses as one cluster.
pub(crate) const GROUP: usize = 16;
pub(crate) const GROUPS: usize = WORD / GROUP;

/// Acknowledgement counters for one word (64 CPUs) of a set.
#[derive(Debug)]
pub struct AckWord {
    pub(crate) groups: [Cell; GROUPS],
    pub(crate) word: Cell,
    pub(crate) done: Cell,
}

#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cell(pub AtomicU64);

impl AckWord {
    /// Counters at rest.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            groups: [const { Cell(AtomicU64::new(0)) }; GROUPS],
            word: Cell(AtomicU64::new(0)),
            done: Cell(AtomicU64::new(0)),
        }
    }

    /// Counters at rest.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            groups: core::array::from_fn(|_| Cell(AtomicU64::new(0))),
            word: Cell(AtomicU64::new(0)),
            done: Cell(AtomicU64::new(0)),
        }
    }
}

/// A shared set of up to `64 * W` CPUs, on cache lines of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct AtomicCpuSet<const W: usize> {
    summary: AtomicU64,
    words: [AtomicU64; W],
}

impl<const W: usize> AtomicCpuSet<W> {
    /// The empty set.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { summary: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; W] }
    }

    /// The empty set.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { summary: AtomicU64::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const W: usize> Default for AtomicCpuSet<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const W: usize> Sealed for AtomicCpuSet<W> {}

impl<const W: usize> Mask for AtomicCpuSet<W> {
    type Set = CpuSet<W>;
    type Acks = [AckWord; W];

    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const)]
    const EMPTY: Self = Self::new();

    #[cfg(not(loom))]
    #[allow(clippy::declare_interior_mutable_const)]
    const ACKS: Self::Acks = [const { AckWord::new() }; W];

    #[cfg(loom)]
    fn empty() -> Self {
        Self::new()
    }

    #[cfg(loom)]
    fn acks() -> Self::Acks {
        core::array::from_fn(|_| AckWord::new())
    }

    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn summary(&self) -> &AtomicU64 {
        &self.summary
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_set_holds_what_was_put_in_and_nothing_else() {
        let mut set = CpuSet::<64>::EMPTY;
        for cpu in [0, 63, 64, 4095] {
            set.insert(CpuId(cpu));
            set.insert(CpuId(cpu));
        }
        assert_eq!(set.len(), 4);
        assert_eq!(set.iter().map(|c| c.0).collect::<Vec<_>>(), [0, 63, 64, 4095]);
        set.remove(CpuId(64));
        assert!(!set.contains(CpuId(64)) && set.contains(CpuId(63)));
        assert!(!set.contains(CpuId(5000)));
    }

    #[test]
    fn shared_set_says_whether_it_changed() {
        let set = AtomicCpuSet::<1>::new();
        assert!(set.insert(CpuId(5)));
        assert!(!set.insert(CpuId(5)));
        assert_eq!(set.snapshot().iter().map(|c| c.0).collect::<Vec<_>>(), [5]);
        assert!(set.remove(CpuId(5)));
        assert!(!set.remove(CpuId(5)));
        assert!(set.snapshot().is_empty());
    }
}
