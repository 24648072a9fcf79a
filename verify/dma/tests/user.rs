//! Drivers in user space, on a kernel that refuses what kernels refuse.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use shootdown_dma_woven::domain::{Config, DmaAddr, Limits};
use shootdown_dma_woven::iova::Tree;
use shootdown_dma_woven::iova::magazine::{self, Magazines};
use shootdown_dma_woven::mutant::{self, Mutant};
use shootdown_dma_woven::user::dry::{Dry, Manner};
use shootdown_dma_woven::user::{
    Backend, BackendError, MapError, Memory, Space, SpaceError, UnmapError, Window, Windows,
    WindowsError,
};
use shootdown_dma_woven::{Policy, Rights};

const PAGE: u64 = 4096;
/// Buffers lie here. Nobody reads or writes them: there is no device.
const BUFFERS: u64 = 0x5000_0000;

/// Pages are held under every policy.
fn holding(cpus: usize, policy: Policy) -> Config {
    Config::new(cpus).policy(Policy::Deferred).policy(policy)
}

type Cached = Magazines<Tree>;

fn space<B: Backend, M: Memory>(backend: B, memory: M, config: Config) -> Space<B, Cached, M> {
    Space::new(backend, memory, config, |space| {
        Magazines::new(Tree::new(space).ok()?, &magazine::Config::for_cpus(4)).ok()
    })
    .unwrap()
}

fn map<B: Backend, M: Memory>(
    space: &Space<B, Cached, M>,
    at: u64,
    bytes: u64,
) -> Result<DmaAddr, MapError> {
    // SAFETY: there is no device.
    unsafe { space.map(at as *mut u8, bytes, Rights::ReadWrite) }
}

fn end<B: Backend, M: Memory>(space: Space<B, Cached, M>) {
    assert!(space.end().is_ok());
}

/// Counts who holds which page, and looks at the kernel when it is released.
#[derive(Default)]
struct Ledger {
    held: Mutex<BTreeMap<u64, u64>>,
    kernel: Mutex<Option<Arc<Dry>>>,
}

impl Ledger {
    fn held(&self, page: u64) -> u64 {
        self.held.lock().unwrap().get(&page).copied().unwrap_or(0)
    }
}

impl Memory for Ledger {
    fn hold(&self, first: u64, pages: u64) -> bool {
        assert_eq!(first % PAGE, 0);
        let mut held = self.held.lock().unwrap();
        (0..pages).for_each(|n| *held.entry(first + n * PAGE).or_default() += 1);
        true
    }
    fn release(&self, first: u64, pages: u64) {
        let mut held = self.held.lock().unwrap();
        for page in (0..pages).map(|n| first + n * PAGE) {
            let count = held.get_mut(&page).expect("it is held");
            *count -= 1;
            if *count == 0 {
                held.remove(&page);
                if let Some(kernel) = &*self.kernel.lock().unwrap() {
                    assert!(
                        !kernel.is_reached(page),
                        "{page:#x} is released, and a device reaches it"
                    );
                }
            }
        }
    }
}

#[test]
fn strict_unmapping_is_done_when_it_returns() {
    let kernel = Arc::new(Dry::default());
    let space = space(Arc::clone(&kernel), (), Config::new(2));
    let at = map(&space, BUFFERS + 0x123, 5000).unwrap();
    assert_eq!(at.0 & 0xfff, 0x123);
    assert_eq!(kernel.reaches(at.0), Some((BUFFERS + 0x123, Rights::ReadWrite)));
    assert_eq!(kernel.reaches(at.0 + 4999).map(|(at, _)| at), Some(BUFFERS + 0x123 + 4999));
    space.unmap(at, 5000).unwrap();
    assert_eq!(kernel.reaches(at.0), None);
    assert!(kernel.is_empty());
    assert_eq!((space.deferred(), space.mappings()), ((0, 0), (0, 0)));
    let again = map(&space, BUFFERS, 2 * PAGE).unwrap();
    assert_eq!(again.0, at.0 & !0xfff, "the addresses are free again");
    end(space);
    assert!(kernel.is_empty(), "what was mapped is unmapped");
}

#[test]
fn what_is_put_off_is_unmapped_together() {
    let kernel = Arc::new(Dry::default());
    let ledger = Arc::new(Ledger::default());
    *ledger.kernel.lock().unwrap() = Some(Arc::clone(&kernel));
    let space =
        space(Arc::clone(&kernel), Arc::clone(&ledger), Config::new(1).policy(Policy::Deferred));
    // A driver with 64 buffers in flight.
    let mut flying = Vec::new();
    for n in 0..64 {
        flying.push(map(&space, BUFFERS + n * PAGE, PAGE).unwrap());
    }
    for at in &flying {
        space.unmap(*at, PAGE).unwrap();
    }
    assert_eq!(space.calls().unmap, 0, "nobody has waited");
    assert_eq!((kernel.len(), ledger.held(BUFFERS)), (64, 1), "held until then");
    assert_eq!(space.deferred(), (64, 64));
    space.poll(u64::MAX / 2).unwrap();
    assert_eq!((kernel.len(), ledger.held(BUFFERS)), (0, 0));
    assert_eq!(space.deferred().1, 0);
    let calls = space.calls();
    assert_eq!(calls.unmapped, 64);
    assert!(calls.unmap <= 2, "they abut: {calls:?}");
    end(space);
}

#[test]
fn lazy_unmapping_is_bounded() {
    let kernel = Arc::new(Dry::default());
    let limits = Limits { entries: 8, flush_at: 4, ..Limits::DEFAULT };
    let config = Config::new(1).policy(Policy::Lazy).limits(limits);
    let space = space(Arc::clone(&kernel), (), config);
    for n in 0..1000 {
        let at = map(&space, BUFFERS + n * PAGE, PAGE).unwrap();
        space.unmap(at, PAGE).unwrap();
        assert!(kernel.len() <= 8, "{}", kernel.len());
    }
    assert!(space.calls().unmap <= 500, "{:?}", space.calls());
    end(space);
}

/// Refused, tried again, and what is owed meanwhile.
fn refused() {
    let kernel = Arc::new(Dry::default());
    let ledger = Arc::new(Ledger::default());
    *ledger.kernel.lock().unwrap() = Some(Arc::clone(&kernel));
    let config = holding(1, Policy::Strict);
    let space = space(Arc::clone(&kernel), Arc::clone(&ledger), config);
    let at = map(&space, BUFFERS, PAGE).unwrap();
    kernel.refuse_unmappings(3);
    let error = Err(UnmapError::NotComplete(Some(BackendError::Other(5))));
    assert_eq!(space.unmap(at, PAGE), error);
    assert_eq!((kernel.len(), ledger.held(BUFFERS), space.mappings()), (1, 1, (0, 1)));
    assert_eq!(space.unmap(at, PAGE), Err(UnmapError::NotMapped), "it is not ours any more");
    // Not even the address is anybody else's.
    let other = map(&space, BUFFERS + PAGE, PAGE).unwrap();
    assert_ne!(other, at);
    assert_eq!(space.flush(), Err(BackendError::Other(5)));
    assert_eq!(space.poll(0), Err(BackendError::Other(5)));
    assert_eq!((kernel.len(), ledger.held(BUFFERS)), (2, 1));
    space.poll(0).unwrap();
    assert_eq!((kernel.len(), ledger.held(BUFFERS), space.deferred()), (1, 0, (0, 0)));
    space.unmap(other, PAGE).unwrap();
    assert!(kernel.is_empty());
    end(space);
}

#[test]
fn what_the_kernel_refuses_stays_owed() {
    refused();
    mutant::set(Some(Mutant::RefusalIgnored));
    catch_unwind(AssertUnwindSafe(refused)).unwrap_err();
    mutant::set(None);
}

/// The kernel unmaps a part of what it is asked to.
fn short(times: u64) -> Result<(), BackendError> {
    let kernel = Arc::new(Dry::default());
    let ledger = Arc::new(Ledger::default());
    *ledger.kernel.lock().unwrap() = Some(Arc::clone(&kernel));
    let space =
        space(Arc::clone(&kernel), Arc::clone(&ledger), Config::new(1).policy(Policy::Deferred));
    let all = [0, 1, 2].map(|n| map(&space, BUFFERS + n * PAGE, PAGE).unwrap());
    all.iter().for_each(|at| space.unmap(*at, PAGE).unwrap());
    kernel.cut_unmappings_short(times);
    let outcome = space.flush();
    assert_eq!(outcome.is_ok(), kernel.is_empty(), "it says so only if it is true");
    let held: u64 = [0, 1, 2].map(|n| ledger.held(BUFFERS + n * PAGE)).iter().sum();
    assert_eq!(outcome.is_ok(), held == 0, "{held}");
    space.poll(0).unwrap();
    assert!(kernel.is_empty());
    end(space);
    outcome
}

#[test]
fn what_the_kernel_leaves_is_tried_again() {
    assert_eq!(short(0), Ok(()));
    assert_eq!(short(1), Ok(()), "it was asked again");
    assert_eq!(short(2), Err(BackendError::Short { unmapped: 2 * PAGE }));
    mutant::set(Some(Mutant::ShortTrusted));
    catch_unwind(|| short(1)).unwrap_err();
    mutant::set(None);
}

#[test]
fn what_others_have_unmapped_is_unmapped() {
    for manner in [Manner::Vfio, Manner::Iommufd] {
        let windows = vec![Window { first: 0, last: (1 << 39) - 1 }];
        let kernel = Arc::new(Dry::new(manner, windows, 100));
        let space = space(Arc::clone(&kernel), (), Config::new(1));
        let at = map(&space, BUFFERS, PAGE).unwrap();
        kernel.unmap(at.0, PAGE).unwrap();
        let outcome = space.unmap(at, PAGE);
        match manner {
            Manner::Vfio => assert_eq!(outcome, Ok(()), "the kernel says that nothing is there"),
            // iommufd says the same as if something that is not ours were in the way.
            Manner::Iommufd => {
                assert_eq!(outcome, Err(UnmapError::NotComplete(Some(BackendError::NotMapped))))
            }
        }
    }
}

/// Everything is to be forgotten, and something is live.
fn live() {
    let kernel = Arc::new(Dry::default());
    let space = space(Arc::clone(&kernel), (), Config::new(1).policy(Policy::Lazy));
    let stays = map(&space, BUFFERS, PAGE).unwrap();
    // More spans than are told apart: the domain asks for everything.
    let some: Vec<DmaAddr> =
        (1..=100).map(|n| map(&space, BUFFERS + n * PAGE, PAGE).unwrap()).collect();
    for at in some.iter().step_by(2) {
        space.unmap(*at, PAGE).unwrap();
    }
    space.flush().unwrap();
    assert_eq!(kernel.reaches(stays.0), Some((BUFFERS, Rights::ReadWrite)));
    assert_eq!(kernel.len(), 51);
    assert!(space.calls().unmap <= 50, "{:?}", space.calls());
    space.unmap(stays, PAGE).unwrap();
    end(space);
    assert!(kernel.is_empty());
}

#[test]
fn what_is_live_stays_mapped() {
    live();
    mutant::set(Some(Mutant::LiveUnmapped));
    catch_unwind(AssertUnwindSafe(live)).unwrap_err();
    mutant::set(None);
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let kernel = Arc::new(Dry::default());
    let space = space(Arc::clone(&kernel), (), Config::new(1));
    let at = map(&space, BUFFERS, 3 * PAGE).unwrap();
    assert_eq!(space.unmap(at, 0), Err(UnmapError::Invalid));
    assert_eq!(space.unmap(DmaAddr(u64::MAX), 2), Err(UnmapError::Invalid));
    assert_eq!(space.unmap(DmaAddr(0), PAGE), Err(UnmapError::Invalid));
    assert_eq!(space.unmap(DmaAddr(at.0 + (1 << 30)), PAGE), Err(UnmapError::NotMapped));
    assert_eq!(space.unmap(at, PAGE), Err(UnmapError::Partial));
    assert_eq!(space.unmap(DmaAddr(at.0 + PAGE), 2 * PAGE), Err(UnmapError::Partial));
    assert_eq!(space.unmap(DmaAddr(at.0 + PAGE), PAGE), Err(UnmapError::Partial));
    assert_eq!(space.unmap(at, 4 * PAGE), Err(UnmapError::Partial));
    assert!(matches!(map(&space, BUFFERS, 0), Err(MapError::Domain(_))));
    assert!(matches!(map(&space, u64::MAX, 2), Err(MapError::Domain(_))));
    assert_eq!((kernel.len(), space.mappings(), space.deferred()), (1, (1, 0), (0, 0)));
    space.unmap(at, 3 * PAGE).unwrap();
    assert_eq!(space.unmap(at, 3 * PAGE), Err(UnmapError::NotMapped));
    end(space);
}

#[test]
fn a_limit_of_mappings_counts_what_is_owed() {
    let windows = vec![Window { first: 0, last: (1 << 39) - 1 }];
    let kernel = Arc::new(Dry::new(Manner::Vfio, windows, 10));
    let config = Config::new(1).policy(Policy::Lazy);
    let space = space(Arc::clone(&kernel), (), config);
    let all: Vec<DmaAddr> =
        (0..10).map(|n| map(&space, BUFFERS + n * PAGE, PAGE).unwrap()).collect();
    let error = Err(MapError::Kernel(BackendError::Entries));
    assert_eq!(map(&space, BUFFERS, PAGE), error);
    let before = (kernel.len(), space.mappings(), space.deferred());
    assert_eq!(map(&space, BUFFERS, PAGE), error);
    assert_eq!((kernel.len(), space.mappings(), space.deferred()), before, "nothing has changed");
    // One is unmapped, and owed: room is made when it is needed.
    space.unmap(all[3], PAGE).unwrap();
    assert_eq!(kernel.len(), 10);
    let at = map(&space, BUFFERS, PAGE).unwrap();
    assert_eq!((kernel.len(), kernel.reaches(at.0).map(|(at, _)| at)), (10, Some(BUFFERS)));
    end(space);
}

#[test]
fn the_default_limit_is_vfios() {
    let kernel = Arc::new(Dry::default());
    let space = space(Arc::clone(&kernel), (), Config::new(1));
    for n in 0..65_535 {
        map(&space, BUFFERS + n * PAGE, PAGE).unwrap();
    }
    let error = Err(MapError::Kernel(BackendError::Entries));
    assert_eq!(map(&space, BUFFERS, PAGE), error);
    end(space);
    assert!(kernel.is_empty());
}

#[test]
fn addresses_that_are_somebody_elses_are_left_alone() {
    let kernel = Arc::new(Dry::default());
    let space = space(Arc::clone(&kernel), (), Config::new(1));
    let at = map(&space, BUFFERS, PAGE).unwrap();
    space.unmap(at, PAGE).unwrap();
    // The one that would be next.
    kernel.map(at.0, 0x7000_0000, PAGE, Rights::Read).unwrap();
    let other = map(&space, BUFFERS, PAGE).unwrap();
    assert_ne!(other, at);
    assert_eq!(kernel.reaches(at.0), Some((0x7000_0000, Rights::Read)));
    // All of them: it is said.
    let error = {
        let last = (1u64 << 20) - 1;
        let kernel = Dry::new(Manner::Vfio, vec![Window { first: 0, last }], 100);
        kernel.map(0, 0, 1 << 20, Rights::Read).unwrap();
        let space = self::space(kernel, (), Config::new(1));
        let error = map(&space, BUFFERS, PAGE);
        assert_eq!(space.mappings(), (0, 0));
        error
    };
    assert_eq!(error, Err(MapError::Kernel(BackendError::Exists)));
    end(space);
    assert_eq!(kernel.len(), 1, "theirs");
}

#[test]
fn windows_are_kept() {
    let window = |first, last| Window { first, last };
    let windows = Windows::new(&[
        window(0x10_0000, 0x10_7fff),
        window(0x2_0800, 0x2_3fff),
        window(0x2_2000, 0x2_4fff),
        window(0x4_0000, 0x4_0ffe),
    ]);
    let windows = windows.unwrap();
    let space = windows.space();
    assert_eq!((space.first, space.last), (0x21, 0x107));
    let tree = Tree::new(&space).unwrap();
    assert_eq!(tree.free_pages(), 4 + 8);
    assert_eq!(Windows::new(&[window(0, 0xfff)]), Err(WindowsError::None));
    assert_eq!(Windows::new(&[]), Err(WindowsError::None));
    let all = Windows::new(&[window(0, u64::MAX)]).unwrap();
    assert_eq!((all.space().first, all.last()), (1, (1 << 36) - 1));

    let kernel = Arc::new(Dry::new(Manner::Iommufd, vec![window(0x10_0000, 0x10_7fff)], 0));
    let space = self::space(Arc::clone(&kernel), (), Config::new(1));
    let all: Vec<_> = (0..8).map(|n| map(&space, BUFFERS + n * PAGE, PAGE).unwrap()).collect();
    assert!(all.iter().all(|at| (0x10_0000..0x10_8000).contains(&at.0)));
    assert!(matches!(map(&space, BUFFERS, PAGE), Err(MapError::Domain(_))));
    end(space);
}

/// A kernel with pages of 64 KiB.
struct Large(Dry);

// SAFETY: there are no devices.
unsafe impl Backend for Large {
    fn windows(&self) -> Result<Vec<Window>, BackendError> {
        self.0.windows()
    }
    fn page_sizes(&self) -> u64 {
        1 << 16 | 1 << 29
    }
    fn map(&self, iova: u64, memory: u64, bytes: u64, rights: Rights) -> Result<(), BackendError> {
        self.0.map(iova, memory, bytes, rights)
    }
    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, BackendError> {
        self.0.unmap(iova, bytes)
    }
}

#[test]
fn large_pages_only_are_refused() {
    let refused = Space::new(Large(Dry::default()), (), Config::new(1), |s| Tree::new(s).ok());
    let sizes = 1 << 16 | 1 << 29;
    assert_eq!(refused.err(), Some(SpaceError::Windows(WindowsError::PageSize(sizes))));
}

/// Threads that map and unmap beside each other, and one that polls. The kernel refuses what is
/// mapped twice, and the ledger what is released while it is reached.
#[test]
fn threads_do_not_disturb_each_other() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let kernel = Arc::new(Dry::default());
        let ledger = Arc::new(Ledger::default());
        *ledger.kernel.lock().unwrap() = Some(Arc::clone(&kernel));
        let limits = Limits { entries: 32, flush_at: 8, held_pages: 64, window_ns: 0 };
        let config = holding(4, policy).limits(limits);
        let space = space(Arc::clone(&kernel), Arc::clone(&ledger), config);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4u64)
                .map(|thread| {
                    let space = &space;
                    scope.spawn(move || {
                        let mut flying = Vec::new();
                        for n in 0..400u64 {
                            let (memory, bytes) =
                                (BUFFERS + (thread << 28) + n * 8 * PAGE, (1 + n % 3) * PAGE);
                            flying.push((map(space, memory, bytes).unwrap(), bytes, memory));
                            if flying.len() > 6 {
                                let (at, bytes, memory) = flying.swap_remove((n % 6) as usize);
                                let reached = space.backend().reaches(at.0).map(|(at, _)| at);
                                assert_eq!(reached, Some(memory), "it is ours");
                                space.unmap(at, bytes).unwrap();
                            }
                        }
                        for (at, bytes, _) in flying {
                            space.unmap(at, bytes).unwrap();
                        }
                    })
                })
                .collect();
            let poller = scope.spawn(|| {
                let mut now = 0;
                while !over.load(Ordering::Relaxed) {
                    now += 1;
                    space.poll(now).unwrap();
                    std::thread::yield_now();
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            over.store(true, Ordering::Relaxed);
            poller.join().unwrap();
        });
        space.flush().unwrap();
        assert_eq!((kernel.len(), space.mappings(), space.deferred()), (0, (0, 0), (0, 0)));
        assert!(ledger.held.lock().unwrap().is_empty());
        assert_eq!(space.calls().refused, 0);
        end(space);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Map { page: u64, offset: u64, bytes: u64 },
    Unmap(usize),
    UnmapUnder(usize, Policy),
    Poll(u64),
    Flush,
    Refuse(u64),
    Short(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let policy = prop_oneof![Just(Policy::Strict), Just(Policy::Deferred), Just(Policy::Lazy)];
    let step = prop_oneof![
        6 => (0..64u64, 0..PAGE, 1..3 * PAGE)
            .prop_map(|(page, offset, bytes)| Step::Map { page, offset, bytes }),
        5 => any::<prop::sample::Index>().prop_map(|i| Step::Unmap(i.index(64))),
        2 => (0..64usize, policy).prop_map(|(i, policy)| Step::UnmapUnder(i, policy)),
        2 => (0..20_000_000u64).prop_map(Step::Poll),
        1 => Just(Step::Flush),
        1 => (0..3u64).prop_map(Step::Refuse),
        1 => (0..3u64).prop_map(Step::Short),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// Whatever a driver does and the kernel refuses: what is mapped is reached, what is released is not, no address is used twice,
    /// and in the end nothing is left.
    #[test]
    fn a_space_keeps_its_promises(
        steps in steps(),
        policy in prop_oneof![Just(Policy::Strict), Just(Policy::Deferred), Just(Policy::Lazy)],
    ) {
        let kernel = Arc::new(Dry::new(
            Manner::Vfio,
            vec![Window { first: 0x1000, last: 0x3f_ffff }],
            40,
        ));
        let ledger = Arc::new(Ledger::default());
        *ledger.kernel.lock().unwrap() = Some(Arc::clone(&kernel));
        let limits = Limits { entries: 12, flush_at: 5, held_pages: 20, window_ns: 10_000_000 };
        let config = holding(1, policy).limits(limits);
        let space = space(Arc::clone(&kernel), Arc::clone(&ledger), config);
        let mut live: Vec<(DmaAddr, u64, u64)> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Map { page, offset, bytes } => {
                    let memory = BUFFERS + page * PAGE + offset;
                    match map(&space, memory, bytes) {
                        Ok(at) => {
                            prop_assert_eq!(kernel.reaches(at.0), Some((memory, Rights::ReadWrite)));
                            live.push((at, bytes, memory));
                        }
                        Err(MapError::Kernel(BackendError::Entries)) => {}
                        Err(error) => prop_assert!(false, "{:?}", error),
                    }
                }
                Step::Unmap(index) | Step::UnmapUnder(index, _) if !live.is_empty() => {
                    let policy = match step {
                        Step::UnmapUnder(_, other) if !other.is_weaker_than(policy) => other,
                        _ => policy,
                    };
                    let (at, bytes, memory) = live.swap_remove(index % live.len());
                    match space.unmap_under(policy, at, bytes) {
                        Ok(()) if policy == Policy::Strict => {
                            prop_assert_eq!(kernel.reaches(at.0), None);
                        }
                        Ok(()) | Err(UnmapError::NotComplete(_)) => {
                            let reached = kernel.reaches(at.0).map(|(at, _)| at);
                            prop_assert!(reached.is_none_or(|at| at == memory));
                        }
                        Err(error) => prop_assert!(false, "{:?}", error),
                    }
                }
                Step::Poll(more) => {
                    now += more;
                    let _ = space.poll(now);
                }
                Step::Flush => {
                    let flushed = space.flush().is_ok();
                    prop_assert!(!flushed || kernel.len() == live.len());
                }
                Step::Refuse(count) => kernel.refuse_unmappings(count),
                Step::Short(count) => kernel.cut_unmappings_short(count),
                _ => {}
            }
            for (at, bytes, memory) in &live {
                for offset in [0, bytes - 1] {
                    let reached = kernel.reaches(at.0 + offset).map(|(at, _)| at);
                    prop_assert_eq!(reached, Some(memory + offset));
                }
                prop_assert!(ledger.held(memory & !(PAGE - 1)) >= 1);
            }
            prop_assert_eq!(space.mappings().0, live.len());
        }
        kernel.refuse_unmappings(0);
        kernel.cut_unmappings_short(0);
        for (at, bytes, _) in live {
            space.unmap_under(Policy::Strict, at, bytes).unwrap();
        }
        space.flush().unwrap();
        space.poll(now).unwrap();
        prop_assert_eq!((kernel.len(), space.deferred()), (0, (0, 0)));
        prop_assert!(ledger.held.lock().unwrap().is_empty());
        let addresses = space.addresses();
        let _ = addresses;
        end(space);
    }
}

/// A kernel whose smallest page has 64 KiB: a space of 4 KiB is refused, one of 64 KiB counts in
/// these, and all goes as with small ones.
#[test]
fn a_kernel_may_have_larger_pages() {
    type Large = Space<Arc<Dry>, Tree, Arc<Ledger>, 16>;
    let page = 1u64 << 16;
    let large = || Arc::new(Dry::default().with_page_sizes(1 << 16 | 1 << 29));
    let small = Space::new(large(), (), Config::new(1), |space| Tree::new(space).ok());
    let error = SpaceError::Windows(WindowsError::PageSize(1 << 16 | 1 << 29));
    assert_eq!(small.err(), Some(error));

    let (kernel, ledger) = (large(), Arc::new(Ledger::default()));
    let tree = |space: &shootdown_dma_woven::iova::Space<'_>| Tree::new(space).ok();
    let config = Config::new(1).policy(Policy::Deferred);
    let space =
        Large::with_granule(Arc::clone(&kernel), Arc::clone(&ledger), config, tree).unwrap();
    // Anywhere in a page, and across pages: the kernel is told of whole pages.
    let map = |at: u64, bytes| {
        // SAFETY: there is no device.
        unsafe { space.map(at as *mut u8, bytes, Rights::ReadWrite) }.unwrap()
    };
    let buffers =
        [(0x5123_4567, 1), (0x5200_0000, page), (0x52ff_f000, 0x1001), (0x5300_1000, 3 * page)];
    let mapped = buffers.map(|(at, bytes)| (map(at, bytes), at, bytes));
    for (iova, at, bytes) in mapped {
        assert_eq!(iova.0 % page, at % page);
        for byte in [0, bytes / 2, bytes - 1] {
            assert_eq!(kernel.reaches(iova.0 + byte), Some((at + byte, Rights::ReadWrite)));
        }
        assert_eq!(kernel.reaches(iova.0 & !(page - 1)).map(|(at, _)| at), Some(at & !(page - 1)));
        assert_eq!(space.unmap(iova, bytes + page), Err(UnmapError::Partial), "a page too many");
        assert_eq!(ledger.held(at & !(page - 1)), 1);
    }
    for (iova, at, bytes) in mapped {
        space.unmap(iova, bytes).unwrap();
        assert_eq!(ledger.held(at & !(page - 1)), 1, "until the kernel has unmapped it");
    }
    space.flush().unwrap();
    assert!(kernel.is_empty() && buffers.iter().all(|(at, _)| ledger.held(at & !(page - 1)) == 0));
    assert_eq!(space.addresses().free_pages(), space.addresses().pages());
    assert!(space.end().is_ok());
    // Windows end within pages: only whole ones are offered.
    let windows =
        [Window { first: 0x1_2000, last: 0x5_8fff }, Window { first: 0x10_0000, last: 0x10_7fff }];
    let dry = Dry::new(Manner::Iommufd, windows.to_vec(), 0).with_page_sizes(1 << 16);
    let windows = Windows::of_granule(16, &dry).unwrap();
    assert_eq!((windows.space().first, windows.space().last), (2, 4));
}
