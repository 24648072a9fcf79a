//! Versioned tags under the `loom` model checker: the lock-free switch against a rollover.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_tags`
#![cfg(loom)]

mod loom_support;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use loom_support::holds;
use shootdown_woven::mutant::Mutant;
use shootdown_woven::tags::generations::{Activated, CpuTag, Generations, SpaceTag};
use shootdown_woven::{CpuId, Tag};

struct World {
    tags: Generations<1, 2>,
    cpus: [CpuTag; 2],
    spaces: [SpaceTag; 4],
}

/// What one CPU has cached: for each tag, entries of which space. Its own thread's.
#[derive(Default)]
struct Tlb([Option<usize>; 4]);

impl World {
    fn new() -> Self {
        Self {
            tags: Generations::new(2, false, 2).expect("three tags for two CPUs"),
            cpus: core::array::from_fn(|_| CpuTag::new()),
            spaces: core::array::from_fn(|_| SpaceTag::new()),
        }
    }

    fn switch(&self, cpu: u32, space: usize, tlb: &mut Tlb) -> Activated {
        self.switch_and(cpu, space, tlb, || (), || ())
    }

    /// `before` comes while the tables of the space before are still loaded; `fresh`, when the
    /// space gets a fresh tag.
    fn switch_and(
        &self,
        cpu: u32,
        space: usize,
        tlb: &mut Tlb,
        before: impl FnOnce(),
        fresh: impl FnOnce(),
    ) -> Activated {
        let (cpus, wait) = (&self.cpus[..], thread::yield_now);
        // SAFETY: a thread each, which nothing interrupts, and one set of CPUs. It forgets below.
        let done =
            unsafe { self.tags.activate_fresh(CpuId(cpu), &self.spaces[space], cpus, wait, fresh) };
        if done.flush {
            *tlb = Tlb::default();
        }
        before();
        // SAFETY: from here on it has entries of the new space only.
        unsafe { self.cpus[cpu as usize].loaded() };
        // As soon as the root is loaded, its walker may cache whatever is there.
        let entry = &mut tlb.0[usize::from(done.tag.0)];
        assert!(entry.is_none_or(|s| s == space), "cpu{cpu} finds entries of another space");
        *entry = Some(space);
        done
    }
}

#[test]
fn a_switch_and_a_rollover_agree_on_who_runs_under_which_tag() {
    use Mutant::*;
    let mutants =
        [FastPathIgnoresRollover, RolloverNotFlushed, ActiveNotReserved, KeepIgnoresOwner];
    holds("fast switch against rollover", None, &mutants, || {
        let world = Arc::new(World::new());
        // Both CPUs have flushed for the first generation; spaces 0, 1 and 2 have its three tags,
        // and CPU 1 is about to run under the one that a new generation gives out first.
        let (mut tlb0, mut tlb1) = (Tlb::default(), Tlb::default());
        let _ = world.switch(1, 0, &mut tlb1);
        let _ = world.switch(1, 1, &mut tlb1);
        let _ = world.switch(0, 2, &mut tlb0);
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let done = world.switch(1, 0, &mut tlb1);
                (done.tag, tlb1)
            })
        };
        // No tag is left for space 3: a new generation begins.
        let mine = world.switch(0, 3, &mut tlb0);
        assert!(mine.rolled_over && mine.flush);
        let (theirs, mut tlb1): (Tag, Tlb) = other.join().unwrap();
        assert_ne!(mine.tag, theirs, "two running spaces have one tag");
        assert_eq!(
            world.tags.tag_of(&world.spaces[0]),
            Some(theirs),
            "a running space lost its tag"
        );
        // And what CPU 1 does next is consistent with what it has cached.
        let _ = world.switch(1, 3, &mut tlb1);
        assert_eq!(world.tags.tag_of(&world.spaces[3]), Some(mine.tag), "one space, two tags");
    });
}

#[test]
fn two_cpus_that_renew_at_once_get_different_tags() {
    use Mutant::*;
    let mutants = [TagLockIgnored, TagLockRelaxed, TagUnlockRelaxed];
    holds("renewal against renewal", None, &mutants, || {
        let world = Arc::new(World::new());
        let (mut tlb0, mut tlb1) = (Tlb::default(), Tlb::default());
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let _ = world.switch(1, 0, &mut tlb1);
                world.switch(1, 1, &mut tlb1).tag
            })
        };
        let shared = world.switch(0, 0, &mut tlb0).tag;
        let mine = world.switch(0, 2, &mut tlb0).tag;
        let theirs = other.join().unwrap();
        assert_ne!(mine, theirs);
        assert_eq!(world.tags.tag_of(&world.spaces[0]), Some(shared));
    });
}

#[test]
fn a_cpu_that_gives_up_its_tag_notices_a_rollover() {
    let mutants = [Mutant::DeactivateOverlooksRollover];
    holds("giving up a tag against rollover", None, &mutants, || {
        let world = Arc::new(World::new());
        let (mut tlb0, mut tlb1) = (Tlb::default(), Tlb::default());
        let _ = world.switch(1, 0, &mut tlb1);
        let _ = world.switch(1, 1, &mut tlb1);
        let _ = world.switch(0, 2, &mut tlb0);
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                // SAFETY: nothing runs on this CPU any more.
                unsafe { world.cpus[1].deactivate() };
                world.switch(1, 0, &mut tlb1).tag
            })
        };
        let mine = world.switch(0, 3, &mut tlb0).tag;
        assert_ne!(mine, other.join().unwrap(), "two running spaces have one tag");
    });
}

#[test]
fn a_space_gets_no_fresh_tag_while_a_cpu_leaves_it() {
    use Mutant::*;
    let mutants = [
        LoadingNotSaid,
        LoadingSetLate,
        ReplaceActiveRelaxed,
        TakeActiveRelaxed,
        TagLoadedRelaxed,
        LoadedSeenRelaxed,
    ];
    holds("leaving a space against its fresh tag", Some(3), &mutants, || {
        let world = Arc::new(World::new());
        // The tables of space 0. Whoever gives it a fresh tag may go on to free some of them.
        let tables = Arc::new(UnsafeCell::new(0));
        let (mut tlb0, mut tlb1) = (Tlb::default(), Tlb::default());
        let _ = world.switch(1, 1, &mut tlb1);
        let _ = world.switch(1, 0, &mut tlb1);
        let _ = world.switch(0, 2, &mut tlb0);
        let other = {
            let (world, tables) = (Arc::clone(&world), Arc::clone(&tables));
            thread::spawn(move || {
                // SAFETY: what is checked: nobody frees them while this CPU's walker is in them.
                let walk =
                    || tables.with(|t| assert_eq!(unsafe { *t }, 0, "a walk in freed tables"));
                let _ = world.switch_and(1, 1, &mut tlb1, walk, || ());
            })
        };
        let _ = world.switch(0, 3, &mut tlb0);
        // SAFETY: as above.
        let free = || tables.with_mut(|t| unsafe { *t = 1 });
        let _ = world.switch_and(0, 0, &mut tlb0, || (), free);
        other.join().unwrap();
    });
}

#[test]
fn who_runs_under_a_fresh_tag_sees_what_was_reset_for_it() {
    use Mutant::*;
    let mutants = [FreshIdRelaxed, FreshIdSeenRelaxed];
    holds("fresh tag against its second user", None, &mutants, || {
        let world = Arc::new(World::new());
        let reset = Arc::new(UnsafeCell::new(0));
        let (mut tlb0, mut tlb1) = (Tlb::default(), Tlb::default());
        let _ = world.switch(1, 1, &mut tlb1);
        let run = |world: &World, cpu: u32, tlb: &mut Tlb, reset: &UnsafeCell<u32>| {
            // SAFETY: what is checked: it is written once, before anyone reads it.
            let fresh = || reset.with_mut(|r| unsafe { *r += 1 });
            let _ = world.switch_and(cpu, 0, tlb, || (), fresh);
            // SAFETY: as above.
            reset.with(|r| assert_eq!(unsafe { *r }, 1));
        };
        let other = {
            let (world, reset) = (Arc::clone(&world), Arc::clone(&reset));
            thread::spawn(move || run(&world, 1, &mut tlb1, &reset))
        };
        run(&world, 0, &mut tlb0, &reset);
        other.join().unwrap();
    });
}
