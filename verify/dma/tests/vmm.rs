//! Emulated devices that translate through a domain: what they may find, and what they may find no
//! more.
#![allow(missing_docs)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use shootdown_dma_woven::domain::{Config, DmaAddr, Domain, DomainError, MapError};
use shootdown_dma_woven::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma_woven::iova::Unmanaged;
use shootdown_dma_woven::mutant::{self, Mutant};
use shootdown_dma_woven::table::memory::Table;
use shootdown_dma_woven::table::{ArmStage2, Format, TableMemory, VtdSecondLevel};
use shootdown_dma_woven::vmm::{Bounds, Cache, Mappings, RequestError, Translator, Walk};
use shootdown_dma_woven::{DeviceId, DomainId, Host, IovaRange, PhysAddr, Policy, Rights};
use vm_memory::iommu::{Error, Iommu, IommuMemory, MappedRange};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap, Permissions};

const PAGE: u64 = 4096;
/// The guest's memory: 16 MiB from 0 on.
const MEMORY: u64 = 16 << 20;

struct Vmm<U, F = VtdSecondLevel>(std::marker::PhantomData<fn() -> (U, F)>);
struct Pages;

// SAFETY: a guest's memory is never anybody else's.
unsafe impl<U: Unit, F: Format> Host for Vmm<U, F> {
    type Addresses = Unmanaged;
    type Format = F;
    type Tables = Pages;
    type Unit = U;
    type Pin = usize;
    fn pin(&self) -> usize {
        0
    }
    fn relax(&self) -> bool {
        std::thread::yield_now();
        true
    }
    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        pages
            .checked_mul(1 << F::GRANULE)
            .and_then(|n| n.checked_add(first.0))
            .is_some_and(|end| end <= MEMORY)
    }
    fn release(&self, _: PhysAddr, _: u64) {}
}

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(4096 * pages, 4096 * pages).unwrap()
}

// SAFETY: pages of the heap, each its own physical address.
unsafe impl TableMemory for Pages {
    fn allocate(&self) -> Option<PhysAddr> {
        self.allocate_many(1)
    }
    fn allocate_many(&self, pages: usize) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        Some(PhysAddr(unsafe { alloc_zeroed(layout(pages)) } as u64)).filter(|at| at.0 != 0)
    }
    unsafe fn free(&self, at: PhysAddr) {
        // SAFETY: as the caller promises.
        unsafe { self.free_many(at, 1) }
    }
    unsafe fn free_many(&self, at: PhysAddr, pages: usize) {
        // SAFETY: from `allocate_many`, as promised.
        unsafe { dealloc(at.0 as *mut u8, layout(pages)) }
    }
    unsafe fn table(&self, at: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(at.0 as *const Table) }
    }
}

type Devices<U> = IommuMemory<GuestMemoryMmap, Translator<Arc<Domain<Vmm<U>>>>>;

fn world<U: Unit>(unit: U, cache: &Arc<Cache>) -> (Mappings<Vmm<U>>, Devices<U>)
where
    Domain<Vmm<U>>: Send + Sync,
{
    let format = VtdSecondLevel::new(3, true, true).unwrap();
    let config = Config::new(2).policy(Policy::Deferred);
    let host = Vmm(std::marker::PhantomData);
    let domain =
        Domain::new(host, config, Unmanaged, format, Pages, [(unit, DomainId(1))]).unwrap();
    // Without a device behind it, a unit is told nothing.
    let _ = domain.attach(0, DeviceId(8), false).unwrap();
    let domain = Arc::new(domain);
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap();
    let translator = Translator::new(Arc::clone(&domain), Arc::clone(cache));
    let devices = IommuMemory::new(memory, translator, true, ());
    (Mappings::new(domain, Bounds::bits(39)), devices)
}

fn unresolved(error: GuestMemoryError) -> (u64, usize) {
    match error {
        GuestMemoryError::IommuError(Error::CannotResolve { iova_range, .. }) => {
            (iova_range.base.0, iova_range.length)
        }
        error => panic!("{error:?}"),
    }
}

#[test]
fn devices_find_what_the_guest_has_mapped() {
    let cache = Arc::new(Cache::default());
    let (mut guest, devices) = world(Arc::clone(&cache), &cache);
    // Two pages that lie apart, and one that may only be read.
    guest.map(0x10_0000, 0x10_0fff, 0x8000, 3).unwrap();
    guest.map(0x10_1000, 0x10_1fff, 0x4000, 3).unwrap();
    guest.map(0x10_2000, 0x10_2fff, 0x5000, 1).unwrap();
    devices.write_slice(&[7; 0x2000], GuestAddress(0x10_0000)).unwrap();
    let physical = devices.get_backend();
    let byte = |at| physical.read_obj::<u8>(GuestAddress(at)).unwrap();
    assert_eq!([0x4000, 0x4fff, 0x5000, 0x8000, 0x8fff, 0x9000].map(byte), [7, 7, 0, 7, 7, 0]);

    let translate = |at, length, access| {
        let found = devices.iommu().translate(GuestAddress(at), length, access)?;
        Ok::<_, Error>(found.map(|m| (m.base.0, m.length)).collect::<Vec<_>>())
    };
    let parts = translate(0x10_0f00, 0x1200, Permissions::Read).unwrap();
    assert_eq!(parts, [(0x8f00, 0x100), (0x4000, 0x1000), (0x5000, 0x100)]);
    assert!(translate(0x10_0000, 0, Permissions::Read).unwrap().is_empty(), "no bytes, no error");
    let cannot = |at, length, access| match translate(at, length, access).unwrap_err() {
        Error::CannotResolve { iova_range, .. } => (iova_range.base.0, iova_range.length),
        error => panic!("{error}"),
    };
    assert_eq!(cannot(0x10_2010, 8, Permissions::Write), (0x10_2010, 8), "to be read only");
    assert_eq!(cannot(0x10_1ff0, 0x20, Permissions::ReadWrite), (0x10_2000, 0x10));
    assert_eq!(cannot(0x10_2ff0, 0x20, Permissions::Read), (0x10_3000, 0x10), "a hole");
    assert_eq!(cannot(0, 1, Permissions::No), (0, 1));
    assert_eq!(cannot(u64::MAX - 3, 8, Permissions::Read).0, u64::MAX - 3, "past the end");
    assert_eq!(cannot(u64::MAX - 8, 8, Permissions::Read).0, u64::MAX - 8, "beyond the table");
    let MappedRange { base, length } = devices
        .iommu()
        .translate(GuestAddress(0x10_0800), 4, Permissions::Write)
        .unwrap()
        .next()
        .unwrap();
    assert_eq!((base.0, length), (0x8800, 4));
}

/// Completes what it is told, and tells nobody: what a hypervisor does that forgets its cache.
#[derive(Default)]
struct Deaf(AtomicU64);

// SAFETY: it is not one, which is what the test shows.
unsafe impl Unit for Deaf {
    fn submit(&self, _: &[Command]) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.0.fetch_add(1, Ordering::Relaxed) + 1))
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.0.load(Ordering::Relaxed)))
    }
}

/// The guest unmaps a page that a device has used, and uses it for a secret: what the device reads
/// then.
fn reads_after_unmapping<U: Unit>(unit: U, cache: &Arc<Cache>) -> Option<u8>
where
    Domain<Vmm<U>>: Send + Sync,
{
    let (mut guest, devices) = world(unit, cache);
    guest.map(0x10_0000, 0x10_0fff, 0x8000, 3).unwrap();
    let at = GuestAddress(0x10_0010);
    devices.write_obj(1u8, at).unwrap();
    assert_eq!(guest.unmap(0x10_0000, 0x10_0fff), Ok(1));
    devices.get_backend().write_obj(0xeeu8, GuestAddress(0x8010)).unwrap();
    match devices.read_obj::<u8>(at) {
        Ok(byte) => Some(byte),
        Err(error) => {
            assert_eq!(unresolved(error), (0x10_0010, 1));
            None
        }
    }
}

#[test]
fn what_is_unmapped_is_read_no_more() {
    let cache = Arc::new(Cache::default());
    assert_eq!(reads_after_unmapping(Arc::clone(&cache), &cache), None);
    // Nobody tells the cache: the test sees it.
    let cache = Arc::new(Cache::default());
    assert_eq!(reads_after_unmapping(Deaf::default(), &cache), Some(0xee));
    // It is told, and does not listen.
    mutant::set(Some(Mutant::CacheNotTold));
    let cache = Arc::new(Cache::default());
    assert_eq!(reads_after_unmapping(Arc::clone(&cache), &cache), Some(0xee));
    mutant::set(None);
}

/// A table whose entry is cleared, and its invalidation asked for, just after a device has read it.
#[derive(Clone)]
struct Racing {
    cache: Arc<Cache>,
    mapped: Arc<Mutex<bool>>,
    ticket: Arc<Mutex<Option<Ticket>>>,
}

impl Walk for Racing {
    fn walk(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)> {
        let mut mapped = self.mapped.lock().unwrap();
        if !std::mem::replace(&mut *mapped, false) {
            return None;
        }
        let range = IovaRange::new(at.0 / PAGE, 1).unwrap();
        let command = Command::Pages { domain: DomainId(1), range, leaf_only: true };
        *self.ticket.lock().unwrap() = Some(self.cache.submit(&[command]).unwrap());
        Some((PhysAddr(0x8000), PAGE, Rights::Read))
    }
}

/// Is something found after its invalidation is complete?
fn found_after_race() -> bool {
    let cache = Arc::new(Cache::default());
    let mapped = Arc::new(Mutex::new(true));
    let tables = Racing { cache: Arc::clone(&cache), mapped, ticket: Arc::default() };
    let translator = Translator::new(tables.clone(), Arc::clone(&cache));
    let translate = || translator.translate(GuestAddress(0x10_0000), 8, Permissions::Read);
    drop(translate());
    let ticket = tables.ticket.lock().unwrap().unwrap();
    assert!(cache.completed().unwrap() >= ticket, "nobody reads");
    translate().is_ok()
}

#[test]
fn what_is_unmapped_while_a_device_looks_it_up_is_not_kept() {
    assert!(!found_after_race());
    mutant::set(Some(Mutant::FilledBeside));
    assert!(found_after_race(), "the test sees it");
    mutant::set(None);
}

#[test]
fn unmapping_waits_for_who_still_reads() {
    let cache = Arc::new(Cache::default());
    let (mut guest, devices) = world(Arc::clone(&cache), &cache);
    guest.map(0x10_0000, 0x10_0fff, 0x8000, 3).unwrap();
    let devices = Arc::new(devices);
    let held = devices.iommu().hold();
    let range = IovaRange::new(0x100, 1).unwrap();
    let command = Command::Pages { domain: DomainId(1), range, leaf_only: true };
    let ticket = cache.submit(&[command]).unwrap();
    assert!(cache.completed().unwrap() < ticket, "somebody uses what was found");
    drop(held);
    assert!(cache.completed().unwrap() >= ticket);
    // The same from another thread, through the domain.
    let held = devices.iommu().hold();
    let done = Arc::new(AtomicU64::new(0));
    let unmapped = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            guest.unmap(0x10_0000, 0x10_0fff).unwrap();
            done.store(1, Ordering::Release);
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(done.load(Ordering::Acquire), 0);
    drop(held);
    unmapped.join().unwrap();
}

#[test]
fn a_cache_has_a_bound_and_serves_what_is_larger() {
    let cache = Arc::new(Cache::new(4));
    let (mut guest, devices) = world(Arc::clone(&cache), &cache);
    for n in 0..64u64 {
        let at = 0x10_0000 + n * PAGE;
        // No two of them lie together.
        guest.map(at, at + 0xfff, n * 2 * PAGE, 3).unwrap();
    }
    for n in 0..64u64 {
        devices.write_obj(n, GuestAddress(0x10_0000 + n * PAGE)).unwrap();
    }
    let held = devices.iommu().hold();
    let cached = format!("{:?}", &*held).matches("target_source_diff").count();
    assert!((1..=4).contains(&cached), "{cached}");
    drop(held);
    let mut all = vec![0; 64 * PAGE as usize];
    devices.read_slice(&mut all, GuestAddress(0x10_0000)).unwrap();
    assert!((0..64).all(|n| u64::from(all[n * PAGE as usize]) == n as u64));
}

/// All that the negative list has, and the state after it.
fn negative() {
    let cache = Arc::new(Cache::default());
    let (mut guest, devices) = world(Arc::clone(&cache), &cache);
    guest.map(0x10_0000, 0x10_3fff, 0x8000, 3).unwrap();
    guest.map(0x10_6000, 0x10_6fff, 0x2000, 1).unwrap();
    devices.write_slice(&[5; 0x4000], GuestAddress(0x10_0000)).unwrap();
    let map = |guest: &mut Mappings<_>, start, end, phys, flags| guest.map(start, end, phys, flags);

    use RequestError::{Fault, Invalid, Overlap, Partial, Range, Unaligned};
    // Not ranges.
    assert_eq!(map(&mut guest, 0x20_0000, 0x1f_ffff, 0, 3), Err(Invalid), "empty");
    assert_eq!(map(&mut guest, 0x20_0000, 0x10_0000, 0, 3), Err(Invalid), "backward");
    assert_eq!(map(&mut guest, 0x20_0000, 0x20_0800, 0, 3), Err(Unaligned), "half a page");
    assert_eq!(map(&mut guest, 0x20_0800, 0x20_1fff, 0, 3), Err(Unaligned));
    assert_eq!(map(&mut guest, 0x20_0000, 0x20_0fff, 0x800, 3), Err(Unaligned), "memory");
    assert_eq!(map(&mut guest, 0x20_0000, 0x20_0fff, 0, 0), Err(Invalid), "no rights");
    assert_eq!(map(&mut guest, 0x20_0000, 0x20_0fff, 0, 7), Err(Invalid), "unknown flags");
    let wraps = map(&mut guest, 0x20_0000, 0x20_1fff, !0xfff, 3);
    assert_eq!(wraps, Err(Invalid), "memory that wraps");
    // Not offered.
    assert_eq!(map(&mut guest, 0, 0xfff, 0, 3), Err(Range), "page 0");
    assert_eq!(map(&mut guest, 0, u64::MAX, 0, 3), Err(Range), "everything");
    assert_eq!(map(&mut guest, 1 << 39, (1 << 39) + 0xfff, 0, 3), Err(Range));
    assert_eq!(map(&mut guest, !0xfff, u64::MAX, 0, 3), Err(Range));
    assert_eq!(map(&mut guest, 0xfee0_0000, 0xfee0_0fff, 0, 3), Err(Range), "interrupts");
    assert_eq!(map(&mut guest, 0xfedf_f000, 0xfee0_0fff, 0, 3), Err(Range));
    // Not the guest's memory.
    assert_eq!(map(&mut guest, 0x20_0000, 0x20_0fff, MEMORY, 3), Err(Fault));
    assert_eq!(map(&mut guest, 0x20_0000, 0x20_1fff, MEMORY - PAGE, 3), Err(Fault), "half of it");
    assert_eq!(map(&mut guest, 0x20_0000, 0x20_0fff, 1 << 60, 3), Err(Fault));
    // In the way.
    for start in [0x0f_f000, 0x10_0000, 0x10_1000, 0x10_3000, 0x10_5000] {
        let overlaps = map(&mut guest, start, start + 0x1fff, 0, 3);
        assert_eq!(overlaps, Err(Overlap), "{start:#x}");
    }
    // Cut in two.
    for (start, end) in [(0x10_0000, 0x10_0fff), (0x10_1000, 0x10_1fff), (0x10_3000, 0x10_7fff)] {
        assert_eq!(guest.unmap(start, end), Err(Partial), "{start:#x}");
    }
    assert_eq!(guest.unmap(0x10_2000, 0x10_1fff), Err(Invalid));
    assert_eq!(guest.unmap(0x10_0000, 0x10_3ffe), Err(Unaligned));
    let statuses = [Invalid, Overlap, Unaligned, Range, Partial, Fault, RequestError::NoMemory];
    assert_eq!(statuses.map(RequestError::status), [4, 4, 5, 5, 5, 7, 8]);
    // Nothing has changed.
    assert_eq!(guest.len(), 2);
    let told: Vec<_> = guest.iter().map(|m| (m.start, m.end, m.phys, m.flags)).collect();
    let expected = [(0x10_0000, 0x10_3fff, 0x8000, 3), (0x10_6000, 0x10_6fff, 0x2000, 1)];
    assert_eq!(told, expected);
    let mut all = [0; 0x4000];
    devices.read_slice(&mut all, GuestAddress(0x10_0000)).unwrap();
    assert!(all.iter().all(|byte| *byte == 5));
    assert!(devices.read_obj::<u8>(GuestAddress(0x20_0000)).is_err());
    assert!(devices.write_obj(1u8, GuestAddress(0x10_6000)).is_err());
    // Nothing there: nothing to do. Several, with a gap: all.
    assert_eq!(guest.unmap(0x40_0000, 0x40_0fff), Ok(0));
    assert_eq!(guest.unmap(0x0f_0000, 0x10_ffff), Ok(2));
    assert!(devices.read_obj::<u8>(GuestAddress(0x10_0000)).is_err());
    assert!(devices.read_obj::<u8>(GuestAddress(0x10_6000)).is_err());
    assert_eq!(guest.unmap(0x10_0000, 0x10_3fff), Ok(0), "twice");
    assert_eq!(guest.unmap(0, 0xfff), Ok(0));
    // All of it again, at once.
    guest.map(0x10_0000, 0x10_3fff, 0x4000, 3).unwrap();
    assert_eq!(guest.clear(), Ok(1));
    assert!(guest.is_empty());
}

#[test]
fn a_guest_is_not_believed() {
    negative();
    mutant::set(Some(Mutant::MappingCut));
    catch_unwind(AssertUnwindSafe(negative)).unwrap_err();
    mutant::set(None);
}

#[test]
fn a_guest_has_as_many_mappings_as_it_may() {
    let cache = Arc::new(Cache::default());
    let (guest, _devices) = world(Arc::clone(&cache), &cache);
    let bounds = Bounds { mappings: 3, ..Bounds::bits(39) };
    let mut guest = Mappings::new(Arc::clone(guest.domain()), bounds);
    for n in 1..=3u64 {
        guest.map(n << 20, (n << 20) + 0xfff, 0, 1).unwrap();
    }
    assert_eq!(guest.map(9 << 20, (9 << 20) + 0xfff, 0, 1), Err(RequestError::NoMemory));
    assert_eq!(guest.unmap(1 << 20, (1 << 20) + 0xfff), Ok(1));
    guest.map(9 << 20, (9 << 20) + 0xfff, 0, 1).unwrap();
}

/// Forgets, but does not say so until it is told to.
struct Slow(Arc<Cache>, AtomicU64);

// SAFETY: as the cache, later.
unsafe impl Unit for &Slow {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        self.0.submit(commands)
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        match self.1.load(Ordering::Relaxed) {
            0 => Err(QueueError::Stuck),
            _ => self.0.completed(),
        }
    }
}

#[test]
fn addresses_that_are_not_forgotten_stay_out_of_use() {
    let cache = Arc::new(Cache::default());
    let slow: &'static Slow = Box::leak(Box::new(Slow(Arc::clone(&cache), AtomicU64::new(0))));
    let (mut guest, _devices) = world(slow, &cache);
    guest.map(0x10_0000, 0x10_0fff, 0x8000, 3).unwrap();
    guest.map(0x10_1000, 0x10_1fff, 0x8000, 3).unwrap();
    let outcome = guest.unmap(0x10_0000, 0x10_1fff);
    assert!(matches!(outcome, Err(RequestError::NotComplete(_))), "{outcome:?}");
    let again = guest.map(0x10_0000, 0x10_0fff, 0x8000, 3);
    assert!(matches!(again, Err(RequestError::NotComplete(_))), "{again:?}");
    slow.1.store(1, Ordering::Relaxed);
    assert_eq!(guest.unmap(0x10_0000, 0x10_1fff), Ok(2));
    guest.map(0x10_0000, 0x10_0fff, 0x8000, 3).unwrap();
    // The domain by itself: what is mapped is not mapped again.
    let range = IovaRange::new(0x100, 2).unwrap();
    // SAFETY: nobody else maps.
    let again = unsafe { guest.domain().map_at(range, PhysAddr(0), Rights::Read) };
    assert!(matches!(again, Err(MapError::Table(_))), "{again:?}");
    assert!(guest.domain().lookup(DmaAddr(0x10_1000)).is_none(), "all or nothing");
}

/// So do those of a MAP that failed when devices may have seen the first half.
fn a_map_that_failed_leaves_nothing_behind() {
    let cache = Arc::new(Cache::default());
    let slow: &'static Slow = Box::leak(Box::new(Slow(Arc::clone(&cache), AtomicU64::new(0))));
    let (mut guest, _devices) = world(slow, &cache);
    let in_the_way = IovaRange::new(0x102, 1).unwrap();
    // SAFETY: nobody else maps.
    unsafe { guest.domain().map_at(in_the_way, PhysAddr(0), Rights::Read) }.unwrap();
    let failed = guest.map(0x10_0000, 0x10_3fff, 0x8000, 3);
    assert!(matches!(failed, Err(RequestError::Map(MapError::NotComplete(_)))), "{failed:?}");
    let early = guest.map(0x10_0000, 0x10_0fff, 0x8000, 3);
    assert!(matches!(early, Err(RequestError::NotComplete(_))), "{early:?}");
    slow.1.store(1, Ordering::Relaxed);
    guest.map(0x10_0000, 0x10_0fff, 0x8000, 3).unwrap();
    assert_eq!(guest.unmap(0x10_0000, 0x10_0fff), Ok(1));
}

#[test]
fn a_failed_map_is_waited_for() {
    a_map_that_failed_leaves_nothing_behind();
    mutant::set(Some(Mutant::StaleForgotten));
    let without = catch_unwind(a_map_that_failed_leaves_nothing_behind);
    mutant::set(None);
    assert!(without.is_err());
}

/// A walk that panics when it is told to.
struct Panics(std::sync::atomic::AtomicBool);

impl Walk for Panics {
    fn walk(&self, at: DmaAddr) -> Option<(PhysAddr, u64, Rights)> {
        assert!(!self.0.load(Ordering::Relaxed), "on purpose");
        Some((PhysAddr(at.0 & 0xfff), PAGE - at.0 % PAGE, Rights::Read))
    }
}

/// A panic of somebody's walk does not keep commands from being carried out.
#[test]
fn a_panic_leaves_the_cache_usable() {
    let cache = Arc::new(Cache::default());
    let walk = Arc::new(Panics(true.into()));
    let translator = Translator::new(Arc::clone(&walk), Arc::clone(&cache));
    let translate = || translator.translate(GuestAddress(0x1000), 8, Permissions::Read).is_ok();
    assert!(catch_unwind(AssertUnwindSafe(translate)).is_err());
    let ticket = cache.submit(&[Command::All]).unwrap();
    assert_eq!(cache.completed(), Ok(ticket));
    walk.0.store(false, Ordering::Relaxed);
    assert!(translate());
}

/// A guest that maps, unmaps, and keeps a secret in what it has unmapped, beside devices that read
/// all the time.
#[test]
fn devices_in_other_threads_never_read_what_was_unmapped() {
    const SECRET: u64 = u64::MAX;
    let cache = Arc::new(Cache::new(8));
    let (mut guest, devices) = world(Arc::clone(&cache), &cache);
    let over = std::sync::atomic::AtomicBool::new(false);
    let (reads, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for device in 0..2u64 {
            let (devices, over, reads, refused) = (&devices, &over, &reads, &refused);
            scope.spawn(move || {
                let mut at = device;
                while !over.load(Ordering::Relaxed) {
                    at = (at + 3) % 4;
                    match devices.read_obj::<u64>(GuestAddress(0x10_0000 + at * PAGE + 8)) {
                        Ok(value) => {
                            assert_ne!(value, SECRET, "page {at}");
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => drop(refused.fetch_add(1, Ordering::Relaxed)),
                    }
                }
            });
        }
        let physical = devices.get_backend();
        for n in 0..3000u64 {
            let (at, phys) = (n % 4 * PAGE, (n % 4) * PAGE);
            physical.write_obj(n, GuestAddress(phys + 8)).unwrap();
            guest.map(0x10_0000 + at, 0x10_0000 + at + 0xfff, phys, 1).unwrap();
            if n % 8 == 0 {
                std::thread::yield_now();
            }
            guest.unmap(0x10_0000 + at, 0x10_0000 + at + 0xfff).unwrap();
            physical.write_obj(SECRET, GuestAddress(phys + 8)).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    let (reads, refused) = (reads.into_inner(), refused.into_inner());
    assert!(refused > 0, "{reads} reads, {refused} refused");
}

#[derive(Clone, Debug)]
enum Ask {
    Map { start: u64, pages: u64, phys: u64, flags: u32 },
    Unmap { start: u64, pages: u64 },
    Touch { at: u64, bytes: u64, write: bool },
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let map = (0..40u64, 1..6u64, 0..24u64, 0..5u32)
        .prop_map(|(start, pages, phys, flags)| Ask::Map { start, pages, phys, flags });
    let unmap = (0..40u64, 1..12u64).prop_map(|(start, pages)| Ask::Unmap { start, pages });
    let touch = (0..44 * PAGE, 1..3 * PAGE, any::<bool>())
        .prop_map(|(at, bytes, write)| Ask::Touch { at, bytes, write });
    prop::collection::vec(prop_oneof![3 => map, 2 => unmap, 4 => touch], 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    /// What a guest may do, and what its devices find, are as in a model of pages; whatever the cache holds.
    #[test]
    fn a_guest_finds_what_the_model_says(asks in asks(), capacity in 1..16usize) {
        let cache = Arc::new(Cache::new(capacity));
        let (guest, devices) = world(Arc::clone(&cache), &cache);
        let bounds = Bounds { last: 36, mappings: 6, ..Bounds::bits(39) };
        let mut guest = Mappings::new(Arc::clone(guest.domain()), bounds);
        // Pages, and the mappings they belong to.
        let mut model: Vec<(u64, u64, u64, u32)> = Vec::new();
        for ask in asks {
            match ask {
                Ask::Map { start, pages, phys, flags } => {
                    let end = start + pages;
                    let overlaps = model.iter().any(|(s, n, ..)| start < s + n && *s < end);
                    let expected = if !(1..=3).contains(&flags) {
                        Err(RequestError::Invalid)
                    } else if start == 0 || end > 37 {
                        Err(RequestError::Range)
                    } else if overlaps {
                        Err(RequestError::Overlap)
                    } else if model.len() >= 6 {
                        Err(RequestError::NoMemory)
                    } else {
                        model.push((start, pages, phys, flags));
                        Ok(())
                    };
                    let outcome = guest.map(start * PAGE, end * PAGE - 1, phys * PAGE, flags);
                    prop_assert_eq!(outcome, expected);
                }
                Ask::Unmap { start, pages } => {
                    let end = start + pages;
                    let touched = |m: &&(u64, u64, u64, u32)| start < m.0 + m.1 && m.0 < end;
                    let cut = model.iter().filter(touched).any(|m| m.0 < start || m.0 + m.1 > end);
                    let count = model.iter().filter(touched).count();
                    let expected = if cut { Err(RequestError::Partial) } else { Ok(count) };
                    prop_assert_eq!(guest.unmap(start * PAGE, end * PAGE - 1), expected);
                    if !cut {
                        model.retain(|m| !touched(&m));
                    }
                }
                Ask::Touch { at, bytes, write } => {
                    let (access, flag) =
                        if write { (Permissions::Write, 2) } else { (Permissions::Read, 1) };
                    let lead = |byte: u64| {
                        let page = byte / PAGE;
                        let m = model.iter().find(|m| (m.0..m.0 + m.1).contains(&page))?;
                        (m.3 & flag != 0).then_some((m.2 + page - m.0) * PAGE + byte % PAGE)
                    };
                    let expected: Option<Vec<u64>> = (at..at + bytes).map(lead).collect();
                    let found = devices.iommu().translate(GuestAddress(at), bytes as usize, access);
                    let found = found.ok().map(|pieces| {
                        pieces.flat_map(|m| m.base.0..m.base.0 + m.length as u64).collect::<Vec<_>>()
                    });
                    prop_assert_eq!(found, expected);
                }
            }
            prop_assert_eq!(guest.len(), model.len());
        }
        prop_assert_eq!(guest.clear(), Ok(model.len()));
    }
}

/// Pages of 64 KiB: smaller ones are refused, and what is unmapped is forgotten in the pieces that
/// devices have asked for.
#[test]
fn a_guest_may_have_larger_pages() {
    type Large = ArmStage2<16>;
    let page = 1u64 << 16;
    let new = |cache: Arc<Cache>| {
        let host = Vmm::<_, Large>(std::marker::PhantomData);
        let format = Large::for_width(40).unwrap();
        Domain::new(host, Config::new(2), Unmanaged, format, Pages, [(cache, DomainId(1))])
    };
    let small = new(Arc::new(Cache::default()));
    assert_eq!(small.err(), Some(DomainError::Granule { unit: 0 }), "it would forget other pages");
    let cache = Arc::new(Cache::default().with_granule(16));
    let domain = Arc::new(new(Arc::clone(&cache)).unwrap());
    let _ = domain.attach(0, DeviceId(8), false).unwrap();
    let mut guest = Mappings::new(Arc::clone(&domain), Bounds::with_granule(16, 40));
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap();
    let devices = IommuMemory::new(memory, Translator::new(domain, cache), true, ());

    let at = 0x10_0000;
    assert_eq!(guest.map(at, at + 0xfff, 0, 3), Err(RequestError::Unaligned));
    assert_eq!(guest.map(at + 0x1000, at + 0x10fff, 0, 3), Err(RequestError::Unaligned));
    assert_eq!(guest.map(at, at + page - 1, 0x1000, 3), Err(RequestError::Unaligned));
    assert_eq!(guest.map(0xfeef_0000, 0xfeef_ffff, 0, 3), Err(RequestError::Range), "interrupts");
    assert_eq!(guest.map(0, page - 1, 0, 3), Err(RequestError::Range), "page 0");
    guest.map(at, at + 2 * page - 1, 4 * page, 3).unwrap();
    // A piece here and there, and one across the boundary.
    devices.write_obj(7u8, GuestAddress(at + 0x5000)).unwrap();
    devices.write_slice(&[9; 0x2000], GuestAddress(at + page - 0x1000)).unwrap();
    let physical = devices.get_backend();
    let byte = |at| physical.read_obj::<u8>(GuestAddress(at)).unwrap();
    assert_eq!([4 * page + 0x5000, 5 * page - 1, 5 * page].map(byte), [7, 9, 9]);
    assert_eq!(guest.unmap(at, at + page - 1), Err(RequestError::Partial));
    assert_eq!(guest.unmap(at, at + 2 * page - 1), Ok(1));
    for offset in [0, 0x5000, page - 0x1000, page, 2 * page - 1] {
        let found = devices.read_obj::<u8>(GuestAddress(at + offset));
        assert_eq!(unresolved(found.unwrap_err()).0, at + offset, "forgotten");
    }
}
