//! Tables under a device that forgets nothing unless it is told to.

mod churn;
mod device;
mod formats;
mod manual;
pub(crate) mod scenes;
mod shadow;
pub(crate) mod superpages;
mod threads;
pub(crate) mod units;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec::Vec;

use super::*;
use crate::addr::Rights;
pub(crate) use device::Pages;
pub(crate) use manual::Manual;

pub(crate) type Shared<F> = Arc<Pages<F>>;

/// A table with its device, and what should be mapped.
pub(crate) struct World<F: Manual> {
    pub pages: Shared<F>,
    pub table: Arc<IoPageTable<F, Shared<F>>>,
    /// Memory, rights and count of each page.
    pub shadow: BTreeMap<u64, (u64, Rights, u64)>,
    /// What was mapped at once, and not yet taken from: first page and length.
    pub units: BTreeMap<u64, u64>,
    /// The pages that the device looks at whenever it can.
    pub eyes: Vec<u64>,
    /// Taken out, not yet finished; and whether the device has been told.
    pub queue: Vec<(Detached, bool)>,
}

pub(crate) fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).expect("a range")
}

impl<F: Manual> World<F> {
    pub fn new(format: F, coherent: bool, eyes: &[u64]) -> Self {
        let pages = Arc::new(Pages::new(format, coherent, eyes));
        let table = Arc::new(IoPageTable::new(format, Arc::clone(&pages), 2).expect("memory"));
        pages.attach(table.root());
        let (shadow, units, queue) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { pages, table, shadow, units, eyes: eyes.to_vec(), queue }
    }

    /// What the format makes of rights.
    fn granted(&self, rights: Rights) -> Rights {
        let format = self.table.format();
        format.rights(format.leaf(PhysAddr(1 << F::GRANULE), rights, 0))
    }

    pub fn map(&mut self, first: u64, pages: u64, phys: u64, rights: Rights) -> bool {
        let result = self.table.walker(0).expect("a epoch_slot").map(
            range(first, pages),
            PhysAddr(phys),
            rights,
        );
        match result {
            Ok(()) => {
                let rights = self.granted(rights);
                self.units.insert(first, pages);
                for n in 0..pages {
                    let old = self.shadow.insert(first + n, (phys + (n << F::GRANULE), rights, 0));
                    assert_eq!(old, None, "mapped over something");
                }
            }
            Err(error) => {
                let taken = (first..first + pages).any(|p| self.shadow.contains_key(&p));
                assert!(taken || error.kind != MapErrorKind::AlreadyMapped, "{error}");
                self.told(error.undone);
            }
        }
        self.check();
        result.is_ok()
    }

    fn told(&self, undone: Option<IovaRange>) {
        if let Some(undone) = undone {
            self.pages.invalidate(undone, true);
        }
    }

    /// Unmaps what is a mapping, no less and no more.
    pub fn unmap(&mut self, first: u64, pages: u64) -> Result<(), UnmapError> {
        let whole = self.units.get(&first) == Some(&pages);
        let intact = (first..first + pages).all(|p| self.shadow.get(&p).is_some_and(|e| e.2 == 0));
        let result = self.take(first, pages, true);
        assert_eq!(result.is_ok(), whole && intact, "{result:?}");
        result
    }

    /// Unmaps what is mapped, of whichever mappings.
    pub fn unmap_part(&mut self, first: u64, pages: u64) -> Result<(), UnmapError> {
        self.take(first, pages, false)
    }

    fn take(&mut self, first: u64, pages: u64, one: bool) -> Result<(), UnmapError> {
        let mut detached = Detachments::new();
        let mut walker = self.table.walker(1).expect("a epoch_slot");
        let asked = range(first, pages);
        let result = if one {
            walker.unmap(asked, &mut detached)
        } else {
            walker.unmap_part(asked, &mut detached)
        };
        drop(walker);
        let whole = (first..first + pages).all(|p| self.shadow.get(&p).is_some_and(|e| e.2 == 0));
        match result {
            Ok(unmapped) => {
                assert!(whole, "unmapped what was not mapped");
                self.shadow.retain(|p, _| !(first..first + pages).contains(p));
                // What was cut is a mapping no more.
                self.units.retain(|f, n| *f >= first + pages || f + *n <= first);
                self.pages.invalidate(unmapped.range, unmapped.leaf_only);
            }
            Err(UnmapError::PartOfSuperpage { .. }) => assert!(detached.is_empty()),
            Err(UnmapError::Inside { .. } | UnmapError::Several { .. }) => {
                assert!(one && detached.is_empty(), "{result:?}");
            }
            Err(_) => assert!(!whole && detached.is_empty(), "{result:?}"),
        }
        while let Some(gone) = detached.pop() {
            self.queue.push((gone, true));
        }
        self.check();
        result.map(drop)
    }

    pub fn acquire(&mut self, page: u64, phys: u64, rights: Rights) -> Result<Acquired, MapError> {
        let result =
            self.table.walker(0).expect("a epoch_slot").acquire(page, PhysAddr(phys), rights);
        if let Ok(acquired) = result {
            let granted = self.granted(rights);
            let entry = self.shadow.entry(page).or_insert((phys, granted, 0));
            assert_eq!((entry.0, entry.1), (phys, granted));
            entry.2 += 1;
            assert_eq!(entry.2 == 1, acquired == Acquired::First);
        }
        self.check();
        result
    }

    pub fn release(&mut self, page: u64) -> Result<Released, UnmapError> {
        let result = self.table.walker(1).expect("a epoch_slot").release(page);
        match result {
            Ok(released) => {
                let entry = self.shadow.get_mut(&page).expect("released what nobody uses");
                entry.2 = entry.2.checked_sub(1).expect("released what is not counted");
                assert_eq!(entry.2 == 0, released == Released::Last);
                if released == Released::Last {
                    self.shadow.remove(&page);
                    self.pages.invalidate(range(page, 1), true);
                }
            }
            Err(_) => assert!(self.shadow.get(&page).is_none_or(|e| e.2 == 0)),
        }
        self.check();
        result
    }

    /// Takes out what is empty; the device is not told yet.
    pub fn sweep(&mut self) -> usize {
        let mut detached = Detachments::new();
        let found = self.table.sweep(usize::MAX, &mut detached).expect("nobody else sweeps");
        while let Some(gone) = detached.pop() {
            self.queue.push((gone, false));
        }
        self.check();
        found
    }

    /// Tells the device of one table that was taken out, and finishes it.
    pub fn settle(&mut self, n: usize) {
        if self.queue.is_empty() {
            return;
        }
        let (gone, told) = self.queue.swap_remove(n % self.queue.len());
        if !told {
            self.pages.invalidate(gone.range(), false);
        }
        // SAFETY: the device was told.
        unsafe { self.table.finish(gone) };
        self.check();
    }

    /// The device and the software find what they should.
    pub fn check(&self) {
        let mut walker = self.table.walker(0).expect("a epoch_slot");
        for page in self.eyes.iter().copied() {
            let should = self.shadow.get(&page).copied();
            let found = walker.translate(page).map(|t| (t.phys.0, t.rights, t.uses));
            assert_eq!(found, should, "page {page:#x} by software");
            let seen = self.pages.access(page);
            assert_eq!(seen, should.map(|e| (e.0, e.1)), "page {page:#x} by the device");
        }
    }
}

impl<F: Manual> Drop for World<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // A walker holds one page at most, and there are two.
        self.table.collect();
    }
}
