//! Caches of ranges for each CPU, in front of any other allocator: most operations access no line
//! that another CPU writes.
//!
//! **The problem.** A tree has one lock, and every transfer of every device of a domain takes it
//! twice. In 2015, with sixteen cores, that left 11 % of the throughput without an IOMMU.
//!
//! **The scheme** is Bonwick's. For each size class (1, 2, 4 … 1024 pages) a CPU has two
//! *magazines* of up to 127 blocks. It frees into the loaded one and allocates from it. When that
//! is full or empty, the CPU exchanges it with the previous one, and only when both are full or
//! both are empty with the class's depot (`depot.rs`), which all CPUs share. So CPUs that allocate
//! and CPUs that free exchange blocks by the hundred, and only what neither side can use goes to
//! the inner allocator.
//!
//! - **Sizes.** A request takes a block of the next power of two, aligned to it. That costs at most
//!   twice the address space and no memory, and blocks of odd sizes do not fragment the inner
//!   allocator. (So three pages fit only where four do.) Classes go up to 4 MiB (Linux: 128 KiB,
//!   beyond which storage becomes much slower). Magazines of the large classes hold fewer blocks,
//!   [`MOST_PAGES`] pages at most: 127 blocks of 4 MiB would be an eighth of what a 32-bit device
//!   can address.
//! - **Limits.** A block above the request's limit stays in the magazine; a lower one is taken from
//!   below it. If there is none, the request goes to the inner allocator. If that has none,
//!   everything that is cached is given back to it, and the request is repeated. So a request fails
//!   only if nothing fits, apart from blocks that other CPUs hold at that moment (a
//!   [batch](Magazines::batch), a cell that is taken for long).
//! - **Exclusion.** Each CPU's magazines are in a [cell](crate::local). A request enters it by one
//!   compare-and-swap and never waits for it: if the CPU number is wrong (the caller has moved, or
//!   an interrupt handler came in between), the request goes to the inner allocator instead. A
//!   wrong number costs time only. A host that is [`Pinned`] guarantees right numbers, and needs no
//!   compare-and-swap.
//! - **Batches.** The compare-and-swap is most of the cost of an operation. [`Magazines::batch`]
//!   lends a CPU's magazines for several operations at the cost of one.
//! - **Bounds.** There are two magazines for each class and CPU, and a depot that is bounded and
//!   shrinks by itself. So neither memory nor cost grows with the number of operations.
//! - **Filling.** If no magazine has a block, several are requested at a time
//!   ([`Allocate::alloc_run`]): CPUs that begin together would otherwise queue for the tree's lock,
//!   once for every address until enough have been freed.
//! - **Memory.** Magazines are allocated when an operation finds no empty one; if there is no
//!   memory, the range comes from the inner allocator, or goes there.
//!
//! **What is checked.** A range that is freed must begin at a multiple of its class's size. With
//! [`Config::check`] (by default in builds with debug assertions) it must not be in the magazines
//! of this CPU and class. That finds a range that is freed twice in a row, but not one that went to
//! the depot in between; [`Checked`](super::Checked) finds all of them. Ranges are freed whole:
//! with a part of a range, the rest of its block would be freed too.
//!
//! **Interrupts.** As for the [tree](super::tree): if handlers allocate or free, all callers
//! disable interrupts.

mod batch;
mod class;
mod depot;
mod inner;
mod round;

pub use self::batch::Batch;
pub use self::class::MOST_PAGES;
use self::class::{CLASSES, Class, first_of};
use self::depot::Depot;
use self::round::Magazine;
use super::spin::Spin;
use super::{AllocError, Allocate, FreeError, SpaceError, Want};
use crate::addr::IovaRange;
use crate::fixed::{Fixed, NoMemory};
use crate::local::Local;
use crate::pinned::{NOBODY, Pinned};

/// Turns that a flush waits for a CPU that uses its magazines. An operation takes tens of them.
const PATIENCE: usize = if cfg!(loom) { 1 } else { 1 << 12 };

/// A CPU's magazines of one class.
struct Pair {
    loaded: Option<Magazine>,
    previous: Option<Magazine>,
}

impl Pair {
    const EMPTY: Self = Self { loaded: None, previous: None };

    /// Takes a block from the top of the loaded magazine.
    #[inline]
    fn top(&mut self, highest: u64) -> Option<u64> {
        self.loaded.as_mut()?.top(highest)
    }

    /// Puts a block on top of the loaded magazine, if there is room.
    #[inline]
    fn put(&mut self, block: u64, most: usize) -> bool {
        self.loaded.as_mut().is_some_and(|m| m.push(block, most))
    }

    #[inline]
    fn pop(&mut self, highest: u64) -> Option<u64> {
        if let Some(block) = self.loaded.as_mut().and_then(|m| m.pop(highest)) {
            return Some(block);
        }
        let block = self.previous.as_mut()?.pop(highest)?;
        if self.loaded.as_ref().is_none_or(Magazine::is_empty) {
            core::mem::swap(&mut self.loaded, &mut self.previous);
        }
        Some(block)
    }

    #[inline]
    fn push(&mut self, block: u64, most: usize) -> bool {
        if self.loaded.as_mut().is_some_and(|m| m.push(block, most)) {
            return true;
        }
        let pushed = self.previous.as_mut().is_some_and(|m| m.push(block, most));
        if pushed {
            core::mem::swap(&mut self.loaded, &mut self.previous);
        }
        pushed
    }

    fn is_empty(&self) -> bool {
        self.rounds().next().is_none()
    }

    fn rounds(&self) -> impl Iterator<Item = &u64> {
        [&self.loaded, &self.previous].into_iter().flatten().flat_map(|m| m.rounds())
    }
}

/// A CPU's magazines.
type Pairs = [Pair; CLASSES];

/// The size of the caches.
///
/// ```
/// use shootdown_dma::iova::magazine::Config;
/// let config = Config::for_cpus(8).depot(16);
/// assert_eq!(config.depot, 16);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// CPUs, numbered from 0 on. Higher numbers share with lower ones.
    pub cpus: usize,
    /// Magazines in each class's depot, at most.
    pub depot: usize,
    /// Whether a freed range is searched among those that this CPU holds (see the [module](self)).
    pub check: bool,
    /// What the host guarantees about the CPU numbers of callers.
    pub pinned: Option<Pinned>,
}

impl Config {
    /// The default for this many CPUs (at least 1): a depot of 32 magazines and two more for each
    /// CPU, so that all that CPUs hold fits once more; checks as in the debug build.
    #[must_use]
    pub const fn for_cpus(cpus: usize) -> Self {
        let cpus = if cpus == 0 { 1 } else { cpus };
        Self { cpus, depot: 32 + 2 * cpus, check: cfg!(debug_assertions), pinned: None }
    }

    /// The same with another bound for depots.
    #[must_use]
    pub const fn depot(self, depot: usize) -> Self {
        Self { depot, ..self }
    }

    /// The same, with the search for freed ranges on or off.
    #[must_use]
    pub const fn checked(self, check: bool) -> Self {
        Self { check, ..self }
    }

    /// The same for a host that guarantees that CPUs are alone with their numbers: then a wrong
    /// number breaks safety, not only speed.
    #[must_use]
    pub const fn pinned(self, pinned: Pinned) -> Self {
        Self { pinned: Some(pinned), ..self }
    }
}

/// Magazines in front of an allocator; see the [module](self).
///
/// ```
/// use shootdown_dma::iova::magazine::{Config, Magazines};
/// use shootdown_dma::iova::{Allocate, Space, Tree, Want};
///
/// let tree = Tree::new(&Space::below(1 << 36))?;
/// let magazines = Magazines::new(tree, &Config::for_cpus(4))?;
/// let (cpu, want) = (2, Want::pages(3).expect("not zero"));
/// let buffer = magazines.alloc(cpu, &want)?;
/// magazines.free(cpu, buffer)?;
/// assert_eq!(magazines.alloc(cpu, &want)?, buffer); // from the magazine
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Magazines<A> {
    inner: A,
    cpus: Local<Pairs>,
    depots: Fixed<Spin<Depot>>,
    check: bool,
}

/// Why a block has no place in the magazines.
enum Full {
    /// There is no empty magazine.
    NeedsMagazine,
    /// There is no room: the block goes to the inner allocator.
    GoesBack,
}

impl<A: Allocate> Magazines<A> {
    /// Makes empty magazines in front of `inner`.
    ///
    /// # Errors
    /// [`SpaceError::NoMemory`].
    pub fn new(inner: A, config: &Config) -> Result<Self, SpaceError> {
        let cpus = Local::new(config.cpus, |_| [const { Pair::EMPTY }; CLASSES])
            .map_err(|_| SpaceError::NoMemory)?
            .pinned(config.pinned, config.cpus);
        let depot = |_| Depot::new(config.depot).map(Spin::new).ok_or(NoMemory);
        let depots = Fixed::try_new(CLASSES, depot).map_err(|NoMemory| SpaceError::NoMemory)?;
        Ok(Self { inner, cpus, depots, check: config.check })
    }

    /// The allocator behind the magazines.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Pages in magazines and depots. The magazines of a CPU that uses them for long are left out.
    pub fn cached_pages(&self) -> u64 {
        let mut pages = 0;
        for cpu in 0..self.cpus.cpus() {
            self.cpus.enter_within(cpu, PATIENCE, |pairs| {
                for (class, pair) in (0..CLASSES).map(Class).zip(pairs) {
                    pages += class.pages() * pair.rounds().count() as u64;
                }
            });
        }
        for class in (0..CLASSES).map(Class) {
            let blocks = self.depots[class.0].with(|depot| depot.blocks());
            pages += class.pages() * blocks as u64;
        }
        pages
    }

    /// Takes a block from the CPU's magazines or the depot.
    #[inline]
    fn cached(&self, cpu: usize, class: Class, highest: u64) -> Option<u64> {
        let block = self.cpus.enter_own(cpu, |pairs| pairs[class.0].top(highest));
        block.flatten().or_else(|| self.cached_anywhere(cpu, class, highest))
    }

    /// The same, where it is not on top of the loaded one.
    #[inline(never)]
    fn cached_anywhere(&self, cpu: usize, class: Class, highest: u64) -> Option<u64> {
        let (block, surplus) = self.cpus.enter_own(cpu, |pairs| self.get(pairs, class, highest))?;
        if surplus.is_some() {
            self.tidy(cpu, class, surplus);
        }
        block
    }

    #[inline]
    fn get(
        &self,
        pairs: &mut Pairs,
        class: Class,
        highest: u64,
    ) -> (Option<u64>, Option<Magazine>) {
        let pair = &mut pairs[class.0];
        match pair.pop(highest) {
            None if pair.is_empty() => self.refill(pair, class, highest),
            block => (block, None),
        }
    }

    /// Takes a block from the depot, and perhaps a surplus magazine of the depot.
    #[cold]
    fn refill(
        &self,
        pair: &mut Pair,
        class: Class,
        highest: u64,
    ) -> (Option<u64>, Option<Magazine>) {
        let surplus = self.depots[class.0].with(|depot| {
            depot.supply(&mut pair.loaded);
            depot.lend_surplus()
        });
        (pair.pop(highest), surplus)
    }

    /// Puts a block into the CPU's magazines; a full magazine may go to the depot.
    #[inline]
    fn cache(&self, cpu: usize, class: Class, block: u64) -> Result<bool, FreeError> {
        let push = |pairs: &mut Pairs| pairs[class.0].put(block, class.most());
        if !self.check && self.cpus.enter_own(cpu, push) == Some(true) {
            return Ok(true);
        }
        self.cache_anywhere(cpu, class, block)
    }

    /// The same, where the loaded magazine has no room, or is searched first.
    #[inline(never)]
    fn cache_anywhere(&self, cpu: usize, class: Class, block: u64) -> Result<bool, FreeError> {
        let mut fresh = None;
        loop {
            let outcome =
                self.cpus.enter_own(cpu, |pairs| self.put(pairs, class, block, &mut fresh));
            let Some(outcome) = outcome else { return Ok(false) };
            if let Some(cached) = self.settle(cpu, class, outcome?, &mut fresh) {
                return Ok(cached);
            }
        }
    }

    #[inline]
    fn put(
        &self,
        pairs: &mut Pairs,
        class: Class,
        block: u64,
        fresh: &mut Option<Magazine>,
    ) -> Result<Result<Option<Magazine>, Full>, FreeError> {
        let pair = &mut pairs[class.0];
        if self.check && pair.rounds().any(|b| *b == block) {
            return Err(FreeError::NotAllocated);
        }
        if pair.push(block, class.most()) {
            return Ok(Ok(None));
        }
        Ok(self.exchange(pair, class, block, fresh))
    }

    /// Whether the block was cached. `None`: try again, with an empty magazine.
    #[inline]
    fn settle(
        &self,
        cpu: usize,
        class: Class,
        outcome: Result<Option<Magazine>, Full>,
        fresh: &mut Option<Magazine>,
    ) -> Option<bool> {
        match outcome {
            Ok(None) => Some(true),
            Ok(surplus) => {
                self.tidy(cpu, class, surplus);
                Some(true)
            }
            Err(Full::GoesBack) => Some(false),
            Err(Full::NeedsMagazine) => match Magazine::new() {
                Some(magazine) => {
                    *fresh = Some(magazine);
                    None
                }
                None => Some(false),
            },
        }
    }

    /// Makes room with an empty magazine, from the depot or `fresh`, and pushes.
    #[cold]
    fn exchange(
        &self,
        pair: &mut Pair,
        class: Class,
        block: u64,
        fresh: &mut Option<Magazine>,
    ) -> Result<Option<Magazine>, Full> {
        self.depots[class.0].with(|depot| {
            let full = pair.previous.is_some();
            if full && !depot.has_room() {
                return Err(Full::GoesBack);
            }
            let empty = fresh.take().or_else(|| depot.empty()).ok_or(Full::NeedsMagazine)?;
            if let Some(full) = pair.previous.take() {
                depot.stock(full);
            }
            pair.previous = pair.loaded.replace(empty);
            pair.push(block, class.most());
            Ok(depot.lend_surplus())
        })
    }
}

// SAFETY: blocks come from the inner allocator, which hands each out once; a block is either with a
// caller, or in one place of one magazine, which is moved under the lock of the CPU or the depot it
// belongs to. What is handed out is the beginning of a block of at least as many pages, aligned to
// its size, so alignment up to that size and every boundary that has room for the pages are kept;
// the limit is checked when the block is popped.
unsafe impl<A: Allocate> Allocate for Magazines<A> {
    #[inline]
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        want.check()?;
        let Some(class) = Class::of(want.pages) else { return self.uncached(cpu, want) };
        match class.request(want, |highest| self.cached(cpu, class, highest)) {
            Ok(range) => Ok(range),
            Err(block) => first_of(self.supplied(cpu, class, &block)?, want.pages),
        }
    }

    #[inline]
    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        let Some(class) = Class::of(range.pages()) else { return self.inner.free(cpu, range) };
        let block = class.block(range)?;
        if self.cache(cpu, class, range.first())? { Ok(()) } else { self.inner.free(cpu, block) }
    }

    /// Takes one exclusion for all ranges that have room in the CPU's magazines.
    #[inline]
    fn free_all(
        &self,
        cpu: usize,
        ranges: impl Iterator<Item = IovaRange>,
        mut refused: impl FnMut(IovaRange, FreeError),
    ) {
        let mut ranges = ranges.peekable();
        while ranges.peek().is_some() {
            // Up to the first range that needs more than a push.
            let rest = self.cpus.enter_own(cpu, |pairs| {
                ranges.find(|range| match Class::of(range.pages()) {
                    Some(class) if range.first() & (class.pages() - 1) == 0 && !self.check => {
                        !pairs[class.0].push(range.first(), class.most())
                    }
                    _ => true,
                })
            });
            if let Some(range) = rest.unwrap_or_else(|| ranges.next()) {
                if let Err(why) = self.free(cpu, range) {
                    refused(range, why);
                }
            }
        }
    }

    fn drain(&self, cpu: usize) {
        self.empty(cpu, NOBODY);
        // Their memory is freed when the lock is not held.
        let magazines = self.cpus.enter(cpu, |pairs| {
            pairs.each_mut().map(|pair| {
                let take = |m: &mut Option<Magazine>| m.take_if(|m| m.is_empty());
                [take(&mut pair.loaded), take(&mut pair.previous)]
            })
        });
        drop(magazines);
        self.inner.drain(cpu);
    }
}

impl<A> core::fmt::Debug for Magazines<A> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Magazines").field("cpus", &self.cpus.cpus()).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
