//! Isolated CPUs: they stay in user mode for long, and are not interrupted for entries that user
//! mode can't use.
//!
//! A CPU that is isolated for one program (a poll loop of a packet processor, a simulation, a
//! guest) is disturbed most by flushes of kernel ranges, which go to every CPU. In user mode it
//! can't use a kernel address. So such a flush may leave the CPU alone, if the CPU invalidates what
//! it missed when it next enters the kernel, before it uses any address that may have changed.
//!
//! The port opts in, CPU by CPU, by calling [`to_user`] on the way out and [`from_user`] on every
//! way in: system calls, faults, interrupts, non-maskable ones too. A CPU that never calls them is
//! never left alone.
//!
//! # How
//! Changes of kernel ranges are counted (only once some CPU is isolated). A CPU publishes whether
//! it is in user mode or in the kernel. A flush counts its change and then looks at the CPUs: it
//! leaves out those in user mode. A CPU that enters the kernel publishes that first and then
//! compares the count with the count that it is current to; if the count has grown, it invalidates
//! everything. While the CPU is in the kernel, it is notified of changes like any other.
//!
//! Pages that were unmapped [lazily](crate::lazy_unmap) in the space of an isolated CPU wait for
//! the same moment: the CPU invalidates them on its way in.
//!
//! # What is not deferred
//! [`flush_everything`](crate::flush_everything) is not deferred, because it serves to free tables
//! of the kernel's half, which a walker reads in user mode too, by speculation. Flushes of spaces
//! are not deferred, because they concern user addresses (lazy unmappings aside). And where
//! hardware broadcasts, no CPU is interrupted anyway.
//!
//! While a CPU is in user mode, a speculative access that never retires can still use an entry
//! whose invalidation is pending. A kernel that must not even leak a reused kernel page like that
//! flushes by other means when it is entered from untrusted code, or does not use these hooks.
//!
//! # Invariants
//! I1: a CPU in the kernel whose count is *n* has no entry older than the *n*-th change, unless the
//! flush of a change has not returned yet. I2: a flush that has returned covers every CPU: it has
//! acknowledged, or it was in user mode after the change was counted.
//!
//! # Orderings
//! | pair | the CPU that enters | the flush | what it guarantees |
//! |---|---|---|---|
//! | Q1 | "in the kernel"; **fence**; the count | tables, published; the count; **fence** (D4); which CPUs are in user mode | the CPU sees the change, or the flush sees the CPU |
//! | Q2 | the count (Acquire); invalidate; walks | tables, published; the count (Release) | a CPU that is current to a change finds the tables as changed |
//! | Q3 | kernel accesses over; "in user mode" (Release) | which CPUs are in user mode (Acquire) | the CPU's accesses through old entries are over when a flush leaves it out |

use crate::base::cpu_set::Bits;
use crate::base::sync::{Ordering, fence};
use crate::ops::come_by;
use crate::port::context::IrqsOff;
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::{Isolated, PerCpu};
use crate::state::system::System;

impl Isolated {
    /// Records that this CPU was notified of a change and has invalidated for it. Earlier changes
    /// since the CPU entered the kernel notified it as well, or are notifying it now and wait for
    /// its acknowledgement.
    pub fn forgot(&self, change: u64) {
        self.current.store(self.current.load(Ordering::Relaxed).max(change), Ordering::Relaxed);
    }
}

impl<P: Platform> System<P> {
    /// Counts a change of a kernel range that was published, if some CPU has opted in. The caller
    /// executes the fence of Q1 after it.
    pub(crate) fn count_kernel_change(&self) -> Option<u64> {
        // If the first CPU opts in at this moment, the change is not counted, and no CPU is left
        // out.
        let wanted = self.kernel_changes().wanted.load(Ordering::Relaxed);
        let count = &self.kernel_changes().count;
        // ORDERING: Q2, with the Acquire in `from_user`
        wanted.then(|| count.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Takes the CPUs in user mode out of `targets`; returns how many.
    pub(crate) fn leave_isolated_alone(&self, targets: &mut CpuSetOf<P>) -> u32 {
        let all = *targets;
        // ORDERING: Q3, with the Release in `to_user`
        let in_user = |state: &PerCpu<P>| state.isolated.in_user.load(Ordering::Acquire);
        let isolated = |cpu: &_| P::slot(*cpu).is_some_and(in_user);
        let mut count = 0;
        for cpu in all.iter().filter(isolated) {
            targets.remove(cpu);
            count += 1;
        }
        count
    }
}

/// Publishes that this CPU leaves for user mode. It is not interrupted for kernel ranges until it
/// comes back and calls [`from_user`].
///
/// # Safety
/// 1. Interrupts are off, and stay off until user mode.
/// 2. Until [`from_user`] has returned on this CPU, it uses no kernel address whose translation may
///    change, and calls no other function of this library. All ways into the kernel call it first:
///    system calls, faults, interrupts, and non-maskable handlers, whatever they have interrupted.
pub unsafe fn to_user<P: Platform>(pin: &P::Pin) {
    let isolated = &PerCpu::<P>::here(pin).isolated;
    if !isolated.opted_in.load(Ordering::Relaxed) {
        isolated.opted_in.store(true, Ordering::Relaxed);
        P::system().kernel_changes().wanted.store(true, Ordering::Relaxed);
    }
    // ORDERING: Q3, with the Acquire in `leave_isolated_alone`
    isolated.in_user.store(true, Ordering::Release);
}

/// Publishes that this CPU has come from user mode, or may have. Returns whether it had to
/// invalidate everything. Call it before anything that uses a kernel address which may change; a
/// non-maskable handler that comes in before this has returned calls it too.
pub fn from_user<P: Platform>(irqs: IrqsOff<'_, P>) -> bool {
    let me = PerCpu::<P>::here(irqs.pin());
    if !me.isolated.opted_in.load(Ordering::Relaxed) {
        return false;
    }
    me.isolated.in_user.store(false, Ordering::Relaxed);
    fence(Ordering::SeqCst); // ORDERING: Q1, with the fence of D4 in `flush::everywhere`
    let now = P::system().kernel_changes().count.load(Ordering::Acquire); // ORDERING: Q2
    let missed = now != me.isolated.current.load(Ordering::Relaxed);
    if missed {
        P::Regime::invalidate(Invalidate::Everything, Reach::Local);
        regime::sync_here::<P::Regime>();
        me.isolated.current.store(now, Ordering::Relaxed);
        me.stats.isolated_catch_ups.inc();
    }
    come_by::come_by_chance(irqs.cpu(), me);
    missed
}
