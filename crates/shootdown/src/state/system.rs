//! What the CPUs of one kernel share: the set of CPUs that are online, the ids given to spaces, and
//! the large calls in flight.

use crate::base::cpu_set::Mask;
use crate::base::ids::{CpuId, SpaceId};
use crate::base::sync::{AtomicBool, AtomicU64, Ordering};
use crate::port::platform::{CpuSetOf, Platform};
use crate::state::calls::{TREES, TreeCall};

/// The state of the system: one per kernel, in a `static` (or wherever [`Platform::system`] finds
/// it).
#[repr(C, align(64))]
pub struct System<P: Platform> {
    online: P::Mask,
    /// Bit *k*: tree call *k* is in flight. Read on every kick, so it has a line of its own.
    pub(crate) active_trees: Line<AtomicU64>,
    pub(crate) trees: [TreeCall<P>; TREES],
    pub(crate) tickets: Line<AtomicU64>,
    last_id: Line<AtomicU64>,
    pending: Line<Pending>,
    kernel_changes: Line<Changes>,
}

/// The changes of kernel ranges, for the CPUs that were isolated.
#[derive(Debug)]
pub(crate) struct Changes {
    pub count: AtomicU64,
    /// Some CPU has opted in.
    pub wanted: AtomicBool,
}

impl Changes {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { count: AtomicU64::new(0), wanted: AtomicBool::new(false) }
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self { count: AtomicU64::new(0), wanted: AtomicBool::new(false) }
    }
}

/// Flushes of everything that failed. What they should have ended is still in walk caches, and a
/// flush of a kernel range does not reach it. Both counts only grow, so a completion never covers a
/// later failure.
#[derive(Debug)]
#[repr(C)]
struct Pending {
    failed: AtomicU64,
    /// The value of `failed` when the last successful flush of everything began.
    completed: AtomicU64,
}

/// A value alone on its cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Line<T>(pub T);

#[cfg(shootdown_traced)]
impl<P: Platform> System<P> {
    pub(crate) const ONLINE: usize = core::mem::offset_of!(Self, online);
    pub(crate) const LAST_ID: usize = core::mem::offset_of!(Self, last_id);
    pub(crate) const FAILED: usize = core::mem::offset_of!(Self, pending);
    pub(crate) const COMPLETED: usize = Self::FAILED + core::mem::offset_of!(Pending, completed);
}

impl<P: Platform> System<P> {
    /// A system with no CPU online.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            online: P::Mask::EMPTY,
            active_trees: Line(AtomicU64::new(0)),
            trees: [const { TreeCall::new() }; TREES],
            tickets: Line(AtomicU64::new(0)),
            last_id: Line(AtomicU64::new(0)),
            pending: Line(Pending { failed: AtomicU64::new(0), completed: AtomicU64::new(0) }),
            kernel_changes: Line(Changes::new()),
        }
    }

    /// A system with no CPU online.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            online: P::Mask::empty(),
            active_trees: Line(AtomicU64::new(0)),
            trees: core::array::from_fn(|_| TreeCall::new()),
            tickets: Line(AtomicU64::new(0)),
            last_id: Line(AtomicU64::new(0)),
            pending: Line(Pending { failed: AtomicU64::new(0), completed: AtomicU64::new(0) }),
            kernel_changes: Line(Changes::new()),
        }
    }

    pub(crate) fn kernel_changes(&self) -> &Changes {
        &self.kernel_changes.0
    }

    /// The large calls in flight: one bit for each place.
    pub(crate) fn trees_in_flight(&self) -> u64 {
        // ORDERING: Acquire, with the AcqRel in `tree::begin`: a CPU that sees the bit sees the
        // ticket
        self.active_trees.0.load(Ordering::Acquire)
    }

    /// The CPUs that are online now.
    #[must_use]
    pub fn online(&self) -> CpuSetOf<P> {
        self.online.snapshot()
    }

    /// Those CPUs of `set` that are online now.
    pub(crate) fn online_of(&self, set: &CpuSetOf<P>) -> CpuSetOf<P> {
        self.online.common(set)
    }

    pub(crate) fn set_online(&self, cpu: CpuId, online: bool) {
        if online {
            self.online.insert(cpu);
        } else {
            self.online.remove(cpu);
        }
    }

    /// How many flushes of everything have failed until now.
    ///
    /// ORDERING: relaxed, here and below: code that relies on what a failed flush should have ended
    /// learned of the failure from the caller of that flush, and these are only numbers. The number
    /// of a completion was read before its flush's fence (D4), so it names flushes whose tables
    /// were published before.
    pub(crate) fn failed_flushes(&self) -> u64 {
        self.pending.0.failed.load(Ordering::Relaxed)
    }

    /// Must the next flush of a kernel range be a flush of everything?
    pub(crate) fn everything_is_pending(&self) -> bool {
        self.pending.0.completed.load(Ordering::Relaxed) < self.failed_flushes()
    }

    /// Records the end of a flush of everything; `failed` flushes had failed when it began.
    pub(crate) fn settle_everything(&self, failed: u64, done: bool) {
        if done {
            if failed != 0 {
                self.pending.0.completed.fetch_max(failed, Ordering::Relaxed);
            }
        } else {
            self.pending.0.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The next id; no id is given out twice.
    ///
    /// # Panics
    /// After [`SpaceId::MAX`] spaces, which takes longer than any machine runs.
    pub(crate) fn next_id(&self) -> SpaceId {
        let raw = self.last_id.0.fetch_add(1, Ordering::Relaxed) + 1;
        SpaceId::new(raw).expect("more spaces than ids: 2^62 were made")
    }
}

impl<P: Platform> Default for System<P> {
    fn default() -> Self {
        Self::new()
    }
}
