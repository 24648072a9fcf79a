//! I/O page tables: what the hardware finds.
//!
//! # The problem
//! Many CPUs map and unmap in one tree at once, millions of times a second, and a device walks it
//! all the time. A lock would be the most contended line of the machine. And tables that have
//! become empty must be freed, or address spaces that are used page by page grow without bound.
//!
//! # The protocol
//! **Ranges are owned.** A caller that maps or unmaps a range has it from an allocator: no other
//! caller maps or unmaps in it meanwhile. So leaf entries belong to the owner alone
//! ([`Walker::map`], [`Walker::unmap`]; a mapping is unmapped as a whole or not at all, `unit`),
//! and only tables are shared. Pages that several users map at one address (identity) are counted
//! instead, in the entry and, where that is too small, beside it ([`Walker::acquire`],
//! [`Walker::release`]; `identity`, `spill`).
//!
//! **Tables are put** where there are none by compare-and-swap. A CPU whose compare-and-swap fails
//! frees its own table and uses the other CPU's.
//!
//! **Tables are taken out** in four steps (`reclaim`), off the path of mapping:
//! 1. The entry above an empty table is marked: *retiring*.
//! 2. Every entry of the table becomes a tombstone, one compare-and-swap each. An entry that is not
//!    empty ends the retirement, and the tombstones are removed again.
//! 3. The marked entry becomes *detached*: not present for the hardware, and it still names the
//!    table.
//! 4. When the invalidation (of table entries too) is complete, *detached* becomes empty, and the
//!    page is freed as soon as no walker of ours can be in it (`epoch_slot`).
//!
//! No CPU waits for any of these steps, even if the CPU that does them is interrupted for long. A
//! CPU that finds a tombstone and wants to map there walks again from the root, and clears the mark
//! of step
//! 1. Then step 3 fails, and the tombstone, which carries the number of this retirement, counts as
//!    empty from then on.
//!
//! Between 3 and 4 walk caches may still lead to the old table. If a new table were put in its
//! place, a device could be led to the old one, and fault on a page that is mapped. So a CPU that
//! maps there puts the *same* table back, and step 4 finds nothing to free. It does not wait for an
//! invalidation either.
//!
//! **Plain stores.** The first entry that a range gets in a table is put there by compare-and-swap.
//! The entry was empty, so the table was in the tree, and no retirement can succeed from now on.
//! The other entries are then stored plainly, even over tombstones: the CPU that put the tombstones
//! there will find a live entry, and removes only entries that are still its tombstones.
//!
//! **Chunks.** A table is as large as a page of the format, and is accessed 4 KiB at a time: a
//! *chunk*. Where the granule is 4 KiB the two are the same. Tables of 16 and 64 KiB, and roots
//! that are concatenated from several, have more; a range goes on in the next chunk as it does in
//! the next table, and a table is taken out with all of its chunks.
//!
//! # Invariants
//! - **I1** An entry that is present is in a table that can be reached from the root.
//! - **I2** A table that is out of the tree, or detached, has tombstones only.
//! - **I3** A table is freed after its invalidation, and after the last walker of ours has left it.
//! - **I4** While an invalidation of a detached table is deferred its page is not freed, nor
//!   detached again.
//! - **I5** A call that fails has changed nothing that is mapped, and its error says what a device
//!   may have used meanwhile.
//! - **I6** A hardware walker that does not read the CPU's caches finds what was mapped when `map`
//!   returns, and never reaches a table before its entries.
//!
//! # Orderings
//! Every decision is a compare-and-swap on one word. Releases and acquires carry the contents of
//! tables along with their links; the two-sided ones are in `epoch_slot`.

mod detached;
mod epoch_slot;
mod error;
pub(crate) mod format;
mod free;
mod identity;
pub mod memory;
mod range;
mod reclaim;
mod spill;
mod unit;
mod walk;

pub use detached::{Detached, Detachments};
pub use error::{MapError, MapErrorKind, UnmapError};
pub use format::{AmdV1, ArmStage1, ArmStage2, Decoded, Format, VtdSecondLevel};
pub use identity::{Acquired, Released};
pub use memory::TableMemory;
pub use range::Unmapped;
pub use unit::Part;
pub use walk::{Translation, Walker};

use core::fmt;
use core::slice;

use crate::addr::{IovaRange, PhysAddr};
use crate::fixed::{Fixed, NoMemory};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use epoch_slot::EpochSlot;
use free::Reclaim;
use memory::{CHUNK, INDEX_BITS, Table};

/// Pages that an entry at `level` covers.
#[inline]
const fn span<F: Format>(level: u32) -> u64 {
    1 << (F::INDEX * level)
}

/// The index of `page`'s entry in its chunk of a table at `level`.
#[inline]
const fn index<F: Format>(page: u64, level: u32) -> usize {
    (page >> (F::INDEX * level)) as usize & (memory::ENTRIES - 1)
}

/// Bits of a page number that are the same for all pages that a chunk of a table at `level` covers.
#[inline]
const fn chunk_bits<F: Format>(level: u32) -> u32 {
    F::INDEX * level + INDEX_BITS
}

/// Chunks of a table.
const fn chunks<F: Format>() -> usize {
    1 << (F::INDEX - INDEX_BITS)
}

/// The chunk of a table that has its `n`-th entry.
#[inline]
const fn chunk(table: PhysAddr, n: usize) -> PhysAddr {
    PhysAddr(table.0 + ((n >> INDEX_BITS) as u64 * CHUNK))
}

/// Stores an entry that belongs to the caller.
///
/// The model checker orders a plain store and concurrent read-modify-writes only in part: it lets
/// one of these read past the store, as no hardware does (a read-modify-write directly follows the
/// store that it has read, in the order of all stores to the word). Under the checker it is a swap,
/// which is no stronger otherwise.
#[inline]
fn put(slot: &AtomicU64, entry: u64) {
    // ORDERING: Release, with the Acquire of a walk that reads the entry and goes on from there.
    // Without it the walk may find an older content of the table below.
    #[cfg(not(loom))]
    slot.store(entry, Ordering::Release);
    #[cfg(loom)]
    slot.swap(entry, Ordering::Release);
}

/// An I/O page table: the memory that one domain's devices reach.
///
/// ```
/// # use shootdown_dma::table::{memory::Table, TableMemory};
/// # struct Pages;
/// # unsafe impl TableMemory for Pages {
/// #     fn allocate(&self) -> Option<PhysAddr> {
/// #         let layout = std::alloc::Layout::from_size_align(4096, 4096).ok()?;
/// #         let page = unsafe { std::alloc::alloc_zeroed(layout) };
/// #         (!page.is_null()).then_some(PhysAddr(page as u64))
/// #     }
/// #     unsafe fn free(&self, page: PhysAddr) {
/// #         let layout = std::alloc::Layout::from_size_align(4096, 4096).unwrap();
/// #         unsafe { std::alloc::dealloc(page.0 as *mut u8, layout) }
/// #     }
/// #     unsafe fn table(&self, page: PhysAddr) -> &Table { unsafe { &*(page.0 as *const Table) } }
/// # }
/// use shootdown_dma::table::{Detachments, IoPageTable, VtdSecondLevel};
/// use shootdown_dma::{IovaRange, PhysAddr, Rights};
///
/// let format = VtdSecondLevel::new(4, true, false).expect("four levels");
/// let table = IoPageTable::new(format, Pages, 8)?; // for 8 CPUs
/// let mut walker = table.walker(0).expect("nobody else walks");
///
/// let range = IovaRange::new(0x1000, 3).expect("three pages");
/// walker.map(range, PhysAddr(0x8000_0000), Rights::Read)?;
/// assert_eq!(walker.translate(0x1002).map(|t| t.phys), Some(PhysAddr(0x8000_2000)));
///
/// let mut detached = Detachments::new();
/// let unmapped = walker.unmap(range, &mut detached)?;
/// // Now tell the IOMMU, and wait for it before the range or the memory is anyone else's.
/// assert!(unmapped.leaf_only && detached.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping it leaks its pages, since devices may walk them: see [`free`](Self::free).
pub struct IoPageTable<F: Format, M: TableMemory> {
    format: F,
    memory: M,
    root: PhysAddr,
    /// The slots of `walker`.
    epoch_slots: Fixed<EpochSlot>,
    /// The slots of `walker_at`.
    kept: Fixed<EpochSlot>,
    reclaim: Reclaim,
    pages: AtomicUsize,
    /// The most pages that it may have.
    most: usize,
}

impl<F: Format, M: TableMemory> IoPageTable<F, M> {
    /// Makes an empty table, for `cpus` CPUs (at least one) that walk it at once.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(format: F, memory: M, cpus: usize) -> Result<Self, NoMemory> {
        let epoch_slots = Fixed::new(cpus.max(1), |_| EpochSlot::new())?;
        let kept = Fixed::new(cpus.max(1), |_| EpochSlot::new())?;
        let count = chunks::<F>() * format.root_tables() as usize;
        let root = memory.allocate_many(count).ok_or(NoMemory)?;
        let (reclaim, pages) = (Reclaim::new(), AtomicUsize::new(count));
        let most = usize::MAX;
        let all = Self { format, memory, root, epoch_slots, kept, reclaim, pages, most };
        if !all.memory.is_coherent() {
            // SAFETY: just allocated.
            unsafe { all.chunks_of(root, count) }.for_each(|chunk| all.memory.write_back(chunk));
        }
        Ok(all)
    }

    /// The same, with at most this many [`pages`](Self::pages): a call that needs more fails as
    /// without memory.
    #[must_use]
    pub fn at_most(self, pages: usize) -> Self {
        Self { most: pages, ..self }
    }

    /// Whether the bound leaves no room for another table.
    pub fn is_full(&self) -> bool {
        self.most - self.pages().min(self.most) < chunks::<F>()
    }

    /// The format.
    pub fn format(&self) -> &F {
        &self.format
    }

    /// The source of its pages.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The root, for the device's entry in the IOMMU. Its address never changes.
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// Whether one entry at this level may map this many pages.
    #[inline]
    pub fn has_leaves_of(&self, pages: u64, level: u32) -> bool {
        level < self.format.levels() && self.format.may_be_leaf(level) && span::<F>(level) == pages
    }

    /// The last page that the table resolves.
    #[inline]
    pub fn last_page(&self) -> u64 {
        (1 << self.format.page_bits()) - 1
    }

    /// Pages of 4 KiB that are in use: the root, those in the tree, those that wait to be freed,
    /// and side tables.
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// A walker at a free epoch slot of the table; `None` if all are taken. `cpu` is a hint (any
    /// number works): the slot that the CPU had last still remembers its tables.
    #[inline]
    pub fn walker(&self, cpu: usize) -> Option<Walker<'_, F, M>> {
        let epoch_slots = self.epoch_slots.len();
        let first = if cpu < epoch_slots { cpu } else { cpu % epoch_slots };
        if self.epoch_slots[first].take() {
            // SAFETY: just taken.
            return Some(unsafe { Walker::sit(self, &self.epoch_slots[first], true) });
        }
        let others = (first + 1..epoch_slots).chain(0..first);
        let epoch_slot =
            others.map(|n| &self.epoch_slots[n]).find(|epoch_slot| epoch_slot.take())?;
        // SAFETY: just taken.
        Some(unsafe { Walker::sit(self, epoch_slot, true) })
    }

    /// A walker at the epoch slot of this number, which the caller uses on one CPU at a time; that
    /// saves an atomic swap. There are as many as CPUs, beside those of [`walker`](Self::walker);
    /// `None` if there is none of this number.
    ///
    /// # Safety
    /// While the walker lives no other one of the same number exists.
    #[inline]
    pub unsafe fn walker_at(&self, number: usize) -> Option<Walker<'_, F, M>> {
        // SAFETY: as the caller promises.
        self.kept.get(number).map(|epoch_slot| unsafe { Walker::sit(self, epoch_slot, false) })
    }

    /// All epoch slots.
    fn all_epoch_slots(&self) -> impl Iterator<Item = &EpochSlot> {
        self.epoch_slots.iter().chain(self.kept.iter())
    }

    /// Frees all its pages.
    ///
    /// # Safety
    /// No IOMMU can reach the table: no device's entry names it, and the invalidation of those that
    /// did is complete, with all that was mapped.
    pub unsafe fn free(self) {
        self.reclaim.for_each_dead(&self.memory, |page| {
            // SAFETY: it is out of the tree, and no borrow of the table exists any more.
            unsafe { self.free_with_sides(page, chunks::<F>()) };
        });
        self.free_below(self.root, self.format.levels() - 1);
    }

    fn free_below(&self, phys: PhysAddr, level: u32) {
        let count = self.chunks_at(level);
        if level > 0 {
            // SAFETY: it is in the tree, and freed below.
            for slot in unsafe { self.chunks_of(phys, count) }.flatten() {
                match self.format.decode(slot.load(Ordering::Acquire), level) {
                    Decoded::Table(below) | Decoded::Detached(below) => {
                        self.free_below(below, level - 1);
                    }
                    _ => {}
                }
            }
        }
        // SAFETY: `free` owns the tree; each page is linked in one place.
        unsafe { self.free_with_sides(phys, count) };
    }

    /// Calls `f` with the first page of every leaf, and how many pages it maps. No other call maps
    /// or unmaps meanwhile.
    pub(crate) fn for_each_leaf(&self, f: &mut impl FnMut(u64, u64)) {
        self.leaves_below(self.root, self.format.levels() - 1, 0, f);
    }

    fn leaves_below(&self, table: PhysAddr, level: u32, first: u64, f: &mut impl FnMut(u64, u64)) {
        let pages = span::<F>(level);
        // SAFETY: it is in the tree, and no call takes it out.
        let slots = unsafe { self.chunks_of(table, self.chunks_at(level)) }.flatten();
        for (n, slot) in (0..).zip(slots) {
            let page = first + n * pages;
            // ORDERING: Acquire, with the Release of the CPU that linked the table.
            match self.format.decode(slot.load(Ordering::Acquire), level) {
                Decoded::Table(below) => self.leaves_below(below, level - 1, page, f),
                Decoded::Leaf(..) => f(page, pages),
                _ => {}
            }
        }
    }

    /// Whether the range is within what the table resolves.
    #[inline]
    fn resolves(&self, range: IovaRange) -> bool {
        range.last() <= self.last_page()
    }

    /// A page for a table, empty for the hardware too.
    fn new_table(&self) -> Option<PhysAddr> {
        let count = chunks::<F>();
        if !self.count_pages(count) {
            return None;
        }
        let Some(phys) = self.memory.allocate_many(count) else {
            self.uncount_pages(count);
            return None;
        };
        if !self.memory.is_coherent() {
            // SAFETY: just allocated.
            unsafe { self.chunks_of(phys, chunks::<F>()) }
                .for_each(|chunk| self.memory.write_back(chunk));
        }
        Some(phys)
    }

    /// # Safety
    /// As [`TableMemory::free`].
    unsafe fn free_table(&self, phys: PhysAddr) {
        self.uncount_pages(chunks::<F>());
        // SAFETY: as promised.
        unsafe { self.free_with_sides(phys, chunks::<F>()) };
    }

    /// Counts this many pages more, if the bound allows it.
    fn count_pages(&self, chunks: usize) -> bool {
        let before = self.pages.fetch_add(chunks, Ordering::Relaxed);
        let may = before.saturating_add(chunks) <= self.most;
        if !may {
            self.uncount_pages(chunks);
        }
        may
    }

    fn uncount_pages(&self, chunks: usize) {
        self.pages.fetch_sub(chunks, Ordering::Relaxed);
    }

    /// The number of chunks of a table at `level`.
    fn chunks_at(&self, level: u32) -> usize {
        let root = level + 1 == self.format.levels();
        chunks::<F>() * if root { self.format.root_tables() as usize } else { 1 }
    }

    /// The chunks of a table.
    ///
    /// # Safety
    /// It is not freed while they are used.
    unsafe fn chunks_of(&self, table: PhysAddr, count: usize) -> impl Iterator<Item = &Table> {
        // SAFETY: as promised.
        (0..count).map(move |n| unsafe { self.memory.table(chunk(table, n << INDEX_BITS)) })
    }

    /// The entry of this number in a table.
    ///
    /// # Safety
    /// The table is not freed while it is used.
    unsafe fn slot(&self, table: PhysAddr, n: usize) -> &AtomicU64 {
        // SAFETY: as promised.
        let chunk = unsafe { self.memory.table(chunk(table, n)) };
        &chunk[n & (memory::ENTRIES - 1)]
    }

    /// The number of the entry of `page` in the table at `level`.
    #[inline]
    fn number(&self, page: u64, level: u32) -> usize {
        let n = (page >> (F::INDEX * level)) as usize;
        // The root has more entries if it is concatenated.
        if level + 1 == self.format.levels() { n } else { n & ((1 << F::INDEX) - 1) }
    }

    /// Makes sure that the hardware sees `entry`, whichever CPU stored it. Called before anything
    /// is put below the entry, or uses it.
    ///
    /// The mark is set when the entry has been written back, so that this is done once for each
    /// entry.
    #[inline]
    fn rely_on(&self, slot: &AtomicU64, entry: u64, level: u32) {
        if self.memory.is_coherent() || entry & F::WRITTEN_BACK != 0 {
            return;
        }
        self.memory.write_back(slice::from_ref(slot));
        let same = |now: u64| {
            let (now, then) = (self.format.decode(now, level), self.format.decode(entry, level));
            now == then
        };
        let mut now = entry;
        // ORDERING: Release, with the Acquire of a CPU that finds the mark: the entry was written
        // back before. Without it that CPU may rely on an entry that the hardware does not see yet.
        while let Err(other) =
            slot.compare_exchange(now, now | F::WRITTEN_BACK, Ordering::AcqRel, Ordering::Acquire)
        {
            if other & F::WRITTEN_BACK != 0
                || !same(other)
                || (level > 0 && (other ^ entry) & F::PENDING != 0)
            {
                return;
            }
            now = other;
        }
    }

    /// The same for an entry that another CPU may be retiring, and that must not change for it.
    #[inline]
    fn rely_on_found(&self, slot: &AtomicU64, entry: u64, level: u32) {
        if entry & F::RETIRING == 0 {
            self.rely_on(slot, entry, level);
        } else if !self.memory.is_coherent() && entry & F::WRITTEN_BACK == 0 {
            self.memory.write_back(slice::from_ref(slot));
        }
    }

    /// Makes stored entries visible to the hardware.
    #[inline]
    fn show(&self, entries: &[AtomicU64]) {
        if !self.memory.is_coherent() {
            self.memory.write_back(entries);
        }
    }
}

impl<F: Format, M: TableMemory> fmt::Debug for IoPageTable<F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoPageTable")
            .field("root", &self.root)
            .field("pages", &self.pages())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
