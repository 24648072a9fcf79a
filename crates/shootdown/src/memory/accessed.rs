//! Accessed bits: what is pending after they were cleared.
//!
//! A kernel that looks for pages to reclaim clears accessed bits and looks again later. A CPU that
//! still has the old entry does not set the bit again, so a page in use looks unused. That is safe,
//! but the kernel then reclaims the wrong pages. So the entries must be invalidated, and the policy
//! chooses when.
//!
//! | [`Accessed`] | the entry is gone | cost of clearing | cost of a switch |
//! |---|---|---|---|
//! | `Immediate` | when the call returns | a flush: an interrupt for each CPU that runs the space | none |
//! | `AtSwitch` | at the next switch or tick of each CPU | a store to a line of each CPU in the space's set | a look at that line; the tag is flushed |
//! | `Generation` | at the next switch or tick of each CPU | one count on the space's line | a comparison; the tag is flushed |
//! | `Never` | when the TLB evicts it | none | none |
//!
//! (`AtSwitch`: "x86,mm: delay TLB flush after clearing accessed bit", Rik van Riel, 2014, with a
//! flag on each CPU. `Never`: what x86 Linux does for 4 KiB pages, "x86/mm: In the PTE swapout page
//! reclaim case clear the accessed bit instead of flushing the TLB", Shaohua Li. `Generation` is
//! ours.)
//!
//! # Generation
//! The space has a second number beside its generation, on the line that a switch reads anyway: how
//! often accessed bits were cleared. A CPU remembers for each slot the number for which it last
//! flushed the slot, and compares. The CPU that clears a bit does so in O(1): it walks no list of
//! CPUs and writes no line of another CPU. It raises no interrupt, because nothing waits. The
//! numbers of the slots are on a line of their own, which a CPU touches only for spaces whose bits
//! were ever cleared.
//!
//! This number is not the generation, although the generation would do: a flush would then include
//! every page whose bit was cleared since the last flush, and become a flush of everything.
//!
//! Where hardware broadcasts, `Generation` and `AtSwitch` mean this: the invalidation is issued as
//! for any other change, no further than [`residency`](crate::residency) says that it must reach,
//! and is not waited for.
//!
//! # The promise
//! Under `Generation` and `AtSwitch`: if
//! [`accessed_cleared`](crate::AddressSpace::accessed_cleared) has returned before a CPU switches
//! to the space (or to the space that it has loaded, or ticks: [`tick`]), then after that switch or
//! tick the CPU uses no entry whose bit was cleared. A page in use is seen as used within one
//! switch or tick of the CPU that uses it. For a CPU that does neither, in user mode for long,
//! there is no bound: use `Immediate` for what must not wait.
//!
//! Only the accessed bit is deferred like this. Anything else that changes in an entry at the same
//! time needs its own flush.
//!
//! # Invariants
//! I1: a slot whose number is *n* holds no entry whose bit was cleared before the space's number
//! became *n*. I2: a number never decreases, and 64 bits do not wrap.
//!
//! # Orderings
//! | pair | the CPU that clears | the switching CPU | what it guarantees |
//! |---|---|---|---|
//! | A1 | bits, published; number (Release) | number (Acquire); flush; walks | entries made after the flush have the cleared bit |
//! | A2 | bits, published; **fence**; the space's set; flag | flag (Acquire); flush; walks | the same, with a flag |
//! | A3 | bits, published; **fence**; the space's set | joins the set; **fence** (D1); walks | a CPU without the flag has the cleared bit |

use crate::base::cpu_set::Bits;
use crate::base::ids::VaRange;
use crate::base::sync::{Ordering, fence};
use crate::ops::flush::{FlushError, Request};
use crate::port::family;
use crate::port::platform::Platform;
use crate::port::regime::Regime;
use crate::state::cpu::PerCpu;
use crate::state::space::AddressSpace;

pub use crate::ops::come_by::tick;
pub use crate::port::policy::{Accessed, AccessedPolicy};

/// What happened to the cached entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Aged {
    /// Every CPU has dropped them.
    Flushed,
    /// Each CPU drops them at its next switch or tick.
    Pending,
    /// The hardware was asked to drop them, and was not waited for.
    Issued,
    /// No CPU was notified.
    Left,
}

impl<P: Platform> AddressSpace<P> {
    /// Call it when the kernel has cleared the accessed bits of present entries, all of the size
    /// that `range` says, and changed nothing else in them. Their cached copies are invalidated
    /// when [`Policy::accessed`](crate::policy::Policy) says. It may be called in tasks and in
    /// handlers that are maskable ([`context`](crate::context)).
    ///
    /// # Errors
    /// With [`Accessed::Immediate`], those of a flush. CPUs may still cache the entries then, which
    /// only makes the next look at the bits less accurate.
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
        if let Some(strategy) = family::strategy::<P>() {
            self.issue(pin, me, strategy, Request::pages(range));
            return Ok(Aged::Issued);
        }
        if accessed == Accessed::Generation {
            // ORDERING: A1, with the Acquire in `number`
            self.ages().fetch_add(1, Ordering::Release);
        }
        // A CPU that runs the space under a global tag compares no numbers.
        let looks = accessed == Accessed::AtSwitch || family::shared::<P>().is_some();
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
