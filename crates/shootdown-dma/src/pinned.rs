//! What a host promises so that its CPUs enter what is theirs without a locked operation.
//!
//! # The problem
//! A compare-and-swap costs as much as all else that mapping a page takes
//! ([`local`](crate::local)), and nearly always nobody else is there: what is a CPU's own is
//! entered by that CPU. Whoever comes from elsewhere (a CPU goes offline, a timer collects what an
//! idle one has deferred) is rare, and can pay for both sides.
//!
//! # The promise
//! [`Pinned::new`] is `unsafe`: it believes two things that only the host can know.
//!
//! **Alone.** Who has a CPU's number as its own has it for itself: from
//! [`Host::pin`](crate::domain::Host::pin) until what that returned is dropped, and, for who asks
//! an allocator directly, as long as a call lasts that takes it as `cpu`
//! ([`Allocate`](crate::iova::Allocate)). What comes in between with the same number is an
//! interrupt, which is over before what it has interrupted goes on. A number that was true when it
//! was read is not enough: a task that is preempted between two plain stores, and another one that
//! comes to the same CPU meanwhile, are in one cell at once.
//!
//! **Barrier.** `barrier(cpu)` makes whoever has that number pass a full memory barrier, between
//! its call and its return: what they did before it is seen by the caller afterwards, and they see
//! what the caller did before the call. Nobody needs it for a number that nobody has. False: not
//! now.
//!
//! | | alone | barrier |
//! |---|---|---|
//! | a kernel | `Host::pin` turns preemption off until its guard is dropped | an interrupt to that CPU, whose handler is empty but for a fence, waited for; a fence if the CPU is offline (going offline and coming online pass barriers); false where interrupts are off, since another CPU may be waiting for this one |
//! | Linux user space, a number for each thread | a thread-local number that no other living thread has | `membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)`, after the process has registered for it |
//! | who can't promise it | does not | a compare-and-swap is made instead: the default |
//!
//! Whatever the numbers are, a number that is not below the count of CPUs is nobody's own, and
//! costs speed only.

use core::fmt;

use crate::sync::{Ordering, fence};

/// For what is asked on no CPU's behalf, or on that of one that is not the caller's: nobody's own.
pub const NOBODY: usize = usize::MAX;

/// See the [module](self).
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
    /// The promise, and the barrier.
    ///
    /// `barrier` is called by whoever comes from elsewhere, with no lock held and no cell entered
    /// but, perhaps, its own: from [`poll`](crate::domain::Domain::poll),
    /// [`flush`](crate::domain::Domain::flush) and counters, and from a request for addresses when
    /// there are none left but in caches.
    ///
    /// # Safety
    /// For everything that is made with this: CPUs are alone with their numbers, and `barrier` is
    /// one, as the [module](self) says.
    #[must_use]
    pub const unsafe fn new(barrier: fn(usize) -> bool) -> Self {
        Self { barrier }
    }

    /// The heavy side: see the [module](self).
    pub(crate) fn barrier(self, cpu: usize) -> bool {
        (self.barrier)(cpu)
    }
}

/// The light side: keeps the compiler from moving accesses over it. The processor's part is that of
/// the barrier.
///
/// Model checkers know no barrier that one CPU makes another one pass: there both sides are fences,
/// which is what the barrier makes of them.
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
