//! What a host guarantees so that its CPUs enter their own cells without a locked operation.
//!
//! # The problem
//! A compare-and-swap costs as much as everything else that mapping a page takes
//! ([`local`](crate::local)), and nearly always no other CPU is there: a CPU's own cell is entered
//! by that CPU. An access from another CPU (a CPU goes offline, a timer collects what an idle CPU
//! has deferred) is rare, and can bear the cost for both sides.
//!
//! # The guarantee
//! [`Pinned::new`] is `unsafe`: it relies on two facts that only the host can know.
//!
//! **Alone.** A context that has a CPU's number as its own has it for itself: from
//! [`Host::pin`](crate::domain::Host::pin) until what that returned is dropped, and, for direct
//! calls of an allocator, during a call that takes it as `cpu`
//! ([`Allocate`](crate::iova::Allocate)). Only an interrupt may use the same number meanwhile, and
//! it ends before the interrupted code goes on. A number that was right when it was read is not
//! enough: if a task is preempted between two plain stores, and another task comes to the same CPU,
//! both are in one cell at once.
//!
//! **Barrier.** `barrier(cpu)` makes the context that has that number execute a full memory
//! barrier, between its call and its return: the caller then sees what that context did before the
//! barrier, and that context sees what the caller did before the call. A number that no context has
//! needs no barrier. False: the barrier is not possible now.
//!
//! | | alone | barrier |
//! |---|---|---|
//! | a kernel | `Host::pin` turns preemption off until its guard is dropped | an interrupt to that CPU, whose handler is empty but for a fence, waited for; a fence if the CPU is offline (going offline and coming online execute barriers); false where interrupts are off, since another CPU may be waiting for this one |
//! | Linux user space, a number for each thread | a thread-local number that no other living thread has | `membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)`, after the process has registered for it |
//! | a host that can't guarantee it | makes no `Pinned` | a compare-and-swap is made instead: the default |
//!
//! A number that is not below the count of CPUs is no CPU's own, and costs speed only.

use core::fmt;

use crate::sync::{Ordering, fence};

/// The number for a request on behalf of no CPU, or of another one than the caller's: no CPU's own.
pub const NOBODY: usize = usize::MAX;

/// The host's guarantees; see the [module](self).
///
/// ```
/// use shootdown_dma::pinned::Pinned;
/// /// A kernel with one CPU: whoever asks is on it, and has done what it did in its own order.
/// fn barrier(_cpu: usize) -> bool {
///     std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
///     true
/// }
/// // SAFETY: nobody is preempted between asking for its number, which is always 0, and being done.
/// let pinned = unsafe { Pinned::new(barrier) };
/// let config = shootdown_dma::domain::Config::new(1).pinned(pinned);
/// # let _ = config;
/// ```
#[derive(Clone, Copy)]
pub struct Pinned {
    barrier: fn(usize) -> bool,
}

impl Pinned {
    /// Records the guarantees, and the barrier.
    ///
    /// `barrier` is called by a context that enters another CPU's cell, with no lock held and no
    /// cell entered except, perhaps, its own: from [`poll`](crate::domain::Domain::poll),
    /// [`flush`](crate::domain::Domain::flush) and counters, and from a request for addresses when
    /// only caches have any left.
    ///
    /// # Safety
    /// For everything that is made with this: CPUs are alone with their numbers, and `barrier` is
    /// one, as the [module](self) says.
    #[must_use]
    pub const unsafe fn new(barrier: fn(usize) -> bool) -> Self {
        Self { barrier }
    }

    /// The heavy side of the barrier: see the [module](self).
    pub(crate) fn barrier(self, cpu: usize) -> bool {
        (self.barrier)(cpu)
    }
}

/// The light side: keeps the compiler from moving accesses over it. The heavy side orders the
/// processor. Without it the compiler may load `claimed` before it stores `busy`, and owner and
/// claimer may enter together.
///
/// Model checkers know no barrier that one CPU makes another one execute: there both sides are
/// fences, which is what the barrier makes of them.
#[inline(always)]
pub(crate) fn light_fence() {
    if cfg!(any(loom, shootdown_traced)) {
        fence(Ordering::SeqCst);
    } else {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

impl PartialEq for Pinned {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::fn_addr_eq(self.barrier, other.barrier)
    }
}

impl Eq for Pinned {}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pinned")
    }
}
