//! Spaces of user space whose addresses the caller brings.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use proptest::prelude::*;
use shootdown_dma_woven::domain::{Config, DmaAddr};
use shootdown_dma_woven::iova::Unmanaged;
use shootdown_dma_woven::mutant::{self, Mutant};
use shootdown_dma_woven::user::dry::{Dry, Manner};
use shootdown_dma_woven::user::{
    Backend, BackendError, MapAtError, MapError, Memory, Space, UnmapError, Window,
};
use shootdown_dma_woven::{Policy, Rights};

const PAGE: u64 = 4096;
/// Buffers lie here. Nobody reads or writes them: there is no device.
const BUFFERS: u64 = 0x5000_0000;
const AT: u64 = 0x10_0000;

type Brought<B, M = ()> = Space<B, Unmanaged, M>;

fn space<B: Backend>(backend: B) -> Brought<B> {
    Space::new(backend, (), Config::new(2), |_| Some(Unmanaged)).unwrap()
}

fn map<B: Backend, M: Memory>(
    space: &Brought<B, M>,
    at: u64,
    memory: u64,
    bytes: u64,
) -> Result<(), MapAtError> {
    // SAFETY: there is no device.
    unsafe { space.map_at(DmaAddr(at), memory as *mut u8, bytes, Rights::ReadWrite) }
}

/// It holds as it is, and not with the mutant on.
fn misses(mutant: Mutant, scene: fn()) {
    scene();
    mutant::set(Some(mutant));
    let outcome = catch_unwind(AssertUnwindSafe(scene));
    let reached = mutant::reached();
    mutant::set(None);
    assert!(outcome.is_err() && reached, "{mutant:?}");
}

#[test]
fn addresses_are_the_callers() {
    misses(Mutant::ClaimKept, || {
        let kernel = Arc::new(Dry::default());
        let space = space(Arc::clone(&kernel));
        map(&space, AT + 0x123, BUFFERS + 0x123, 5000).unwrap();
        assert_eq!(kernel.reaches(AT + 0x123), Some((BUFFERS + 0x123, Rights::ReadWrite)));
        assert_eq!(kernel.reaches(AT + 2 * PAGE - 1).map(|(at, _)| at), Some(BUFFERS + 0x1fff));
        assert_eq!(space.unmap_within(DmaAddr(AT), 2 * PAGE), Ok(1));
        assert!(kernel.is_empty(), "it is done when it returns");
        assert_eq!((space.deferred(), space.mappings()), ((0, 0), (0, 0)));
        // The same addresses at once, for other memory.
        map(&space, AT, BUFFERS + 8 * PAGE, PAGE).unwrap();
        assert_eq!(kernel.reaches(AT).map(|(at, _)| at), Some(BUFFERS + 8 * PAGE));
        // It hands out none itself.
        // SAFETY: there is no device.
        let own = unsafe { space.map(BUFFERS as *mut u8, PAGE, Rights::Read) };
        assert!(matches!(own, Err(MapError::Domain(_))), "{own:?}");
        space.end().map_err(|(error, _)| error).unwrap();
        assert!(kernel.is_empty(), "what was mapped is unmapped");
    });
}

#[test]
fn what_abuts_is_unmapped_by_one_call() {
    let kernel = Arc::new(Dry::default());
    let space = space(Arc::clone(&kernel));
    for n in (0..64).filter(|n| *n != 32) {
        map(&space, AT + n * PAGE, BUFFERS + (99 - n) * PAGE, PAGE).unwrap();
    }
    assert_eq!(space.unmap_within(DmaAddr(0), u64::MAX), Ok(63));
    assert!(kernel.is_empty());
    let calls = space.calls();
    assert_eq!((calls.unmap, calls.unmapped), (2, 63), "there is one gap");
}

fn nonsense() {
    let kernel = Arc::new(Dry::default());
    let space = space(Arc::clone(&kernel));
    map(&space, AT, BUFFERS, 4 * PAGE).unwrap();
    let before = space.calls();
    assert_eq!(map(&space, AT + 8 * PAGE, BUFFERS, 0), Err(MapAtError::Invalid));
    assert_eq!(map(&space, u64::MAX - 1, BUFFERS, 3), Err(MapAtError::Invalid));
    assert_eq!(map(&space, AT + 8 * PAGE, !0xfff, 2 * PAGE), Err(MapAtError::Invalid));
    assert_eq!(map(&space, 0, BUFFERS, PAGE), Err(MapAtError::Invalid), "page 0");
    assert_eq!(map(&space, AT + 8 * PAGE, BUFFERS + 1, PAGE), Err(MapAtError::Unaligned));
    for at in [0xfee0_0000, 0xfedf_f000, 1 << 39, 1 << 52] {
        assert_eq!(map(&space, at, BUFFERS, 2 * PAGE), Err(MapAtError::Outside), "{at:#x}");
    }
    for start in [AT - PAGE, AT, AT + PAGE, AT + 3 * PAGE] {
        assert_eq!(map(&space, start, BUFFERS, 2 * PAGE), Err(MapAtError::Overlap), "{start:#x}");
    }
    let unmap = |at, bytes| space.unmap_within(DmaAddr(at), bytes);
    assert_eq!(unmap(AT, 0), Err(UnmapError::Invalid));
    assert_eq!(unmap(u64::MAX, 2), Err(UnmapError::Invalid));
    for (at, pages) in [(AT, 3), (AT + PAGE, 3), (AT + PAGE, 1), (AT + 3 * PAGE, 2), (AT - PAGE, 2)]
    {
        assert_eq!(unmap(at, pages * PAGE), Err(UnmapError::Partial), "{at:#x} {pages}");
    }
    assert_eq!(space.unmap(DmaAddr(AT), 4 * PAGE), Err(UnmapError::Partial), "by `unmap_within`");
    assert_eq!(unmap(0, PAGE), Ok(0));
    assert_eq!(unmap(AT + 4 * PAGE, PAGE), Ok(0), "nothing there");
    assert_eq!((space.calls(), kernel.len(), space.mappings()), (before, 1, (1, 0)));
    assert_eq!(unmap(AT - PAGE, 9 * PAGE), Ok(1), "it may go beyond");
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    misses(Mutant::WindowUnchecked, nonsense);
    misses(Mutant::BroughtCut, nonsense);
}

/// Counts who holds which page.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<u64, u64>>);

impl Memory for Ledger {
    fn hold(&self, first: u64, pages: u64) -> bool {
        let mut held = self.0.lock().unwrap();
        (0..pages).for_each(|n| *held.entry(first + n * PAGE).or_default() += 1);
        true
    }
    fn release(&self, first: u64, pages: u64) {
        let mut held = self.0.lock().unwrap();
        for page in (0..pages).map(|n| first + n * PAGE) {
            let count = held.get_mut(&page).expect("it is held");
            *count -= 1;
            if *count == 0 {
                held.remove(&page);
            }
        }
    }
}

fn refused() {
    let kernel = Arc::new(Dry::default());
    let ledger = Arc::new(Ledger::default());
    let config = Config::new(2).policy(Policy::Deferred).policy(Policy::Strict);
    let space: Brought<_, _> =
        Space::new(Arc::clone(&kernel), Arc::clone(&ledger), config, |_| Some(Unmanaged)).unwrap();
    map(&space, AT, BUFFERS, PAGE).unwrap();
    map(&space, AT + PAGE, BUFFERS + PAGE, PAGE).unwrap();
    let refusal = BackendError::Other(5);
    kernel.refuse_unmappings(3);
    let unmapped = space.unmap_within(DmaAddr(AT), 2 * PAGE);
    assert_eq!(unmapped, Err(UnmapError::NotComplete(Some(refusal))));
    assert_eq!((kernel.len(), space.mappings(), ledger.0.lock().unwrap().len()), (2, (0, 2), 2));
    // A device reaches it still.
    assert_eq!(map(&space, AT, BUFFERS + 9 * PAGE, PAGE), Err(MapAtError::Stale(refusal)));
    let again = space.unmap_within(DmaAddr(AT), 2 * PAGE);
    assert_eq!(again, Err(UnmapError::NotComplete(Some(refusal))));
    assert_eq!(kernel.reaches(AT).map(|(at, _)| at), Some(BUFFERS));
    // Elsewhere it does not matter.
    map(&space, AT + 2 * PAGE, BUFFERS + 9 * PAGE, PAGE).unwrap();
    map(&space, AT + PAGE, BUFFERS + 10 * PAGE, PAGE).unwrap();
    assert_eq!(kernel.reaches(AT + PAGE).map(|(at, _)| at), Some(BUFFERS + 10 * PAGE));
    assert_eq!((kernel.len(), space.mappings()), (2, (2, 0)));
    assert_eq!(ledger.0.lock().unwrap().len(), 2, "what was refused is released");
    map(&space, AT, BUFFERS, PAGE).unwrap();
    space.end().map_err(|(error, _)| error).unwrap();
    assert!(kernel.is_empty() && ledger.0.lock().unwrap().is_empty());
}

#[test]
fn what_the_kernel_refuses_is_in_the_way() {
    misses(Mutant::RefusedIgnored, refused);
    misses(Mutant::StaleForEver, refused);
}

#[test]
fn what_the_kernel_does_not_map_is_not_mapped() {
    misses(Mutant::ShadowLeft, || {
        let windows = vec![Window { first: 0, last: (1 << 39) - 1 }];
        let kernel = Arc::new(Dry::new(Manner::Vfio, windows, 2));
        let space = space(Arc::clone(&kernel));
        map(&space, AT, BUFFERS, PAGE).unwrap();
        kernel.map(AT + 4 * PAGE, 0x7000_0000, PAGE, Rights::Read).unwrap();
        let full = Err(MapAtError::Kernel(BackendError::Entries));
        assert_eq!(map(&space, AT + PAGE, BUFFERS, PAGE), full);
        let theirs = Err(MapAtError::Kernel(BackendError::Exists));
        assert_eq!(map(&space, AT + 3 * PAGE, BUFFERS, 2 * PAGE), theirs);
        assert_eq!((kernel.len(), space.mappings()), (2, (1, 0)));
        assert_eq!(space.unmap_within(DmaAddr(AT), PAGE), Ok(1));
        map(&space, AT + PAGE, BUFFERS, PAGE).unwrap();
        // What was refused to be unmapped is tried again where room is short.
        kernel.refuse_unmappings(1);
        assert!(space.unmap_within(DmaAddr(AT), 2 * PAGE).is_err());
        map(&space, AT + 8 * PAGE, BUFFERS, PAGE).unwrap();
        assert_eq!((kernel.len(), space.mappings()), (2, (1, 0)));
    });
}

/// A kernel in whose call somebody else calls the space.
#[derive(Default)]
struct Nosy {
    dry: Dry,
    space: OnceLock<Weak<Brought<Arc<Nosy>>>>,
    answers: Mutex<Vec<Result<(), MapAtError>>>,
}

// SAFETY: there are no devices.
unsafe impl Backend for Nosy {
    fn windows(&self) -> Result<Vec<Window>, BackendError> {
        self.dry.windows()
    }
    fn page_sizes(&self) -> u64 {
        self.dry.page_sizes()
    }
    fn map(&self, iova: u64, memory: u64, bytes: u64, rights: Rights) -> Result<(), BackendError> {
        if let Some(space) = self.space.get().and_then(Weak::upgrade).filter(|_| memory == BUFFERS)
        {
            let answer = map(&space, iova + PAGE, BUFFERS + 7 * PAGE, PAGE);
            self.answers.lock().unwrap().push(answer);
            assert_eq!(space.unmap_within(DmaAddr(iova), bytes), Ok(0), "it is not mapped yet");
        }
        self.dry.map(iova, memory, bytes, rights)
    }
    fn unmap(&self, iova: u64, bytes: u64) -> Result<u64, BackendError> {
        if let Some(space) = self.space.get().and_then(Weak::upgrade) {
            self.answers.lock().unwrap().push(map(&space, iova, BUFFERS + 7 * PAGE, PAGE));
        }
        self.dry.unmap(iova, bytes)
    }
}

#[test]
fn one_at_a_time_changes_a_range() {
    misses(Mutant::ClaimIgnored, || {
        let kernel = Arc::new(Nosy::default());
        let space = Arc::new(space(Arc::clone(&kernel)));
        kernel.space.set(Arc::downgrade(&space)).unwrap();
        map(&space, AT, BUFFERS, 4 * PAGE).unwrap();
        assert_eq!(*kernel.answers.lock().unwrap(), [Err(MapAtError::Overlap)]);
        assert_eq!(space.unmap_within(DmaAddr(AT), 4 * PAGE), Ok(1));
        assert_eq!(*kernel.answers.lock().unwrap(), [Err(MapAtError::Overlap); 2]);
        assert!(kernel.dry.is_empty());
    });
}

#[test]
fn what_is_mapped_is_told_one_by_one() {
    misses(Mutant::NextLeftOut, || {
        let space = space(Dry::default());
        for n in [5, 1, 2, 3, 9] {
            map(&space, AT + n * PAGE, BUFFERS + (20 - n) * PAGE, PAGE).unwrap();
        }
        let told: Vec<_> = space.mapped().map(|m| (m.at.0, m.bytes, m.memory)).collect();
        let expected = [1, 2, 3, 5, 9].map(|n| (AT + n * PAGE, PAGE, BUFFERS + (20 - n) * PAGE));
        assert_eq!(told, expected);
        assert!(space.mapped().all(|m| m.rights == Rights::ReadWrite));
        // Another space, as a migration makes it.
        let other = self::space(Dry::default());
        for m in space.mapped() {
            map(&other, m.at.0, m.memory, m.bytes).unwrap();
        }
        assert!(other.mapped().eq(space.mapped()));
        // A reset: taken away while they are told.
        for m in space.mapped() {
            assert_eq!(space.unmap_within(m.at, m.bytes), Ok(1));
        }
        assert_eq!((space.mapped().count(), space.backend().len()), (0, 0));
    });
}

#[derive(Clone, Debug)]
enum Op {
    Map(u64, u64),
    Unmap(u64, u64),
    Refuse(u64),
    Short(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u64..24, 1u64..6).prop_map(|(at, pages)| Op::Map(at, pages)),
        4 => (0u64..24, 1u64..12).prop_map(|(at, pages)| Op::Unmap(at, pages)),
        1 => (1u64..4).prop_map(Op::Refuse),
        1 => (1u64..3).prop_map(Op::Short),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What callers hear is what a list of mappings says, and the kernel has no more than what is
    /// mapped and what it was told of in vain.
    #[test]
    fn a_space_does_what_a_list_says(ops in prop::collection::vec(op(), 1..60)) {
        let kernel = Arc::new(Dry::default());
        let space = space(Arc::clone(&kernel));
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        for (n, op) in ops.into_iter().enumerate() {
            match op {
                Op::Map(at, pages) => {
                    let memory = BUFFERS + ((n as u64) << 20);
                    let overlaps = live.iter().any(|(f, p)| *f < at + pages && at < f + p);
                    match map(&space, at * PAGE, memory, pages * PAGE) {
                        Ok(()) => {
                            prop_assert!(!overlaps);
                            live.insert(at, pages);
                        }
                        Err(MapAtError::Overlap) => prop_assert!(overlaps),
                        Err(MapAtError::Stale(_)) => prop_assert!(!overlaps),
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                }
                Op::Unmap(at, pages) => {
                    let within: Vec<(u64, u64)> = live
                        .iter()
                        .filter(|(f, p)| **f < at + pages && at < **f + **p)
                        .map(|(f, p)| (*f, *p))
                        .collect();
                    let cut = within.iter().any(|(f, p)| *f < at || f + p > at + pages);
                    match space.unmap_within(DmaAddr(at * PAGE), pages * PAGE) {
                        Ok(count) => {
                            prop_assert!(!cut && count == within.len());
                            live.retain(|f, _| within.iter().all(|(gone, _)| gone != f));
                        }
                        Err(UnmapError::Partial) => prop_assert!(cut),
                        Err(_) => {
                            prop_assert!(!cut);
                            let told: Vec<u64> = space.mapped().map(|m| m.at.0 / PAGE).collect();
                            live.retain(|f, _| told.contains(f));
                        }
                    }
                }
                Op::Refuse(count) => kernel.refuse_unmappings(count),
                Op::Short(count) => kernel.cut_unmappings_short(count),
            }
            let told: Vec<_> = space.mapped().map(|m| (m.at.0 / PAGE, m.bytes / PAGE)).collect();
            prop_assert!(told.iter().copied().eq(live.iter().map(|(f, p)| (*f, *p))));
            for m in space.mapped() {
                prop_assert_eq!(kernel.reaches(m.at.0).map(|(at, _)| at), Some(m.memory));
            }
            prop_assert!(kernel.len() <= live.len() + space.mappings().1);
        }
        kernel.refuse_unmappings(0);
        kernel.cut_unmappings_short(0);
        prop_assert!(space.end().is_ok() && kernel.is_empty());
    }
}
