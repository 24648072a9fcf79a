//! Lazy unmap: CPUs are not notified that a page was unmapped until its frame or its address is
//! needed again.
//!
//! # The problem
//! Most pages that are unmapped are not in use any more, and their frames are not needed at once.
//! The CPUs that could still use the cached entries soon run their scheduler or take a timer
//! interrupt, and could invalidate then without being interrupted. The cost: until then they read
//! what was unmapped.
//!
//! # The protocol
//! A [`LazyUnmapping`] belongs to a space, and is kept under the lock of its tables. It is a choice
//! ([`Policy::lazy_unmap`](crate::policy::Policy), off by default).
//! 1. The kernel clears an entry and calls [`LazyUnmapping::unmapped`] with what the entry was. If
//!    no condition below forbids it, the change is counted, this CPU invalidates, no other CPU is
//!    notified, and the frame stays inside. Otherwise the frame is returned with the reason, and
//!    the caller puts it into a [gather](crate::gather), under the same lock.
//! 2. A CPU invalidates by itself: at its next switch (also to the space that it has loaded), at
//!    its next [tick](crate::accessed::tick), when it comes [from isolated user
//!    mode](crate::isolated::from_user), or when it is notified of any other change of the space.
//! 3. [`LazyUnmapping::redeem`] returns the frames when some are needed: it interrupts the CPUs
//!    that are not current yet, and no others. [`LazyUnmapping::make_way`] does so before an
//!    address is mapped again.
//! 4. [`LazyUnmapping::poll`], called now and then, redeems what is older than the policy allows.
//!    It does not interrupt isolated CPUs: what they may still use stays inside until they have
//!    entered the kernel.
//!
//! # What must not wait
//! | condition | how it is kept |
//! |---|---|
//! | (a) a frame is not reused | items come out when all CPUs have acknowledged, by [`redeem`](LazyUnmapping::redeem), [`poll`](LazyUnmapping::poll) |
//! | (b) an address is not mapped again | [`make_way`](LazyUnmapping::make_way) before, under the table lock |
//! | (c) rights that are taken away are gone when the call returns | only unmappings can be put off; code that relies on an entry that is empty already calls [`complete_pending`](AddressSpace::complete_pending), as always |
//! | (d) tables are not freed | refused: [`Why::Table`] |
//! | (e) devices and other secondary TLBs are notified | refused: [`Why::Device`], [`Why::Broadcast`] |
//! | (f) staleness is bounded | by each CPU's next switch or tick; without ticks by `max_age`, or for isolated CPUs by their next entry into the kernel; in size by `max_pages` |
//! | (g) fork, `ptrace`, software walks see one state | they call `complete_pending` first, as (c); what may be written, or is about to change otherwise, is refused: [`Why::MaybeWritten`], [`Why::Pending`] |
//!
//! (Conditions on record for deferred designs in general: LATR, Mohan Kumar et al., ASPLOS 2018;
//! lazy unmap flush, Byungchul Park, 2024-2025, and the objections to it. The kernel must handle
//! contents of a file that change behind a read-only mapping: code that changes them calls
//! `complete_pending` first.)
//!
//! # Why only a page that is read-only, or was never written
//! Its contents do not depend on which CPUs still have it cached, because no CPU stores to it any
//! more. A writable entry whose dirty bit is clear can't be stored through without a walk, which
//! finds the entry empty and faults: processors check that when they set the bit (Intel SDM vol. 3
//! section 4.8; Arm ARM, hardware management of dirty state; RISC-V privileged specification,
//! Svadu). What an entry says is relied on only if no other change of the space is under way: the
//! entry may have become read-only a moment ago, with its flush still pending.
//!
//! # Invariants
//! I1: no item leaves a `LazyUnmapping`, and no range is free to map, before every CPU has
//! acknowledged everything that was put off with or before it. I2: everything that is pending in a
//! space belongs to this `LazyUnmapping`, or it takes nothing more. I3: a CPU that switches, ticks,
//! or comes from isolated user mode after it has learned of a change uses no entry from before that
//! change.
//!
//! # Orderings
//! No pair is new: what is put off is counted under the table lock, and the CPU that flushes it
//! holds that lock, or relies on `state/pending.rs` (W4, W6). A CPU that has learned of a change
//! reads a generation that includes it (*bump*, `state/space.rs`).

use core::fmt;
use core::mem::ManuallyDrop;

use crate::base::ids::VaRange;
use crate::memory::gather::{Array, Keep};
use crate::ops::come_by::forgets_by_itself;
use crate::ops::flush::{Change, FlushError, Spare, complete_together};
use crate::port::platform::{Pinned, Platform};
use crate::state::cpu::PerCpu;
use crate::state::space::AddressSpace;

pub use crate::port::policy::LazyUnmap;

/// What a cleared entry was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Was {
    /// A page of the space that could not be written.
    ReadOnly,
    /// A page of the space that could be written, on hardware that keeps dirty bits, while the bit
    /// was clear.
    NeverWritten,
    /// A page of the space that may have been written.
    MaybeWritten,
    /// A page of the kernel, or a global entry.
    Kernel,
    /// A table.
    Table,
    /// An entry that a device or a guest may have cached as well, where this library does not
    /// reach.
    Device,
}

/// Why an unmapping is not put off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Why {
    /// The policy is off.
    Off,
    /// Hardware invalidates on all CPUs: no CPU would be interrupted anyway, and no CPU invalidates
    /// by itself.
    Broadcast,
    /// A store through a stale entry would be lost.
    MaybeWritten,
    /// Other spaces use it too, and a flush of this space does not reach them.
    Kernel,
    /// Walkers could reach it.
    Table,
    /// It is cached where no flush of the space reaches.
    Device,
    /// Another change of the space is not flushed yet: what the entry says of the page may not be
    /// in force on all CPUs.
    Pending,
    /// There is no room, or as much is pending as the policy allows.
    Full,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "the policy puts no unmapping off; set lazy_unmap, or flush",
            Self::Broadcast => "hardware invalidates everywhere without an interrupt; flush",
            Self::MaybeWritten => {
                "the page may have been written, and a store would be lost; flush"
            }
            Self::Kernel => "other spaces use the range too; flush_kernel",
            Self::Table => "a walker could reach the table; flush",
            Self::Device => "a device has the page too; flush, and notify the device",
            Self::Pending => "another change of the space is not flushed yet; flush",
            Self::Full => "as much is pending as there is room for; redeem it, or flush",
        })
    }
}

/// An unmapping that is not put off: the caller must flush before it frees the item. Nothing was
/// counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused<T> {
    /// The reason.
    pub why: Why,
    /// The item that was to be kept.
    pub item: T,
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl<T: fmt::Debug> core::error::Error for Refused<T> {}

/// How many ranges are kept apart; beyond that, the last one grows. Losing the gaps between ranges
/// may cost a flush that was not needed.
const RANGES: usize = 8;

/// Unmappings of one space of which no other CPU was notified, with the items that they will free.
/// Never used in a non-maskable handler ([`context`](crate::context)).
///
/// ```
/// # #[allow(dead_code)] mod mock { include!("../../tests/mock/mod.rs"); } use mock::*;
/// use shootdown::lazy_unmap::{LazyUnmap, LazyUnmapping, Was};
/// use shootdown::{Platform, Policy, Stride, VaRange, gather::{Array, Gather}};
/// static LAZY: Policy = Policy { lazy_unmap: Some(LazyUnmap::TWO_TICKS), ..Policy::SHOOTDOWN };
/// boot(1, &LAZY, &PCID);
/// let pin = Mock::pin();
/// let space = new_space();
/// let mut lazy = LazyUnmapping::<Mock, Array<u64, 32>>::new(space); // under the tables' lock
/// let page = VaRange::new(0x1000, 1, Stride::Page4K)?;
/// // … clear the page's entry, then, with the lock still held:
/// let now = 5; // nanoseconds, say
/// if let Err(refused) = lazy.unmapped(&pin, now, page, Was::ReadOnly, 0xf00d) {
///     let mut gather = Gather::<Mock, Array<u64, 1>>::new(space); // as without
///     gather.unmapped(page, refused.item).expect("there is room");
///     gather.finish(&pin).map_err(|(e, _frames)| e)?;
/// }
/// assert!(!lazy.may_reuse(page));
/// // Memory is short, or the space has ended:
/// let frames = lazy.redeem(&pin)?;
/// assert_eq!(frames.as_slice(), [0xf00d]); // now, and not before, they may be freed
/// assert!(lazy.may_reuse(page));
/// space.retire(&pin)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "what is put off is freed only after `redeem` or `poll`"]
pub struct LazyUnmapping<'a, P: Platform, K: Keep + Default> {
    space: &'a AddressSpace<P>,
    /// Everything that is pending, as one change of the newest generation.
    pending: Option<Change<'a, P>>,
    ranges: Array<VaRange, RANGES>,
    /// When the oldest pending unmapping was put off.
    since: u64,
    /// How many pages are pending.
    pages: u64,
    keep: ManuallyDrop<K>,
    /// There are items inside, flushed or not.
    holds: bool,
}

/// Why everything that is pending is flushed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The oldest has reached its age.
    Bound,
    /// Frames or addresses are needed.
    Reuse,
}

impl<'a, P: Platform, K: Keep + Default> LazyUnmapping<'a, P, K> {
    /// Begins with nothing put off. Make one for each space: of two for the same space, each
    /// refuses while the other has changes pending.
    pub fn new(space: &'a AddressSpace<P>) -> Self {
        Self {
            space,
            pending: None,
            ranges: Array::default(),
            since: 0,
            pages: 0,
            keep: ManuallyDrop::new(K::default()),
            holds: false,
        }
    }

    /// Records that the entries of `range` were cleared at the time `now`, which will free `item`.
    /// Call it while you hold the lock of the table under which they were cleared. It notifies no
    /// other CPU; this CPU no longer uses the old translations when it returns.
    ///
    /// # Errors
    /// Returns the item, and why it must not wait. Nothing was counted: flush before the lock is
    /// released, or with a gather that was begun before.
    pub fn unmapped(
        &mut self,
        pin: &P::Pin,
        now: u64,
        range: VaRange,
        was: Was,
        item: K::Item,
    ) -> Result<(), Refused<K::Item>> {
        let me = PerCpu::<P>::here(pin);
        let pages = ((range.last() - range.start()) >> 12) + 1;
        if let Some(why) = self.why_not(was, pages) {
            me.stats.lazily_refused.inc();
            return Err(Refused { why, item });
        }
        if let Err(item) = self.keep.push(item) {
            me.stats.lazily_refused.inc();
            return Err(Refused { why: Why::Full, item });
        }
        self.holds = true;
        let change = self.space.put_off(range);
        crate::ops::flush::here(pin.cpu(), me, &change);
        match &mut self.pending {
            Some(pending) => pending.join(change),
            None => {
                self.pending = Some(change);
                self.since = now;
            }
        }
        self.pages += pages;
        self.note(range);
        me.stats.lazily_pending.inc();
        Ok(())
    }

    fn why_not(&self, was: Was, pages: u64) -> Option<Why> {
        let Some(LazyUnmap { max_pages, .. }) = P::policy().lazy_unmap else {
            return Some(Why::Off);
        };
        match was {
            Was::ReadOnly | Was::NeverWritten => {}
            Was::MaybeWritten => return Some(Why::MaybeWritten),
            Was::Kernel => return Some(Why::Kernel),
            Was::Table => return Some(Why::Table),
            Was::Device => return Some(Why::Device),
        }
        if !forgets_by_itself::<P>() {
            return Some(Why::Broadcast);
        }
        if self.pages + pages > max_pages {
            return Some(Why::Full);
        }
        let own = self.pending.as_ref().map_or(0, |pending| pending.changes);
        let pending = self.space.is_pending_besides(own);
        pending.then_some(Why::Pending)
    }

    fn note(&mut self, range: VaRange) {
        if self.ranges.push(range).is_err() {
            if let Some(last) = self.ranges.as_mut_slice().last_mut() {
                *last = last.merge(&range);
            }
        }
    }

    /// Is anything pending that was put off here? Changes that others have flushed may still count.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// May addresses of this range be mapped again, as far as the changes put off here are
    /// concerned? If not, call [`make_way`](Self::make_way) first.
    #[must_use]
    pub fn may_reuse(&self, range: VaRange) -> bool {
        let apart = |r: &VaRange| r.last() < range.start() || range.last() < r.start();
        !self.is_pending() || self.ranges.as_slice().iter().all(apart)
    }

    /// Addresses of this range are about to be mapped: flushes, if any of them is pending. Call it
    /// while you hold the table lock under which they are mapped.
    ///
    /// # Errors
    /// See [`FlushError`]. The addresses must not be mapped yet.
    pub fn make_way(&mut self, pin: &P::Pin, range: VaRange) -> Result<(), FlushError> {
        if !self.may_reuse(range) {
            self.flush_pending(pin, Need::Reuse)?;
        }
        Ok(())
    }

    /// Flushes what is older than the policy allows at the time `now`, without interrupting
    /// isolated CPUs. Returns what may be freed; `None` when nothing may be, or nothing is inside.
    ///
    /// # Errors
    /// See [`FlushError`]. The changes are still pending then.
    pub fn poll(&mut self, pin: &P::Pin, now: u64) -> Result<Option<K>, FlushError> {
        let max_age = P::policy().lazy_unmap.map_or(0, |lazy| lazy.max_age);
        let is_old = now.saturating_sub(self.since) > max_age;
        let completed = if is_old || self.pending.is_none() {
            self.flush_pending(pin, Need::Bound)?
        } else {
            self.is_complete(pin)
        };
        Ok((completed && self.holds).then(|| self.take()))
    }

    /// Flushes, and returns everything that may now be freed: call it when frames are needed, or
    /// the space has ended. It does not interrupt CPUs that have caught up meanwhile; it does
    /// interrupt isolated CPUs that have not.
    ///
    /// # Errors
    /// See [`FlushError`]. The changes are still pending then.
    pub fn redeem(&mut self, pin: &P::Pin) -> Result<K, FlushError> {
        self.flush_pending(pin, Need::Reuse)?;
        Ok(self.take())
    }

    fn take(&mut self) -> K {
        self.holds = false;
        core::mem::take(&mut *self.keep)
    }

    /// Has another flush covered it?
    fn is_complete(&mut self, pin: &P::Pin) -> bool {
        let pending = self.pending.as_ref();
        let completed =
            pending.is_some_and(|pending| self.space.has_completed(pending.generation()));
        if completed {
            PerCpu::<P>::here(pin).stats.lazily_unasked.inc();
            self.settled();
        }
        completed
    }

    /// Every CPU has acknowledged: completes the change.
    fn settled(&mut self) {
        self.pending.take().map(Change::complete);
        self.pages = 0;
        while self.ranges.pop().is_some() {}
    }

    /// Flushes what is pending. Returns whether all CPUs have acknowledged.
    fn flush_pending(&mut self, pin: &P::Pin, need: Need) -> Result<bool, FlushError> {
        if self.is_complete(pin) {
            return Ok(true);
        }
        let Some(pending) = &mut self.pending else { return Ok(true) };
        let me = PerCpu::<P>::here(pin);
        let spare = if need == Need::Bound { Spare::Isolated } else { Spare::Current };
        let completed = complete_together(pin, me, core::slice::from_mut(pending), spare)?;
        if completed.spared != 0 {
            return Ok(false);
        }
        match (completed.interrupted, need) {
            (0, _) => me.stats.lazily_unasked.inc(),
            (_, Need::Bound) => me.stats.lazily_by_age.inc(),
            (_, Need::Reuse) => me.stats.lazily_by_need.inc(),
        }
        self.settled();
        Ok(true)
    }
}

impl<P: Platform, K: Keep + Default> Drop for LazyUnmapping<'_, P, K> {
    fn drop(&mut self) {
        if self.is_pending() {
            debug_assert!(
                false,
                "unmappings that were put off are dropped before they were flushed; their items leak"
            );
        } else {
            // SAFETY: dropped once, here; everything that was unmapped is flushed.
            unsafe { ManuallyDrop::drop(&mut self.keep) };
        }
    }
}
