//! The format of entries: one file for each format.
//!
//! An entry is one 64-bit word. The hardware defines present entries, except for some bits that it
//! ignores: these hold the use count, or the begin and end of a mapping, and two marks. Software
//! defines entries that are not present. They are the same in every format ([`word`]), since all
//! formats mark them as not present by bits 0 and 1, and ignore the rest. (AMD-Vi as QEMU models it
//! reads the rights, bits 61 and 62, of entries that are not present: these stay clear too.)
//!
//! | word | meaning |
//! |---|---|
//! | 0 | empty |
//! | bit 52, and a number | tombstone: the table is being taken out of the tree, or was; the number says which time |
//! | bits 52 and 54, and an address | the first word of a table that waits to be freed: the next one |
//! | bit 53, and an address | detached: a table hung here, and walk caches may still know it |

mod amd;
mod arm;
mod vtd;

pub use amd::AmdV1;
pub use arm::{ArmStage1, ArmStage2};
pub use vtd::VtdSecondLevel;

use super::memory::INDEX_BITS;
use crate::addr::{PhysAddr, Rights};

/// The bits of a word that hold a physical address, in every format here.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Words that are not present.
pub mod word {
    use super::ADDRESS;

    /// Nothing is here.
    pub const EMPTY: u64 = 0;
    /// No entry may be put here: walk again from the root.
    pub const TOMBSTONE: u64 = 1 << 52;
    /// A table was taken out from here.
    pub const DETACHED: u64 = 1 << 53;
    /// Of tombstones: the table waits to be freed.
    pub const DEAD: u64 = 1 << 54;

    /// The tombstone of the `retirement`-th table that was, or was to be, taken out.
    #[must_use]
    pub const fn tombstone(retirement: u64) -> u64 {
        TOMBSTONE | (retirement << 12 & ADDRESS)
    }

    /// Whether it maps nothing, here or below.
    #[must_use]
    pub const fn is_vacant(word: u64) -> bool {
        word == EMPTY || (word & 0b11 == 0 && word & TOMBSTONE != 0)
    }

    /// The table at this address was taken out.
    #[must_use]
    pub const fn detached(table: u64) -> u64 {
        DETACHED | (table & ADDRESS)
    }
}

/// The meaning of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// An empty entry.
    Empty,
    /// Its table is going away, or has gone.
    Tombstone,
    /// This table was linked here.
    Detached(PhysAddr),
    /// The walk goes on in this table.
    Table(PhysAddr),
    /// This memory is reached with these rights.
    Leaf(PhysAddr, Rights),
}

/// A format of page-table entries, with the parameters of the unit: levels, sizes of pages,
/// attributes.
///
/// Levels are counted from 0, which maps pages of the [granule](Self::GRANULE); each level above
/// resolves as many bits more as a table of that size has entries.
pub trait Format: Copy + Send + Sync + 'static {
    /// The logarithm of the size of a page.
    const GRANULE: u32 = 12;
    /// Bits of a page number that one level resolves: a table is as large as a page. (Fewer for a
    /// model checker.)
    const INDEX: u32 = if cfg!(loom) { INDEX_BITS } else { Self::GRANULE - 3 };
    /// A bit of leaves: several users share the leaf, and [`COUNT`](Self::COUNT) holds their
    /// number. Without it the leaf is owned.
    const COUNTED: u64;
    /// A counted leaf's bits that hold its use count (in their place), two at least. All ones, and
    /// zero, mean that uses are counted elsewhere (`spill.rs`). The two lowest bits of an owned
    /// leaf hold which [part](Self::BEGINS) of a mapping it is.
    const COUNT: u64;
    /// Of an owned leaf: a mapping begins here.
    const BEGINS: u64 = 1 << Self::COUNT.trailing_zeros();
    /// Of an owned leaf: a mapping ends here.
    const ENDS: u64 = 2 << Self::COUNT.trailing_zeros();
    /// A bit of leaves and of tables: the entry has been written back to where a non-coherent
    /// walker reads it.
    const WRITTEN_BACK: u64;
    /// A bit of tables: the table was detached and put back since, and the invalidation from that
    /// time is still deferred.
    const PENDING: u64;
    /// A bit of tables: a CPU is about to take the table out. A CPU that maps there clears the bit,
    /// which calls that off.
    const RETIRING: u64;
    /// A leaf's bits that the hardware writes: accessed, dirty.
    const HARDWARE: u64;

    /// The number of levels. The root is at level `levels() - 1`.
    fn levels(&self) -> u32;

    /// The number of tables, one behind the other, that make up the root. A power of two.
    fn root_tables(&self) -> u32 {
        1
    }

    /// The number of bits of page numbers.
    fn page_bits(&self) -> u32 {
        // No address has more than 64 bits.
        let levels = Self::INDEX * self.levels() + self.root_tables().trailing_zeros();
        levels.min(64 - Self::GRANULE)
    }

    /// Whether a leaf may be at this level.
    fn may_be_leaf(&self, level: u32) -> bool;

    /// The number of bits of physical addresses.
    fn phys_bits(&self) -> u32;

    /// A leaf that is owned, without marks. `phys` is aligned to the size of a page at this level.
    fn leaf(&self, phys: PhysAddr, rights: Rights, level: u32) -> u64;

    /// An entry in a table at `level` that leads to the table `phys` at the level below.
    fn table(&self, phys: PhysAddr, level: u32) -> u64;

    /// Whether the hardware takes a word as present.
    fn is_present(&self, word: u64) -> bool;

    /// Whether a present word leads to a table.
    fn is_table(&self, word: u64, level: u32) -> bool;

    /// A leaf's rights.
    fn rights(&self, word: u64) -> Rights;

    /// Whether some leaves fill several entries of a table ([`order`](Self::order)).
    const SIZED: bool = false;

    /// The logarithm of the entries that one leaf may fill. All of them are the same.
    #[inline]
    fn most_order(&self) -> u32 {
        0
    }

    /// A leaf for 2^`order` entries of a table at `level`, made from that of the first; `order` is
    /// above 0.
    #[inline]
    fn enlarge(&self, leaf: u64, level: u32, order: u32) -> u64 {
        let _ = (level, order);
        leaf
    }

    /// The logarithm of the entries that a leaf in a table at `level` fills.
    #[inline]
    fn order(&self, word: u64, level: u32) -> u32 {
        let _ = (word, level);
        0
    }

    /// The address of a table, or of the first page of a leaf.
    #[inline]
    fn address(&self, word: u64) -> PhysAddr {
        PhysAddr(word & ADDRESS)
    }

    /// The meaning of a word in a table at `level`.
    #[inline]
    fn decode(&self, word: u64, level: u32) -> Decoded {
        if self.is_present(word) {
            let phys = self.address(word);
            if self.is_table(word, level) {
                Decoded::Table(phys)
            } else {
                Decoded::Leaf(phys, self.rights(word))
            }
        } else if word == word::EMPTY {
            Decoded::Empty
        } else if word & word::TOMBSTONE != 0 {
            Decoded::Tombstone
        } else {
            Decoded::Detached(PhysAddr(word & ADDRESS))
        }
    }

    /// Whether a leaf is shared by users that are counted. Otherwise it is owned.
    #[inline]
    fn is_counted(word: u64) -> bool {
        word & Self::COUNTED != 0
    }

    /// The count of a counted leaf; 0 if it is not counted.
    #[inline]
    fn count(word: u64) -> u64 {
        if Self::is_counted(word) {
            (word & Self::COUNT) >> Self::COUNT.trailing_zeros()
        } else {
            0
        }
    }

    /// The largest value of the count: one more than it counts.
    #[inline]
    fn max_count() -> u64 {
        Self::count(Self::COUNT | Self::COUNTED)
    }

    /// One use, to be added to a word.
    #[inline]
    fn one() -> u64 {
        1 << Self::COUNT.trailing_zeros()
    }

    /// A leaf's bits that define what is mapped, and how.
    #[inline]
    fn meaning(word: u64) -> u64 {
        word & !(Self::COUNT | Self::COUNTED | Self::WRITTEN_BACK | Self::HARDWARE)
    }
}
