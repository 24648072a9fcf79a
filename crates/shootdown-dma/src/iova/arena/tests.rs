use std::cell::RefCell;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;

fn want(pages: u64) -> Want {
    Want::pages(pages).unwrap()
}

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).unwrap()
}

/// What the hardware has cached of pages that are mapped no more.
#[derive(Default)]
struct Iotlb(RefCell<Vec<bool>>);

// SAFETY: tests of one thread; a flush forgets everything.
unsafe impl Sync for Iotlb {}
// SAFETY: as above.
unsafe impl Flush for &Iotlb {
    fn flush(&self) {
        self.0.borrow_mut().fill(false);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize, Want),
    Free(usize, bool, u64),
    Flush,
}

const PAGES: u64 = 300;

fn run(pools: usize, holes: &[IovaRange], steps: &[Step]) {
    let stale = Iotlb(RefCell::new(vec![false; PAGES as usize]));
    let space = Space::below(PAGES).without(holes);
    let arena = Arena::new(&space, &Layout::pools(pools).large_above(7), &stale).unwrap();
    let all = arena.free_pages();
    let (mut taken, mut live) = (vec![false; PAGES as usize], Vec::<IovaRange>::new());
    for hole in holes {
        taken[hole.first() as usize..=hole.last() as usize].fill(true);
    }
    for step in steps {
        match step {
            Step::Alloc(cpu, want) => match arena.alloc(*cpu, want) {
                Ok(got) => {
                    assert!(want.is_met_by(got), "A2: {got:?} for {want:?}");
                    for page in got.first()..=got.last() {
                        assert!(!core::mem::replace(&mut taken[page as usize], true), "A1");
                        assert!(!stale.0.borrow()[page as usize], "A6: {got:?}");
                    }
                    live.push(got);
                }
                Err(error) => {
                    assert_eq!(error, AllocError::Exhausted);
                    let fits = arena.pools.iter().any(|pool| {
                        let (first, last) = pool.0.with(|b| b.ends());
                        (first..=last)
                            .filter(|f| f + want.pages - 1 <= last)
                            .map(|f| range(f, want.pages))
                            .any(|r| {
                                want.is_met_by(r)
                                    && (r.first()..=r.last()).all(|p| !taken[p as usize])
                            })
                    });
                    assert!(!fits, "A4: a pool has room for {want:?}");
                }
            },
            Step::Free(n, retired, keep) if !live.is_empty() => {
                let whole = live.swap_remove(n % live.len());
                let keep = keep % whole.pages();
                live.extend(IovaRange::new(whole.first(), keep));
                let part = range(whole.first() + keep, whole.pages() - keep);
                taken[part.first() as usize..=part.last() as usize].fill(false);
                if *retired {
                    stale.0.borrow_mut()[part.first() as usize..=part.last() as usize].fill(true);
                    assert_eq!(arena.retire(part), Ok(()));
                    assert_eq!(arena.free(0, part), Err(FreeError::NotAllocated));
                } else {
                    assert_eq!(arena.free(0, part), Ok(()));
                }
                assert_eq!(arena.retire(part), Err(FreeError::NotAllocated));
            }
            Step::Free(..) => {}
            Step::Flush => arena.flush(),
        }
    }
    for range in live {
        arena.retire(range).unwrap();
    }
    arena.flush();
    assert_eq!(arena.free_pages(), all, "A3");
}

pub(crate) fn agrees_with_bitmaps() {
    let wants = (1..20u64, 0..6u32, any::<bool>(), prop_oneof![3 => Just(u64::MAX), 1 => 1..PAGES])
        .prop_map(|(pages, align, bounded, limit)| Want {
            align: if align > 3 { pages.next_power_of_two() } else { 1 << align },
            boundary: if bounded { 32 } else { 0 },
            limit,
            ..want(pages)
        });
    let step = prop_oneof![
        10 => (0..5usize, wants).prop_map(|(cpu, want)| Step::Alloc(cpu, want)),
        8 => (any::<usize>(), any::<bool>(), prop_oneof![2 => Just(0), 1 => 0..5u64])
            .prop_map(|(n, retired, keep)| Step::Free(n, retired, keep)),
        1 => Just(Step::Flush),
    ];
    let mut runner = TestRunner::new_with_rng(
        Config {
            cases: 200,
            failure_persistence: None,
            max_shrink_iters: 2000,
            ..Config::default()
        },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let steps = (1..5usize, proptest::collection::vec(step, 1..300));
    let outcome = runner.run(&steps, |(pools, steps)| {
        run(pools, &[range(60, 9), range(280, 1)], &steps);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn arena_agrees_with_bitmaps() {
    agrees_with_bitmaps();
}

/// A sweep of the whole pool costs one flush, and what is freed ahead of the search waits for it
/// too.
#[test]
fn one_flush_for_each_sweep() {
    let stale = Iotlb(RefCell::new(vec![false; 1025]));
    let arena =
        Arena::new(&Space::below(1025), &Layout::pools(1).large_above(u64::MAX), &stale).unwrap();
    for _ in 0..10 * 1024 {
        let got = arena.alloc(0, &want(1)).unwrap();
        arena.retire(got).unwrap();
    }
    assert_eq!(arena.flushes(), 9);
    let all: Vec<_> = (0..1024).map(|_| arena.alloc(0, &want(1)).unwrap()).collect();
    let flushes = arena.flushes();
    arena.retire(all[1023]).unwrap();
    arena.free(0, all[0]).unwrap();
    assert_eq!(arena.alloc(0, &want(1)), Ok(all[0]), "its invalidation was complete");
    assert_eq!(arena.flushes(), flushes);
    assert_eq!(arena.alloc(0, &want(1)), Ok(all[1023]));
    assert_eq!(arena.flushes(), flushes + 1, "A6");
    assert_eq!(arena.alloc(0, &want(1)), Err(AllocError::Exhausted));
    assert_eq!(arena.flushes(), flushes + 1, "nothing is held back");
}

#[test]
fn large_ranges_have_their_pool_and_small_ones_theirs() {
    let stale = Iotlb::default();
    let arena = Arena::new(&Space::below(4097), &Layout::pools(3), &stale).unwrap();
    let large = arena.alloc(0, &want(16)).unwrap();
    assert!(large.first() > 3072);
    let firsts: Vec<_> =
        (0..4).map(|cpu| (arena.alloc(cpu, &want(1)).unwrap().first() - 1) / 1024).collect();
    assert_eq!(firsts, [0, 1, 2, 0]);
    // A small pool that is exhausted takes from its neighbours, at last from the pool for large
    // ones.
    let left = arena.free_pages();
    for _ in 0..left {
        arena.alloc(1, &want(1)).unwrap();
    }
    assert_eq!(arena.alloc(1, &want(1)), Err(AllocError::Exhausted));
    assert_eq!(arena.flushes(), 0);
    assert_eq!(arena.retire(range(1024, 2)), Err(FreeError::NotAllocated), "two pools");
}

#[test]
fn spaces_that_are_too_small() {
    let stale = Iotlb::default();
    let new = |space: Space<'_>, pools| Arena::new(&space, &Layout::pools(pools), &stale).err();
    assert_eq!(new(Space::below(3), 4), Some(SpaceError::Empty));
    assert_eq!(new(Space::below(9), 4), None);
    assert_eq!(new(Space::below(9).guarded(1), 1), Some(SpaceError::TooLarge));
}
