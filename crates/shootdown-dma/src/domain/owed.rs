//! What is given back when an invalidation is complete.
//!
//! # The problem
//! Unmapping that does not wait leaves things behind that nobody may have yet: the addresses, the pages, tables. They are many
//! (some for each packet), they come from every CPU, and they become free in about the order in which invalidations
//! complete.
//!
//! # The protocol
//! A queue for each CPU, of a length that is known beforehand: nothing is allocated while unmapping. What was owed first is
//! complete first (mostly: who finds its lane of the engine taken gets a token from another), so whoever looks takes from the
//! front until something is not complete. What is taken is given back after the queue was left: giving back takes
//! other locks.
//!
//! # Invariants
//! I1: nothing leaves a queue before its token is complete. I2: a queue never has more entries than [`Limits::entries`], nor
//! more pages than [`Limits::held_pages`]: who would exceed them waits for the hardware instead. I3: what could not
//! be queued is still the caller's.

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
    /// Addresses, which the allocator gets back, and pages to which a reference is held.
    Mapping(Option<IovaRange>, Option<Frames>),
    /// A page of the page table.
    Table(Detached),
}

impl Thing {
    const fn pages(&self) -> u64 {
        match self {
            Self::Mapping(_, Some(frames)) => frames.pages,
            _ => 0,
        }
    }
}

/// How many are taken from a queue at a time.
pub const BATCH: usize = 16;

/// What was taken from a queue.
pub struct Taken {
    pub things: [Option<Thing>; BATCH],
    pub len: usize,
}

/// One CPU's queue.
#[derive(Debug)]
pub struct Queue {
    items: VecDeque<(Token, Thing)>,
    pages: u64,
    limits: Limits,
}

impl Queue {
    /// An empty one.
    pub fn new(limits: Limits) -> Result<Self, NoMemory> {
        let mut items = VecDeque::new();
        items.try_reserve_exact(limits.entries).map_err(|_| NoMemory)?;
        Ok(Self { items, pages: 0, limits })
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
    pub fn push(&mut self, until: Token, thing: Thing) -> Result<(), Thing> {
        if !self.has_room(1, thing.pages()) {
            return Err(thing);
        }
        self.pages += thing.pages();
        self.items.push_back((until, thing));
        Ok(())
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The token of the one that came last.
    pub fn last(&self) -> Option<Token> {
        self.items.back().map(|(until, _)| *until)
    }

    /// Pages that are held back.
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Takes from the front what `is_complete`.
    pub fn take(&mut self, is_complete: impl Fn(Token) -> bool) -> Taken {
        let mut taken = Taken { things: [const { None }; BATCH], len: 0 };
        while taken.len < BATCH {
            match self.items.front() {
                Some((until, _)) if is_complete(*until) || without!(GivenBackEarly) => {}
                _ => break,
            }
            if let Some((_, thing)) = self.items.pop_front() {
                self.pages -= thing.pages();
                taken.things[taken.len] = Some(thing);
                taken.len += 1;
            }
        }
        taken
    }
}
