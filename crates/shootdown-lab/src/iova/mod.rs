//! Allocators of I/O addresses on this host, at full speed: this project's, its peers, and what
//! people write by hand ([`contestants`]).
//!
//! Two workloads. *One page*: a page is allocated and freed again. *Mixed*: of many live ranges of
//! 1 to 1024 pages (each power of two half as frequent as the one before, some odd) a random one is
//! freed and another one allocated. *Fresh* is after as many operations as fill the live ranges;
//! *aged*, after many more. With two threads, each has its own live ranges, and they change hands
//! between batches: half of what a thread frees, the other has allocated.

pub mod contestants;

use std::hint::black_box;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shootdown_dma::iova::Want;

use crate::experiments::chance;
use crate::hot::Timing;
use contestants::Contestant;

/// Ranges that are live in the mixed workload: as many buffers as eight rings of 1024 descriptors,
/// and as many as ten rings of 4096 (about the 42,300 that were counted on a Linux server in 2019).
pub const LIVE: [usize; 2] = [8_192, 40_960];

/// A source of chance that costs next to nothing.
struct Chance(u64);

impl Chance {
    const fn next(&mut self) -> u64 {
        // Marsaglia's xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// 1 to 1024 pages: 2^k with probability 2^-(k+1); an eighth of them a little less than that.
    const fn pages(&mut self) -> u64 {
        let bits = self.next();
        let class = (bits | 1 << 10).trailing_zeros();
        let pages = 1 << class;
        if bits >> 61 == 0 && pages > 2 { pages - 1 } else { pages }
    }
}

#[inline]
fn take<C: Contestant + ?Sized>(contestant: &C, cpu: usize, pages: u64) -> u64 {
    let first = contestant.take(cpu, pages);
    first.unwrap_or_else(|| panic!("{} has no room for {pages} pages", contestant.name()))
}

/// A live range to be replaced, and the pages of the one that comes for it. Small, as what is
/// measured shares caches with it.
#[derive(Clone, Copy)]
struct Turn {
    at: u16,
    pages: u16,
}

/// A thread's live ranges.
struct Worker {
    /// How many.
    most: usize,
    live: Vec<(u64, u64)>,
    chance: Chance,
    /// What is to come: made beforehand, since chance would cost as much as an allocation.
    turns: Vec<Turn>,
}

impl Worker {
    fn new(most: usize, seed: u64) -> Self {
        let chance = Chance(chance(seed, 0) | 1);
        Self { most, live: Vec::with_capacity(most), chance, turns: Vec::new() }
    }

    /// Fills the live ranges.
    fn fill(&mut self, contestant: &dyn Contestant, cpu: usize) {
        while self.live.len() < self.most {
            let pages = self.chance.pages();
            self.live.push((take(contestant, cpu, pages), pages));
        }
    }

    fn empty(&mut self, contestant: &dyn Contestant, cpu: usize) {
        for (first, pages) in self.live.drain(..) {
            contestant.give(cpu, first, pages);
        }
    }

    /// Decides which are replaced next.
    #[allow(clippy::cast_possible_truncation)] // up to 2^16 live ranges of up to 2^10 pages
    fn plan(&mut self, pairs: u32) {
        let (live, chance) = (self.live.len() as u64, &mut self.chance);
        self.turns.clear();
        self.turns.extend((0..pairs).map(|_| Turn {
            at: (((chance.next() >> 32) * live) >> 32) as u16,
            pages: chance.pages() as u16,
        }));
    }

    /// Replaces those that were planned.
    fn mixed<C: Contestant + ?Sized>(&mut self, contestant: &C, cpu: usize) {
        for turn in &self.turns {
            let live = &mut self.live[usize::from(turn.at)];
            contestant.give(cpu, live.0, live.1);
            let pages = u64::from(turn.pages);
            *live = (take(contestant, cpu, pages), pages);
        }
    }
}

fn one_page<C: Contestant + ?Sized>(contestant: &C, cpu: usize, pairs: u32) {
    for _ in 0..pairs {
        let first = take(contestant, black_box(cpu), black_box(1));
        contestant.give(cpu, black_box(first), 1);
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// A page, allocated and freed.
    OnePage,
    /// One of many live ranges freed, another allocated.
    Mixed,
}

impl Workload {
    /// Both.
    pub const ALL: [Self; 2] = [Self::OnePage, Self::Mixed];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnePage => "one page",
            Self::Mixed => "mixed",
        }
    }
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Batches, of which the minimum and the median are reported.
    pub batches: usize,
    /// Pairs in a batch, at most; fewer when that would take longer than some milliseconds.
    pub pairs: u32,
    /// Operations (a pair is two) that age a contestant, at most.
    pub aging: u64,
    /// No contestant is aged for longer.
    pub patience: Duration,
}

/// Nanoseconds of a pair, as several threads see them: of all batches of all threads, the minimum
/// and the median.
///
/// # Panics
/// When a contestant has no room, or a thread panics.
#[must_use]
pub fn measure(
    contestant: &dyn Contestant,
    workload: Workload,
    state: &mut Aged,
    threads: usize,
    effort: &Effort,
) -> Timing {
    let pairs = probe(contestant, workload, state, effort);
    let means = Mutex::new(Vec::new());
    for _ in 0..effort.batches {
        let barrier = Barrier::new(threads);
        state.workers.iter_mut().take(threads).for_each(|worker| worker.plan(pairs));
        std::thread::scope(|scope| {
            for (cpu, worker) in state.workers.iter_mut().take(threads).enumerate() {
                let (barrier, means) = (&barrier, &means);
                let mut run = move || {
                    barrier.wait();
                    let start = Instant::now();
                    match workload {
                        Workload::OnePage => one_page(contestant, cpu, pairs),
                        Workload::Mixed => worker.mixed(contestant, cpu),
                    }
                    let mean = nanoseconds(start.elapsed()) / f64::from(pairs);
                    means.lock().unwrap_or_else(PoisonError::into_inner).push(mean);
                };
                if threads == 1 { run() } else { drop(scope.spawn(run)) }
            }
        });
        if threads > 1 {
            state.workers.rotate_left(1);
        }
    }
    let mut means = means.into_inner().unwrap_or_else(PoisonError::into_inner);
    means.sort_by(f64::total_cmp);
    Timing { min: means[0], median: means[means.len() / 2] }
}

/// Pairs that take some milliseconds.
fn probe(
    contestant: &dyn Contestant,
    workload: Workload,
    state: &mut Aged,
    effort: &Effort,
) -> u32 {
    let mut pairs = 16;
    loop {
        state.workers[0].plan(pairs);
        let start = Instant::now();
        match workload {
            Workload::OnePage => one_page(contestant, 0, pairs),
            Workload::Mixed => state.workers[0].mixed(contestant, 0),
        }
        if pairs >= effort.pairs || start.elapsed() > Duration::from_millis(5) {
            return pairs.min(effort.pairs);
        }
        pairs *= 2;
    }
}

#[allow(clippy::cast_precision_loss)] // far shorter than 2^52 ns
fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

/// The live ranges that a contestant has seen, for two threads.
pub struct Aged {
    workers: Vec<Worker>,
    /// Operations so far.
    pub operations: u64,
}

impl Aged {
    /// So many live ranges, allocated by all threads.
    ///
    /// # Panics
    /// When they are more than 2^16 for each thread, or the contestant has no room.
    #[must_use]
    pub fn new(contestant: &dyn Contestant, live: usize, threads: usize, seed: u64) -> Self {
        assert!(live / threads <= 1 << 16, "{live} live ranges: they have numbers of 16 bits");
        let mut workers: Vec<_> =
            (0..threads as u64).map(|n| Worker::new(live / threads, seed ^ n << 32)).collect();
        for (cpu, worker) in workers.iter_mut().enumerate() {
            worker.fill(contestant, cpu);
        }
        Self { operations: live as u64, workers }
    }

    /// Ages the contestant: mixed sizes, from both CPUs by turns, each freeing what the other has
    /// allocated. Calls `each` now and then.
    pub fn age(
        &mut self,
        contestant: &dyn Contestant,
        operations: u64,
        patience: Duration,
        mut each: impl FnMut(),
    ) {
        const TURN: u32 = 1024;
        let (start, end) = (Instant::now(), self.operations + operations);
        let cpus = self.workers.len();
        let mut turn = 0;
        while self.operations < end && start.elapsed() < patience {
            let (cpu, owner) = (turn % cpus, turn / cpus % cpus);
            // The first turn is short, and shows who is slow.
            let pairs = if turn == 0 || start.elapsed() > patience / 16 { 16 } else { TURN };
            self.workers[owner].plan(pairs);
            self.workers[owner].mixed(contestant, cpu);
            self.operations += u64::from(pairs) * 2;
            turn += 1;
            if turn % 1024 == 0 {
                each();
            }
        }
    }

    /// Gives all back.
    pub fn end(mut self, contestant: &dyn Contestant) {
        for (cpu, worker) in self.workers.iter_mut().enumerate() {
            worker.empty(contestant, cpu);
        }
    }
}

/// Nanoseconds of a pair when the magazines are lent for 64 allocations, and again for as many
/// frees.
///
/// # Panics
/// Without memory.
#[must_use]
pub fn in_batches(batches: usize, pairs: u32) -> Timing {
    const MANY: u32 = 64;
    let (magazines, want) = (contestants::magazines(2), Want::pages(1).expect("a page"));
    let mut held = Vec::with_capacity(MANY as usize);
    let mut means: Vec<f64> = (0..batches.max(1))
        .map(|_| {
            let start = Instant::now();
            for _ in 0..pairs.div_ceil(MANY) {
                magazines.batch(black_box(0), |batch| {
                    for _ in 0..MANY {
                        held.push(batch.alloc(black_box(&want)).expect("there is room"));
                    }
                });
                magazines.batch(black_box(0), |batch| {
                    for range in held.drain(..) {
                        batch.free(black_box(range)).expect("it was handed out");
                    }
                });
            }
            nanoseconds(start.elapsed()) / f64::from(pairs.div_ceil(MANY) * MANY)
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Timing { min: means[0], median: means[means.len() / 2] }
}

/// Nanoseconds of a pair of locked operations and nothing else: what exclusion costs on this host.
#[must_use]
pub fn two_locks(batches: usize, pairs: u32) -> Timing {
    use std::sync::atomic::{AtomicBool, Ordering};

    let word = AtomicBool::new(false);
    let once = || {
        let word = black_box(&word);
        black_box(word.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)).ok();
        word.store(false, Ordering::Release);
    };
    let mut means: Vec<f64> = (0..batches.max(1))
        .map(|_| {
            let start = Instant::now();
            for _ in 0..pairs {
                once();
                once();
            }
            nanoseconds(start.elapsed()) / f64::from(pairs)
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Timing { min: means[0], median: means[means.len() / 2] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_frequent_as_said() {
        let (mut chance, mut counts) = (Chance(1), [0u32; 11]);
        for _ in 0..1 << 16 {
            let pages = chance.pages();
            assert!((1..=1024).contains(&pages));
            counts[pages.next_power_of_two().ilog2() as usize] += 1;
        }
        assert!(
            (30_000..36_000).contains(&counts[0]) && (7_000..9_500).contains(&counts[2]),
            "{counts:?}"
        );
        assert!(counts[10] > 20, "{counts:?}");
    }

    #[test]
    fn everything_comes_back() {
        let ours = contestants::Ours("magazines", contestants::magazines(2));
        let mut aged = Aged::new(&ours, LIVE[0], 2, 1);
        aged.age(&ours, 100_000, Duration::from_secs(60), || ());
        assert!(aged.operations >= 100_000);
        let effort = Effort { batches: 2, pairs: 100, aging: 0, patience: Duration::ZERO };
        for threads in [1, 2] {
            for workload in Workload::ALL {
                let timing = measure(&ours, workload, &mut aged, threads, &effort);
                assert!(timing.min > 0.0 && timing.min <= timing.median);
            }
        }
        aged.end(&ours);
        ours.1.flush();
        assert_eq!(ours.1.inner().free_pages(), ours.1.inner().pages());
    }
}
