//! Bad input from a driver: each kind is a typed error, after which everything is as it was. (Wrong
//! lengths in all their forms are in `domain/tests/lengths.rs`, a guest's requests in `vmm.rs`,
//! errors of queues in `queues.rs`.)
#![allow(missing_docs)]
#![cfg(not(loom))]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use shootdown_dma_woven::domain::{Config, Segment};
use shootdown_dma_woven::invalidate::{AttachError, Command, QueueError, Ticket, Unit};
use shootdown_dma_woven::iova::space::{INTERRUPTS, Space};
use shootdown_dma_woven::iova::{AllocError, Allocate, Tree, Want};
use shootdown_dma_woven::mutant::{self, Mutant};
use shootdown_dma_woven::table::memory::Table;
use shootdown_dma_woven::table::{MapErrorKind, TableMemory, VtdSecondLevel};
use shootdown_dma_woven::{
    DeviceId, DmaAddr, Domain, DomainId, Host, IovaRange, MapError, PhysAddr, Policy, Rights,
    UnmapError,
};

const PAGE: u64 = 4096;

/// Kernel and unit. The unit is done at once, unless it has no room, or a device does not answer.
#[derive(Default)]
struct World {
    held: AtomicI64,
    told: AtomicU64,
    full: AtomicBool,
    silent: AtomicBool,
}

struct Pages;

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

// SAFETY: it caches nothing.
unsafe impl Unit for World {
    fn submit(&self, _: &[Command]) -> Result<Ticket, QueueError> {
        if self.full.load(Ordering::Relaxed) {
            return Err(QueueError::Full);
        }
        Ok(Ticket(self.told.fetch_add(1, Ordering::Relaxed) + 1))
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.told.load(Ordering::Relaxed)))
    }
    fn answers(&self, _: DeviceId) -> bool {
        !self.silent.load(Ordering::Relaxed)
    }
}

// SAFETY: nothing is recycled.
unsafe impl<'w> Host for &'w World {
    type Addresses = Tree;
    type Format = VtdSecondLevel;
    type Tables = Pages;
    type Unit = &'w World;
    type Pin = usize;
    fn pin(&self) -> usize {
        0
    }
    fn relax(&self) -> bool {
        !self.full.load(Ordering::Relaxed)
    }
    fn hold(&self, _: PhysAddr, pages: u64) -> bool {
        self.held.fetch_add(pages as i64, Ordering::Relaxed);
        true
    }
    fn release(&self, _: PhysAddr, pages: u64) {
        self.held.fetch_sub(pages as i64, Ordering::Relaxed);
    }
}

fn domain(world: &World, policy: Policy) -> Domain<&World> {
    let tree = Tree::new(&Space::below(1 << 20).without(&[INTERRUPTS])).unwrap();
    let format = VtdSecondLevel::new(3, true, true).unwrap();
    let config = Config::new(1).policy(Policy::Deferred).policy(policy);
    Domain::new(world, config, tree, format, Pages, [(world, DomainId(1))]).unwrap()
}

/// All that an error leaves as it is.
fn state(domain: &Domain<&World>) -> impl PartialEq + std::fmt::Debug + use<> {
    let world = domain.host();
    let first = domain.addresses().pages().saturating_sub(64);
    let entries: Vec<_> = (first..first + 128).map(|p| domain.lookup(DmaAddr(p * PAGE))).collect();
    let counts = (world.held.load(Ordering::Relaxed), world.told.load(Ordering::Relaxed));
    (entries, counts, domain.deferred(), domain.addresses().free_pages())
}

/// Runs it, and sees that nothing has changed.
fn refused<T>(domain: &Domain<&World>, f: impl FnOnce() -> T) -> T {
    let before = state(domain);
    let outcome = f();
    assert_eq!(state(domain), before);
    outcome
}

/// By a number, which may be wrong.
fn unmap(domain: &Domain<&World>, at: DmaAddr, bytes: u64) -> Result<(), UnmapError> {
    // SAFETY: tests unmap one after the other.
    unsafe { domain.unmap_raw(at, bytes) }.map(drop)
}

fn map_at(domain: &Domain<&World>, at: IovaRange, phys: PhysAddr) -> Result<(), MapError> {
    // SAFETY: tests map one after the other.
    unsafe { domain.map_at(at, phys, Rights::Read) }
}

fn unmap_at(domain: &Domain<&World>, at: IovaRange) -> Result<(), UnmapError> {
    // SAFETY: as above.
    unsafe { domain.unmap_at(at) }
}

#[test]
fn nothing_too_much_and_what_is_not_aligned() {
    let world = World::default();
    let domain = domain(&world, Policy::Deferred);
    let mut reservation = domain.reserve(4).unwrap();
    let mapped = domain.map(PhysAddr(0x5000_0000), 3 * PAGE, Rights::Read).unwrap().into_raw();
    let map = |phys, bytes| refused(&domain, || domain.map(PhysAddr(phys), bytes, Rights::Read));
    let sg = |all: &[(u64, u64)]| {
        let segment = |(phys, bytes)| Segment { phys: PhysAddr(phys), bytes };
        let all: Vec<_> = all.iter().copied().map(segment).collect();
        refused(&domain, || domain.map_sg(&all, Rights::Read))
    };
    // Zero.
    assert_eq!(map(0x1000, 0), Err(MapError::Empty));
    assert_eq!(sg(&[]), Err(MapError::Empty));
    assert_eq!(sg(&[(0x1000, PAGE), (0x9000, 0)]), Err(MapError::Empty));
    assert_eq!(refused(&domain, || domain.reserve(0)), Err(MapError::Empty));
    let mut link = |phys, pages| {
        refused(&domain, || domain.link(&mut reservation, PhysAddr(phys), pages, Rights::Read))
    };
    assert_eq!(link(0x1000, 0), Err(MapError::Empty));
    assert_eq!(refused(&domain, || unmap(&domain, mapped, 0)), Err(UnmapError::Empty));
    assert!(IovaRange::new(5, 0).is_none() && IovaRange::new(0, 5).is_none());
    assert!(Want::pages(0).is_none());
    // Overflow.
    assert_eq!(map(u64::MAX, 2), Err(MapError::Overflow));
    assert_eq!(sg(&[(0x1000, PAGE), (u64::MAX, 2)]), Err(MapError::Overflow));
    assert_eq!(link(0x1000, 5), Err(MapError::Overflow), "there are four");
    assert_eq!(link(!(PAGE - 1), 2), Err(MapError::Overflow));
    let past = refused(&domain, || unmap(&domain, DmaAddr(u64::MAX - 1), 3));
    assert_eq!(past, Err(UnmapError::Overflow));
    // What no table can name, and what no address is left for.
    assert_eq!(map(1 << 60, PAGE), Err(MapError::Table(MapErrorKind::BadAddress)));
    assert_eq!(map(0, 1 << 40), Err(MapError::Addresses(AllocError::Exhausted)));
    // Not aligned.
    assert_eq!(sg(&[(0x1000, 100), (0x9000, PAGE)]), Err(MapError::Unaligned));
    assert_eq!(sg(&[(0x1000, PAGE), (0x9100, PAGE)]), Err(MapError::Unaligned));
    assert_eq!(link(0x1800, 1), Err(MapError::Unaligned));
    let at = IovaRange::new(1 << 19, 2).unwrap();
    let given = refused(&domain, || map_at(&domain, at, PhysAddr(0x1800)));
    assert_eq!(given, Err(MapError::Unaligned));
    // A wrong length, and twice.
    for bytes in [PAGE, 2 * PAGE, 4 * PAGE] {
        assert!(refused(&domain, || unmap(&domain, mapped, bytes)).is_err(), "{bytes}");
    }
    unmap(&domain, mapped, 3 * PAGE).unwrap();
    assert_eq!(refused(&domain, || unmap(&domain, mapped, 3 * PAGE)), Err(UnmapError::NotMapped));
    assert_eq!(refused(&domain, || unmap_at(&domain, at)), Err(UnmapError::NotMapped));
    domain.release(reservation).map_err(|(error, _)| error).unwrap();
}

/// Windows that mean something else to the hardware are nobody's, however much is asked for.
#[test]
fn reserved_windows_are_never_handed_out() {
    let world = World::default();
    let reserved = [INTERRUPTS, IovaRange::new(0xfe000, 16).unwrap()];
    let tree = Tree::new(&Space::below(0x10_0000).from(0xfd000).without(&reserved)).unwrap();
    let format = VtdSecondLevel::new(3, true, true).unwrap();
    let config = Config::new(1);
    let domain = Domain::new(&world, config, tree, format, Pages, [(&world, DomainId(1))]).unwrap();
    let mut all = Vec::new();
    let exhausted = loop {
        match domain.reserve(1) {
            Ok(one) => all.push(one),
            Err(error) => break error,
        }
    };
    assert_eq!(exhausted, MapError::Addresses(AllocError::Exhausted));
    assert_eq!(all.len() as u64, 0x3000 - 0x100 - 16, "all but what is reserved");
    for one in all {
        let range = IovaRange::new(one.addr().0 / PAGE, 1).unwrap();
        assert!(!reserved.iter().any(|hole| hole.overlaps(range)), "{one}");
        domain.release(one).map_err(|(error, _)| error).unwrap();
    }
    // And it takes nothing back that it has not handed out.
    let free = domain.addresses().free_pages();
    assert!(domain.addresses().free(0, INTERRUPTS).is_err());
    assert_eq!(domain.addresses().free_pages(), free);
}

fn others() {
    let worlds = [World::default(), World::default()];
    let [ours, theirs] = [0, 1].map(|n: usize| domain(&worlds[n], Policy::Deferred));
    let attachment = ours.attach(0, DeviceId(1), true).unwrap();
    let kept = theirs.attach(0, DeviceId(2), true).unwrap();
    let at = ours.map(PhysAddr(0x5000_0000), 2 * PAGE, Rights::Read).unwrap().into_raw();
    let unmapped = refused(&theirs, || refused(&ours, || unmap(&theirs, at, 2 * PAGE)));
    assert_eq!(unmapped, Err(UnmapError::NotMapped));
    // Addresses that are reserved elsewhere, before and after something is behind them.
    let mut reservation = ours.reserve(2).unwrap();
    for linked in [0, 1] {
        let link =
            refused(&theirs, || theirs.link(&mut reservation, PhysAddr(0x7000), 1, Rights::Read));
        assert_eq!(link, Err(MapError::NotReserved));
        assert_eq!(theirs.sync(&mut reservation), Err(MapError::NotReserved));
        assert_eq!(
            refused(&theirs, || theirs.unlink(&mut reservation)),
            Err(UnmapError::NotMapped)
        );
        let (error, back) = refused(&theirs, || theirs.release(reservation)).unwrap_err();
        assert_eq!(error, UnmapError::NotMapped);
        reservation = back.expect("it is still there");
        assert_eq!(reservation.linked(), linked);
        ours.link(&mut reservation, PhysAddr(0x6000), 1, Rights::Read).unwrap();
    }
    ours.release(reservation).map_err(|(error, _)| error).unwrap();
    // A device that is listed elsewhere.
    let (error, attachment) = refused(&theirs, || theirs.detach(attachment)).unwrap_err();
    assert_eq!(error, QueueError::NotListed);
    let (error, attachment) = refused(&theirs, || theirs.evict(attachment)).unwrap_err();
    assert_eq!(error, QueueError::NotListed);
    ours.detach(attachment).map_err(|(error, _)| error).unwrap();
    theirs.detach(kept).map_err(|(error, _)| error).unwrap();
    assert_eq!(ours.attach(1, DeviceId(1), true).err(), Some(AttachError::NoSuchUnit));
}

#[test]
fn what_is_another_domains_is_refused() {
    others();
    for mutant in [Mutant::ReservationOfAnother, Mutant::AttachmentOfAnother] {
        mutant::set(Some(mutant));
        let outcome = catch_unwind(AssertUnwindSafe(others));
        let reached = mutant::reached();
        mutant::set(None);
        assert!(outcome.is_err() && reached, "{}", mutant.name());
    }
}

/// A queue without room holds nothing up but who waits, who is told; and nothing is given back
/// before it has room.
#[test]
fn a_full_queue_loses_nothing() {
    let world = World::default();
    let domain = domain(&world, Policy::Strict);
    let _attachment = domain.attach(0, DeviceId(1), false).unwrap();
    let at = domain.map(PhysAddr(0x5000_0000), PAGE, Rights::Read).unwrap().into_raw();
    world.full.store(true, Ordering::Relaxed);
    let free = domain.addresses().free_pages();
    let outcome = unmap(&domain, at, PAGE);
    assert!(matches!(outcome, Err(UnmapError::NotComplete(_))), "{outcome:?}");
    assert_eq!(domain.deferred(), (1, 1), "its address, and its page");
    assert_eq!(domain.lookup(at), None, "it is unmapped");
    assert_eq!(unmap(&domain, at, PAGE), Err(UnmapError::NotMapped), "once");
    let still = (world.held.load(Ordering::Relaxed), domain.addresses().free_pages());
    assert_eq!(still, (1, free));
    assert!(domain.flush().is_err());
    world.full.store(false, Ordering::Relaxed);
    domain.flush().unwrap();
    assert_eq!((domain.deferred(), world.held.load(Ordering::Relaxed)), ((0, 0), 0));
    assert_eq!(domain.addresses().free_pages(), free + 1);
}

/// A device that was pulled out answers nothing: what it may reach stays owed until it is evicted,
/// and then comes back.
#[test]
fn a_device_that_is_pulled_out_loses_nothing() {
    let world = World::default();
    let domain = domain(&world, Policy::Strict);
    let attachment = domain.attach(0, DeviceId(1), true).unwrap();
    let at = domain.map(PhysAddr(0x5000_0000), PAGE, Rights::Read).unwrap().into_raw();
    world.silent.store(true, Ordering::Relaxed);
    let outcome = unmap(&domain, at, PAGE);
    assert_eq!(outcome, Err(UnmapError::NotComplete(QueueError::DeviceTimeout)));
    assert_eq!((domain.deferred(), world.held.load(Ordering::Relaxed)), ((1, 1), 1));
    let (error, attachment) = domain.detach(attachment).unwrap_err();
    assert_eq!(error, QueueError::DeviceTimeout, "it can't be told to forget");
    domain.evict(attachment).map_err(|(error, _)| error).unwrap();
    domain.flush().unwrap();
    assert_eq!((domain.deferred(), world.held.load(Ordering::Relaxed)), ((0, 0), 0));
    assert_eq!(domain.addresses().free_pages(), domain.addresses().pages());
}
