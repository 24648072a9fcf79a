//! Physical memory with its page tables, shared by all CPUs, and the oracle's record of changes to
//! it.

use shootdown::{Stride, VaRange};

use crate::mmu::addr::{Frame, KERNEL_BASE, Root, SlotId, TableId, index};
use crate::mmu::array::Entry;
use crate::mmu::frames::Frames;
use crate::mmu::pte::Pte;
use crate::mmu::tables::MemoryError;
use crate::oracle::{Bound, Epoch, FlushToken, Invariant, Kind, Revocations, Stamp};

/// Where a table page is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TableState {
    Hooked,
    Unhooked,
    Free,
}

/// A page of a page table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) entries: Box<[Pte]>,
    /// Per entry: the latest change to it that has become binding. Never reset: epochs only grow,
    /// so what was binding for an earlier life of the table accuses nothing made later.
    binding: Box<[Epoch]>,
    /// Per entry: when its accessed bit was last cleared, and when that was told. Never reset
    /// either. Made when the first bit is cleared.
    aged: Option<Box<[(Epoch, Epoch)]>>,
    pub(crate) present: u16,
    pub(crate) state: TableState,
    freed: Epoch,
}

/// A tree of tables.
#[derive(Debug)]
struct Space {
    table: TableId,
    live: bool,
    /// When accessed bits were last cleared in it.
    aged: Epoch,
}

/// All that lies behind the TLBs.
#[derive(Debug)]
pub struct Memory {
    pub(crate) frames: Frames,
    pub(crate) tables: Vec<Table>,
    free_tables: Vec<TableId>,
    spaces: Vec<Space>,
    pub(crate) record: Revocations,
}

/// A stale entry was used.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) invariant: Invariant,
    /// The change that was missed, as far as it is remembered.
    pub(crate) missed: Option<Bound>,
}

impl Memory {
    /// Memory of `frames` frames of 4 KiB for data; page tables are extra. Holds the kernel's
    /// tables ([`Root::KERNEL`]) and nothing else.
    #[must_use]
    pub fn new(frames: u64) -> Self {
        let mut memory = Self {
            frames: Frames::new(frames),
            tables: Vec::new(),
            free_tables: Vec::new(),
            spaces: Vec::new(),
            record: Revocations::new(),
        };
        // Neither can fail: nothing has been allocated yet.
        if let (Ok(top), Ok(upper)) = (memory.new_table(), memory.new_table()) {
            let t = &mut memory.tables[top.0 as usize];
            // What every root shares: set up once, so that it never changes later.
            t.entries[index(KERNEL_BASE, 3)] = Pte::table(upper);
            t.present = 1;
            memory.spaces.push(Space { table: top, live: true, aged: Epoch(0) });
            memory.record.add_space();
        }
        memory
    }

    /// A new tree of tables: an empty user half, and the kernel's upper half.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`].
    pub fn new_space(&mut self) -> Result<Root, MemoryError> {
        let number = u32::try_from(self.spaces.len()).map_err(|_| MemoryError::OutOfMemory)?;
        let top = self.new_table()?;
        let at = index(KERNEL_BASE, 3);
        let shared = self.tables[self.spaces[0].table.0 as usize].entries[at];
        let t = &mut self.tables[top.0 as usize];
        t.entries[at] = shared;
        t.present = 1;
        self.spaces.push(Space { table: top, live: true, aged: Epoch(0) });
        self.record.add_space();
        Ok(Root(number))
    }

    /// Ends a space: frees its top-level table. Its user half must be empty, its tables unhooked.
    ///
    /// # Errors
    /// [`MemoryError::NoSuchSpace`] when it has ended before (or is the kernel's),
    /// [`MemoryError::InUse`] when something is still mapped.
    pub fn end_space(&mut self, root: Root) -> Result<(), MemoryError> {
        let top = self
            .top(root)
            .filter(|_| root != Root::KERNEL)
            .ok_or(MemoryError::NoSuchSpace(root))?;
        if self.tables[top.0 as usize].present != 1 {
            return Err(MemoryError::InUse(root));
        }
        self.spaces[root.0 as usize].live = false;
        self.retire_table(top);
        Ok(())
    }

    /// The top-level table of a live space.
    #[inline]
    pub(crate) fn top(&self, root: Root) -> Option<TableId> {
        self.spaces.get(root.0 as usize).filter(|s| s.live).map(|s| s.table)
    }

    /// Whether a space exists and has not ended.
    #[must_use]
    pub fn is_live(&self, root: Root) -> bool {
        self.top(root).is_some()
    }

    pub(crate) fn new_table(&mut self) -> Result<TableId, MemoryError> {
        if let Some(id) = self.free_tables.pop() {
            let t = &mut self.tables[id.0 as usize];
            t.entries.fill(Pte::EMPTY);
            t.state = TableState::Hooked;
            return Ok(id);
        }
        // A slot is named by 32 bits, nine of them for the place in the table.
        if self.tables.len() >= 1 << 23 {
            return Err(MemoryError::OutOfMemory);
        }
        self.tables.push(Table {
            entries: vec![Pte::EMPTY; 512].into_boxed_slice(),
            binding: vec![Epoch(0); 512].into_boxed_slice(),
            aged: None,
            present: 0,
            state: TableState::Hooked,
            freed: Epoch(0),
        });
        Ok(TableId(self.tables.len() as u32 - 1))
    }

    pub(crate) fn retire_table(&mut self, id: TableId) {
        let now = self.record.freed();
        let t = &mut self.tables[id.0 as usize];
        t.entries.fill(Pte::POISON);
        t.present = 0;
        t.state = TableState::Free;
        t.freed = now;
        self.free_tables.push(id);
    }

    /// A free frame, or 512 or 262,144 in a row for a large page.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`].
    pub fn alloc(&mut self, size: Stride) -> Result<Frame, MemoryError> {
        self.frames.alloc(size)
    }

    /// Gives back what [`Memory::alloc`] gave. From now on nobody may reach it through an earlier
    /// translation.
    ///
    /// # Errors
    /// [`MemoryError::NotOwned`] when it is free already or was not given in this form.
    pub fn free(&mut self, frame: Frame) -> Result<(), MemoryError> {
        self.frames.check(frame)?;
        let now = self.record.freed();
        self.frames.free(frame, now)
    }

    /// Frames given out and not given back, in units of 4 KiB.
    #[must_use]
    pub fn frames_owned(&self) -> u64 {
        self.frames.owned()
    }

    /// Table pages in use.
    #[must_use]
    pub fn tables_owned(&self) -> usize {
        self.tables.len() - self.free_tables.len()
    }

    /// Says who makes the next changes, for explanations.
    #[inline]
    pub fn act_as(&mut self, actor: Stamp) {
        self.record.act_as(actor);
    }

    /// A flush is asked for: of a range or of everything of a space. Call it before the flush does
    /// anything; the changes made so far are what it covers.
    pub fn flush_begins(
        &self,
        root: Root,
        range: Option<VaRange>,
        freed_tables: bool,
    ) -> FlushToken {
        self.record.begin(Some(root), range, freed_tables)
    }

    /// A flush of everything of everyone is asked for.
    pub fn flush_everything_begins(&self) -> FlushToken {
        self.record.begin(None, None, true)
    }

    /// The flush has returned to its caller: what it covers is binding from now on. Returns the
    /// pages concerned, by their first address.
    pub fn flush_returns(&mut self, token: FlushToken) -> Vec<u64> {
        let tables = &mut self.tables;
        let mut pages = Vec::new();
        self.record.complete(&token, |slot, kind, epoch, first| {
            let place = &mut tables[slot.table().0 as usize].binding[slot.index()];
            *place = (*place).max(epoch);
            if kind == Kind::Leaf {
                pages.push(first);
            }
        });
        pages
    }

    /// The accessed bit of an entry was cleared at `cleared`; from now on the library has been
    /// told.
    pub(crate) fn aging_told(&mut self, root: Root, slot: SlotId, cleared: Epoch) {
        let told = self.record.aged();
        self.spaces[root.0 as usize].aged = told;
        let table = &mut self.tables[slot.table().0 as usize];
        let never = (Epoch(0), Epoch(0));
        let aged = table.aged.get_or_insert_with(|| vec![never; 512].into_boxed_slice());
        aged[slot.index()] = (cleared, told);
    }

    /// When clearing accessed bits was last told in a space; 0 for never.
    pub(crate) fn aged(&self, root: Root) -> Epoch {
        self.spaces[root.0 as usize].aged
    }

    /// Does this entry come from before its accessed bit was cleared, which was told by `since`?
    pub(crate) fn has_aged(&self, entry: &Entry, since: Epoch) -> bool {
        let aged = &self.tables[entry.slot.table().0 as usize].aged;
        let Some((cleared, told)) = aged.as_ref().map(|aged| aged[entry.slot.index()]) else {
            return false;
        };
        cleared > entry.filled && told <= since
    }

    /// How many revoking changes of a space no flush has covered yet.
    #[must_use]
    pub fn pending(&self, root: Root) -> usize {
        if (root.0 as usize) < self.spaces.len() { self.record.pending(root) } else { 0 }
    }

    pub(crate) fn revoke(&mut self, root: Root, slot: SlotId, kind: Kind, first: u64, last: u64) {
        self.record.change(root, slot, kind, first, last);
    }

    /// Does a table live in this page?
    pub(crate) fn is_table(&self, id: TableId) -> bool {
        self.tables[id.0 as usize].state != TableState::Free
    }

    #[inline]
    pub(crate) fn now(&self) -> Epoch {
        self.record.now()
    }

    /// May this leaf entry still be used, for the 4 KiB unit `frame` of its page? Where several
    /// promises are broken, the one that was broken first is named: that of the flush, if one
    /// has returned.
    pub(crate) fn check_leaf(&self, entry: &Entry, frame: Frame) -> Result<(), Finding> {
        if self.binding(entry.slot) > entry.filled {
            return Err(self.finding(Invariant::Revocation, entry));
        }
        if self.frames.freed(frame) > entry.filled {
            return Err(self.finding(Invariant::FrameReuse, entry));
        }
        Ok(())
    }

    /// May a walk still start from this walk-cache entry?
    pub(crate) fn check_walk(&self, entry: &Entry) -> Result<(), Finding> {
        if self.binding(entry.slot) > entry.filled {
            return Err(self.finding(Invariant::WalkCacheReuse, entry));
        }
        if self.tables[entry.frame.0 as usize].freed > entry.filled {
            return Err(self.finding(Invariant::TableReuse, entry));
        }
        Ok(())
    }

    fn binding(&self, slot: SlotId) -> Epoch {
        self.tables[slot.table().0 as usize].binding[slot.index()]
    }

    fn finding(&self, invariant: Invariant, entry: &Entry) -> Finding {
        let missed = self.record.explain(entry.slot, entry.filled).copied();
        Finding { invariant, missed }
    }
}
