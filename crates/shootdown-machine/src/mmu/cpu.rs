//! One CPU's MMU: what it has loaded and cached, and what it may be told to forget.

use shootdown::{CpuId, Stride, Tag, VaRange};

use crate::mmu::Frame;
use crate::mmu::addr::{self, Root};
use crate::mmu::array::{Entry, key};
use crate::mmu::counters::MmuCounters;
use crate::mmu::geometry::{GeometryError, TlbGeometry, UpperLevels};
use crate::mmu::lines::Lines;
use crate::mmu::memory::Memory;
use crate::mmu::tags::{Contexts, Exhausted, MAX_TAGS, TagState};
use crate::mmu::tlb::{In, Tlb};
use crate::mmu::translation::{Access, Found, Translation, Trap};
use crate::mmu::walk_cache::WalkCaches;
use crate::oracle::{Epoch, Invariant, Violation};

/// The MMU of one CPU. Starts with the kernel's tables loaded under tag 0 and nothing cached.
#[derive(Debug)]
pub struct CpuMmu {
    pub(crate) id: CpuId,
    pub(crate) tlb: Tlb,
    pub(crate) walk_caches: WalkCaches,
    pub(crate) lines: Lines,
    upper_levels: UpperLevels,
    pub(crate) root: Root,
    /// Of the loaded tag; copies of what `tags[current]` says, for the hit path.
    pub(crate) context: u32,
    pub(crate) global: u32,
    pub(crate) global_used: bool,
    pub(crate) contexts: Contexts,
    pub(crate) walk_contexts: Contexts,
    pub(crate) tags: Vec<TagState>,
    pub(crate) current: usize,
    pub(crate) counters: MmuCounters,
}

/// What is a CPU's own where several share an MMU.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    id: CpuId,
    root: Root,
    tag: Tag,
    counters: MmuCounters,
}

impl Registers {
    /// As after [`CpuMmu::new`].
    #[must_use]
    pub fn new(id: CpuId) -> Self {
        Self { id, root: Root::KERNEL, tag: Tag(0), counters: MmuCounters::default() }
    }

    /// What the CPU counted.
    #[must_use]
    pub fn counters(&self) -> &MmuCounters {
        &self.counters
    }
}

impl CpuMmu {
    /// Another CPU comes that shares this MMU; returns what the last one had loaded. Entries stay.
    pub fn change_places(&mut self, next: Registers) -> Registers {
        let (root, tag) = self.loaded();
        let last = Registers { id: self.id, root, tag, counters: self.counters };
        self.current = match self.tags.iter().position(|t| t.tag == next.tag) {
            Some(i) => i,
            None => {
                let i = self.add_tag(next.tag);
                self.tags[i].owner = next.root;
                i
            }
        };
        self.id = next.id;
        self.root = next.root;
        self.counters = next.counters;
        self.context = self.tags[self.current].context;
        last
    }

    /// An MMU of this shape.
    ///
    /// # Errors
    /// When the shape is impossible.
    pub fn new(id: CpuId, geometry: &TlbGeometry) -> Result<Self, GeometryError> {
        geometry.check()?;
        let mut mmu = Self {
            id,
            tlb: Tlb::new(geometry),
            walk_caches: WalkCaches::new(geometry.walk_cache),
            lines: Lines::new(geometry.near_lines, geometry.typical_lines),
            upper_levels: geometry.upper_levels,
            root: Root::KERNEL,
            context: 0,
            global: 0,
            global_used: false,
            contexts: Contexts::new(),
            walk_contexts: Contexts::new(),
            tags: Vec::new(),
            current: 0,
            counters: MmuCounters::default(),
        };
        mmu.renew_global();
        mmu.current = mmu.add_tag(Tag(0));
        mmu.context = mmu.tags[mmu.current].context;
        Ok(mmu)
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counters(&self) -> &MmuCounters {
        &self.counters
    }

    /// The loaded tables and tag.
    #[must_use]
    pub fn loaded(&self) -> (Root, Tag) {
        (self.root, self.tags[self.current].tag)
    }

    /// Loads a root: new entries are cached under `tag`. Without `keep`, what is cached under it is
    /// dropped.
    ///
    /// # Errors
    /// [`Invariant::TagReuse`] when entries are kept that were made from another root;
    /// [`Invariant::TableReuse`] when the root's tables have been freed.
    pub fn load(
        &mut self,
        mem: &Memory,
        root: Root,
        tag: Tag,
        keep: bool,
    ) -> Result<(), Box<Violation>> {
        if !mem.is_live(root) {
            let what = format!("loads {root}, whose tables have been freed");
            return Err(self.violation(Invariant::TableReuse, Some(root), None, what));
        }
        let i = match self.tags.iter().position(|t| t.tag == tag) {
            Some(i) => i,
            None => self.add_tag(tag),
        };
        let state = self.tags[i];
        if keep {
            if (state.used || state.walk_used) && state.owner != root {
                let what = format!(
                    "loads {root} under tag {}, keeping entries that were made from {}",
                    tag.0, state.owner
                );
                return Err(self.violation(Invariant::TagReuse, Some(root), None, what));
            }
            self.counters.loads_kept += 1;
        } else {
            self.renew(i);
            self.renew_walk(i);
            self.counters.loads_flushed += 1;
        }
        self.tags[i].owner = root;
        self.tags[i].loaded = mem.now();
        self.current = i;
        self.root = root;
        self.context = self.tags[i].context;
        Ok(())
    }

    /// Translates an address for an access by the loaded tables' user or by the kernel.
    ///
    /// # Errors
    /// [`Trap::Fault`] when the tables don't allow it, [`Trap::Violation`] when the access went
    /// through something that nobody may use any more.
    #[inline]
    pub fn translate(
        &mut self,
        mem: &mut Memory,
        va: u64,
        access: Access,
    ) -> Result<Translation, Trap> {
        let need = access.need();
        if addr::canonical(va)
            && let Some(e) = self.tlb.find_first_4k(addr::vpn(va), self.context)
            && e.rights & need == need
            && e.verified >= mem.record.last_event()
        {
            self.counters.l1_hits += 1;
            return Ok(Translation { frame: e.frame, found: Found::First });
        }
        self.translate_slowly(mem, va, need)
    }

    #[inline(never)]
    fn translate_slowly(
        &mut self,
        mem: &mut Memory,
        va: u64,
        need: u32,
    ) -> Result<Translation, Trap> {
        if !addr::canonical(va) {
            return Err(self.not_canonical(va));
        }
        let vpn = addr::vpn(va);
        let mut context = self.context;
        let mut found = self.tlb.find(vpn, context);
        if found.is_none() && self.global_used {
            context = self.global;
            found = self.tlb.find(vpn, context);
        }
        let Some((mut entry, size, place)) = found else {
            self.counters.walks += 1;
            return self.walk(mem, va, need);
        };
        if entry.rights & need != need {
            // A right that was added since, or the dirty bit to be set: the tables decide.
            self.counters.assists += 1;
            self.tlb.drop_page(vpn, context);
            return self.walk(mem, va, need);
        }
        let offset = vpn & ((size.bytes() >> 12) - 1);
        let frame = Frame(entry.frame.0 + offset as u32);
        if entry.verified < mem.record.last_event() {
            if let Err(violation) = mem.check_leaf(&entry, frame) {
                return Err(Trap::Violation(self.stale(&violation, va, "an entry")));
            }
            entry.verified = mem.now();
        }
        self.tlb.insert_first(vpn, context, size, entry, &self.contexts);
        let found = match place {
            In::First => {
                self.counters.l1_hits += 1;
                Found::First
            }
            In::Second => {
                self.counters.l2_hits += 1;
                Found::Second
            }
        };
        Ok(Translation { frame, found })
    }

    /// As an adversary or a prefetcher: caches the translation of an address if the tables have
    /// one, without anyone using it. Returns whether they have.
    ///
    /// # Errors
    /// [`Trap::Violation`] when the walk reached a freed table.
    pub fn speculate(&mut self, mem: &mut Memory, va: u64) -> Result<bool, Box<Violation>> {
        if !addr::canonical(va) || self.tlb.find(addr::vpn(va), self.context).is_some() {
            return Ok(false);
        }
        match self.walk(mem, va, 0) {
            Ok(_) => Ok(true),
            Err(Trap::Fault(_)) => Ok(false),
            Err(Trap::Violation(violation)) => Err(violation),
        }
    }

    /// Drops the entries of a range under a tag: one single-page invalidation per stride, so an
    /// entry goes when it translates the first address of a stride. Under the loaded tag global
    /// entries go too (INVLPG), under another they stay (INVPCID type 0).
    pub fn invalidate_range(&mut self, tag: Tag, range: VaRange, leaf_only: bool) {
        self.counters.range_invalidations += 1;
        self.counters.page_invalidations += range.count();
        let Some(i) = self.tags.iter().position(|t| t.tag == tag) else { return };
        if i == self.current {
            self.drop_under_loaded(range, leaf_only);
            return;
        }
        let state = self.tags[i];
        if state.used {
            self.tlb.drop_range(range, state.context);
        }
        if state.walk_used && (self.upper_levels != UpperLevels::PathUnlessLeafOnly || !leaf_only) {
            self.walk_caches.drop_paths(range, state.walk_context);
        }
    }

    /// As one INVLPG per stride.
    fn drop_under_loaded(&mut self, range: VaRange, leaf_only: bool) {
        let state = self.tags[self.current];
        if state.used {
            self.tlb.drop_range(range, state.context);
        }
        if self.global_used {
            self.tlb.drop_range(range, self.global);
        }
        match self.upper_levels {
            _ if !state.walk_used => {}
            UpperLevels::AllOfTag => self.renew_walk(self.current),
            UpperLevels::PathUnlessLeafOnly if leaf_only => {}
            _ => self.walk_caches.drop_paths(range, state.walk_context),
        }
    }

    /// Drops everything under a tag but global entries.
    pub fn invalidate_tag(&mut self, tag: Tag) {
        self.counters.tag_invalidations += 1;
        if let Some(i) = self.tags.iter().position(|t| t.tag == tag) {
            self.renew(i);
            self.renew_walk(i);
        }
    }

    /// Drops the entries of a kernel range under the loaded tag, and global ones. What is cached
    /// under other tags stays, as with INVLPG.
    pub fn invalidate_kernel(&mut self, range: VaRange) {
        self.counters.kernel_invalidations += 1;
        self.drop_under_loaded(range, false);
    }

    /// Drops the entries of a range under every tag, global ones included, and all walk caches:
    /// what a hypervisor does for its guest.
    pub fn invalidate_range_of_all(&mut self, range: VaRange) {
        self.counters.range_invalidations += 1;
        self.counters.page_invalidations += range.count();
        for i in 0..self.tags.len() {
            let state = self.tags[i];
            if state.used {
                self.tlb.drop_range(range, state.context);
            }
            if state.walk_used {
                self.renew_walk(i);
            }
        }
        if self.global_used {
            self.tlb.drop_range(range, self.global);
        }
    }

    /// Drops everything.
    pub fn invalidate_everything(&mut self) {
        self.counters.full_invalidations += 1;
        for i in 0..self.tags.len() {
            self.renew(i);
            self.renew_walk(i);
        }
        if self.global_used {
            self.contexts.kill(self.global);
            self.renew_global();
        }
    }

    /// Puts a fresh translation where later accesses find it.
    pub(crate) fn fill(&mut self, va: u64, size: Stride, entry: Entry, global: bool) {
        let context = if global { self.global } else { self.context };
        self.tlb.fill(addr::vpn(va), context, size, entry, &self.contexts);
        self.counters.refills += 1;
        if global {
            self.global_used = true;
        } else {
            self.tags[self.current].used = true;
        }
    }

    fn add_tag(&mut self, tag: Tag) -> usize {
        if self.tags.len() >= MAX_TAGS {
            // Forgetting is always allowed.
            if let Some(oldest) = (0..self.tags.len())
                .filter(|i| *i != self.current)
                .min_by_key(|i| self.tags[*i].loaded)
            {
                self.contexts.kill(self.tags[oldest].context);
                self.walk_contexts.kill(self.tags[oldest].walk_context);
                self.tags.swap_remove(oldest);
                if self.current == self.tags.len() {
                    self.current = oldest;
                }
            }
        }
        let i = self.tags.len();
        self.tags.push(TagState {
            tag,
            context: 0,
            walk_context: 0,
            owner: Root::KERNEL,
            used: false,
            walk_used: false,
            loaded: Epoch::default(),
        });
        self.assign(i);
        self.assign_walk(i);
        i
    }

    /// Forgets the leaf entries of a tag.
    fn renew(&mut self, i: usize) {
        if self.tags[i].used {
            self.contexts.kill(self.tags[i].context);
            self.assign(i);
        }
    }

    /// Gives a tag a context that nothing is cached in.
    fn assign(&mut self, i: usize) {
        self.tags[i].used = false;
        match self.contexts.allocate() {
            Ok(context) => self.tags[i].context = context,
            Err(Exhausted) => self.restart_contexts(),
        }
        self.context = self.tags[self.current].context;
    }

    fn restart_contexts(&mut self) {
        self.tlb.retain(|_| false);
        self.contexts.restart();
        for t in &mut self.tags {
            // Fewer tags than contexts: there is always one.
            t.context = self.contexts.allocate().unwrap_or_default();
            t.used = false;
        }
        self.global = self.contexts.allocate().unwrap_or_default();
        self.global_used = false;
    }

    fn renew_global(&mut self) {
        self.global_used = false;
        match self.contexts.allocate() {
            Ok(context) => self.global = context,
            Err(Exhausted) => {
                self.restart_contexts();
                self.context = self.tags[self.current].context;
            }
        }
    }

    /// Forgets the walk-cache entries of a tag.
    fn renew_walk(&mut self, i: usize) {
        if self.tags[i].walk_used {
            self.walk_contexts.kill(self.tags[i].walk_context);
            self.assign_walk(i);
        }
    }

    fn assign_walk(&mut self, i: usize) {
        self.tags[i].walk_used = false;
        match self.walk_contexts.allocate() {
            Ok(context) => self.tags[i].walk_context = context,
            Err(Exhausted) => {
                self.walk_caches.clear();
                self.walk_contexts.restart();
                for t in &mut self.tags {
                    t.walk_context = self.walk_contexts.allocate().unwrap_or_default();
                    t.walk_used = false;
                }
            }
        }
    }
}

/// No live context is 0, so that no key is (0 marks an empty place).
const _: () = assert!(key(0, 0, 1) != 0);
