//! The kernel of the machine: spaces, memory calls, faults, switches, all through the library.
//!
//! It is as small as a kernel can be that uses every part of the library in earnest. Page tables
//! are real (in simulated memory), pages are filled on demand, frames and table pages come back
//! from a gather's flush before they are freed, and the oracle watches all of it.
//!
//! # What a memory call costs
//! Finding the area (`kernel.area`), editing entries (`kernel.entry_edit` each), the flush (as the
//! library goes about it, line by line and interrupt by interrupt), and the way in and out of the
//! kernel ([`crate::Cpu::syscall`]). Kernel code runs with interrupts on, but for switches and
//! handlers.
//!
//! # Invariants
//! - I1: tables are edited in the order of time, in one step each call; flushes come after.
//! - I2: a frame or table is freed only when it came out of a finished gather.
//! - I3: while user code runs under split tables, the user half's tag is loaded; in the kernel, the
//!   kernel half's.

mod aging;
mod areas;
mod entry;
mod fault;
mod host;
mod memory;
mod mmus;
mod port;
mod reclaim;
mod shared;
mod state;
#[cfg(test)]
mod tests;

use shootdown::ids::CpuId;
use shootdown::{Flushed, Switched};

use crate::engine::{self, Footprint, Vector};
use crate::outcome::Outcome;
use crate::time::Time;
pub(crate) use entry::{enter, exit, on_interrupt};
pub(crate) use fault::{Pace, access};
pub(crate) use host::on_demand;
pub(crate) use memory::create_space;
pub(crate) use state::{Installed, State, with};

/// A handle of an address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Space(pub(crate) u32);

/// A CPU in kernel mode. Memory calls work on the current space.
pub struct Kernel {
    cpu: CpuId,
}

impl Kernel {
    pub(crate) fn on(cpu: CpuId) -> Self {
        Self { cpu }
    }

    /// Which CPU this is.
    #[must_use]
    pub fn id(&self) -> CpuId {
        self.cpu
    }

    /// The time on this CPU.
    #[must_use]
    pub fn now(&self) -> Time {
        engine::now()
    }

    /// Kernel work of this length.
    pub fn compute(&mut self, time: Time) {
        engine::compute(time);
    }

    /// The current space, if any.
    #[must_use]
    pub fn current(&self) -> Option<Space> {
        with(|s| s.cpus[self.cpu.index()].current)
    }

    /// Switches this CPU to a space: a context switch, with the price of the scheduler. `None` is a
    /// kernel thread, which keeps the last space loaded lazily.
    pub fn switch_to(&mut self, space: Option<Space>) -> Option<Switched> {
        let cost = with(|s| s.costs.switch);
        engine::compute(cost);
        self.load(space)
    }

    /// As [`Kernel::switch_to`] without the price of the scheduler: the library's part alone.
    ///
    /// # Panics
    /// When the space has ended.
    pub fn load(&mut self, space: Option<Space>) -> Option<Switched> {
        let cpu = self.cpu.index();
        let library = with(|s| s.library);
        engine::irqs(false);
        let begun = aging::now();
        let switched = match space {
            Some(space) => {
                let handle = with(|s| s.space(space).handle.expect("checked"));
                Some(library.switch_to(handle))
            }
            None => {
                library.enter_lazy();
                None
            }
        };
        with(|s| s.cpus[cpu].current = space);
        if space.is_some() {
            aging::check(begun);
        }
        engine::irqs(true);
        switched
    }

    /// Leaves the loaded space altogether, as before deep idle.
    pub fn leave(&mut self) {
        engine::irqs(false);
        with(|s| s.library).leave();
        with(|s| s.cpus[self.cpu.index()].current = None);
        engine::irqs(true);
    }

    /// Does nothing until this time, or until woken; returns whether it was woken. The caller has
    /// switched to a kernel thread, or left, as an idle loop does.
    pub fn idle_until(&mut self, time: Time) -> bool {
        idle(time)
    }

    /// Does nothing until another CPU wakes this one. A wake that came first counts.
    pub fn idle(&mut self) {
        idle(Time::NEVER);
    }

    /// Wakes a CPU with an interrupt.
    pub fn wake(&mut self, cpu: CpuId) {
        wake(cpu);
    }

    /// Runs `body` and says what the library did to shared memory meanwhile on this CPU.
    pub fn footprint<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> (R, Footprint) {
        engine::footprint(|| body(self))
    }

    /// What the machine did so far. Takes no virtual time.
    #[must_use]
    pub fn outcome_so_far(&self) -> Outcome {
        outcome_so_far()
    }
}

/// A flush is never refused here: the kernel waits in task context only and never gives up.
fn done(result: Result<Flushed, shootdown::FlushError>) -> Flushed {
    result.unwrap_or_else(|error| panic!("a memory call outside of task context: {error}"))
}

pub(crate) fn idle(until: Time) -> bool {
    let woken = engine::idle_until(until);
    if woken {
        let cost = with(|s| s.costs.wake);
        engine::compute(cost);
    }
    woken
}

pub(crate) fn wake(cpu: CpuId) {
    assert!(cpu.index() < with(|s| s.cpus.len()), "there is no {cpu}");
    if cpu.0 == engine::cpu() {
        engine::wake_self();
    } else {
        engine::send(std::iter::once(cpu.0), Vector::Wake, false);
    }
}

pub(crate) fn outcome_so_far() -> Outcome {
    let (end, mut cpus) = engine::outcome_so_far();
    engine::silently(|| with(|s| s.complete(&mut cpus)));
    Outcome { end, cpus }
}
