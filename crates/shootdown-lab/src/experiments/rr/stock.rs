//! Mapping as it was in 2015: one lock, one node for each mapping, the lock held while the IOMMU
//! works.
//!
//! - A mapping takes an address from the [tree](super::tree) under the lock, and puts its entry.
//! - *Strict*: unmapping clears the entry, tells the IOMMU, waits, and takes the node out, all
//!   under the lock.
//! - *Deferred* (lazy): it clears the entry and puts the address on a list, under the lock. The
//!   250th on the list has the domain invalidated, waits, and takes out all their nodes.
//! - There is no *strict-ish*.
//!
//! Page tables and the queue are the library's, so that the difference is in addresses, locks, and
//! what is told when. The lock hands itself on in turn, as Linux's did then.

use std::cell::RefCell;

use shootdown_machine::io::{self, Registers, Tables};
use shootdown_machine::shootdown_dma::fixed::Fixed;
use shootdown_machine::shootdown_dma::invalidate::queue::{Queue, Vtd};
use shootdown_machine::shootdown_dma::invalidate::{Command, Unit};
use shootdown_machine::shootdown_dma::sync::{AtomicU32, Ordering};
use shootdown_machine::shootdown_dma::table::{Detachments, IoPageTable, VtdSecondLevel};
use shootdown_machine::shootdown_dma::{DmaAddr, IovaRange, PhysAddr, Rights};

use super::design::Mapper;
use super::tree::Tree;

/// Unmappings that are put off together: Linux's high-water mark of 2008.
const MARK: usize = 250;

/// The page behind the last that is handed out: 32-bit addresses are tried first.
const END: u64 = 1 << 20;

/// A lock that hands itself on in turn. Each word on a line of its own.
#[repr(align(64))]
struct Word(AtomicU32);

/// See the module.
pub struct Stock {
    strict: bool,
    /// Turns taken, and whose turn it is.
    lock: Fixed<Word>,
    tree: Tree,
    table: Fixed<IoPageTable<VtdSecondLevel, Tables>>,
    queue: Fixed<Queue<Registers, Vtd>>,
    put_off: RefCell<Vec<IovaRange>>,
}

impl Stock {
    /// With room for so many mappings, and epoch slots for so many CPUs.
    pub fn new(strict: bool, most: u32, cpus: usize) -> Self {
        let format = VtdSecondLevel::new(4, true, true).expect("four levels");
        let table = |_| IoPageTable::new(format, Tables, cpus);
        Self {
            strict,
            lock: Fixed::new(2, |_| Word(AtomicU32::new(0))).expect("memory for a lock"),
            tree: Tree::new(most, END),
            table: Fixed::try_new(1, table).expect("memory for a table"),
            queue: Fixed::new(1, |_| io::new_queue()).expect("memory for a queue"),
            put_off: RefCell::default(),
        }
    }

    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        let turn = self.lock[0].0.fetch_add(1, Ordering::Relaxed);
        // ORDERING: Acquire, with the Release of whoever had the turn before.
        while self.lock[1].0.load(Ordering::Acquire) != turn {
            io::relax();
        }
        let result = f();
        self.lock[1].0.store(turn.wrapping_add(1), Ordering::Release);
        result
    }

    /// Tells the IOMMU, and waits.
    fn invalidate(&self, command: Command) {
        let queue = &self.queue[0];
        let ticket = queue.submit(&[command]).expect("the lock's holder has the queue alone");
        while queue.completed().expect("the unit does not complain") < ticket {
            io::relax();
        }
    }

    fn free_all(&self) {
        let mut put_off = self.put_off.borrow_mut();
        if !put_off.is_empty() {
            self.invalidate(Command::Domain(io::DOMAIN));
            for range in put_off.drain(..) {
                assert!(self.tree.free(range.first()), "it was mapped");
            }
        }
    }
}

impl Mapper for Stock {
    fn root(&self) -> Option<PhysAddr> {
        Some(self.table[0].root())
    }

    fn map(&self, phys: PhysAddr, bytes: u64, rights: Rights) -> DmaAddr {
        let pages = bytes.div_ceil(4096);
        let first = self.locked(|| self.tree.alloc(pages.next_power_of_two()));
        let range =
            first.and_then(|first| IovaRange::new(first, pages)).expect("there are addresses");
        let mut walker = self.table[0].walker(io::this_cpu()).expect("a attachment for each CPU");
        walker.map(range, phys, rights).expect("nothing is mapped there");
        DmaAddr(range.first() << 12)
    }

    fn unmap(&self, at: DmaAddr, bytes: u64) {
        let range = IovaRange::new(at.0 >> 12, bytes.div_ceil(4096)).expect("it was mapped");
        self.locked(|| {
            let mut detached = Detachments::new();
            let walker = self.table[0].walker(io::this_cpu());
            let mut walker = walker.expect("a attachment for each CPU");
            let unmapped = walker.unmap(range, &mut detached).expect("it was mapped");
            drop(walker);
            if self.strict {
                let leaf_only = unmapped.leaf_only;
                self.invalidate(Command::Pages {
                    domain: io::DOMAIN,
                    range: unmapped.range,
                    leaf_only,
                });
                assert!(self.tree.free(range.first()), "it was mapped");
            } else {
                self.put_off.borrow_mut().push(range);
                if self.put_off.borrow().len() == MARK {
                    self.free_all();
                }
            }
            assert!(detached.pop().is_none(), "no mapping is as large as a table");
        });
    }

    fn poll(&self, _: u64) {
        if !self.strict {
            self.locked(|| self.free_all());
        }
    }

    fn nodes(&self) -> usize {
        self.tree.len()
    }
}
