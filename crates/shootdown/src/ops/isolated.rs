//! Quiet CPUs: in user mode for long, and not to be interrupted for what user mode can't use.
//!
//! A CPU that is isolated for one program (a poll loop of a packet processor, a simulation, a
//! guest) is disturbed most by flushes of kernel ranges, which go to every CPU. In user mode it
//! can't use a kernel address. So such a flush may leave it alone, if it forgets what it missed
//! when it next enters the kernel, before it uses any address that may have changed.
//!
//! The port opts in, CPU by CPU, by calling [`to_user`] on the way out and [`from_user`] on every
//! way in: system calls, faults, interrupts, non-maskable ones too. A CPU that never calls them is
//! never left alone.
//!
//! # How
//! Changes of kernel ranges are counted (only once some CPU is isolated). A CPU publishes on which
//! side of the border it is. A flush counts its change and then looks: CPUs in user mode are left
//! out. A CPU that comes in publishes that first and then compares the count with the one it is
//! current to; if there is more, it forgets everything. Of what changes while it is in the kernel
//! it is notified, as ever.
//!
//! What was unmapped [lazily](crate::lazy_unmap) in the space of an isolated CPU waits for the same
//! moment: it forgets that on its way in.
//!
//! # What is not deferred
//! [`flush_everything`](crate::flush_everything), for tables of the kernel's half that are freed: a
//! walker reads them in user mode too, by speculation. Flushes of spaces, which concern user
//! addresses (lazy unmappings aside). And where hardware broadcasts nobody is interrupted anyway.
//!
//! While a CPU is in user mode, an entry that is pending can still be used by a speculative access
//! that never retires. Kernels that must not even leak a reused kernel page like that flush on the
//! way in from untrusted code by other means, or leave these hooks out.
//!
//! # Invariants
//! I1: a CPU in the kernel whose count is *n* has no entry older than the *n*-th change, unless the
//! flush of a change has not returned yet. I2: a flush that has returned covers every CPU: it has
//! acknowledged, or it was in user mode after the change was counted.
//!
//! # Orderings
//! | pair | the CPU that enters | the flush | what it guarantees |
//! |---|---|---|---|
//! | Q1 | "in the kernel"; **fence**; the count | tables, published; the count; **fence** (D4); who is in user mode | the CPU sees the change, or the flush sees the CPU |
//! | Q2 | the count (Acquire); forget; walks | tables, published; the count (Release) | who is current to a change finds the tables as changed |
//! | Q3 | kernel accesses over; "in user mode" (Release) | who is in user mode (Acquire) | what the CPU did through old entries is over when a flush leaves it out |

use crate::base::cpu_set::Bits;
use crate::base::sync::{Ordering, fence};
use crate::ops::come_by;
use crate::port::context::IrqsOff;
use crate::port::platform::{CpuSetOf, Platform};
use crate::port::regime::{self, Invalidate, Reach, Regime};
use crate::state::cpu::{Isolated, PerCpu};
use crate::state::system::System;

impl Isolated {
    /// This CPU was notified of a change, and has forgotten what it was about. Of every earlier one
    /// since it came into the kernel it was notified as well, or is being notified, and that is
    /// waited for.
    pub fn forgot(&self, change: u64) {
        self.current.store(self.current.load(Ordering::Relaxed).max(change), Ordering::Relaxed);
    }
}

impl<P: Platform> System<P> {
    /// Counts a change of a kernel range that was published, if that is of use to anyone. To be
    /// followed by the fence of Q1.
    pub(crate) fn count_kernel_change(&self) -> Option<u64> {
        // Who opts in at this moment is not left out: nothing is counted.
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

/// This CPU leaves for user mode, and is not interrupted for kernel ranges until it comes back by
/// [`from_user`].
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

/// This CPU has come from user mode, or may have. Returns whether it had to forget everything.
/// Before anything that uses a kernel address which may change; a non-maskable handler that comes
/// in before this has returned calls it too.
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
