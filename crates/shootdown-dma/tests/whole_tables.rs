//! What an unmapping tells of the tables that it took out: never that leaves are all that there is
//! to forget.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use proptest::prelude::*;
use shootdown_dma::table::memory::Table;
use shootdown_dma::table::{Detachments, IoPageTable, TableMemory, VtdSecondLevel};
use shootdown_dma::{IovaRange, PhysAddr, Rights};

#[repr(align(4096))]
struct Page(#[allow(dead_code)] [u8; 4096]); // for its size

struct Heap;

// SAFETY: pages of the heap, at their own addresses.
unsafe impl TableMemory for Heap {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        Some(PhysAddr(unsafe { alloc_zeroed(Layout::new::<Page>()) } as u64))
    }

    unsafe fn free(&self, page: PhysAddr) {
        // SAFETY: from `allocate`, as promised.
        unsafe { dealloc(page.0 as *mut u8, Layout::new::<Page>()) }
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(page.0 as *const Table) }
    }
}

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).expect("a range")
}

/// Maps so many pages from `first` on, in the smallest leaves, and unmaps them in pieces of these
/// sizes; the last takes the rest.
fn unmaps(first: u64, pages: u64, pieces: &[u64]) -> Result<(), TestCaseError> {
    let format = VtdSecondLevel::new(3, true, true).expect("three levels");
    let table = IoPageTable::new(format, Heap, 1).expect("memory");
    let mut walker = table.walker(0).expect("a epoch_slot");
    // One page beside a large one's start: no large leaves.
    let memory = PhysAddr(((1 << 20) + first + 1) << 12);
    walker.map(range(first, pages), memory, Rights::ReadWrite).expect("nothing is there");
    let (mut at, mut left) = (first, pages);
    for piece in pieces.iter().chain([&pages]) {
        let piece = left.min(*piece);
        if piece == 0 {
            break;
        }
        let mut out = Detachments::new();
        let unmapped = if piece == pages {
            walker.unmap(range(at, piece), &mut out).expect("a mapping")
        } else {
            walker.unmap_part(range(at, piece), &mut out).expect("mapped")
        };
        prop_assert_eq!(unmapped.range, range(at, piece));
        prop_assert_eq!(unmapped.leaf_only, out.is_empty(), "{:?}", unmapped.range);
        // A table goes if all of its pages go, at once.
        let whole = (at + piece) / 512 - at.div_ceil(512).min((at + piece) / 512);
        prop_assert_eq!(out.len() as u64, whole.min(Detachments::ROOM as u64));
        while let Some(gone) = out.pop() {
            // SAFETY: nothing walks but this.
            unsafe { table.finish(gone) };
        }
        (at, left) = (at + piece, left - piece);
    }
    drop(walker);
    // SAFETY: nothing walks any more.
    unsafe { table.free() };
    Ok(())
}

proptest! {
    #[test]
    fn an_unmapping_is_of_leaves_only_if_no_table_went(
        first in 1..1200u64,
        pages in prop_oneof![1..40u64, 500..2100u64],
        pieces in prop::collection::vec(prop_oneof![1..40u64, 500..1100u64], 0..4),
    ) {
        unmaps(first, pages, &pieces)?;
    }
}

/// A table as a whole, and pages of one that stays behind it, before it, or both.
#[test]
fn tables_that_go_are_told_beside_ones_that_stay() {
    for (first, pages) in [(512, 512), (512, 520), (504, 520), (504, 540), (512, 1030)] {
        unmaps(first, pages, &[]).expect("they are told");
    }
}
