//! Machine-wide tags beside slots under the `loom` model checker: the allocator, and the move of a
//! space from slots to a tag while CPUs switch and flush.
//!
//! What hardware does (tables as walkers see them, caches of translations, broadcasts) is in plain
//! cells: it happens at once for all CPUs, and orders nothing for software.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_broadcast`
#![cfg(loom)]

mod loom_support;

use std::cell::Cell;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;
use loom_support::holds;
use shootdown_woven::cpu_set::{Bits, CpuSet};
use shootdown_woven::mutant::Mutant;
use shootdown_woven::tags::broadcast::BroadcastTags;
use shootdown_woven::tags::shared::{Phase, SharedTag, Uses};
use shootdown_woven::{CpuId, Tag};

// ---- the allocator

const FIRST: u16 = 7;

/// Tags, and what hardware has cached under each. One model runs one thread at a time.
struct Numbers {
    tags: BroadcastTags<1>,
    owned: [Cell<bool>; 8],
    cached: [Cell<bool>; 8],
    /// What an owner does on the tag's account.
    used: [UnsafeCell<u64>; 8],
    /// Where the checker may change threads: it does not see cells.
    step: AtomicU64,
}

// SAFETY: `loom` runs the threads of a model by turns, on one thread of the system.
unsafe impl Send for Numbers {}
// SAFETY: as above.
unsafe impl Sync for Numbers {}

impl Numbers {
    fn new(count: u32) -> Self {
        Self {
            tags: BroadcastTags::with_count(Tag(FIRST), count, 12).expect("they fit"),
            owned: std::array::from_fn(|_| Cell::new(false)),
            cached: std::array::from_fn(|_| Cell::new(false)),
            used: std::array::from_fn(|_| UnsafeCell::new(0)),
            step: AtomicU64::new(0),
        }
    }

    fn at(tag: Tag) -> usize {
        usize::from(tag.0 - FIRST)
    }

    fn assign(&self) -> Option<Tag> {
        let forget = || {
            self.step.fetch_add(1, Ordering::Relaxed);
            self.cached.iter().for_each(|cached| cached.set(false));
            self.step.fetch_add(1, Ordering::Relaxed);
        };
        // SAFETY: `forget` makes both CPUs forget.
        let tag = unsafe { self.tags.assign(thread::yield_now, forget) }?;
        assert!(!self.owned[Self::at(tag)].replace(true), "{tag:?} has two owners");
        assert!(!self.cached[Self::at(tag)].replace(true), "{tag:?} has entries of its last owner");
        self.step.fetch_add(1, Ordering::Relaxed);
        self.use_it(tag);
        Some(tag)
    }

    fn use_it(&self, tag: Tag) {
        // SAFETY: a tag has one owner; `loom` objects if it has not.
        self.used[Self::at(tag)].with_mut(|used| unsafe { *used += 1 });
    }

    fn release(&self, tag: Tag) {
        self.use_it(tag);
        // Walked again, to the last.
        self.cached[Self::at(tag)].set(true);
        self.owned[Self::at(tag)].set(false);
        // SAFETY: it was given out to the model, which uses it no more.
        unsafe { self.tags.release(tag) };
    }
}

#[test]
fn no_tag_has_two_owners_when_the_tail_is_held() {
    use Mutant::*;
    let mutants = [
        NotFoundClaimed,
        ReleasedIsFree,
        ResetForgotten,
        AssignedNotTaken,
        ResetFreesOwned,
        ReleasedKept,
    ];
    // One CPU: a property of long runs, not of interleavings.
    holds("the tail is held", None, &mutants, || {
        let numbers = Numbers::new(4);
        let given: [Tag; 4] = std::array::from_fn(|_| numbers.assign().expect("four tags"));
        // The last number stays with its owner; the others come and go, by an order without a
        // pattern.
        let mut lives = given[..3].to_vec();
        let mut random = 1u64;
        for _ in 0..120 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = (random >> 33) as usize;
            if choice % 2 == 0 {
                lives.extend(numbers.assign());
            } else if !lives.is_empty() {
                numbers.release(lives.swap_remove(choice / 2 % lives.len()));
            }
        }
        assert!(numbers.owned[3].get(), "the owner of the tail lives");
    });
}

#[test]
fn a_tag_that_is_released_during_a_reset_is_not_clean_after_it() {
    use Mutant::*;
    let mutants = [ReleasedNotedLate, TagReleaseRelaxed, TagReleaseSeenRelaxed];
    holds("release against reset", Some(3), &mutants, || {
        let numbers = Arc::new(Numbers::new(2));
        let [first, second] = [(); 2].map(|()| numbers.assign().expect("two tags"));
        let other = {
            let numbers = Arc::clone(&numbers);
            thread::spawn(move || numbers.release(second))
        };
        numbers.release(first);
        let again = numbers.assign();
        assert!(again.is_some());
        let more = numbers.assign();
        other.join().unwrap();
        assert!(more != again);
    });
}

#[test]
fn two_cpus_that_assign_at_once_get_different_clean_tags() {
    use Mutant::*;
    let mutants = [
        BroadcastTagsLockIgnored,
        BroadcastTagsLockRelaxed,
        BroadcastTagsUnlockRelaxed,
        ReleasedIsFree,
        ResetForgotten,
    ];
    holds("assignment against assignment", Some(3), &mutants, || {
        let numbers = Arc::new(Numbers::new(2));
        let other = {
            let numbers = Arc::clone(&numbers);
            thread::spawn(move || numbers.assign())
        };
        let mine = numbers.assign().expect("two tags for two CPUs");
        numbers.release(mine);
        let again = numbers.assign().expect("released");
        let theirs = other.join().unwrap().expect("never more than two owners");
        assert_ne!(again, theirs);
    });
}

// ---- the move of a space

const ELSEWHERE: u64 = 0;
const SWITCHING: u64 = 1;
const SLOT: u64 = 2;
/// And from here on, machine-wide tags.
const SHARED: u64 = 3;

/// A space of one page on CPUs that run it or not.
struct Space {
    tag: SharedTag,
    /// The page is mapped.
    mapped: Cell<bool>,
    /// Where the checker may change threads: it does not see cells.
    step: AtomicU64,
    generation: AtomicU64,
    loaded: [AtomicU64; 2],
    /// The generation that a CPU has caught up with on request.
    acknowledged: [AtomicU64; 2],
    kicked: [AtomicBool; 2],
    /// Hardware: what each CPU has cached under its slot, and under either tag.
    slot: [Cell<bool>; 2],
    /// The CPU's own: the generation of its slot.
    current: [Cell<u64>; 2],
    shared: [[Cell<bool>; 2]; 2],
    /// The flush has returned.
    flushed: Cell<bool>,
    frame: UnsafeCell<u64>,
}

// SAFETY: `loom` runs the threads of a model by turns, on one thread of the system; it watches
// `frame` itself.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

impl Space {
    fn new() -> Self {
        let cells = || std::array::from_fn(|_| Cell::new(false));
        Self {
            tag: SharedTag::new(),
            mapped: Cell::new(true),
            step: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            loaded: std::array::from_fn(|_| AtomicU64::new(ELSEWHERE)),
            acknowledged: std::array::from_fn(|_| AtomicU64::new(0)),
            kicked: std::array::from_fn(|_| AtomicBool::new(false)),
            slot: cells(),
            current: std::array::from_fn(|_| Cell::new(0)),
            shared: std::array::from_fn(|_| cells()),
            flushed: Cell::new(false),
            frame: UnsafeCell::new(0),
        }
    }

    /// The CPU has used the page under its slot, and has the space loaded still, or not.
    fn with_slot(self, cpu: usize, loaded: bool) -> Self {
        self.slot[cpu].set(true);
        self.loaded[cpu].store(if loaded { SLOT } else { ELSEWHERE }, Ordering::Relaxed);
        self
    }

    fn switch_to(&self, cpu: usize) {
        self.loaded[cpu].store(SWITCHING, Ordering::Relaxed);
        fence(Ordering::SeqCst); // D1
        let generation = self.generation.load(Ordering::Acquire);
        let loaded = match self.tag.tag() {
            Some(tag) => SHARED + u64::from(tag.0),
            None => {
                if self.current[cpu].replace(generation) != generation {
                    self.slot[cpu].set(false);
                }
                SLOT
            }
        };
        self.loaded[cpu].store(loaded, Ordering::Release);
    }

    fn leave(&self, cpu: usize) {
        self.loaded[cpu].store(ELSEWHERE, Ordering::Release);
    }

    /// User code uses the page, if it can.
    fn access(&self, cpu: usize) {
        let entry = match self.loaded[cpu].load(Ordering::Relaxed) {
            ELSEWHERE | SWITCHING => return,
            SLOT => &self.slot[cpu],
            tag => &self.shared[cpu][(tag - SHARED) as usize],
        };
        self.step.store(0, Ordering::Relaxed);
        if self.mapped.get() {
            entry.set(true);
        }
        assert!(!entry.get() || !self.flushed.get(), "a stale entry of cpu{cpu} is used");
    }

    /// The CPU looks for a kick.
    fn interrupts(&self, cpu: usize) {
        if !self.kicked[cpu].swap(false, Ordering::AcqRel) {
            return;
        }
        let generation = self.generation.load(Ordering::Acquire);
        match self.loaded[cpu].load(Ordering::Relaxed) {
            SLOT if self.tag.tag().is_some() => self.switch_to(cpu),
            SLOT => {
                self.current[cpu].set(generation);
                self.slot[cpu].set(false);
            }
            _ => {}
        }
        self.acknowledged[cpu].store(generation, Ordering::Release);
    }

    fn uses(&self, cpu: usize) -> Uses {
        match self.loaded[cpu].load(Ordering::Acquire) {
            ELSEWHERE => Uses::Nothing,
            SWITCHING => Uses::Unknown,
            SLOT => Uses::Slot,
            _ => Uses::Shared,
        }
    }

    fn settle(&self) -> bool {
        let both = || {
            let mut cpus = CpuSet::<1>::EMPTY;
            (0..2).for_each(|cpu| cpus.insert(CpuId(cpu)));
            cpus
        };
        self.tag.settle(both, |cpu| self.uses(cpu.index()))
    }

    fn broadcast(&self, tag: Tag) {
        self.step.store(0, Ordering::Relaxed);
        self.shared.iter().for_each(|cpu| cpu[usize::from(tag.0)].set(false));
    }

    /// The page is taken away. `me`: the CPU that does it, which serves its own kicks.
    fn unmap(&self, me: usize) {
        self.step.store(0, Ordering::Relaxed);
        self.mapped.set(false);
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        fence(Ordering::SeqCst); // D1
        if let Some(tag) = self.tag.moved() {
            self.broadcast(tag);
        } else {
            for cpu in 0..2 {
                let answers = || matches!(self.uses(cpu), Uses::Nothing | Uses::Shared);
                if answers() {
                    continue;
                }
                self.kicked[cpu].store(true, Ordering::Release);
                self.interrupts(me);
                while self.acknowledged[cpu].load(Ordering::Acquire) < generation && !answers() {
                    thread::yield_now();
                }
            }
            if let Some(tag) = self.tag.after_asking() {
                self.broadcast(tag);
            }
        }
        self.flushed.set(true);
    }
}

/// The other CPU comes back, uses the page twice with a look for kicks in between, and leaves.
fn visit(space: &Space, cpu: usize) {
    space.switch_to(cpu);
    space.access(cpu);
    space.interrupts(cpu);
    space.access(cpu);
    space.leave(cpu);
}

#[test]
fn a_cpu_that_comes_back_to_its_slot_is_seen_or_sees_the_tag() {
    use Mutant::*;
    let mutants = [SettleWithoutSharedFence, SettleIgnoresSwitching];
    holds("settling against a switch", Some(3), &mutants, || {
        let space = Arc::new(Space::new().with_slot(1, false));
        let other = {
            let space = Arc::clone(&space);
            thread::spawn(move || visit(&space, 1))
        };
        space.tag.assign(Tag(0)).expect("the only one to assign");
        let _ = space.settle();
        space.unmap(0);
        other.join().unwrap();
    });
}

#[test]
fn a_cpu_that_stays_under_its_slot_is_asked() {
    use Mutant::*;
    let mutants = [SettleIgnoresSlots, MovingCountsAsMoved];
    holds("settling against a CPU that stays", Some(3), &mutants, || {
        let space = Arc::new(Space::new().with_slot(1, true));
        let other = {
            let space = Arc::clone(&space);
            thread::spawn(move || {
                space.access(1);
                space.interrupts(1);
                space.access(1);
                space.leave(1);
            })
        };
        space.tag.assign(Tag(0)).expect("the only one to assign");
        let _ = space.settle();
        space.unmap(0);
        other.join().unwrap();
    });
}

#[test]
fn a_tag_that_comes_during_a_flush_is_broadcast_for() {
    holds("assignment against a flush", Some(3), &[Mutant::SharedTagNotLookedAtAgain], || {
        let space = Arc::new(Space::new());
        let other = {
            let space = Arc::clone(&space);
            thread::spawn(move || {
                space.tag.assign(Tag(0)).expect("the only one to assign");
                visit(&space, 1);
                // What it has cached is current when it comes back: it does not look.
                visit(&space, 1);
            })
        };
        space.unmap(0);
        other.join().unwrap();
    });
}

#[test]
fn two_cpus_that_assign_agree_on_one_tag() {
    holds("assignment against assignment", Some(3), &[Mutant::SharedTagOverwritten], || {
        let space = Arc::new(Space::new());
        let other = {
            let space = Arc::clone(&space);
            thread::spawn(move || {
                let _ = space.tag.assign(Tag(1));
                visit(&space, 1);
            })
        };
        let _ = space.tag.assign(Tag(0));
        space.switch_to(0);
        space.access(0);
        if space.settle() {
            space.unmap(0);
            space.access(0);
        }
        other.join().unwrap();
        assert!(!matches!(space.tag.phase(), Phase::Slots));
    });
}

#[test]
fn whoever_settles_need_not_have_assigned() {
    holds("settling by another CPU", Some(3), &[Mutant::SettleWithoutSharedFence], || {
        let space = Arc::new(Space::new().with_slot(1, false));
        let assigns = {
            let space = Arc::clone(&space);
            thread::spawn(move || space.tag.assign(Tag(0)).expect("the only one to assign"))
        };
        let switches = {
            let space = Arc::clone(&space);
            thread::spawn(move || {
                space.switch_to(1);
                space.access(1);
                space.leave(1);
            })
        };
        if space.settle() {
            space.unmap(0);
        }
        assigns.join().unwrap();
        switches.join().unwrap();
    });
}

#[test]
fn what_was_done_under_a_slot_is_over_when_the_space_has_moved() {
    let mutants = [Mutant::MovedRelaxed, Mutant::SharedTagRelaxed];
    holds("use under a slot, then reuse", None, &mutants, || {
        let space = Arc::new(Space::new().with_slot(1, true));
        space.tag.assign(Tag(0)).expect("the only one to assign");
        let uses = {
            let space = Arc::clone(&space);
            thread::spawn(move || {
                // SAFETY: through the page, which is the space's until a flush returns.
                space.frame.with_mut(|frame| unsafe { *frame = 1 });
                space.leave(1);
            })
        };
        let settles = {
            let space = Arc::clone(&space);
            thread::spawn(move || {
                while !space.settle() {
                    thread::yield_now();
                }
            })
        };
        // A flush, from behind its fence on.
        let tag = loop {
            match space.tag.moved() {
                Some(tag) => break tag,
                None => thread::yield_now(),
            }
        };
        space.broadcast(tag);
        // SAFETY: the frame is nobody's any more.
        space.frame.with_mut(|frame| unsafe { *frame = 2 });
        uses.join().unwrap();
        settles.join().unwrap();
    });
}
