//! The queue of what is given back when an invalidation is complete.
//!
//! # The problem
//! Unmapping that does not wait leaves things that may not be reused yet: the addresses, the pages,
//! tables. They are many (some for each packet), they come from every CPU, and they become free in
//! about the order in which invalidations complete.
//!
//! # The protocol
//! Each CPU has a queue, of a length that is fixed beforehand: unmapping allocates nothing. A new
//! item goes to the end, and its invalidation is not submitted yet. When there are enough items, or
//! they are old enough, they are *sealed*: all of them are noted with the engine at once, under one
//! token that is taken after all of their entries were cleared. A caller takes items from the front
//! until it finds a batch that is not complete. It gives back what it took after it has left the
//! queue, since giving back takes other locks.
//!
//! Most deferred items are pages, which take two words. Any other item goes into a second queue, in
//! the same order, and a marker in the first queue holds its place. If an address has to be
//! invalidated and nothing is given back with it, the queue keeps the address until it is sealed,
//! and only counts it afterwards.
//!
//! # Invariants
//! I1: nothing leaves a queue before its token is complete. I2: a queue never has more entries than
//! [`Limits::entries`], nor more pages than [`Limits::held_pages`]: an unmapping that would exceed
//! them waits for the hardware instead. I3: what could not be queued stays with the caller. I4: a
//! batch's token covers every range through which its items were reachable.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

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
pub enum DeferredFree {
    /// A mapping, or a part of one.
    Mapping {
        /// The addresses whose entries were cleared: these have to be invalidated.
        cleared: IovaRange,
        /// Addresses that the allocator gets back.
        gives: Option<IovaRange>,
        /// Pages to which a reference is held.
        frames: Option<Frames>,
    },
    /// A page of the page table.
    Table(Detached),
}

impl DeferredFree {
    /// Pages that it holds back.
    pub const fn pages(&self) -> u64 {
        match self {
            Self::Mapping { frames: Some(frames), .. } => frames.pages,
            _ => 0,
        }
    }

    /// The range to invalidate before it is given back, and whether leaf entries are all of it.
    pub fn covered(&self) -> (IovaRange, bool) {
        match self {
            Self::Mapping { cleared, .. } => (*cleared, true),
            Self::Table(detached) => (detached.range(), false),
        }
    }
}

/// Something to be given back, in two words if it is a page, as most are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// The address whose entry was cleared, and in bit 0 whether the allocator gets it back.
    /// Address 0: an item before this one covers the cleared address. [`Self::ELSEWHERE`]: it is no
    /// page.
    address: u64,
    /// The page to which a reference is held, and in bit 0 whether there is one.
    frame: u64,
}

impl Page {
    const NOTHING: Self = Self { address: 0, frame: 0 };
    /// The marker for an item of the second queue. No page has this address.
    const ELSEWHERE: Self = Self { address: u64::MAX, frame: 0 };

    /// A page whose entry was cleared. `gives`: its address goes back; `frame`: its memory, if
    /// held.
    #[inline]
    pub const fn new(page: u64, gives: bool, frame: Option<PhysAddr>) -> Self {
        let frame = match frame {
            Some(frame) => frame.0 | 1,
            None => 0,
        };
        Self { address: page << 1 | gives as u64, frame }
    }

    /// Memory alone: an item before it covers its address.
    #[inline]
    pub const fn memory(frame: PhysAddr) -> Self {
        Self::new(0, false, Some(frame))
    }

    /// The same item in two words, if it fits.
    fn of(free: &DeferredFree) -> Option<Self> {
        let DeferredFree::Mapping { cleared, gives, frames } = free else { return None };
        let whole = gives.is_none_or(|gives| gives == *cleared);
        let one = frames.is_none_or(|frames| frames.pages == 1 && frames.first.0 & 1 == 0);
        let fits = cleared.pages() == 1 && cleared.first() < u64::MAX >> 1;
        let frame = frames.map(|frames| frames.first);
        (whole && one && fits).then(|| Self::new(cleared.first(), gives.is_some(), frame))
    }

    /// The address that the allocator gets back.
    #[inline]
    pub const fn gives(self) -> Option<u64> {
        if self.address & 1 != 0 { Some(self.address >> 1) } else { None }
    }

    /// The page to which a reference is held.
    #[inline]
    pub const fn frame(self) -> Option<PhysAddr> {
        if self.frame & 1 != 0 { Some(PhysAddr(self.frame & !1)) } else { None }
    }

    /// Whether there is nothing to give back.
    #[inline]
    const fn is_bare(self) -> bool {
        (self.frame | self.address) & 1 == 0
    }

    /// Pages that it holds back.
    #[inline]
    const fn pages(self) -> u64 {
        self.frame & 1
    }

    /// The address that has to be invalidated, or 0.
    #[inline]
    const fn cleared(self) -> u64 {
        self.address >> 1
    }
}

/// How many items are taken from a queue at a time.
pub const BATCH: usize = 32;

/// How many of these may be other than pages.
pub const FEW: usize = 4;

/// Items that were taken from a queue.
pub struct Taken {
    pages: [Page; BATCH],
    len: usize,
    /// The items that are no pages.
    pub frees: [Option<DeferredFree>; FEW],
    few: usize,
    /// More items are complete.
    pub more: bool,
}

impl Taken {
    /// Nothing taken yet.
    pub const NOTHING: Self = Self {
        pages: [Page::NOTHING; BATCH],
        len: 0,
        frees: [const { None }; FEW],
        few: 0,
        more: false,
    };

    /// The items that are pages.
    #[inline]
    pub fn pages(&self) -> &[Page] {
        self.pages.get(..self.len).unwrap_or(&self.pages)
    }
}

/// Items that were sealed together.
#[derive(Debug)]
struct Batch {
    token: Token,
    items: usize,
    bare: usize,
}

/// One CPU's queue.
#[derive(Debug)]
pub struct Queue {
    items: VecDeque<Page>,
    /// The items that are no pages.
    frees: VecDeque<DeferredFree>,
    /// Addresses with which nothing is given back, and that are not sealed.
    bare: Vec<u64>,
    /// The batches, oldest first.
    batches: VecDeque<Batch>,
    /// How many items are sealed, and how many bare addresses.
    sealed: (usize, usize),
    pages: u64,
    limits: Limits,
}

impl Queue {
    /// An empty queue.
    pub fn new(limits: Limits) -> Result<Self, NoMemory> {
        let (mut items, mut frees) = (VecDeque::new(), VecDeque::new());
        let (mut bare, mut batches) = (Vec::new(), VecDeque::new());
        items.try_reserve_exact(limits.entries).map_err(|_| NoMemory)?;
        frees.try_reserve_exact(limits.entries).map_err(|_| NoMemory)?;
        bare.try_reserve_exact(limits.entries).map_err(|_| NoMemory)?;
        batches.try_reserve_exact(limits.entries).map_err(|_| NoMemory)?;
        Ok(Self { items, frees, bare, batches, sealed: (0, 0), pages: 0, limits })
    }

    /// Whether there is room for this many more items, with this many pages.
    #[inline]
    pub fn has_room(&self, frees: usize, pages: u64) -> bool {
        self.len() + frees <= self.limits.entries && self.pages + pages <= self.limits.held_pages
    }

    /// Puts an item at the end.
    ///
    /// # Errors
    /// The item, if there is no room.
    pub fn push(&mut self, free: DeferredFree) -> Result<(), DeferredFree> {
        if let Some(page) = Page::of(&free) {
            return if self.push_page(page) { Ok(()) } else { Err(free) };
        }
        if !self.has_room(1, free.pages()) {
            return Err(free);
        }
        self.pages += free.pages();
        self.frees.push_back(free);
        self.items.push_back(Page::ELSEWHERE);
        Ok(())
    }

    /// The same for a page; false if there is no room.
    #[inline]
    pub fn push_page(&mut self, page: Page) -> bool {
        if !self.has_room(1, page.pages()) {
            return false;
        }
        self.put_page(page);
        true
    }

    /// The same, where the caller knows that there is room.
    #[inline]
    pub fn put_page(&mut self, page: Page) {
        if page.is_bare() {
            self.bare.push(page.cleared());
        } else {
            self.pages += page.pages();
            self.items.push_back(page);
        }
    }

    /// How many items there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len() + self.bare.len() + self.sealed.1
    }

    /// How many of them are not sealed.
    #[inline]
    pub fn unsealed(&self) -> usize {
        self.items.len() - self.sealed.0 + self.bare.len()
    }

    /// Whether enough is unsealed that its invalidation should be submitted.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.unsealed() >= self.limits.flush_at
    }

    /// How many pages may be [put](Self::put_page) before the caller must check again whether there
    /// is room and whether enough is there to seal; `most` at the most.
    pub fn quick(&self, most: usize) -> usize {
        let held = usize::try_from(self.limits.held_pages.saturating_sub(self.pages));
        let room = self.limits.entries.saturating_sub(self.len());
        let seal = self.limits.flush_at.saturating_sub(self.unsealed() + 1);
        most.min(room).min(seal).min(held.unwrap_or(usize::MAX))
    }

    /// Seals what is not sealed: `note` takes what has to be invalidated, and returns the token.
    /// `None`: there is nothing.
    pub fn seal(&mut self, note: impl FnOnce(Covered<'_>) -> Token) -> Option<Token> {
        if self.unsealed() == 0 {
            return None;
        }
        let (items, bare) = (self.items.len() - self.sealed.0, self.bare.len());
        // Items of the second queue that are sealed already come first.
        let elsewhere = match self.frees.len() {
            0 => 0,
            _ => self.items.range(self.sealed.0..).filter(|item| **item == Page::ELSEWHERE).count(),
        };
        let from = (self.sealed.0, self.frees.len() - elsewhere);
        let Self { frees, bare: addresses, .. } = self;
        let token = note(Covered { items: &self.items, frees, bare: addresses, from });
        self.batches.push_back(Batch { token, items, bare });
        self.bare.clear();
        self.sealed = (self.sealed.0 + items, self.sealed.1 + bare);
        Some(token)
    }

    /// The token of the newest batch.
    pub fn last(&self) -> Option<Token> {
        self.batches.back().map(|batch| batch.token)
    }

    /// The token of the oldest batch, and how many batches there are. Their tokens may have been
    /// taken with different CPU numbers, so none of them says anything about another.
    pub fn batches(&self) -> (Option<Token>, usize) {
        (self.batches.front().map(|batch| batch.token), self.batches.len())
    }

    /// Pages that are held back.
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Takes items from the front as long as their batch `is_complete`.
    pub fn take(&mut self, taken: &mut Taken, is_complete: impl Fn(Token) -> bool) {
        while let Some(batch) = self.batches.front_mut() {
            if !is_complete(batch.token) {
                return;
            }
            while batch.items != 0 {
                let full = taken.len == BATCH || taken.few == FEW;
                let Some(item) = self.items.front().filter(|_| !full).copied() else {
                    taken.more = full;
                    return;
                };
                if item != Page::ELSEWHERE {
                    self.pages -= item.pages();
                    taken.pages[taken.len] = item;
                    taken.len += 1;
                } else if let Some(free) = self.frees.pop_front() {
                    self.pages -= free.pages();
                    taken.frees[taken.few] = Some(free);
                    taken.few += 1;
                }
                self.items.pop_front();
                (batch.items, self.sealed.0) = (batch.items - 1, self.sealed.0 - 1);
            }
            self.sealed.1 -= batch.bare;
            self.batches.pop_front();
        }
    }
}

/// What has to be invalidated for items that are being sealed.
#[derive(Clone, Copy)]
pub struct Covered<'a> {
    items: &'a VecDeque<Page>,
    frees: &'a VecDeque<DeferredFree>,
    bare: &'a [u64],
    /// The first of the items, in both queues.
    from: (usize, usize),
}

impl<'a> Covered<'a> {
    /// The ranges, each with whether leaf entries are all of it. Pages that follow each other are
    /// one range.
    pub fn iter(&self) -> impl Iterator<Item = (IovaRange, bool)> + use<'a> {
        let bare = self.bare.iter().map(|page| Page::new(*page, false, None));
        let mut items = self.items.range(self.from.0..).copied().chain(bare).peekable();
        let mut frees = self.frees.range(self.from.1..);
        core::iter::from_fn(move || {
            loop {
                let item = items.next()?;
                if item == Page::ELSEWHERE {
                    return frees.next().map(DeferredFree::covered);
                }
                let (mut first, mut last) = (item.cleared(), item.cleared());
                if first == 0 {
                    continue;
                }
                while let Some(next) = items.peek().filter(|next| **next != Page::ELSEWHERE) {
                    let page = next.cleared();
                    if page == last + 1 {
                        last = page;
                    } else if page + 1 == first && page != 0 {
                        first = page;
                    } else if page != 0 {
                        break;
                    }
                    items.next();
                }
                return IovaRange::new(first, last - first + 1).map(|range| (range, true));
            }
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn mapping(first: u64, pages: u64, frames: Option<(u64, u64)>) -> DeferredFree {
        let cleared = IovaRange::new(first, pages).unwrap();
        let frames = frames.map(|(first, pages)| Frames { first: PhysAddr(first << 12), pages });
        DeferredFree::Mapping { cleared, gives: Some(cleared), frames }
    }

    /// What is more than a page keeps its place among the pages, is covered, and holds back what it
    /// holds.
    #[test]
    fn pages_and_others_come_out_as_they_went_in() {
        let mut queue = Queue::new(Limits { held_pages: 20, ..Limits::DEFAULT }).unwrap();
        let mut expected = Vec::new();
        for round in 0..3u64 {
            let at = 1 + 100 * round;
            for free in [
                mapping(at, 1, Some((at, 1))),
                mapping(at + 1, 1, None),
                mapping(at + 10, 3, Some((at + 10, 3))),
                mapping(at + 3, 1, None),
                mapping(at + 2, 1, None),
            ] {
                queue.push(free).unwrap();
            }
            assert!(queue.push_page(Page::memory(PhysAddr(0x7000))));
            assert!(queue.push_page(Page::new(at + 20, false, None)));
            let mut covered = Vec::new();
            queue.seal(|frees| {
                covered.extend(frees.iter().map(|(range, _)| (range.first(), range.pages())));
                Token::DONE
            });
            assert_eq!(covered, [(at, 2), (at + 10, 3), (at + 2, 2), (at + 20, 1)]);
            expected.extend([at, at + 1, at + 3, at + 2]);
        }
        assert_eq!((queue.len(), queue.pages()), (21, 15));
        assert_eq!(queue.push(mapping(9, 6, Some((9, 6)))), Err(mapping(9, 6, Some((9, 6)))));
        let mut taken = Taken::NOTHING;
        queue.take(&mut taken, |_| true);
        let gives: Vec<u64> = taken.pages().iter().filter_map(|page| page.gives()).collect();
        assert_eq!(gives, expected);
        assert_eq!(taken.pages().iter().filter_map(|page| page.frame()).count(), 6);
        assert_eq!(taken.frees.iter().flatten().map(DeferredFree::pages).sum::<u64>(), 9);
        assert_eq!((queue.len(), queue.pages(), taken.more), (0, 0, false));
    }

    #[test]
    fn what_is_too_much_for_once_stays() {
        let mut queue = Queue::new(Limits::DEFAULT).unwrap();
        for n in 0..FEW as u64 + 1 {
            queue.push(mapping(1 + 4 * n, 2, None)).unwrap();
        }
        queue.seal(|_| Token::DONE);
        for left in [1, 0] {
            let mut taken = Taken::NOTHING;
            queue.take(&mut taken, |_| true);
            assert_eq!((queue.len(), taken.more), (left, left != 0));
        }
    }
}
