//! A space: a tree, and the library's view of it.

use core::sync::atomic::Ordering;

use shootdown::AddressSpace;

use super::{Tree, index, slot};
use crate::arch::paging::{self, LEVELS, SPACE};
use crate::memory;
use crate::port::{Kernel, Pin};

/// A space of the suite. It uses the gigabyte from `arch::paging::SPACE` on.
pub struct Space {
    /// Its tables.
    pub tree: Tree,
    /// What the library knows of it.
    pub shot: AddressSpace<Kernel>,
}

impl Space {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        let tree = Tree::new();
        Self { tree, shot: AddressSpace::new(paging::root(tree.root())) }
    }

    /// Ends it: no CPU runs in it any more. Its tables are freed; pages that are still mapped stay
    /// with whoever has them.
    ///
    /// # Panics
    /// When a CPU still runs in it.
    pub fn end(&self, pin: &Pin) {
        if let Err(error) = self.shot.retire(pin) {
            panic!("a space could not be retired: {error}");
        }
        self.tree.free_tables(SPACE);
        // The path from the root to the gigabyte, top to bottom.
        let mut path = [0; LEVELS as usize];
        let mut table = self.tree.root();
        for level in (2..LEVELS).rev() {
            path[level as usize] = table;
            let entry = slot(table, index(SPACE, level)).load(Ordering::Acquire);
            if !paging::is_table(entry, level) {
                table = 0;
                break;
            }
            table = paging::frame_of(entry, level);
        }
        path.into_iter().chain([table]).filter(|table| *table != 0).for_each(memory::free);
    }
}
