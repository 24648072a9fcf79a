//! What an IOMMU finds in a page table, read apart from the library's own reading.

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
    /// What a word in a table of a level says.
    pub decode: fn(level: u8, word: u64) -> Decoded,
}

/// Bits of page number that a table decodes.
pub(crate) const INDEX_BITS: u32 = 9;

impl Walker {
    /// A walker of VT-d's second-level tables.
    #[must_use]
    pub const fn vtd(levels: u8) -> Self {
        Self { levels, decode: vtd }
    }

    /// Pages that an entry of a table at this level covers.
    pub(crate) const fn span(level: u8) -> u64 {
        1 << (INDEX_BITS * (level as u32 - 1))
    }
}

/// What VT-d finds in a second-level entry (specification 9.7).
fn vtd(level: u8, word: u64) -> Decoded {
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
