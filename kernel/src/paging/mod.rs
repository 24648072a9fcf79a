//! Trees of page tables: the same on every architecture, as all have tables of 512 entries of eight
//! bytes.
//!
//! Entries are changed by atomic exchange, since hardware writes to them too (accessed, dirty). The
//! tree knows nothing of TLBs: whoever changes an entry flushes it through the library.

mod space;

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::paging::{self, LEVELS};
use crate::memory;

pub use space::Space;

/// Entries of a table.
pub const ENTRIES: usize = 512;

/// A tree, by the frame of its top table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tree {
    root: u64,
}

/// The index of an address in a table of this level; level 0 is the last.
const fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * level)) as usize % ENTRIES
}

/// The bytes that one entry of a level translates.
#[must_use]
pub const fn span(level: u32) -> u64 {
    1 << (12 + 9 * level)
}

/// The entry of a table.
fn slot(table: u64, index: usize) -> &'static AtomicU64 {
    assert!(index < ENTRIES);
    // SAFETY: tables are frames of the allocator, which stay mapped forever; an entry is a word
    // that hardware and kernel access atomically.
    unsafe { &*memory::at(table).cast::<AtomicU64>().add(index) }
}

/// A frame without entries.
fn empty_table() -> u64 {
    let table = memory::allocate().expect("there are frames for tables");
    memory::fill(table, 0);
    table
}

impl Tree {
    /// A tree with what every root needs.
    #[must_use]
    pub fn new() -> Self {
        let root = empty_table();
        paging::new_root(root);
        Self { root }
    }

    /// The kernel's own: for `arch::paging::KERNEL`.
    #[must_use]
    pub fn kernel() -> Self {
        Self { root: paging::kernel_root() }
    }

    /// The frame of the top table.
    #[must_use]
    pub const fn root(self) -> u64 {
        self.root
    }

    /// The entry of this level for an address, with the tables above it made as needed.
    ///
    /// # Panics
    /// When a larger page is in the way, or memory is short.
    pub fn entry(self, address: u64, level: u32) -> &'static AtomicU64 {
        let mut table = self.root;
        for above in (level + 1..LEVELS).rev() {
            let slot = slot(table, index(address, above));
            let mut entry = slot.load(Ordering::Acquire);
            if !paging::is_present(entry) {
                let new = empty_table();
                // ORDERING: AcqRel, so that who finds the table finds it empty; partner: the
                // Acquire loads here.
                match slot.compare_exchange(
                    entry,
                    paging::table(new),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    Ok(_) => entry = paging::table(new),
                    Err(theirs) => {
                        memory::free(new);
                        entry = theirs;
                    }
                }
            }
            assert!(paging::is_table(entry, above), "a larger page covers {address:#x}");
            table = paging::frame_of(entry, above);
        }
        slot(table, index(address, level))
    }

    /// What the entry of level 0 for an address says now, without making tables; 0 where there are
    /// none.
    #[must_use]
    pub fn look(self, address: u64) -> u64 {
        let mut table = self.root;
        for level in (1..LEVELS).rev() {
            let entry = slot(table, index(address, level)).load(Ordering::Acquire);
            if !paging::is_table(entry, level) {
                return 0;
            }
            table = paging::frame_of(entry, level);
        }
        slot(table, index(address, 0)).load(Ordering::Acquire)
    }

    /// Writes an entry; returns the one that was there, as hardware left it.
    pub fn set(self, address: u64, level: u32, entry: u64) -> u64 {
        self.entry(address, level).swap(entry, Ordering::AcqRel)
    }

    /// Frees the tables below the gigabyte at `start`, and their leaves stay with whoever has them.
    /// No walker may use them.
    pub fn free_tables(self, start: u64) {
        let mut table = self.root;
        for level in (2..LEVELS).rev() {
            let entry = slot(table, index(start, level)).load(Ordering::Acquire);
            if !paging::is_table(entry, level) {
                return;
            }
            table = paging::frame_of(entry, level);
        }
        for at in 0..ENTRIES {
            let entry = slot(table, at).swap(0, Ordering::AcqRel);
            if paging::is_table(entry, 1) {
                memory::free(paging::frame_of(entry, 1));
            }
        }
    }
}
