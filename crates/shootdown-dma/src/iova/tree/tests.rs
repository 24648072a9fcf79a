use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::runs::tests::NO_MEMORY;
use super::*;
use crate::iova::space::INTERRUPTS;

fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).unwrap()
}

fn want(pages: u64) -> Want {
    Want::pages(pages).unwrap()
}

impl Tree {
    fn checked(&self) -> Vec<(u64, u64)> {
        self.runs.with(|runs| runs.checked())
    }
}

/// The space as a bitmap: which pages are live or reserved, and what may be handed out by trying.
struct Shadow {
    taken: Vec<bool>,
    reserved: Vec<bool>,
    first: u64,
    guard: u64,
}

impl Shadow {
    fn new(space: &Space<'_>) -> Self {
        let pages = usize::try_from(space.last + 1).unwrap();
        let mut reserved = vec![false; pages];
        for hole in space.reserved {
            for page in hole.first()..=hole.last().min(space.last) {
                reserved[page as usize] = true;
            }
        }
        Self { taken: reserved.clone(), reserved, first: space.first, guard: space.guard }
    }

    fn last(&self) -> u64 {
        self.taken.len() as u64 - 1
    }

    fn fits(&self, range: IovaRange) -> bool {
        let (first, last) = (range.first(), range.last());
        let around =
            first.saturating_sub(self.guard).max(self.first)..=(last + self.guard).min(self.last());
        first >= self.first
            && last <= self.last()
            && around.into_iter().all(|p| !self.taken[p as usize])
    }

    fn highest(&self, want: &Want) -> Option<IovaRange> {
        (self.first..=self.last())
            .rev()
            .map(|first| range(first, want.pages))
            .find(|r| want.is_met_by(*r) && self.fits(*r))
    }

    fn set(&mut self, range: IovaRange, taken: bool) {
        for page in range.first()..=range.last() {
            self.taken[page as usize] = taken;
        }
    }

    fn is_live(&self, range: IovaRange) -> bool {
        range.last() <= self.last()
            && (range.first()..=range.last())
                .all(|p| self.taken[p as usize] && !self.reserved[p as usize])
    }

    fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for page in (self.first..=self.last()).filter(|p| self.taken[*p as usize]) {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == page => run.1 = page,
                _ => runs.push((page, page)),
            }
        }
        runs
    }
}

/// Do they hold the same? The end of the space is a run of the tree only.
fn agree(tree: &Tree, shadow: &Shadow) {
    let end = (shadow.last() + 1 + shadow.guard, shadow.last() + 1 + shadow.guard);
    let mut expected = shadow.runs();
    match expected.last_mut() {
        Some(run) if run.1 + 1 == end.0 => run.1 = end.0,
        _ => expected.push(end),
    }
    let seen = tree.checked();
    if shadow.guard == 0 {
        assert_eq!(seen, expected);
    } else {
        // What was reserved may abut what was claimed: compare page by page.
        let pages =
            |runs: &[(u64, u64)]| runs.iter().flat_map(|(f, l)| *f..=*l).collect::<Vec<_>>();
        assert_eq!(pages(&seen), pages(&expected));
    }
    let free = shadow.taken[shadow.first as usize..].iter().filter(|t| !**t).count();
    assert_eq!(tree.free_pages(), free as u64, "A3");
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(Want),
    /// So many at once, at most.
    AllocRun(Want, u64),
    /// What was handed out, or a part of it: which, how many pages of its beginning and end stay.
    Free(usize, u64, u64),
    /// Anything at all.
    FreeAny(IovaRange),
    Claim(IovaRange),
}

fn step(last: u64) -> impl Strategy<Value = Step> {
    let wants = (1..20u64, 0..7u32, 0..4usize, prop_oneof![Just(u64::MAX), 1..last]).prop_map(
        |(pages, align, boundary, limit)| {
            let align =
                if align < 4 { pages.next_power_of_two() } else { 1 << (align - 4) << (pages % 3) };
            let boundary = [0, 0, 0, 32][boundary];
            Want { align, boundary, limit, ..want(pages) }
        },
    );
    let ranges = (1..=last, 1..30u64).prop_map(|(first, pages)| range(first, pages));
    prop_oneof![
        6 => wants.clone().prop_map(Step::Alloc),
        2 => (wants, 1..6u64).prop_map(|(want, most)| Step::AllocRun(want, most)),
        4 => (any::<usize>(), 0..2u64, 0..2u64).prop_map(|(n, f, l)| Step::Free(n, f, l)),
        1 => ranges.clone().prop_map(Step::FreeAny),
        1 => ranges.prop_map(Step::Claim),
    ]
}

fn run(space: &Space<'_>, steps: &[Step]) {
    let (tree, mut shadow) = (Tree::new(space).unwrap(), Shadow::new(space));
    let mut live: Vec<IovaRange> = Vec::new();
    for step in steps {
        match step {
            Step::Alloc(want) => match tree.alloc(0, want) {
                Ok(got) => {
                    assert!(want.is_met_by(got), "A2: {got:?} for {want:?}");
                    assert!(shadow.fits(got), "A1: {got:?} is taken");
                    shadow.set(got, true);
                    live.push(got);
                }
                Err(error) => {
                    assert_eq!(error, AllocError::Exhausted);
                    assert_eq!(shadow.highest(want), None, "A4: there is room for {want:?}");
                }
            },
            Step::AllocRun(want, most) => {
                let Ok(run) = tree.alloc_run(0, want, *most) else {
                    assert_eq!(shadow.highest(want), None, "A4: there is room for {want:?}");
                    continue;
                };
                let count = run.pages() / want.pages;
                assert!(run.pages() % want.pages == 0 && (1..=*most).contains(&count));
                // From the highest on.
                for n in (0..count).rev() {
                    let one = range(run.first() + n * want.pages, want.pages);
                    assert!(want.is_met_by(one), "A2: {one:?} for {want:?}");
                    assert!(shadow.fits(one), "A1: {one:?} is taken, or too near");
                    if count > 1 {
                        assert_eq!(shadow.highest(want), Some(one), "as one by one");
                    }
                    shadow.set(one, true);
                    live.push(one);
                }
            }
            Step::Free(n, before, after) if !live.is_empty() => {
                let whole = live.swap_remove(n % live.len());
                let (first, last) = (whole.first() + before, whole.last() - after);
                if whole.pages() <= before + after {
                    live.push(whole);
                    continue;
                }
                let part = range(first, last - first + 1);
                assert_eq!(tree.free(0, part), Ok(()));
                shadow.set(part, false);
                live.extend(IovaRange::new(whole.first(), *before));
                live.extend(IovaRange::new(last + 1, *after));
            }
            Step::Free(..) => {}
            Step::FreeAny(range) => {
                // A range that isn't live changes nothing. One that is belongs to somebody.
                if !shadow.is_live(*range) {
                    assert_eq!(tree.free(0, *range), Err(FreeError::NotAllocated));
                }
            }
            Step::Claim(range) => {
                let free = range.last() <= shadow.last()
                    && (range.first()..=range.last())
                        .all(|p| p >= shadow.first && !shadow.taken[p as usize]);
                assert_eq!(tree.claim(*range).is_ok(), free);
                if free {
                    shadow.set(*range, true);
                    live.push(*range);
                }
            }
        }
        agree(&tree, &shadow);
    }
    for range in live {
        assert_eq!(tree.free(0, range), Ok(()));
        shadow.set(range, false);
        agree(&tree, &shadow);
    }
    assert_eq!(tree.checked(), Tree::new(space).unwrap().checked(), "A3: all gaps have merged");
}

pub(crate) fn agrees_with_a_bitmap() {
    let mut runner = TestRunner::new_with_rng(
        Config {
            cases: 300,
            failure_persistence: None,
            max_shrink_iters: 2000,
            ..Config::default()
        },
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let steps = (0..3u64, proptest::collection::vec(step(140), 1..120));
    let outcome = runner.run(&steps, |(guard, steps)| {
        let holes = [range(90, 7), range(20, 1)];
        run(&Space::below(129).guarded(guard).without(&holes), &steps);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn tree_agrees_with_a_bitmap() {
    agrees_with_a_bitmap();
}

/// A space of eight pages, every sequence of allocations and frees up to a depth.
#[test]
fn small_spaces_exhaustively() {
    fn go(steps: &mut Vec<Step>, depth: usize) {
        run(&Space::below(9), steps);
        if depth == 0 {
            return;
        }
        let wants = [want(1), want(2), want(3).aligned(1), want(3), want(4).below(5)];
        let frees =
            (0..3).map(|n| Step::Free(n, 0, 0)).chain([Step::Free(0, 1, 0), Step::Free(0, 1, 1)]);
        for step in wants.map(Step::Alloc).into_iter().chain(frees) {
            steps.push(step);
            go(steps, depth - 1);
            steps.pop();
        }
    }
    go(&mut Vec::new(), 5);
}

pub(crate) fn runs_merge() {
    // A NIC fills eight rings with single pages at start-up; a few are taken away again, as packets
    // come.
    let tree = Tree::new(&Space::below(1 << 36).without(&[INTERRUPTS])).unwrap();
    let before = tree.nodes();
    let mut pages: Vec<_> = (0..40_000).map(|_| tree.alloc(0, &want(1)).unwrap()).collect();
    assert_eq!(tree.nodes(), before, "single pages abut the end and each other");
    for n in (0..40).map(|n| n * 907 + 1) {
        tree.free(0, pages[n]).unwrap();
    }
    assert_eq!(tree.nodes(), before + 40);
    for n in (0..40).map(|n| n * 907 + 1) {
        pages[n] = tree.alloc(0, &want(1)).unwrap();
    }
    assert_eq!(tree.nodes(), before);
    // In two halves, from both ends: gaps merge whichever side the neighbour is on.
    for n in (0..40_000).step_by(2).chain((0..40_000).rev().filter(|n| n % 2 == 1)) {
        tree.free(0, pages[n]).unwrap();
    }
    tree.checked();
    assert_eq!(tree.nodes(), before, "A3");
}

#[test]
fn a_network_card_starts_up_in_few_nodes() {
    runs_merge();
}

pub(crate) fn holes_stay_free() {
    let tree = Tree::new(&Space::below(0x10_0000).from(0xf_ed00).without(&[INTERRUPTS])).unwrap();
    let mut got = 0;
    while let Ok(range) = tree.alloc(0, &want(1)) {
        assert!(!range.overlaps(INTERRUPTS), "A2");
        got += 1;
    }
    assert_eq!(got, 0x10_0000 - 0xf_ed00 - 0x100);
    assert_eq!(tree.free(0, INTERRUPTS), Err(FreeError::NotAllocated));
    assert_eq!(tree.free(0, range(0xf_edff, 2)), Err(FreeError::NotAllocated));
    assert_eq!(tree.free(0, range(0xf_edff, 1)), Ok(()));
}

#[test]
fn reserved_windows_are_never_handed_out() {
    holes_stay_free();
}

#[test]
fn without_memory_nothing_changes() {
    let tree = Tree::new(&Space::below(1 << 20)).unwrap();
    // Every second page live: as many nodes as there is memory for.
    NO_MEMORY.set(true);
    let mut live = vec![];
    let error = loop {
        match tree.alloc(0, &want(1).aligned(2)) {
            Ok(range) => live.push(range),
            Err(error) => break error,
        }
    };
    assert_eq!(error, AllocError::NoMemory);
    assert_eq!((live.len(), tree.nodes()), (NODES - 1 - LEFT, NODES - LEFT));
    let before = tree.checked();
    assert_eq!(tree.claim(range(5, 1)), Err(AllocError::NoMemory));
    assert_eq!(tree.reserve(NODES), Err(AllocError::NoMemory));
    assert_eq!(tree.checked(), before);
    NO_MEMORY.set(false);
    let wide = tree.alloc(0, &want(1024)).unwrap();
    NO_MEMORY.set(true);
    // Frees split runs with what was left to them, until there is nothing left.
    let mut splits = 0;
    let error = loop {
        match tree.free(0, range(wide.first() + 1 + 2 * splits, 1)) {
            Ok(()) => splits += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, FreeError::NoMemory);
    assert!(splits >= LEFT as u64);
    let before = tree.checked();
    assert_eq!(tree.free(0, range(wide.first() + 1 + 2 * splits, 1)), Err(FreeError::NoMemory));
    assert_eq!(tree.checked(), before);
    NO_MEMORY.set(false);
    assert_eq!(tree.free(0, range(wide.first() + 1 + 2 * splits, 1)), Ok(()));
    tree.checked();
}

#[test]
fn requests_larger_than_the_space_are_exhausted() {
    let tree = Tree::new(&Space::below(1 << 20)).unwrap();
    for pages in [1 << 20, 1 << 62, 1 << 63, u64::MAX] {
        let Some(want) = Want::pages(pages) else { continue };
        assert_eq!(tree.alloc(0, &want), Err(AllocError::Exhausted));
        assert_eq!(tree.alloc(0, &want.aligned(1)), Err(AllocError::Exhausted));
        assert_eq!(tree.alloc(0, &want.aligned(1 << 63)), Err(AllocError::Exhausted));
    }
    assert_eq!(tree.alloc(0, &want(1).below(0)), Err(AllocError::Exhausted));
    assert_eq!(tree.alloc(0, &want(1).aligned(3)), Err(AllocError::Invalid));
}

/// There is no memory for nodes from now on, or there is again, in this thread.
pub(crate) fn no_memory(none: bool) {
    NO_MEMORY.set(none);
}
