//! What an IOMMU finds in a page table, read apart from the library's own reading: here and in
//! [hunts](crate::hunt::io).
//!
//! What is read is the same in both; *how* is not, so that there are two walkers in code. The
//! measured one ([`iommu`](super::iommu)) takes one way, from the lowest table that it has cached,
//! counts the words and has room for so much. The hunted one takes any way that hardware could,
//! through lines that were not written back and tables that were freed, and forgets nothing for
//! want of room.

use shootdown_dma::{PhysAddr, Rights};

/// What a word of a table says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// Nothing.
    Nothing,
    /// The next table is there.
    Table(PhysAddr),
    /// A translation.
    Leaf {
        /// To this address.
        to: PhysAddr,
        /// With these rights.
        rights: Rights,
    },
}

/// How tables are read.
#[derive(Clone, Copy, Debug)]
pub struct Walker {
    /// Levels of a full walk; a table at level 1 has leaves only.
    pub levels: u8,
    /// The logarithm of the bytes of a page, and of a table: as many entries, of 8 bytes each,
    /// does one have. Commands count in such pages; all else here counts in pages of 4 KiB,
    /// and tables larger than that are several *sheets*, one behind the other.
    pub granule: u32,
    /// What a word in a table of a level says.
    pub decode: fn(level: u8, word: u64) -> Decoded,
}

/// Bits of page number that a sheet decodes.
pub(crate) const INDEX_BITS: u32 = 9;

/// Bytes of a sheet.
pub(crate) const SHEET: u64 = 4096;

impl Walker {
    /// A walker of VT-d's second-level tables.
    #[must_use]
    pub const fn vtd(levels: u8) -> Self {
        Self { levels, granule: 12, decode: vtd }
    }

    /// Pages of 4 KiB that an entry of a table at this level covers.
    pub(crate) const fn span(&self, level: u8) -> u64 {
        1 << (self.granule - 12 + (self.granule - 3) * (level as u32 - 1))
    }

    /// Sheets of a table.
    pub(crate) const fn sheets(&self) -> u64 {
        1 << (self.granule - 12)
    }
}

/// What VT-d finds in a second-level entry (specification 9.7).
pub(crate) fn vtd(level: u8, word: u64) -> Decoded {
    const ADDRESS: u64 = (1 << 52) - (1 << 12);
    const LARGE: u64 = 1 << 7;
    let to = PhysAddr(word & ADDRESS);
    let rights = match word & 3 {
        0 => return Decoded::Nothing,
        1 => Rights::Read,
        2 => Rights::Write,
        _ => Rights::ReadWrite,
    };
    if level == 1 || word & LARGE != 0 { Decoded::Leaf { to, rights } } else { Decoded::Table(to) }
}
