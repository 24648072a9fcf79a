//! What a domain promises, on hardware that answers when the test says so.

mod bypass;
pub(crate) mod ends;
pub(crate) mod failures;
pub(crate) mod granules;
pub(crate) mod identity;
pub(crate) mod keeping;
mod lengths;

use std::alloc::{Layout as HeapLayout, alloc_zeroed, dealloc};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

use super::*;
use crate::addr::{IovaRange, Rights};
use crate::invalidate::{Command, Ticket, Unit};
use crate::iova::identity::{Layout, LeafSize};
use crate::iova::space::{INTERRUPTS, Space};
use crate::iova::tree::Tree;
use crate::iova::{AllocError, Allocate, FreeError, Want};
use crate::pinned::Pinned;
use crate::table::memory::Table;
use crate::table::{MapErrorKind, TableMemory, VtdSecondLevel};

/// Mappings as numbers: tests unmap what is not mapped, and the same again.
impl<H: Host> Domain<H> {
    pub(crate) fn put(&self, at: PhysAddr, bytes: u64, r: Rights) -> Result<DmaAddr, MapError> {
        self.map(at, bytes, r).map(Mapping::into_raw)
    }

    pub(crate) fn put_under(
        &self,
        policy: Policy,
        at: PhysAddr,
        bytes: u64,
        rights: Rights,
    ) -> Result<DmaAddr, MapError> {
        self.map_under(policy, at, bytes, rights).map(Mapping::into_raw)
    }

    pub(crate) fn put_sg(&self, all: &[Segment], rights: Rights) -> Result<DmaAddr, MapError> {
        self.map_sg(all, rights).map(Mapping::into_raw)
    }

    pub(crate) fn take(&self, at: DmaAddr, bytes: u64) -> Result<(), UnmapError> {
        // SAFETY: tests unmap one after the other.
        unsafe { self.unmap_raw(at, bytes) }.map(drop)
    }

    pub(crate) fn take_under(&self, p: Policy, at: DmaAddr, bytes: u64) -> Result<(), UnmapError> {
        // SAFETY: as above.
        unsafe { self.unmap_raw_under(p, at, bytes) }.map(drop)
    }

    pub(crate) fn put_at(&self, at: IovaRange, to: PhysAddr, r: Rights) -> Result<(), MapError> {
        // SAFETY: tests map one after the other.
        unsafe { self.map_at(at, to, r) }
    }

    pub(crate) fn take_at(&self, at: IovaRange) -> Result<(), UnmapError> {
        // SAFETY: as above.
        unsafe { self.unmap_at(at) }
    }
}

const ID: DomainId = DomainId(7);
const PAGE_SHIFT: u32 = 12;
const PAGE: u64 = 1 << PAGE_SHIFT;

/// A unit that completes what it was told when somebody waits, or when it is told to.
#[derive(Default)]
struct Slow {
    told: Vec<Vec<Command>>,
    completed: u64,
    /// Never answers.
    dead: bool,
}

std::thread_local! {
    static STAYING: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// Comes while a unit is told of something.
    static INTERRUPT: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) };
}

/// Who has it is not moved.
struct Stays(usize);

impl Pin for Stays {
    fn cpu(&self) -> usize {
        self.0
    }
}

impl Drop for Stays {
    fn drop(&mut self) {
        STAYING.set(STAYING.get() - 1);
    }
}

/// Whoever is here by a CPU's number has to be on that CPU still.
fn stays() {
    assert_ne!(STAYING.get(), 0, "somebody may be moved from the CPU whose number it goes by");
}

/// A tree that may have no memory for its records.
struct Tight {
    tree: Tree,
    refuses: AtomicBool,
}

impl core::ops::Deref for Tight {
    type Target = Tree;
    fn deref(&self) -> &Tree {
        &self.tree
    }
}

impl From<Tree> for Tight {
    fn from(tree: Tree) -> Self {
        Self { tree, refuses: AtomicBool::new(false) }
    }
}

// SAFETY: the tree's promises; what is refused stays allocated.
unsafe impl Allocate for Tight {
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        stays();
        self.tree.alloc(cpu, want)
    }
    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        stays();
        let refuses = self.refuses.load(Ordering::Relaxed);
        if refuses { Err(FreeError::NoMemory) } else { self.tree.free(cpu, range) }
    }
}

/// Everything that a test looks at.
#[derive(Default)]
struct World {
    unit: Mutex<Slow>,
    refs: Mutex<BTreeMap<u64, i64>>,
    /// Page-table pages in use.
    tables: AtomicUsize,
    /// Page-table pages that may still be allocated, plus 1; 0: any number.
    left: AtomicUsize,
    /// Those since somebody came to a CPU, and the most of these.
    at_once: [AtomicUsize; 2],
    /// The CPU that all is done on.
    cpu: AtomicUsize,
    /// Turns of waiting.
    turns: AtomicUsize,
    /// Nobody may wait, and the unit is done at once.
    hurried: AtomicBool,
}

impl World {
    fn unit(&self) -> MutexGuard<'_, Slow> {
        self.unit.lock().unwrap()
    }

    fn complete(&self) {
        let mut unit = self.unit();
        unit.completed = unit.told.len() as u64;
    }

    /// All commands so far.
    fn commands(&self) -> Vec<Command> {
        self.unit().told.iter().flatten().copied().collect()
    }

    fn refs(&self, page: u64) -> i64 {
        self.refs.lock().unwrap().get(&page).copied().unwrap_or(0)
    }
}

// SAFETY: it caches nothing.
unsafe impl Unit for &World {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let mut unit = self.unit();
        unit.told.push(commands.to_vec());
        let ticket = Ticket(unit.told.len() as u64);
        drop(unit);
        if let Some(interrupt) = INTERRUPT.take() {
            interrupt();
        }
        Ok(ticket)
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        if self.hurried.load(Ordering::Relaxed) {
            self.complete();
        }
        Ok(Ticket(self.unit().completed))
    }
}

fn layout() -> HeapLayout {
    HeapLayout::from_size_align(4096, 4096).unwrap()
}

// SAFETY: pages of the heap, at their own addresses.
unsafe impl TableMemory for &World {
    fn allocate(&self) -> Option<PhysAddr> {
        // For a table that is mapped in, not the first.
        if crate::held::count() != 0 {
            stays();
        }
        match self.left.load(Ordering::Relaxed) {
            0 => {}
            1 => return None,
            n => self.left.store(n - 1, Ordering::Relaxed),
        }
        self.tables.fetch_add(1, Ordering::Relaxed);
        let [now, most] = &self.at_once;
        most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        // SAFETY: the layout is not empty.
        Some(PhysAddr(unsafe { alloc_zeroed(layout()) } as u64))
    }
    unsafe fn free(&self, page: PhysAddr) {
        self.tables.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: from `allocate`, as promised.
        unsafe { dealloc(page.0 as *mut u8, layout()) }
    }
    unsafe fn table(&self, page: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(page.0 as *const Table) }
    }
}

// SAFETY: nothing is recycled.
unsafe impl<'w> Host for &'w World {
    type Addresses = Tight;
    type Format = VtdSecondLevel;
    type Tables = &'w World;
    type Unit = &'w World;
    type Pin = Stays;

    fn pin(&self) -> Stays {
        STAYING.set(STAYING.get() + 1);
        self.at_once[0].store(0, Ordering::Relaxed);
        Stays(self.cpu.load(Ordering::Relaxed))
    }
    fn relax(&self) -> bool {
        assert_eq!(crate::held::count(), 0, "somebody waits with a lock, or in a cell");
        assert_eq!(STAYING.get(), 0, "somebody waits who can't be moved");
        self.turns.fetch_add(1, Ordering::Relaxed);
        let mut unit = self.unit();
        if !unit.dead {
            unit.completed = unit.told.len() as u64;
        }
        !unit.dead && !self.hurried.load(Ordering::Relaxed)
    }
    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        let mut refs = self.refs.lock().unwrap();
        let first = first.0 >> PAGE_SHIFT;
        (first..first + pages).for_each(|page| *refs.entry(page).or_default() += 1);
        true
    }
    fn release(&self, first: PhysAddr, pages: u64) {
        let mut refs = self.refs.lock().unwrap();
        let first = first.0 >> PAGE_SHIFT;
        (first..first + pages).for_each(|page| *refs.entry(page).or_default() -= 1);
    }
}

fn domain(world: &World, config: Config) -> Domain<&World> {
    let space = Space::below(1 << 20).without(&[INTERRUPTS]);
    let format = VtdSecondLevel::new(3, true, true).unwrap();
    let tree = Tight::from(Tree::new(&space).unwrap());
    let domain = Domain::new(world, config, tree, format, world, [(world, ID)]).unwrap();
    let _ = domain.attach(0, DeviceId(1), false).unwrap();
    domain
}

/// Buffers lie here, one in every other page.
const fn buffer(n: u64) -> PhysAddr {
    PhysAddr(0x4000_0000 + n * 0x2000)
}

fn finish(domain: Domain<&World>) {
    // SAFETY: there is no device.
    let Ok(_) = (unsafe { domain.end() }) else { panic!("the unit answers") };
}

pub(crate) fn strict_waits() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let at = domain.put(buffer(0), 100, Rights::Write).unwrap();
    domain.take(at, 100).unwrap();
    let unit = world.unit();
    assert!(unit.completed == unit.told.len() as u64 && unit.completed > 0);
    drop(unit);
    let again = domain.put(buffer(1), 100, Rights::Write).unwrap();
    assert_eq!(again, at, "the address is free again");
    domain.take(again, 100).unwrap();
    assert_eq!(domain.counts().waits, 2);
    finish(domain);
    assert_eq!(world.tables.load(Ordering::Relaxed), 0);
}

pub(crate) fn nothing_is_given_back_early() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    let page = buffer(0).0 >> PAGE_SHIFT;
    let at = domain.put(buffer(0), 4096, Rights::ReadWrite).unwrap();
    assert_eq!(world.refs(page), 1, "held while it is mapped");
    domain.take(at, 4096).unwrap();
    domain.poll(u64::MAX / 2).unwrap();
    assert_eq!(world.refs(page), 1, "held until the hardware has forgotten it");
    let other = domain.put(buffer(1), 4096, Rights::ReadWrite).unwrap();
    assert_ne!(other, at, "the address is not free yet");
    world.complete();
    domain.poll(u64::MAX / 2).unwrap();
    assert_eq!(world.refs(page), 0);
    domain.take(other, 4096).unwrap();
    assert_eq!(world.refs(buffer(1).0 >> PAGE_SHIFT), 1, "it is queue");
    finish(domain);
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
}

pub(crate) fn what_is_owed_is_bounded() {
    let world = World::default();
    let limits = Limits { entries: 4, flush_at: 2, held_pages: 8, window_ns: 0 };
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred).limits(limits));
    for n in 0..20 {
        let bytes = if n % 2 == 0 { 4096 } else { 3 * 4096 };
        let at = domain.put(buffer(4 * n), bytes, Rights::Write).unwrap();
        domain.take(at, bytes).unwrap();
        let (entries, pages) = domain.deferred();
        assert!(entries <= limits.entries && pages <= limits.held_pages, "{entries} {pages}");
    }
    assert!(domain.counts().forced_waits > 0 && domain.counts().flushes > 0);
    finish(domain);
}

pub(crate) fn an_idle_domain_drains() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Lazy));
    let at = domain.put(buffer(0), 4096, Rights::Write).unwrap();
    domain.poll(20_000_000).unwrap();
    domain.take(at, 4096).unwrap();
    domain.poll(29_000_000).unwrap();
    assert_eq!(world.commands(), [], "there is time");
    domain.poll(30_000_000).unwrap();
    world.complete();
    domain.poll(30_000_001).unwrap();
    assert_eq!(domain.counts().timed_flushes, 1);
    // The table that it was in is empty now, and goes in the same way.
    domain.poll(40_000_001).unwrap();
    world.complete();
    domain.poll(40_000_002).unwrap();
    assert_eq!(domain.deferred(), (0, 0));
    finish(domain);
}

std::thread_local! {
    static BARRIERS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Units are told once of what many CPUs defer, and each of these is interrupted as seldom as can
/// be.
pub(crate) fn what_many_owe_is_told_at_once() {
    const CPUS: usize = 16;
    fn barrier(_: usize) -> bool {
        BARRIERS.set(BARRIERS.get() + 1);
        true
    }
    // SAFETY: one thread plays all CPUs.
    let pinned = unsafe { Pinned::new(barrier) };
    let world = World::default();
    let domain = domain(&world, Config::new(CPUS).policy(Policy::Deferred).pinned(pinned));
    let owe = |cpus: usize| {
        for cpu in 0..cpus {
            world.cpu.store(cpu, Ordering::Relaxed);
            let at = domain.put(buffer(cpu as u64), PAGE, Rights::Write).unwrap();
            domain.take(at, PAGE).unwrap();
        }
        world.cpu.store(0, Ordering::Relaxed);
        BARRIERS.set(0);
        world.turns.store(0, Ordering::Relaxed);
        world.unit().told.len()
    };
    // By a timer: nobody waits.
    let before = owe(CPUS);
    domain.poll(1 << 40).unwrap();
    assert_eq!(world.unit().told[before..], [[Command::Domain(ID)]]);
    assert!(BARRIERS.get() < CPUS, "{} for {CPUS}", BARRIERS.get());
    world.complete();
    domain.poll((1 << 40) + 1).unwrap();
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
    domain.flush().unwrap();
    // By who waits for it: once.
    let before = owe(CPUS);
    domain.flush().unwrap();
    assert_eq!(world.unit().told[before..], [[Command::Domain(ID)]]);
    let (turns, barriers) = (world.turns.load(Ordering::Relaxed), BARRIERS.get());
    assert!(turns <= 1 && barriers < 2 * CPUS, "{turns} turns, {barriers} barriers for {CPUS}");
    assert_eq!(domain.deferred(), (0, 0));
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
    // What one has deferred is told as it is.
    let before = owe(1);
    domain.poll(1 << 41).unwrap();
    let told = world.unit().told[before..].concat();
    assert!(matches!(told[..], [Command::Pages { .. }]), "{told:?}");
    world.complete();
    finish(domain);
}

/// An interrupt that unmaps while its CPU tells a unit notes that with another CPU's number, whose
/// part of the unit's queue may be full. What its CPU has deferred has tokens of both then, and all
/// of it is told and waited for.
pub(crate) fn what_was_noted_for_another_cpu_is_flushed() {
    let world = World::default();
    let limits = Limits { entries: 64, flush_at: 1, held_pages: 64, window_ns: 0 };
    let domain = domain(&world, Config::new(2).policy(Policy::Deferred).limits(limits));
    let [first, within, last] =
        [0, 1, 2].map(|n| domain.put(buffer(n), PAGE, Rights::Write).unwrap());
    world.cpu.store(1, Ordering::Relaxed);
    for n in 3..20 {
        let at = domain.put(buffer(n), PAGE, Rights::Write).unwrap();
        domain.take(at, PAGE).unwrap();
    }
    world.cpu.store(0, Ordering::Relaxed);
    let there = &raw const domain as usize;
    INTERRUPT.set(Some(Box::new(move || {
        // SAFETY: the domain is there, in the frame of the caller of what is interrupted.
        let domain = unsafe { &*(there as *const Domain<&World>) };
        domain.take(within, PAGE).unwrap();
    })));
    domain.take(first, PAGE).unwrap();
    domain.take(last, PAGE).unwrap();
    let queue = domain.cells.enter(0, |cell| cell.queue.len());
    assert_eq!(queue, Some(3), "it is this CPU that defers it");
    domain.flush().unwrap();
    assert_eq!(domain.deferred(), (0, 0));
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
    finish(domain);
}

pub(crate) fn what_the_timer_missed_is_flushed_next_time() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Lazy));
    let at = domain.put(buffer(0), 4096, Rights::Write).unwrap();
    domain.take(at, 4096).unwrap();
    let within = domain.cells.enter(0, |_| domain.poll(20_000_000));
    assert_eq!((within, world.commands().len()), (Some(Ok(())), 0), "somebody is in the cell");
    domain.poll(20_000_001).unwrap();
    assert_eq!(domain.counts().timed_flushes, 1);
    world.complete();
    finish(domain);
}

pub(crate) fn tables_go_after_walk_caches() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Lazy));
    let before = world.tables.load(Ordering::Relaxed);
    let mut all = Vec::new();
    // Page by page: no unmapping covers a whole table.
    for n in 0..1536 {
        all.push(domain.put(buffer(n), 4096, Rights::Write).unwrap());
    }
    let most = world.tables.load(Ordering::Relaxed);
    for at in all {
        domain.take(at, 4096).unwrap();
    }
    domain.flush().unwrap();
    // Nothing is deferred but the tables that are found now.
    let told = world.commands().len();
    for _ in 0..8 {
        domain.sweep(0, 0);
    }
    let swept = domain.counts().swept_tables;
    assert!(swept >= 3, "{swept} tables were empty");
    domain.poll(u64::MAX / 2).unwrap();
    world.complete();
    domain.poll(u64::MAX / 2).unwrap();
    // The CPU lets go of those that it remembers when it has been idle.
    domain.poll(u64::MAX / 2 + Limits::DEFAULT.window_ns).unwrap();
    assert!(world.tables.load(Ordering::Relaxed) < most);
    assert!(world.tables.load(Ordering::Relaxed) <= before + 2);
    // The last batch took them along: with table entries.
    let commands = world.commands().split_off(told);
    let drops_walks = |command: &Command| match command {
        Command::Pages { leaf_only, .. } => !leaf_only,
        _ => true,
    };
    assert!(!commands.is_empty() && commands.iter().all(drops_walks), "{commands:?}");
    finish(domain);
}

/// Ends in the middle of a mapping: there is no memory for the second table.
pub(crate) fn what_was_undone_is_invalidated() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    let first = domain.put(buffer(0), 4096, Rights::Write).unwrap();
    world.left.store(1, Ordering::Relaxed);
    let frames = PhysAddr(0x5000_1000);
    let mut reservation = domain.reserve(1024).unwrap();
    world.left.store(2, Ordering::Relaxed);
    let error = domain.link(&mut reservation, frames, 513, Rights::Write).unwrap_err();
    assert_eq!(error, MapError::Table(MapErrorKind::NoMemory));
    assert_eq!(world.refs(frames.0 >> PAGE_SHIFT), 0);
    let seen = IovaRange::new(reservation.addr().0 >> PAGE_SHIFT, 512).unwrap();
    let covers = |command: &Command| match command {
        Command::Pages { range, .. } => range.contains(seen),
        _ => true,
    };
    assert!(world.commands().iter().any(covers), "{:?}", world.commands());
    world.left.store(0, Ordering::Relaxed);
    let again = domain.link(&mut reservation, frames, 513, Rights::Write).unwrap();
    assert_eq!(again, reservation.addr(), "nothing was left behind");
    domain.release(reservation).unwrap();
    domain.take(first, 4096).unwrap();
    finish(domain);
}

/// I1: the addresses are the caller's, who may link something else there at once.
pub(crate) fn addresses_of_what_was_undone_are_clean() {
    for policy in [Policy::Deferred, Policy::Lazy] {
        let world = World::default();
        let domain = domain(&world, Config::new(1).policy(policy));
        world.left.store(3, Ordering::Relaxed);
        let mut reservation = domain.reserve(1024).unwrap();
        let frames = PhysAddr(0x5000_1000);
        let error = domain.link(&mut reservation, frames, 513, Rights::Write).unwrap_err();
        assert_eq!(error, MapError::Table(MapErrorKind::NoMemory));
        let (told, completed) = (world.commands().len(), world.unit().completed);
        assert!(told > 0 && completed > 0, "told {told}, complete {completed}");
        domain.release(reservation).unwrap();
        finish(domain);
    }
}

#[test]
fn what_was_undone_strictly_is_waited_for() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let first = domain.put(buffer(0), 4096, Rights::Write).unwrap();
    let mut reservation = domain.reserve(1024).unwrap();
    world.left.store(2, Ordering::Relaxed);
    domain.link(&mut reservation, PhysAddr(0x5000_1000), 513, Rights::Write).unwrap_err();
    assert!(!world.commands().is_empty() && world.unit().completed == 1, "the memory is ours");
    assert_eq!(domain.deferred(), (0, 0));
    world.left.store(0, Ordering::Relaxed);
    domain.release(reservation).unwrap();
    domain.take(first, 4096).unwrap();
    finish(domain);
}

pub(crate) fn units_that_remember_absence_are_told() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).caching_absence());
    let at = domain.put(buffer(0), 8192, Rights::Read).unwrap();
    let range = IovaRange::new(at.0 >> PAGE_SHIFT, 2).unwrap();
    let leaf_only = false; // there was no table
    assert_eq!(world.commands(), [Command::Pages { domain: ID, range, leaf_only }]);
    assert_eq!(world.unit().completed, 1, "and waited for");
    domain.take(at, 8192).unwrap();
    let before = world.commands().len();
    let attachment = domain.attach(0, DeviceId(9), false).unwrap();
    domain.announce(&attachment).unwrap();
    let told = Command::Config { device: DeviceId(9), domain: DomainId(0) };
    assert_eq!(world.commands()[before..], [told], "of the device too");
    finish(domain);
}

/// Units that remember nothing of addresses may have cached a device's entry before it was valid.
#[test]
fn every_unit_is_told_that_a_device_has_come() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let attachment = domain.attach(0, DeviceId(9), false).unwrap();
    assert_eq!(world.commands(), [], "its entry is not valid yet");
    domain.announce(&attachment).unwrap();
    let told = Command::Config { device: DeviceId(9), domain: DomainId(0) };
    assert_eq!(world.commands(), [told]);
    assert_eq!(world.unit().completed, 1, "and waited for");
    finish(domain);
}

/// M3: what a flush is about to clear is not given to a device that the flush does not know.
pub(crate) fn who_comes_with_a_cache_finds_a_clean_unit() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let before = world.commands().len();
    let _plain = domain.attach(0, DeviceId(8), false).unwrap();
    assert_eq!(world.commands().len(), before, "what it has no cache of it asks for each time");
    let _caching = domain.attach(0, DeviceId(9), true).unwrap();
    assert_eq!(world.commands()[before..], [Command::Domain(ID)]);
    finish(domain);
}

macro_rules! tests {
    ($($scene:ident)*) => {
        mod scenes {
            $(#[test] fn $scene() { super::$scene(); })*
        }
    };
}
tests! {
    strict_waits nothing_is_given_back_early what_is_owed_is_bounded an_idle_domain_drains
    what_the_timer_missed_is_flushed_next_time what_many_owe_is_told_at_once
    what_was_noted_for_another_cpu_is_flushed
    tables_go_after_walk_caches what_was_undone_is_invalidated units_that_remember_absence_are_told
    who_comes_with_a_cache_finds_a_clean_unit addresses_of_what_was_undone_are_clean
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    let at = domain.put(PhysAddr(0x4000_0f00), 0x200, Rights::Read).unwrap();
    assert_eq!(at.0 & 0xfff, 0xf00, "the same place in its page");
    let before = (domain.deferred(), domain.addresses().free_pages(), world.commands());

    let map = |phys, bytes| domain.put(PhysAddr(phys), bytes, Rights::Read);
    assert_eq!(map(0x1000, 0), Err(MapError::Empty));
    assert_eq!(map(u64::MAX, 2), Err(MapError::Overflow));
    assert_eq!(map(0, u64::MAX), Err(MapError::Addresses(AllocError::Exhausted)));
    let far = map(1 << 60, 4096);
    assert_eq!(far, Err(MapError::Table(MapErrorKind::BadAddress)));
    let bypass = domain.put_under(Policy::Bypass, PhysAddr(0), 4096, Rights::Read);
    assert_eq!(bypass, Err(MapError::Refused));
    assert_eq!(domain.open_window(1), Err(WindowError::NotTrusted));
    let segment = |phys, bytes| Segment { phys: PhysAddr(phys), bytes };
    let sg = |segments: &[Segment]| domain.put_sg(segments, Rights::Read);
    assert_eq!(sg(&[]), Err(MapError::Empty));
    assert_eq!(sg(&[segment(0, 4096), segment(0, 0)]), Err(MapError::Empty));
    assert_eq!(sg(&[segment(0, 100), segment(0x1000, 100)]), Err(MapError::Unaligned));
    assert_eq!(sg(&[segment(0, 4096), segment(0x1100, 100)]), Err(MapError::Unaligned));

    let page = DmaAddr(at.0 & !0xfff);
    assert_eq!(domain.take(at, 0), Err(UnmapError::Empty));
    assert_eq!(domain.take(DmaAddr(u64::MAX), 2), Err(UnmapError::Overflow));
    assert_eq!(domain.take(DmaAddr(0), 4096), Err(UnmapError::NotMapped));
    assert_eq!(domain.take(DmaAddr(at.0 + 0x10_0000), 4096), Err(UnmapError::NotMapped));
    assert_eq!(domain.take(page, 3 * 4096), Err(UnmapError::NotMapped), "a page too many");

    let after = (domain.deferred(), domain.addresses().free_pages(), world.commands());
    assert_eq!(before, after);
    domain.take(at, 0x200).unwrap();
    assert_eq!(domain.take(at, 0x200), Err(UnmapError::NotMapped), "twice");
    finish(domain);
}

#[test]
fn scattered_memory_is_one_range_and_comes_back_whole() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    // More pieces than one step unmaps.
    let segments: Vec<Segment> =
        (0..40).map(|n| Segment { phys: buffer(n), bytes: 4096 }).collect();
    let at = domain.put_sg(&segments, Rights::Write).unwrap();
    let mut walker = domain.table.walker(9).unwrap();
    for (n, segment) in (0..).zip(&segments) {
        let page = (at.0 >> PAGE_SHIFT) + n;
        assert_eq!(walker.translate(page).map(|t| t.phys), Some(segment.phys));
    }
    drop(walker);
    assert_eq!(domain.take(at, 41 * 4096), Err(UnmapError::NotMapped), "one too many");
    assert!(segments.iter().all(|s| world.refs(s.phys.0 >> PAGE_SHIFT) == 1));
    domain.take(at, 40 * 4096).unwrap();
    assert_eq!(domain.deferred(), (40, 40));
    domain.flush().unwrap();
    assert_eq!(domain.deferred(), (0, 0));
    assert!(segments.iter().all(|s| world.refs(s.phys.0 >> PAGE_SHIFT) == 0));
    assert_eq!(domain.addresses().free_pages(), domain.addresses().pages());
    finish(domain);
}

#[test]
fn what_the_hardware_does_not_answer_stays_owed() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    let at = domain.put(buffer(0), 4096, Rights::Write).unwrap();
    world.unit().dead = true;
    let error = domain.take_under(Policy::Strict, at, 4096);
    assert_eq!(error, Err(UnmapError::NotComplete(QueueError::GaveUp)));
    assert_eq!(world.refs(buffer(0).0 >> PAGE_SHIFT), 1);
    assert_eq!(domain.deferred(), (1, 1));
    world.unit().dead = false;
    world.complete();
    domain.poll(0).unwrap();
    assert_eq!((domain.deferred(), world.refs(buffer(0).0 >> PAGE_SHIFT)), ((0, 0), 0));
    finish(domain);
}

#[test]
fn addresses_that_the_allocator_has_no_memory_to_take_back_are_kept() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let all = [(0, 4096), (1, 8192)]
        .map(|(n, bytes)| (domain.put(buffer(2 * n), bytes, Rights::Read).unwrap(), bytes));
    domain.addresses().refuses.store(true, Ordering::Relaxed);
    all.iter().for_each(|(at, bytes)| domain.take(*at, *bytes).unwrap());
    domain.poll(u64::MAX / 2).unwrap();
    domain.flush().unwrap();
    assert_eq!(domain.deferred(), (2, 0), "it comes to an end, and nothing is lost");
    domain.addresses().refuses.store(false, Ordering::Relaxed);
    domain.flush().unwrap();
    assert_eq!(domain.deferred(), (0, 0));
    assert_eq!(domain.addresses().free_pages(), domain.addresses().pages());
    finish(domain);
}

#[test]
fn trusted_devices_may_bypass() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).trusted());
    let map = |phys, bytes| domain.put_under(Policy::Bypass, PhysAddr(phys), bytes, Rights::Read);
    assert_eq!(map(0, 4096), Err(MapError::Refused), "there is no window yet");
    let window = domain.open_window(1 << 18).unwrap();
    assert_eq!(domain.open_window(1), Err(WindowError::Exists));
    assert_eq!(map(0x1234, 4096), Ok(DmaAddr(window.0 + 0x1234)));
    assert_eq!(map((1 << 30) - 1, 2), Err(MapError::OutsideWindow));
    domain.take(DmaAddr(window.0 + 0x1234), 4096).unwrap();
    assert_eq!(domain.take(window, (1 << 30) + 1), Err(UnmapError::NotMapped));
    assert_eq!(map(0x1234, 4096), Ok(DmaAddr(window.0 + 0x1234)), "it stays");
    assert_eq!(world.commands(), [], "and costs nothing");
    // Memory that is mapped otherwise is not in the way.
    let at = domain.put(buffer(0), 4096, Rights::Read).unwrap();
    domain.take(at, 4096).unwrap();
    finish(domain);
}

#[test]
fn addresses_come_before_memory() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    let mut ring = domain.reserve(64).unwrap();
    for n in 0..32 {
        let at = domain.link(&mut ring, buffer(n), 2, Rights::Write).unwrap();
        assert_eq!(at.0, ring.addr().0 + n * 8192);
    }
    domain.sync(&mut ring).unwrap();
    let full = domain.link(&mut ring, buffer(0), 1, Rights::Write);
    assert_eq!(full, Err(MapError::Overflow));
    domain.unlink(&mut ring).unwrap();
    assert_eq!(ring.linked(), 0);
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0), "waited for");
    domain.link(&mut ring, buffer(0), 1, Rights::Read).unwrap();
    domain.release(ring).unwrap();
    domain.flush().unwrap();
    assert_eq!(domain.addresses().free_pages(), domain.addresses().pages());
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
    finish(domain);
}

#[test]
fn all_addresses_owed_are_waited_for_before_none_is_left() {
    let world = World::default();
    let space = Space::below(8);
    let format = VtdSecondLevel::new(3, true, true).unwrap();
    let tree = Tight::from(Tree::new(&space).unwrap());
    let config = Config::new(1).policy(Policy::Lazy);
    let domain = Domain::new(&world, config, tree, format, &world, [(&world, ID)]).unwrap();
    for n in 0..30 {
        let at = domain.put(buffer(n), 4096, Rights::Write).unwrap();
        domain.take(at, 4096).unwrap();
    }
    finish(domain);
}

#[test]
fn every_count_is_shown() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let at = domain.put(buffer(0), 4096, Rights::Write).unwrap();
    domain.take(at, 4096).unwrap();
    let rows: Vec<_> = domain.counts().rows().collect();
    let value = |name| rows.iter().find(|row| row.0 == name).map(|row| row.1);
    assert_eq!((value("maps"), value("unmapped_pages")), (Some(1), Some(1)));
    assert!(rows.iter().all(|row| row.2.ends_with('.')));
    finish(domain);
}
