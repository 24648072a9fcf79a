//! The rules of RISC-V (Privileged Architecture chapter 12, Svvptc, Svadu, Svinval).

use super::*;

fn world(options: RiscV) -> World {
    World::new(|shape| Rules::riscv64(shape, options))
}

#[test]
fn an_absent_entry_may_be_cached_until_the_fence() {
    let mut w = world(RiscV::default());
    w.write(LEAVES, 1, Descriptor::user_rw(NEW));
    w.hw.faulted(&w.mem, 0, 1).unwrap();
    assert_eq!(w.faults(0, 1, Access::USER_READ), [FaultKind::NotPresent]);
    w.local(0, Invalidation::sfence_address(1));
    assert_eq!(w.faults(0, 1, Access::USER_READ), []);
    assert_eq!(w.faults(1, 1, Access::USER_READ), [FaultKind::NotPresent]);
}

#[test]
fn an_absent_table_entry_may_be_cached_too() {
    let mut w = world(RiscV::default());
    w.write(ROOT, 1, Descriptor::table(LEAVES));
    assert_eq!(w.faults(0, 4, Access::USER_READ), [FaultKind::NotPresent]);
    assert_eq!(w.frames(0, 4), [OLD]);
}

#[test]
fn with_svvptc_a_fault_is_spurious_only_once() {
    let mut w = world(RiscV { svvptc: true, ..RiscV::default() });
    w.write(LEAVES, 1, Descriptor::user_rw(NEW));
    assert_eq!(w.faults(0, 1, Access::USER_READ), [FaultKind::NotPresent]);
    w.hw.faulted(&w.mem, 0, 1).unwrap();
    assert_eq!(w.faults(0, 1, Access::USER_READ), []);
}

#[test]
fn a_fence_with_an_address_leaves_the_steps() {
    let mut w = world(RiscV::default());
    w.write(ROOT, 0, Descriptor::ABSENT);
    w.local(0, Invalidation::sfence_address(0));
    assert_eq!(w.frames(0, 0), [OLD], "walked again through the cached step");
    w.local(0, Invalidation::tag(ONE));
    assert_eq!(w.frames(0, 0), []);
}

#[test]
fn a_fence_with_an_asid_spares_globals() {
    let mut w = world(RiscV::default());
    w.write(LEAVES, 1, Descriptor::user_ro(NEW).with(Descriptor::GLOBAL));
    w.write(LEAVES, 1, Descriptor::ABSENT);
    w.local(0, Invalidation::sfence_address_asid(1, ONE));
    assert_eq!(w.frames(0, 1), [NEW]);
    w.local(0, Invalidation::sfence_address(1));
    assert_eq!(w.frames(0, 1), []);
}

#[test]
fn a_global_table_makes_everything_below_global() {
    let mut w = world(RiscV::default());
    w.write(ROOT, 0, Descriptor::table(LEAVES).with(Descriptor::GLOBAL));
    w.load(0, TableId(5), TWO, true);
    assert_eq!(w.frames(0, 0), [OLD]);
}

#[test]
fn accessed_and_dirty_bits_fault_without_svadu_and_may_be_cached_clear() {
    let mut w = world(RiscV::default());
    let full = Descriptor::user_rw(NEW);
    w.write(LEAVES, 1, full.without(Descriptor::ACCESSED));
    assert_eq!(w.faults(0, 1, Access::USER_READ), [FaultKind::NotPresent, FaultKind::Accessed]);
    w.write(LEAVES, 1, full.without(Descriptor::DIRTY));
    w.local(0, Invalidation::sfence_address(1));
    assert_eq!(w.faults(0, 1, Access::USER_WRITE), [FaultKind::Dirty]);
    let mut w = world(RiscV { svadu: true, ..RiscV::default() });
    w.write(LEAVES, 1, full.without(Descriptor::ACCESSED | Descriptor::DIRTY));
    w.local(0, Invalidation::sfence_address(1));
    let [Outcome::Hit { update: Some(update), .. }] = w.outcomes(0, 1, Access::USER_WRITE)[..]
    else {
        panic!("the hart sets both bits");
    };
    assert_eq!(update.set, Descriptor::ACCESSED | Descriptor::DIRTY);
}

#[test]
fn with_svinval_a_removal_is_complete_at_its_second_half() {
    let mut w = world(RiscV { svinval: true, ..RiscV::default() });
    w.write(LEAVES, 0, Descriptor::ABSENT);
    w.local(0, Invalidation::sfence_address(0));
    assert_eq!(w.frames(0, 0), [OLD]);
    w.sync(0);
    assert_eq!(w.frames(0, 0), []);
}

#[test]
fn a_table_where_a_leaf_must_be_faults() {
    let mut w = world(RiscV { svvptc: true, ..RiscV::default() });
    w.write(LEAVES, 1, Descriptor::table(ROOT));
    assert_eq!(w.faults(0, 1, Access::USER_READ), [FaultKind::NotPresent]);
}
