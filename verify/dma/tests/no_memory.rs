//! Memory runs out, at every allocation there is: a typed error, nothing lost, and all goes on when
//! there is memory again.
#![allow(missing_docs)]
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use shootdown_dma_woven::domain::{Config, DomainError, Limits, Mapping};
use shootdown_dma_woven::invalidate::amd::Facts;
use shootdown_dma_woven::invalidate::queue::{Amd, Port, Queue, RingError, SLOTS};
use shootdown_dma_woven::invalidate::{Command, Engine, Promotion, QueueError, Ticket, Unit};
use shootdown_dma_woven::iova::magazine::{self, Magazines};
use shootdown_dma_woven::iova::space::{INTERRUPTS, Space};
use shootdown_dma_woven::iova::{SpaceError, Tree};
use shootdown_dma_woven::mutant::{self, Mutant};
use shootdown_dma_woven::table::memory::Table;
use shootdown_dma_woven::table::{TableMemory, VtdSecondLevel};
use shootdown_dma_woven::{DeviceId, Domain, DomainId, Host, PhysAddr, Policy, Rights};

/// The system's, which refuses when it is told to.
struct Failing;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    Serve,
    /// After so many allocations one fails.
    Once(u32),
    /// After so many, all do.
    From(u32),
}

thread_local! {
    static PLAN: Cell<Plan> = const { Cell::new(Plan::Serve) };
    static REFUSED: Cell<u32> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn refuses() -> bool {
    let (plan, refuses) = match PLAN.get() {
        Plan::Serve => return false,
        Plan::Once(0) => (Plan::Serve, true),
        Plan::Once(n) => (Plan::Once(n - 1), false),
        Plan::From(0) => (Plan::From(0), true),
        Plan::From(n) => (Plan::From(n - 1), false),
    };
    PLAN.set(plan);
    REFUSED.set(REFUSED.get() + u32::from(refuses));
    refuses
}

// SAFETY: the system's, or null.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses() {
            return std::ptr::null_mut();
        }
        LIVE.set(LIVE.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get() - 1);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // What becomes smaller stays where it is.
        if size > layout.size() && refuses() {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static MEMORY: Failing = Failing;

/// Runs it with memory that fails: at every allocation once, and from every allocation on.
fn with_failures(least: u32, run: impl Fn(&dyn Fn())) {
    for plan in [Plan::Once as fn(u32) -> Plan, Plan::From] {
        for n in 0.. {
            let before = LIVE.get();
            REFUSED.set(0);
            PLAN.set(plan(n));
            run(&|| PLAN.set(Plan::Serve));
            PLAN.set(Plan::Serve);
            assert_eq!(LIVE.get(), before, "{:?}: memory is lost", plan(n));
            if REFUSED.get() == 0 {
                assert!(n >= least, "nothing is allocated");
                break;
            }
        }
    }
}

/// Kernel and unit, which is done at once.
#[derive(Default)]
struct World {
    held: AtomicI64,
    told: AtomicU64,
    /// The unit completes nothing.
    dead: AtomicBool,
    tables: AtomicI64,
}

impl World {
    fn held(&self) -> i64 {
        self.held.load(Ordering::Relaxed)
    }
}

// SAFETY: pages of the heap, each its own physical address.
unsafe impl TableMemory for &World {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        let page = unsafe { std::alloc::alloc_zeroed(page()) };
        let page = Some(PhysAddr(page as u64)).filter(|at| at.0 != 0)?;
        self.tables.fetch_add(1, Ordering::Relaxed);
        Some(page)
    }
    unsafe fn free(&self, at: PhysAddr) {
        self.tables.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: from `allocate`, as promised.
        unsafe { std::alloc::dealloc(at.0 as *mut u8, page()) }
    }
    unsafe fn table(&self, at: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(at.0 as *const Table) }
    }
}

fn page() -> Layout {
    Layout::from_size_align(4096, 4096).unwrap()
}

// SAFETY: it caches nothing.
unsafe impl Unit for World {
    fn submit(&self, _: &[Command]) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.told.fetch_add(1, Ordering::Relaxed) + 1))
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        let dead = self.dead.load(Ordering::Relaxed);
        Ok(Ticket(if dead { 0 } else { self.told.load(Ordering::Relaxed) }))
    }
    fn answers(&self, _: DeviceId) -> bool {
        true
    }
}

// SAFETY: nothing is recycled.
unsafe impl<'w> Host for &'w World {
    type Addresses = Magazines<Tree>;
    type Format = VtdSecondLevel;
    type Tables = &'w World;
    type Unit = &'w World;
    type Pin = usize;
    fn pin(&self) -> usize {
        0
    }
    fn relax(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }
    fn hold(&self, _: PhysAddr, pages: u64) -> bool {
        self.held.fetch_add(pages as i64, Ordering::Relaxed);
        true
    }
    fn release(&self, _: PhysAddr, pages: u64) {
        self.held.fetch_sub(pages as i64, Ordering::Relaxed);
    }
}

fn addresses() -> Result<Magazines<Tree>, SpaceError> {
    let tree = Tree::new(&Space::below(1 << 20).without(&[INTERRUPTS]))?;
    Magazines::new(tree, &magazine::Config::for_cpus(2))
}

#[test]
fn there_is_a_domain_or_an_error() {
    let world = World::default();
    with_failures(3, |_| {
        let format = VtdSecondLevel::new(3, true, true).unwrap();
        let Ok(addresses) = addresses() else { return };
        let units = [(&world, DomainId(1)), (&world, DomainId(2))];
        let domain = Domain::new(&world, Config::new(2), addresses, format, &world, units);
        match domain {
            // SAFETY: no device was ever attached.
            Ok(domain) => drop(unsafe { domain.end() }),
            Err(error) => assert_eq!(error, DomainError::NoMemory),
        }
    });
    assert_eq!(world.tables.load(Ordering::Relaxed), 0);
}

#[test]
fn there_is_an_engine_or_an_error() {
    let world = World::default();
    with_failures(3, |_| {
        let units = (1..4).map(|id| (&world, DomainId(id)));
        if let Ok(engine) = Engine::new(2, units, Promotion::DEFAULT) {
            engine.wait(engine.flush_all(), &mut || true).unwrap();
        }
    });
}

/// A ring, its status word, and nothing that reads it.
struct Ring(Box<[AtomicU64]>, AtomicU64);

// SAFETY: there is no unit.
unsafe impl Port for Ring {
    fn read32(&self, _: usize) -> u32 {
        0
    }
    fn write32(&self, _: usize, _: u32) {}
    fn read64(&self, _: usize) -> u64 {
        0
    }
    fn write64(&self, _: usize, _: u64) {}
    fn ring(&self) -> &[AtomicU64] {
        &self.0
    }
    fn status(&self) -> &AtomicU64 {
        &self.1
    }
    fn status_address(&self) -> PhysAddr {
        PhysAddr(0x1000)
    }
    fn publish(&self) {}
    fn drain_events(&self, _: &mut dyn FnMut(DeviceId)) {}
}

#[test]
fn there_is_a_queue_or_an_error() {
    let slots = SLOTS as u64;
    let ring = Ring((0..2 * slots).map(|_| AtomicU64::new(0)).collect(), AtomicU64::new(0));
    with_failures(1, |_| {
        match Queue::new(&ring, Amd { slots, facts: Facts { forgets_all: true } }) {
            Ok(_) => {}
            Err(error) => assert_eq!(error, RingError::NoMemory),
        }
    });
}

/// What a driver does, with as much of it as there is memory for.
fn drive(domain: &Domain<&World>, mapped: &mut Vec<Mapping>) {
    let attachment = domain.attach(0, DeviceId(1), false).expect("that takes no memory");
    for n in 0..48u64 {
        // Each under tables of its own.
        let (phys, pages) = (PhysAddr(0x1_0000_0000 + (n << 22)), 1 + n % 3 * 511);
        mapped.extend(domain.map(phys, pages * 4096, Rights::ReadWrite));
    }
    if let Ok(mut reservation) = domain.reserve(700) {
        let _ = domain.link(&mut reservation, PhysAddr(0x7000_0000), 600, Rights::Read);
        let _ = domain.sync(&mut reservation);
        domain.release(reservation).map_err(|(error, _)| error).expect("what is there comes back");
    }
    for mapping in mapped.drain(..) {
        domain.unmap(mapping).expect("it is mapped");
    }
    domain.detach(attachment).map_err(|(error, _)| error).expect("the unit answers");
}

#[test]
fn what_a_driver_does_fails_whole_and_nothing_is_lost() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        with_failures(3, |serve| {
            let world = World::default();
            let plan = PLAN.replace(Plan::Serve);
            let format = VtdSecondLevel::new(3, true, true).unwrap();
            let units = [(&world, DomainId(1))];
            let config = Config::new(2).policy(policy);
            let addresses = addresses().unwrap();
            let domain = Domain::new(&world, config, addresses, format, &world, units).unwrap();
            let mut mapped = Vec::with_capacity(64);
            PLAN.set(plan);
            drive(&domain, &mut mapped);
            serve();
            domain.flush().unwrap();
            assert_eq!((domain.deferred(), world.held()), ((0, 0), 0));
            domain.addresses().flush();
            let tree = domain.addresses().inner();
            assert_eq!(tree.free_pages(), tree.pages(), "addresses are lost");
            // And all goes on.
            let at = domain.map(PhysAddr(0x1000), 4096, Rights::Read).unwrap();
            domain.unmap(at).unwrap();
            // SAFETY: its device is detached.
            drop(unsafe { domain.end() }.map_err(|failed| failed.error));
            assert_eq!(world.tables.load(Ordering::Relaxed), 0, "pages of tables are lost");
        });
    }
}

/// I13: what is on the way to its end needs no memory.
#[test]
fn completion_allocates_nothing() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let world = World::default();
        let format = VtdSecondLevel::new(3, true, true).unwrap();
        let (config, addresses) = (Config::new(2).policy(policy), addresses().unwrap());
        let domain =
            Domain::new(&world, config, addresses, format, &world, [(&world, DomainId(1))])
                .unwrap();
        let attachment = domain.attach(0, DeviceId(1), true).unwrap();
        let mut mapped = Vec::with_capacity(300);
        // The second time everybody has what they need.
        for time in 0..2 {
            let maps = (0..300u64).map(|n| {
                let bytes = (1 + n % 3) * 4096;
                domain.map(PhysAddr(0x1000_0000 + (n << 16)), bytes, Rights::Read).unwrap()
            });
            mapped.extend(maps);
            REFUSED.set(0);
            PLAN.set(if time == 0 { Plan::Serve } else { Plan::From(0) });
            for mapping in mapped.drain(..) {
                domain.unmap(mapping).unwrap();
            }
            domain.poll(1 << 40).unwrap();
            domain.flush().unwrap();
            PLAN.set(Plan::Serve);
            assert_eq!(
                (REFUSED.get(), domain.deferred(), world.held()),
                (0, (0, 0), 0),
                "{policy:?}"
            );
        }
        domain.detach(attachment).map_err(|(error, _)| error).unwrap();
        // SAFETY: its device is detached.
        drop(unsafe { domain.end() }.map_err(|failed| failed.error));
    }
}

/// The unit does not answer, and there is no memory to remember what is owed for it: as much as has
/// room is owed, and comes back; the rest stays out of use, and is counted.
fn over() {
    const PAGES: u64 = 6;
    let limits = Limits { entries: 4, ..Limits::DEFAULT };
    let world = World::default();
    let format = VtdSecondLevel::new(3, true, true).unwrap();
    let config = Config::new(1).policy(Policy::Deferred).policy(Policy::Strict).limits(limits);
    let units = [(&world, DomainId(1))];
    let domain = Domain::new(&world, config, addresses().unwrap(), format, &world, units).unwrap();
    let attachment = domain.attach(0, DeviceId(1), false).unwrap();
    let map = |n: u64| domain.map(PhysAddr(0x1000_0000 + (n << 16)), 4096, Rights::Read).unwrap();
    let mapped: Vec<Mapping> = (0..PAGES).map(map).collect();
    world.dead.store(true, Ordering::Relaxed);
    PLAN.set(Plan::From(0));
    let mut failed = 0;
    for mapping in mapped {
        failed += u64::from(domain.unmap(mapping).is_err());
    }
    PLAN.set(Plan::Serve);
    let now = (failed, domain.deferred().0, domain.counts().lost, world.held());
    assert_eq!(now, (PAGES, limits.entries, 2, PAGES as i64));
    world.dead.store(false, Ordering::Relaxed);
    domain.flush().unwrap();
    assert_eq!((domain.deferred(), world.held()), ((0, 0), 2), "what is lost is not given back");
    domain.detach(attachment).map_err(|(error, _)| error).unwrap();
    // SAFETY: its device is detached.
    drop(unsafe { domain.end() }.map_err(|failed| failed.error));
}

#[test]
fn what_has_no_place_is_counted() {
    over();
    mutant::set(Some(Mutant::QuarantineUnprepared));
    let without = catch_unwind(over);
    mutant::set(None);
    assert!(without.is_err());
}
