//! Rules X1 to X9 (Intel SDM vol. 3A 4.10).

use super::*;

fn world() -> World {
    World::new(Rules::x86_64)
}

#[test]
fn x1_anything_reachable_may_be_cached_without_an_access() {
    let mut w = world();
    w.write(LEAVES, 0, Descriptor::ABSENT);
    for cpu in 0..2 {
        assert_eq!(w.frames(cpu, 0), [OLD]);
        assert_eq!(w.faults(cpu, 0, Access::USER_READ), [FaultKind::NotPresent]);
    }
}

#[test]
fn x1_absent_entries_are_not_cached() {
    let mut w = world();
    w.write(LEAVES, 1, Descriptor::user_rw(NEW));
    assert_eq!(w.faults(0, 1, Access::USER_READ), []);
    assert_eq!(w.frames(0, 1), [NEW]);
}

#[test]
fn x2_invlpg_drops_the_page_and_every_step_of_the_current_pcid() {
    let mut w = world();
    w.write(LEAVES, 1, Descriptor::user_rw(NEW));
    w.write(ROOT, 0, Descriptor::ABSENT);
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES), 0b11);
    // Another page's address: its leaf stays, but no walker gets to the table any more.
    w.local(0, Invalidation::invlpg(1, ONE));
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES), 0b10);
    assert_eq!((w.frames(0, 1), w.frames(0, 0)), (vec![], vec![OLD]));
    w.write(LEAVES, 0, Descriptor::user_rw(NEW));
    assert_eq!((w.frames(0, 0), w.frames(1, 0)), (vec![OLD], vec![OLD, NEW]));
}

#[test]
fn x2_invpcid_by_address_spares_steps_elsewhere_and_globals() {
    let mut w = world();
    w.write(LEAVES, 1, Descriptor::kernel_rw(NEW).with(Descriptor::USER));
    w.write(ROOT, 1, Descriptor::table(TableId(2)));
    w.write(ROOT, 1, Descriptor::ABSENT);
    w.write(LEAVES, 1, Descriptor::ABSENT);
    w.local(0, Invalidation::invpcid_address(1, ONE));
    assert_eq!(w.frames(0, 1), [NEW]);
    assert_eq!(w.hw.walkers_reach(&w.mem, TableId(2)), 0b11);
    w.local(0, Invalidation::invlpg(1, ONE));
    assert_eq!(w.frames(0, 1), []);
    assert_eq!(w.hw.walkers_reach(&w.mem, TableId(2)), 0b10);
}

#[test]
fn x2_a_load_with_bit_63_keeps_everything_and_without_spares_globals() {
    let mut w = world();
    w.write(LEAVES, 1, Descriptor::kernel_rw(NEW));
    w.write(LEAVES, 1, Descriptor::ABSENT);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.load(0, ROOT, ONE, true);
    assert_eq!(w.frames(0, 0), [OLD]);
    w.load(0, ROOT, ONE, false);
    assert_eq!(w.frames(0, 0), []);
    assert!(w.hw.usable(0, 1).any(|t| t.owner == Owner::Everyone));
}

#[test]
fn x2_entries_of_another_pcid_stay_and_are_not_used() {
    let mut w = world();
    w.load(0, TableId(5), TWO, false);
    assert_eq!(w.frames(0, 0), []);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.local(0, Invalidation::invlpg(0, TWO));
    w.load(0, ROOT, ONE, true);
    assert_eq!(w.frames(0, 0), [OLD]);
}

#[test]
fn x2_globals_serve_every_pcid_until_everything_goes() {
    let mut w = world();
    w.write(LEAVES, 2, Descriptor::kernel_rw(NEW).with(Descriptor::USER));
    w.write(LEAVES, 2, Descriptor::ABSENT);
    w.load(0, TableId(5), TWO, false);
    assert_eq!(w.frames(0, 2), [NEW]);
    w.local(0, Invalidation::everything_but_globals());
    assert_eq!(w.frames(0, 2), [NEW]);
    w.local(0, Invalidation::everything());
    assert_eq!(w.frames(0, 2), []);
}

#[test]
fn x3_a_fault_forgets_the_page_so_it_is_spurious_only_once() {
    let mut w = World::new(Rules::x86_64);
    w.write(LEAVES, 0, Descriptor::user_ro(OLD));
    w.local(0, Invalidation::invlpg(0, ONE));
    w.write(LEAVES, 0, Descriptor::user_rw(OLD));
    assert_eq!(w.faults(0, 0, Access::USER_WRITE), [FaultKind::ReadOnly]);
    w.hw.faulted(&w.mem, 0, 0).unwrap();
    assert_eq!(w.faults(0, 0, Access::USER_WRITE), []);
}

#[test]
fn x4_a_cached_dirty_leaf_writes_without_setting_the_bit_again() {
    let mut w = world();
    w.write(LEAVES, 0, Descriptor::user_rw(OLD).without(Descriptor::DIRTY));
    let updates = |w: &World| -> Vec<_> {
        w.outcomes(0, 0, Access::USER_WRITE)
            .iter()
            .map(|o| matches!(o, Outcome::Hit { update: Some(_), .. }))
            .collect()
    };
    assert_eq!(updates(&w), [true, false]);
    w.local(0, Invalidation::invlpg(0, ONE));
    assert_eq!(updates(&w), [true]);
}

#[test]
fn x5_either_value_until_the_invalidation() {
    let mut w = world();
    w.write(LEAVES, 0, Descriptor::user_rw(NEW));
    assert_eq!(w.frames(0, 0), [OLD, NEW]);
    w.local(0, Invalidation::invlpg(0, ONE));
    assert_eq!((w.frames(0, 0), w.frames(1, 0)), (vec![NEW], vec![OLD, NEW]));
}

#[test]
fn x7_two_sizes_of_one_page_are_noticed() {
    let mut w = world();
    assert_eq!(w.hw.two_sizes(0), None);
    w.write(ROOT, 0, Descriptor::user_rw(NEW).with(Descriptor::LEAF));
    let (small, large) = w.hw.two_sizes(0).unwrap();
    assert_eq!((small.level, large.level), (0, 1));
    assert_eq!(large.frame_of(3), Frame(NEW.0 + 3));
    w.local(0, Invalidation::invlpg(0, ONE));
    assert_eq!(w.hw.two_sizes(0), None);
}

#[test]
fn x8_a_table_that_names_itself_plays_every_part() {
    let mut w = world();
    w.write(ROOT, 3, Descriptor::table(ROOT));
    // Page 15: the last entry of the root read as a leaf.
    assert_eq!(w.frames(0, 15), [Frame(u32::from(ROOT.0))]);
}

#[test]
fn x9_a_cached_step_reads_a_freed_table_as_it_is_now() {
    let mut w = world();
    w.write(ROOT, 0, Descriptor::ABSENT);
    w.write(LEAVES, 1, Descriptor::POISON);
    assert_eq!(w.frames(1, 1), [Frame::POISON]);
    w.local(1, Invalidation::tag(ONE));
    assert_eq!(w.frames(1, 1), []);
}

#[test]
fn rights_are_the_intersection_of_the_path() {
    let mut w = world();
    w.write(ROOT, 0, Descriptor::table(LEAVES).without(Descriptor::WRITE));
    w.local(0, Invalidation::tag(ONE));
    assert_eq!(w.faults(0, 0, Access::USER_WRITE), [FaultKind::ReadOnly]);
    assert_eq!(w.frames(0, 0), [OLD]);
}

#[test]
fn accessed_bits_of_tables_are_set_before_use_where_the_caller_sets_them() {
    let mut w = World::new(|shape| Rules {
        accessed_updates: AccessedUpdates::Explicit,
        ..Rules::x86_64(shape)
    });
    w.write(ROOT, 1, Descriptor::table(LEAVES).without(Descriptor::ACCESSED));
    let word = Word::new(ROOT, 1);
    let [Outcome::Blocked { update }] = w.outcomes(0, 4, Access::USER_READ)[..] else {
        panic!("the walker must set the bit first");
    };
    assert_eq!((update.word, update.set), (word, Descriptor::ACCESSED));
    let mut early = Vec::new();
    w.hw.early_updates(&w.mem, 0, &mut early);
    assert_eq!(early, [update]);
    w.write(ROOT, 1, update.apply(update.seen).unwrap());
    assert_eq!(w.frames(0, 4), [OLD]);
}
