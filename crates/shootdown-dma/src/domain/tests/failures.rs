//! What is left when something fails halfway: the unit does not answer, cells are taken, addresses
//! mean something else.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::domain::window::OPENING;

/// A trusted domain under a unit that remembers what was not there.
fn absent(world: &World) -> Domain<&World> {
    domain(world, Config::new(1).policy(Policy::Deferred).trusted().caching_absence())
}

/// A window that nobody could be told of is unmapped; its addresses are free when that is complete,
/// and no page was held.
pub(crate) fn a_window_that_fails_is_taken_back() {
    let world = World::default();
    let domain = absent(&world);
    let free = || domain.addresses().free_pages();
    let before = free();
    world.unit().dead = true;
    let error = domain.open_window(1 << 10).unwrap_err();
    assert_eq!(error, WindowError::Map(MapError::NotComplete(QueueError::GaveUp)));
    assert!(free() < before, "a device may have seen it");
    assert_eq!(domain.flush(), Err(QueueError::GaveUp));
    world.unit().dead = false;
    domain.flush().unwrap();
    assert_eq!((free(), domain.deferred()), (before, (0, 0)));
    assert!(world.refs.lock().unwrap().is_empty(), "no page of it was anybody's");
    let at = domain.open_window(1 << 10).unwrap();
    assert_eq!(domain.lookup(DmaAddr(at.0 + 0x5123)).unwrap().0, PhysAddr(0x5123));
    finish(domain);
}

/// A window is all of memory: not for devices that are not trusted, by whichever way.
pub(crate) fn a_window_is_for_who_is_trusted() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    assert_eq!(domain.open_window(16), Err(WindowError::NotTrusted));
    let bypassed = domain.put_under(Policy::Bypass, PhysAddr(0x1000), 1, Rights::Read);
    assert_eq!(bypassed, Err(MapError::Refused));
    finish(domain);
}

/// Two open it at the same time.
pub(crate) fn a_window_is_opened_once() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).trusted());
    domain.window.store(OPENING, Ordering::Relaxed);
    assert_eq!(domain.open_window(16), Err(WindowError::Exists));
    let early = domain.put_under(Policy::Bypass, PhysAddr(0x1000), 1, Rights::Read);
    assert_eq!(early, Err(MapError::Refused), "not there yet");
    domain.window.store(0, Ordering::Relaxed);
    assert!(
        domain.open_window(0).is_err() && domain.open_window(16).is_ok(),
        "a failure leaves none"
    );
    finish(domain);
}

/// Who maps in vain, again and again, has no more pages held than others; and all come back.
pub(crate) fn what_failed_is_bounded_too() {
    let world = World::default();
    let limits = Limits { entries: 8, flush_at: 4, held_pages: 1200, window_ns: 1 << 40 };
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred).limits(limits));
    let before = domain.addresses().free_pages();
    let mut failed = 0;
    for _ in 0..20 {
        world.left.store(2, Ordering::Relaxed);
        match domain.put(PhysAddr(0x5000_1000), 513 * PAGE, Rights::Write) {
            Ok(at) => domain.take(at, 513 * PAGE).unwrap(),
            Err(error) => {
                assert_eq!(error, MapError::Table(MapErrorKind::NoMemory));
                failed += 1;
            }
        }
        let (entries, pages) = domain.deferred();
        assert!(entries <= limits.entries && pages <= limits.held_pages, "{entries} {pages}");
    }
    assert!(failed > 4, "{failed}");
    world.left.store(0, Ordering::Relaxed);
    domain.flush().unwrap();
    assert_eq!((domain.deferred(), domain.addresses().free_pages()), ((0, 0), before));
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
    finish(domain);
}

/// Does `f` while somebody is in all cells, who leaves when `f` has waited a turn for them, or is
/// done.
fn with_all_cells_taken<R>(domain: &Domain<&World>, f: impl FnOnce() -> R) -> R {
    fn enter(domain: &Domain<&World>, cell: usize, then: &dyn Fn()) {
        if cell == domain.cells.cpus() {
            return then();
        }
        let entered = domain.cells.enter(cell, |_| enter(domain, cell + 1, then));
        assert!(entered.is_some(), "nobody else is there");
    }
    let (all_taken, done) = (Barrier::new(2), AtomicBool::new(false));
    let turns = domain.host().turns.load(Ordering::Relaxed);
    let waits = || domain.host().turns.load(Ordering::Relaxed) != turns;
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            enter(domain, 0, &|| {
                all_taken.wait();
                while !waits() && !done.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            });
        });
        all_taken.wait();
        let outcome = f();
        done.store(true, Ordering::Relaxed);
        outcome
    });
    assert!(waits(), "it found all cells taken");
    outcome
}

/// Who unmaps waits for a cell, and need not try again.
pub(crate) fn who_unmaps_waits_for_a_cell() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let at = domain.put(buffer(0), PAGE, Rights::Read).unwrap();
    let outcome = with_all_cells_taken(&domain, || domain.take(at, PAGE));
    outcome.unwrap();
    assert_eq!(domain.lookup(at), None);
    let mapped = with_all_cells_taken(&domain, || domain.put(buffer(0), PAGE, Rights::Read));
    domain.take(mapped.unwrap(), PAGE).unwrap();
    finish(domain);
}

/// Who must not wait for the hardware waits for a cell all the same, where nobody is preempted in
/// one.
pub(crate) fn nobody_is_preempted_in_a_cell() {
    fn barrier(_: usize) -> bool {
        crate::sync::fence(Ordering::SeqCst);
        true
    }
    let world = World::default();
    // SAFETY: one thread enters cell 0 as its own, and threads do not move it.
    let pinned = unsafe { Pinned::new(barrier) };
    let domain = domain(&world, Config::new(1).pinned(pinned));
    let at = domain.put(buffer(0), PAGE, Rights::Read).unwrap();
    world.hurried.store(true, Ordering::Relaxed);
    let outcome = with_all_cells_taken(&domain, || domain.take(at, PAGE));
    outcome.unwrap();
    world.hurried.store(false, Ordering::Relaxed);
    finish(domain);
}

/// Where somebody may be preempted in a cell, who must not wait hears that, and nothing has
/// changed.
#[test]
fn who_must_not_wait_is_told_so() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let at = domain.put(buffer(0), PAGE, Rights::Read).unwrap();
    world.hurried.store(true, Ordering::Relaxed);
    let outcome = with_all_cells_taken(&domain, || domain.take(at, PAGE));
    assert_eq!(outcome, Err(UnmapError::Busy));
    assert!(domain.lookup(at).is_some());
    domain.take(at, PAGE).unwrap();
    world.hurried.store(false, Ordering::Relaxed);
    finish(domain);
}

/// What was mapped for a moment is unmapped, though all cells are taken just now and nobody may
/// wait.
pub(crate) fn what_is_taken_back_waits_for_a_cell() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let at = domain.put(buffer(0), PAGE, Rights::Read).unwrap();
    let range = IovaRange::new(at.0 >> PAGE_SHIFT, 1).unwrap();
    world.hurried.store(true, Ordering::Relaxed);
    with_all_cells_taken(&domain, || domain.unmap_ours(range, Some(range))).unwrap();
    assert_eq!(domain.lookup(at), None);
    world.hurried.store(false, Ordering::Relaxed);
    finish(domain);
}

/// Whatever contexts of all CPUs are in cells, below the topmost of each, one of those finds
/// another.
pub(crate) fn contexts_find_a_cell() {
    fn nest(domain: &Domain<&World>, inside: &[usize], cpus: usize) {
        match inside.split_first() {
            Some((cpu, rest)) => {
                let entered = domain.cells.enter_near(*cpu, |_, _| nest(domain, rest, cpus));
                assert!(entered.is_ok(), "CPU {cpu} finds no cell below {rest:?}");
            }
            None => {
                let found = (0..cpus).any(|cpu| domain.cells.enter_near(cpu, |_, _| ()).is_ok());
                assert!(found, "nobody finds a cell, and all wait for ever");
            }
        }
    }
    for (cpus, contexts) in [(1, 1), (1, 2), (2, 2), (1, 3), (2, 3), (3, 3), (4, 4)] {
        let world = World::default();
        let domain = domain(&world, Config::new(cpus).contexts(contexts));
        let inside: Vec<usize> = (1..contexts).flat_map(|_| 0..cpus).collect();
        nest(&domain, &inside, cpus);
        finish(domain);
    }
}

/// What was reported as not complete is complete when a flush says so.
pub(crate) fn a_flush_waits_for_what_was_stranded() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let mapped = [0, 1].map(|n| domain.put(buffer(n), PAGE, Rights::Read).unwrap());
    world.unit().dead = true;
    for at in mapped {
        assert_eq!(domain.take(at, PAGE), Err(UnmapError::NotComplete(QueueError::GaveUp)));
    }
    assert_eq!(domain.deferred().0, 2);
    assert_eq!(domain.flush(), Err(QueueError::GaveUp), "nothing is complete");
    world.unit().dead = false;
    domain.flush().unwrap();
    assert_eq!(domain.deferred().0, 0);
    finish(domain);
}

/// The memory of a mapping that failed, strictly, is not the caller's before a device has forgotten
/// it.
#[test]
fn a_mapping_that_fails_says_if_a_device_may_still_reach_it() {
    let world = World::default();
    let domain = absent(&world);
    world.unit().dead = true;
    let error = domain.put(buffer(0), PAGE, Rights::Read).unwrap_err();
    assert_eq!(error, MapError::NotComplete(QueueError::GaveUp));
    assert_eq!(world.refs(buffer(0).0 >> PAGE_SHIFT), 1, "it is held");
    world.unit().dead = false;
    domain.flush().unwrap();
    assert_eq!((world.refs(buffer(0).0 >> PAGE_SHIFT), domain.deferred()), (0, (0, 0)));
    finish(domain);
}

fn identity<'w>(world: &'w World, limit: u64, layout: Layout<'static>) -> Domain<&'w World> {
    let format = VtdSecondLevel::new(4, true, true).unwrap();
    // Not the zone alone: all that there is.
    let tree = Tight::from(Tree::new(&Space::below(1 << 36)).unwrap());
    let config = Config::new(1).limit(limit).identity(layout);
    let domain = Domain::new(world, config, tree, format, world, [(world, ID)]).unwrap();
    let _ = domain.attach(0, DeviceId(1), false).unwrap();
    domain
}

/// Devices that address 32 bits have no identity addresses.
pub(crate) fn identity_keeps_the_limit() {
    let world = World::default();
    let layout = Layout::new(36, 27, LeafSize::Page).unwrap();
    let domain = identity(&world, 0xf_ffff, layout);
    let at = domain.put(buffer(0), PAGE, Rights::Read).unwrap();
    assert!(at.0 < 1 << 32, "{at:?}");
    domain.take(at, PAGE).unwrap();
    finish(domain);
}

/// What has no identity address gets none that would mean another page.
pub(crate) fn the_allocator_keeps_to_its_zone() {
    let world = World::default();
    let layout = Layout::new(36, 27, LeafSize::Page).unwrap();
    let domain = identity(&world, u64::MAX, layout);
    let memory = PhysAddr(layout.zone_pages() << PAGE_SHIFT);
    let at = domain.put(memory, PAGE, Rights::Read).unwrap();
    assert!(at.0 >> PAGE_SHIFT < layout.zone_pages(), "{at:?}");
    assert_eq!(domain.take(at, PAGE), Ok(()));
    finish(domain);
}

/// Nor does the caller map where identity addresses are, or might be.
pub(crate) fn zones_are_not_the_callers() {
    let world = World::default();
    let layout = Layout::new(36, 27, LeafSize::Large).unwrap();
    let domain = identity(&world, u64::MAX, layout);
    let zone = layout.zone_pages();
    for (first, pages) in [(zone + 5, 1), (5 * zone + 7, 1), (zone - 1, 2), (4 * zone, 1)] {
        let range = IovaRange::new(first, pages).unwrap();
        let mapped = domain.put_at(range, buffer(0), Rights::Read);
        assert_eq!(mapped, Err(MapError::Refused), "{range:?}");
    }
    let last = IovaRange::new(zone - 1, 1).unwrap();
    domain.put_at(last, buffer(0), Rights::Read).unwrap();
    domain.take_at(last).unwrap();
    finish(domain);
}

/// An address that the allocator hands out though something is mapped there stays with whose it is.
pub(crate) fn an_address_in_use_is_not_handed_out_again() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let world = World::default();
        let domain = domain(&world, Config::new(1).policy(policy));
        let next = || {
            let free = domain.reserve(2).unwrap();
            let at = free.addr();
            domain.release(free).unwrap();
            IovaRange::new(at.0 >> PAGE_SHIFT, 2).unwrap()
        };
        let taken = MapError::Table(MapErrorKind::AlreadyMapped);
        let piece = |n| Segment { phys: buffer(n), bytes: PAGE };
        let mut theirs = Vec::new();
        for way in 0..3 {
            let range = next();
            domain.put_at(range, buffer(9 + way), Rights::Read).unwrap();
            theirs.push((range, buffer(9 + way)));
            let (pieces, map) =
                ([piece(1), piece(2)], || domain.put(buffer(1), 2 * PAGE, Rights::Read));
            match way {
                0 => assert_eq!(map(), Err(taken)),
                1 => assert_eq!(domain.put_sg(&pieces, Rights::Read), Err(taken)),
                _ => {
                    let mut reserved = domain.reserve(2).unwrap();
                    let linked = domain.link(&mut reserved, buffer(1), 2, Rights::Read);
                    assert_eq!(linked, Err(taken));
                    domain.release(reserved).unwrap();
                }
            }
            // The next gets another one.
            let at = map().unwrap();
            domain.take(at, 2 * PAGE).unwrap();
            domain.flush().unwrap();
        }
        for (range, phys) in theirs {
            let at = DmaAddr(range.first() << PAGE_SHIFT);
            assert_eq!(domain.lookup(at).map(|found| found.0), Some(phys));
            domain.take_at(range).unwrap();
        }
        assert_eq!(domain.counts().lost, 3);
        domain.flush().unwrap();
        assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
        finish(domain);
    }
}

/// I2: what was mapped elsewhere is not unmapped here, and comes back.
pub(crate) fn what_is_mapped_elsewhere_is_not_unmapped_here() {
    let worlds = [World::default(), World::default()];
    let [ours, theirs] = [0, 1].map(|n| domain(&worlds[n], Config::new(1)));
    let mapped = ours.map(buffer(0), PAGE, Rights::Read).unwrap();
    let same = theirs.map(buffer(1), PAGE, Rights::Read).unwrap();
    assert_eq!(mapped.addr(), same.addr());
    let (error, back) = theirs.unmap(mapped).unwrap_err();
    assert_eq!(error, UnmapError::NotMapped);
    assert!(theirs.lookup(same.addr()).is_some(), "nothing has changed");
    ours.unmap(back.expect("it is still mapped")).unwrap();
    theirs.unmap(same).unwrap();
    finish(ours);
    finish(theirs);
}

/// A domain's policy is a floor: under a weaker one nothing is unmapped, and who asked has the
/// mapping still.
pub(crate) fn a_weaker_policy_is_refused() {
    let all = [Policy::Strict, Policy::Deferred, Policy::Lazy, Policy::Bypass];
    for (n, floor) in all.into_iter().enumerate().take(3) {
        for weaker in &all[n + 1..] {
            let world = World::default();
            let domain = domain(&world, Config::new(1).policy(floor).trusted());
            let mapping = domain.map(buffer(0), PAGE, Rights::Write).unwrap();
            let at = mapping.addr();
            let outcome = domain.unmap_under(*weaker, mapping);
            let Err((UnmapError::Refused, Some(mapping))) = outcome else {
                panic!("{weaker} in a {floor} domain: {outcome:?}");
            };
            assert_eq!(domain.take_under(*weaker, at, PAGE), Err(UnmapError::Refused));
            assert!(domain.lookup(at).is_some() && world.commands().is_empty());
            domain.unmap_under(Policy::Strict, mapping).unwrap();
            // In the window nothing is unmapped, and nothing was promised.
            domain.open_window(16).unwrap();
            let ring = domain.map_under(Policy::Bypass, PhysAddr(0x1000), 1, Rights::Read).unwrap();
            domain.unmap_under(*weaker, ring).unwrap();
            finish(domain);
        }
    }
}

mod as_it_is {
    macro_rules! scenes {
        ($($scene:ident)*) => {
            $(#[test] fn $scene() { super::$scene(); })*
        };
    }
    scenes! {
        a_window_that_fails_is_taken_back a_window_is_opened_once what_is_taken_back_waits_for_a_cell
        who_unmaps_waits_for_a_cell nobody_is_preempted_in_a_cell contexts_find_a_cell
        a_flush_waits_for_what_was_stranded identity_keeps_the_limit the_allocator_keeps_to_its_zone
        a_window_is_for_who_is_trusted zones_are_not_the_callers what_failed_is_bounded_too
        a_weaker_policy_is_refused an_address_in_use_is_not_handed_out_again what_is_mapped_elsewhere_is_not_unmapped_here
    }
}
