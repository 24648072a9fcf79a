//! The state of calls in flight: what a CPU wants others to run, which CPUs have requests for a
//! CPU, and the large calls of the system. [`ops::call`](crate::call) and `ops/tree.rs` say how it
//! is written and read.

use crate::base::cpu_set::Mask;
use crate::base::sync::{AtomicBool, AtomicPtr, AtomicU64};
use crate::port::platform::Platform;

/// What a CPU wants others to run. Each CPU has one, for one call at a time.
#[repr(C, align(64))]
pub(crate) struct Descriptor<P: Platform> {
    pub busy: AtomicBool,
    /// A [`Func`](crate::ops::call::Func), as a pointer.
    pub func: AtomicPtr<()>,
    pub data: AtomicPtr<()>,
    pub pending: P::Mask,
}

/// Which CPUs have requests for a CPU.
#[repr(C, align(64))]
pub(crate) struct Mailbox<P: Platform> {
    /// A flush was begun whose initiator does not wait (only with push delivery, where a kick alone
    /// does not ask the CPU to catch up).
    pub deferred: AtomicBool,
    /// Bit *w*: word *w* of `from` may be non-zero. It saves a CPU of a large machine the reading
    /// of 64 words.
    pub summary: AtomicU64,
    /// For each place of a tree call: the last ticket that was acknowledged by, or for, this CPU.
    pub acked_trees: [AtomicU64; TREES],
    pub from: P::Mask,
}

/// How many large calls can be in flight at once; further initiators post to each target instead.
/// Each responder of a large call looks at every call in flight, so there are only a few places.
pub(crate) const TREES: usize = 4;

/// One large call.
#[repr(C, align(64))]
pub(crate) struct TreeCall<P: Platform> {
    /// 0 when free, `CLAIMED` while written, else the call's ticket.
    pub ticket: AtomicU64,
    pub func: AtomicPtr<()>,
    pub data: AtomicPtr<()>,
    pub forward: AtomicBool,
    pub targets: P::Mask,
    pub acks: <P::Mask as Mask>::Acks,
}

#[cfg(shootdown_traced)]
impl<P: Platform> Mailbox<P> {
    pub(crate) const DEFERRED: usize = core::mem::offset_of!(Self, deferred);
    pub(crate) const SUMMARY: usize = core::mem::offset_of!(Self, summary);
}

#[cfg(shootdown_traced)]
impl<P: Platform> Descriptor<P> {
    pub(crate) const BUSY: usize = core::mem::offset_of!(Self, busy);
    pub(crate) const PENDING: usize = core::mem::offset_of!(Self, pending);
}

impl<P: Platform> Descriptor<P> {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            func: AtomicPtr::new(core::ptr::null_mut()),
            data: AtomicPtr::new(core::ptr::null_mut()),
            pending: P::Mask::EMPTY,
        }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            func: AtomicPtr::new(core::ptr::null_mut()),
            data: AtomicPtr::new(core::ptr::null_mut()),
            pending: P::Mask::empty(),
        }
    }
}

impl<P: Platform> Mailbox<P> {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            deferred: AtomicBool::new(false),
            summary: AtomicU64::new(0),
            acked_trees: [const { AtomicU64::new(0) }; TREES],
            from: P::Mask::EMPTY,
        }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            deferred: AtomicBool::new(false),
            summary: AtomicU64::new(0),
            acked_trees: core::array::from_fn(|_| AtomicU64::new(0)),
            from: P::Mask::empty(),
        }
    }
}

impl<P: Platform> TreeCall<P> {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            ticket: AtomicU64::new(0),
            func: AtomicPtr::new(core::ptr::null_mut()),
            data: AtomicPtr::new(core::ptr::null_mut()),
            forward: AtomicBool::new(false),
            targets: P::Mask::EMPTY,
            acks: P::Mask::ACKS,
        }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            ticket: AtomicU64::new(0),
            func: AtomicPtr::new(core::ptr::null_mut()),
            data: AtomicPtr::new(core::ptr::null_mut()),
            forward: AtomicBool::new(false),
            targets: P::Mask::empty(),
            acks: P::Mask::acks(),
        }
    }
}
