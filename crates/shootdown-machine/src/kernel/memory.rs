//! Memory calls.

use shootdown::Flushed;
use shootdown::elide::Cached;
use shootdown::flush::{Request, What};
use shootdown::ids::{Stride, VaRange};
use shootdown::policy::Lazy;

use super::areas::Area;
use super::port::{Change, Freed, checked};
use super::state::with;
use super::{Kernel, Space, done};
use crate::engine;
use crate::mmu::{Leaf, Perms, Protected, Root, USER_END};
use crate::oracle::Event;

/// log2 of a 2 MiB span: what a last-level table covers.
const TABLE_SHIFT: u32 = 21;

/// A new, empty space; at setup or while running.
pub(crate) fn create_space(
    alloc: impl FnOnce(std::alloc::Layout) -> std::ptr::NonNull<u8>,
) -> Space {
    let (library, root) =
        with(|s| (s.library, s.memory.new_space().unwrap_or_else(|e| panic!("{e}"))));
    let block = alloc(library.layouts().space);
    library.new_space(root, block);
    with(|s| s.add_space(root, block))
}

fn pages_from(va: u64, pages: u64) -> VaRange {
    VaRange::new(va, pages, Stride::Page4K)
        .unwrap_or_else(|e| panic!("{pages} pages at {va:#x}: {e}"))
}

pub(super) fn page_of(leaf_va: u64, size: Stride) -> VaRange {
    VaRange::new(leaf_va, 1, size).expect("a page that is mapped")
}

impl Kernel {
    /// A new, empty space.
    pub fn new_space(&mut self) -> Space {
        create_space(|layout| engine::with(|e| e.alloc(layout)))
    }

    /// Ends a space: unmaps what it maps, makes CPUs that still have it loaded lazily leave it, and
    /// frees its tables.
    ///
    /// # Panics
    /// When a CPU runs in it.
    pub fn end_space(&mut self, space: Space) {
        self.unmap_in(space, 0, USER_END);
        let (library, handle, root) = with(|s| {
            let state = s.space(space);
            let handle = state.handle.take().expect("checked");
            (s.library, handle, s.spaces[space.0 as usize].root)
        });
        if with(|s| s.policy.lazy == Lazy::Off) {
            // Without lazy mode the library can't tell that a CPU with the space loaded runs a
            // kernel thread; this kernel can.
            let idle = with(|s| s.cpus_with(root));
            library.evict(&idle).unwrap_or_else(|e| panic!("space {}: {e}", space.0));
        }
        library.retire(handle).unwrap_or_else(|e| panic!("space {}: {e}", space.0));
        engine::step();
        with(|s| s.memory.end_space(root).unwrap_or_else(|e| panic!("{e}")));
        engine::with(|e| e.free(handle, library.layouts().space));
    }

    fn space(&self) -> Space {
        self.current().unwrap_or_else(|| panic!("{} runs no space; switch to one first", self.id()))
    }

    /// Maps `pages` pages of this size somewhere, filled on demand; returns where.
    pub fn map(&mut self, pages: u64, size: Stride) -> u64 {
        let space = self.space();
        let va = with(|s| {
            let state = s.space(space);
            let va = state.next_va.next_multiple_of(size.bytes());
            state.next_va = va + pages * size.bytes();
            va
        });
        self.map_at(va, pages, size);
        va
    }

    /// Maps `pages` pages of this size at `va`, filled on demand; what was mapped there is
    /// unmapped.
    pub fn map_at(&mut self, va: u64, pages: u64, size: Stride) {
        let space = self.space();
        let end = va + pages * size.bytes();
        self.unmap_in(space, va, end);
        with(|s| s.space(space).areas.insert(va, Area { end, size, writable: true }));
    }

    /// Unmaps 4 KiB pages; a large page that is partly in the range goes as a whole, and fills
    /// again. Frames, and page tables that became empty, are freed after the flush.
    pub fn unmap(&mut self, va: u64, pages: u64) {
        let space = self.space();
        let range = pages_from(va, pages);
        self.unmap_in(space, range.start(), range.last() + 1);
    }

    /// Gives the frames of pages back; they fill again on demand.
    pub fn discard(&mut self, va: u64, pages: u64) {
        let space = self.space();
        let range = pages_from(va, pages);
        self.begin_call();
        let (root, changes) = with(|s| {
            let root = s.space(space).root;
            (root, s.take_pages(root, range.start(), range.last() + 1))
        });
        self.finish(space, root, changes);
    }

    /// Makes pages writable or read-only. Only the latter needs a flush.
    pub fn protect(&mut self, va: u64, pages: u64, writable: bool) {
        let space = self.space();
        let range = pages_from(va, pages);
        let (start, end) = (range.start(), range.last() + 1);
        self.begin_call();
        let (root, changes, edits) = with(|s| {
            let state = s.space(space);
            state.areas.set_writable(start, end, writable);
            let root = state.root;
            let perms = if writable { Perms::USER_RW } else { Perms::USER_RO };
            let mut changes = Vec::new();
            let mut edits = 0;
            for leaf in s.leaves(root, start, end) {
                edits += 1;
                let protected = s.memory.protect(root, leaf.va, perms);
                if let Some((protected, _)) = protected.filter(|(p, _)| *p != Protected::Same) {
                    changes.push(Change::Rights(page_of(leaf.va, leaf.size), demand(protected)));
                }
            }
            (root, changes, edits)
        });
        if extent(&changes).is_some() {
            self.finish(space, root, changes);
        } else {
            engine::compute(with(|s| s.costs.entry_edit) * edits);
            self.gather(space, changes);
        }
    }

    /// Write-protects dirty pages one by one, each with a flush of its own, as `msync` does; the
    /// next write faults and makes the page writable again. Returns how many were dirty.
    pub fn clean(&mut self, va: u64, pages: u64) -> u64 {
        let space = self.space();
        let range = pages_from(va, pages);
        self.begin_call();
        let (root, leaves) = with(|s| {
            let root = s.space(space).root;
            (root, s.leaves(root, range.start(), range.last() + 1))
        });
        let mut cleaned = 0;
        for leaf in leaves.iter().filter(|l| l.pte.dirty()) {
            engine::step();
            self.act();
            let narrowed = with(|s| s.memory.protect(root, leaf.va, Perms::USER_RO));
            if let Some((Protected::Narrowed, _)) = narrowed {
                cleaned += 1;
                let change = demand(Protected::Narrowed);
                self.finish(space, root, vec![Change::Rights(page_of(leaf.va, leaf.size), change)]);
            }
        }
        cleaned
    }

    /// Flushes pages of the current space without changing anything: for measuring the flush alone.
    pub fn flush(&mut self, va: u64, pages: u64, freed_tables: bool) -> Flushed {
        let space = self.space();
        let request = Request { what: What::Pages(pages_from(va, pages)), freed_tables };
        self.flush_space(space, request)
    }

    /// Flushes any space as asked.
    pub fn flush_space(&mut self, space: Space, request: Request) -> Flushed {
        let (library, handle, root) = with(|s| {
            let library = s.library;
            let state = s.space(space);
            (library, state.handle.expect("checked"), state.root)
        });
        let range = match request.what {
            What::Pages(range) => Some(range),
            What::Space => None,
        };
        engine::step();
        let token = with(|s| s.memory.flush_begins(root, range, request.freed_tables));
        engine::note(Event::FlushBegins {
            root: Some(root),
            range,
            freed_tables: request.freed_tables,
        });
        let flushed = done(library.flush(handle, request));
        self.returned(token);
        flushed
    }

    /// Makes every CPU forget a range of kernel addresses.
    pub fn flush_kernel(&mut self, va: u64, pages: u64) {
        let range = pages_from(va, pages);
        let library = with(|s| s.library);
        engine::step();
        let root = Root::KERNEL;
        let token = with(|s| s.memory.flush_begins(root, Some(range), false));
        engine::note(Event::FlushBegins {
            root: Some(root),
            range: Some(range),
            freed_tables: false,
        });
        library
            .flush_kernel(range)
            .unwrap_or_else(|e| panic!("a kernel flush outside of task context: {e}"));
        self.returned(token);
    }

    /// The part of a memory call before the tables are touched.
    pub(super) fn begin_call(&mut self) {
        engine::compute(with(|s| s.costs.area));
        engine::step();
        self.act();
    }

    /// Tells the oracle who acts.
    pub(super) fn act(&mut self) {
        let (cpu, at) = (self.id().0, engine::now().ps());
        with(|s| s.act_as(cpu, at));
    }

    fn unmap_in(&mut self, space: Space, start: u64, end: u64) {
        self.begin_call();
        let (root, changes) = with(|s| {
            let state = s.space(space);
            let root = state.root;
            state.areas.remove(start, end);
            let (low, high) = state.areas.gap(start, end);
            let mut changes = s.take_pages(root, start, end);
            // A table may go when no area is left that it serves.
            let first =
                low.max(start & !((1 << TABLE_SHIFT) - 1)).next_multiple_of(1 << TABLE_SHIFT);
            let last = high.min(end.next_multiple_of(1 << TABLE_SHIFT)) & !((1 << TABLE_SHIFT) - 1);
            if let Ok(range) = VaRange::covering(first, last, Stride::Page4K) {
                let mut tables = Vec::new();
                s.memory.unhook_empty_tables(root, range, &mut tables);
                for table in tables {
                    let covered =
                        VaRange::covering(table.va, table.va + table.bytes, Stride::Page2M)
                            .expect("a table covers something");
                    changes.push(Change::Table(covered, table));
                }
            }
            (root, changes)
        });
        self.finish(space, root, changes);
    }

    /// Charges for the edits, flushes, and frees what comes out of the flush.
    fn finish(&mut self, space: Space, root: Root, changes: Vec<Change>) {
        let Some((range, freed_tables)) = extent(&changes) else { return };
        engine::compute(with(|s| s.costs.entry_edit) * changes.len() as u64);
        engine::step();
        let token = with(|s| s.memory.flush_begins(root, Some(range), freed_tables));
        engine::note(Event::FlushBegins { root: Some(root), range: Some(range), freed_tables });
        let freed = self.gather(space, changes);
        self.returned(token);
        self.free(freed);
    }

    /// Frees what came out of a flush.
    pub(super) fn free(&mut self, freed: Vec<Freed>) {
        with(|s| {
            for item in freed {
                match item {
                    Freed::Page(page) => s.memory.free(page.frame),
                    Freed::Table(table) => s.memory.free_table(table),
                }
                .unwrap_or_else(|e| panic!("{e}"));
            }
        });
    }

    /// Flushes what the changes demand; what may be freed now.
    fn gather(&mut self, space: Space, changes: Vec<Change>) -> Vec<Freed> {
        let (library, handle) = with(|s| {
            let handle = s.space(space).handle.expect("checked");
            (s.library, handle)
        });
        library
            .gather(handle, changes)
            .unwrap_or_else(|e| panic!("a memory call outside of task context: {e}"))
    }

    pub(super) fn returned(&mut self, token: crate::oracle::FlushToken) {
        engine::step();
        self.act();
        let root = token.root();
        let pages = with(|s| s.memory.flush_returns(token));
        engine::note(Event::FlushReturns);
        if !pages.is_empty() {
            look_around(root, &pages);
        }
    }
}

/// How many pages are looked up on other CPUs after a flush; what lies beyond is found out when it
/// is used.
const LOOKS: usize = 4096;

/// A flush of these pages has returned: no CPU that runs user code may have any of them still.
fn look_around(root: Option<Root>, pages: &[u64]) {
    let found = with(|s| {
        let mut looks = 0;
        for cpu in 0..s.cpus.len() {
            // A kernel thread counts as user mode here, but has no user addresses.
            let Some(space) = s.cpus[cpu].current else { continue };
            let concerned =
                root.is_none_or(|r| r == Root::KERNEL || r == s.spaces[space.0 as usize].root);
            let number = u32::try_from(cpu).expect("at most 4096 CPUs");
            if !concerned || !engine::with(|e| e.is_in_user_mode(number)) {
                continue;
            }
            let mmu = s.mmus.of(cpu);
            for va in pages {
                mmu.check(&s.memory, *va)?;
                looks += 1;
                if looks == LOOKS {
                    return Ok(());
                }
            }
        }
        Ok(())
    });
    checked(found);
}

/// The range that a gather of these changes will flush, if it flushes.
fn extent(changes: &[Change]) -> Option<(VaRange, bool)> {
    let mut all: Option<VaRange> = None;
    let mut freed_tables = false;
    for change in changes {
        let range = match change {
            Change::Rights(_, demand) if demand.is_elided() => continue,
            Change::Unmapped(range, _) | Change::Rights(range, _) => range,
            Change::Table(range, _) => {
                freed_tables = true;
                range
            }
        };
        all = Some(all.map_or(*range, |a| a.merge(range)));
    }
    all.map(|range| (range, freed_tables))
}

/// What a change of a leaf's rights demands.
const fn demand(protected: Protected) -> shootdown::Change {
    match protected {
        Protected::Same => shootdown::Change::Nothing,
        Protected::Widened => shootdown::Change::Upgrade,
        Protected::Narrowed => shootdown::Change::Flush(Cached::Leaf),
    }
}

impl super::state::State {
    /// CPUs that have tables loaded but run no program in them.
    fn cpus_with(&self, root: Root) -> Vec<u32> {
        (0..)
            .zip(&self.cpus)
            .filter(|(_, c)| c.current.is_none() && c.loaded.is_some_and(|(r, _)| r == root))
            .map(|(cpu, _)| cpu)
            .collect()
    }

    pub(super) fn leaves(&self, root: Root, start: u64, end: u64) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        self.memory.for_each_leaf(root, start, end, |leaf| leaves.push(leaf));
        leaves
    }

    /// Unmaps every page of `[start, end)`.
    fn take_pages(&mut self, root: Root, start: u64, end: u64) -> Vec<Change> {
        let leaves = self.leaves(root, start, end);
        let mut changes = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            if let Some(page) = self.memory.unmap(root, leaf.va) {
                changes.push(Change::Unmapped(page_of(page.va, page.size), page));
            }
        }
        changes
    }
}
