//! A CPU as its program sees it.

use shootdown::ids::CpuId;

use crate::kernel::Kernel;
use crate::time::Time;

/// A program for one CPU.
pub(crate) type Program = Box<dyn FnOnce(&mut Cpu)>;

/// A CPU in user mode: loads, stores, time, and the way into the kernel.
///
/// Every call may let virtual time pass and other CPUs run.
pub struct Cpu {
    id: CpuId,
}

impl Cpu {
    /// Which CPU this is.
    #[must_use]
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// The time on this CPU.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::ZERO
    }

    /// Loads from a virtual address of the current space; the next access depends on it.
    pub fn read(&mut self, va: u64) {
        let _ = va;
    }

    /// Stores to a virtual address of the current space.
    pub fn write(&mut self, va: u64) {
        let _ = va;
    }

    /// Accesses one word in each of `pages` 4 KiB pages from `va` on, as a loop over an array does: the
    /// accesses do not depend on each other and overlap.
    pub fn touch(&mut self, va: u64, pages: u64, write: bool) {
        let _ = (va, pages, write);
    }

    /// Computes for this long.
    pub fn compute(&mut self, time: Time) {
        let _ = time;
    }

    /// Enters the kernel, runs `body` there, and returns.
    pub fn syscall<R>(&mut self, body: impl FnOnce(&mut Kernel) -> R) -> R {
        self.kernel(body)
    }

    /// Runs `body` in the kernel without the price of a call: the work of a scheduler, a kernel thread.
    pub fn kernel<R>(&mut self, body: impl FnOnce(&mut Kernel) -> R) -> R {
        body(&mut Kernel { cpu: self.id })
    }

    /// Does nothing until this time; interrupts are taken.
    pub fn idle_until(&mut self, time: Time) {
        let _ = time;
    }

    /// Does nothing until another CPU wakes this one ([`Cpu::wake`]). A wake that came first counts.
    pub fn idle(&mut self) {}

    /// Wakes a CPU with an interrupt.
    pub fn wake(&mut self, cpu: CpuId) {
        let _ = cpu;
    }
}
