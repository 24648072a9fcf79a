//! Tags for all CPUs beside slots: who owns one, and what is cached under it when it comes back.

use std::cell::Cell;
use std::ptr::NonNull;

use shootdown::Tag;
use shootdown::mutant::Mutant::*;
use shootdown::sync::{AtomicU64, Ordering};
use shootdown::tags::broadcast::BroadcastTags;
use shootdown_machine::hostile::{Descriptor, TableId, Word};
use shootdown_machine::hunt::hw::{self, Target};
use shootdown_machine::oracle::Invariant;

use crate::check::mutants::kit::meet;
use crate::check::mutants::scene::Scene;

const FIRST: u16 = 7;
const TAGS: u32 = 4;
const SPACES: usize = 4;

/// What is known of a number, invisible to the adversary but for `seen`.
struct Number {
    owned: Cell<bool>,
    /// How often it was used: as others see it, and in truth. A new owner has to see the truth.
    seen: AtomicU64,
    truth: Cell<u64>,
}

struct World {
    tags: BroadcastTags<1>,
    numbers: [Number; 8],
    roots: [TableId; SPACES],
    kernel: TableId,
    /// What one CPU was given and another runs under.
    given: [Cell<Option<Tag>>; 2],
}

thread_local! {
    static WORLD: Cell<Option<NonNull<World>>> = const { Cell::new(None) };
}

fn world() -> &'static World {
    // SAFETY: placed for the length of this run; the next run's `setup` replaces the pointer first.
    unsafe { WORLD.get().expect("set up").as_ref() }
}

/// Spaces of one page each.
fn setup() {
    let roots = std::array::from_fn(|_| {
        let (root, leaf) = (hw::new_table(), hw::new_table());
        let _ = hw::write_entry(Word::new(leaf, 0), Descriptor::user_rw(hw::new_frame()));
        let _ = hw::write_entry(Word::new(root, 0), Descriptor::table(leaf));
        root
    });
    WORLD.set(Some(hw::place(World {
        tags: BroadcastTags::with_count(Tag(FIRST), TAGS, 12).expect("four tags fit"),
        numbers: std::array::from_fn(|_| Number {
            owned: Cell::new(false),
            seen: AtomicU64::new(0),
            truth: Cell::new(0),
        }),
        roots,
        kernel: hw::new_table(),
        given: [const { Cell::new(None) }; 2],
    })));
    hw::publish();
}

fn broken(what: String) -> ! {
    hw::violation(Invariant::TagReuse, what)
}

fn number(tag: Tag) -> &'static Number {
    &world().numbers[usize::from(tag.0 - FIRST)]
}

/// A space gets a tag and runs under it, if there is one.
fn begin(space: usize) -> Option<Tag> {
    let w = world();
    let reset = || {
        hw::broadcast(Target::Everything);
        hw::sync_broadcast();
    };
    // SAFETY: `reset` makes every CPU forget everything.
    let tag = unsafe { w.tags.assign(hw::relax, reset) }?;
    let n = number(tag);
    if n.owned.replace(true) {
        broken(format!("{tag:?} has two owners"));
    }
    if n.seen.load(Ordering::Relaxed) != n.truth.get() {
        broken(format!("{tag:?} is used by its last owner still"));
    }
    go_on(space, tag);
    Some(tag)
}

/// A space runs under its tag.
fn go_on(space: usize, tag: Tag) {
    let n = number(tag);
    hw::load_root(world().roots[space], tag, true);
    hw::user_code();
    n.truth.set(n.truth.get() + 1);
    n.seen.store(n.truth.get(), Ordering::Relaxed);
    hw::load_kernel(world().kernel, false);
}

/// A space ends.
fn end(tag: Option<Tag>) {
    if let Some(tag) = tag {
        number(tag).owned.set(false);
        // SAFETY: it was the space's, which has ended.
        unsafe { world().tags.release(tag) };
    }
}

/// One CPU gives out and takes back, by an order without a pattern. The last tag stays with its
/// owner.
fn alone(_: u8) {
    let given = [0, 1, 2, 3].map(begin);
    let mut live = given[..3].to_vec();
    let mut random = 1u64;
    for _ in 0..40 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let choice = (random >> 33) as usize;
        if choice.is_multiple_of(2) {
            live.push(begin(choice / 2 % 3));
        } else if !live.is_empty() {
            end(live.swap_remove(choice / 2 % live.len()));
        }
    }
    if let Some(tag) = given[3] {
        go_on(3, tag);
    }
}

/// Both CPUs give out and take back.
fn both(cpu: u8) {
    let mine = usize::from(cpu);
    for _ in 0..3 {
        let (one, two) = (begin(mine), begin(2 + mine));
        end(one);
        end(two);
    }
}

/// CPU 1 ends a space, perhaps while CPU 0 frees what was released before; then it runs those that
/// came after.
fn ends_during_reset(cpu: u8) {
    let w = world();
    if cpu == 0 {
        let kept = [begin(0), begin(0), begin(0)];
        meet(2);
        meet(4);
        end(kept[0]);
        for (cell, space) in w.given.iter().zip([1, 3]) {
            cell.set(begin(space));
        }
        meet(6);
        return;
    }
    meet(2);
    let mine = begin(2);
    meet(4);
    if let Some(tag) = mine {
        go_on(2, tag);
    }
    end(mine);
    meet(6);
    for (cell, space) in w.given.iter().zip([1, 3]) {
        if let Some(tag) = cell.get() {
            go_on(space, tag);
        }
    }
}

pub static SCENES: &[Scene] = &[
    Scene::new("clean", "tags for all CPUs come back while the last has an owner", 1, alone)
        .setup(setup)
        .kills(&[
            NotFoundClaimed,
            ReleasedIsFree,
            ResetForgotten,
            AssignedNotTaken,
            ResetFreesOwned,
            ReleasedKept,
        ]),
    Scene::new("clean-both", "two CPUs get and release tags for all CPUs", 2, both)
        .setup(setup)
        .kills(&[
            BroadcastTagsLockIgnored,
            BroadcastTagsLockRelaxed,
            BroadcastTagsUnlockRelaxed,
            TagReleaseRelaxed,
            TagReleaseSeenRelaxed,
        ]),
    Scene::new(
        "clean-ends",
        "a tag for all CPUs is released while others are freed",
        2,
        ends_during_reset,
    )
    .setup(setup)
    .kills(&[ReleasedNotedLate]),
];
