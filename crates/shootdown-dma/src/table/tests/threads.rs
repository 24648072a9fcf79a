//! Threads that map, unmap, share and sweep at once, and a device that looks at what they do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as Plain};
use std::thread;

use super::*;

type Table<F> = IoPageTable<F, Shared<F>>;

/// The page that all threads share.
const SHARED: u64 = 0x5ff;

fn finish<F: Manual>(pages: &Pages<F>, table: &Table<F>, out: &mut Detachments, told: bool) {
    while let Some(gone) = out.pop() {
        if !told {
            pages.invalidate(gone.range(), false);
        }
        // SAFETY: the device was told.
        unsafe { table.finish(gone) };
    }
}

/// Maps, looks, unmaps, looks again.
fn use_range<F: Manual>(pages: &Pages<F>, table: &Table<F>, cpu: usize, owned: IovaRange) {
    let mut walker = table.walker(cpu).expect("a epoch_slot");
    let phys = |page: u64| page << 12 | 1 << 40;
    walker.map(owned, PhysAddr(phys(owned.first())), Rights::Read).expect("ours");
    for page in owned.first()..=owned.last() {
        assert_eq!(walker.translate(page).map(|t| t.phys.0), Some(phys(page)));
        let seen = pages.access(page).map(|(phys, _)| phys);
        assert_eq!(seen, Some(phys(page)), "page {page:#x} by the device");
    }
    let mut out = Detachments::new();
    let unmapped = walker.unmap(owned, &mut out).expect("ours");
    pages.invalidate(unmapped.range, unmapped.leaf_only);
    assert_eq!(pages.access(owned.first()), None);
    drop(walker);
    finish(pages, table, &mut out, true);
}

fn share<F: Manual>(pages: &Pages<F>, table: &Table<F>, cpu: usize) {
    let mut walker = table.walker(cpu).expect("a epoch_slot");
    walker.acquire(SHARED, PhysAddr(0x7000), Rights::ReadWrite).expect("not full");
    assert_eq!(pages.access(SHARED), Some((0x7000, Rights::ReadWrite)), "while it is used");
    if walker.release(SHARED) == Ok(Released::Last) {
        pages.invalidate(range(SHARED, 1), true);
    }
}

/// The same page by several users of one CPU, for whom its entry is too small.
fn share_many<F: Manual>(pages: &Pages<F>, table: &Table<F>, cpu: usize, users: u64) {
    let mut walker = table.walker(cpu).expect("a epoch_slot");
    let seen = Some((0x7000, Rights::ReadWrite));
    for _ in 0..users {
        walker.acquire(SHARED, PhysAddr(0x7000), Rights::ReadWrite).expect("not full");
        assert_eq!(pages.access(SHARED), seen, "while it is used");
    }
    for _ in 0..users {
        assert_eq!(pages.access(SHARED), seen, "while it is used");
        if walker.release(SHARED) == Ok(Released::Last) {
            pages.invalidate(range(SHARED, 1), true);
        }
    }
}

fn run<F: Manual>(format: F, coherent: bool) {
    const ROUNDS: u64 = if cfg!(miri) { 6 } else { 300 };
    let pages = Arc::new(Pages::new(format, coherent, &[]));
    let table = IoPageTable::new(format, Arc::clone(&pages), 4).expect("memory");
    pages.attach(table.root());
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        let (pages, table) = (&*pages, &table);
        let mappers: [_; 2] = core::array::from_fn(|cpu| {
            s.spawn(move || {
                for round in 0..ROUNDS {
                    // All use the same tables, and no page of each other's.
                    let first = 0x400 + (round % 3) * 0x200 + cpu as u64 * 0x80;
                    use_range(pages, table, cpu, range(first, 1 + round % 40));
                    share(pages, table, cpu);
                    share_many(pages, table, cpu, 1 + round % 7);
                    if round % 16 == 0 {
                        use_range(pages, table, cpu, range(0x2000 + cpu as u64 * 0x200, 512));
                    }
                }
            })
        });
        s.spawn(|| {
            while !done.load(Plain::Relaxed) {
                let mut out = Detachments::new();
                table.sweep(8, &mut out);
                thread::yield_now();
                finish(pages, table, &mut out, false);
            }
        });
        for mapper in mappers {
            mapper.join().expect("no failed assertion");
        }
        done.store(true, Plain::Relaxed);
    });
    let mut out = Detachments::new();
    for _ in 0..3 {
        table.sweep(usize::MAX, &mut out);
        finish(&pages, &table, &mut out, false);
    }
    for cpu in 0..4 {
        table.walker(cpu).expect("a epoch_slot").let_go();
    }
    table.collect();
    assert_eq!((table.pages(), pages.live()), (1, 1), "only the root is left");
}

#[test]
fn threads_and_a_device_find_what_was_mapped() {
    run(VtdSecondLevel::new(4, true, false).expect("four levels"), true);
    run(AmdV1::new(4, true).expect("four levels"), true);
    run(ArmStage1::new(4, 0).expect("four levels"), true);
}

#[test]
fn threads_and_a_device_that_is_not_coherent_find_what_was_mapped() {
    run(VtdSecondLevel::new(3, true, false).expect("three levels"), false);
    run(ArmStage2::new(4).expect("four levels"), false);
}
