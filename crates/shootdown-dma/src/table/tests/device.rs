//! Memory for tables, and a device that walks them with caches that lose nothing by themselves.
//!
//! Freed pages are poisoned, and kept: who walks one is caught. If the memory is not coherent the
//! device sees what was last written back, and in new pages what the last owner left there: entries
//! that lead to memory of others.

use std::alloc::{Layout, alloc, dealloc};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

use super::super::TableMemory;
use super::super::memory::{ENTRIES, Table};
use super::manual::{Manual, Says};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::sync::{AtomicU64, Ordering};

/// Nobody's memory.
const CANARY: PhysAddr = PhysAddr(0xdead_b000);

struct State {
    /// Chunks, and where the host's record of each is.
    live: BTreeMap<u64, u64>,
    all: Vec<(u64, usize)>,
    /// What a walker that is not coherent sees.
    view: BTreeMap<u64, Vec<u64>>,
    /// So many pages more.
    budget: usize,
    /// There are words for side tables.
    sides: bool,
    root: u64,
    eyes: Vec<u64>,
    /// Cached of the walk: the table for this lookup, of addresses whose bits from that one on are
    /// these.
    tables: BTreeMap<(usize, u32, u64), u64>,
    /// Cached translations.
    entries: BTreeMap<u64, (u64, Rights)>,
}

pub(crate) struct Pages<F> {
    format: F,
    coherent: bool,
    state: Mutex<State>,
    /// Happens when a single entry is to be written back, and has not been yet.
    hook: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// Pages, and behind them the host's records of them.
fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * (4096 + 8), pages * 4096).expect("pages")
}

impl<F: Manual> Pages<F> {
    pub fn new(format: F, coherent: bool, eyes: &[u64]) -> Self {
        let state = State {
            live: BTreeMap::new(),
            all: Vec::new(),
            view: BTreeMap::new(),
            budget: usize::MAX,
            sides: true,
            root: 0,
            eyes: eyes.to_vec(),
            tables: BTreeMap::new(),
            entries: BTreeMap::new(),
        };
        Self { format, coherent, state: Mutex::new(state), hook: Mutex::new(None) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn attach(&self, root: PhysAddr) {
        self.state().root = root.0;
    }

    pub fn limit(&self, budget: usize) {
        self.state().budget = budget;
    }

    /// Are there words for side tables?
    pub fn sides(&self, sides: bool) {
        self.state().sides = sides;
    }

    pub fn live(&self) -> usize {
        self.state().live.len()
    }

    pub fn on_write_back(&self, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().expect("not poisoned") = Some(Box::new(hook));
    }

    /// The device accesses a page.
    pub fn access(&self, page: u64) -> Option<(u64, Rights)> {
        self.state().access(&self.format, self.coherent, page)
    }

    /// The logarithm of the size of the leaf that maps a page, as a walk finds it.
    pub fn size(&self, page: u64) -> Option<u32> {
        let state = self.state();
        let (address, mut table) = (page << F::GRANULE, state.root);
        for (lowest, bits) in self.format.lookups() {
            let at = (address >> lowest) as usize & ((1 << bits) - 1);
            match self.format.says(state.read(self.coherent, table, at), lowest) {
                Says::Nothing => return None,
                Says::Table(below) => table = below,
                Says::Leaf(_, size, _) => return Some(size),
            }
        }
        None
    }

    /// The device's IOMMU forgets these pages, and what it knows of the walk to them.
    pub fn invalidate(&self, range: IovaRange, leaf_only: bool) {
        let mut state = self.state();
        state.entries.retain(|page, _| !(range.first()..=range.last()).contains(page));
        if !leaf_only {
            state.tables.retain(|(_, bits, key), _| {
                let first = (key << bits) >> F::GRANULE;
                let last = first + ((1 << (bits - F::GRANULE)) - 1);
                last < range.first() || first > range.last()
            });
        }
    }

    /// Whenever it can the device looks.
    fn prefetch(&self) {
        let mut state = self.state();
        if state.root != 0 {
            for page in state.eyes.clone() {
                let _ = state.access(&self.format, self.coherent, page);
            }
        }
    }
}

impl State {
    fn read(&self, coherent: bool, table: u64, n: usize) -> u64 {
        let (table, n) = (table + (n / ENTRIES * 4096) as u64, n % ENTRIES);
        assert!(self.live.contains_key(&table), "the device walks a table that was freed");
        if coherent {
            // SAFETY: pages are kept until the end.
            let table = unsafe { &*(table as *const Table) };
            table[n].load(Ordering::Acquire)
        } else {
            self.view[&table][n]
        }
    }

    /// As the manual has it, with caches of the walk and of translations.
    fn access<F: Manual>(&mut self, f: &F, coherent: bool, page: u64) -> Option<(u64, Rights)> {
        if let Some(entry) = self.entries.get(&page) {
            return Some(*entry);
        }
        let address = page << F::GRANULE;
        let lookups = f.lookups();
        let cached = |n: usize| {
            let bits = lookups[n - 1].0;
            self.tables.get(&(n, bits, address >> bits)).map(|table| (n, *table))
        };
        let (mut n, mut table) =
            (1..lookups.len()).rev().find_map(cached).unwrap_or((0, self.root));
        loop {
            let (lowest, bits) = lookups[n];
            let at = (address >> lowest) as usize & ((1 << bits) - 1);
            match f.says(self.read(coherent, table, at), lowest) {
                Says::Nothing => return None,
                Says::Table(below) => {
                    n += 1;
                    table = below;
                    self.tables.insert((n, lowest, address >> lowest), table);
                }
                Says::Leaf(phys, size, rights) => {
                    assert_eq!(phys & ((1 << size) - 1), 0, "aligned to its size");
                    let within = (address & ((1 << size) - 1)) >> F::GRANULE;
                    // Small leaves of several pages are remembered as a whole.
                    let pages = 1u64 << (size - F::GRANULE);
                    if pages <= 16 {
                        for n in 0..pages {
                            let entry = (phys + (n << F::GRANULE), rights);
                            self.entries.insert(page - within + n, entry);
                        }
                    }
                    let entry = (phys + (within << F::GRANULE), rights);
                    self.entries.insert(page, entry);
                    return Some(entry);
                }
            }
        }
    }
}

// SAFETY: pages are whole, zeroed, and kept until this is dropped; the device sees what was written
// back.
unsafe impl<F: Manual> TableMemory for super::Shared<F> {
    fn allocate(&self) -> Option<PhysAddr> {
        self.allocate_many(1)
    }

    fn allocate_many(&self, pages: usize) -> Option<PhysAddr> {
        self.prefetch();
        let mut state = self.state();
        state.budget = state.budget.checked_sub(1)?;
        // SAFETY: not of size 0.
        let base = unsafe { alloc(layout(pages)) };
        assert!(!base.is_null());
        // SAFETY: just allocated.
        unsafe { base.write_bytes(0, layout(pages).size()) };
        let phys = base as u64;
        state.all.push((phys, pages));
        let rubbish = self.format.leaf(CANARY, Rights::ReadWrite, 0);
        for n in 0..pages as u64 {
            let chunk = phys + n * 4096;
            state.live.insert(chunk, phys + pages as u64 * 4096 + n * 8);
            state.view.insert(chunk, std::vec![rubbish; ENTRIES]);
        }
        Some(PhysAddr(phys))
    }

    unsafe fn free_many(&self, first: PhysAddr, pages: usize) {
        assert_eq!(first.0 % (pages as u64 * 4096), 0, "as it was allocated");
        // SAFETY: as promised.
        (0..pages as u64).for_each(|n| unsafe { self.free(PhysAddr(first.0 + n * 4096)) });
    }

    unsafe fn free(&self, page: PhysAddr) {
        let mut state = self.state();
        let link = state.live.remove(&page.0).expect("freed once");
        // SAFETY: pages are kept until the end.
        let link = unsafe { &*(link as *const AtomicU64) };
        assert_eq!(link.load(Ordering::Relaxed), 0, "its side table is forgotten");
        let rubbish = self.format.leaf(CANARY, Rights::ReadWrite, 0);
        // SAFETY: pages are kept until the end.
        for slot in unsafe { &*(page.0 as *const Table) } {
            slot.store(rubbish, Ordering::Relaxed);
        }
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        assert!(self.state().live.contains_key(&page.0), "software walks a table that was freed");
        // SAFETY: pages are kept until the end.
        unsafe { &*(page.0 as *const Table) }
    }

    unsafe fn side(&self, page: PhysAddr) -> Option<&AtomicU64> {
        let state = self.state();
        let link = *state.live.get(&page.0).expect("a page that is not freed");
        // SAFETY: pages are kept until the end.
        state.sides.then(|| unsafe { &*(link as *const AtomicU64) })
    }

    fn is_coherent(&self) -> bool {
        self.coherent
    }

    fn write_back(&self, entries: &[AtomicU64]) {
        if entries.len() == 1 {
            let hook = self.hook.lock().expect("not poisoned").take();
            if let Some(hook) = hook {
                hook();
            }
        }
        {
            let mut state = self.state();
            let at = entries.as_ptr() as u64;
            let view = state.view.get_mut(&(at & !0xfff)).expect("one of ours");
            for (n, entry) in entries.iter().enumerate() {
                view[(at & 0xfff) as usize / 8 + n] = entry.load(Ordering::Acquire);
            }
        }
        self.prefetch();
    }
}

impl<F> Drop for Pages<F> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (base, pages) in &state.all {
            // SAFETY: from `alloc`, with this layout.
            unsafe { dealloc(*base as *mut u8, layout(*pages)) };
        }
    }
}
