//! In a guest: the part of a flush that the hypervisor does.
//!
//! # The problem
//! A virtual CPU that its hypervisor has descheduled serves no interrupt until it runs again, a
//! time slice later, and the initiator of a flush waits for it. Such a CPU makes no access either:
//! it only has to invalidate before it goes on. There are two ways to achieve that, both off unless
//! a port enables them. They serve flushes of spaces ([`flush`](crate::AddressSpace::flush),
//! [`begin_flush`](crate::AddressSpace::begin_flush)) and flushes on all CPUs
//! ([`flush_kernel`](crate::flush_kernel), [`flush_everything`](crate::flush_everything)), and
//! nothing else: calls, retiring and trims run code on their targets, and so does the move of a
//! space to a global tag.
//!
//! - **Marking** ([`Platform::preempted`]). Each virtual CPU shares a byte with the hypervisor
//!   ([`PreemptedWord`]; KVM's steal time has one). An initiator that finds "preempted" there swaps
//!   "flush" in, and need not wait for the CPU: that swap is the linearization point. If it fails
//!   because the CPU runs again, the CPU is notified like any other. If the CPU is preempted after
//!   it was notified and before it acknowledged, it is marked then. But where a large set is
//!   notified as a tree, or with push delivery, the initiator waits for its acknowledgement.
//! - **Hypercall** ([`Platform::flush_remote`]). The hypervisor gets the set of CPUs and the pages,
//!   and makes those CPUs invalidate, running or not.
//!   [`Policy::hypercall_from`](crate::Policy::hypercall_from) says which flushes go this way. If
//!   the hypercall fails, all of the CPUs are notified like any other.
//!
//! # Why no CPU is missed
//! The hypervisor gets only CPUs that would be interrupted otherwise; the initiator chooses them as
//! it always does. Take such a CPU with an old entry that it could still use. The entry is from
//! before the mark, or from before the hypercall returned, as walks that begin later see the table
//! stores (V2, V3). Both remove the entry, whatever tag it is under. It does not matter what the
//! CPU was doing. *Between two spaces*, about to load a remembered tag for a generation that it
//! read before the change was counted: the tag's old entries are gone when it goes on. D1 excludes,
//! as without a hypervisor, that the CPU did not see the change and the initiator did not see the
//! CPU. *Catching up* with an earlier change: it goes on and invalidates more than it must. *Lazy*:
//! its walk caches are empty when it goes on.
//!
//! Only the CPU itself advances its generation. So it goes on with a slot that looks older than it
//! is, and invalidates once more when it next catches up. That is over-flushing, which is always
//! correct (the master invariant forbids entries that are too old, not missing ones).
//!
//! # What a flush that returned does not mean here
//! It does not mean that every CPU has taken an interrupt since. A kernel that walks page tables in
//! software with interrupts off, and relies on that to keep tables alive, needs an epoch of its own
//! before it frees them (RCU).
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | V1 hypervisor: the CPU has stopped, then "preempted" | Release | V2 | when an initiator reads it, the CPU's accesses are over |
//! | V2 "flush" swapped in | AcqRel | V1, V3 | |
//! | V3 hypervisor: the word swapped to 0, then the invalidation, then the first instruction | AcqRel | V2 | the CPU's next walks see the table stores |
//!
//! The load before the swap needs no fence, because the swap is a read-modify-write, and so is the
//! hypervisor's.

use core::fmt;

use crate::base::ids::{Stride, VaRange};
use crate::base::sync::{AtomicU8, Ordering};
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::regime::Regime;

/// A byte that a virtual CPU shares with its hypervisor. It says whether the CPU runs, and whether
/// it must invalidate everything before it runs again.
///
/// The layout is that of KVM's `kvm_steal_time::preempted`. Guests give the library a reference to
/// it ([`Platform::preempted`]); [`stopped`](Self::stopped) and [`resumes`](Self::resumes) are the
/// hypervisor's half.
///
/// ```
/// use shootdown::paravirt::PreemptedWord;
/// let word = PreemptedWord::new();
/// // SAFETY: the hypervisor has descheduled the CPU, and runs it again after this.
/// unsafe { word.stopped() };
/// // SAFETY: as above.
/// assert!(!unsafe { word.resumes() }); // nobody asked for anything meanwhile
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct PreemptedWord(AtomicU8);

impl PreemptedWord {
    /// The CPU does not run (`KVM_VCPU_PREEMPTED`).
    pub const PREEMPTED: u8 = 1 << 0;
    /// The CPU invalidates everything before it runs again (`KVM_VCPU_FLUSH_TLB`).
    pub const FLUSH: u8 = 1 << 1;

    /// The word of a CPU that runs.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// The word of a CPU that runs.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// The hypervisor's half: records that the CPU has stopped.
    ///
    /// # Safety
    /// The CPU makes no access and no walk until [`resumes`](Self::resumes): flushes leave it a
    /// mark and do not wait for it.
    pub unsafe fn stopped(&self) {
        self.0.store(Self::PREEMPTED, Ordering::Release); // ORDERING: V1
    }

    /// The hypervisor's half: the CPU is about to run. If it returns `true`, the CPU must first
    /// invalidate every translation, of every tag, global and non-leaf entries included.
    ///
    /// # Safety
    /// The CPU makes no access and no walk before that is done.
    #[must_use = "a CPU that is asked to forget must do so before its first instruction"]
    pub unsafe fn resumes(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) & Self::FLUSH != 0 // ORDERING: V3
    }

    /// Is the CPU descheduled, as far as the word says?
    pub(crate) fn is_preempted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::PREEMPTED != 0
    }

    /// The guest's half: makes the CPU invalidate everything before it runs again. Returns `false`
    /// if the CPU runs: then it must be notified. A CPU that is marked twice invalidates once.
    #[must_use = "a CPU that runs has not been marked"]
    pub fn mark(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        // It fails again only when another initiator has marked (once), or the CPU has run
        // meanwhile.
        while word & Self::PREEMPTED != 0 {
            let marked = word | Self::FLUSH;
            // ORDERING: V2. A mark that is there already is written again, to publish this
            // initiator's stores.
            match self.0.compare_exchange(word, marked, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }
}

impl Default for PreemptedWord {
    fn default() -> Self {
        Self::new()
    }
}

/// A run of consecutive pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageRun {
    /// The first address, a multiple of 4096.
    pub start: u64,
    /// The number of 4 KiB pages, 1 to [`PageRun::MOST`].
    pub pages: u16,
}

impl PageRun {
    /// The largest number of pages of a run: what an entry of Hyper-V's lists holds (TLFS,
    /// "HvCallFlushVirtualAddressList").
    pub const MOST: u16 = 4096;
}

/// The largest number of runs of a list: 128 MiB. A longer list is flushed as a whole.
pub const MAX_RUNS: usize = 8;

/// A short list of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Runs {
    runs: [PageRun; MAX_RUNS],
    used: usize,
}

impl Runs {
    /// The pages of a range, with each large page as all of its small ones; `None` when the list is
    /// too short for them.
    #[must_use]
    pub fn of(range: VaRange) -> Option<Self> {
        let most = u64::from(PageRun::MOST);
        let shift = range.stride().shift() - Stride::Page4K.shift();
        let mut left = range.count().checked_mul(1 << shift)?;
        let mut start = range.start();
        let mut list = Self { runs: [PageRun::default(); MAX_RUNS], used: 0 };
        while left != 0 {
            #[allow(clippy::cast_possible_truncation)] // at most `MOST`
            let pages = left.min(most) as u16;
            *list.runs.get_mut(list.used)? = PageRun { start, pages };
            list.used += 1;
            left -= u64::from(pages);
            start = start.wrapping_add(u64::from(pages) << Stride::Page4K.shift());
        }
        Some(list)
    }

    /// The runs, in ascending order, at least one.
    #[must_use]
    pub fn as_slice(&self) -> &[PageRun] {
        &self.runs[..self.used]
    }
}

/// Which translations are to be invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of<Root> {
    /// Those made from this root, under every tag, of both halves where tables are split.
    Space(Root),
    /// All translations, the kernel's global ones included.
    All,
}

/// A request to a hypervisor.
pub struct RemoteFlush<'a, P: Platform> {
    /// The CPUs that must invalidate: at least one, never the calling CPU.
    pub cpus: &'a CpuSetOf<P>,
    /// The space.
    pub of: Of<<P::Regime as Regime>::Root>,
    /// The pages; `None` means all of them.
    pub pages: Option<Runs>,
    /// Page-table pages are going away: cached non-leaf entries must go too, also on CPUs that are
    /// lazy or idle.
    pub freed_tables: bool,
}

/// Why a hypervisor did not do a flush. The CPUs concerned are interrupted instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HypercallError {
    /// There is no such hypercall, or it is not set up yet.
    NotOffered,
    /// The set or the list is too long for the hypercall.
    TooLarge,
    /// The hypervisor's own status.
    Status(u16),
}

impl fmt::Display for HypercallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOffered => f.write_str(
                "the hypervisor offers no remote flush; leave Policy::hypercall_from at 0",
            ),
            Self::TooLarge => f.write_str("the request does not fit the hypercall's input"),
            Self::Status(status) => {
                write!(f, "the hypervisor refused a remote flush: status {status:#x}")
            }
        }
    }
}

impl core::error::Error for HypercallError {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_counts_only_while_the_cpu_is_stopped() {
        let word = PreemptedWord::new();
        // SAFETY: there is no CPU.
        let resumes = || unsafe { word.resumes() };
        assert!(!word.is_preempted() && !word.mark(), "it runs");
        assert!(!resumes());
        // SAFETY: as above.
        unsafe { word.stopped() };
        assert!(word.is_preempted() && word.mark() && word.mark(), "two marks");
        assert!(resumes(), "are one flush");
        assert!(!resumes() && !word.mark());
    }

    #[test]
    fn runs_cover_a_range_exactly_or_there_are_none() {
        let runs = |count, stride| {
            let range = VaRange::new(0xffff_8000_0000_0000, count, stride).unwrap();
            Runs::of(range)
        };
        for (count, stride, used) in [
            (1, Stride::Page4K, 1),
            (4096, Stride::Page4K, 1),
            (4097, Stride::Page4K, 2),
            (33, Stride::Page2M, 5),
            (64, Stride::Page2M, 8),
        ] {
            let list = runs(count, stride).unwrap();
            assert_eq!(list.as_slice().len(), used);
            let mut next = 0xffff_8000_0000_0000;
            for run in list.as_slice() {
                assert_eq!(run.start, next);
                assert!((1..=PageRun::MOST).contains(&run.pages));
                next += u64::from(run.pages) << 12;
            }
            assert_eq!(next, 0xffff_8000_0000_0000 + count * stride.bytes());
        }
        assert_eq!(runs(65, Stride::Page2M), None);
        assert_eq!(runs(1, Stride::Page1G), None);
        let top = VaRange::new(u64::MAX, 1, Stride::Page4K).unwrap();
        assert_eq!(Runs::of(top).unwrap().as_slice(), [PageRun { start: top.start(), pages: 1 }]);
    }
}
