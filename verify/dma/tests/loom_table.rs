//! I/O page tables under the `loom` model checker: what is mapped stays reachable while tables are
//! taken out, and no table is freed under a walker.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-dma-woven --release --test loom_table
//! --target-dir target/loom`
#![cfg(loom)]

#[path = "support/loom.rs"]
mod support;

use std::sync::atomic::AtomicUsize;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use shootdown_dma_woven::mutant::Mutant;
use shootdown_dma_woven::table::memory::Table;
use shootdown_dma_woven::table::*;
use shootdown_dma_woven::{IovaRange, PhysAddr, Rights};
use support::holds;

const PAGES: usize = 6;
/// Nobody's memory.
const CANARY: u64 = 0xdead_b000;

/// A few pages; those that are freed lead to the canary.
struct Memory {
    tables: [Table; PAGES],
    freed: [AtomicBool; PAGES],
    /// Looked at by who comes to a page, changed by who frees it: nobody comes while it is freed,
    /// or later.
    whole: [UnsafeCell<()>; PAGES],
    /// The words that side tables hang on.
    sides: [AtomicU64; PAGES],
    used: AtomicUsize,
}

impl Memory {
    fn new() -> Self {
        Self {
            tables: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0))),
            freed: core::array::from_fn(|_| AtomicBool::new(false)),
            whole: core::array::from_fn(|_| UnsafeCell::new(())),
            sides: core::array::from_fn(|_| AtomicU64::new(0)),
            used: AtomicUsize::new(0),
        }
    }
}

// SAFETY: nothing is in the cells.
unsafe impl Sync for Memory {}

// SAFETY: each page is handed out once.
unsafe impl TableMemory for &'static Memory {
    fn allocate(&self) -> Option<PhysAddr> {
        let n = self.used.fetch_add(1, Ordering::Relaxed);
        (n < PAGES).then_some(PhysAddr((n as u64 + 1) << 12))
    }

    unsafe fn free(&self, page: PhysAddr) {
        let n = (page.0 >> 12) as usize - 1;
        let twice = self.freed[n].swap(true, Ordering::Relaxed);
        assert!(!twice, "freed twice");
        self.whole[n].with_mut(|_| ());
        for slot in &self.tables[n] {
            slot.store(format().leaf(PhysAddr(CANARY), Rights::ReadWrite, 0), Ordering::Relaxed);
        }
    }

    unsafe fn table(&self, page: PhysAddr) -> &Table {
        let n = (page.0 >> 12) as usize - 1;
        self.whole[n].with(|_| ());
        &self.tables[n]
    }

    unsafe fn side(&self, page: PhysAddr) -> Option<&AtomicU64> {
        Some(&self.sides[(page.0 >> 12) as usize - 1])
    }
}

fn format() -> VtdSecondLevel {
    VtdSecondLevel::new(3, false, false).expect("three levels")
}

type World = IoPageTable<VtdSecondLevel, &'static Memory>;

fn world() -> &'static World {
    let memory = Box::leak(Box::new(Memory::new()));
    Box::leak(Box::new(IoPageTable::new(format(), &*memory, 2).expect("memory")))
}

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).expect("a range")
}

fn phys(page: u64) -> PhysAddr {
    PhysAddr(page << 12)
}

/// The hardware's walk from the root.
fn reach<F: Format>(table: &IoPageTable<F, &'static Memory>, page: u64) -> Option<PhysAddr> {
    let mut at = table.root();
    for level in (0..3).rev() {
        let n = (page >> (2 * level)) as usize & 3;
        // SAFETY: pages of the model stay where they are.
        let entry = unsafe { table.memory().table(at) }[n].load(Ordering::Acquire);
        match table.format().decode(entry, level) {
            Decoded::Table(below) => at = below,
            Decoded::Leaf(phys, _) => return Some(phys),
            _ => return None,
        }
    }
    None
}

/// Takes out what is empty, and finishes it: there are no caches here.
fn sweep(table: &World) {
    let mut out = Detachments::new();
    table.sweep(8, &mut out);
    while let Some(gone) = out.pop() {
        // SAFETY: there is no device.
        unsafe { table.finish(gone) };
    }
}

/// A leaf table for pages 4 to 7, empty.
fn empty_table(table: &World) {
    let mut walker = table.walker(0).expect("a epoch_slot");
    walker.map(range(5, 1), phys(5), Rights::Read).expect("free");
    let _ = walker.unmap(range(5, 1), &mut Detachments::new()).expect("mapped");
}

#[test]
fn what_is_mapped_stays_reachable() {
    let mutants = [
        Mutant::TombstoneSkipped,
        Mutant::LiveEntryEntombed,
        Mutant::AnchorStored,
        Mutant::CallOffIgnored,
        Mutant::TombTaken,
    ];
    holds("one page beside a sweep", None, &mutants, || {
        let table = world();
        empty_table(table);
        let sweeper = thread::spawn(move || sweep(table));
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.map(range(5, 1), phys(5), Rights::Read).expect("free");
        assert_eq!(reach(table, 5), Some(phys(5)), "when it is mapped");
        sweeper.join().expect("the sweep");
        assert_eq!(reach(table, 5), Some(phys(5)), "and until it is unmapped");
        let _ = walker.unmap(range(5, 1), &mut Detachments::new()).expect("mapped");
        assert_eq!(reach(table, 5), None);
    });
    let mutants = [Mutant::TombstoneSkipped, Mutant::CallOffIgnored, Mutant::TombTaken];
    holds("a use beside a sweep", None, &mutants, || {
        let table = world();
        empty_table(table);
        let sweeper = thread::spawn(move || sweep(table));
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.acquire(5, phys(5), Rights::Read).expect("free");
        assert_eq!(reach(table, 5), Some(phys(5)), "when it is mapped");
        sweeper.join().expect("the sweep");
        assert_eq!(reach(table, 5), Some(phys(5)), "and until it is released");
        assert_eq!(walker.release(5), Ok(Released::Last));
        assert_eq!(reach(table, 5), None);
    });
    holds("a range beside a sweep", None, &[Mutant::RollbackStores], || {
        let table = world();
        empty_table(table);
        let sweeper = thread::spawn(move || sweep(table));
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.map(range(6, 1), phys(6), Rights::Read).expect("free");
        walker.map(range(4, 2), phys(4), Rights::Read).expect("free");
        sweeper.join().expect("the sweep");
        assert_eq!([4, 5, 6].map(|page| reach(table, page)), [4, 5, 6].map(|p| Some(phys(p))));
    });
}

#[test]
fn walkers_are_waited_for() {
    let mutants = [
        Mutant::WalkNotAwaited,
        Mutant::WalkUnordered,
        Mutant::EpochSlotsReadRelaxed,
        Mutant::EpochSlotEndsFirst,
    ];
    holds("a walk beside a free", None, &mutants, || {
        let table = world();
        empty_table(table);
        table.walker(0).expect("a epoch_slot").let_go();
        let sweeper = thread::spawn(move || sweep(table));
        let mut walker = table.walker(0).expect("a epoch_slot");
        assert_eq!(walker.translate(5), None, "the canary");
        assert_eq!(walker.translate(6), None, "the canary, in what is remembered");
        drop(walker);
        sweeper.join().expect("the sweep");
    });
}

#[test]
fn what_a_epoch_slot_lets_go_of_is_freed_after() {
    holds("a table in whose place comes another", None, &[Mutant::HeldRelaxed], || {
        let table = world();
        empty_table(table);
        let sweeper = thread::spawn(move || sweep(table));
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.map(range(13, 1), phys(13), Rights::Read).expect("free");
        drop(walker);
        sweeper.join().expect("the sweep");
        assert_eq!(reach(table, 13), Some(phys(13)));
    });
}

#[test]
fn two_who_put_a_table_share_it() {
    holds("two maps", None, &[], || {
        let table = world();
        let other = thread::spawn(move || {
            let mut walker = table.walker(1).expect("a epoch_slot");
            walker.map(range(5, 1), phys(5), Rights::Read).expect("free");
        });
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.map(range(6, 1), phys(6), Rights::Read).expect("free");
        other.join().expect("the other");
        assert_eq!([5, 6].map(|page| reach(table, page)), [5, 6].map(|p| Some(phys(p))));
        assert_eq!(table.pages(), 3);
    });
}

#[test]
fn tables_of_tables_are_taken_out_beside_maps() {
    holds("a map beside a sweep of two levels", Some(4), &[], || {
        let table = world();
        empty_table(table);
        sweep(table); // the leaf table is gone, and the one above is empty
        let sweeper = thread::spawn(move || sweep(table));
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.acquire(5, phys(5), Rights::Read).expect("free");
        assert_eq!(reach(table, 5), Some(phys(5)), "when it is mapped");
        sweeper.join().expect("the sweep");
        assert_eq!(reach(table, 5), Some(phys(5)), "and until it is unmapped");
    });
}

#[test]
fn uses_are_counted() {
    holds("two users", None, &[], || {
        let table = world();
        empty_table(table);
        let use_it = move |epoch_slot| {
            let mut walker = table.walker(epoch_slot).expect("a epoch_slot");
            walker.acquire(5, phys(5), Rights::Read).expect("not full");
            assert_eq!(reach(table, 5), Some(phys(5)), "while it is used");
            walker.release(5) == Ok(Released::Last)
        };
        let other = thread::spawn(move || use_it(1));
        let mine = use_it(0);
        let others = other.join().expect("the other");
        assert!(mine || others, "somebody was the last");
        assert_eq!(reach(table, 5), None);
    });
}

#[test]
fn a_table_is_put_back_or_freed() {
    // Two put it back at once, and map beside each other.
    holds("two maps of what is detached", Some(3), &[Mutant::RevivalStores], || {
        let table = world();
        empty_table(table);
        let mut out = Detachments::new();
        assert_eq!(table.sweep(8, &mut out), Some(1));
        let other = thread::spawn(move || {
            let mut walker = table.walker(1).expect("a epoch_slot");
            walker.map(range(6, 1), phys(6), Rights::Read).expect("free");
        });
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.map(range(5, 1), phys(5), Rights::Read).expect("free");
        assert_eq!(reach(table, 5), Some(phys(5)), "when it is mapped");
        other.join().expect("the other");
        assert_eq!([5, 6].map(|page| reach(table, page)), [5, 6].map(|p| Some(phys(p))));
        // SAFETY: there is no device.
        unsafe { table.finish(out.pop().expect("one")) };
        assert_eq!([5, 6].map(|page| reach(table, page)), [5, 6].map(|p| Some(phys(p))));
    });
    // The other maps the first entry of the table, which whoever puts it back looks at.
    let mutants = [Mutant::TombReadLate];
    let name = "a map of the first entry beside one who puts the table back";
    holds(name, Some(3), &mutants, || {
        let table = world();
        empty_table(table);
        let mut out = Detachments::new();
        assert_eq!(table.sweep(8, &mut out), Some(1));
        let other = thread::spawn(move || {
            let mut walker = table.walker(1).expect("a epoch_slot");
            walker.map(range(4, 1), phys(4), Rights::Read).expect("free");
        });
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.map(range(5, 1), phys(5), Rights::Read).expect("free");
        other.join().expect("the other");
        assert_eq!([4, 5].map(|page| reach(table, page)), [4, 5].map(|p| Some(phys(p))));
    });
    holds("a map beside a finish", None, &[Mutant::RevivalOverlooked], || {
        let table = world();
        empty_table(table);
        table.walker(0).expect("a epoch_slot").let_go();
        let mut out = Detachments::new();
        assert_eq!(table.sweep(8, &mut out), Some(1));
        let finisher = thread::spawn(move || {
            let gone = out.pop().expect("one");
            // SAFETY: there is no device.
            unsafe { table.finish(gone) };
        });
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.map(range(5, 2), phys(5), Rights::Read).expect("free");
        finisher.join().expect("the finish");
        assert_eq!([5, 6].map(|page| reach(table, page)), [5, 6].map(|p| Some(phys(p))));
        walker.let_go();
        table.collect();
        assert_eq!([5, 6].map(|page| reach(table, page)), [5, 6].map(|p| Some(phys(p))));
    });
}

/// Whoever collects need not be the one who has finished a table.
#[test]
fn a_table_is_waited_for_by_whoever_takes_it_from_the_list() {
    let mutants = [Mutant::EpochSlotsAwaitedFirst];
    holds("a walk beside a finish beside a collection", Some(3), &mutants, || {
        let table = world();
        empty_table(table);
        table.walker(0).expect("a epoch_slot").let_go();
        let mut out = Detachments::new();
        assert_eq!(table.sweep(8, &mut out), Some(1));
        let collector = thread::spawn(move || table.collect());
        let finisher = thread::spawn(move || {
            let gone = out.pop().expect("one");
            // SAFETY: there is no device.
            unsafe { table.finish(gone) };
        });
        let mut walker = table.walker(0).expect("a epoch_slot");
        walker.map(range(5, 1), phys(5), Rights::Read).expect("free");
        assert_eq!(reach(table, 5), Some(phys(5)));
        finisher.join().expect("the finish");
        collector.join().expect("the collection");
        assert_eq!(reach(table, 5), Some(phys(5)));
    });
}

/// A table whose entries count two uses.
type Narrow = IoPageTable<ArmStage1, &'static Memory>;

/// Page 5 has so many users; before it had `most`.
fn shared(uses: u64, most: u64) -> &'static Narrow {
    let memory = Box::leak(Box::new(Memory::new()));
    let format = ArmStage1::new(3, 0).expect("three levels");
    let table: &Narrow =
        Box::leak(Box::new(IoPageTable::new(format, &*memory, 3).expect("memory")));
    let mut walker = table.walker(0).expect("a epoch_slot");
    for _ in 0..most {
        walker.acquire(5, phys(5), Rights::Read).expect("not full");
    }
    for _ in uses..most {
        assert_eq!(walker.release(5), Ok(Released::Shared));
    }
    table
}

/// One more use, for a while. Was it the last?
fn use_once(table: &'static Narrow, epoch_slot: usize) -> bool {
    let mut walker = table.walker(epoch_slot).expect("a epoch_slot");
    walker.acquire(5, phys(5), Rights::Read).expect("not full");
    assert_eq!(reach(table, 5), Some(phys(5)), "while it is used");
    walker.release(5).expect("a use") == Released::Last
}

/// One use less. Was it the last?
fn let_go(table: &'static Narrow, epoch_slot: usize) -> bool {
    table.walker(epoch_slot).expect("a epoch_slot").release(5).expect("a use") == Released::Last
}

/// Nothing is left, of uses and of tokens.
fn nothing_is_left(table: &'static Narrow) {
    assert_eq!(reach(table, 5), None, "nobody uses it");
    let mut walker = table.walker(0).expect("a epoch_slot");
    for n in 1..=4 {
        walker.acquire(5, phys(5), Rights::Read).expect("not full");
        assert_eq!(walker.translate(5).map(|t| t.uses), Some(n));
    }
    for n in (0..4).rev() {
        let left = if n == 0 { Released::Last } else { Released::Shared };
        assert_eq!(walker.release(5), Ok(left));
    }
    assert_eq!(reach(table, 5), None);
}

#[test]
fn spilled_uses_are_counted() {
    let mutants = [
        Mutant::JoinUnfenced,
        Mutant::CloseUnfenced,
        Mutant::CloseUnchecked,
        Mutant::ClosingJoined,
    ];
    holds("a use beside the last of those that spilled", Some(3), &mutants, || {
        let table = shared(1, 3);
        let other = thread::spawn(move || use_once(table, 1));
        let mine = let_go(table, 0);
        let others = other.join().expect("the other");
        assert!(mine || others, "somebody was the last");
        nothing_is_left(table);
    });
    holds(
        "a use that spills or not while others let go",
        Some(3),
        &[Mutant::PartUnordered],
        || {
            let table = shared(2, 2);
            let other = thread::spawn(move || use_once(table, 1));
            let mine = [let_go(table, 0), let_go(table, 0)].contains(&true);
            let others = other.join().expect("the other");
            assert!(mine || others, "somebody was the last");
            nothing_is_left(table);
        },
    );
    holds("two spill at once", Some(3), &[], || {
        let table = shared(2, 2);
        let other = thread::spawn(move || use_once(table, 1));
        let mine = use_once(table, 2);
        assert!(!mine && !other.join().expect("the other"), "two more use it");
        assert!(!let_go(table, 0) && let_go(table, 0));
        nothing_is_left(table);
    });
    holds("many let go at once", Some(3), &[], || {
        let table = shared(3, 3);
        let other = thread::spawn(move || let_go(table, 1) | let_go(table, 1));
        let mine = let_go(table, 0);
        assert!(mine != other.join().expect("the other"), "one was the last");
        nothing_is_left(table);
    });
    holds("two uses beside the last", Some(2), &[], || {
        let table = shared(1, 3);
        let others = [1, 2].map(|epoch_slot| thread::spawn(move || use_once(table, epoch_slot)));
        let mine = let_go(table, 0);
        let last = others.map(|other| other.join().expect("the other"));
        assert!(mine || last.contains(&true), "somebody was the last");
        nothing_is_left(table);
    });
}

#[test]
fn a_spill_beside_the_last_of_one_before() {
    // The side word comes back to what it was while one who has emptied the entry takes its token
    // away.
    holds(
        "a second spill beside the end of the first",
        Some(2),
        &[Mutant::ChangeUncounted],
        || {
            let table = shared(1, 3);
            let other = thread::spawn(move || {
                let mut walker = table.walker(1).expect("a epoch_slot");
                for _ in 0..3 {
                    walker.acquire(5, phys(5), Rights::Read).expect("not full");
                }
                assert_eq!(reach(table, 5), Some(phys(5)), "while it is used");
                (0..3).any(|_| walker.release(5).expect("a use") == Released::Last)
            });
            let mine = let_go(table, 0);
            let others = other.join().expect("the other");
            assert!(mine || others, "somebody was the last");
            nothing_is_left(table);
        },
    );
}
