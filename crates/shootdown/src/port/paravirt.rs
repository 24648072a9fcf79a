//! In a guest: what the hypervisor does of a flush.
//!
//! # The problem
//! A virtual CPU that its hypervisor has descheduled serves no interrupt until it runs again, a
//! time slice later, and who flushes waits for it. Such a CPU makes no access either: all it needs
//! is to forget before it goes on. There are two ways to have that, both off unless a port asks for
//! them. They serve flushes of spaces ([`flush`](crate::AddressSpace::flush),
//! [`begin_flush`](crate::AddressSpace::begin_flush)) and of everyone
//! ([`flush_kernel`](crate::flush_kernel), [`flush_everything`](crate::flush_everything)), and
//! nothing else: calls, retiring and trims run code on their targets, and so does the move of a
//! space to a tag for all CPUs.
//!
//! - **Marking** ([`Platform::preempted`]). Each virtual CPU shares a byte with the hypervisor
//!   ([`PreemptedWord`]; KVM's steal time has one). Who finds "preempted" there swaps "flush" in,
//!   and the CPU is done with: that swap is the linearization point. If it fails because the CPU
//!   runs again, the CPU is notified as any other. If it is preempted after it was notified and
//!   before it acknowledged, it is marked then; but where a large set is notified as a tree, or
//!   with push delivery, its acknowledgement is waited for.
//! - **Hypercall** ([`Platform::flush_remote`]). The hypervisor gets the set of CPUs and the pages,
//!   and makes those CPUs forget, running or not. Which flushes go this way is
//!   [`Policy::hypercall_from`](crate::Policy::hypercall_from). If it fails, all of them are
//!   notified as any other.
//!
//! # Why no CPU is missed
//! The hypervisor gets only CPUs that would be interrupted otherwise; who is one of them is decided
//! as ever. Take such a CPU with an old entry it could still use. The entry is from before the
//! mark, or before the hypercall returned, as walks that begin later see the table stores (V2, V3).
//! Both remove it, under whatever tag it is. It does not matter what the CPU was doing. *Between
//! two spaces*, about to load a remembered tag for a generation that it read before the change was
//! counted: the tag's old entries are gone when it goes on. It did not see the change and was not
//! seen either: D1 excludes that, as without a hypervisor. *Catching up* with an earlier change: it
//! goes on and invalidates more than it must. *Lazy*: its walk caches are empty when it goes on.
//!
//! The CPU's generation is not advanced by anyone but itself. So it goes on with a slot that looks
//! older than it is, and invalidates once more when it next catches up: over-flushing, which is
//! always legal (the master invariant speaks of entries that are too old, not of missing ones).
//!
//! # What a flush that returned does not mean here
//! That every CPU has taken an interrupt since. A kernel that walks page tables in software with
//! interrupts off, and relies on that to keep tables alive, needs an epoch of its own before it
//! frees them (RCU).
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | V1 hypervisor: the CPU has stopped, then "preempted" | Release | V2 | who finds it finds the CPU's accesses over |
//! | V2 "flush" swapped in | AcqRel | V1, V3 | |
//! | V3 hypervisor: the word swapped to 0, then forgetting, then the first instruction | AcqRel | V2 | the CPU's next walks see the table stores |
//!
//! The look before the swap needs no fence: that one is a read-modify-write, and so is the
//! hypervisor's.

use core::fmt;

use crate::base::ids::{Stride, VaRange};
use crate::base::sync::{AtomicU8, Ordering};
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::regime::Regime;

/// A byte that a virtual CPU shares with its hypervisor: does the CPU run, and must it forget
/// before it does?
///
/// The layout is that of KVM's `kvm_steal_time::preempted`. Guests hand a reference to the library
/// ([`Platform::preempted`]); [`stopped`](Self::stopped) and
/// [`resumes`](Self::resumes) are the hypervisor's half.
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
    /// It forgets everything before it does (`KVM_VCPU_FLUSH_TLB`).
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

    /// The hypervisor's half: the CPU has stopped.
    ///
    /// # Safety
    /// It makes no access and no walk until it [`resumes`](Self::resumes): flushes leave it a mark
    /// and do not wait.
    pub unsafe fn stopped(&self) {
        self.0.store(Self::PREEMPTED, Ordering::Release); // ORDERING: V1
    }

    /// The hypervisor's half: the CPU will run. If it says so, the CPU must forget every
    /// translation first, of every tag, global and non-leaf entries included.
    ///
    /// # Safety
    /// The CPU makes no access and no walk before that is done.
    #[must_use = "a CPU that is asked to forget must do so before its first instruction"]
    pub unsafe fn resumes(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) & Self::FLUSH != 0 // ORDERING: V3
    }

    /// Does the CPU run, as far as anyone can tell?
    pub(crate) fn is_preempted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::PREEMPTED != 0
    }

    /// The guest's half: has the CPU forget everything before it runs again. `false` if it runs:
    /// then it must be notified. Marked twice, it forgets once.
    #[must_use = "a CPU that runs has not been marked"]
    pub fn mark(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        // Fails again only when another initiator marks (once) or the CPU has run meanwhile.
        while word & Self::PREEMPTED != 0 {
            let marked = word | Self::FLUSH;
            // ORDERING: V2. A mark that is there already is written again, for what this initiator
            // stored.
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

/// Some pages that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageRun {
    /// The first address, a multiple of 4096.
    pub start: u64,
    /// How many pages of 4 KiB, 1 to [`PageRun::MOST`].
    pub pages: u16,
}

impl PageRun {
    /// Pages of a run, at most: what an entry of Hyper-V's lists holds (TLFS,
    /// "HvCallFlushVirtualAddressList").
    pub const MOST: u16 = 4096;
}

/// Runs of a list, at most: 128 MiB. What is longer is flushed as a whole.
pub const MAX_RUNS: usize = 8;

/// A short list of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Runs {
    runs: [PageRun; MAX_RUNS],
    used: usize,
}

impl Runs {
    /// The pages of a range, each large page as all the small ones in it; `None` when the list is
    /// too short for it.
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

/// Whose translations are to be forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of<Root> {
    /// Those made from this root, under whatever tag, of both halves where tables are split.
    Space(Root),
    /// All, the kernel's global ones included.
    All,
}

/// What a hypervisor is asked to do.
pub struct RemoteFlush<'a, P: Platform> {
    /// On which CPUs: at least one, never the one that asks.
    pub cpus: &'a CpuSetOf<P>,
    /// Of which space.
    pub of: Of<<P::Regime as Regime>::Root>,
    /// Of which pages; `None` means of all.
    pub pages: Option<Runs>,
    /// Page-table pages are going away: cached non-leaf entries too, on CPUs that are lazy or idle
    /// too.
    pub freed_tables: bool,
}

/// Why a hypervisor did not do it. The CPUs concerned are interrupted instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HypercallError {
    /// There is no such hypercall, or it is not set up yet.
    NotOffered,
    /// The set or the list is too long for it.
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
