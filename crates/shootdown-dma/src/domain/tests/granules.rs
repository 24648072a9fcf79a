//! Domains whose pages have 4, 16 or 64 KiB, behind a unit that is told in SMMUv3's commands, with
//! a device that has a cache of its own. Both remember all that they have seen, and forget exactly
//! what a command names, read as the manual says: what is told in wrong pages is not forgotten.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use super::*;
use crate::bounce::{Access, Guarded, Pool, PoolError};
use crate::invalidate::smmu::{self, Facts, Stage};
use crate::table::{ArmStage1, ArmStage2};

/// Addresses, in pages; and pages of memory, the last of which are the bounce pool's.
const ADDRESSES: u64 = 80;
const MEMORY: u64 = 40;
const POOL: u64 = 8;
const TAG: DomainId = DomainId(0x2a5);
/// What no device is to see: bytes with the highest bit set.
const SECRET: u8 = 0x80;

/// A format, and what goes with it.
trait Granular: Format {
    const STAGE: Stage;
    fn new() -> Self;
}

impl<const G: u32> Granular for ArmStage1<G> {
    const STAGE: Stage = Stage::One;
    fn new() -> Self {
        Self::with_granule(3, 0).expect("three levels")
    }
}

impl<const G: u32> Granular for ArmStage2<G> {
    const STAGE: Stage = Stage::Two;
    fn new() -> Self {
        Self::for_width(40).expect("40 bits")
    }
}

#[derive(Default)]
struct Seen {
    /// What unit and device remember: by page, the page that it leads to, and the rights.
    tlb: BTreeMap<u64, (u64, Rights)>,
    atc: BTreeMap<u64, (u64, Rights)>,
    refs: BTreeMap<u64, i64>,
    memory: Vec<u8>,
    told: u64,
    /// Commands by opcode.
    opcodes: BTreeSet<u64>,
}

struct Machine<F>(Mutex<Seen>, bool, PhantomData<fn() -> F>);

impl<F: Granular> Machine<F> {
    const PAGE: u64 = 1 << F::GRANULE;

    /// `ranges`: the unit can be told ranges.
    fn new(ranges: bool) -> Self {
        let memory = (0..MEMORY * Self::PAGE).map(|n| SECRET | (n % 127) as u8).collect();
        Self(Mutex::new(Seen { memory, ..Seen::default() }), ranges, PhantomData)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }

    fn facts(&self) -> Facts {
        Facts { ranges: self.1, granule: F::GRANULE, stage: F::STAGE }
    }

    /// One command, as the manual reads it (IHI 0070, 4.4 and 4.5).
    fn carry_out(&self, [low, high]: smmu::Entry) {
        let mut seen = self.seen();
        let Seen { tlb, atc, opcodes, .. } = &mut *seen;
        let (opcode, page) = (low & 0xff, high >> F::GRANULE);
        opcodes.insert(opcode);
        let tag = match opcode {
            0x11 | 0x12 => low >> 48,
            0x28 | 0x2a => low >> 32 & 0xffff,
            _ => TAG.0.into(),
        };
        assert_eq!(tag, u64::from(TAG.0), "another's");
        match opcode {
            0x11 | 0x28 | 0x30 => tlb.clear(),
            0x12 | 0x2a => {
                assert_eq!(F::STAGE == Stage::One, opcode == 0x12, "a command of the other stage");
                // TG: 0 is no range, 1 to 3 are 4, 16 and 64 KiB. Another granule's entries are not
                // found.
                let pages = match high >> 10 & 3 {
                    0 => 1,
                    tg if 10 + 2 * tg == u64::from(F::GRANULE) => {
                        ((low >> 12 & 31) + 1) << (low >> 20 & 31)
                    }
                    _ => 0,
                };
                tlb.retain(|at, _| !(page..page + pages).contains(at));
            }
            // In units of 4 KiB, a power of two of them.
            0x40 => {
                let bytes = 4096u128 << (high & 63);
                let first = u128::from(high & !0xfff) & !(bytes - 1);
                let told = first..first + bytes;
                atc.retain(|at, _| !told.contains(&(u128::from(*at) << F::GRANULE)));
            }
            0x46 | 0x03..=0x06 => {}
            _ => panic!("opcode {opcode:#x}"),
        }
    }
}

// SAFETY: it forgets at once.
unsafe impl<F: Granular> Unit for &Machine<F> {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let mut commands = commands.to_vec();
        commands.sort_by_key(Command::is_for_device);
        for command in commands {
            smmu::encode(&self.facts(), &command, |entry| self.carry_out(entry));
        }
        self.seen().told += 1;
        self.completed()
    }
    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.seen().told))
    }
    fn granule(&self) -> u32 {
        F::GRANULE
    }
}

fn tables(count: usize) -> HeapLayout {
    HeapLayout::from_size_align(4096 * count, 4096 * count).unwrap()
}

// SAFETY: pages of the heap, at their own addresses.
unsafe impl<F: Granular> TableMemory for &Machine<F> {
    fn allocate(&self) -> Option<PhysAddr> {
        self.allocate_many(1)
    }
    fn allocate_many(&self, pages: usize) -> Option<PhysAddr> {
        // SAFETY: the layout is not empty.
        Some(PhysAddr(unsafe { alloc_zeroed(tables(pages)) } as u64))
    }
    unsafe fn free(&self, page: PhysAddr) {
        // SAFETY: as the caller promises.
        unsafe { self.free_many(page, 1) }
    }
    unsafe fn free_many(&self, first: PhysAddr, pages: usize) {
        // SAFETY: from `allocate_many`, as promised.
        unsafe { dealloc(first.0 as *mut u8, tables(pages)) }
    }
    unsafe fn table(&self, page: PhysAddr) -> &Table {
        // SAFETY: from `allocate_many`, as promised.
        unsafe { &*(page.0 as *const Table) }
    }
}

// SAFETY: nothing is recycled; the tests look at the references.
unsafe impl<'m, F: Granular> Host for &'m Machine<F> {
    type Addresses = Tree;
    type Format = F;
    type Tables = &'m Machine<F>;
    type Unit = &'m Machine<F>;
    type Pin = usize;

    fn pin(&self) -> usize {
        0
    }
    fn hold(&self, first: PhysAddr, pages: u64) -> bool {
        assert_eq!(first.0 % Machine::<F>::PAGE, 0, "whole pages are held");
        let first = first.0 >> F::GRANULE;
        (first..first + pages).for_each(|p| *self.seen().refs.entry(p).or_default() += 1);
        true
    }
    fn release(&self, first: PhysAddr, pages: u64) {
        let first = first.0 >> F::GRANULE;
        (first..first + pages).for_each(|p| *self.seen().refs.entry(p).or_default() -= 1);
    }
}

impl<F: Granular> Access for &Machine<F> {
    fn copy(&self, from: PhysAddr, to: PhysAddr, bytes: u64) -> bool {
        let memory = &mut self.seen().memory;
        let (from, to, bytes) = (from.0 as usize, to.0 as usize, bytes as usize);
        if from.max(to) + bytes > memory.len() {
            return false;
        }
        memory.copy_within(from..from + bytes, to);
        true
    }
    fn clear(&self, first: PhysAddr, bytes: u64) {
        self.seen().memory[first.0 as usize..(first.0 + bytes) as usize].fill(0);
    }
}

/// Everybody looks at all addresses, and remembers what is there.
fn prefetch<H: Host, F: Granular>(domain: &Domain<H>, machine: &Machine<F>) {
    for page in 1..ADDRESSES {
        let Some((phys, left, rights)) = domain.lookup(DmaAddr(page << F::GRANULE)) else {
            continue;
        };
        assert!(left >= Machine::<F>::PAGE, "a page at least");
        let mut seen = machine.seen();
        seen.tlb.entry(page).or_insert((phys.0 >> F::GRANULE, rights));
        seen.atc.entry(page).or_insert((phys.0 >> F::GRANULE, rights));
    }
}

fn space() -> Tree {
    Tree::new(&Space::below(ADDRESSES)).unwrap()
}

fn domain<F: Granular>(machine: &Machine<F>, policy: Policy) -> Domain<&Machine<F>> {
    let config = Config::new(1).policy(Policy::Deferred).policy(policy);
    let domain =
        Domain::new(machine, config, space(), F::new(), machine, [(machine, TAG)]).unwrap();
    let _ = domain.attach(0, DeviceId(3), true).unwrap();
    domain
}

/// What a driver has mapped.
enum Live {
    One { at: DmaAddr, bytes: u64 },
    Linked(Reservation),
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % n
    }
}

/// All that an error leaves as it is.
fn state<F: Granular>(domain: &Domain<&Machine<F>>) -> impl PartialEq + core::fmt::Debug {
    let entries: Vec<_> =
        (0..ADDRESSES).map(|page| domain.lookup(DmaAddr(page << F::GRANULE))).collect();
    let refs: Vec<_> = domain.host().seen().refs.iter().map(|(p, n)| (*p, *n)).collect();
    (entries, refs, domain.deferred(), domain.addresses().free_pages(), domain.host().seen().told)
}

fn hunt<F: Granular>(policy: Policy, ranges: bool, seed: u64) {
    let machine = Machine::<F>::new(ranges);
    let domain = domain(&machine, policy);
    let page = Machine::<F>::PAGE;
    let mut random = Random(seed);
    let mut live: Vec<Live> = Vec::new();
    let is_forgotten = |first: DmaAddr, pages: u64| {
        let seen = machine.seen();
        let mut all = first.0 >> F::GRANULE..(first.0 >> F::GRANULE) + pages;
        assert!(all.all(|page| !seen.tlb.contains_key(&page) && !seen.atc.contains_key(&page)));
    };
    for _ in 0..120 {
        prefetch(&domain, &machine);
        let phys = PhysAddr(random.below(24) * page + random.below(page));
        match random.below(7) {
            0 | 1 => {
                let bytes = 1 + random.below(5 * page);
                let rights = [Rights::Read, Rights::ReadWrite][random.below(2) as usize];
                let Ok(at) = domain.put(phys, bytes, rights) else { continue };
                assert_eq!(at.0 % page, phys.0 % page, "the same place within the page");
                for byte in (0..bytes).step_by(1024).chain([bytes - 1]) {
                    let (to, _, found) = domain.lookup(DmaAddr(at.0 + byte)).expect("mapped");
                    assert_eq!((to.0, found), (phys.0 + byte, rights));
                }
                live.push(Live::One { at, bytes });
            }
            2 => {
                // From within a page to its end, whole pages, and a piece of one.
                let head = page - phys.0 % page;
                let segment = |phys, bytes| Segment { phys: PhysAddr(phys), bytes };
                let tail = 1 + random.below(page);
                let all =
                    [segment(phys.0, head), segment(9 * page, 2 * page), segment(4 * page, tail)];
                let Ok(at) = domain.put_sg(&all, Rights::ReadWrite) else { continue };
                let bytes = head + 2 * page + tail;
                let last = domain.lookup(DmaAddr(at.0 + bytes - 1)).expect("mapped");
                assert_eq!(last.0.0, 4 * page + tail - 1);
                live.push(Live::One { at, bytes });
                if page > 4096 {
                    // 4 KiB are no page of a larger granule.
                    let before = state(&domain);
                    let gap = [segment(0, 4096), segment(page + 4096, 4096)];
                    assert_eq!(domain.put_sg(&gap, Rights::Read), Err(MapError::Unaligned));
                    assert_eq!(state(&domain), before);
                }
            }
            3 => {
                let Ok(mut reservation) = domain.reserve(4) else { continue };
                let first = PhysAddr(phys.0 & !(page - 1));
                assert_eq!(reservation.addr().0 % page, 0);
                if page > 4096 {
                    let before = state(&domain);
                    let within = PhysAddr(first.0 + 4096);
                    let linked = domain.link(&mut reservation, within, 1, Rights::Read);
                    assert_eq!(linked, Err(MapError::Unaligned));
                    assert_eq!((state(&domain), reservation.linked()), (before, 0));
                }
                let Ok(at) = domain.link(&mut reservation, first, 1, Rights::Read) else {
                    continue;
                };
                assert_eq!(at, reservation.addr());
                let second = domain.link(&mut reservation, first, 2, Rights::Read);
                assert_eq!(second.map(|at| at.0), Ok(at.0 + page));
                domain.sync(&mut reservation).unwrap();
                live.push(Live::Linked(reservation));
            }
            4 | 5 if !live.is_empty() => {
                match live.swap_remove(random.below(live.len() as u64) as usize) {
                    Live::One { at, bytes } => {
                        let pages = (at.0 % page + bytes).div_ceil(page);
                        let before = state(&domain);
                        let long = domain.take(at, bytes + page);
                        assert!(matches!(
                            long,
                            Err(UnmapError::NotMapped | UnmapError::Several | UnmapError::Partial)
                        ));
                        if pages > 1 {
                            assert_eq!(domain.take(at, 1), Err(UnmapError::Partial));
                        }
                        assert_eq!(state(&domain), before);
                        domain.take(at, bytes).unwrap();
                        if policy == Policy::Strict {
                            is_forgotten(at, pages);
                        }
                        assert!(domain.take(at, bytes).is_err(), "twice");
                    }
                    Live::Linked(mut reservation) => {
                        if random.below(2) == 0 {
                            domain.unlink(&mut reservation).unwrap();
                            is_forgotten(reservation.addr(), 4);
                        }
                        domain.release(reservation).map_err(|(error, _)| error).unwrap();
                    }
                }
            }
            _ => domain.poll(random.below(1 << 30)).unwrap(),
        }
    }
    for one in live {
        match one {
            Live::One { at, bytes } => domain.take(at, bytes).unwrap(),
            Live::Linked(reservation) => domain.release(reservation).map_err(|(e, _)| e).unwrap(),
        }
    }
    domain.flush().unwrap();
    prefetch(&domain, &machine);
    is_forgotten(DmaAddr(page), ADDRESSES - 1);
    let pages = if F::STAGE == Stage::One { 0x12 } else { 0x2a };
    assert!(machine.seen().opcodes.is_superset(&BTreeSet::from([pages, 0x40])));
    assert!(machine.seen().refs.values().all(|refs| *refs == 0));
    assert_eq!(domain.addresses().free_pages(), domain.addresses().pages());
    // SAFETY: there is no device.
    let Ok(_) = (unsafe { domain.end() }) else { panic!("the unit answers") };
}

fn hunt_all<F: Granular>() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        for seed in 0..6 {
            hunt::<F>(policy, seed % 2 == 0, seed);
        }
    }
}

#[test]
fn pages_of_every_granule_are_mapped_and_forgotten() {
    hunt_all::<ArmStage1<12>>();
    hunt_all::<ArmStage1<14>>();
    hunt_all::<ArmStage1<16>>();
    hunt_all::<ArmStage2<12>>();
    hunt_all::<ArmStage2<14>>();
    hunt_all::<ArmStage2<16>>();
}

fn given<F: Granular>() {
    let machine = Machine::<F>::new(true);
    let domain = domain(&machine, Policy::Lazy);
    let page = Machine::<F>::PAGE;
    let range = IovaRange::new(1 << 9, 3).unwrap();
    let before = state(&domain);
    let unaligned = domain.put_at(range, PhysAddr(page / 2), Rights::Read);
    assert_eq!(unaligned, Err(MapError::Unaligned));
    let wraps = domain.put_at(range, PhysAddr(0u64.wrapping_sub(page)), Rights::Read);
    assert_eq!(wraps, Err(MapError::Overflow));
    assert_eq!(state(&domain), before);
    domain.put_at(range, PhysAddr(5 * page), Rights::Read).unwrap();
    let at = DmaAddr((range.first() << F::GRANULE) + page + 5);
    assert_eq!(domain.lookup(at), Some((PhysAddr(6 * page + 5), page - 5, Rights::Read)));
    domain.take_at(range).unwrap();
    assert_eq!(domain.lookup(at), None);
}

/// Windows have the largest leaves of the granule: 1 GiB, 32 MiB, 512 MiB.
fn window<F: Granular>(leaf: u64) {
    let machine = Machine::<F>::new(true);
    let pages = leaf >> F::GRANULE;
    let tree = Tree::new(&Space::below(4 * pages)).unwrap();
    let config = Config::new(1).trusted();
    let domain =
        Domain::new(&machine, config, tree, F::new(), &machine, [(&machine, TAG)]).unwrap();
    let at = domain.open_window(2 * pages).unwrap();
    let (phys, left, _) = domain.lookup(DmaAddr(at.0 + leaf + 77)).unwrap();
    assert_eq!((phys.0, left), (leaf + 77, leaf - 77));
    let map = |phys| domain.put_under(Policy::Bypass, PhysAddr(phys), 1, Rights::Read);
    assert_eq!(map(2 * leaf - 1), Ok(DmaAddr(at.0 + 2 * leaf - 1)));
    assert_eq!(map(2 * leaf), Err(MapError::OutsideWindow));
}

/// Addresses follow from the memory's, shared by as many as count; in pages of the granule.
fn identity<F: Granular>(write_only: bool) {
    let machine = Machine::<F>::new(true);
    let page = Machine::<F>::PAGE;
    let (bits, top) = (F::new().page_bits(), F::INDEX * (F::new().levels() - 1));
    let layout = Layout::new(bits, top, LeafSize::Page).unwrap();
    let layout = if write_only { layout } else { layout.without_write_only() };
    let tree = Tree::new(&Space::below(ADDRESSES)).unwrap();
    let config = Config::new(1).identity(layout);
    let domain =
        Domain::new(&machine, config, tree, F::new(), &machine, [(&machine, TAG)]).unwrap();
    let _ = domain.attach(0, DeviceId(3), true).unwrap();
    let map = |rights| domain.put(PhysAddr(7 * page + 9), page, rights).unwrap();
    let (one, two) = (map(Rights::Read), map(Rights::Read));
    assert_eq!((one, one.0 >> F::GRANULE), (two, layout.zone_pages() + 7));
    let write = map(Rights::Write);
    assert_eq!(write.0 >> F::GRANULE > ADDRESSES, write_only, "or it is the allocator's");
    for at in [one, write, two] {
        assert!(domain.lookup(at).is_some());
        domain.take(at, page).unwrap();
    }
    assert_eq!(domain.lookup(one), None);
    assert_eq!(domain.take(one, page), Err(UnmapError::NotMapped));
}

#[test]
pub(crate) fn given_addresses_windows_and_identity_count_in_the_granule() {
    given::<ArmStage1<12>>();
    given::<ArmStage1<14>>();
    given::<ArmStage2<16>>();
    window::<ArmStage1<12>>(1 << 30);
    window::<ArmStage2<14>>(32 << 20);
    window::<ArmStage1<16>>(512 << 20);
    identity::<ArmStage1<14>>(false);
    identity::<ArmStage2<14>>(true);
    identity::<ArmStage2<16>>(true);
}

/// A buffer anywhere in two pages of a guarded domain: a device finds its bytes, zeroes around
/// them, and no secret.
fn bounce<F: Granular>() {
    let machine = Machine::<F>::new(true);
    let page = Machine::<F>::PAGE;
    let pool =
        || Pool::with_granule(F::GRANULE, (MEMORY - POOL..MEMORY).map(|n| PhysAddr(n * page)));
    let units = || [(&machine, TAG)];
    let config = Config::new(1);
    if page > 4096 {
        let small = Pool::new([PhysAddr(page)]).unwrap();
        let refused = Guarded::new(&machine, config, space(), F::new(), &machine, units(), small);
        assert_eq!(refused.err(), Some(DomainError::PoolGranule));
        let within = Pool::with_granule(F::GRANULE, [PhysAddr(4096)]);
        assert_eq!(within.err(), Some(PoolError::Unaligned(PhysAddr(4096))));
    }
    let pool = pool().unwrap();
    let guarded =
        Guarded::new(&machine, config, space(), F::new(), &machine, units(), pool).unwrap();
    let _ = guarded.domain().attach(0, DeviceId(3), true).unwrap();
    let edges = [0, 1, 4096 % page, page / 2, page - 1];
    for (from, to) in edges.into_iter().flat_map(|f| edges.map(|t| (f, t))) {
        for pages in 0..4u64 {
            let (first, last) = (3 * page + from, (3 + pages) * page + to);
            if last < first {
                continue;
            }
            let bytes = last - first + 1;
            machine.seen().memory[first as usize..=last as usize].fill(0x11);
            let mapped = guarded.map(PhysAddr(first), bytes, Rights::ReadWrite).unwrap();
            for at in (0..=pages).map(|n| (mapped.addr().0 & !(page - 1)) + n * page) {
                let (phys, _, _) = guarded.domain().lookup(DmaAddr(at)).expect("mapped");
                let seen = machine.seen();
                let sees = &seen.memory[phys.0 as usize..(phys.0 + page) as usize];
                for (byte, value) in (at..).zip(sees) {
                    let is_ours = byte >= mapped.addr().0 && byte - mapped.addr().0 < bytes;
                    assert_eq!(*value, if is_ours { 0x11 } else { 0 }, "{first:#x}+{bytes:#x}");
                }
            }
            prefetch(guarded.domain(), &machine);
            guarded.unmap(mapped).map_err(|(error, _)| error).unwrap();
            assert!(machine.seen().tlb.is_empty() && machine.seen().atc.is_empty());
            machine.seen().memory[first as usize..=last as usize].fill(SECRET);
        }
    }
    assert_eq!(guarded.pool().free(), POOL as usize);
    // SAFETY: there is no device.
    let Ok(_) = (unsafe { guarded.end() }) else { panic!("the unit answers") };
}

#[test]
fn edges_of_every_granule_are_bounced() {
    bounce::<ArmStage1<12>>();
    bounce::<ArmStage2<14>>();
    bounce::<ArmStage1<16>>();
}

#[test]
pub(crate) fn a_unit_that_counts_in_other_pages_is_refused() {
    let machine = Machine::<ArmStage1<16>>::new(true);
    let world = World::default();
    let config = Config::new(1);
    let made = Domain::new(
        &world,
        config,
        Tight::from(space()),
        VtdSecondLevel::new(3, true, true).unwrap(),
        &world,
        [(&world, ID)],
    );
    assert!(made.is_ok());
    struct Two<'m>(PhantomData<&'m ()>);
    // SAFETY: nothing is recycled.
    unsafe impl<'m> Host for Two<'m> {
        type Addresses = Tree;
        type Format = ArmStage1<16>;
        type Tables = &'m Machine<ArmStage1<16>>;
        type Unit = &'m dyn Unit;
        type Pin = usize;
        fn pin(&self) -> usize {
            0
        }
        fn hold(&self, _: PhysAddr, _: u64) -> bool {
            true
        }
        fn release(&self, _: PhysAddr, _: u64) {}
    }
    let (right, wrong): (&dyn Unit, &dyn Unit) = (&&machine, &&world);
    let new = |units: [&'static str; 2]| {
        let units = units.map(|which| (if which == "right" { right } else { wrong }, TAG));
        Domain::new(Two(PhantomData), config, space(), ArmStage1::<16>::new(), &machine, units)
            .err()
    };
    assert_eq!(new(["right", "right"]), None);
    assert_eq!(new(["right", "wrong"]), Some(DomainError::Granule { unit: 1 }));
    assert_eq!(new(["wrong", "right"]), Some(DomainError::Granule { unit: 0 }));
}
