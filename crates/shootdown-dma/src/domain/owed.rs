//! What is given back when an invalidation is complete.
//!
//! # The problem
//! Unmapping that does not wait leaves things behind that nobody may have yet: the addresses, the pages, tables. They are many
//! (some for each packet), they come from every CPU, and they become free in about the order in which invalidations
//! complete.
//!
//! # The protocol
//! A queue for each CPU, of a length that is known beforehand: nothing is allocated while unmapping. What comes to its
//! end is not told to anybody yet. When there is enough of it, or it is old enough, it is *sealed*: all of it is noted
//! with the engine at once, and gets one token, which is taken later than any of it was cleared. Whoever looks takes from the
//! front until a batch is not complete. What is taken is given back after the queue was left: giving back takes
//! other locks.
//!
//! # Invariants
//! I1: nothing leaves a queue before its token is complete. I2: a queue never has more entries than [`Limits::entries`], nor
//! more pages than [`Limits::held_pages`]: who would exceed them waits for the hardware instead. I3: what could not
//! be queued is still the caller's. I4: a batch's token covers every range that its things were reached by.

use alloc::collections::VecDeque;

use super::policy::Limits;
use crate::addr::{IovaRange, PhysAddr};
use crate::fixed::NoMemory;
use crate::invalidate::Token;
use crate::table::Detached;

/// Physical pages that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames {
    /// The address of the first, in bytes.
    pub first: PhysAddr,
    /// How many.
    pub pages: u64,
}

/// Something to be given back.
#[derive(PartialEq, Eq, Debug)]
pub enum Thing {
    /// A mapping, or a part of one.
    Mapping {
        /// The addresses whose entries were cleared: these have to be forgotten.
        cleared: IovaRange,
        /// Addresses that the allocator gets back.
        gives: Option<IovaRange>,
        /// Pages to which a reference is held.
        frames: Option<Frames>,
    },
    /// A page of the page table.
    Table(Detached),
}

impl Thing {
    /// Pages that it holds back.
    pub const fn pages(&self) -> u64 {
        match self {
            Self::Mapping { frames: Some(frames), .. } => frames.pages,
            _ => 0,
        }
    }

    /// What has to be forgotten before it is given back, and whether leaf entries are all of it.
    pub fn covered(&self) -> (IovaRange, bool) {
        match self {
            Self::Mapping { cleared, .. } => (*cleared, true),
            Self::Table(detached) => (detached.range(), without!(SweptAsLeaf)),
        }
    }
}

/// How many are taken from a queue at a time.
pub const BATCH: usize = 32;

/// What was taken from a queue.
pub struct Taken {
    pub things: [Option<Thing>; BATCH],
    pub len: usize,
}

impl Taken {
    /// Nothing yet.
    pub const NOTHING: Self = Self { things: [const { None }; BATCH], len: 0 };
}

/// One CPU's queue.
#[derive(Debug)]
pub struct Queue {
    items: VecDeque<Thing>,
    /// Tokens, and how many of the items each is for, from the front on.
    batches: VecDeque<(Token, usize)>,
    /// How many items that is together.
    sealed: usize,
    pages: u64,
    limits: Limits,
}

impl Queue {
    /// An empty one.
    pub fn new(limits: Limits) -> Result<Self, NoMemory> {
        let (mut items, mut batches) = (VecDeque::new(), VecDeque::new());
        items.try_reserve_exact(limits.entries).map_err(|_| NoMemory)?;
        batches.try_reserve_exact(limits.entries).map_err(|_| NoMemory)?;
        Ok(Self { items, batches, sealed: 0, pages: 0, limits })
    }

    /// Is there room for so many more, with so many pages?
    #[inline]
    pub fn has_room(&self, things: usize, pages: u64) -> bool {
        let fits = self.items.len() + things <= self.limits.entries
            && self.pages + pages <= self.limits.held_pages;
        fits || without!(BoundIgnored)
    }

    /// Puts something at the end.
    ///
    /// # Errors
    /// It, if there is no room.
    #[inline]
    pub fn push(&mut self, thing: Thing) -> Result<(), Thing> {
        if !self.has_room(1, thing.pages()) {
            return Err(thing);
        }
        self.pages += thing.pages();
        self.items.push_back(thing);
        Ok(())
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// How many of them are not sealed.
    #[inline]
    pub fn unsealed(&self) -> usize {
        self.items.len() - self.sealed
    }

    /// Seals what is not: `note` takes what has to be forgotten, and returns the token. `None`: there is nothing.
    pub fn seal(&mut self, note: impl FnOnce(Covered<'_>) -> Token) -> Option<Token> {
        let count = self.unsealed();
        if count == 0 {
            return None;
        }
        let token = note(Covered { items: &self.items, from: self.sealed });
        self.batches.push_back((token, count));
        self.sealed += count;
        Some(token)
    }

    /// The token that was given last.
    pub fn last(&self) -> Option<Token> {
        self.batches.back().map(|(token, _)| *token)
    }

    /// Pages that are held back.
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Takes from the front what `is_complete`.
    pub fn take(&mut self, taken: &mut Taken, is_complete: impl Fn(Token) -> bool) {
        while let Some((token, count)) = self.batches.front_mut() {
            if !is_complete(*token) && !without!(GivenBackEarly) {
                break;
            }
            while *count != 0 && taken.len < BATCH {
                let Some(thing) = self.items.pop_front() else { break };
                (*count, self.sealed) = (*count - 1, self.sealed - 1);
                self.pages -= thing.pages();
                taken.things[taken.len] = Some(thing);
                taken.len += 1;
            }
            if *count != 0 {
                break;
            }
            self.batches.pop_front();
        }
    }
}

/// What has to be forgotten of things that are being sealed.
#[derive(Clone, Copy)]
pub struct Covered<'a> {
    items: &'a VecDeque<Thing>,
    from: usize,
}

impl Covered<'_> {
    /// Range by range, and whether leaf entries are all of it.
    pub fn iter(&self) -> impl Iterator<Item = (IovaRange, bool)> + '_ {
        self.items.range(self.from..).map(Thing::covered)
    }
}
