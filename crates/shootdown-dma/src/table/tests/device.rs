//! Memory for tables, and a device that walks them with caches that lose nothing by themselves.
//!
//! Freed pages are poisoned, and kept: who walks one is caught. If the memory is not coherent the device sees what was last
//! written back, and in new pages what the last owner left there: entries that lead to memory of others.

use std::alloc::{Layout, alloc, dealloc};
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

use super::super::memory::{ENTRIES, Table};
use super::super::{Decoded, Format, TableMemory, index, span};
use crate::addr::{IovaRange, PhysAddr, Rights};
use crate::sync::{AtomicU64, Ordering};

/// Nobody's memory.
const CANARY: PhysAddr = PhysAddr(0xdead_b000);

struct State {
    live: BTreeSet<u64>,
    all: Vec<u64>,
    /// What a walker that is not coherent sees.
    view: BTreeMap<u64, Vec<u64>>,
    /// So many pages more.
    budget: usize,
    /// There are words for side tables.
    sides: bool,
    root: u64,
    eyes: Vec<u64>,
    /// Cached of the walk: the table at this level that covers pages from this one on.
    tables: BTreeMap<(u32, u64), u64>,
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

fn layout() -> Layout {
    // A page, and behind it the host's record of it.
    Layout::from_size_align(8192, 4096).expect("a page")
}

impl<F: Format> Pages<F> {
    pub fn new(format: F, coherent: bool, eyes: &[u64]) -> Self {
        let state = State {
            live: BTreeSet::new(),
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

    /// The device's IOMMU forgets these pages, and what it knows of the walk to them.
    pub fn invalidate(&self, range: IovaRange, leaf_only: bool) {
        let mut state = self.state();
        state.entries.retain(|page, _| !(range.first()..=range.last()).contains(page));
        if !leaf_only {
            state.tables.retain(|(level, first), _| {
                let last = first + (span(level + 1) - 1);
                last < range.first() || *first > range.last()
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
        assert!(self.live.contains(&table), "the device walks a table that was freed");
        if coherent {
            // SAFETY: pages are kept until the end.
            let table = unsafe { &*(table as *const Table) };
            table[n].load(Ordering::Acquire)
        } else {
            self.view[&table][n]
        }
    }

    fn access<F: Format>(&mut self, f: &F, coherent: bool, page: u64) -> Option<(u64, Rights)> {
        if let Some(entry) = self.entries.get(&page) {
            return Some(*entry);
        }
        let top = f.levels() - 1;
        let cached = |level: u32| {
            let first = page & !(span(level + 1) - 1);
            self.tables.get(&(level, first)).map(|table| (level, *table))
        };
        let (mut level, mut table) = (0..top).find_map(cached).unwrap_or((top, self.root));
        loop {
            let word = self.read(coherent, table, index(page, level));
            match f.decode(word, level) {
                Decoded::Table(below) => {
                    level -= 1;
                    table = below.0;
                    self.tables.insert((level, page & !(span(level + 1) - 1)), table);
                }
                Decoded::Leaf(phys, rights) => {
                    let low = phys.0 & ((span(level) << 12) - 1);
                    assert_eq!(low, 0, "reserved bits of a superpage are set");
                    let phys = phys.0 + ((page % span(level)) << 12);
                    self.entries.insert(page, (phys, rights));
                    return Some((phys, rights));
                }
                _ => return None,
            }
        }
    }
}

// SAFETY: pages are whole, zeroed, and kept until this is dropped; the device sees what was written back.
unsafe impl<F: Format> TableMemory for super::Shared<F> {
    fn allocate(&self) -> Option<PhysAddr> {
        self.prefetch();
        let mut state = self.state();
        state.budget = state.budget.checked_sub(1)?;
        // SAFETY: not of size 0.
        let page = unsafe { alloc(layout()) };
        assert!(!page.is_null());
        // SAFETY: just allocated.
        unsafe { page.write_bytes(0, 8192) };
        let phys = page as u64;
        state.live.insert(phys);
        state.all.push(phys);
        let rubbish = self.format.leaf(CANARY, Rights::ReadWrite, 0);
        state.view.insert(phys, std::vec![rubbish; ENTRIES]);
        Some(PhysAddr(phys))
    }

    unsafe fn free(&self, page: PhysAddr) {
        let mut state = self.state();
        assert!(state.live.remove(&page.0), "freed twice");
        // SAFETY: pages are kept until the end.
        let link = unsafe { &*((page.0 + 4096) as *const AtomicU64) };
        assert_eq!(link.load(Ordering::Relaxed), 0, "its side table is forgotten");
        let rubbish = self.format.leaf(CANARY, Rights::ReadWrite, 0);
        // SAFETY: pages are kept until the end.
        for slot in unsafe { &*(page.0 as *const Table) } {
            slot.store(rubbish, Ordering::Relaxed);
        }
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        assert!(self.state().live.contains(&page.0), "software walks a table that was freed");
        // SAFETY: pages are kept until the end.
        unsafe { &*(page.0 as *const Table) }
    }

    unsafe fn side(&self, page: PhysAddr) -> Option<&AtomicU64> {
        let state = self.state();
        assert!(state.live.contains(&page.0), "asks about a page that was freed");
        // SAFETY: pages are kept until the end.
        state.sides.then(|| unsafe { &*((page.0 + 4096) as *const AtomicU64) })
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
        for page in &state.all {
            // SAFETY: from `alloc`, with this layout.
            unsafe { dealloc(*page as *mut u8, layout()) };
        }
    }
}
