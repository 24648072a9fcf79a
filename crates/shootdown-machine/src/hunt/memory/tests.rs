use super::*;

const RLX: Ordering = Ordering::Relaxed;

fn weak() -> (SharedMemory, Location, Location) {
    let mut m = SharedMemory::new(Memory::Weak);
    let x = m.locate(0);
    let y = m.locate(0);
    (m, x, y)
}

#[test]
fn relaxed_stores_become_visible_in_any_order() {
    let (mut m, x, y) = weak();
    m.store(0, x, 1, RLX, None);
    m.store(0, y, 1, RLX, None);
    assert_eq!(m.load(1, y, Ordering::Acquire, 0).0, 1);
    assert_eq!(m.choices(1, x), 2, "the earlier store may still be unseen");
}

#[test]
fn acquire_sees_what_release_published() {
    let (mut m, x, y) = weak();
    m.store(0, x, 1, RLX, None);
    m.store(0, y, 1, Ordering::Release, None);
    m.load(1, y, RLX, 0);
    assert_eq!(m.choices(1, x), 2, "a relaxed load learns nothing");
    m.fence(1, Ordering::Acquire);
    assert_eq!(m.choices(1, x), 1, "until a fence");
    m.load(2, y, Ordering::Acquire, 0);
    assert_eq!(m.choices(2, x), 1);
}

#[test]
fn store_buffering_needs_both_fences() {
    for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut m, x, y) = weak();
        m.store(0, x, 1, Ordering::Release, None);
        m.store(1, y, 1, Ordering::Release, None);
        if a {
            m.fence(0, Ordering::SeqCst);
        }
        if b {
            m.fence(1, Ordering::SeqCst);
        }
        let both_miss = m.choices(0, y) == 2 && m.choices(1, x) == 2;
        assert_eq!(both_miss, !(a && b), "fences {a} {b}");
    }
}

#[test]
fn a_page_comes_with_what_its_last_owner_wrote() {
    let (mut m, x, _) = weak();
    m.store(0, x, 1, RLX, None);
    m.release_page(0);
    assert_eq!(m.choices(1, x), 2, "who was given no page may still read what was there before");
    m.acquire_page(1);
    assert_eq!(m.choices(1, x), 1);
}

#[test]
fn a_release_sequence_goes_through_read_modify_writes() {
    let (mut m, x, y) = weak();
    m.store(0, x, 1, RLX, None);
    m.store(0, y, 1, Ordering::Release, None);
    m.rmw(1, y, Some(2), RLX);
    m.load(2, y, Ordering::Acquire, 0);
    assert_eq!(m.choices(2, x), 1);
}

#[test]
fn a_read_never_goes_back() {
    let (mut m, x, _) = weak();
    m.store(0, x, 1, RLX, None);
    m.store(0, x, 2, RLX, None);
    assert_eq!(m.load(1, x, RLX, 1).0, 1);
    assert_eq!(m.choices(1, x), 2);
    assert_eq!(m.choices(0, x), 1, "nobody misses his own stores");
}

#[test]
fn buffers_forward_and_drain_in_order() {
    let mut m = SharedMemory::new(Memory::Tso);
    let x = m.locate(0);
    let y = m.locate(0);
    assert!(m.store(0, x, 1, RLX, None));
    assert!(m.store(0, y, 2, RLX, None));
    assert_eq!((m.load(0, y, RLX, 0).0, m.load(1, y, RLX, 0).0), (2, 0));
    assert_eq!(m.drain_one(0).map(|b| b.location), Some(x));
    assert_eq!((m.load(1, x, RLX, 0).0, m.load(1, y, RLX, 0).0), (1, 0));
    assert_eq!(m.buffered(0), 1);
}

#[test]
fn walkers_see_what_was_published() {
    let (mut m, x, _) = weak();
    m.store(0, x, 1, RLX, None);
    let seen = |m: &SharedMemory| {
        let mut values = Vec::new();
        m.walker_reads(x, &mut |v, _| values.push(v));
        values
    };
    assert_eq!(seen(&m), [1, 0]);
    m.publish(0, x);
    assert_eq!(seen(&m), [1]);
}
