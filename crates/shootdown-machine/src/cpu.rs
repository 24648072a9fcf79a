//! A CPU as its program sees it.

use shootdown::ids::CpuId;

use crate::engine;
use crate::kernel::{self, Kernel, Pace};
use crate::mmu::Access;
use crate::outcome::Outcome;
use crate::time::Time;

/// A program for one CPU.
pub(crate) type Program = Box<dyn FnOnce(&mut Cpu)>;

/// A CPU in user mode: loads, stores, time, and the way into the kernel.
///
/// Every call may let virtual time pass and other CPUs run. A program starts without a space; it
/// switches to one in the kernel before its first access.
pub struct Cpu {
    id: CpuId,
}

impl Cpu {
    pub(crate) fn new(id: CpuId) -> Self {
        Self { id }
    }

    /// Which CPU this is.
    #[must_use]
    pub fn id(&self) -> CpuId {
        self.id
    }

    /// The time on this CPU.
    #[must_use]
    pub fn now(&self) -> Time {
        engine::now()
    }

    /// Loads from a virtual address of the current space; the next access depends on it. Returns
    /// whether the space allows it; where not, a real program would have been sent a signal.
    pub fn read(&mut self, va: u64) -> bool {
        kernel::access(va, Access::UserRead, Pace::Dependent)
    }

    /// Stores to a virtual address of the current space. Returns as [`Cpu::read`] does.
    pub fn write(&mut self, va: u64) -> bool {
        kernel::access(va, Access::UserWrite, Pace::Dependent)
    }

    /// Accesses one word in each of `pages` 4 KiB pages from `va` on, as a loop over an array does:
    /// the accesses do not depend on each other and overlap. Returns how many the space
    /// allowed.
    pub fn touch(&mut self, va: u64, pages: u64, write: bool) -> u64 {
        let kind = if write { Access::UserWrite } else { Access::UserRead };
        let mut allowed = 0;
        for page in 0..pages {
            allowed += u64::from(kernel::access(va + page * 4096, kind, Pace::Independent));
        }
        allowed
    }

    /// Computes for this long; interrupts come on top.
    pub fn compute(&mut self, time: Time) {
        engine::compute(time);
    }

    /// Enters the kernel, runs `body` there, and returns, for the price of a system call.
    pub fn syscall<R>(&mut self, body: impl FnOnce(&mut Kernel) -> R) -> R {
        kernel::enter();
        let cost = kernel::with(|s| {
            s.cpus[self.id.index()].syscalls += 1;
            s.costs.syscall
        });
        engine::compute(cost);
        let result = body(&mut Kernel::on(self.id));
        kernel::exit();
        result
    }

    /// Runs `body` in the kernel without the price of a call: the work of a scheduler, a kernel
    /// thread.
    pub fn kernel<R>(&mut self, body: impl FnOnce(&mut Kernel) -> R) -> R {
        kernel::enter();
        let result = body(&mut Kernel::on(self.id));
        kernel::exit();
        result
    }

    /// Does nothing until this time, or until woken; returns whether it was woken. The space stays
    /// loaded as it is; an idle loop switches to a kernel thread first ([`Kernel::switch_to`]).
    pub fn idle_until(&mut self, time: Time) -> bool {
        self.kernel(|k| k.idle_until(time))
    }

    /// Does nothing until another CPU wakes this one ([`Cpu::wake`]). A wake that came first
    /// counts.
    pub fn idle(&mut self) {
        self.kernel(Kernel::idle);
    }

    /// Wakes a CPU with an interrupt.
    pub fn wake(&mut self, cpu: CpuId) {
        self.kernel(|k| k.wake(cpu));
    }

    /// What the machine did so far. Takes no virtual time.
    #[must_use]
    pub fn outcome_so_far(&self) -> Outcome {
        kernel::outcome_so_far()
    }
}
