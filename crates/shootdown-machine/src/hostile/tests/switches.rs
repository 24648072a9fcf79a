//! One test per erratum, power and breakage.

use std::collections::HashSet;

use super::*;

fn world(change: impl FnOnce(&mut Rules)) -> World {
    World::new(|shape| {
        let mut rules = Rules::x86_64(shape);
        change(&mut rules);
        rules
    })
}

#[test]
fn page_spares_globals_leaves_them_to_full_invalidations() {
    let mut w = world(|r| r.errata.page_spares_globals = true);
    w.write(LEAVES, 1, Descriptor::user_ro(NEW).with(Descriptor::GLOBAL));
    w.write(LEAVES, 1, Descriptor::ABSENT);
    w.local(0, Invalidation::invlpg(1, ONE));
    assert_eq!(w.frames(0, 1), [NEW]);
    w.local(0, Invalidation::everything());
    assert_eq!(w.frames(0, 1), []);
}

#[test]
fn survives_once_needs_a_second_invalidation() {
    let mut w = world(|r| r.errata.survives_once = true);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.local(0, Invalidation::invlpg(0, ONE));
    assert_eq!(w.frames(0, 0), [OLD]);
    w.local(0, Invalidation::invlpg(0, ONE));
    assert_eq!(w.frames(0, 0), []);
}

#[test]
fn early_sync_needs_the_invalidation_and_the_sync_again() {
    let mut w = World::new(|shape| {
        let mut rules = Rules::aarch64(shape, Aarch64 { ets2: true, ..Aarch64::default() });
        rules.errata.early_sync = true;
        rules
    });
    let page = Invalidation::tlbi_va(Pages::one(0), ONE);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.broadcast(0, page);
    w.sync(0);
    w.sync(0);
    assert_eq!(w.frames(1, 0), [OLD]);
    w.broadcast(0, page);
    w.sync(0);
    assert_eq!(w.frames(1, 0), []);
}

#[test]
fn late_broadcast_completes_at_the_sync() {
    let mut w = world(|_| {});
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.broadcast(0, Invalidation::tag(ONE));
    assert_eq!((w.frames(0, 0), w.frames(1, 0)), (vec![OLD], vec![OLD]));
    w.sync(0);
    assert_eq!((w.frames(0, 0), w.frames(1, 0)), (vec![], vec![]));
}

#[test]
fn untagged_walk_caches_are_missed_by_a_tag() {
    let mut w = world(|r| r.walk_cache = WalkCache::Untagged);
    w.write(ROOT, 0, Descriptor::ABSENT);
    w.local(0, Invalidation::tag(ONE));
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES) & 1, 1);
    w.load(0, TableId(5), TWO, false);
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES) & 1, 0, "another root");
    w.load(0, ROOT, TWO, false);
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES) & 1, 1, "the same root, whatever the tag");
    w.local(0, Invalidation::everything());
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES) & 1, 0);
}

#[test]
fn without_walk_caches_an_unlinked_table_is_out_of_reach() {
    let mut w = world(|r| r.walk_cache = WalkCache::None);
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES), 0b11);
    w.write(ROOT, 0, Descriptor::ABSENT);
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES), 0);
    assert_eq!(w.frames(0, 0), [OLD], "leaves are cached all the same");
}

#[test]
fn sharing_cpus_meet_each_others_entries() {
    for (sharing, frames) in [(1, vec![]), (2, vec![NEW])] {
        let mut w = world(|r| r.sharing = sharing);
        let (root, leaves) = (TableId(5), TableId(6));
        w.write(root, 0, Descriptor::table(leaves));
        w.write(leaves, 1, Descriptor::user_rw(NEW));
        // CPU 1 gives the tag to another space; CPU 0 still runs the first one under it.
        w.load(1, root, ONE, true);
        assert_eq!(w.frames(0, 1), frames);
    }
}

#[test]
fn filling_on_access_keeps_what_was_used_and_nothing_else() {
    let mut w = world(|r| r.fills = Fills::OnAccess);
    w.write(LEAVES, 1, Descriptor::user_rw(NEW));
    let used = *w.outcomes(0, 1, Access::USER_READ)[0].translation().unwrap();
    w.hw.used(&w.mem, 0, &used).unwrap();
    for index in 0..2 {
        w.write(LEAVES, index, Descriptor::ABSENT);
    }
    assert_eq!((w.frames(0, 0), w.frames(0, 1), w.frames(1, 1)), (vec![], vec![NEW], vec![]));
    w.write(ROOT, 0, Descriptor::ABSENT);
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES), 0b01, "the step was kept with it");
}

#[test]
fn a_forgetful_machine_keeps_nothing() {
    let mut w = world(|r| r.broken.forgetful = true);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    assert_eq!(w.frames(0, 0), []);
    assert_eq!(w.hw.translations(0).count(), 0);
}

#[test]
fn a_machine_that_flushes_all_forgets_other_pages_and_other_cpus() {
    let mut w = world(|r| r.broken.flushes_all = true);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.local(0, Invalidation::invlpg(3, TWO));
    assert_eq!((w.frames(0, 0), w.frames(1, 0)), (vec![], vec![]));
}

#[test]
fn a_full_set_stops_the_run() {
    let mut w = world(|r| {
        r.capacity = 2;
        r.provenance = true;
    });
    w.write(LEAVES, 0, Descriptor::user_rw(NEW));
    let word = Word::new(LEAVES, 0);
    w.mem.0.insert(word, (Descriptor::user_rw(OLD), 9));
    let full = HostileError::Full { cpu: 0, what: "translations", limit: 2 };
    assert_eq!(w.hw.changed(&w.mem, word), Err(full));
}

#[test]
fn provenance_tells_versions_and_paths_apart() {
    for (provenance, entries) in [(false, 1), (true, 2)] {
        let mut w = world(|r| r.provenance = provenance);
        w.write(LEAVES, 0, Descriptor::user_rw(OLD));
        let found: Vec<_> = w.hw.usable(0, 0).collect();
        assert_eq!(found.len(), entries);
        let words: Vec<_> = found[0].sources().map(|s| (s.word, s.version)).collect();
        if provenance {
            let path = [(Word::new(ROOT, 0), 1), (Word::new(LEAVES, 0), 1)];
            assert_eq!(words, path);
        } else {
            assert_eq!(words, [(Word::new(LEAVES, 0), 0)]);
        }
    }
}

#[test]
fn states_with_the_same_future_are_equal_and_hash_alike() {
    let mut a = world(|_| {});
    let mut b = a.clone();
    a.write(LEAVES, 1, Descriptor::user_rw(NEW));
    a.write(LEAVES, 2, Descriptor::user_rw(OLD));
    b.write(LEAVES, 2, Descriptor::user_rw(OLD));
    b.write(LEAVES, 1, Descriptor::user_rw(NEW));
    assert_eq!(a.hw, b.hw);
    assert_eq!(HashSet::from([a.hw.clone(), b.hw]).len(), 1);
    a.write(LEAVES, 1, Descriptor::ABSENT);
    let kept = a.hw.clone();
    a.local(0, Invalidation::invlpg(1, ONE));
    assert_ne!(a.hw, kept);
}

#[test]
fn counts_of_cpus_are_checked() {
    let rules = Rules::x86_64(Shape::new(1, 1).unwrap());
    assert_eq!(Hostile::new(rules, 0).unwrap_err(), HostileError::Cpus(0));
    assert_eq!(Hostile::new(rules, 17).unwrap_err(), HostileError::Cpus(17));
    assert_eq!(Hostile::new(rules, MAX_CPUS).unwrap().cpus(), MAX_CPUS);
}

#[test]
fn frames_are_found_by_their_holders() {
    let mut w = world(|_| {});
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.local(0, Invalidation::invlpg(0, ONE));
    assert_eq!(w.hw.hold(OLD), 0b10);
    w.write(ROOT, 0, Descriptor::ABSENT);
    w.load(1, TableId(5), TWO, true);
    assert_eq!((w.hw.walkers_reach(&w.mem, LEAVES), w.hw.remember(LEAVES)), (0b01, 0b11));
}
