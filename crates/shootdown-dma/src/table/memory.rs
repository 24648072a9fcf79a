//! Where page tables live: the kernel's half of the seam.

use crate::addr::PhysAddr;
use crate::sync::AtomicU64;

/// Entries of a table: 4 KiB of them.
pub const ENTRIES: usize = 512;

/// A page-table page, as software sees it.
pub type Table = [AtomicU64; ENTRIES];

/// Pages for page tables, and the way between their addresses.
///
/// # Safety
/// [`allocate`](Self::allocate) returns a page, zeroed, 4 KiB and aligned to that, which nobody else has until it is
/// [freed](Self::free), and which the IOMMU reads at that physical address. [`table`](Self::table) of a page that is allocated
/// is that page. After [`write_back`](Self::write_back) returns the IOMMU's walker sees what was stored before.
pub unsafe trait TableMemory: Sync {
    /// A zeroed page; `None` when there is no memory.
    fn allocate(&self) -> Option<PhysAddr>;

    /// Takes a page back.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate), no walker can reach it, be it hardware or software, and it is not
    /// freed twice.
    unsafe fn free(&self, page: PhysAddr);

    /// The page at this address.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate) and has not been freed, nor will it be while the reference is used.
    unsafe fn table(&self, page: PhysAddr) -> &Table;

    /// Does the IOMMU's walker read the CPU's caches? If not, entries are written back before anything relies on
    /// them.
    fn is_coherent(&self) -> bool {
        true
    }

    /// Makes `entries` visible to a walker that does not look into the CPU's caches; done when it returns. Called only if
    /// the memory is not [coherent](Self::is_coherent).
    fn write_back(&self, entries: &[AtomicU64]) {
        let _ = entries;
    }
}
