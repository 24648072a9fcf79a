//! Cells of shared memory, whose content one CPU at a time uses.
//!
//! To use it is no step, since to enter the cell was one. What follows from it is known to the
//! machine in two ways. Where states are compared, by who was in the cell in which order.
//! Everywhere else, under the language's memory model, by a word for each cell that whoever uses it
//! writes: who comes next must know of that write, or the two were not kept apart by anything that
//! the language knows, which is a data race.

use std::collections::BTreeMap;

use super::End;
use super::machine::Hunt;
use super::memory::{Location, mix};
use super::powers::Memory;

/// What is known of cells, by their offset.
#[derive(Debug, Default)]
pub(super) struct Cells {
    /// Who was in each, in which order: a hash.
    order: BTreeMap<usize, u64>,
    /// The word of each.
    words: BTreeMap<usize, Location>,
}

impl Cells {
    pub fn hash(&self) -> u64 {
        let cells = self.order.iter();
        cells.fold(0, |hash, (&offset, &order)| hash ^ mix(order ^ mix(offset as u64)))
    }
}

impl Hunt {
    /// This CPU uses what is in a cell at this address. `false`: somebody else may be at it, and
    /// the run is over.
    pub fn touch(&mut self, addr: usize, write: bool) -> bool {
        let Some(offset) = self.arena.offset(addr).filter(|_| self.running) else { return true };
        if !self.wants_state {
            return self.is_alone(offset, write);
        }
        let who = u64::from(self.current) + 1;
        let order = self.cells.order.entry(offset).or_default();
        let before = *order;
        if write {
            *order = mix(before ^ who);
        }
        self.saw(before ^ (offset as u64) << 32);
        true
    }

    fn is_alone(&mut self, offset: usize, write: bool) -> bool {
        let Self { cells, memory, current, .. } = self;
        if memory.model() != Memory::Weak {
            return true;
        }
        let word = *cells.words.entry(offset).or_insert_with(|| memory.locate(0));
        if !memory.knows(*current, word) {
            let text = format!("a data race: cpu{current} does not know who was in a cell before");
            self.end.get_or_insert(End::Panic(text));
            return false;
        }
        if write {
            memory.mark(*current, word);
        }
        true
    }
}
