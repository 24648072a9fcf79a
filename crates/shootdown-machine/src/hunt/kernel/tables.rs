//! The model kernel's page tables.
//!
//! Every tree has two halves: the last entry of its root is the kernel's and the same in all trees.
//! User pages are counted from 0; kernel pages from [`Tables::kernel_page`].

use shootdown::{Stride, VaRange};

use super::Config;
use super::config::Split;
use crate::hostile::{Descriptor, Frame, TableId, Word};
use crate::hunt::hw;

/// Where a page's entries are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    levels: u8,
    bits: u8,
    publish: fn(),
}

impl Tables {
    pub const fn of(config: &Config, publish: fn()) -> Self {
        Self { levels: config.levels, bits: config.bits, publish }
    }

    /// Writes an entry, and lets walkers see it before anything that comes later: a table is filled
    /// before it is linked, and a program that was told of its new page finds it.
    pub fn make(self, word: Word, entry: Descriptor) {
        let _ = hw::write_entry(word, entry);
        (self.publish)();
    }

    pub const fn entries(self) -> u8 {
        1 << self.bits
    }

    /// The page number of a kernel page.
    pub const fn kernel_page(self, page: u8) -> u32 {
        ((self.entries() - 1) as u32) << (self.bits * (self.levels - 1)) | page as u32
    }

    #[allow(clippy::cast_possible_truncation)] // masked
    const fn index(self, page: u32, level: u8) -> u8 {
        (page >> (level * self.bits)) as u8 & (self.entries() - 1)
    }

    /// The first page of the table that maps this page.
    pub const fn table_base(self, page: u32) -> u32 {
        page & !(self.entries() as u32 - 1)
    }

    /// The page's entry at a level, if there is a table with it.
    pub fn walk(self, root: TableId, page: u32, to: u8) -> Option<Word> {
        let mut table = root;
        for level in (to + 1..self.levels).rev() {
            let entry = hw::read_entry(Word::new(table, self.index(page, level)));
            if !entry.present() || entry.has(Descriptor::LEAF) {
                return None;
            }
            table = entry.next();
        }
        Some(Word::new(table, self.index(page, to)))
    }

    /// As [`Self::walk`], with new tables where there are none. A large page ends it.
    pub fn walk_or_make(self, root: TableId, page: u32, to: u8) -> Option<Word> {
        let mut table = root;
        for level in (to + 1..self.levels).rev() {
            let word = Word::new(table, self.index(page, level));
            let entry = hw::read_entry(word);
            if entry.present() && entry.has(Descriptor::LEAF) {
                return None;
            }
            table = if entry.present() {
                entry.next()
            } else {
                let new = self.new_table();
                self.make(word, Descriptor::table(new));
                new
            };
        }
        Some(Word::new(table, self.index(page, to)))
    }

    /// An empty table; what it was used for before is wiped.
    pub fn new_table(self) -> TableId {
        let table = hw::new_table();
        for index in 0..self.entries() {
            if hw::read_entry(Word::new(table, index)) != Descriptor::ABSENT {
                hw::witness("table-page-reused");
                self.make(Word::new(table, index), Descriptor::ABSENT);
            }
        }
        table
    }

    /// A root with the kernel's half.
    pub fn new_root(self, kernel_root: TableId) -> TableId {
        let root = self.new_table();
        let top = self.entries() - 1;
        let kernel = hw::read_entry(Word::new(kernel_root, top));
        self.make(Word::new(root, top), kernel);
        root
    }

    /// At boot: the kernel's own root, with its pages.
    pub fn boot_kernel(self, config: &Config) -> TableId {
        let root = hw::new_table();
        // An entry that all roots copy must be there before they do.
        let first = self.walk_or_make(root, self.kernel_page(0), 0).expect("no large pages");
        let global = if config.split == Split::Off { Descriptor::GLOBAL } else { 0 };
        for index in 0..config.kernel_pages {
            let leaf = Descriptor::leaf(hw::new_frame());
            let rights = Descriptor::WRITE | Descriptor::DIRTY | global;
            self.make(Word::new(first.table, index), leaf.with(rights));
        }
        root
    }

    /// At boot: the pages of a space. Gives the frames to `keep`.
    pub fn boot_space(
        self,
        config: &Config,
        root: TableId,
        shared: Option<TableId>,
        mut keep: impl FnMut(u8, Frame),
    ) {
        let word = self.walk_or_make(root, 0, 0).expect("no large pages");
        for page in 0..config.pages {
            let frame = hw::new_frame();
            keep(page, frame);
            self.make(Word::new(word.table, page), config.page(frame));
        }
        let second = u32::from(self.entries());
        if config.large {
            let word = self.walk_or_make(root, second, 1).expect("no large pages above");
            let first = hw::new_frame();
            for _ in 1..self.entries() {
                let _ = hw::new_frame();
            }
            self.make(word, Descriptor::user_rw(first));
        }
        if let Some(table) = shared {
            let word = self.walk_or_make(root, second, 1).expect("no large pages above");
            self.make(word, Descriptor::table(table));
        }
    }

    /// At boot: a full table that all spaces share.
    pub fn boot_shared(self) -> TableId {
        let table = hw::new_table();
        for index in 0..self.entries() {
            self.make(Word::new(table, index), Descriptor::user_rw(hw::new_frame()));
        }
        table
    }
}

/// Pages as the library names them.
pub(super) fn range(first: u32, count: u32) -> VaRange {
    VaRange::new(u64::from(first) << 12, u64::from(count), Stride::Page4K)
        .expect("the pages of a small tree")
}
