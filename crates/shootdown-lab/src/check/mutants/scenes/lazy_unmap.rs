//! Lazy unmapping: what is put off, who forgets by himself, and what is not given out before it is
//! flushed.
//!
//! The pages of these scenes are taken for read-only, except where something is written.

use shootdown::accessed::tick;
use shootdown::facts::{Broadcast, TagScope};
use shootdown::gather::{Array, Gather, Nothing};
use shootdown::lazy_unmap::{LazyUnmap, LazyUnmapping, Refused, Was};
use shootdown::mutant::Mutant::*;
use shootdown::residency::Strategy;
use shootdown::{Facts, FlushError, Platform, Policy, Stride, VaRange, flush_kernel, isolated};
use shootdown_machine::hostile::{Descriptor, Frame, TableId};
use shootdown_machine::hunt::hw::{self, Architecture};
use shootdown_machine::hunt::{Power, Powers};
use shootdown_machine::oracle::Invariant;

use super::calls::set;
use crate::check::mutants::kit::{
    enter, enter_now, honours, kit, lazy, meet, page, told, tree, unmap_kernel_by, user,
};
use crate::check::mutants::port::{self, Rig, Rules, TAGGED};
use crate::check::mutants::scene::Scene;

static LAZY: Policy =
    Policy { lazy_unmap: Some(LazyUnmap { max_age: 1, max_pages: 4 }), ..Policy::SHOOTDOWN };
static ALWAYS: Policy = Policy { broadcast: Some(Strategy::Always), ..LAZY };
static ARM: Facts = Facts {
    tag_scope: TagScope::System,
    tag_bits: 3,
    broadcast: Broadcast::Tlbi { ranges: true },
    ..TAGGED
};

const RULES: Rules = Rules { policy: &LAZY, ..Rules::USUAL };
const FAILS: Powers = Powers::HOSTILE.with(Power::FailingKicks);
const ON_ARM: Rules =
    Rules { policy: &ALWAYS, facts: &ARM, architecture: Architecture::Aarch64, ..Rules::USUAL };

type Lazy = LazyUnmapping<'static, Rig, Array<Frame, 8>>;

fn range(at: u32, count: u64) -> VaRange {
    VaRange::new(u64::from(at) << 12, count, Stride::Page4K).expect("a small range")
}

fn unmapping() -> Lazy {
    LazyUnmapping::new(tree(0).space)
}

/// Unmaps a page of the first space lazily.
fn put_off(later: &mut Lazy, at: u32, was: Was) -> Result<hw::Change, Refused<Frame>> {
    let frame = hw::read_entry(tree(0).word(at)).frame();
    let change = tree(0).take(at);
    later.unmapped(&Rig::pin(), 0, range(at, 1), was, frame)?;
    told(change, Invariant::LazyBound);
    Ok(change)
}

fn put_off_read_only(later: &mut Lazy, at: u32) -> hw::Change {
    put_off(later, at, Was::ReadOnly).unwrap_or_else(|refused| panic!("refused: {refused}"))
}

/// What is not flushed stays where it is.
fn keep(later: Lazy) {
    core::mem::forget(later);
}

fn redeem(mut later: Lazy) {
    for _ in 0..2 {
        if let Ok(frames) = later.redeem(&Rig::pin()) {
            return frames.for_each(hw::free_frame);
        }
    }
    keep(later);
}

/// CPU 1 uses the first space, before and after CPU 0 does something.
fn while_used(cpu: u8, does: fn()) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        return does();
    }
    enter(0);
    user();
    meet(2);
    user();
    user();
}

/// Frames are needed.
fn reused(cpu: u8) {
    while_used(cpu, || {
        let mut later = unmapping();
        let _ = put_off_read_only(&mut later, 0);
        redeem(later);
    });
}

/// An address is needed, of which another was put off after.
fn mapped_again(cpu: u8) {
    while_used(cpu, || {
        let mut later = unmapping();
        let first = put_off_read_only(&mut later, 0);
        let _ = put_off_read_only(&mut later, 5);
        later.make_way(&Rig::pin(), range(0, 1)).expect("CPU 0 may wait");
        hw::reused(&[first]);
        let new = Descriptor::user_ro(hw::new_frame());
        let _ = hw::write_entry(tree(0).word(0), new);
        keep(later);
    });
}

/// In user mode for long.
const ISOLATED: usize = 0;

fn to_user() {
    hw::without_irqs(|| {
        // SAFETY: interrupts are off; the scenes' handlers and programs come back by `from_user`.
        unsafe { isolated::to_user::<Rig>(&Rig::pin()) };
        kit().cells[ISOLATED].set(1);
    });
}

fn from_user() {
    honours(|| {
        kit().cells[ISOLATED].set(0);
        isolated::from_user(port::irqs_off(&Rig::pin()));
    });
}

/// The way in by an interrupt, and out again.
fn interrupts_user(cpu: u8) {
    if cpu != 1 || kit().cells[ISOLATED].get() == 0 {
        return port::answer();
    }
    from_user();
    port::answer();
    to_user();
}

/// It is time, and CPU 1 is isolated.
fn isolated_user(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        to_user();
        user();
        meet(2);
        user();
        from_user();
        return user();
    }
    meet(2);
    let mut later = unmapping();
    let _ = put_off_read_only(&mut later, 0);
    for _ in 0..2 {
        if let Ok(Some(frames)) = later.poll(&Rig::pin(), 9) {
            return frames.for_each(hw::free_frame);
        }
    }
    keep(later);
}

/// CPU 1 comes by while a page is unmapped lazily.
fn comes_by(cpu: u8, way: fn()) {
    port::come_online();
    if cpu == 0 {
        let mut later = unmapping();
        let _ = put_off_read_only(&mut later, 0);
        return keep(later);
    }
    enter(0);
    user();
    for _ in 0..2 {
        honours(way);
        user();
    }
}

fn ticks(cpu: u8) {
    comes_by(cpu, || tick(port::irqs_off(&Rig::pin())));
}

fn stays(cpu: u8) {
    comes_by(cpu, || enter_now(0));
}

/// The CPU that unmaps uses the page itself.
fn unmaps_its_own(_: u8) {
    port::come_online();
    enter(0);
    user();
    let mut later = unmapping();
    let change = put_off_read_only(&mut later, 0);
    hw::check_gone(change, Invariant::LazyBound);
    keep(later);
}

/// CPU 1 looks for work with interrupts on; its timer comes in between.
fn polls(cpu: u8) {
    port::come_online();
    if cpu == 0 {
        meet(2);
        let mut later = unmapping();
        let _ = put_off_read_only(&mut later, 0);
        let _ = put_off_read_only(&mut later, 1);
        let _ = Rig::kick(&set(&[1]));
        return keep(later);
    }
    enter(0);
    user();
    meet(2);
    for _ in 0..3 {
        let _ = shootdown::poll::<Rig>(&Rig::pin());
    }
}

fn timer(cpu: u8) {
    if cpu == 1 {
        honours(|| tick(port::irqs_off(&Rig::pin())));
    }
    port::answer();
}

/// A page that may be written: what is in it is written back before it is flushed, if that is said
/// to be allowed.
fn written(cpu: u8) {
    while_used(cpu, || {
        let frame = hw::read_entry(tree(0).word(0)).frame();
        let mut later = unmapping();
        let put_off = put_off(&mut later, 0, Was::MaybeWritten);
        if put_off.is_err() {
            tree(0).space.flush(&Rig::pin(), page(0)).expect("CPU 0 may wait");
        }
        hw::seal(frame, Invariant::WriteBack);
        keep(later);
    });
}

/// CPU 2 makes a page read-only, and has not flushed yet; CPU 0 finds it so, and unmaps it.
fn not_flushed_yet(cpu: u8) {
    port::come_online();
    match cpu {
        0 => {
            meet(3);
            let frame = hw::read_entry(tree(0).word(0)).frame();
            let mut later = unmapping();
            let put_off = put_off(&mut later, 0, Was::ReadOnly);
            if put_off.is_err() {
                tree(0).space.complete_pending(&Rig::pin()).expect("CPU 0 may wait");
            }
            hw::seal(frame, Invariant::WriteBack);
            keep(later);
        }
        1 => {
            enter(0);
            user();
            meet(1);
            user();
            user();
        }
        _ => {
            let mut gather = Gather::<Rig, Nothing>::new(tree(0).space);
            let frame = hw::read_entry(tree(0).word(0)).frame();
            let _ = hw::write_entry(tree(0).word(0), Descriptor::user_ro(frame));
            gather.changed(range(0, 1));
            meet(3);
            gather.finish(&Rig::pin()).unwrap_or_else(|(e, _)| panic!("CPU 2 may wait: {e}"));
        }
    }
}

/// A table, which CPU 1 has loaded lazily.
fn a_table(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        user();
        lazy();
        return meet(2);
    }
    meet(2);
    let mut later = LazyUnmapping::<Rig, Array<TableId, 1>>::new(tree(0).space);
    let (change, table) = tree(0).unhook_table(0);
    let pin = Rig::pin();
    match later.unmapped(&pin, 0, range(0, 2), Was::Table, table) {
        Ok(()) => {
            let tables = later.redeem(&pin).expect("CPU 0 may wait");
            hw::revoked(&[change]);
            tables.for_each(hw::free_table);
        }
        Err(Refused { item, .. }) => {
            let request = crate::check::mutants::kit::table(0);
            tree(0).space.flush(&pin, request).expect("CPU 0 may wait");
            hw::revoked(&[change]);
            hw::free_table(item);
        }
    }
}

/// A page of the kernel, which CPU 1 uses in another space.
fn of_the_kernel(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(1);
        hw::kernel_code();
        meet(2);
        hw::kernel_code();
        return hw::kernel_code();
    }
    enter(0);
    meet(2);
    let pin = Rig::pin();
    let unmapped = unmap_kernel_by(|range| {
        let mut later = LazyUnmapping::<Rig, Nothing>::new(tree(0).space);
        match later.unmapped(&pin, 0, range, Was::Kernel, ()) {
            Ok(()) => later.redeem(&pin).map(drop),
            Err(_) => flush_kernel::<Rig>(&pin, range),
        }
    });
    unmapped.expect("CPU 0 may wait");
}

/// A page that a device has cached too, where only its driver can make it forget.
fn of_a_device(_: u8) {
    const CACHED: usize = 1;
    port::come_online();
    kit().cells[CACHED].set(1);
    let mut later = unmapping();
    match put_off(&mut later, 0, Was::Device) {
        Ok(_) => redeem(later),
        Err(Refused { item, .. }) => {
            tree(0).space.flush(&Rig::pin(), page(0)).expect("CPU 0 may wait");
            kit().cells[CACHED].set(0); // the driver is told
            hw::free_frame(item);
            keep(later);
        }
    }
    if kit().cells[CACHED].get() != 0 {
        hw::violation(Invariant::FrameReuse, "a device can use a frame that was freed".to_owned());
    }
}

/// Hardware invalidates everywhere, and a tick has nothing to compare.
fn broadcasts(cpu: u8) {
    port::come_online();
    if cpu == 1 {
        enter(0);
        user();
        honours(|| tick(port::irqs_off(&Rig::pin())));
        return user();
    }
    let mut later = unmapping();
    if put_off(&mut later, 0, Was::ReadOnly).is_err() {
        tree(0).space.flush(&Rig::pin(), page(0)).expect("a broadcast does not fail");
    }
    keep(later);
}

/// As much as the policy allows, and for as long.
fn bounds(_: u8) {
    port::come_online();
    let violation = |what: &str| hw::violation(Invariant::LazyBound, what.to_owned());
    let mut later = unmapping();
    for at in [0, 1, 4, 5] {
        let _ = put_off_read_only(&mut later, at);
    }
    let frame = hw::new_frame();
    let more = later.unmapped(&Rig::pin(), 0, range(2, 1), Was::ReadOnly, frame);
    if more.is_ok() {
        violation("more is pending than the policy allows");
    }
    let poll = |later: &mut Lazy, now| later.poll(&Rig::pin(), now);
    assert!(matches!(poll(&mut later, 1), Ok(None)), "nothing is too old yet");
    match poll(&mut later, 2) {
        Ok(Some(frames)) => frames.for_each(hw::free_frame),
        Ok(None) => violation("what is old is pending still"),
        Err(FlushError::Kick(_)) => keep(later),
        Err(error) => panic!("CPU 0 may wait: {error}"),
    }
}

pub static SCENES: &[Scene] = &[
    Scene::new("lazy-reuse", "a page is unmapped lazily, and its frame is needed", 2, reused)
        .rules(RULES)
        .kills(&[LazyUnmapFlushesNothing]),
    Scene::new("lazy-fails", "the same, and an interrupt can't be raised", 2, reused)
        .rules(RULES)
        .powers(FAILS)
        .kills(&[LazyUnmapErrorForgotten]),
    Scene::new("lazy-map", "a page is unmapped lazily, and its address is needed", 2, mapped_again)
        .rules(RULES)
        .kills(&[LazyUnmapStaysInTheWay, LazyUnmapForgetsRanges]),
    Scene::new("lazy-isolated", "it is time, and a CPU is in user mode for long", 2, isolated_user)
        .rules(RULES)
        .interrupt(interrupts_user)
        .kills(&[LazyUnmapIsolatedCounted, LazyUnmapEntryForgotten]),
    Scene::new("lazy-tick", "a page is unmapped lazily, and a CPU ticks", 2, ticks)
        .rules(RULES)
        .kills(&[LazyUnmapTickForgotten]),
    Scene::new(
        "lazy-same",
        "a page is unmapped lazily, and a CPU switches to the same space",
        2,
        stays,
    )
    .rules(RULES)
    .kills(&[LazyUnmapSwitchForgotten]),
    Scene::new("lazy-here", "a CPU unmaps lazily what it uses", 1, unmaps_its_own)
        .rules(RULES)
        .kills(&[LazyUnmapStaysHere]),
    Scene::new("lazy-nested", "a CPU ticks while it catches up", 2, polls)
        .rules(RULES)
        .interrupt(timer)
        .kills(&[LazyUnmapNestedForgotten]),
    Scene::new("lazy-bounds", "too much is unmapped lazily, for too long", 1, bounds)
        .rules(RULES)
        .kills(&[LazyUnmapTakesAll, LazyUnmapIsNeverOld]),
    Scene::new("lazy-written", "a dirty page is unmapped lazily", 2, written)
        .rules(RULES)
        .kills(&[LazyUnmapTakesWritten]),
    Scene::new("lazy-pending", "a page is read-only, and its flush pending", 3, not_flushed_yet)
        .rules(RULES)
        .kills(&[LazyUnmapIgnoresPending]),
    Scene::new("lazy-table", "a table is unhooked lazily", 2, a_table)
        .rules(RULES)
        .kills(&[LazyUnmapTakesTables]),
    Scene::new("lazy-kernel", "a kernel page is unmapped lazily", 2, of_the_kernel)
        .rules(RULES)
        .kills(&[LazyUnmapTakesKernel]),
    Scene::new("lazy-device", "a page is unmapped lazily that a device has cached", 1, of_a_device)
        .rules(RULES)
        .kills(&[LazyUnmapTakesDevices]),
    Scene::new(
        "lazy-broadcast",
        "a page is unmapped lazily where hardware broadcasts",
        2,
        broadcasts,
    )
    .rules(ON_ARM)
    .kills(&[LazyUnmapTakesBroadcast]),
];
