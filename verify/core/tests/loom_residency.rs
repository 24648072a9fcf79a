//! Who must be notified where hardware broadcasts, under the `loom` model checker: a CPU that comes
//! to a space against a caller that decides not to broadcast.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_residency`
#![cfg(loom)]

mod loom_support;

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use loom_support::holds;
use shootdown_woven::CpuId;
use shootdown_woven::cpu_set::AtomicCpuSet;
use shootdown_woven::mutant::Mutant;
use shootdown_woven::residency::{Extent, Residency, Strategy};

/// One page of one space. Its entry is 1 while mapped. A CPU's TLB holds what its walker read, if
/// anything.
struct World {
    strategy: Strategy,
    residency: Residency<AtomicCpuSet<1>>,
    entry: AtomicU64,
    /// A walk and a broadcast do not overlap: a broadcast waits for walks under way.
    tlbs: [Mutex<Option<u64>>; 3],
    flushed: AtomicBool,
}

impl World {
    fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            residency: Residency::new(),
            entry: AtomicU64::new(1),
            tlbs: core::array::from_fn(|_| Mutex::new(None)),
            flushed: AtomicBool::new(false),
        }
    }

    /// Loads the space's tables; the walker caches the page at once.
    fn enter(&self, cpu: u32) {
        if self.residency.enter(self.strategy, CpuId(cpu)) {
            *self.tlbs[cpu as usize].lock().unwrap() = None;
        }
        self.walk(cpu);
    }

    fn walk(&self, cpu: u32) {
        let mut tlb = self.tlbs[cpu as usize].lock().unwrap();
        if tlb.is_none() {
            let read = self.entry.load(Ordering::Relaxed);
            *tlb = (read != 0).then_some(read);
        }
    }

    /// User code runs: it must not use what a flush that has returned took away.
    fn run(&self, cpu: u32) {
        if self.flushed.load(Ordering::Acquire) {
            let tlb = self.tlbs[cpu as usize].lock().unwrap();
            assert_eq!(*tlb, None, "cpu{cpu} uses an entry that was flushed");
        }
    }

    fn leave(&self, cpu: u32) {
        let _ = cpu;
        self.residency.left(self.strategy);
    }

    /// Unmaps the page from `cpu`, which has the space loaded or not.
    fn unmap(&self, cpu: u32, here: bool) -> Extent {
        self.entry.store(0, Ordering::Relaxed);
        let extent = self.residency.extent(self.strategy, CpuId(cpu), here, false);
        match extent {
            Extent::None => {}
            Extent::Local => *self.tlbs[cpu as usize].lock().unwrap() = None,
            Extent::Broadcast => self.tlbs.iter().for_each(|tlb| *tlb.lock().unwrap() = None),
        }
        self.flushed.store(true, Ordering::Release);
        extent
    }
}

/// CPU 0 runs in the space and unmaps a page while CPU 1 comes.
fn comes_against_unmap(strategy: Strategy) {
    let world = Arc::new(World::new(strategy));
    world.enter(0);
    let other = {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            world.enter(1);
            world.run(1);
        })
    };
    world.unmap(0, true);
    world.run(0);
    other.join().unwrap();
}

#[test]
fn sticky_owner_against_the_second_cpu() {
    use Mutant::*;
    holds(
        "sticky owner",
        None,
        &[OwnWithoutFence, OwnerNeverShared, ResidencyWithoutFence],
        || comes_against_unmap(Strategy::Sticky),
    );
}

#[test]
fn sticky_owner_with_a_third_cpu_that_needs_no_fence() {
    use Mutant::*;
    holds(
        "shared for good",
        Some(2),
        &[SharedBeforeFence, SharedRelaxed, OwnerSeenRelaxed, SharingTrusted],
        || {
            let world = Arc::new(World::new(Strategy::Sticky));
            world.enter(0);
            let others = [1, 2].map(|cpu| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    world.enter(cpu);
                    world.run(cpu);
                })
            });
            world.unmap(0, true);
            for other in others {
                other.join().unwrap();
            }
        },
    );
}

#[test]
fn nobody_owns_what_never_ran() {
    holds("unowned", None, &[Mutant::OwnWithoutFence, Mutant::ResidencyWithoutFence], || {
        let world = Arc::new(World::new(Strategy::Sticky));
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.enter(1);
                world.run(1);
            })
        };
        world.unmap(0, false);
        other.join().unwrap();
    });
}

#[test]
fn a_set_against_a_cpu_that_joins() {
    holds("trimmed set", None, &[Mutant::JoinWithoutFence, Mutant::ResidencyWithoutFence], || {
        comes_against_unmap(Strategy::Trim);
    });
}

#[test]
fn active_count_against_a_cpu_that_comes() {
    holds("active count, first visit", None, &[Mutant::ActiveNotCounted], || {
        comes_against_unmap(Strategy::Active);
    });
}

#[test]
fn active_count_against_a_cpu_that_comes_back() {
    use Mutant::*;
    holds(
        "active count",
        None,
        &[
            ActiveWithoutFence,
            StaleTagTrusted,
            StaleNotNoted,
            StaleWithoutFence,
            ActiveOnceIsEnough,
        ],
        || {
            let world = Arc::new(World::new(Strategy::Active));
            // CPU 1 was there before and has kept its entry.
            world.enter(1);
            world.leave(1);
            world.enter(0);
            let other = {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    world.enter(1);
                    world.run(1);
                })
            };
            world.unmap(0, true);
            other.join().unwrap();
        },
    );
}

#[test]
fn a_device_is_given_the_tag_while_the_page_is_unmapped() {
    for strategy in [Strategy::Sticky, Strategy::Active, Strategy::Trim] {
        let mutants = [Mutant::PinUnseen, Mutant::PinWithoutFence, Mutant::ResidencyWithoutFence];
        holds("pinned tag", None, &mutants, move || {
            let world = Arc::new(World::new(strategy));
            world.enter(0);
            let tag = Arc::new(AtomicU64::new(0));
            let device = {
                let (world, tag) = (Arc::clone(&world), Arc::clone(&tag));
                thread::spawn(move || {
                    tag.store(7, Ordering::Relaxed);
                    world.residency.pin();
                    world.walk(2);
                    world.run(2);
                })
            };
            world.entry.store(0, Ordering::Relaxed);
            let extent = world.residency.extent(strategy, CpuId(0), true, false);
            *world.tlbs[0].lock().unwrap() = None;
            // The device's entries are forgotten under the tag that is read now.
            if extent == Extent::Broadcast && tag.load(Ordering::Relaxed) == 7 {
                *world.tlbs[2].lock().unwrap() = None;
            }
            world.flushed.store(true, Ordering::Release);
            device.join().unwrap();
        });
    }
}

#[test]
fn active_nowhere_means_that_no_walk_is_under_way() {
    holds("active nowhere", None, &[Mutant::LeftRelaxed], || {
        let world = Arc::new(World::new(Strategy::Active));
        world.enter(1);
        let table = Arc::new(loom::cell::UnsafeCell::new(1));
        let other = {
            let (world, table) = (Arc::clone(&world), Arc::clone(&table));
            thread::spawn(move || {
                // The last walk through the tables that are being left.
                // SAFETY: what is checked: nobody writes to it while this CPU is counted.
                table.with(|t| unsafe { *t });
                world.leave(1);
            })
        };
        if world.residency.extent(Strategy::Active, CpuId(0), false, false) == Extent::None {
            // SAFETY: as above.
            table.with_mut(|t| unsafe { *t = 0 });
        }
        other.join().unwrap();
    });
}
