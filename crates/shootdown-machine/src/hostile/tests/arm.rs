//! The rules of AArch64 stage 1 (Arm ARM D8; names of herd and Cambridge tests where one shows the
//! rule).

use super::*;

const ETS2: Aarch64 = Aarch64 { ets2: true, ha: false, hd: false };

fn world(options: Aarch64) -> World {
    World::new(|shape| Rules::aarch64(shape, options))
}

const PAGE: Invalidation = Invalidation::tlbi_va(Pages::one(0), ONE);

/// V2I-UP-DSB-TLBI-DSB: without ISB the CPU may have translated ahead; with it, not.
#[test]
fn a_removed_entry_serves_its_remover_until_context_synchronization() {
    let mut w = world(ETS2);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.broadcast(0, PAGE);
    w.sync(0);
    assert_eq!((w.frames(0, 0), w.frames(1, 0)), (vec![OLD], vec![]));
    w.context_sync(0);
    assert_eq!(w.frames(0, 0), []);
}

/// V2I-load-DSB-ISB: no TLBI, so the load may succeed for ever.
#[test]
fn context_synchronization_alone_removes_nothing() {
    let mut w = world(ETS2);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.sync(0);
    w.context_sync(0);
    assert_eq!(w.frames(0, 0), [OLD]);
}

#[test]
fn a_broadcast_takes_effect_at_the_issuers_sync() {
    let mut w = world(ETS2);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.broadcast(0, PAGE);
    assert_eq!(w.frames(1, 0), [OLD]);
    // A sync of another CPU completes nothing of ours (the thread migrated between TLBI and DSB).
    w.sync(1);
    assert_eq!(w.frames(1, 0), [OLD]);
    w.sync(0);
    assert_eq!(w.frames(1, 0), []);
}

/// MP.RT.EL1+dsb-tlbi-dsb+dsb-isb: a local TLBI does nothing for another CPU.
#[test]
fn a_local_removal_stays_local() {
    let mut w = world(ETS2);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.local(0, PAGE);
    w.sync(0);
    w.context_sync(0);
    assert_eq!((w.frames(0, 0), w.frames(1, 0)), (vec![], vec![OLD]));
}

/// CoWinvT.EL1+tlbi-dsb-isb: a TLBI before the write removes nothing that matters.
#[test]
fn an_entry_made_after_the_issue_is_not_removed() {
    let mut w = world(ETS2);
    w.broadcast(0, PAGE);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.sync(0);
    w.context_sync(0);
    assert_eq!((w.frames(0, 0), w.frames(1, 0)), (vec![OLD], vec![OLD]));
}

/// needTLBI1: valid for an instant while a removal is under way.
#[test]
fn a_mapping_that_was_valid_for_an_instant_may_be_cached() {
    let mut w = world(ETS2);
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.broadcast(0, PAGE);
    w.write(LEAVES, 0, Descriptor::user_rw(NEW));
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.sync(0);
    assert_eq!(w.frames(1, 0), [NEW]);
}

#[test]
fn a_walk_through_a_doomed_step_leaves_nothing_that_the_removal_covers() {
    let mut w = world(ETS2);
    w.write(ROOT, 0, Descriptor::ABSENT);
    w.broadcast(0, PAGE);
    w.write(LEAVES, 0, Descriptor::POISON);
    w.write(LEAVES, 1, Descriptor::POISON);
    assert_eq!(w.frames(1, 0), [OLD, Frame::POISON]);
    w.sync(0);
    // Page 0 was named by the removal, page 1 was not.
    assert_eq!((w.frames(1, 0), w.frames(1, 1)), (vec![], vec![Frame::POISON]));
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES), 0);
}

/// coWRExpNExp and its DSB-TLBI-DSB form: allowed without ETS2, forbidden with it.
#[test]
fn a_fault_may_be_older_than_the_write_until_context_synchronization() {
    for (ets2, faults) in [(false, vec![FaultKind::NotPresent]), (true, vec![])] {
        let mut w = world(Aarch64 { ets2, ..ETS2 });
        w.write(LEAVES, 1, Descriptor::user_rw(NEW));
        assert_eq!(w.faults(0, 1, Access::USER_READ), faults);
        w.broadcast(0, Invalidation::tlbi_va(Pages::one(1), ONE));
        w.sync(0);
        assert_eq!(w.faults(0, 1, Access::USER_READ), faults);
        assert_eq!(w.faults(1, 1, Access::USER_READ), []);
        w.context_sync(0);
        assert_eq!(w.faults(0, 1, Access::USER_READ), []);
    }
}

#[test]
fn a_leaf_without_the_accessed_flag_is_not_cached() {
    for ha in [false, true] {
        let mut w = world(Aarch64 { ha, ..ETS2 });
        let young = Descriptor::user_rw(NEW);
        w.write(LEAVES, 1, young.without(Descriptor::ACCESSED));
        // LDRaf0-noHA faults, LDRaf0-HA sets the flag.
        let first = w.outcomes(0, 1, Access::USER_READ)[0];
        let faults = matches!(first, Outcome::Fault { kind: FaultKind::Accessed, .. });
        assert_eq!(faults, !ha);
        // SpecAF: only with HA may it be set without an access.
        let mut early = Vec::new();
        w.hw.early_updates(&w.mem, 0, &mut early);
        assert_eq!(early.len(), usize::from(ha));
        w.write(LEAVES, 1, Descriptor::ABSENT);
        assert_eq!(w.frames(0, 1), []);
    }
}

#[test]
fn a_store_through_a_clean_page_faults_or_turns_the_modifier() {
    for hd in [false, true] {
        let mut w = world(Aarch64 { hd, ha: hd, ets2: true });
        let clean = Descriptor::user_ro(NEW).with(Descriptor::DBM);
        w.write(LEAVES, 1, clean);
        match w.outcomes(0, 1, Access::USER_WRITE)[0] {
            Outcome::Hit { update: Some(update), .. } if hd => {
                assert_eq!(update.apply(clean), Some(clean.with(Descriptor::WRITE)));
                assert_eq!(update.apply(clean.to_frame(OLD)), None);
            }
            Outcome::Fault { kind: FaultKind::ReadOnly, .. } if !hd => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_removal_by_address_names_the_asid_but_takes_globals() {
    let mut w = world(ETS2);
    w.write(LEAVES, 1, Descriptor::kernel_rw(NEW).with(Descriptor::USER));
    for index in 0..2 {
        w.write(LEAVES, index, Descriptor::ABSENT);
    }
    let both = Pages { first: 0, last: 1 };
    w.broadcast(0, Invalidation::tlbi_va(both, TWO));
    w.sync(0);
    assert_eq!((w.frames(1, 0), w.frames(1, 1)), (vec![OLD], vec![]));
}

#[test]
fn a_removal_of_last_levels_leaves_the_steps() {
    let mut w = world(ETS2);
    w.write(ROOT, 0, Descriptor::ABSENT);
    w.broadcast(0, Invalidation::tlbi_va_last(Pages::one(0), ONE));
    w.sync(0);
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES), 0b11);
    w.broadcast(0, PAGE);
    w.sync(0);
    assert_eq!(w.hw.walkers_reach(&w.mem, LEAVES), 0);
}

/// SwitchTable.same-asid allowed, .different-asid forbidden.
#[test]
fn another_root_under_the_same_asid_meets_the_old_entries() {
    for (tag, frames) in [(ONE, vec![OLD]), (TWO, vec![])] {
        let mut w = world(ETS2);
        w.load(0, TableId(5), tag, true);
        assert_eq!(w.frames(0, 0), frames);
    }
}

#[test]
fn the_halves_have_roots_of_their_own() {
    let mut w = world(ETS2);
    let (root, leaves) = (TableId(6), TableId(7));
    w.write(root, 3, Descriptor::table(leaves));
    w.write(leaves, 3, Descriptor::kernel_rw(NEW));
    w.write(root, 0, Descriptor::table(leaves));
    w.hw.load_upper(&w.mem, 0, Some(root)).unwrap();
    assert_eq!(w.hw.usable(0, 15).count(), 1);
    assert_eq!((w.hw.usable(0, 3).count(), w.hw.usable(1, 15).count()), (0, 0));
    // Another space, the same kernel.
    w.load(0, TableId(5), TWO, true);
    assert_eq!(w.outcomes(0, 15, Access::KERNEL_READ).len(), 1);
}

#[test]
fn a_change_without_a_break_is_noticed() {
    let mut w = world(ETS2);
    let word = Word::new(LEAVES, 0);
    assert_eq!(w.hw.unbroken(word, Descriptor::user_rw(NEW)), 0b11);
    assert_eq!(w.hw.unbroken(word, Descriptor::user_ro(OLD)), 0, "rights need no break");
    w.write(LEAVES, 0, Descriptor::ABSENT);
    assert_eq!(w.hw.unbroken(word, Descriptor::user_rw(NEW)), 0b11);
    w.broadcast(0, PAGE);
    w.sync(0);
    w.context_sync(0);
    assert_eq!(w.hw.unbroken(word, Descriptor::user_rw(NEW)), 0);
    // A table in place of a table.
    assert_eq!(w.hw.unbroken(Word::new(ROOT, 0), Descriptor::table(TableId(3))), 0b11);
    assert_eq!(w.hw.unbroken(Word::new(ROOT, 0), Descriptor::table(LEAVES)), 0);
}
