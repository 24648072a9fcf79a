//! Threads that map, unmap, share and sweep at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as Plain};
use std::thread;

use super::*;

#[test]
fn threads_find_what_they_have_mapped() {
    const ROUNDS: u64 = 400;
    let format = VtdSecondLevel::new(4, true, false).expect("four levels");
    let pages = Arc::new(Pages::new(format, true, &[]));
    let table = IoPageTable::new(format, Arc::clone(&pages), 4).expect("memory");
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        let mappers: [_; 2] = core::array::from_fn(|cpu| {
            let table = &table;
            s.spawn(move || {
                for round in 0..ROUNDS {
                    // Both use the same tables, and no page of each other's; they share page 0x5ff.
                    let first = 0x400 + (round % 3) * 0x200 + cpu as u64 * 0x80;
                    let owned = range(first, 1 + round % 40);
                    let phys = |page: u64| PhysAddr(page << 12);
                    let mut walker = table.walker(cpu).expect("a seat");
                    walker.map(owned, phys(first), Rights::Read).expect("ours");
                    let _ = walker.acquire(0x5ff, PhysAddr(0x7000), Rights::Write).expect("shared");
                    for page in owned.first()..=owned.last() {
                        assert_eq!(walker.translate(page).map(|t| t.phys), Some(phys(page)));
                    }
                    assert!(walker.translate(0x5ff).is_some());
                    let _ = walker.release(0x5ff).expect("shared");
                    let _ = walker.unmap(owned, &mut Detachments::new()).expect("ours");
                }
            })
        });
        s.spawn(|| {
            while !done.load(Plain::Relaxed) {
                let mut out = Detachments::new();
                table.sweep(8, &mut out);
                thread::yield_now();
                while let Some(gone) = out.pop() {
                    // SAFETY: there is no device.
                    unsafe { table.finish(gone) };
                }
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
        while let Some(gone) = out.pop() {
            // SAFETY: there is no device.
            unsafe { table.finish(gone) };
        }
    }
    for cpu in 0..4 {
        table.walker(cpu).expect("a seat").translate(1 << 30);
    }
    table.collect();
    assert_eq!((table.pages(), pages.live()), (1, 1), "only the root is left");
}
