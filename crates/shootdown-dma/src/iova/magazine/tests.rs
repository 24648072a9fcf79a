use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, RngAlgorithm, TestRng, TestRunner};

use super::round::tests::NO_MEMORY;
use super::*;
use crate::iova::space::{INTERRUPTS, Space};
use crate::iova::{Checked, Tree};

fn want(pages: u64) -> Want {
    Want::pages(pages).unwrap()
}

fn magazines(pages: u64, config: Config) -> Magazines<Tree> {
    Magazines::new(Tree::new(&Space::below(pages)).unwrap(), &config).unwrap()
}

/// What is live, as intervals: first page, and pages of the whole block.
#[derive(Default)]
struct Shadow(BTreeMap<u64, u64>);

impl Shadow {
    fn add(&mut self, range: IovaRange) {
        let block = range.pages().next_power_of_two();
        let before = self.0.range(..range.first() + block).next_back();
        assert!(before.is_none_or(|(f, n)| f + n <= range.first()), "A1: {range:?} is live");
        self.0.insert(range.first(), block);
    }

    fn remove(&mut self, range: IovaRange) {
        assert!(self.0.remove(&range.first()).is_some());
    }

    /// Is there an aligned block, by trying?
    fn fits(&self, pages: u64, want: &Want) -> bool {
        let block = want.pages.next_power_of_two();
        let align = usize::try_from(want.align.max(block)).unwrap();
        (0..pages).step_by(align).skip(1).any(|first| {
            let last = first + block - 1;
            let free = self.0.range(..=last).next_back().is_none_or(|(f, n)| f + n <= first);
            free && last < pages && last <= want.limit
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize, Want),
    Free(usize, usize),
    Drain(usize),
}

fn run(pages: u64, config: Config, steps: &[Step]) {
    let magazines = magazines(pages, config);
    let (mut shadow, mut live) = (Shadow::default(), Vec::new());
    for step in steps {
        match step {
            Step::Alloc(cpu, want) => match magazines.alloc(*cpu, want) {
                Ok(range) => {
                    assert!(want.is_met_by(range), "A2: {range:?} for {want:?}");
                    shadow.add(range);
                    live.push(range);
                }
                Err(error) => {
                    assert_eq!(error, AllocError::Exhausted);
                    assert!(!shadow.fits(pages, want), "A4: there is room for {want:?}");
                }
            },
            Step::Free(cpu, n) if !live.is_empty() => {
                let range = live.swap_remove(n % live.len());
                assert_eq!(magazines.free(*cpu, range), Ok(()));
                shadow.remove(range);
            }
            Step::Free(..) => {}
            Step::Drain(cpu) => magazines.drain(*cpu),
        }
        let live_pages: u64 = shadow.0.values().sum();
        let total = live_pages + magazines.cached_pages() + magazines.inner().free_pages();
        assert_eq!(total, pages - 1, "A3");
    }
    for range in live {
        magazines.free(range.first() as usize, range).unwrap();
    }
    magazines.flush();
    assert_eq!((magazines.cached_pages(), magazines.inner().nodes()), (0, 1), "A3");
    assert_eq!(magazines.inner().free_pages(), pages - 1, "A3");
}

/// Random work on three CPUs (and a number that is none), in a space that is nearly exhausted now
/// and then.
pub(crate) fn agrees_with_intervals() {
    let wants = (0..7u32, 1..64u64, 0..3u32, prop_oneof![3 => Just(u64::MAX), 1 => 1..700u64])
        .prop_map(|(class, extra, align, limit)| {
            let pages = (1 << class) - extra % (1 << class) / 2;
            let align = if align == 0 { pages.next_power_of_two() << 1 } else { 1 << (align - 1) };
            want(pages).below(limit).aligned(align)
        });
    let step = prop_oneof![
        12 => (0..4usize, wants).prop_map(|(cpu, want)| Step::Alloc(cpu, want)),
        10 => (0..4usize, any::<usize>()).prop_map(|(cpu, n)| Step::Free(cpu, n)),
        1 => (0..4usize).prop_map(Step::Drain),
    ];
    let mut runner = TestRunner::new_with_rng(
        Cases { cases: 200, failure_persistence: None, max_shrink_iters: 2000, ..Cases::default() },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let steps = (0..3usize, proptest::collection::vec(step, 1..400));
    let outcome = runner.run(&steps, |(depot, steps)| {
        run(700, Config::for_cpus(3).depot(depot), &steps);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn magazines_agree_with_intervals() {
    agrees_with_intervals();
}

/// Everything is allocated on one CPU and freed there; then another wants it.
pub(crate) fn what_others_have_cached_is_found() {
    let magazines = magazines(1 << 12, Config::for_cpus(2));
    let all: Vec<_> = std::iter::from_fn(|| magazines.alloc(0, &want(4)).ok()).collect();
    assert_eq!(all.len(), (1 << 10) - 1);
    for range in all {
        magazines.free(0, range).unwrap();
    }
    assert!(magazines.cached_pages() > 0);
    assert!(magazines.alloc(1, &want(2048)).is_ok(), "A4");
    assert_eq!(magazines.cached_pages(), 0);
}

#[test]
fn exhaustion_looks_everywhere() {
    what_others_have_cached_is_found();
}

pub(crate) fn freed_twice_in_a_row_is_refused() {
    let magazines = magazines(1 << 12, Config::for_cpus(2).checked(true));
    let (a, b) = (magazines.alloc(0, &want(2)).unwrap(), magazines.alloc(0, &want(2)).unwrap());
    magazines.free(0, a).unwrap();
    magazines.free(0, b).unwrap();
    assert_eq!(magazines.free(0, a), Err(FreeError::NotAllocated));
    let (c, d) = (magazines.alloc(0, &want(2)).unwrap(), magazines.alloc(0, &want(2)).unwrap());
    assert_ne!(c, d);
}

#[test]
fn double_frees_are_refused() {
    freed_twice_in_a_row_is_refused();
    let magazines = magazines(1 << 12, Config::for_cpus(2));
    let a = magazines.alloc(0, &want(4)).unwrap();
    let inside = IovaRange::new(a.first() + 1, 3).unwrap();
    assert_eq!(magazines.free(0, inside), Err(FreeError::NotAllocated), "begins in a block");
}

/// One CPU allocates all there is, another frees it: what is cached stays within its bound.
pub(crate) fn caches_are_bounded() {
    let config = Config::for_cpus(2).depot(3).checked(false);
    let magazines = magazines(1 << 14, config);
    let all: Vec<_> = (0..10_000).map(|_| magazines.alloc(0, &want(1)).unwrap()).collect();
    for range in all {
        magazines.free(1, range).unwrap();
    }
    assert!(magazines.cached_pages() <= (2 + 3) * 127, "A5: {}", magazines.cached_pages());
}

#[test]
fn a_depot_keeps_its_bound() {
    caches_are_bounded();
    let mut all = vec![];
    let magazines = magazines(1 << 22, Config::for_cpus(1));
    for class in (0..CLASSES).map(Class) {
        for _ in 0..3 * class.most() {
            all.push(magazines.alloc(0, &want(class.pages())).unwrap());
        }
    }
    magazines.flush();
    for range in all {
        magazines.free(0, range).unwrap();
    }
    let cpu = magazines.cpus.enter(0, |pairs| {
        pairs
            .iter()
            .enumerate()
            .map(|(c, p)| p.rounds().count() as u64 * Class(c).pages())
            .collect::<Vec<_>>()
    });
    for (class, pages) in (0..CLASSES).map(Class).zip(cpu.unwrap()) {
        assert_eq!(pages, 2 * class.most() as u64 * class.pages());
        assert!(pages <= 2 * MOST_PAGES as u64);
    }
}

/// A burst leaves magazines in the depot; while CPUs exchange a few magazines through it, what they
/// don't need goes back.
pub(crate) fn what_a_burst_leaves_goes_back() {
    let magazines = magazines(1 << 16, Config::for_cpus(2).depot(40).checked(false));
    let burst: Vec<_> = (0..5_000).map(|_| magazines.alloc(0, &want(1)).unwrap()).collect();
    for range in burst {
        magazines.free(0, range).unwrap();
    }
    let level = || magazines.depots[0].with(|depot| depot.stocked());
    let before = level();
    assert!(before > 30);
    let mut worst = 0;
    for _ in 0..1_000 {
        // Two magazines' worth goes from CPU 0 to CPU 1.
        let some: Vec<_> = (0..254).map(|_| magazines.alloc(0, &want(1)).unwrap()).collect();
        let nodes = magazines.inner().nodes();
        for range in some {
            magazines.free(1, range).unwrap();
        }
        worst = worst.max(magazines.inner().nodes().abs_diff(nodes));
    }
    assert!(level() <= before / 4, "A5: {} of {before} magazines are still there", level());
    assert!(worst <= 40 * 127, "portions, not bursts");
}

#[test]
fn a_depot_shrinks() {
    what_a_burst_leaves_goes_back();
}

#[test]
fn without_memory_for_magazines_ranges_go_back() {
    let magazines = magazines(1 << 12, Config::for_cpus(1));
    NO_MEMORY.set(true);
    let all: Vec<_> = (0..300).map(|_| magazines.alloc(0, &want(1)).unwrap()).collect();
    for range in all {
        assert_eq!(magazines.free(0, range), Ok(()));
    }
    NO_MEMORY.set(false);
    assert_eq!((magazines.cached_pages(), magazines.inner().nodes()), (0, 1));
}

#[test]
fn without_memory_for_nodes_blocks_stay_cached() {
    use crate::iova::tree::tests::no_memory;

    let magazines = magazines(1 << 12, Config::for_cpus(1).depot(16));
    let all: Vec<_> = (0..2_000).map(|_| magazines.alloc(0, &want(1)).unwrap()).collect();
    let (freed, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(|r| r.first() % 2 == 0);
    for range in &freed {
        magazines.free(0, *range).unwrap();
    }
    no_memory(true);
    let before = magazines.cached_pages() + magazines.inner().free_pages();
    magazines.flush();
    assert!(magazines.cached_pages() > 0, "the tree would need a node for each");
    assert_eq!(magazines.cached_pages() + magazines.inner().free_pages(), before, "A3");
    no_memory(false);
    for range in kept {
        magazines.free(0, range).unwrap();
    }
    magazines.flush();
    assert_eq!((magazines.cached_pages(), magazines.inner().nodes()), (0, 1), "A3");
}

/// CPUs that begin ask the allocator behind seldom.
#[test]
fn magazines_are_filled_by_the_run() {
    let magazines = magazines(1 << 12, Config::for_cpus(2));
    let first = magazines.alloc(0, &want(1)).unwrap();
    assert_eq!(magazines.cached_pages(), Class(0).ahead() as u64);
    let second = magazines.alloc(0, &want(1)).unwrap();
    assert_eq!(second.first() + 1, first.first(), "from the top, as one by one");
    assert_eq!(magazines.cached_pages(), Class(0).ahead() as u64 - 1);
    let large = magazines.alloc(1, &want(1024)).unwrap();
    magazines.batch(1, |batch| {
        let block = batch.alloc(&want(8)).unwrap();
        batch.free(block).unwrap();
    });
    assert_eq!(magazines.cached_pages(), (Class(0).ahead() + 8 * Class(3).ahead()) as u64 + 7);
    for range in [first, second, large] {
        magazines.free(0, range).unwrap();
    }
    magazines.flush();
    assert_eq!((magazines.cached_pages(), magazines.inner().nodes()), (0, 1), "A3");
}

#[test]
fn large_and_strict_requests_pass_through() {
    let tree = Tree::new(&Space::below(1 << 20).without(&[INTERRUPTS])).unwrap();
    let magazines = Magazines::new(tree, &Config::for_cpus(1)).unwrap();
    let large = magazines.alloc(0, &want(1025)).unwrap();
    assert_eq!((large.pages(), large.first() % 2048), (1025, 0));
    let strict = magazines.alloc(0, &want(1).aligned(512)).unwrap();
    assert_eq!(strict.first() % 512, 0);
    let bounded = magazines.alloc(0, &want(3).aligned(1).within(4)).unwrap();
    assert_eq!(bounded.first() / 4, bounded.last() / 4);
    assert_eq!(magazines.alloc(0, &want(4).within(2)), Err(AllocError::Invalid));
    for range in [large, strict, bounded] {
        assert_eq!(magazines.free(0, range), Ok(()));
    }
    magazines.flush();
    assert_eq!(magazines.inner().free_pages(), magazines.inner().pages(), "A3");
}

/// Real threads, one more than there are CPUs, pass ranges on to each other; some lie about where
/// they are.
#[test]
fn threads_pass_ranges_on() {
    use std::sync::mpsc::channel;

    let space = Space::below(1 << 24);
    let magazines = Magazines::new(Tree::new(&space).unwrap(), &Config::for_cpus(3).depot(4));
    let checked = Checked::new(magazines.unwrap(), &space).unwrap();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| channel::<IovaRange>()).unzip();
    std::thread::scope(|scope| {
        for (me, receiver) in receivers.into_iter().enumerate() {
            let (checked, next) = (&checked, senders[(me + 1) % 4].clone());
            scope.spawn(move || {
                for n in 0..4_000u64 {
                    let cpu = if n % 64 == 0 { n as usize } else { me };
                    let pages = [1, 1, 1, 2, 4, 3, 16, 40][(n % 8) as usize];
                    next.send(checked.alloc(cpu, &want(pages)).unwrap()).unwrap();
                    for range in receiver.try_iter().take(if n % 500 == 0 { 9999 } else { 2 }) {
                        checked.free(cpu, range).unwrap();
                    }
                }
                drop(next);
                for range in receiver {
                    checked.free(me, range).unwrap();
                }
            });
        }
        drop(senders);
    });
    checked.inner().flush();
    assert_eq!(checked.live_pages(), 0);
    assert_eq!((checked.inner().cached_pages(), checked.inner().inner().nodes()), (0, 1), "A3");
}

/// Mixed sizes between producers and consumers on different CPUs: neither nodes nor what is cached
/// grows with the number of operations. (The laboratory's bench goes on to 10^8 of them.)
#[test]
fn no_drift() {
    let magazines = magazines(1 << 30, Config::for_cpus(4).checked(false));
    let mut ring: std::collections::VecDeque<IovaRange> = std::collections::VecDeque::new();
    let (mut random, mut seen) = (1u64, vec![]);
    for n in 0..400_000u64 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pages = 1 << ((random >> 33) % 11).min((random >> 43) % 11);
        let producer = (random >> 60) as usize % 2;
        ring.push_back(magazines.alloc(producer, &want(pages)).unwrap());
        if ring.len() > 512 + (random >> 50) as usize % 512 {
            for range in ring.drain(..32) {
                magazines.free(2 + producer, range).unwrap();
            }
        }
        if n % 100_000 == 99_999 {
            seen.push((magazines.inner().nodes(), magazines.cached_pages()));
        }
    }
    let (first, last) = (seen[0], seen[seen.len() - 1]);
    assert!(last.0 <= first.0 + first.0 / 2 + 64, "A5: nodes {seen:?}");
    assert!(last.1 <= first.1 * 2, "A5: cached {seen:?}");
}

#[test]
fn batches_do_what_single_operations_do() {
    let magazines = magazines(1 << 12, Config::for_cpus(2));
    let sizes = [1, 3, 8, 1, 2000];
    let mut live = Vec::new();
    for round in 0..50 {
        let got = magazines.batch(round % 3, |batch| sizes.map(|n| batch.alloc(&want(n))));
        for (range, pages) in got.into_iter().zip(sizes) {
            assert!(range.is_err() && pages > 1000 || want(pages).is_met_by(range.unwrap()));
            live.extend(range);
        }
        let half = live.len() / 2;
        magazines.batch(1, |batch| live.drain(half..).try_for_each(|r| batch.free(r))).unwrap();
    }
    // Within a batch the magazines are somebody else's; what it has cached is found.
    magazines.batch(0, |batch| {
        let range = magazines.alloc(0, &want(1)).unwrap();
        magazines.free(0, range).unwrap();
        batch.free(live.pop().unwrap()).unwrap();
        let twice = magazines.batch(0, |inner| inner.alloc(&want(1))).unwrap();
        batch.free(twice).unwrap();
        assert_eq!(batch.free(twice), Err(FreeError::NotAllocated));
    });
    for range in live {
        magazines.free(1, range).unwrap();
    }
    magazines.batch(0, |batch| {
        let all: Vec<_> = std::iter::from_fn(|| batch.alloc(&want(1)).ok()).collect();
        assert_eq!(all.len(), (1 << 12) - 1, "A4");
        all.into_iter().try_for_each(|range| batch.free(range)).unwrap();
        assert!(batch.alloc(&want(2048)).is_ok(), "A4");
    });
    magazines.flush();
    assert_eq!(magazines.inner().free_pages(), (1 << 12) - 1 - 2048, "A3");
}
