//! Whoever unmaps with a wrong address or length is told so, and nothing has happened.

use super::*;

/// All that an unmapping changes.
fn state(world: &World, domain: &Domain<&World>) -> impl PartialEq + core::fmt::Debug {
    let refs: Vec<_> = world.refs.lock().unwrap().iter().map(|(p, n)| (*p, *n)).collect();
    let mut walker = domain.table.walker(9).expect("a slot");
    let entries: Vec<_> = (0xf_ff00..0x10_0000).map(|page| walker.translate(page)).collect();
    let free = domain.addresses().free_pages();
    let told = world.unit().told.clone();
    (refs, entries, free, told, domain.deferred(), domain.counts().unmaps)
}

fn refused(world: &World, domain: &Domain<&World>, wrong: &[(DmaAddr, u64, UnmapError)]) {
    let floor = domain.config().policy;
    let allowed = [Policy::Strict, Policy::Deferred, Policy::Lazy];
    for policy in allowed.into_iter().filter(|policy| !policy.is_weaker_than(floor)) {
        for (at, bytes, error) in wrong {
            let before = state(world, domain);
            assert_eq!(domain.take_under(policy, *at, *bytes), Err(*error), "{at:?}+{bytes:#x}");
            assert_eq!(state(world, domain), before, "{at:?}+{bytes:#x} under {policy:?}");
        }
    }
}

fn page(at: DmaAddr, n: u64) -> DmaAddr {
    DmaAddr(at.0 + n * PAGE)
}

const PARTIAL: UnmapError = UnmapError::Partial;

/// Two mappings of four pages that abut, the lower first.
fn neighbours(domain: &Domain<&World>) -> [DmaAddr; 2] {
    let map = |phys| domain.put(PhysAddr(phys), 4 * PAGE, Rights::ReadWrite).unwrap();
    let mut all = [map(0x5000_0000), map(0x5100_0000)];
    all.sort_unstable();
    assert_eq!(page(all[0], 4), all[1], "they abut");
    all
}

#[test]
fn wrong_lengths_are_refused_and_change_nothing() {
    for policy in [Policy::Deferred, Policy::Strict] {
        let world = World::default();
        let domain = domain(&world, Config::new(1).policy(policy));
        let [low, high] = neighbours(&domain);
        let wrong = [
            (low, 0, UnmapError::Empty),
            (DmaAddr(u64::MAX - 0xfff), 0x1001, UnmapError::Overflow),
            (DmaAddr(u64::MAX), u64::MAX, UnmapError::Overflow),
            // Shorter, by a page and by more; and by a byte too many to reach the last page.
            (low, PAGE, PARTIAL),
            (low, 3 * PAGE, PARTIAL),
            (high, 2 * PAGE, PARTIAL),
            // The middle, the tail.
            (page(low, 1), PAGE, PARTIAL),
            (page(low, 1), 2 * PAGE, PARTIAL),
            (page(low, 1), 3 * PAGE, PARTIAL),
            (page(high, 3), PAGE, PARTIAL),
            // Longer: by all of the other, by a part of it, and beyond.
            (low, 8 * PAGE, UnmapError::Several),
            (low, 5 * PAGE, UnmapError::Several),
            (low, 9 * PAGE, UnmapError::Several),
            (high, 5 * PAGE, UnmapError::NotMapped),
            (DmaAddr(low.0 - PAGE), 5 * PAGE, UnmapError::NotMapped),
            (DmaAddr(0), PAGE, UnmapError::NotMapped),
            // As long as it is, but begun within its first page: ends in a page of the other.
            (DmaAddr(low.0 + 0x10), 4 * PAGE, UnmapError::Several),
        ];
        refused(&world, &domain, &wrong);
        domain.take(low, 4 * PAGE).unwrap();
        domain.take(high, 4 * PAGE).unwrap();
        let twice = [(low, 4 * PAGE, UnmapError::NotMapped), (high, PAGE, UnmapError::NotMapped)];
        refused(&world, &domain, &twice);
        finish(domain);
    }
}

#[test]
fn a_byte_too_few_is_as_good_within_the_last_page() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let at = domain.put(PhysAddr(0x5000_0800), 3 * PAGE, Rights::Read).unwrap();
    // From the middle of a page to the middle of the fourth.
    refused(&world, &domain, &[(at, 2 * PAGE, PARTIAL), (page(at, 1), 3 * PAGE, PARTIAL)]);
    domain.take(at, 3 * PAGE - 1).unwrap();
    finish(domain);
}

#[test]
fn nobody_unmaps_through_another_domain() {
    let [one, two] = [World::default(), World::default()];
    let [mine, theirs] = [&one, &two].map(|world| domain(world, Config::new(1)));
    let at = mine.put(buffer(0), 3 * PAGE, Rights::Read).unwrap();
    refused(&two, &theirs, &[(at, 3 * PAGE, UnmapError::NotMapped)]);
    // Even if something lies there: it is of another length.
    let there = theirs.put(buffer(0), 5 * PAGE, Rights::Read).unwrap();
    let hit =
        (at.0..page(at, 3).0).contains(&there.0) || (there.0..page(there, 5).0).contains(&at.0);
    assert!(hit, "both allocators are alike");
    assert!(theirs.take(at, 3 * PAGE).is_err());
    mine.take(at, 3 * PAGE).unwrap();
    theirs.take(there, 5 * PAGE).unwrap();
    finish(mine);
    finish(theirs);
}

#[test]
fn scattered_memory_is_one_mapping() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    let segments: Vec<Segment> =
        (0..40).map(|n| Segment { phys: buffer(n), bytes: 4096 }).collect();
    let at = domain.put_sg(&segments, Rights::Write).unwrap();
    let wrong = [
        (at, PAGE, PARTIAL),
        (at, 39 * PAGE, PARTIAL),
        (page(at, 1), 39 * PAGE, PARTIAL),
        (page(at, 20), PAGE, PARTIAL),
    ];
    refused(&world, &domain, &wrong);
    domain.take(at, 40 * PAGE).unwrap();
    finish(domain);
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
}

#[test]
fn what_is_linked_is_the_reservations() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Deferred));
    let mut reservation = domain.reserve(6).unwrap();
    let beside = domain.put(buffer(30), 2 * PAGE, Rights::Read).unwrap();
    let first = domain.link(&mut reservation, buffer(0), 1, Rights::Read).unwrap();
    let second = domain.link(&mut reservation, buffer(9), 3, Rights::Read).unwrap();
    let wrong = [
        (first, PAGE, PARTIAL),
        (first, 4 * PAGE, PARTIAL),
        (second, 3 * PAGE, PARTIAL),
        (page(second, 1), PAGE, PARTIAL),
        (beside, PAGE, PARTIAL),
    ];
    refused(&world, &domain, &wrong);
    // Nor does the neighbour mind.
    domain.take(beside, 2 * PAGE).unwrap();
    domain.unlink(&mut reservation).unwrap();
    refused(&world, &domain, &[(first, PAGE, UnmapError::NotMapped)]);
    domain.link(&mut reservation, buffer(5), 6, Rights::Read).unwrap();
    domain.release(reservation).unwrap();
    finish(domain);
}

#[test]
fn superpages_are_unmapped_as_they_were_mapped() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    let large = 0x200 * PAGE;
    let want = Want::pages(0x400).unwrap().aligned(0x200);
    let range = domain.addresses().tree.alloc(0, &want).unwrap();
    domain.addresses().tree.free(0, range).unwrap();
    let at = domain.put(PhysAddr(0x4000_0000), 2 * large, Rights::Read).unwrap();
    let mut walker = domain.table.walker(9).unwrap();
    let level = walker.translate(at.0 >> PAGE_SHIFT).unwrap().level;
    drop(walker);
    let wrong = [
        (at, PAGE, PARTIAL),
        (at, large, PARTIAL),
        (page(at, 0x200), large, PARTIAL),
        (page(at, 1), PAGE, PARTIAL),
    ];
    refused(&world, &domain, &wrong);
    domain.take(at, 2 * large).unwrap();
    assert_eq!(level, if at.0 % large == 0 { 1 } else { 0 });
    finish(domain);
}
