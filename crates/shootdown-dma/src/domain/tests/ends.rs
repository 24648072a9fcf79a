//! What nobody maps there again: addresses that go back to their owner, and domains that end.

use super::*;

/// Under any policy the caller may use its addresses for something else.
pub(crate) fn what_is_the_callers_is_waited_for() {
    for policy in [Policy::Strict, Policy::Deferred, Policy::Lazy] {
        let world = World::default();
        let domain = domain(&world, Config::new(1).policy(policy));
        let range = IovaRange::new(77, 2).unwrap();
        domain.put_at(range, buffer(0), Rights::Read).unwrap();
        domain.take_at(range).unwrap();
        let unit = world.unit();
        assert!(unit.completed == unit.told.len() as u64 && unit.completed > 0, "{policy}");
        drop(unit);
        assert!(
            domain.deferred() == (0, 0) && world.refs(buffer(0).0 >> PAGE_SHIFT) == 0,
            "{policy}"
        );
        finish(domain);
    }
}

/// What is still mapped is forgotten.
pub(crate) fn who_ends_leaves_nothing_cached() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    domain.put(buffer(0), 100, Rights::Write).unwrap();
    let before = world.commands().len();
    finish(domain);
    let after = world.commands().split_off(before);
    let all = |c: &Command| matches!(c, Command::Domain(ID) | Command::All);
    assert!(after.iter().any(all), "{after:?}");
    let unit = world.unit();
    assert_eq!(unit.completed, unit.told.len() as u64, "and that was waited for");
}

/// What was unmapped and not told of goes back.
pub(crate) fn who_ends_owes_nothing() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    let at = domain.put(buffer(0), 100, Rights::Write).unwrap();
    domain.take(at, 100).unwrap();
    let page = buffer(0).0 >> PAGE_SHIFT;
    assert_eq!(world.refs(page), 1, "it is queue");
    finish(domain);
    assert_eq!((world.refs(page), world.tables.load(Ordering::Relaxed)), (0, 0));
}

/// What is still mapped is released, as often as it was held; and the window, which was not, is
/// not.
pub(crate) fn who_ends_holds_nothing() {
    let world = World::default();
    let layout = Layout::new(36, 27, LeafSize::Large).unwrap();
    let format = VtdSecondLevel::new(4, true, true).unwrap();
    let tree = Tight::from(Tree::new(&layout.fallback()).unwrap());
    let config = Config::new(1).policy(Policy::Deferred).trusted().identity(layout);
    let domain = Domain::new(&world, config, tree, format, &world, [(&world, ID)]).unwrap();
    let _ = domain.attach(0, DeviceId(1), false).unwrap();
    domain.open_window(1 << 12).unwrap();
    // By its own address: once, by many, beside another, and as a superpage.
    domain.put(buffer(0), PAGE, Rights::Read).unwrap();
    for _ in 0..9 {
        domain.put(buffer(2), PAGE, Rights::Read).unwrap();
    }
    domain.put(buffer(2), PAGE, Rights::Write).unwrap();
    domain.put(PhysAddr(0x8000_0000), 3 * PAGE, Rights::Read).unwrap();
    domain.put(PhysAddr(0x8000_1000), 3 * PAGE, Rights::Read).unwrap();
    domain.put(PhysAddr(0xc000_0000), 512 * PAGE, Rights::Read).unwrap();
    // At addresses of the allocator: beyond the zone, scattered, linked; and at the caller's.
    let far = PhysAddr(layout.zone_pages() << PAGE_SHIFT);
    domain.put(far, 5 * PAGE, Rights::Read).unwrap();
    let pieces = [buffer(8), buffer(10)].map(|phys| Segment { phys, bytes: PAGE });
    domain.put_sg(&pieces, Rights::Read).unwrap();
    let mut linked = domain.reserve(4).unwrap();
    domain.link(&mut linked, buffer(12), 2, Rights::Read).unwrap();
    let at = IovaRange::new(7, 1).unwrap();
    domain.put_at(at, buffer(14), Rights::Read).unwrap();
    assert!(world.refs.lock().unwrap().values().any(|refs| *refs == 10));
    finish(domain);
    let refs = world.refs.lock().unwrap();
    let left: Vec<_> = refs.iter().filter(|(_, refs)| **refs != 0).collect();
    assert!(left.is_empty(), "{left:x?}");
}

/// Strictly, where nobody may wait: it is known when the device is out, and all comes back.
pub(crate) fn who_may_not_wait_asks_later() {
    for (policy, entries) in [(Policy::Strict, 8), (Policy::Deferred, 8), (Policy::Lazy, 1)] {
        let world = World::default();
        let limits = Limits { entries, flush_at: 4, ..Limits::DEFAULT };
        let domain = domain(&world, Config::new(1).policy(policy).limits(limits));
        let free = domain.addresses().free_pages();
        let mapped = [1, 3, 1].map(|n| domain.map(buffer(8 * n), n * PAGE, Rights::Write).unwrap());
        // Interrupts are off: `relax` says so.
        world.unit().dead = true;
        let all = mapped.map(|mapping| {
            let range = IovaRange::new(mapping.addr().0 >> PAGE_SHIFT, mapping.bytes() / PAGE);
            let told = world.commands().len();
            let pending = domain.lazy_unmap(mapping).unwrap();
            assert!(!domain.has_forgotten(&pending), "{policy}: nobody has told so");
            let covers = |command: &Command| match command {
                Command::Pages { range: told, .. } => told.contains(range.unwrap()),
                _ => true,
            };
            assert!(world.commands()[told..].iter().any(covers), "the units are told");
            pending
        });
        let [first, second, third] = all;
        let (error, second) = domain.finish(second).unwrap_err();
        assert_eq!(error, QueueError::GaveUp);
        world.complete();
        assert!(domain.has_forgotten(&first) && domain.has_forgotten(&third), "{policy}");
        world.unit().dead = false;
        assert_eq!(domain.finish(second), Ok(Reach::Ended));
        domain.poll(1 << 40).unwrap();
        domain.flush().unwrap();
        assert_eq!(
            (domain.deferred(), domain.addresses().free_pages()),
            ((0, 0), free),
            "{policy}"
        );
        assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0), "{policy}");
        finish(domain);
    }
}

/// Off by a page, so that no larger leaf fits: 64 tables.
fn off_by_a_page() -> (IovaRange, PhysAddr) {
    (IovaRange::new(1 << 21, 1 << 15).unwrap(), PhysAddr(0x2_0000_1000))
}

/// Whoever chooses addresses has tables up to a bound, however far apart they are; those that are
/// empty make room.
pub(crate) fn tables_are_bounded() {
    const MOST: usize = 40;
    let world = World::default();
    let domain = domain(&world, Config::new(1).tables(MOST));
    let tables = || world.tables.load(Ordering::Relaxed);
    let (range, phys) = off_by_a_page();
    let full = Err(MapError::Table(MapErrorKind::NoMemory));
    assert_eq!(domain.put_at(range, phys, Rights::Read), full);
    assert!(tables() <= MOST, "{}", tables());
    for page in [range.first(), range.first() + 5000, range.last()] {
        assert_eq!(domain.lookup(DmaAddr(page << PAGE_SHIFT)), None);
    }
    // In large pages it has room.
    domain.put_at(range, PhysAddr(0x2_0000_0000), Rights::Read).unwrap();
    domain.take_at(range).unwrap();
    for n in 0..200 {
        let far = IovaRange::new((1 << 22) + n * 0x200, 1).unwrap();
        domain.put_at(far, buffer(n), Rights::Read).unwrap();
        assert!(tables() <= MOST, "{}", tables());
        domain.take_at(far).unwrap();
    }
    finish(domain);
}

/// A cell is left between steps.
pub(crate) fn nobody_is_in_a_cell_for_long() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let (range, phys) = off_by_a_page();
    domain.put_at(range, phys, Rights::Read).unwrap();
    let most = world.at_once[1].load(Ordering::Relaxed);
    assert!(most <= 10, "{most} tables in one step");
    assert_eq!(
        domain.lookup(DmaAddr(range.last() << PAGE_SHIFT)).unwrap().0.0,
        phys.0 + ((1 << 15) - 1) * PAGE
    );
    domain.take_at(range).unwrap();
    finish(domain);
}

/// What is mapped or unmapped piece by piece: each is small, says how far it came, and what can't
/// be done to its end is refused by the first.
pub(crate) fn pieces_say_how_far_they_came() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Lazy));
    // 256 tables.
    let range = IovaRange::new(1 << 21, 1 << 17).unwrap();
    let phys = PhysAddr(0x2_0000_1000);
    let led = |page: u64| domain.lookup(DmaAddr(page << PAGE_SHIFT)).map(|(at, ..)| at.0);
    let behind = |done: u64| IovaRange::new(range.first() + done, range.pages() - done);
    let (mut done, mut calls) = (0, 0);
    while let Some(rest) = behind(done) {
        let first = PhysAddr(phys.0 + done * PAGE);
        // SAFETY: tests map one after the other.
        let pages = unsafe { domain.map_at_piece(rest, first, Rights::Read) }.unwrap();
        let last = rest.first() + pages - 1;
        assert_eq!(led(last), Some(phys.0 + (last - range.first()) * PAGE));
        assert_eq!(led(last + 1), None, "and no further");
        (done, calls) = (done + pages, calls + 1);
    }
    assert_eq!(calls, 32);
    let most = world.at_once[1].load(Ordering::Relaxed);
    assert!(most <= 10, "{most} tables in one call");

    // SAFETY: tests unmap one after the other.
    let unmap = |at: IovaRange| unsafe { domain.unmap_at_piece(at) };
    let first = unmap(range).unwrap();
    assert_eq!(first, 64 << 9);
    assert_eq!((led(range.first()), led(range.first() + first).is_some()), (None, true));
    let told = world.commands().len();
    assert_ne!(told, 0, "it was waited for");
    assert_eq!(domain.deferred().1, 0);
    assert_eq!(unmap(range), Err(UnmapError::NotMapped), "the first of it is not mapped");
    // All or nothing: a hole near the end.
    let hole = IovaRange::new(range.last() - 5, 1).unwrap();
    domain.take_at(hole).unwrap();
    let rest = behind(first).unwrap();
    assert_eq!(domain.take_at(rest), Err(UnmapError::NotMapped));
    assert!(led(rest.first()).is_some(), "nothing has changed");
    domain.put_at(hole, PhysAddr(phys.0), Rights::Read).unwrap();
    domain.take_at(rest).unwrap();
    assert!(
        [rest.first(), rest.first() + (64 << 9), rest.last()]
            .iter()
            .all(|page| led(*page).is_none())
    );

    let table = IovaRange::new((1 << 27) - (1 << 14), 1 << 15).unwrap();
    // SAFETY: as above.
    let beyond = unsafe { domain.map_at_piece(table, phys, Rights::Read) };
    assert_eq!(beyond, Err(MapError::Table(MapErrorKind::OutOfRange)));
    assert_eq!(led(table.first()), None);
    finish(domain);
}

/// A large leaf lies across the end of a piece.
pub(crate) fn a_piece_takes_whole_leaves() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    // A page, pieces of 2 MiB, two of 1 GiB.
    let range = IovaRange::new((1 << 18) - 513, 513 + (2 << 18)).unwrap();
    let phys = PhysAddr((1 << 32) + (range.first() << PAGE_SHIFT));
    domain.put_at(range, phys, Rights::Read).unwrap();
    let (_, leaf, _) = domain.lookup(DmaAddr(1 << 30)).unwrap();
    assert_eq!(leaf, 1 << 30, "a large leaf");
    let mut at = range.first();
    let mut pieces = Vec::new();
    while let Some(rest) = IovaRange::new(at, range.last() + 1 - at) {
        // SAFETY: tests unmap one after the other.
        let pages = unsafe { domain.unmap_at_piece(rest) }.unwrap();
        pieces.push(pages);
        at += pages;
    }
    assert_eq!(pieces, [513, 1 << 18, 1 << 18]);
    // And all at once.
    domain.put_at(range, phys, Rights::Read).unwrap();
    domain.take_at(range).unwrap();
    finish(domain);
}

mod as_it_is {
    macro_rules! scenes {
        ($($scene:ident)*) => {
            $(#[test] fn $scene() { super::$scene(); })*
        };
    }
    scenes! {
        what_is_the_callers_is_waited_for who_ends_leaves_nothing_cached who_ends_owes_nothing
        who_may_not_wait_asks_later who_ends_holds_nothing tables_are_bounded nobody_is_in_a_cell_for_long
        pieces_say_how_far_they_came a_piece_takes_whole_leaves
    }
}
