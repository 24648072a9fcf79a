//! Where descriptors are: words of tables, read through whatever memory the caller has.

use std::fmt;

use super::Descriptor;

/// A page of a page table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TableId(pub u16);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table{}", self.0)
    }
}

/// A frame of memory, the size of the smallest page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Frame(pub u32);

impl Frame {
    /// The frame that [`Descriptor::POISON`] names.
    pub const POISON: Self = Self(u32::MAX);
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::POISON {
            return f.write_str("poison");
        }
        write!(f, "frame{}", self.0)
    }
}

/// One entry of a table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Word {
    /// Which table.
    pub table: TableId,
    /// Which entry of it.
    pub index: u8,
}

impl Word {
    /// The entry `index` of `table`.
    #[must_use]
    pub const fn new(table: TableId, index: u8) -> Self {
        Self { table, index }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.table, self.index)
    }
}

/// The memory that walkers read.
pub trait TableMemory {
    /// Calls `see` with every value (and its version) that the walker of `cpu` may read from `word`
    /// now, the newest first. One value under sequential consistency; several where the walker
    /// may read stale ones. Freed tables are read like any others: what is there now is what
    /// the walker sees.
    ///
    /// Versions tell writes of one word apart. A caller that does not care gives 0.
    fn read(&self, cpu: usize, word: Word, see: &mut dyn FnMut(Descriptor, u32));
}
