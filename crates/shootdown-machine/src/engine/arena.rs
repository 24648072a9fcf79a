//! The memory that simulated CPUs share.
//!
//! Everything the library touches through its atomics lives in one reserved region, so that a cache
//! line is an index: `(address - base) / 64`. Blocks are handed out in the order they are asked
//! for, 128-byte aligned (two blocks never share a line, nor the pair of lines that prefetchers
//! fetch together), and freed blocks are reused by exact size, last freed first. Hence line
//! numbers, and with them every figure, depend on the order of allocations only, never on the
//! host's allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// log2 of a cache line.
pub const LINE_SHIFT: usize = 6;
const ALIGN: usize = 128;

/// A region of address space, used from the bottom.
pub struct Arena {
    raw: NonNull<u8>,
    layout: Layout,
    base: usize,
    len: usize,
    top: usize,
    free: BTreeMap<usize, Vec<usize>>,
}

impl Arena {
    /// Reserves `len` bytes. The host commits them when they are touched.
    pub fn new(len: usize) -> Self {
        // Alignment 16 lets the host hand out untouched zero pages; aligning further is done here.
        let layout = Layout::from_size_align(len + ALIGN, 16)
            .expect("an arena below half the address space");
        // SAFETY: the layout's size is at least ALIGN, so not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(raw) = NonNull::new(raw) else { handle_alloc_error(layout) };
        let base = raw.as_ptr() as usize;
        let base = base.next_multiple_of(ALIGN);
        Self { raw, layout, base, len, top: 0, free: BTreeMap::new() }
    }

    /// The line of an address; `None` when it is not shared memory.
    #[inline]
    pub fn line(&self, addr: usize) -> Option<usize> {
        let offset = addr.wrapping_sub(self.base);
        (offset < self.top).then_some(offset >> LINE_SHIFT)
    }

    /// Lines in use so far.
    pub fn lines(&self) -> usize {
        self.top >> LINE_SHIFT
    }

    /// A block; and whether its lines have been used before.
    ///
    /// # Panics
    /// When the region is full.
    pub fn alloc(&mut self, layout: Layout) -> (NonNull<u8>, bool) {
        assert!(layout.align() <= ALIGN, "nothing shared is aligned to more than {ALIGN}");
        let size = Self::rounded(layout);
        if let Some(offset) = self.free.get_mut(&size).and_then(Vec::pop) {
            return (self.at(offset), true);
        }
        assert!(
            self.top + size <= self.len,
            "the machine's shared memory is full ({} bytes)",
            self.len
        );
        let offset = self.top;
        self.top += size;
        (self.at(offset), false)
    }

    /// Takes a block back.
    pub fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        let offset = block.as_ptr() as usize - self.base;
        self.free.entry(Self::rounded(layout)).or_default().push(offset);
    }

    fn rounded(layout: Layout) -> usize {
        layout.size().max(1).next_multiple_of(ALIGN)
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        let skip = self.base - self.raw.as_ptr() as usize;
        // SAFETY: skip < ALIGN and offset < len, and the allocation has len + ALIGN bytes.
        unsafe { self.raw.add(skip + offset) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `raw` was allocated with this layout and is freed once.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_lines_of_their_own_and_come_back_by_size() {
        let mut arena = Arena::new(1 << 20);
        let layout = Layout::from_size_align(100, 8).unwrap();
        let (a, used_a) = arena.alloc(layout);
        let (b, _) = arena.alloc(layout);
        let line = |p: NonNull<u8>, arena: &Arena| arena.line(p.as_ptr() as usize);
        assert_eq!((line(a, &arena), line(b, &arena), used_a), (Some(0), Some(2), false));
        arena.free(a, layout);
        let (c, used_c) = arena.alloc(Layout::from_size_align(128, 64).unwrap());
        assert_eq!((c, used_c), (a, true));
        assert_eq!(arena.line(arena.base + 4096), None);
        assert_eq!(arena.line(0), None);
    }
}
