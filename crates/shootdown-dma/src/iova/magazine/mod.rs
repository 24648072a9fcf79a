//! Caches of ranges for each CPU, before any other allocator: most operations touch no line that another CPU writes.
//!
//! **The problem.** A tree has one lock, and every transfer of every device of a domain comes by it twice. That was
//! the meltdown of 2015: with sixteen cores 11 % of the throughput without an IOMMU.
//!
//! **The scheme** is Bonwick's. For each size class (1, 2, 4 … 1024 pages) a CPU has two *magazines* of up to 127
//! blocks. It frees into the loaded one and allocates from it; when it is full or empty, it is exchanged
//! with the previous one, and only when both are full or both are empty with the class's depot (`depot.rs`), which all CPUs
//! share. So CPUs that allocate and CPUs that free pass blocks on to each other by the hundred, and the inner allocator
//! sees what neither has.
//!
//! - **Sizes.** A request takes a block of the next power of two, aligned to it: at most twice the address space, no
//!   memory, and blocks of odd sizes do not fragment the inner allocator. (So three pages fit only where four do.) Classes go up to 4 MiB (Linux: 128 KiB,
//!   beyond which storage falls off a cliff). Magazines of the large classes hold fewer blocks, [`MOST_PAGES`] pages at
//!   most: 127 blocks of 4 MiB would be an eighth of what a 32-bit device can address.
//! - **Limits.** A block above the request's limit stays in the magazine; one below it is dug out. If there is none the inner
//!   allocator is asked, and if it has none, everything cached anywhere is given back to it and it is asked once more: a
//!   request fails only if nothing fits.
//! - **Whose magazines.** Each CPU's magazines are behind a word that is taken by one compare-and-swap and never waited
//!   for: if the CPU number is wrong (the caller has moved, or an interrupt handler came in between), the request
//!   goes to the inner allocator instead. A wrong number costs time only.
//! - **Bounds.** Two magazines for each class and CPU, and a depot that is bounded and shrinks by itself. So neither
//!   memory nor cost drifts with the number of operations.
//! - **Memory.** Magazines are allocated when a free finds no empty one; if there is no memory, the range goes to the
//!   inner allocator.
//!
//! **What is checked.** A range that is freed must begin at a multiple of its class's size. With [`Config::check`]
//! (by default in builds with debug assertions) it must not be in the magazines of this CPU and class, which finds what is freed
//! twice in a row, but not what was passed on in between: [`Checked`](super::Checked) finds everything. Ranges
//! are freed whole: of a part, the rest of its block would go with it.
//!
//! **Interrupts.** As for the [tree](super::tree): if handlers allocate or free, everybody disables interrupts.

mod depot;
mod round;

use alloc::vec::Vec;

use self::depot::{Depot, PORTION};
use self::round::{Magazine, ROUNDS};
use super::spin::Spin;
use super::{AllocError, Allocate, FreeError, SpaceError, Want};
use crate::addr::IovaRange;

/// Size classes: 2^0 to 2^10 pages.
const CLASSES: usize = 11;

/// Pages in one magazine, of the classes whose 127 blocks would be more: 16 MiB, what 127 blocks of 128 KiB are.
pub const MOST_PAGES: usize = 4096;

/// A size class: the binary logarithm of its blocks' pages.
#[derive(Clone, Copy)]
struct Class(usize);

impl Class {
    #[inline]
    fn of(pages: u64) -> Option<Self> {
        let class = (u64::BITS - pages.wrapping_sub(1).leading_zeros()) as usize;
        (class < CLASSES).then_some(Self(class))
    }

    const fn pages(self) -> u64 {
        1 << self.0
    }

    /// Blocks in a magazine.
    const fn most(self) -> usize {
        let most = MOST_PAGES >> self.0;
        if most < ROUNDS { most } else { ROUNDS }
    }
}

/// A CPU's magazines of one class.
struct Pair {
    loaded: Option<Magazine>,
    previous: Option<Magazine>,
}

impl Pair {
    const EMPTY: Self = Self { loaded: None, previous: None };

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

/// A CPU's magazines, on lines of their own.
#[repr(align(128))]
struct Cpu(Spin<[Pair; CLASSES]>);

/// How much is cached.
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
    /// Look for a range that is freed among those that this CPU holds (see the [module](self)).
    pub check: bool,
}

impl Config {
    /// For so many CPUs (at least 1): a depot of 32 magazines and two more for each CPU, so that all that CPUs hold
    /// fits once more; checks as in the debug build.
    #[must_use]
    pub const fn for_cpus(cpus: usize) -> Self {
        let cpus = if cpus == 0 { 1 } else { cpus };
        Self { cpus, depot: 32 + 2 * cpus, check: cfg!(debug_assertions) }
    }

    /// The same with another bound for depots.
    #[must_use]
    pub const fn depot(self, depot: usize) -> Self {
        Self { depot, ..self }
    }

    /// The same, with ranges that are freed looked for, or not.
    #[must_use]
    pub const fn checked(self, check: bool) -> Self {
        Self { check, ..self }
    }
}

/// Magazines before an allocator. See the [module](self).
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
    cpus: Vec<Cpu>,
    depots: Vec<Spin<Depot>>,
    check: bool,
}

/// Why a block did not find a place.
enum Full {
    /// An empty magazine is missing.
    NeedsMagazine,
    /// So that it goes to the inner allocator.
    GoesBack,
}

impl<A: Allocate> Magazines<A> {
    /// Empty magazines before `inner`.
    ///
    /// # Errors
    /// [`SpaceError::NoMemory`].
    pub fn new(inner: A, config: &Config) -> Result<Self, SpaceError> {
        let (mut cpus, mut depots) = (Vec::new(), Vec::new());
        cpus.try_reserve_exact(config.cpus.max(1)).map_err(|_| SpaceError::NoMemory)?;
        depots.try_reserve_exact(CLASSES).map_err(|_| SpaceError::NoMemory)?;
        cpus.extend(
            (0..config.cpus.max(1)).map(|_| Cpu(Spin::new([const { Pair::EMPTY }; CLASSES]))),
        );
        for _ in 0..CLASSES {
            let depot = Depot::new(config.depot).ok_or(SpaceError::NoMemory)?;
            depots.push(Spin::new(depot));
        }
        Ok(Self { inner, cpus, depots, check: config.check })
    }

    /// The allocator behind.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    /// Gives everything that is cached back to the inner allocator, for all CPUs.
    pub fn flush(&self) {
        for cpu in 0..self.cpus.len() {
            self.empty(cpu);
        }
        for class in (0..CLASSES).map(Class) {
            while let Some(mut magazine) = self.depots[class.0].with(Depot::lend) {
                let all = self.give_back(0, class, &mut magazine, usize::MAX);
                self.depots[class.0].with(|depot| depot.back(magazine));
                if !all {
                    break;
                }
            }
        }
    }

    /// Pages in magazines and depots.
    pub fn cached_pages(&self) -> u64 {
        let mut pages = 0;
        for class in (0..CLASSES).map(Class) {
            let in_cpus = |c: &Cpu| c.0.with(|pairs| pairs[class.0].rounds().count());
            let blocks = self.cpus.iter().map(in_cpus).sum::<usize>()
                + self.depots[class.0].with(|depot| depot.blocks());
            pages += class.pages() * blocks as u64;
        }
        pages
    }

    #[inline]
    fn cpu(&self, cpu: usize) -> &Spin<[Pair; CLASSES]> {
        // The number is nearly always one of ours: a division would cost more than all the rest.
        match self.cpus.get(cpu) {
            Some(cpu) => &cpu.0,
            None => &self.cpus[cpu % self.cpus.len()].0,
        }
    }

    /// Returns up to `most` blocks of a magazine to the inner allocator. Are all of those gone?
    fn give_back(&self, cpu: usize, class: Class, from: &mut Magazine, most: usize) -> bool {
        for _ in 0..most {
            let Some(block) = from.pop(u64::MAX) else { return true };
            let Some(range) = IovaRange::new(block, class.pages()) else { continue };
            if self.inner.free(cpu, range).is_err() {
                // No memory: another time.
                from.push(block, ROUNDS);
                return false;
            }
        }
        true
    }

    /// Returns a CPU's blocks to the inner allocator. The magazines stay.
    fn empty(&self, cpu: usize) {
        // Others don't wait for the lock, so that it may be held while the inner allocator is called.
        self.cpu(cpu).with(|pairs| {
            for (class, pair) in (0..CLASSES).map(Class).zip(pairs) {
                for magazine in [&mut pair.loaded, &mut pair.previous].into_iter().flatten() {
                    self.give_back(cpu, class, magazine, usize::MAX);
                }
            }
        });
    }

    /// What a visitor does for the depot, when it holds no lock.
    fn tidy(&self, cpu: usize, class: Class, surplus: Option<Magazine>) {
        if let Some(mut magazine) = surplus {
            self.give_back(cpu, class, &mut magazine, PORTION);
            self.depots[class.0].with(|depot| depot.back(magazine));
        }
    }

    /// A block from the CPU's magazines or the depot.
    #[inline]
    fn cached(&self, cpu: usize, class: Class, highest: u64) -> Option<u64> {
        let (block, surplus) = self.cpu(cpu).attempt(|pairs| {
            let pair = &mut pairs[class.0];
            match pair.pop(highest) {
                None if pair.is_empty() => self.refill(pair, class, highest),
                block => (block, None),
            }
        })?;
        if surplus.is_some() {
            self.tidy(cpu, class, surplus);
        }
        block
    }

    /// From the depot; and perhaps a magazine that it has too much.
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

    /// What the caches don't have: from the inner allocator; and if it has none, after everything cached has gone back.
    #[cold]
    fn uncached(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        match self.inner.alloc(cpu, want) {
            Err(AllocError::Exhausted) if !without!(MagazinesNotFlushed) => {
                self.flush();
                self.inner.alloc(cpu, want)
            }
            outcome => outcome,
        }
    }

    /// Puts a block into the CPU's magazines, perhaps by taking a full one to the depot.
    #[inline]
    fn cache(&self, cpu: usize, class: Class, block: u64) -> Result<bool, FreeError> {
        let mut fresh = None;
        loop {
            let outcome = self.cpu(cpu).attempt(|pairs| {
                let pair = &mut pairs[class.0];
                if self.check && !without!(DoubleFreeUnseen) && pair.rounds().any(|b| *b == block) {
                    return Err(FreeError::NotAllocated);
                }
                if pair.push(block, class.most()) {
                    return Ok(Ok(None));
                }
                Ok(self.exchange(pair, class, block, &mut fresh))
            });
            match outcome {
                Some(Ok(Ok(None))) => return Ok(true),
                Some(Ok(Ok(surplus))) => {
                    self.tidy(cpu, class, surplus);
                    return Ok(true);
                }
                Some(Ok(Err(Full::NeedsMagazine))) => match Magazine::new() {
                    Some(magazine) => fresh = Some(magazine),
                    None => return Ok(false),
                },
                None | Some(Ok(Err(Full::GoesBack))) => return Ok(false),
                Some(Err(error)) => return Err(error),
            }
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
            if without!(MagazinePushesTwice) {
                pair.push(block, class.most());
            }
            Ok(depot.lend_surplus())
        })
    }
}

// SAFETY: blocks come from the inner allocator, which hands each out once; a block is either with a caller, or in one place of
// one magazine, which is moved under the lock of the CPU or the depot it belongs to. What is handed out is the beginning of a block
// of at least as many pages, aligned to its size, so that alignment up to that size and every boundary that has room for the
// pages are kept; the limit is looked at when it is popped.
unsafe impl<A: Allocate> Allocate for Magazines<A> {
    #[inline]
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        want.check()?;
        let Some(class) = Class::of(want.pages) else { return self.uncached(cpu, want) };
        if want.align <= class.pages() {
            let block = want
                .limit
                .checked_sub(want.pages - 1)
                .and_then(|highest| self.cached(cpu, class, highest));
            if let Some(range) = block.and_then(|block| IovaRange::new(block, want.pages)) {
                return Ok(range);
            }
        }
        // Blocks are of the class's size wherever they come from: they will be freed into its magazines.
        let align = want.align.max(class.pages());
        let block = self.uncached(cpu, &Want { pages: class.pages(), align, ..*want })?;
        IovaRange::new(block.first(), want.pages).ok_or(AllocError::Invalid)
    }

    #[inline]
    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        let Some(class) = Class::of(range.pages()) else { return self.inner.free(cpu, range) };
        if range.first() & (class.pages() - 1) != 0 {
            return Err(FreeError::NotAllocated);
        }
        if self.cache(cpu, class, range.first())? {
            return Ok(());
        }
        match IovaRange::new(range.first(), class.pages()) {
            Some(block) => self.inner.free(cpu, block),
            None => Err(FreeError::NotAllocated),
        }
    }

    fn drain(&self, cpu: usize) {
        self.empty(cpu);
        // Their memory is freed when the lock is not held.
        let magazines = self.cpu(cpu).with(|pairs| {
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
        f.debug_struct("Magazines").field("cpus", &self.cpus.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
