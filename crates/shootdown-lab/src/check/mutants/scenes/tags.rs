//! Versioned tags: five spaces share the three tags of a two-bit width on two CPUs.

use std::cell::Cell;
use std::ptr::NonNull;

use shootdown::Tag;
use shootdown::mutant::Mutant::*;
use shootdown::tags::generations::{CpuTag, Generations, SpaceTag, TagsError};
use shootdown_machine::hostile::{Descriptor, TableId, Word};
use shootdown_machine::hunt::hw::{self, Target};
use shootdown_machine::oracle::Invariant;

use crate::check::mutants::kit::{hear, meet, tell};
use crate::check::mutants::scene::Scene;

const SPACES: usize = 5;

struct World {
    tags: Generations<1, 2>,
    cpus: [CpuTag; 2],
    spaces: [SpaceTag; SPACES],
    roots: [TableId; SPACES],
    /// Which space each CPU runs, and under which tag. Invisible to the adversary.
    runs: [Cell<Option<(usize, Tag)>>; 2],
    /// Of which space each CPU has the tables loaded. Invisible too.
    loaded: [Cell<Option<usize>>; 2],
    /// The tag of space 0 while it is pinned.
    pinned: Cell<Option<Tag>>,
}

thread_local! {
    static WORLD: Cell<Option<NonNull<World>>> = const { Cell::new(None) };
}

fn world() -> &'static World {
    // SAFETY: placed for the length of this run; the next run's `setup` replaces the pointer first.
    unsafe { WORLD.get().expect("set up").as_ref() }
}

fn setup_one() {
    setup(1);
}

fn setup_two() {
    setup(2);
}

/// Spaces of one page each.
fn setup(cpus: u32) {
    let roots = std::array::from_fn(|_| {
        let (root, leaf) = (hw::new_table(), hw::new_table());
        let _ = hw::write_entry(Word::new(leaf, 0), Descriptor::user_rw(hw::new_frame()));
        let _ = hw::write_entry(Word::new(root, 0), Descriptor::table(leaf));
        root
    });
    WORLD.set(Some(hw::place(World {
        tags: Generations::new(2, false, cpus).expect("three tags are enough"),
        cpus: std::array::from_fn(|_| CpuTag::new()),
        spaces: std::array::from_fn(|_| SpaceTag::new()),
        roots,
        runs: [const { Cell::new(None) }; 2],
        loaded: [const { Cell::new(None) }; 2],
        pinned: Cell::new(None),
    })));
    hw::publish();
}

fn broken(what: String) -> ! {
    hw::violation(Invariant::TagReuse, what)
}

/// Switches to a space, runs it, and looks whether the two CPUs agree on who has which tag.
fn run(space: usize) {
    let (w, cpu) = (world(), hw::this_cpu());
    let fresh = || {
        // Whoever gives a space a fresh tag may go on to free tables of it.
        if w.loaded[1 - cpu.index()].get() == Some(space) {
            broken(format!("space {space} gets a fresh tag, and its tables are loaded"));
        }
    };
    // SAFETY: nothing interrupts here, there is one set of CPUs, and what is to be forgotten is,
    // below.
    let done =
        unsafe { w.tags.activate_fresh(cpu, &w.spaces[space], &w.cpus[..], hw::relax, fresh) };
    w.runs[cpu.index()].set(Some((space, done.tag)));
    if let Some((theirs, tag)) = w.runs[1 - cpu.index()].get()
        && (theirs == space) != (tag == done.tag)
    {
        let mine = done.tag;
        broken(format!("space {space} runs under {mine:?} and space {theirs} under {tag:?}"));
    }
    match w.pinned.get() {
        Some(tag) if (space == 0) != (tag == done.tag) => {
            broken(format!("{tag:?} is pinned to space 0, and space {space} has {:?}", done.tag));
        }
        _ => {}
    }
    if done.flush {
        hw::invalidate(Target::Everything);
        hw::sync();
    }
    hw::load_root(w.roots[space], done.tag, true);
    w.loaded[cpu.index()].set(Some(space));
    // SAFETY: the root was loaded just now.
    unsafe { w.cpus[cpu.index()].loaded() };
    hw::user_code();
}

fn run_all(spaces: &[usize]) {
    spaces.iter().for_each(|space| run(*space));
}

/// Both CPUs go through the spaces; CPU 0 begins generations while CPU 1 stays or goes.
fn switches(cpu: u8) {
    if cpu == 0 {
        run_all(&[2, 0, 1, 3, 4, 2, 0, 3]);
    } else {
        run_all(&[1, 0, 1, 2, 1]);
    }
}

/// CPU 1 stays in a space while several generations begin; then both run it.
fn stays(cpu: u8) {
    if cpu == 0 {
        run(1);
        meet(2);
        run_all(&[2, 3, 4, 0, 2, 3, 4, 0, 2, 3]);
        run_all(&[2, 1, 2, 0, 1, 3]);
        tell(0);
        return;
    }
    run(1);
    meet(2);
    hear(0);
    run_all(&[1, 3]);
}

/// CPU 1 leaves a space while that gets a fresh tag.
fn leaves(cpu: u8) {
    if cpu == 0 {
        run(2);
        meet(2);
        run_all(&[3, 0]);
        return;
    }
    run_all(&[1, 0]);
    meet(2);
    run(1);
}

/// CPU 1 runs under no tag while generations begin.
fn idles(cpu: u8) {
    if cpu == 0 {
        meet(2);
        run_all(&[2, 3, 4, 0]);
        tell(0);
        run_all(&[2, 3, 1]);
        return;
    }
    run_all(&[1, 2]);
    idle();
    meet(2);
    hear(0);
    idle();
    run_all(&[0, 2]);
    idle();
    run(3);
}

fn idle() {
    let w = world();
    hw::load_kernel(w.roots[0], false);
    w.runs[1].set(None);
    w.loaded[1].set(None);
    // SAFETY: other tables were loaded above.
    unsafe { w.cpus[1].deactivate() };
}

/// Space 0 is pinned while generations begin, and no other may be: three tags are too few.
fn pinned(_: u8) {
    let w = world();
    // SAFETY: one CPU runs here.
    let pin = |space: usize| unsafe { w.tags.pin(&w.spaces[space], &w.cpus[..1], hw::relax) };
    run_all(&[3, 1]);
    w.pinned.set(Some(pin(0).expect("one can be spared")));
    let refused = pin(1) == Err(TagsError::NoPinLeft);
    assert!(refused, "errors: the CPU may be left without a tag");
    run_all(&[1, 2, 3, 4, 0, 1, 2, 3, 4]);
    w.pinned.set(None);
    // SAFETY: there is no device.
    unsafe { w.tags.unpin(&w.spaces[0], hw::relax) };
    run_all(&[1, 2, 0, 3]);
}

pub static SCENES: &[Scene] = &[
    Scene::new("tags", "two CPUs switch while generations of tags begin", 2, switches)
        .setup(setup_two)
        .kills(&[
            FastPathIgnoresRollover,
            RolloverNotFlushed,
            RolloverNotCounted,
            ActiveNotReserved,
            ReservedNotTaken,
            KeepIgnoresOwner,
            KeepIgnoresTaken,
            KeptNotTaken,
            FreeNotTaken,
            TagLockIgnored,
            TagLockRelaxed,
            TagUnlockRelaxed,
        ]),
    Scene::new("tags-stay", "a CPU stays in a space while generations begin", 2, stays)
        .setup(setup_two)
        .kills(&[ReservedForgotten, ReservedNotRenewed]),
    Scene::new("tags-leave", "a CPU leaves a space while that gets a fresh tag", 2, leaves)
        .setup(setup_two)
        .kills(&[LoadingSetLate]),
    Scene::new("tags-idle", "a CPU runs under no tag while generations begin", 2, idles)
        .setup(setup_two)
        .kills(&[FastPathIgnoresFlush]),
    Scene::new("tags-pinned", "a tag is pinned while generations begin", 1, pinned)
        .setup(setup_one)
        .kills(&[PinNotNoted, PinnedForgotten, PinsUnbounded]),
];
