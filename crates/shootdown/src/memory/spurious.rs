//! Spurious faults: an access faults although the tables allow it.
//!
//! Where a change needs no flush ([`elide`](crate::elide)), a CPU may still hold the older,
//! narrower entry, or an older "nothing there". It faults, the kernel finds that the entry allows
//! the access, and calls [`spurious_fault`]: this CPU invalidates the page, and retries the access.
//! No other CPU is notified.
//!
//! # Why the retry succeeds
//! The kernel has read the new entry on this CPU. From then on (1) *publish* orders this CPU's own
//! table stores before its walks, (2) the invalidation removes what it has cached, non-leaf entries
//! included, and (3) *sync* waits for it and orders everything that this CPU has seen, other CPUs'
//! stores included, before later walks. So the CPU that writes an entry may publish it at any time:
//! when the kernel can read the entry on a CPU, that CPU can walk to it. If the kernel can't read
//! it yet, it takes the fault for a real one, and decides under the lock that the writer held.
//!
//! On x86 there is nothing to do ([`Facts::fault_forgets`](crate::Facts::fault_forgets)).
//!
//! # When it ends
//! A second fault on the page may have come from a walk that was under way; more faults are a sign
//! that hardware and kernel disagree. A CPU counts consecutive spurious faults of one page through
//! one entry, and after [`RETRIES`] of them returns that the fault is real. The count starts again
//! when anything about the fault is new (the space, the page, the entry, a flush of the space in
//! between), and when the kernel reports that something else has happened on this CPU
//! ([`fault_resolved`]).
//!
//! # Invariants
//! I1: every retry comes after an invalidation of the page on this CPU, unless the fault itself was
//! one. I2: at most [`RETRIES`] results in a row are `Retry` while nothing changes. I3: nothing
//! here waits, or is seen by another CPU.

use crate::base::ids::VaRange;
use crate::base::sync::{CountCell, Ordering};
use crate::ops::respond;
use crate::port::platform::Platform;
use crate::port::regime::Regime;
use crate::state::cpu::{LastFault, PerCpu};
use crate::state::range_log::{Step, Steps};
use crate::state::space::AddressSpace;

/// Spurious faults of one page in a row before it counts as a real fault. Hardware may cause three:
/// one on the old entry, one on the entry of a walk that was under way when the old one was
/// removed, and one on an entry that survives an invalidation
/// ([`Errata::survives_once`](crate::facts::Errata::survives_once)). The others are for entries
/// that change and change back before the CPU can tell them apart.
pub const RETRIES: u64 = 8;

/// What to do about a fault on an access that the tables allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a fault that is not retried is the program's"]
pub enum Spurious {
    /// Return to the access and make it again.
    Retry,
    /// Retries do not help: treat the fault as one that the tables do not allow.
    Real,
}

impl LastFault {
    /// Records a fault, and returns how many faults like it came in a row.
    fn note(&self, space: u64, page: u64, entry: u64, generation: u64) -> u64 {
        let mut same = true;
        let mut renew = |cell: &CountCell, value| {
            same &= cell.load(Ordering::Relaxed) == value;
            cell.store(value, Ordering::Relaxed);
        };
        renew(&self.space, space);
        renew(&self.page, page);
        renew(&self.entry, entry);
        renew(&self.generation, generation);
        let before = self.times.load(Ordering::Relaxed);
        let times = if same { before + 1 } else { 1 };
        self.times.store(times, Ordering::Relaxed);
        times
    }
}

/// To be called when an access of this CPU to `page` of `space` has faulted, and the kernel finds
/// that the tables allow it. `entry` is the entry that allows it, as the kernel has just read it;
/// `page` is what the entry translates.
///
/// Call it from the fault handler, on the CPU that took the fault, after the entry was read and
/// before the return to the access. If the thread has moved to another CPU in between, call it
/// there: the access is made there. Never in a non-maskable handler ([`context`](crate::context)).
pub fn spurious_fault<P: Platform>(
    pin: &P::Pin,
    space: &AddressSpace<P>,
    page: VaRange,
    entry: u64,
) -> Spurious {
    let me = PerCpu::<P>::here(pin);
    let id = space.id().get();
    me.stats.spurious_faults.inc();
    let times = me.rare.last_fault.note(id, page.start(), entry, space.generation().0);
    if times > RETRIES {
        fault_resolved::<P>(pin);
        return Spurious::Real;
    }
    if !P::Regime::facts().fault_forgets && me.loaded().id() == id {
        P::Regime::publish();
        // A right may have been added on any level.
        let step = Step { range: Some(page), freed_tables: true };
        respond::invalidate_steps(me, me.order().current(), &Steps::one(step));
    }
    Spurious::Retry
}

/// Records that something else has happened on this CPU between spurious faults: a fault that the
/// kernel resolved, or a tick. The count of spurious faults starts again. Never in a non-maskable
/// handler ([`context`](crate::context)).
pub fn fault_resolved<P: Platform>(pin: &P::Pin) {
    PerCpu::<P>::here(pin).rare.last_fault.times.store(0, Ordering::Relaxed);
}
