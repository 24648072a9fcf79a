//! What a guarded domain promises, with a device that reads and writes all that it can reach, and
//! forgets nothing that it is not told to.

use std::alloc::{Layout as HeapLayout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::sync::{Mutex, MutexGuard};
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::addr::{DeviceId, DomainId, IovaRange, PhysAddr, Rights};
use crate::domain::{Config, DmaAddr, Host, Limits, Policy, UnmapError};
use crate::invalidate::{Command, QueueError, Ticket, Unit};
use crate::iova::space::Space;
use crate::iova::tree::Tree;
use crate::table::memory::Table;
use crate::table::{TableMemory, VtdSecondLevel};

const PAGE: u64 = 4096;
/// Pages of memory: buffers lie in the first, the pool in the last.
const MEMORY: u64 = 24;
const POOL: u64 = 6;
/// Addresses for the device, in pages.
const ADDRESSES: u64 = 64;
/// What no device is to see: bytes with the highest bit set.
const SECRET: u8 = 0x80;

struct State {
    memory: Vec<u8>,
    told: Vec<Vec<Command>>,
    completed: u64,
    /// What the device remembers: page to page.
    tlb: BTreeMap<u64, (u64, Rights)>,
    held: BTreeMap<u64, u64>,
    /// A page that is not to be held.
    refused: Option<u64>,
    dead: bool,
}

pub(super) struct World(Mutex<State>);

impl World {
    fn new() -> Self {
        Self(Mutex::new(State {
            memory: (0..MEMORY * PAGE).map(|n| SECRET | (n % 127) as u8).collect(),
            told: Vec::new(),
            completed: 0,
            tlb: BTreeMap::new(),
            held: BTreeMap::new(),
            refused: None,
            dead: false,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn held(&self, page: u64) -> u64 {
        self.state().held.get(&page).copied().unwrap_or(0)
    }
}

impl State {
    /// The device forgets what it was told to.
    fn complete(&mut self) {
        for command in self.told.drain(..).flatten() {
            match command {
                Command::Pages { range, .. } => {
                    self.tlb.retain(|page, _| !(range.first()..=range.last()).contains(page));
                }
                _ => self.tlb.clear(),
            }
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, at: u64, bytes: u64) -> &[u8] {
        &self.memory[at as usize..(at + bytes) as usize]
    }
}

// SAFETY: it forgets what it was told before it says so.
unsafe impl Unit for &World {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let mut state = self.state();
        state.told.push(commands.to_vec());
        Ok(Ticket(state.completed + state.told.len() as u64))
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.state().completed))
    }
}

fn layout() -> HeapLayout {
    HeapLayout::from_size_align(4096, 4096).unwrap()
}

// SAFETY: pages of the heap, at their own addresses.
unsafe impl TableMemory for &World {
    fn allocate(&self) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        Some(PhysAddr(unsafe { alloc_zeroed(layout()) } as u64))
    }
    unsafe fn free(&self, page: PhysAddr) {
        // SAFETY: from `allocate`, as promised.
        unsafe { dealloc(page.0 as *mut u8, layout()) }
    }
    unsafe fn table(&self, page: PhysAddr) -> &Table {
        // SAFETY: from `allocate`, as promised.
        unsafe { &*(page.0 as *const Table) }
    }
}

// SAFETY: the tests look at who holds what.
unsafe impl<'w> Host for &'w World {
    type Addresses = Tree;
    type Format = VtdSecondLevel;
    type Tables = &'w World;
    type Unit = &'w World;
    type Pin = usize;

    fn pin(&self) -> usize {
        0
    }
    fn relax(&self) -> bool {
        let mut state = self.state();
        let told = state.told.len() as u64;
        if !state.dead {
            state.complete();
            state.completed += told;
        }
        !state.dead
    }
    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        let first = first.0 / PAGE;
        if first + pages > MEMORY - POOL {
            return false;
        }
        let mut state = self.state();
        if state.refused.is_some_and(|page| (first..first + pages).contains(&page)) {
            return false;
        }
        (first..first + pages).for_each(|page| *state.held.entry(page).or_default() += 1);
        true
    }
    fn release(&self, first: PhysAddr, pages: u64) {
        let mut state = self.state();
        let first = first.0 / PAGE;
        for page in first..first + pages {
            let count = state.held.get_mut(&page).expect("it is held");
            *count = count.checked_sub(1).expect("as often as it is released");
        }
    }
}

impl Access for &World {
    fn copy(&self, from: PhysAddr, to: PhysAddr, bytes: u64) -> bool {
        let mut state = self.state();
        if from.0 + bytes > MEMORY * PAGE || to.0 + bytes > MEMORY * PAGE {
            return false;
        }
        let bytes = state.read(from.0, bytes).to_vec();
        state.write(to.0, &bytes);
        true
    }
    fn clear(&self, first: PhysAddr, bytes: u64) {
        assert_eq!(bytes, PAGE);
        self.state().write(first.0, &[0; PAGE as usize]);
    }
}

fn guarded(world: &World, config: Config) -> Guarded<&World> {
    let pool = Pool::new((MEMORY - POOL..MEMORY).map(|n| PhysAddr(n * PAGE))).unwrap();
    let format = VtdSecondLevel::new(3, true, true).unwrap();
    let tree = Tree::new(&Space::below(ADDRESSES)).unwrap();
    let units = [(world, DomainId(1))];
    let guarded = Guarded::new(world, config, tree, format, world, units, pool).unwrap();
    let _ = guarded.domain().attach(0, DeviceId(1), false).unwrap();
    guarded
}

fn finish(guarded: Guarded<&World>) {
    guarded.domain().flush().unwrap();
    assert_eq!(guarded.pool().free(), POOL as usize);
    assert_eq!(guarded.domain().addresses().free_pages(), guarded.domain().addresses().pages());
    // SAFETY: there is no device.
    let Ok(_) = (unsafe { guarded.end() }) else { panic!("the unit answers") };
}

/// The device looks at all addresses, and remembers what it finds where it does not remember
/// something already.
fn prefetch(guarded: &Guarded<&World>, world: &World) {
    for page in 1..ADDRESSES {
        if let Some((phys, _, rights)) = guarded.domain().lookup(DmaAddr(page * PAGE)) {
            world.state().tlb.entry(page).or_insert((phys.0 / PAGE, rights));
        }
    }
}

/// Where the device comes to by an address.
fn reach(world: &World, at: DmaAddr, offset: u64) -> u64 {
    let page = (at.0 + offset) / PAGE;
    let (frame, _) = world.state().tlb[&page];
    frame * PAGE + (at.0 + offset) % PAGE
}

fn device_reads(world: &World, mapped: &Mapped) -> Vec<u8> {
    let at: Vec<u64> = (0..mapped.bytes()).map(|n| reach(world, mapped.addr(), n)).collect();
    let state = world.state();
    at.into_iter().map(|at| state.memory[at as usize]).collect()
}

fn device_writes(world: &World, mapped: &Mapped, from: u64, bytes: &[u8]) {
    for (n, byte) in (from..).zip(bytes) {
        let at = reach(world, mapped.addr(), n);
        world.state().write(at, &[*byte]);
    }
}

/// No byte that the device can read is secret.
fn assert_nothing_is_seen(guarded: &Guarded<&World>, world: &World) {
    prefetch(guarded, world);
    let state = world.state();
    for (page, (frame, rights)) in &state.tlb {
        let seen = state.read(frame * PAGE, PAGE).iter().position(|byte| byte & SECRET != 0);
        if let (true, Some(offset)) = (rights.reads(), seen) {
            panic!(
                "by page {page:#x} the device reads a secret: page {frame} of memory, at {offset:#x}"
            );
        }
    }
}

/// Bytes that may be seen.
fn public(seed: u8, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|n| (n as u8).wrapping_mul(7).wrapping_add(seed) & 0x7f | 1).collect()
}

pub(crate) fn nothing_is_seen_beside_a_buffer() {
    let world = World::new();
    let guarded = guarded(&world, Config::new(1));
    // In one page; over a boundary; with whole pages; from a page's start; to its end; whole pages
    // only.
    let cases = [
        (0x100, 0x200, 1),
        (0xf00, 0x200, 2),
        (0xf00, 0x2200, 2),
        (0x1000, 0x1800, 1),
        (0x1800, 0x1800, 1),
        (0x2000, 0x2000, 0),
        (0xfff, 2, 2),
        (0, 1, 1),
        (0x1000, 0x1000, 0),
    ];
    for rights in [Rights::Read, Rights::Write, Rights::ReadWrite] {
        for (phys, bytes, bounced) in cases {
            let before = world.state().memory.clone();
            world.state().write(phys, &public(3, bytes));
            let mapped = guarded.map(PhysAddr(phys), bytes, rights).unwrap();
            assert_eq!((mapped.bounced(), mapped.addr().0 % PAGE), (bounced, phys % PAGE));
            assert_nothing_is_seen(&guarded, &world);
            assert_eq!(device_reads(&world, &mapped), public(3, bytes), "{phys:#x}+{bytes:#x}");
            // It writes to all that it can reach.
            let reached: Vec<u64> = world.state().tlb.values().map(|(frame, _)| *frame).collect();
            for frame in reached.into_iter().filter(|_| rights.writes()) {
                world.state().write(frame * PAGE, &[0x11; PAGE as usize]);
            }
            guarded.unmap(mapped).unwrap();
            let after = world.state().memory.clone();
            for at in 0..((MEMORY - POOL) * PAGE) as usize {
                let inside = (phys..phys + bytes).contains(&(at as u64));
                let expected = match (inside, rights.writes()) {
                    (true, true) => 0x11,
                    (true, false) => public(3, bytes)[at - phys as usize],
                    (false, _) => before[at],
                };
                assert_eq!(after[at], expected, "{at:#x} of {phys:#x}+{bytes:#x}");
            }
            world.state().memory = before;
        }
    }
    finish(guarded);
}

pub(crate) fn what_the_device_writes_comes_back() {
    let world = World::new();
    let guarded = guarded(&world, Config::new(1));
    for rights in [Rights::Write, Rights::ReadWrite] {
        world.state().write(0x800, &public(1, 0x2000));
        let mapped = guarded.map(PhysAddr(0x800), 0x2000, rights).unwrap();
        prefetch(&guarded, &world);
        device_writes(&world, &mapped, 0, &public(9, 0x2000));
        guarded.sync_for_cpu(&mapped, 0..0x2000).unwrap();
        assert_eq!(world.state().read(0x800, 0x2000), public(9, 0x2000));
        device_writes(&world, &mapped, 0, &public(5, 0x2000));
        guarded.unmap(mapped).unwrap();
        assert_eq!(world.state().read(0x800, 0x2000), public(5, 0x2000));
    }
    finish(guarded);
}

pub(crate) fn what_the_device_leaves_stays() {
    let world = World::new();
    let guarded = guarded(&world, Config::new(1));
    for rights in [Rights::Write, Rights::ReadWrite] {
        world.state().write(0x123, &public(1, 0x800));
        let mapped = guarded.map(PhysAddr(0x123), 0x800, rights).unwrap();
        prefetch(&guarded, &world);
        // A short packet.
        device_writes(&world, &mapped, 0, &public(9, 0x40));
        guarded.unmap(mapped).unwrap();
        assert_eq!(world.state().read(0x123, 0x40), public(9, 0x40));
        assert_eq!(world.state().read(0x163, 0x7c0), &public(1, 0x800)[0x40..]);
    }
    finish(guarded);
}

pub(crate) fn a_page_of_the_pool_waits_for_its_invalidation() {
    for policy in [Policy::Deferred, Policy::Lazy] {
        let world = World::new();
        let guarded = guarded(&world, Config::new(1).policy(policy));
        let mut used = BTreeSet::new();
        for n in 0..POOL {
            let mapped = guarded.map(PhysAddr(n * 0x100), 0x80, Rights::ReadWrite).unwrap();
            prefetch(&guarded, &world);
            assert!(
                used.insert(reach(&world, mapped.addr(), 0) / PAGE),
                "the device reaches it yet"
            );
            guarded.unmap(mapped).unwrap();
        }
        assert_eq!((guarded.pool().free(), world.state().completed), (0, 0));
        // All are deferred: waited for, once.
        let mapped = guarded.map(PhysAddr(0), 0x80, Rights::Read).unwrap();
        assert!(world.state().completed > 0 && world.state().tlb.is_empty());
        assert_eq!(guarded.pool().free(), POOL as usize - 1);
        guarded.unmap(mapped).unwrap();
        finish(guarded);
    }
}

macro_rules! tests {
    ($($scene:ident)*) => {
        mod scenes {
            $(#[test] fn $scene() { super::$scene(); })*
        }
    };
}
tests! {
    nothing_is_seen_beside_a_buffer what_the_device_writes_comes_back what_the_device_leaves_stays
    a_page_of_the_pool_waits_for_its_invalidation a_buffer_of_a_pool_that_is_gone_is_refused
}

#[test]
fn what_fails_has_changed_nothing() {
    let world = World::new();
    let guarded = guarded(&world, Config::new(1).policy(Policy::Deferred));
    let held: Vec<Mapped> = (0..POOL - 1)
        .map(|n| guarded.map(PhysAddr(n * 0x100), 0x80, Rights::Read).unwrap())
        .collect();
    let state = || {
        let free = guarded.domain().addresses().free_pages();
        (guarded.pool().free(), free, guarded.domain().deferred(), world.held(1), world.held(2))
    };
    let before = state();
    let map = |phys, bytes| guarded.map(PhysAddr(phys), bytes, Rights::ReadWrite).map(|_| ());
    assert_eq!(map(0xf00, 0x200), Err(MapError::Exhausted), "two edges, one page");
    assert_eq!(map(0x800, 0), Err(MapError::Domain(crate::domain::MapError::Empty)));
    assert_eq!(map(u64::MAX, 2), Err(MapError::Domain(crate::domain::MapError::Overflow)));
    assert_eq!(map(MEMORY * PAGE, 0x80), Err(MapError::NoSuchMemory));
    // More addresses than there are; a page that is not to be held; the pool's own.
    let exhausted = crate::domain::MapError::Addresses(crate::iova::AllocError::Exhausted);
    assert_eq!(map(MEMORY * PAGE, ADDRESSES * PAGE), Err(MapError::Domain(exhausted)));
    world.state().refused = Some(2);
    let not_held = Err(MapError::Domain(crate::domain::MapError::NotHeld));
    assert_eq!(map(0x0f80, 0x2080), not_held);
    assert_eq!(map((MEMORY - POOL) * PAGE - 0x80, PAGE + 0x80), Err(MapError::NoSuchMemory));
    assert_eq!(map((MEMORY - POOL) * PAGE, PAGE), Err(MapError::NoSuchMemory));
    assert_eq!(state(), before);
    let copied = guarded.sync_for_cpu(&held[0], 0..0x81);
    assert_eq!(copied, Err(OutOfRange));
    #[allow(clippy::reversed_empty_ranges)] // that is what is refused
    let backward = guarded.sync_for_device(&held[0], 0x10..8);
    assert_eq!(backward, Err(OutOfRange));
    // One more edge fits.
    let one = guarded.map(PhysAddr(0x1000), 0x1800, Rights::Write).unwrap();
    assert_eq!((world.held(1), world.held(2)), (1, 0), "the bounced page is not held");
    guarded.unmap(one).unwrap();
    for mapped in held {
        guarded.unmap(mapped).unwrap();
    }
    finish(guarded);
}

#[test]
fn a_part_is_copied_and_no_more() {
    let world = World::new();
    let guarded = guarded(&world, Config::new(1));
    world.state().write(0xf00, &public(1, 0x1200));
    let mapped = guarded.map(PhysAddr(0xf00), 0x1200, Rights::ReadWrite).unwrap();
    prefetch(&guarded, &world);
    let page = (0x100, 0x1100);
    // Within the first piece; over its end; in the last; and of both.
    for (from, to) in [(0x10, 0x20), (0xf0, page.0 + 8), (page.1 + 2, page.1 + 4), (0x80, 0x1180)] {
        let (new, old) = (public(40, 0x1200), public(1, 0x1200));
        device_writes(&world, &mapped, 0, &new);
        guarded.sync_for_cpu(&mapped, from..to).unwrap();
        let now = world.state().read(0xf00, 0x1200).to_vec();
        for n in 0..0x1200u64 {
            // Whole pages are the buffer's own.
            let seen = (from..to).contains(&n) || (page.0..page.1).contains(&n);
            let expected = if seen { &new } else { &old };
            assert_eq!(now[n as usize], expected[n as usize], "{n:#x} of {from:#x}..{to:#x}");
        }
        world.state().write(0xf00, &old);
        guarded.sync_for_device(&mapped, 0..0x1200).unwrap();
        assert_eq!(device_reads(&world, &mapped), old);
    }
    guarded.unmap(mapped).unwrap();
    finish(guarded);
}

#[test]
fn what_is_not_forgotten_stays_out_of_use() {
    let world = World::new();
    let guarded = guarded(&world, Config::new(1));
    let mapped = guarded.map(PhysAddr(0x100), 0x80, Rights::Write).unwrap();
    let other = super::tests::guarded(&world, Config::new(1));
    let (error, mapped) = other.unmap(mapped).unwrap_err();
    assert_eq!(error, UnmapError::NotMapped, "of another domain");
    world.state().dead = true;
    let (error, none) = guarded.unmap(mapped.unwrap()).unwrap_err();
    assert_eq!((error, none), (UnmapError::NotComplete(QueueError::GaveUp), None));
    assert_eq!(guarded.pool().free(), POOL as usize - 1);
    world.state().dead = false;
    finish(guarded);
    finish(other);
}

#[test]
fn strict_ish_without_a_kernel_that_holds_is_strict() {
    let world = World::new();
    let guarded = guarded(&world, Config::new(1));
    let mapped = guarded.map(PhysAddr(0x100), 0x1000, Rights::Write).unwrap();
    guarded.unmap_under(Policy::Deferred, mapped).unwrap();
    assert_eq!(guarded.domain().deferred(), (0, 0));
    assert!(world.state().held.is_empty(), "its own pages are not held");
    finish(guarded);
}

/// A pool at whose place in memory there was another one before is not that one.
pub(crate) fn a_buffer_of_a_pool_that_is_gone_is_refused() {
    let mut stale = Vec::new();
    for _ in 0..64 {
        let world = World::new();
        let guarded = guarded(&world, Config::new(1));
        let mapped = guarded.map(PhysAddr(0x100), 0x80, Rights::Read).unwrap();
        for mapped in &stale {
            assert_eq!(guarded.sync_for_device(mapped, 0..1), Err(OutOfRange));
        }
        stale.push(mapped);
        // SAFETY: there is no device.
        let Ok(_) = (unsafe { guarded.end() }) else { panic!("the unit answers") };
    }
    let world = World::new();
    let guarded = guarded(&world, Config::new(1));
    for mapped in stale {
        let outcome = guarded.unmap(mapped).map_err(|(error, _)| error);
        assert_eq!(outcome, Err(UnmapError::NotMapped));
    }
    finish(guarded);
}

#[test]
fn pools_of_nonsense_are_refused() {
    assert_eq!(Pool::new([PhysAddr(0x1800)]).err(), Some(PoolError::Unaligned(PhysAddr(0x1800))));
    let twice = [0x3000, 0x1000, 0x3000].map(PhysAddr);
    assert_eq!(Pool::new(twice).err(), Some(PoolError::Twice(PhysAddr(0x3000))));
    let pool = Pool::new([0x3000, 0x1000, 0x2000, 0x9000].map(PhysAddr)).unwrap();
    assert_eq!((pool.among(2, 2), pool.among(4, 5), pool.among(0, 100)), (1..3, 3..3, 0..4));
    let taken: BTreeSet<u64> = (0..4).map(|_| pool.at(pool.take().unwrap()).0).collect();
    assert_eq!((taken.len(), pool.take(), pool.free()), (4, None, 0));
    assert!(format!("{pool:?}").contains("free: 0"));
}

#[derive(Clone, Debug)]
enum Step {
    Map {
        start: u64,
        bytes: u64,
        rights: Rights,
        seed: u8,
    },
    /// The CPU writes, and has it brought to the device.
    CpuWrites {
        which: usize,
        from: u64,
        bytes: u64,
        seed: u8,
    },
    /// The device writes, and the CPU has it brought back.
    DeviceWrites {
        which: usize,
        from: u64,
        bytes: u64,
        seed: u8,
    },
    /// To all that it can reach.
    Scribble(u8),
    Unmap {
        which: usize,
        policy: Policy,
    },
    Complete,
    Poll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rights = || prop_oneof![Just(Rights::Read), Just(Rights::Write), Just(Rights::ReadWrite)];
    let policy = || prop_oneof![Just(Policy::Strict), Just(Policy::Deferred)];
    let bytes = prop_oneof![1..0x300u64, 0xe00..0x1200u64, 0x1000..0x3800u64];
    let part = || (any::<usize>(), 0..0x3800u64, 1..0x1800u64, any::<u8>());
    let step = prop_oneof![
        6 => (0..(MEMORY - POOL) * PAGE, bytes, rights(), any::<u8>())
            .prop_map(|(start, bytes, rights, seed)| Step::Map { start, bytes, rights, seed }),
        2 => part().prop_map(|(which, from, bytes, seed)| Step::CpuWrites { which, from, bytes, seed }),
        2 => part().prop_map(|(which, from, bytes, seed)| Step::DeviceWrites { which, from, bytes, seed }),
        1 => any::<u8>().prop_map(Step::Scribble),
        4 => (any::<usize>(), policy()).prop_map(|(which, policy)| Step::Unmap { which, policy }),
        1 => Just(Step::Complete),
        1 => Just(Step::Poll),
    ];
    prop::collection::vec(step, 1..40)
}

/// A buffer that is mapped, and one that was and is still held.
struct Buffer {
    mapped: Mapped,
    start: u64,
    rights: Rights,
}

/// What is nobody's becomes secret again.
fn hide(world: &World, live: &[Buffer], gone: &mut Vec<(u64, u64)>) {
    let kept = |at: u64| {
        live.iter().any(|b| (b.start..b.start + b.mapped.bytes()).contains(&at))
            || world.held(at / PAGE) != 0
    };
    gone.retain(|(start, bytes)| {
        let mut all = true;
        for at in *start..start + bytes {
            if kept(at) {
                all = false;
            } else {
                world.state().write(at, &[SECRET]);
            }
        }
        !all
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// A device that reads and writes all it can reach, and remembers all it has found, sees nothing but buffers, changes nothing but
    /// buffers, and gets and gives what is written to them.
    #[test]
    fn a_hostile_device_sees_buffers_only(
        steps in steps(),
        policy in prop_oneof![Just(Policy::Strict), Just(Policy::Deferred)],
    ) {
        let world = World::new();
        let limits = Limits { entries: 8, flush_at: 4, held_pages: 16, ..Limits::DEFAULT };
        // So that whole pages are held as well, whatever the policy.
        let config = Config::new(1).policy(Policy::Deferred).policy(policy).limits(limits);
        let guarded = guarded(&world, config);
        let mut live: Vec<Buffer> = Vec::new();
        let mut gone: Vec<(u64, u64)> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Map { start, bytes, rights, seed } => {
                    let end = start + bytes;
                    let over = live.iter().any(|b| start < b.start + b.mapped.bytes() && b.start < end)
                        || gone.iter().any(|(s, n)| start < s + n && *s < end);
                    if end > (MEMORY - POOL) * PAGE || over {
                        continue;
                    }
                    world.state().write(start, &public(seed, bytes));
                    match guarded.map(PhysAddr(start), bytes, rights) {
                        Ok(mapped) => {
                            prefetch(&guarded, &world);
                            prop_assert_eq!(device_reads(&world, &mapped), public(seed, bytes));
                            live.push(Buffer { mapped, start, rights });
                        }
                        Err(MapError::Exhausted | MapError::Domain(_)) => gone.push((start, bytes)),
                        Err(error) => prop_assert!(false, "{:?}", error),
                    }
                }
                Step::CpuWrites { which, from, bytes, seed } if !live.is_empty() => {
                    let which = which % live.len();
                    let Buffer { mapped, start, .. } = &live[which];
                    let from = from % mapped.bytes();
                    let bytes = bytes.min(mapped.bytes() - from);
                    world.state().write(start + from, &public(seed, bytes));
                    guarded.sync_for_device(mapped, from..from + bytes).unwrap();
                    let all = device_reads(&world, mapped);
                    prop_assert_eq!(&all[from as usize..(from + bytes) as usize], &public(seed, bytes)[..]);
                }
                Step::DeviceWrites { which, from, bytes, seed } if !live.is_empty() => {
                    let which = which % live.len();
                    let Buffer { mapped, start, rights } = &live[which];
                    if !rights.writes() {
                        continue;
                    }
                    let from = from % mapped.bytes();
                    let bytes = bytes.min(mapped.bytes() - from);
                    let mut expected = world.state().read(*start, mapped.bytes()).to_vec();
                    expected[from as usize..(from + bytes) as usize].copy_from_slice(&public(seed, bytes));
                    device_writes(&world, mapped, from, &public(seed, bytes));
                    guarded.sync_for_cpu(mapped, 0..mapped.bytes()).unwrap();
                    let now = world.state().read(*start, mapped.bytes()).to_vec();
                    prop_assert_eq!(now, expected);
                }
                Step::Scribble(seed) => {
                    prefetch(&guarded, &world);
                    let all: Vec<_> = world.state().tlb.values().copied().collect();
                    for (frame, _) in all.iter().filter(|(_, rights)| rights.writes()) {
                        world.state().write(frame * PAGE, &public(seed, PAGE));
                    }
                    for Buffer { mapped, .. } in &live {
                        guarded.sync_for_cpu(mapped, 0..mapped.bytes()).unwrap();
                    }
                }
                Step::Unmap { which, policy } if !live.is_empty() => {
                    let Buffer { mapped, start, rights } = live.swap_remove(which % live.len());
                    let bytes = mapped.bytes();
                    prefetch(&guarded, &world);
                    let seen = device_reads(&world, &mapped);
                    let expected = if rights.writes() { seen } else { world.state().read(start, bytes).to_vec() };
                    let floor = guarded.domain().config().policy;
                    let policy = if policy.is_weaker_than(floor) { floor } else { policy };
                    guarded.unmap_under(policy, mapped).unwrap();
                    let now = world.state().read(start, bytes).to_vec();
                    prop_assert_eq!(now, expected);
                    gone.push((start, bytes));
                }
                Step::Complete => drop((&&world).relax()),
                Step::Poll => {
                    now += 10_000_000;
                    guarded.domain().poll(now).unwrap();
                }
                _ => {}
            }
            hide(&world, &live, &mut gone);
            assert_nothing_is_seen(&guarded, &world);
            let state = world.state();
            // What is in no buffer, and in none that is still held, is as it was.
            for at in 0..(MEMORY - POOL) * PAGE {
                let inside = live.iter().any(|b| (b.start..b.start + b.mapped.bytes()).contains(&at))
                    || gone.iter().any(|(start, bytes)| (*start..start + bytes).contains(&at));
                prop_assert!(inside || state.memory[at as usize] & SECRET != 0, "{:#x} was changed", at);
            }
            // A page of the pool that is in use is reached by the addresses of its buffer alone.
            for Buffer { mapped, .. } in &live {
                let first = mapped.addr().0 / PAGE;
                let last = (mapped.addr().0 + mapped.bytes() - 1) / PAGE;
                for (index, page) in mapped.buffer.edges.iter().zip([first, last]) {
                    let Some(index) = index else { continue };
                    let frame = guarded.pool().at(*index).0 / PAGE;
                    let others = state.tlb.iter().find(|(at, (f, _))| *f == frame && **at != page);
                    prop_assert!(others.is_none(), "{:?} leads to it too", others);
                }
            }
        }
        for Buffer { mapped, .. } in live {
            guarded.unmap(mapped).unwrap();
        }
        finish(guarded);
        prop_assert!(world.state().held.values().all(|count| *count == 0));
    }
}

/// Every buffer in three pages, at a coarse grid of places: which pieces it has.
#[test]
fn pieces_add_up() {
    let world = World::new();
    let guarded = guarded(&world, Config::new(1));
    let places = [0, 1, 0x7ff, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x2001, 0x2fff, 0x3000];
    for (start, end) in places.iter().flat_map(|s| places.iter().map(move |e| (*s, *e))) {
        if start >= end {
            continue;
        }
        let mapped = guarded.map(PhysAddr(start), end - start, Rights::Read).unwrap();
        let partial: BTreeSet<u64> =
            [start, end].iter().filter(|at| *at % PAGE != 0).map(|at| at / PAGE).collect();
        assert_eq!(mapped.bounced(), partial.len(), "{start:#x}..{end:#x}");
        let range = IovaRange::new(mapped.addr().0 / PAGE, 1).unwrap();
        assert!(guarded.domain().lookup(DmaAddr(range.first() * PAGE)).is_some());
        guarded.unmap(mapped).unwrap();
    }
    finish(guarded);
}
