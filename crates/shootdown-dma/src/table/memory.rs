//! Memory for page tables: the kernel's half of the interface.

use crate::addr::PhysAddr;
use crate::sync::AtomicU64;

/// Bits of a page number that the entries of a chunk resolve. (Four entries a table suffice for a
/// model checker, and more would be too many.)
pub const INDEX_BITS: u32 = if cfg!(loom) { 2 } else { 9 };

/// Entries of a chunk.
pub const ENTRIES: usize = 1 << INDEX_BITS;

/// Bytes of a chunk.
pub const CHUNK: u64 = 4096;

/// A chunk: a page-table page of 4 KiB, as software sees it. Where the granule is 4 KiB it is a
/// whole table; otherwise a table is several chunks that follow each other.
pub type Table = [AtomicU64; ENTRIES];

/// Pages for page tables, and the mapping between their addresses.
///
/// # Safety
/// [`allocate`](Self::allocate) returns a page, zeroed, 4 KiB and aligned to that, below 2^52 and
/// not at 0, which no other code uses until it is [freed](Self::free), and which the IOMMU reads at
/// that physical address. [`table`](Self::table) of a page that is allocated is that page, and the
/// word of [`side`](Self::side) is kept until the page is freed. After
/// [`write_back`](Self::write_back) returns the IOMMU's walker sees what was stored before.
pub unsafe trait TableMemory: Sync {
    /// A zeroed page; `None` when there is no memory.
    fn allocate(&self) -> Option<PhysAddr>;

    /// As many contiguous pages, a power of two, aligned to all of their size; otherwise as
    /// [`allocate`](Self::allocate). More than one is requested only where a table has more than 4
    /// KiB: granules of 16 and 64 KiB, and root tables that are concatenated.
    fn allocate_many(&self, pages: usize) -> Option<PhysAddr> {
        if pages == 1 { self.allocate() } else { None }
    }

    /// Takes back what [`allocate_many`](Self::allocate_many) gave.
    ///
    /// # Safety
    /// As [`free`](Self::free), for all of them.
    unsafe fn free_many(&self, first: PhysAddr, pages: usize) {
        debug_assert_eq!(pages, 1, "nobody has given more");
        // SAFETY: as the caller promises.
        unsafe { self.free(first) }
    }

    /// Takes a page back.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate), no walker can reach it, be it hardware or
    /// software, and it is not freed twice.
    unsafe fn free(&self, page: PhysAddr);

    /// The page at this address.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate) and has not been freed, nor will it be while the
    /// reference is used.
    unsafe fn table(&self, page: PhysAddr) -> &Table;

    /// A word that goes with this page, in a record that the host keeps of it (its `struct page`,
    /// or an array beside): 0 when the page is allocated, and used by no other code until it is
    /// freed. The table stores the address of another page there when one page has more users than
    /// an entry counts, and clears it before it frees this page.
    ///
    /// The default is `None`: the host has no such word. Then a user beyond the count gets [an
    /// error](super::MapErrorKind::CountFull), and a domain takes another address. So the word
    /// matters for [identity addresses](crate::iova::identity) only, and most where entries count
    /// few users (Arm: 2).
    ///
    /// If the frames lie together, an array beside them is enough:
    ///
    /// ```
    /// # use shootdown_dma::PhysAddr;
    /// # use shootdown_dma::sync::AtomicU64;
    /// /// Page frames from `first` on, and a word for each.
    /// struct Frames { first: u64, words: Box<[AtomicU64]> }
    /// impl Frames {
    ///     fn side(&self, page: PhysAddr) -> Option<&AtomicU64> {
    ///         self.words.get(((page.0 - self.first) / 4096) as usize)
    ///     }
    /// }
    /// # let words = (0..4).map(|_| AtomicU64::new(0)).collect();
    /// # assert!(Frames { first: 0x8000, words }.side(PhysAddr(0xb000)).is_some());
    /// ```
    ///
    /// # Safety
    /// As [`table`](Self::table).
    unsafe fn side(&self, page: PhysAddr) -> Option<&AtomicU64> {
        let _ = page;
        None
    }

    /// Whether the IOMMU's walker reads the CPU's caches. If not, entries are written back before
    /// anything depends on them.
    fn is_coherent(&self) -> bool {
        true
    }

    /// Makes `entries` visible to a walker that does not read the CPU's caches, before it returns.
    /// Called only if the memory is not [coherent](Self::is_coherent).
    fn write_back(&self, entries: &[AtomicU64]) {
        let _ = entries;
    }
}

// SAFETY: it is the same memory.
unsafe impl<M: TableMemory> TableMemory for &M {
    fn allocate(&self) -> Option<PhysAddr> {
        (**self).allocate()
    }

    fn allocate_many(&self, pages: usize) -> Option<PhysAddr> {
        (**self).allocate_many(pages)
    }

    unsafe fn free_many(&self, first: PhysAddr, pages: usize) {
        // SAFETY: as the caller promises.
        unsafe { (**self).free_many(first, pages) }
    }

    unsafe fn free(&self, page: PhysAddr) {
        // SAFETY: as the caller promises.
        unsafe { (**self).free(page) }
    }

    #[inline]
    unsafe fn table(&self, page: PhysAddr) -> &Table {
        // SAFETY: as the caller promises.
        unsafe { (**self).table(page) }
    }

    unsafe fn side(&self, page: PhysAddr) -> Option<&AtomicU64> {
        // SAFETY: as the caller promises.
        unsafe { (**self).side(page) }
    }

    #[inline]
    fn is_coherent(&self) -> bool {
        (**self).is_coherent()
    }

    fn write_back(&self, entries: &[AtomicU64]) {
        (**self).write_back(entries);
    }
}
