//! How often CPUs that are busy are disturbed for what they defer, and how often units are told:
//! counted, with 64 CPUs of a pinned host.
#![allow(missing_docs)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shootdown_dma_woven::domain::{Config, Domain, Host, Mapping};
use shootdown_dma_woven::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma_woven::iova::Tree;
use shootdown_dma_woven::iova::magazine::{self, Magazines};
use shootdown_dma_woven::iova::space::{INTERRUPTS, Space};
use shootdown_dma_woven::mutant::{self, Mutant};
use shootdown_dma_woven::pinned::Pinned;
use shootdown_dma_woven::table::memory::Table;
use shootdown_dma_woven::table::{TableMemory, VtdSecondLevel};
use shootdown_dma_woven::{DeviceId, DomainId, PhysAddr, Policy, Rights};

const CPUS: usize = 64;
/// Pages that a busy CPU unmaps in a window, 4,800 in a second; few enough that it does not flush
/// them of its own accord.
const BUSY: u64 = 48;
const WINDOW: u64 = 10_000_000;

std::thread_local! {
    /// One thread plays all CPUs.
    static CPU: Cell<usize> = const { Cell::new(0) };
    static BARRIERS: Cell<usize> = const { Cell::new(0) };
    /// References to pages.
    static HELD: Cell<u64> = const { Cell::new(0) };
}

fn barrier(_: usize) -> bool {
    BARRIERS.set(BARRIERS.get() + 1);
    true
}

#[derive(Default)]
struct Iommu {
    told: AtomicU64,
    done: AtomicU64,
    whole: AtomicU64,
    /// It is done when somebody waits, and not before.
    waits: AtomicU64,
    slow: AtomicBool,
}

// SAFETY: it has no cache.
unsafe impl Unit for &Iommu {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let whole = commands.iter().filter(|c| matches!(c, Command::Domain(_))).count() as u64;
        self.whole.fetch_add(whole, Ordering::Relaxed);
        let ticket = self.told.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.slow.load(Ordering::Relaxed) {
            self.done.store(ticket, Ordering::Relaxed);
        }
        Ok(Ticket(ticket))
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.done.load(Ordering::Relaxed)))
    }
}

struct Kernel(&'static Iommu);
struct Pages;

// SAFETY: nothing is recycled.
unsafe impl Host for Kernel {
    type Addresses = Magazines<Tree>;
    type Format = VtdSecondLevel;
    type Tables = Pages;
    type Unit = &'static Iommu;
    type Pin = usize;
    fn pin(&self) -> usize {
        CPU.get()
    }
    fn relax(&self) -> bool {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        self.0.done.store(self.0.told.load(Ordering::Relaxed), Ordering::Relaxed);
        true
    }
    fn release(&self, _: PhysAddr, pages: u64) {
        HELD.set(HELD.get() - pages);
    }
    fn hold(&self, _: PhysAddr, pages: u64) -> bool {
        HELD.set(HELD.get() + pages);
        true
    }
}

fn page() -> Layout {
    Layout::from_size_align(4096, 4096).unwrap()
}

// SAFETY: pages of the heap, each its own physical address.
unsafe impl TableMemory for Pages {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        Some(PhysAddr(unsafe { alloc_zeroed(page()) } as u64)).filter(|at| at.0 != 0)
    }
    unsafe fn free(&self, at: PhysAddr) {
        // SAFETY: from `allocate`, as promised.
        unsafe { dealloc(at.0 as *mut u8, page()) }
    }
    unsafe fn table(&self, at: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(at.0 as *const Table) }
    }
}

struct World {
    iommu: &'static Iommu,
    domain: Domain<Kernel>,
    now: u64,
}

/// What something has cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cost {
    barriers: usize,
    /// Submissions, and how many of them were of the whole domain.
    told: u64,
    whole: u64,
    waits: u64,
}

impl World {
    fn new() -> Self {
        let iommu: &'static Iommu = Box::leak(Box::default());
        let tree = Tree::new(&Space::below(1 << 27).without(&[INTERRUPTS])).unwrap();
        // SAFETY: one thread plays all CPUs.
        let pinned = unsafe { Pinned::new(barrier) };
        let addresses = Magazines::new(tree, &magazine::Config::for_cpus(CPUS)).unwrap();
        let config = Config::new(CPUS).policy(Policy::Deferred).pinned(pinned);
        let format = VtdSecondLevel::new(3, true, true).unwrap();
        let units = [(iommu, DomainId(1))];
        let domain = Domain::new(Kernel(iommu), config, addresses, format, Pages, units).unwrap();
        let _ = domain.attach(0, DeviceId(8), false).unwrap();
        HELD.set(0);
        Self { iommu, domain, now: WINDOW }
    }

    fn unmaps(&mut self, cpu: usize, pages: u64) {
        CPU.set(cpu);
        let map = |n| self.domain.map(PhysAddr((1 + n) << 12), 4096, Rights::Write).unwrap();
        let all: Vec<Mapping> = (0..pages).map(map).collect();
        all.into_iter().for_each(|mapping| _ = self.domain.unmap(mapping).unwrap());
        CPU.set(0);
    }

    fn costs(&self, f: impl FnOnce(&Domain<Kernel>)) -> Cost {
        let Iommu { told, whole, waits, .. } = self.iommu;
        let now = || [told, whole, waits].map(|count| count.load(Ordering::Relaxed));
        let before = now();
        BARRIERS.set(0);
        f(&self.domain);
        let [told, whole, waits] = now();
        Cost {
            barriers: BARRIERS.get(),
            told: told - before[0],
            whole: whole - before[1],
            waits: waits - before[2],
        }
    }

    fn timer(&mut self) -> Cost {
        self.now += WINDOW;
        self.costs(|domain| domain.poll(self.now).unwrap())
    }
}

/// A window with all CPUs busy, after some others: what the timer costs.
fn busy() -> Cost {
    let mut world = World::new();
    let mut cost = None;
    for _ in 0..6 {
        (0..CPUS).for_each(|cpu| world.unmaps(cpu, BUSY));
        // Another call in between finds nothing to disturb anybody for.
        cost = Some(world.timer());
        let between = world.costs(|domain| domain.poll(world.now + 1).unwrap());
        if world.now > 4 * WINDOW {
            assert_eq!((between.barriers, between.waits), (0, 0), "{between:?}");
        }
        // What was deferred two windows ago is given back by now, but for what a CPU has unmapped
        // since it looked last.
        let most = (2 * BUSY + 32) * CPUS as u64;
        assert!(HELD.get() <= most, "{} are held", HELD.get());
    }
    // They become idle: interrupted until they have nothing, and then no more.
    let idle: Vec<Cost> = (0..4).map(|_| world.timer()).collect();
    assert_eq!(world.domain.deferred(), (0, 0), "{idle:?}");
    assert_eq!(HELD.get(), 0);
    assert_eq!(world.timer(), Cost { barriers: 0, told: 0, whole: 0, waits: 0 });
    cost.unwrap()
}

fn a_timer_leaves_them_alone() {
    assert_eq!(busy(), Cost { barriers: 0, told: 1, whole: 1, waits: 0 });
}

fn misses(mutant: Mutant, scene: fn()) {
    scene();
    mutant::set(Some(mutant));
    let outcome = catch_unwind(AssertUnwindSafe(scene));
    let reached = mutant::reached();
    mutant::set(None);
    assert!(outcome.is_err() && reached, "{mutant:?}");
}

#[test]
fn a_timer_disturbs_no_busy_cpu() {
    println!("64 busy CPUs, a window: {:?}", busy());
    misses(Mutant::AnswerUnsubmitted, a_timer_leaves_them_alone);
    misses(Mutant::BusyDisturbed, a_timer_leaves_them_alone);
    misses(Mutant::AnswersNever, a_timer_leaves_them_alone);
    misses(Mutant::ExpectedForEver, a_timer_leaves_them_alone);
    misses(Mutant::AnswersOneByOne, a_timer_leaves_them_alone);
}

/// What one CPU alone has deferred is told as it is, also if it answers the timer.
fn one() {
    let mut world = World::new();
    // The timer finds no empty table.
    let _stays = world.domain.map(PhysAddr(1 << 40), 4096, Rights::Read).unwrap();
    // Nothing comes back, so that addresses follow each other.
    world.iommu.slow.store(true, Ordering::Relaxed);
    for window in 0..4 {
        world.unmaps(9, BUSY);
        let barriers = usize::from(window == 0);
        assert_eq!(world.timer(), Cost { barriers, told: 1, whole: 0, waits: 0 }, "{window}");
    }
}

#[test]
fn what_one_has_answered_is_told_as_it_is() {
    misses(Mutant::AnswerAsAll, one);
}

/// A domain that all CPUs use: nobody reaches what was unmapped, and nobody is disturbed for it.
fn all_at_once() {
    let mut world = World::new();
    (0..CPUS).for_each(|cpu| world.unmaps(cpu, BUSY));
    world.iommu.slow.store(true, Ordering::Relaxed);
    let cost = world.costs(|domain| domain.invalidate_all().unwrap());
    assert_eq!(cost, Cost { barriers: 0, told: 1, whole: 1, waits: 1 });
    assert_eq!(HELD.get(), BUSY * CPUS as u64, "it stays deferred");
    // Who wants it back as well enters each CPU's cell: to seal, and to take 32 at a time.
    let cost = world.costs(|domain| domain.flush().unwrap());
    let barriers = (1 + BUSY.div_ceil(32) as usize) * (CPUS - 1);
    assert_eq!(cost, Cost { barriers, told: 1, whole: 1, waits: 1 });
    println!("64 busy CPUs, a flush that gives back: {cost:?}");
    assert_eq!(HELD.get(), 0);
}

#[test]
fn all_is_invalidated_at_once() {
    misses(Mutant::InvalidatedUnheard, all_at_once);
}
