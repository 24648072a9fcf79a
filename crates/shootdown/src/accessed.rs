//! Accessed bits: what is pending after they were cleared.
//!
//! A kernel that looks for pages to reclaim clears accessed bits and looks again later. A CPU that
//! still has the old entry does not set the bit again: a page in use looks unused. Nothing is
//! unsafe about that, but the wrong pages are reclaimed. So the entries must go, and when is a
//! choice.
//!
//! | [`Accessed`] | the entry is gone | cost of clearing | cost of a switch |
//! |---|---|---|---|
//! | `Immediate` | when the call returns | a flush: an interrupt for each CPU that runs the space | none |
//! | `AtSwitch` | at the next switch or tick of each CPU | a store to a line of each CPU in the space's set | a look at that line; the tag is flushed |
//! | `Generation` | at the next switch or tick of each CPU | one count on the space's line | a comparison; the tag is flushed |
//! | `Never` | when the TLB needs its place | none | none |
//!
//! (`AtSwitch`: "x86,mm: delay TLB flush after clearing accessed bit", Rik van Riel, 2014, with a
//! flag on each CPU. `Never`: what x86 Linux does for 4 KiB pages, "x86/mm: In the PTE swapout page
//! reclaim case clear the accessed bit instead of flushing the TLB", Shaohua Li. `Generation` is
//! ours.)
//!
//! # Generation
//! The space has a second number beside its generation, on the line that a switch reads anyway: how
//! often accessed bits were cleared. A CPU remembers for each slot the number it last flushed for,
//! and compares. Whoever clears a bit does so in O(1): no list of CPUs is walked, no line of a CPU
//! is written. Interrupts are not needed, because nothing waits. The numbers of the slots are on a
//! line of their own, touched only for spaces whose bits were ever cleared.
//!
//! It is not the generation itself, although that would do: a flush would then drag every page
//! along whose bit was cleared since the last one, and become a flush of everything.
//!
//! Where hardware broadcasts, the invalidation is issued as for any other change, no further than
//! [`residency`](crate::residency) says it must reach, and not waited for: `Generation` and
//! `AtSwitch` mean that there.
//!
//! # The promise
//! Under `Generation` and `AtSwitch`: when
//! [`accessed_cleared`](crate::AddressSpace::accessed_cleared) has returned before a CPU switches
//! to the space (or to the space it has, or ticks: [`tick`]), then no entry whose bit was cleared
//! is used on that CPU after that. A page in use is seen as used within one switch or tick of the
//! CPU that uses it. A CPU without either, in user mode for long, has no bound: `Immediate` is for
//! what must not wait.
//!
//! Only the accessed bit is deferred like this. Whatever else changes in an entry at the same time
//! waits for its own flush.
//!
//! # Invariants
//! I1: a slot whose number is *n* holds no entry whose bit was cleared before the space's number
//! became *n*. I2: a number never goes back, and 64 bits do not wrap.
//!
//! # Orderings
//! | pair | who clears | the switching CPU | what it guarantees |
//! |---|---|---|---|
//! | A1 | bits, published; number (Release) | number (Acquire); flush; walks | entries made after the flush have the cleared bit |
//! | A2 | bits, published; **fence**; the space's set; flag | flag (Acquire); flush; walks | the same, with a flag |
//! | A3 | bits, published; **fence**; the space's set | joins the set; **fence** (D1); walks | a CPU without the flag has the cleared bit |

use crate::context::IrqsOff;
use crate::cpu::PerCpu;
use crate::cpu_set::Bits;
use crate::flush::{FlushError, Request};
use crate::ids::{Stride, VaRange};
use crate::lazy_unmap;
use crate::platform::Platform;
use crate::regime::Regime;
use crate::respond;
use crate::space::AddressSpace;
use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};
use crate::tags::current;
use crate::tags::slots::{Slot, TagSlots};

/// When entries whose accessed bit was cleared go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Accessed {
    /// At once, on every CPU.
    Immediate,
    /// At each CPU's next switch or tick, because a flag of that CPU says so.
    AtSwitch,
    /// At each CPU's next switch or tick, because a number of the space has grown.
    Generation,
    /// When the TLB needs their place.
    Never,
}

/// The choice, by the size of the entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AccessedPolicy {
    /// Entries of 4 KiB pages.
    pub small: Accessed,
    /// Entries of larger pages.
    pub large: Accessed,
}

impl AccessedPolicy {
    /// The same for all sizes.
    #[must_use]
    pub const fn all(accessed: Accessed) -> Self {
        Self { small: accessed, large: accessed }
    }

    /// The choice for entries of this size.
    #[must_use]
    pub const fn of(self, stride: Stride) -> Accessed {
        match stride {
            Stride::Page4K => self.small,
            _ => self.large,
        }
    }
}

/// What became of the entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Aged {
    /// They are gone.
    Flushed,
    /// Each CPU drops them at its next switch or tick.
    Pending,
    /// Hardware was notified to drop them, and was not waited for.
    Issued,
    /// Nobody was notified.
    Left,
}

/// What a CPU has to do with accessed bits: one line.
#[repr(C, align(64))]
pub(crate) struct Ages<P: Platform> {
    /// [`Accessed::AtSwitch`]: bits were cleared that this CPU may have entries of.
    due: AtomicBool,
    /// [`Accessed::AtSwitch`]: the slots that must be flushed before they are used again. This
    /// CPU's own.
    due_slots: AtomicU32,
    /// [`Accessed::Generation`]: the number for which each slot was flushed last. This CPU's own.
    seen: P::Slots,
}

impl<P: Platform> Ages<P> {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { due: AtomicBool::new(false), due_slots: AtomicU32::new(0), seen: P::Slots::EMPTY }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self { due: AtomicBool::new(false), due_slots: AtomicU32::new(0), seen: P::Slots::empty() }
    }

    /// A flag that was raised counts for all slots.
    fn collect(&self) {
        // ORDERING: A2, with the fence of whoever raised it
        if self.due.load(Ordering::Relaxed) && self.due.swap(false, Ordering::Acquire) {
            self.due_slots.store(u32::MAX, Ordering::Relaxed);
        }
    }
}

impl<P: Platform> AddressSpace<P> {
    /// The kernel has cleared the accessed bits of present entries, all of the size that `range`
    /// says, and nothing else of them: their cached copies go when
    /// [`Policy::accessed`](crate::policy::Policy) says. May be called in tasks and in handlers
    /// that are maskable ([`context`](crate::context)).
    ///
    /// # Errors
    /// With [`Accessed::Immediate`], those of a flush; the entries may still be cached then, which
    /// harms nothing but the next look at the bits.
    pub fn accessed_cleared(&self, pin: &P::Pin, range: VaRange) -> Result<Aged, FlushError> {
        let accessed = P::policy().accessed.of(range.stride());
        if accessed == Accessed::Immediate {
            return self.flush(pin, Request::pages(range)).map(|_| Aged::Flushed);
        }
        let me = PerCpu::<P>::here(pin);
        if accessed == Accessed::Never {
            me.stats.accessed_left.inc();
            return Ok(Aged::Left);
        }
        P::Regime::publish();
        me.stats.accessed_pending.inc();
        if let Some(strategy) = current::strategy::<P>() {
            self.issue(pin, me, strategy, Request::pages(range));
            return Ok(Aged::Issued);
        }
        if accessed == Accessed::Generation {
            // ORDERING: A1, with the Acquire in `number`
            self.ages().fetch_add(1, Ordering::Release);
        }
        // A CPU that runs the space under a tag for all CPUs compares nothing.
        let looks = accessed == Accessed::AtSwitch || current::shared::<P>().is_some();
        if looks {
            fence(Ordering::SeqCst); // ORDERING: A3, with the fence of D1 in `switch_to`
        }
        if accessed == Accessed::AtSwitch {
            for state in self.cpus().iter().filter_map(P::slot) {
                // ORDERING: A2, with the swap in `collect`: the fence comes before it
                state.ages.due.store(true, Ordering::Relaxed);
            }
        }
        if looks && self.issue_if_shared(me, Request::pages(range)) {
            return Ok(Aged::Issued);
        }
        Ok(Aged::Pending)
    }
}

/// The space's number now.
pub(crate) fn number<P: Platform>(space: &AddressSpace<P>) -> u64 {
    space.ages().load(Ordering::Acquire) // ORDERING: A1
}

/// Are entries of the small or of the large pages dropped like this?
fn in_force<P: Platform>(accessed: Accessed) -> bool {
    let policy = P::policy().accessed;
    policy.small == accessed || policy.large == accessed
}

/// The executing CPU is about to use what a slot holds of `space`; with `empty` it is flushed in
/// any case. Says whether it must be, and takes it that it will. `joined`: this CPU was not in the
/// space's set, and nobody told it anything. Call it with interrupts off, after the fence of D1.
pub(crate) fn must_flush<P: Platform>(
    me: &PerCpu<P>,
    space: &AddressSpace<P>,
    slot: Slot,
    joined: bool,
    empty: bool,
) -> bool {
    let mut must = false;
    if in_force::<P>(Accessed::AtSwitch) {
        me.ages.collect();
        let (due, bit) = (me.ages.due_slots.load(Ordering::Relaxed), 1 << slot.0);
        must |= due & bit != 0 || joined;
        if due & bit != 0 {
            me.ages.due_slots.store(due & !bit, Ordering::Relaxed);
        }
    }
    if in_force::<P>(Accessed::Generation) {
        let now = number(space);
        // A slot that changes hands has the number of the space before.
        if now != 0 || empty {
            let seen = &me.ages.seen.as_ref()[slot.index()];
            let before = seen.load(Ordering::Relaxed);
            if before != now {
                must = true;
                seen.store(now, Ordering::Relaxed);
            }
        }
    }
    if must && !empty {
        me.stats.accessed_flushes.inc();
    }
    must
}

/// As [`must_flush`], for the loaded space, and does it. Call it with interrupts off.
pub(crate) fn honour<P: Platform>(me: &PerCpu<P>, space: &AddressSpace<P>) {
    if current::strategy::<P>().is_some() || current::shared::<P>().is_some() && me.runs_shared() {
        return;
    }
    let slot = me.order().current();
    if must_flush(me, space, slot, false, false) {
        respond::over_flush(me);
    }
}

/// The timer has interrupted this CPU: entries whose accessed bits were cleared go now, and those
/// of pages that were unmapped [lazily](crate::lazy_unmap), so that their staleness is bounded on
/// CPUs that switch rarely. Never in a non-maskable handler ([`context`](crate::context)).
pub fn tick<P: Platform>(irqs: IrqsOff<'_, P>) {
    let me = PerCpu::<P>::here(irqs.pin());
    let loaded = me.loaded();
    if respond::is_switching(me) || me.is_lazy(loaded, me.order()) {
        return; // the switch sees to it; a lazy CPU uses no entry until it does
    }
    if let Some(space) = me.space() {
        honour(me, space);
        lazy_unmap::come_by(irqs.cpu(), me, space);
    }
}
