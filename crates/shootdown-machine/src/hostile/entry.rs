//! Cached entries: leaves and steps of walks.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use shootdown::Tag;

use super::held::Entry;
use super::{Descriptor, Frame, Pages, Rights, TableId, Word, shape::MAX_LEVELS};

/// For whom an entry is valid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// Whoever runs under the tag.
    Tag(Tag),
    /// Whoever has the root loaded: untagged walk caches.
    Root(TableId),
    /// Everyone: global entries.
    Everyone,
}

impl Owner {
    /// The owner in 18 bits.
    const fn code(self) -> u64 {
        match self {
            Self::Tag(tag) => tag.0 as u64,
            Self::Root(root) => 1 << 16 | root.0 as u64,
            Self::Everyone => 2 << 16,
        }
    }
}

/// A write that a walk has read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Source {
    /// Which word.
    pub word: Word,
    /// Which write of it; 0 without [`Rules::provenance`](super::Rules::provenance).
    pub version: u32,
}

impl Source {
    /// The source in 56 bits.
    const fn code(self) -> u64 {
        (self.word.table.0 as u64) << 40 | (self.word.index as u64) << 32 | self.version as u64
    }
}

/// The non-leaf words a walk went through, from the root. Empty without
/// [`Rules::provenance`](super::Rules::provenance).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Path {
    len: u8,
    steps: [Source; MAX_LEVELS as usize - 1],
}

impl Path {
    /// The words, from the root.
    #[must_use]
    pub fn steps(&self) -> &[Source] {
        &self.steps[..usize::from(self.len)]
    }

    pub(super) fn then(mut self, source: Source) -> Self {
        self.steps[usize::from(self.len)] = source;
        self.len += 1;
        self
    }
}

/// A cached leaf: what an access can use. With a descriptor that is not present, a cached "nothing
/// there" ([`Negative`](super::Negative)).
///
/// # Invariants
/// - The owner is `Tag` or `Everyone`.
/// - `base` is a multiple of the pages that a leaf of `level` spans.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    /// The first page.
    pub base: u32,
    /// The level of the leaf: how many pages it spans.
    pub level: u8,
    /// Pages spanned, minus one.
    pub last_offset: u32,
    /// For whom.
    pub owner: Owner,
    /// The leaf as it was read.
    pub descriptor: Descriptor,
    /// What the whole path allows.
    pub rights: Rights,
    /// The leaf's word.
    pub source: Source,
    /// The words above it.
    pub path: Path,
}

impl Translation {
    /// Everything but the path, which only a run with provenance has. `last_offset` follows from
    /// `level`.
    #[inline]
    const fn code(&self) -> [u64; 3] {
        [
            place(self.base, self.level, self.owner, self.rights),
            self.descriptor.bits(),
            self.source.code(),
        ]
    }

    /// The pages it translates.
    #[must_use]
    pub const fn pages(&self) -> Pages {
        Pages { first: self.base, last: self.base + self.last_offset }
    }

    /// The frame of one of its pages.
    #[must_use]
    pub const fn frame_of(&self, page: u32) -> Frame {
        let first = self.descriptor.frame();
        if first.0 == Frame::POISON.0 {
            return first;
        }
        Frame(first.0.wrapping_add(page - self.base))
    }

    /// Every write it was made from: the words above, then the leaf.
    pub fn sources(&self) -> impl Iterator<Item = Source> + '_ {
        self.path.steps().iter().copied().chain([self.source])
    }
}

/// A cached non-leaf entry, or a walk that has come this far: the walker may go on from it at any
/// time.
#[derive(Clone, Copy, Debug)]
pub struct Partial {
    /// The first page.
    pub base: u32,
    /// The level of the table it names.
    pub level: u8,
    /// Pages spanned, minus one.
    pub last_offset: u32,
    /// For whom.
    pub owner: Owner,
    /// The table it names.
    pub table: TableId,
    /// What the path so far allows.
    pub rights: Rights,
    /// Everything below is global.
    pub global: bool,
    /// The word that named the table.
    pub source: Source,
    /// The words above that one.
    pub path: Path,
}

impl Partial {
    /// Everything but the path. `last_offset` follows from `level`.
    #[inline]
    const fn code(&self) -> [u64; 3] {
        let target = (self.table.0 as u64) << 1 | self.global as u64;
        [place(self.base, self.level, self.owner, self.rights), target, self.source.code()]
    }

    /// The pages below it.
    #[must_use]
    pub const fn pages(&self) -> Pages {
        Pages { first: self.base, last: self.base + self.last_offset }
    }

    /// Every write it was made from.
    pub fn sources(&self) -> impl Iterator<Item = Source> + '_ {
        self.path.steps().iter().copied().chain([self.source])
    }
}

/// Where an entry is and for whom, in one number that orders entries by page first.
#[inline]
const fn place(base: u32, level: u8, owner: Owner, rights: Rights) -> u64 {
    (base as u64) << 32 | (level as u64) << 26 | owner.code() << 8 | rights.bits() as u64
}

/// Equality, order and hash by [`code`](Translation::code) and path: entries are compared at every
/// step of every walk, and this is several times faster than field by field.
macro_rules! by_code {
    ($entry:ty) => {
        impl PartialEq for $entry {
            #[inline]
            fn eq(&self, other: &Self) -> bool {
                self.code() == other.code() && self.path.steps() == other.path.steps()
            }
        }

        impl Eq for $entry {}

        impl Entry for $entry {
            #[inline]
            fn key(&self) -> u64 {
                place(self.base, self.level, self.owner, self.rights)
            }
        }

        impl PartialOrd for $entry {
            #[inline]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $entry {
            #[inline]
            fn cmp(&self, other: &Self) -> Ordering {
                let ours = self.code().cmp(&other.code());
                ours.then_with(|| self.path.steps().cmp(other.path.steps()))
            }
        }

        impl Hash for $entry {
            fn hash<H: Hasher>(&self, state: &mut H) {
                for part in self.code() {
                    state.write_u64(part);
                }
                for step in self.path.steps() {
                    state.write_u64(step.code());
                }
            }
        }
    };
}

by_code!(Translation);
by_code!(Partial);
