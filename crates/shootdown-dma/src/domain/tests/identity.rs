//! Addresses that follow from the memory's.

use super::*;

/// 39 bits of address: zones of 2^25 pages.
fn by_identity(world: &World, policy: Policy) -> Domain<&World> {
    let layout = Layout::new(27, 18, LeafSize::Page).unwrap();
    let format = VtdSecondLevel::new(3, true, true).unwrap();
    let tree = Tight::from(Tree::new(&layout.fallback()).unwrap());
    let config = Config::new(1).policy(policy).identity(layout);
    Domain::new(world, config, tree, format, world, [(world, ID)]).unwrap()
}

#[test]
pub(crate) fn identity_zones_beyond_the_table_are_refused() {
    let world = World::default();
    let new = |width, top| {
        let config = Config::new(1).identity(Layout::new(width, top, LeafSize::Page).unwrap());
        let tree = Tight::from(Tree::new(&Space::below(1 << 20)).unwrap());
        let format = VtdSecondLevel::new(3, true, true).unwrap();
        Domain::new(&world, config, tree, format, &world, [(&world, ID)]).err()
    };
    assert_eq!(new(27, 18), None, "39 bits");
    let before = world.tables.load(Ordering::Relaxed);
    assert_eq!(new(28, 18), Some(DomainError::IdentityTooWide));
    assert_eq!(world.tables.load(Ordering::Relaxed), before, "its table is freed");
}

#[test]
fn identity_addresses_are_shared_and_go_with_the_last_user() {
    let world = World::default();
    let domain = by_identity(&world, Policy::Deferred);
    let _ = domain.attach(0, DeviceId(1), false).unwrap();
    let page = buffer(0).0 >> PAGE_SHIFT;
    let one = domain.put(PhysAddr(buffer(0).0 + 0x10), 0x100, Rights::Read).unwrap();
    let two = domain.put(PhysAddr(buffer(0).0 + 0x800), 0x100, Rights::Read).unwrap();
    assert_eq!(two.0 - one.0, 0x7f0, "one page, one address");
    let other = domain.put(buffer(0), 4096, Rights::Write).unwrap();
    assert_ne!(other.0 >> PAGE_SHIFT, one.0 >> PAGE_SHIFT, "another right, another address");
    assert_eq!(world.refs(page), 3);
    domain.take(one, 0x100).unwrap();
    assert_eq!((world.refs(page), domain.deferred()), (2, (0, 0)), "others hold it");
    domain.take(two, 0x100).unwrap();
    assert_eq!(
        (world.refs(page), domain.deferred()),
        (2, (1, 1)),
        "the last one: not forgotten yet"
    );
    assert_eq!(domain.take(one, 0x100), Err(UnmapError::NotMapped));
    domain.flush().unwrap();
    assert_eq!((world.refs(page), domain.deferred()), (1, (0, 0)));
    domain.take(other, 4096).unwrap();
    assert_eq!((domain.counts().identities, domain.counts().fallbacks), (3, 0));
    assert_eq!(domain.addresses().free_pages(), domain.addresses().pages(), "nothing allocated");
    finish(domain);
    assert_eq!(world.refs(page), 0);
}

#[test]
fn a_page_that_is_used_too_often_gets_another_address() {
    let world = World::default();
    let domain = by_identity(&world, Policy::Deferred);
    let _ = domain.attach(0, DeviceId(1), false).unwrap();
    // Three pages, the middle one of which is full.
    let (first, middle) = (PhysAddr(0x4000_0000), PhysAddr(0x4000_1000));
    let users: Vec<DmaAddr> =
        (0..510).map(|_| domain.put(middle, 4096, Rights::Read).unwrap()).collect();
    let at = domain.put(first, 3 * 4096, Rights::Read).unwrap();
    assert!(!users.contains(&DmaAddr(at.0 + 4096)), "elsewhere");
    assert_eq!((domain.counts().identities, domain.counts().fallbacks), (510, 1));
    assert_eq!(world.refs(0x40000), 1, "held by the mapping alone");
    let range = IovaRange::new((users[0].0 >> PAGE_SHIFT) - 1, 1).unwrap();
    let told = world.commands();
    assert_eq!(told, [Command::Pages { domain: ID, range, leaf_only: true }], "a device saw it");
    assert_eq!(world.unit().completed, 1, "and has forgotten it");
    domain.take(users[0], 4096).unwrap();
    let again = domain.put(first, 3 * 4096, Rights::Read).unwrap();
    assert_eq!(again.0 + 4096, users[0].0);
    domain.take(again, 3 * 4096).unwrap();
    users[1..].iter().for_each(|user| domain.take(*user, 4096).unwrap());
    domain.take(at, 3 * 4096).unwrap();
    finish(domain);
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
}

#[test]
fn pages_released_together_are_invalidated_together() {
    let world = World::default();
    let domain = by_identity(&world, Policy::Strict);
    let _ = domain.attach(0, DeviceId(1), false).unwrap();
    let first = PhysAddr(0x4000_0000);
    let shared = domain.put(PhysAddr(0x4000_1000), 4096, Rights::Read).unwrap();
    let at = domain.put(first, 4 * 4096, Rights::Read).unwrap();
    assert_eq!(domain.take(at, 5 * 4096), Err(UnmapError::NotMapped), "one too many");
    domain.take(at, 4 * 4096).unwrap();
    let range = IovaRange::new(at.0 >> PAGE_SHIFT, 4).unwrap();
    assert_eq!(world.commands(), [Command::Pages { domain: ID, range, leaf_only: true }]);
    let mut walker = domain.table.walker(0).unwrap();
    let uses = |page| walker.translate(page).map(|t| t.uses);
    let left: Vec<_> = (range.first()..=range.last()).map(uses).collect();
    assert_eq!(left, [None, Some(1), None, None], "another uses it");
    drop(walker);
    domain.take(shared, 4096).unwrap();
    finish(domain);
}

/// Memory of whole superpages is mapped as such, at an address of its own, and shared as pages are.
pub(crate) fn superpages_are_identity_too() {
    const LARGE: u64 = 2 << 20;
    let world = World::default();
    let layout = Layout::new(36, 27, LeafSize::Large).unwrap();
    let format = VtdSecondLevel::new(4, true, true).unwrap();
    let tree = Tight::from(Tree::new(&layout.fallback()).unwrap());
    let config = Config::new(1).policy(Policy::Deferred).identity(layout);
    let domain = Domain::new(&world, config, tree, format, &world, [(&world, ID)]).unwrap();
    let _ = domain.attach(0, DeviceId(1), false).unwrap();
    let memory = PhysAddr(0x4000_0000);
    let rings = domain.put(memory, 2 * LARGE, Rights::ReadWrite).unwrap();
    let page = domain.put(memory, PAGE, Rights::ReadWrite).unwrap();
    assert_ne!(page, rings, "a page of the same memory is elsewhere");
    let looked_up = domain.lookup(DmaAddr(rings.0 + LARGE + 0x1234)).unwrap();
    let left = LARGE - 0x1234;
    assert_eq!(
        looked_up,
        (PhysAddr(memory.0 + LARGE + 0x1234), left, Rights::ReadWrite),
        "one leaf"
    );
    let second = domain.put(PhysAddr(memory.0 + LARGE), LARGE, Rights::ReadWrite).unwrap();
    assert_eq!(second.0, rings.0 + LARGE, "shared");
    let refused = |at: u64, bytes| {
        let error = domain.take(DmaAddr(at), bytes).unwrap_err();
        assert!(matches!(error, UnmapError::NotMapped | UnmapError::Partial), "{error}");
    };
    for bytes in [PAGE, LARGE - PAGE, LARGE + PAGE, 3 * LARGE] {
        refused(rings.0, bytes);
    }
    refused(rings.0 + PAGE, PAGE);
    refused(rings.0 + PAGE, LARGE);
    let refs = |page| world.refs((memory.0 >> PAGE_SHIFT) + page);
    assert_eq!([0, 1, 512, 1023].map(refs), [2, 1, 2, 2]);
    domain.take(rings, 2 * LARGE).unwrap();
    assert_eq!([0, 1, 512, 1023].map(refs), [2, 1, 2, 2], "all of it is forgotten together");
    domain.flush().unwrap();
    assert_eq!([0, 1, 512, 1023].map(refs), [1, 0, 1, 1]);
    let range = IovaRange::new(rings.0 >> PAGE_SHIFT, 1024).unwrap();
    assert_eq!(world.commands(), [Command::Pages { domain: ID, range, leaf_only: true }]);
    domain.take(second, LARGE).unwrap();
    domain.take(page, PAGE).unwrap();
    assert_eq!((domain.counts().identities, domain.counts().fallbacks), (3, 0));
    assert_eq!(domain.addresses().free_pages(), domain.addresses().pages(), "nothing allocated");
    finish(domain);
    assert!(world.refs.lock().unwrap().values().all(|refs| *refs == 0));
}

#[test]
fn superpages_have_zones_of_their_own() {
    superpages_are_identity_too();
}

/// A strict unmapping has not taken the page out of reach if others have mapped it too, and says
/// so.
pub(crate) fn who_is_not_the_last_is_told() {
    let world = World::default();
    let domain = by_identity(&world, Policy::Strict);
    let _ = domain.attach(0, DeviceId(1), false).unwrap();
    let map =
        |first, pages| domain.map(PhysAddr(first * PAGE), pages * PAGE, Rights::Read).unwrap();
    let reach = |mapping| domain.unmap(mapping).unwrap();
    let (one, two) = (map(0x40, 1), map(0x40, 1));
    let at = one.addr();
    assert_eq!(reach(one), Reach::Shared);
    assert!(domain.lookup(at).is_some(), "the device reaches it");
    assert_eq!(reach(two), Reach::Ended);
    assert_eq!(domain.lookup(at), None);
    // Of a range: whichever page it is.
    for shared in 0x40..0x44 {
        let (range, page) = (map(0x40, 4), map(shared, 1));
        assert_eq!(reach(range), Reach::Shared, "{shared:#x}");
        assert_eq!(reach(page), Reach::Ended);
    }
    assert_eq!(reach(map(0x40, 4)), Reach::Ended);
    finish(domain);
}

#[test]
fn whether_a_device_is_out_is_said() {
    who_is_not_the_last_is_told();
}
