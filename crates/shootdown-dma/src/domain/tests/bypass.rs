//! Scattered memory in a domain whose devices reach all of it.

use super::*;

/// What lies in a row in memory is where it is in the window; what does not, gets addresses in
/// which it does.
#[test]
fn scattered_memory_is_in_the_window_if_it_is_in_a_row() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Bypass).trusted());
    let window = domain.open_window(1 << 12).unwrap();
    let tables = world.tables.load(Ordering::Relaxed);
    let piece = |page: u64, bytes| Segment { phys: PhysAddr(page * PAGE), bytes };
    let row = [piece(5, PAGE), piece(6, 2 * PAGE), piece(8, 100)];
    let at = domain.put_sg(&row, Rights::Read).unwrap();
    assert_eq!(at, DmaAddr(window.0 + 5 * PAGE));
    assert_eq!(world.tables.load(Ordering::Relaxed), tables, "nothing was mapped");
    domain.take(at, 3 * PAGE + 100).unwrap();
    assert_eq!(domain.lookup(at).unwrap().0, PhysAddr(5 * PAGE), "and nothing unmapped");

    let apart = [piece(5, PAGE), piece(7, PAGE)];
    let at = domain.put_sg(&apart, Rights::Read).unwrap();
    assert!(at.0 < window.0 || at.0 >= window.0 + (PAGE << 12), "{at:?}");
    for (n, page) in [(0, 5), (1, 7)] {
        let (phys, _, rights) = domain.lookup(DmaAddr(at.0 + n * PAGE)).unwrap();
        assert_eq!((phys, rights), (PhysAddr(page * PAGE), Rights::Read));
    }
    domain.take(at, 2 * PAGE).unwrap();
    assert_eq!(domain.lookup(at), None);
    let beyond = domain.put_sg(&[piece(1 << 12, PAGE)], Rights::Read);
    assert_eq!(beyond, Err(MapError::OutsideWindow));
    finish(domain);
}
