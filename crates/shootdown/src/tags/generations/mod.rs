//! Versioned tags: one tag means one space on every CPU (Arm and RISC-V ASIDs, VMIDs).
//!
//! # The problem
//! There are fewer tags than spaces. When they run out, the allocator takes all of them back at
//! once: a *rollover* begins a new generation, in which every space needs a new tag, and every CPU
//! must drop what it cached under the old ones. CPUs go on running meanwhile, under tags of the old
//! generation, and may do so through any number of rollovers: those tags stay with their spaces.
//!
//! # The protocol
//! A space's *id* is its tag with the generation that it was given in. A CPU that switches to a
//! space publishes the id as *active*. In the common case that is all: the id is of the current
//! generation, and one compare-and-swap replaces the previous active id. A rollover takes every
//! CPU's active id away (swaps in `TAKEN`), which makes that compare-and-swap fail: the CPU then
//! takes the lock.
//!
//! Under the lock, an id of an old generation is renewed. It keeps its number if a CPU still runs
//! under it (*reserved*), if it is pinned, or if no space has taken the number yet in this
//! generation. Otherwise the space gets the next free number; and when there is none, the
//! generation rolls over.
//!
//! A CPU flushes everything when it activates an id of a generation for which it has not flushed
//! ([`Activated::flush`]); so a rollover does not wait until all have flushed. It waits only for
//! CPUs that have published the id that they switch to, and still have the tables of their previous
//! space loaded ([`CpuTag::loaded`]). No word says any more that this previous space is in use. If
//! it got a fresh tag now, an invalidation by that tag would not reach the entries that those CPUs'
//! walkers hold under the old tag. Such a CPU has interrupts off and waits for no other CPU.
//!
//! (Algorithm: the Arm ASID allocator of Linux by Will Deacon and Catalin Marinas, as published;
//! the sorted table of reserved ids, which makes a renewal independent of the number of CPUs, is
//! ours.)
//!
//! # Invariants
//! I1: on one CPU, two spaces never have entries under one tag: a CPU activates an id only of the
//! current generation, after it has flushed for that generation. I2: two spaces that are active at
//! the same moment have different tags: a tag that a CPU runs under is marked taken when a
//! generation begins. I3: a space that is active on two CPUs has one tag on both: it keeps its
//! number as long as one of them runs under it. I4: a pinned tag stays with its space. I5: a
//! renewal finds a free number: there are more numbers than CPUs and pins together
//! ([`Generations::new`], [`Generations::pin`]). I6: when a space gets a fresh tag (one that is not
//! the reserved one), no CPU has its tables loaded, and no CPU uses what it cached under the old
//! tag before it flushes.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | V1 swap of an active id for `TAKEN` (rollover) | Acquire | V2 | both are read-modify-writes of one word: either V2 comes first, and V1 returns the id and reserves it, and then sees V7; or V2 fails |
//! | V2 replacing the active id (fast path, [`CpuTag::deactivate`]) | Release | V1 | |
//! | V3 taking the lock | Acquire | V4 | the map, the reserved table and ids are seen as the previous holder left them |
//! | V4 giving it back | Release | V3 | |
//! | V5 reading an id, the generation (fast path) | Relaxed | – | a stale value fails the comparison, or is still active when V1 comes, or makes V2 fail |
//! | V6 storing a fresh id; reading it (fast path) | Release; Acquire | each other | a CPU that runs under a fresh tag sees what was reset for it ([`Generations::activate_fresh`]) |
//! | V7 *loading* before V2 | by V2 | V1 | a rollover that finds the new id finds that the old tables may still be loaded |
//! | V8 *loaded*; reading it (rollover) | Release; Acquire | each other | walks through the old tables are over before their space gets a fresh tag |
//!
//! The lock is held for one renewal, or one rollover (proportional to the CPUs and to the tags /
//! 64). A CPU that waits for it has interrupts off and serves no other CPU meanwhile; the holder
//! waits for no CPU that waits for the lock.

mod error;
mod holders;
mod reserved;

use crate::base::ids::{CpuId, Tag};
use crate::base::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use holders::{INACTIVE, NUMBER_BITS, TAKEN, generation_of, number_of};
use reserved::Reserved;

pub use error::TagsError;
pub use holders::{CpuTag, CpuTags, SpaceTag};

/// Numbers in a word of the map.
const WORD: usize = 64;

/// What a CPU must do with the tag it has activated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "what is to be flushed must be flushed before the tag is used"]
pub struct Activated {
    /// The tag to load the tables under.
    pub tag: Tag,
    /// Everything on this CPU must be invalidated first: a new generation has begun.
    pub flush: bool,
    /// This call has begun a new generation.
    pub rolled_over: bool,
}

/// What every switch reads. It has a line of its own, which only a rollover writes: a CPU that
/// takes the lock does not take this line away from CPUs that switch without the lock.
#[derive(Debug)]
#[repr(align(64))]
struct Read {
    generation: AtomicU64,
    cpus: u32,
    /// How many numbers there are, 0 included.
    numbers: u32,
    /// The tag is the number shifted left by this: by 1 where user and kernel halves have a tag
    /// each.
    shift: u8,
}

/// The allocator: one per kernel and kind of tag. It has `WORDS` words of 64 numbers each, and room
/// for at most `CPUS` CPUs.
#[derive(Debug)]
pub struct Generations<const WORDS: usize, const CPUS: usize> {
    read: Read,
    lock: AtomicBool,
    /// Numbers taken in this generation.
    map: [AtomicU64; WORDS],
    pinned: [AtomicU64; WORDS],
    pins: AtomicU32,
    next: AtomicU32,
    /// The ids that CPUs ran under when the generation began, as renewed since.
    reserved: Reserved<CPUS>,
}

/// The number that a renewal gives a space.
enum Number {
    /// The number that it has: CPUs run under it.
    InUse(usize),
    /// A number under which no CPU has entries that it would not flush first.
    Fresh(usize),
}

impl<const WORDS: usize, const CPUS: usize> Generations<WORDS, CPUS> {
    /// An allocator of tags of `bits` bits for `cpus` CPUs; with `pairs`, each space has two (the
    /// even one for the kernel's half, the odd one for the user's).
    ///
    /// # Errors
    /// See [`TagsError`].
    pub fn new(bits: u8, pairs: bool, cpus: u32) -> Result<Self, TagsError> {
        if !(2..=16).contains(&bits) {
            return Err(TagsError::Width(bits));
        }
        let numbers = 1u32 << (bits - u8::from(pairs));
        if numbers as usize > WORDS * WORD {
            return Err(TagsError::Width(bits));
        }
        if cpus as usize > CPUS {
            return Err(TagsError::TooManyCpus(cpus));
        }
        // One number is never given out, and one must be left when every CPU has one.
        if numbers - 1 <= cpus {
            return Err(TagsError::TooFew { tags: numbers - 1, cpus });
        }
        let this = Self {
            read: Read { generation: AtomicU64::new(1), cpus, numbers, shift: u8::from(pairs) },
            lock: AtomicBool::new(false),
            map: core::array::from_fn(|_| AtomicU64::new(0)),
            pinned: core::array::from_fn(|_| AtomicU64::new(0)),
            pins: AtomicU32::new(0),
            next: AtomicU32::new(1),
            reserved: Reserved::new(),
        };
        this.map[0].store(1, Ordering::Relaxed);
        Ok(this)
    }

    /// Was it made for tags of `bits` bits, in pairs or not, and for this CPU?
    #[must_use]
    pub fn serves(&self, bits: u8, pairs: bool, cpu: CpuId) -> bool {
        let pair = u8::from(pairs);
        pair == self.read.shift && self.read.numbers == 1 << (bits - pair) && cpu.0 < self.read.cpus
    }

    fn generation(&self) -> u64 {
        self.read.generation.load(Ordering::Relaxed) // [V5]
    }

    /// The tag that a space has now, of any generation: an invalidation by tag must name it.
    ///
    /// Publish the table stores before the call. A space that is renewed at the same moment gets a
    /// tag without entries, and its walkers find the tables as they are now.
    #[must_use]
    pub fn tag_of(&self, space: &SpaceTag) -> Option<Tag> {
        let id = space.id();
        (id != 0).then(|| self.tag(id))
    }

    fn tag(&self, id: u64) -> Tag {
        #[allow(clippy::cast_possible_truncation)] // checked by `new`
        Tag((number_of(id) << self.read.shift) as u16)
    }

    /// Gives the executing CPU the tag of the space that it switches to. It calls `wait` while
    /// another CPU holds the lock.
    ///
    /// Call it with interrupts off, before the space's tables are loaded under the tag. If
    /// [`Activated::flush`] is set, invalidate everything on this CPU first. When the tables are in
    /// force, call [`CpuTag::loaded`].
    ///
    /// # Safety
    /// 1. Interrupts are off on the executing CPU, which is `cpu`, from before the call until after
    ///    [`CpuTag::loaded`], and the caller is no handler that interrupted such a switch.
    /// 2. `cpus` has the same states in every call for this allocator: those of all CPUs that run
    ///    under its tags. They and `space` are used with no other allocator.
    /// 3. If [`Activated::flush`] is set, everything is invalidated on this CPU before tables are
    ///    loaded under the tag.
    ///
    /// # Panics
    /// When `cpus` has no state for the CPU.
    pub unsafe fn activate<C: CpuTags + ?Sized>(
        &self,
        cpu: CpuId,
        space: &SpaceTag,
        cpus: &C,
        wait: impl FnMut(),
    ) -> Activated {
        // SAFETY: this function's contract.
        unsafe { self.activate_fresh(cpu, space, cpus, wait, || ()) }
    }

    /// Like [`activate`](Self::activate), but calls `fresh`, under the lock, when the space gets a
    /// fresh tag: one under which no CPU has entries, at a moment when no CPU has the space's
    /// tables loaded. A CPU that activates the space under that tag sees what `fresh` has stored.
    ///
    /// # Safety
    /// As [`activate`](Self::activate).
    ///
    /// # Panics
    /// When `cpus` has no state for the CPU.
    pub unsafe fn activate_fresh<C: CpuTags + ?Sized>(
        &self,
        cpu: CpuId,
        space: &SpaceTag,
        cpus: &C,
        mut wait: impl FnMut(),
        fresh: impl FnOnce(),
    ) -> Activated {
        let me = cpus.of(cpu).expect("a CPU that switches has a state");
        let active = me.active.load(Ordering::Relaxed);
        let (id, generation) = (space.id(), self.generation());
        let flushed = || me.flushed.load(Ordering::Relaxed) == generation;
        if active != TAKEN
            && generation_of(id) == generation
            && flushed()
            && me.replace_active(active, id)
        {
            return Activated { tag: self.tag(id), flush: false, rolled_over: false };
        }
        self.locked(&mut wait, |wait| self.activate_locked(me, space, cpus, wait, fresh))
    }

    fn locked<W: FnMut(), R>(&self, mut wait: W, f: impl FnOnce(&mut W) -> R) -> R {
        // [V3]
        while self.lock.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            // A CPU that waits may sleep until the line that it loaded last is written.
            while self.lock.load(Ordering::Relaxed) {
                wait();
            }
        }
        let result = f(&mut wait);
        self.lock.store(false, Ordering::Release); // [V4]
        result
    }

    fn activate_locked<C: CpuTags + ?Sized>(
        &self,
        me: &CpuTag,
        space: &SpaceTag,
        cpus: &C,
        wait: &mut impl FnMut(),
        fresh: impl FnOnce(),
    ) -> Activated {
        let before = self.generation();
        let id = self.renew(space, cpus, wait, fresh);
        let generation = self.generation();
        let flushed = me.flushed.load(Ordering::Relaxed) == generation;
        me.flushed.store(generation, Ordering::Relaxed);
        me.loading.store(true, Ordering::Relaxed); // [V7]: by V4
        me.active.store(id, Ordering::Relaxed);
        Activated { tag: self.tag(id), flush: !flushed, rolled_over: generation != before }
    }

    /// Makes the space's id one of the current generation. Under the lock.
    fn renew<C: CpuTags + ?Sized>(
        &self,
        space: &SpaceTag,
        cpus: &C,
        wait: &mut impl FnMut(),
        fresh: impl FnOnce(),
    ) -> u64 {
        let old = space.id();
        if generation_of(old) == self.generation() {
            return old;
        }
        let kept = || self.keep(space, old).or_else(|| self.take_free().map(Number::Fresh));
        let number = kept().unwrap_or_else(|| {
            self.roll_over(cpus, wait);
            // The space may run on some CPU, and then must keep its number (I3).
            kept().expect("more numbers than CPUs and pins (I5)")
        });
        let id = |number: usize| self.generation() << NUMBER_BITS | number as u64;
        match number {
            Number::InUse(number) => {
                let id = id(number);
                space.id.store(id, Ordering::Relaxed);
                id
            }
            Number::Fresh(number) => {
                let id = id(number);
                fresh();
                space.id.store(id, Ordering::Release); // [V6]
                id
            }
        }
    }

    /// The number of an old id, if the space may keep it.
    fn keep(&self, space: &SpaceTag, id: u64) -> Option<Number> {
        if id == 0 {
            return None;
        }
        let number = number_of(id);
        let (word, bit) = (number / WORD, 1 << (number % WORD));
        if let Some(at) = self.reserved.find(number) {
            // A CPU runs under the number: does it run this space?
            if self.reserved.get(at) != id {
                return None;
            }
            let renewed = self.generation() << NUMBER_BITS | number as u64;
            self.reserved.renew(at, renewed);
            return Some(Number::InUse(number));
        }
        if space.pins.load(Ordering::Relaxed) != 0 {
            return Some(Number::Fresh(number));
        }
        let taken = self.map[word].load(Ordering::Relaxed);
        if taken & bit != 0 {
            return None;
        }
        self.map[word].store(taken | bit, Ordering::Relaxed);
        Some(Number::Fresh(number))
    }

    /// Takes the next number that no space has.
    fn take_free(&self) -> Option<usize> {
        let (next, numbers) =
            (self.next.load(Ordering::Relaxed) as usize, self.read.numbers as usize);
        let number = self.free_from(next, numbers).or_else(|| self.free_from(1, next))?;
        let word = &self.map[number / WORD];
        let bit = 1 << (number % WORD);
        word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        #[allow(clippy::cast_possible_truncation)] // at most 2^16
        self.next.store((number + 1) as u32, Ordering::Relaxed);
        Some(number)
    }

    fn free_from(&self, from: usize, to: usize) -> Option<usize> {
        let mut number = from;
        while number < to {
            let free = !self.map[number / WORD].load(Ordering::Relaxed) >> (number % WORD);
            if free != 0 {
                let found = number + free.trailing_zeros() as usize;
                return (found < to).then_some(found);
            }
            number = (number / WORD + 1) * WORD;
        }
        None
    }

    /// Begins a new generation: every tag becomes free, except those that CPUs run under and those
    /// that are pinned.
    fn roll_over<C: CpuTags + ?Sized>(&self, cpus: &C, wait: &mut impl FnMut()) {
        let next = self.generation() + 1;
        self.read.generation.store(next, Ordering::Relaxed);
        for (word, pinned) in self.map.iter().zip(&self.pinned) {
            let pinned = pinned.load(Ordering::Relaxed);
            word.store(pinned, Ordering::Relaxed);
        }
        self.map[0].store(self.map[0].load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        let states = || (0..self.read.cpus).filter_map(|cpu| cpus.of(CpuId(cpu)));
        for cpu in states() {
            let id = match cpu.active.swap(TAKEN, Ordering::Acquire) {
                // An earlier rollover has taken this id, and the CPU has not switched since: it
                // runs under the id that was reserved then, which its space may have renewed.
                TAKEN => {
                    match self.reserved.find(number_of(cpu.reserved.load(Ordering::Relaxed))) {
                        Some(at) => self.reserved.get(at),
                        None => 0,
                    }
                }
                INACTIVE => 0,
                id => id, // [V1]
            };
            cpu.reserved.store(id, Ordering::Relaxed);
            while cpu.loading.load(Ordering::Acquire) {
                wait(); // [V8]
            }
        }
        let ids = || states().map(|cpu| cpu.reserved.load(Ordering::Relaxed)).filter(|id| *id != 0);
        for id in ids() {
            let (word, bit) = (&self.map[number_of(id) / WORD], 1 << (number_of(id) % WORD));
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
        self.reserved.fill(ids());
        self.next.store(1, Ordering::Relaxed);
    }

    /// Gives the space a tag that no rollover takes away until the space is unpinned as often as
    /// pinned, for devices that share its tables. Returns the tag.
    ///
    /// # Safety
    /// Contract 2 of [`activate`](Self::activate).
    ///
    /// # Errors
    /// [`TagsError::NoPinLeft`]; nothing has changed then.
    ///
    /// # Panics
    /// When a space is pinned 2^32 times.
    pub unsafe fn pin<C: CpuTags + ?Sized>(
        &self,
        space: &SpaceTag,
        cpus: &C,
        wait: impl FnMut(),
    ) -> Result<Tag, TagsError> {
        self.locked(wait, |wait| {
            let pins = space.pins.load(Ordering::Relaxed);
            if pins == 0 {
                let pinned = self.pins.load(Ordering::Relaxed);
                // One number is never given out, and one must be left when all CPUs and pins have
                // theirs.
                if self.read.numbers - 1 <= self.read.cpus + pinned + 1 {
                    return Err(TagsError::NoPinLeft);
                }
                self.pins.store(pinned + 1, Ordering::Relaxed);
            }
            let number = number_of(self.renew(space, cpus, wait, || ()));
            let word = &self.pinned[number / WORD];
            let bit = 1 << (number % WORD);
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
            space.pins.store(pins.checked_add(1).expect("fewer than 2^32 pins"), Ordering::Relaxed);
            Ok(self.tag(space.id()))
        })
    }

    /// Takes one pin back. A space that is not pinned is left as it is.
    ///
    /// # Safety
    /// The device for which the tag was pinned no longer uses it, and nothing is cached for it: the
    /// next rollover may give the tag to another space.
    pub unsafe fn unpin(&self, space: &SpaceTag, wait: impl FnMut()) {
        self.locked(wait, |_| {
            let pins = space.pins.load(Ordering::Relaxed);
            let Some(left) = pins.checked_sub(1) else { return };
            space.pins.store(left, Ordering::Relaxed);
            if left == 0 {
                let number = number_of(space.id());
                let word = &self.pinned[number / WORD];
                word.store(
                    word.load(Ordering::Relaxed) & !(1 << (number % WORD)),
                    Ordering::Relaxed,
                );
                self.pins.store(self.pins.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
