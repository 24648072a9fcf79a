//! Editing page tables, one entry at a time, as a kernel does.
//!
//! Every edit changes memory and nothing else. One that takes something away is told to the
//! oracle's record; it is the caller who owes the flush.

use shootdown::{Stride, VaRange};

use crate::mmu::addr::{
    Frame, KERNEL_BASE, KERNEL_BYTES, Root, SlotId, TableId, USER_END, canonical, index,
    leaf_level, leaf_size,
};
use crate::mmu::memory::{Memory, TableState};
use crate::mmu::pte::{Perms, Pte};
use crate::oracle::Kind;

/// Memory can't be given or taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// There is no free memory of that size.
    #[error("out of simulated memory; free some or build the machine with more")]
    OutOfMemory,
    /// Free already, or not the first frame of a page that was given out.
    #[error("{0} is not the start of memory in use; it was freed before or never allocated")]
    NotOwned(Frame),
    /// A table that is hooked, free, or unknown.
    #[error("{0} is not an unhooked table; unhook it, flush, then free it once")]
    NotUnhooked(TableId),
    /// No such space, or it has ended.
    #[error("{0} does not exist (any more)")]
    NoSuchSpace(Root),
    /// Something is still mapped.
    #[error("{0} still maps something; unmap it and unhook its tables first")]
    InUse(Root),
}

/// A page can't be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// Memory for a table, or the space.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The address or the frame is no multiple of the page size.
    #[error("address {0:#x} or its frame is not aligned to the page size")]
    Misaligned(u64),
    /// Outside of the user half, or for the kernel's tables outside of its window.
    #[error("address {0:#x} is outside of what these tables map")]
    OutOfRange(u64),
    /// Something is mapped there, or a table of smaller pages is.
    #[error("address {0:#x} is mapped already, or has a table of smaller pages; unmap first")]
    Occupied(u64),
}

/// A translation as the tables have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The address of the page.
    pub va: u64,
    /// Its size.
    pub size: Stride,
    /// The entry.
    pub pte: Pte,
    /// Where the entry is.
    pub slot: SlotId,
}

/// A translation that was removed. Its frame may be freed when the flush has returned.
#[must_use = "the frame is pending to the allocator, after the flush"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unmapped {
    /// The address of the page.
    pub va: u64,
    /// Its size.
    pub size: Stride,
    /// What it mapped.
    pub frame: Frame,
    /// The walker had used it.
    pub accessed: bool,
    /// It had been stored to.
    pub dirty: bool,
}

/// A table page that was taken out of the tree. It may be freed when the flush has returned.
#[must_use = "the table is pending to the allocator, after the flush"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TablePage {
    /// The table.
    pub table: TableId,
    /// First address it translated.
    pub va: u64,
    /// How many bytes it translated.
    pub bytes: u64,
}

/// What a change of rights did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protected {
    /// Nothing: the rights were these.
    Same,
    /// Rights were only added: no flush is pending.
    Widened,
    /// Something was taken away: a flush is pending.
    Narrowed,
}

impl Memory {
    /// Maps a page.
    ///
    /// # Errors
    /// See [`MapError`]; nothing is changed then, but tables on the way may have been added.
    pub fn map(
        &mut self,
        root: Root,
        va: u64,
        frame: Frame,
        size: Stride,
        perms: Perms,
    ) -> Result<(), MapError> {
        let top = self.top(root).ok_or(MemoryError::NoSuchSpace(root))?;
        let frames = size.bytes() >> 12;
        if !va.is_multiple_of(size.bytes()) || !u64::from(frame.0).is_multiple_of(frames) {
            return Err(MapError::Misaligned(va));
        }
        if !in_reach(root, va, va + (size.bytes() - 1)) {
            return Err(MapError::OutOfRange(va));
        }
        let mut table = top;
        for level in (leaf_level(size) + 1..=3).rev() {
            table = self.descend_or_add(table, va, level)?;
        }
        let t = &mut self.tables[table.0 as usize];
        let place = &mut t.entries[index(va, leaf_level(size))];
        if place.present() {
            return Err(MapError::Occupied(va));
        }
        *place = Pte::leaf(frame, size != Stride::Page4K, perms);
        t.present += 1;
        Ok(())
    }

    fn descend_or_add(&mut self, table: TableId, va: u64, level: u8) -> Result<TableId, MapError> {
        let i = index(va, level);
        let pte = self.tables[table.0 as usize].entries[i];
        if !pte.present() {
            let next = self.new_table()?;
            let t = &mut self.tables[table.0 as usize];
            t.entries[i] = Pte::table(next);
            t.present += 1;
            return Ok(next);
        }
        if pte.large() { Err(MapError::Occupied(va)) } else { Ok(pte.next()) }
    }

    /// The translation of an address as the tables have it now. Sets no bits.
    #[must_use]
    pub fn lookup(&self, root: Root, va: u64) -> Option<Leaf> {
        let mut table = self.top(root)?;
        if !canonical(va) {
            return None;
        }
        for level in (0..=3).rev() {
            let i = index(va, level);
            let pte = self.tables[table.0 as usize].entries[i];
            if !pte.present() {
                return None;
            }
            if level == 0 || pte.large() {
                let size = leaf_size(level)?;
                let slot = SlotId::new(table, i);
                return Some(Leaf { va: va & !(size.bytes() - 1), size, pte, slot });
            }
            table = pte.next();
        }
        None
    }

    /// The translation of an address, if it is one that these tables own (a space does not own the
    /// kernel's half).
    fn owned(&self, root: Root, va: u64) -> Option<Leaf> {
        if in_reach(root, va, va) { self.lookup(root, va) } else { None }
    }

    fn place(&mut self, slot: SlotId) -> &mut Pte {
        &mut self.tables[slot.table().0 as usize].entries[slot.index()]
    }

    fn revoke_leaf(&mut self, root: Root, leaf: &Leaf) {
        let last = leaf.va + (leaf.size.bytes() - 1);
        self.revoke(root, leaf.slot, Kind::Leaf, leaf.va, last);
    }

    /// Removes the page that holds an address; `None` when there is none. A flush is pending.
    pub fn unmap(&mut self, root: Root, va: u64) -> Option<Unmapped> {
        let leaf = self.owned(root, va)?;
        *self.place(leaf.slot) = Pte::EMPTY;
        self.tables[leaf.slot.table().0 as usize].present -= 1;
        self.revoke_leaf(root, &leaf);
        Some(Unmapped {
            va: leaf.va,
            size: leaf.size,
            frame: leaf.pte.frame(),
            accessed: leaf.pte.accessed(),
            dirty: leaf.pte.dirty(),
        })
    }

    /// Gives the page that holds an address other rights; `None` when there is none. Taking rights
    /// away forgets that the page was dirty: returned is whether it was.
    pub fn protect(&mut self, root: Root, va: u64, perms: Perms) -> Option<(Protected, bool)> {
        let leaf = self.owned(root, va)?;
        let dirty = leaf.pte.dirty();
        let old = leaf.pte.perms();
        if old == perms {
            return Some((Protected::Same, dirty));
        }
        let narrowed = old.narrowed_by(perms);
        let mut new = leaf.pte.with_perms(perms);
        if narrowed {
            new.0 &= !Pte::D;
        }
        *self.place(leaf.slot) = new;
        if !narrowed {
            return Some((Protected::Widened, dirty));
        }
        self.revoke_leaf(root, &leaf);
        Some((Protected::Narrowed, dirty))
    }

    /// Makes the page that holds an address lead to another frame of the same size, with other
    /// rights (copy on write, migration); returns the old frame, `None` when nothing is mapped
    /// there or the frame is not aligned. A flush is pending.
    pub fn replace(&mut self, root: Root, va: u64, frame: Frame, perms: Perms) -> Option<Unmapped> {
        let leaf = self.owned(root, va)?;
        if !u64::from(frame.0).is_multiple_of(leaf.size.bytes() >> 12) {
            return None;
        }
        *self.place(leaf.slot) = Pte::leaf(frame, leaf.size != Stride::Page4K, perms);
        self.revoke_leaf(root, &leaf);
        Some(Unmapped {
            va: leaf.va,
            size: leaf.size,
            frame: leaf.pte.frame(),
            accessed: leaf.pte.accessed(),
            dirty: leaf.pte.dirty(),
        })
    }

    /// Clears the accessed bit of the page that holds an address; returns what it was. Takes
    /// nothing away: a CPU that has the page cached may not set the bit again before its entry
    /// is gone.
    pub fn clear_accessed(&mut self, root: Root, va: u64) -> Option<bool> {
        let leaf = self.owned(root, va)?;
        self.place(leaf.slot).0 &= !Pte::A;
        self.record.aged();
        Some(leaf.pte.accessed())
    }

    /// Is the accessed bit of the page that holds an address set? `None` when nothing is mapped
    /// there.
    #[must_use]
    pub fn accessed(&self, root: Root, va: u64) -> Option<bool> {
        self.next_leaf(root, va).ok().map(|leaf| leaf.pte.accessed())
    }

    /// Calls `f` for every page that begins in `[start, end)` or holds `start`, in order of
    /// address.
    pub fn for_each_leaf(&self, root: Root, start: u64, end: u64, mut f: impl FnMut(Leaf)) {
        let mut va = start;
        while va < end && in_reach(root, va, va) {
            let step = match self.next_leaf(root, va) {
                Ok(leaf) => {
                    f(leaf);
                    leaf.size.bytes()
                }
                Err(hole) => hole,
            };
            let Some(next) = (va & !(step - 1)).checked_add(step) else { break };
            va = next;
        }
    }

    /// The page that holds an address, or how much around it has none.
    fn next_leaf(&self, root: Root, va: u64) -> Result<Leaf, u64> {
        let mut table = self.top(root).ok_or(USER_END)?;
        for level in (0..=3u8).rev() {
            let i = index(va, level);
            let pte = self.tables[table.0 as usize].entries[i];
            if !pte.present() {
                return Err(1 << (12 + 9 * u32::from(level)));
            }
            match leaf_size(level) {
                Some(size) if level == 0 || pte.large() => {
                    let slot = SlotId::new(table, i);
                    return Ok(Leaf { va: va & !(size.bytes() - 1), size, pte, slot });
                }
                _ => table = pte.next(),
            }
        }
        Err(1 << 12)
    }

    /// Takes tables out of the tree that lie in the range's addresses, all or in part, and have
    /// become empty; appends them to `out`, lower levels first. A flush that knows of freed
    /// tables is pending for each. The top level stays, and so do the tables at the top of the
    /// kernel's half.
    pub fn unhook_empty_tables(&mut self, root: Root, range: VaRange, out: &mut Vec<TablePage>) {
        if let Some(top) = self.top(root)
            && in_reach(root, range.start(), range.last())
        {
            self.unhook_below(root, top, 3, range, out);
        }
    }

    fn unhook_below(
        &mut self,
        root: Root,
        table: TableId,
        level: u8,
        range: VaRange,
        out: &mut Vec<TablePage>,
    ) {
        let bytes = 1u64 << (12 + 9 * u32::from(level));
        let mut va = range.start() & !(bytes - 1);
        loop {
            let i = index(va, level);
            let pte = self.tables[table.0 as usize].entries[i];
            if pte.present() && !pte.large() {
                let next = pte.next();
                if level > 1 {
                    let clipped = clip(range, va, bytes);
                    self.unhook_below(root, next, level - 1, clipped, out);
                }
                let shared = root == Root::KERNEL && level == 3;
                if self.tables[next.0 as usize].present == 0 && !shared {
                    self.tables[table.0 as usize].entries[i] = Pte::EMPTY;
                    self.tables[table.0 as usize].present -= 1;
                    self.tables[next.0 as usize].state = TableState::Unhooked;
                    self.revoke(root, SlotId::new(table, i), Kind::Table, va, va + (bytes - 1));
                    out.push(TablePage { table: next, va, bytes });
                }
            }
            match va.checked_add(bytes) {
                Some(next) if next <= range.last() => va = next,
                _ => return,
            }
        }
    }

    /// Frees a table page that [`Memory::unhook_empty_tables`] took out. From now on no walker may
    /// reach it.
    ///
    /// # Errors
    /// [`MemoryError::NotUnhooked`].
    pub fn free_table(&mut self, page: TablePage) -> Result<(), MemoryError> {
        match self.tables.get(page.table.0 as usize) {
            Some(t) if t.state == TableState::Unhooked => {
                self.retire_table(page.table);
                Ok(())
            }
            _ => Err(MemoryError::NotUnhooked(page.table)),
        }
    }
}

/// May these tables map all of `[first, last]`?
fn in_reach(root: Root, first: u64, last: u64) -> bool {
    if root == Root::KERNEL {
        first >= KERNEL_BASE && last < KERNEL_BASE + KERNEL_BYTES
    } else {
        last < USER_END && first <= last
    }
}

/// The part of a range that lies in `[va, va + bytes)`, which it touches.
fn clip(range: VaRange, va: u64, bytes: u64) -> VaRange {
    let start = range.start().max(va);
    let last = range.last().min(va + (bytes - 1));
    // Both ends lie in the range, so it is not empty.
    VaRange::covering(start, last + 1, Stride::Page4K).unwrap_or(range)
}
