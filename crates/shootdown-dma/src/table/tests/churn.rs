//! Pages come and go one by one: how many tables there are, and how many there would have to be.

use std::collections::{BTreeSet, VecDeque};

use super::*;

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Tables that these pages need, with the root.
fn need(pages: &VecDeque<u64>, levels: u32) -> usize {
    let above = |level| pages.iter().map(|page| page >> (9 * level)).collect::<BTreeSet<_>>().len();
    1 + (1..levels).map(above).sum::<usize>()
}

/// Maps and unmaps single pages in a window that moves on; after each batch of unmaps `sweep`
/// takes tables out. The largest ratio of tables to need.
fn churn(mut sweep: impl FnMut(&World<VtdSecondLevel>, &mut Detachments)) -> f64 {
    const LIVE: usize = 600;
    const BATCH: usize = 64;
    let format = VtdSecondLevel::new(4, true, false).expect("four levels");
    let world = World::new(format, true, &[]);
    let mut random = Random(0x5eed);
    let mut live = VecDeque::new();
    let mut mapped = BTreeSet::new();
    let mut unmapped = 0;
    let mut worst: f64 = 0.0;
    for round in 0..40_000u64 {
        // Sixteen tables wide, and twenty times as far by the end.
        let page = 0x1_0000 + round / 4 * 16 + random.below(16 * 512);
        let mut walker = world.table.walker(0).expect("a epoch_slot");
        if mapped.insert(page) {
            walker.map(range(page, 1), PhysAddr(page << 12), Rights::Read).expect("free");
            live.push_back(page);
        }
        if live.len() > LIVE {
            let page = live.pop_front().expect("some");
            mapped.remove(&page);
            let _ = walker.unmap(range(page, 1), &mut Detachments::new()).expect("mapped");
            unmapped += 1;
        }
        drop(walker);
        if unmapped == BATCH {
            let mut out = Detachments::new();
            sweep(&world, &mut out);
            unmapped = 0;
            while let Some(gone) = out.pop() {
                // SAFETY: the device has not looked.
                unsafe { world.table.finish(gone) };
            }
            let ratio = world.table.pages() as f64 / need(&live, 4) as f64;
            worst = worst.max(ratio);
        }
    }
    worst
}

#[test]
fn tables_stay_near_what_is_needed() {
    let never = churn(|_, _| {});
    let sweeps = churn(|world, out| {
        world.table.sweep(16, out);
    });
    std::println!("tables to need: {never:.2} never, {sweeps:.2} by sweeps");
    assert!(never > 4.0, "it is not for nothing: {never}");
    assert!(sweeps <= 1.2, "by sweeps: {sweeps}");
}
