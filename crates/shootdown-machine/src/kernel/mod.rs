//! The kernel of the machine: spaces, memory calls, switches, all through the library.

use shootdown::ids::{CpuId, Stride};

use crate::time::Time;

/// A handle of an address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Space(pub(crate) u32);

/// A CPU in kernel mode. Memory calls work on the current space.
pub struct Kernel {
    pub(crate) cpu: CpuId,
}

impl Kernel {
    /// Which CPU this is.
    #[must_use]
    pub fn id(&self) -> CpuId {
        self.cpu
    }

    /// The time on this CPU.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::ZERO
    }

    /// Kernel work of this length.
    pub fn compute(&mut self, time: Time) {
        let _ = time;
    }

    /// A new, empty space.
    pub fn new_space(&mut self) -> Space {
        Space(0)
    }

    /// Ends a space: unmaps what it maps, and retires it. No CPU may be running in it; CPUs that still
    /// have it loaded lazily are made to leave.
    pub fn end_space(&mut self, space: Space) {
        let _ = space;
    }

    /// The current space, if any.
    #[must_use]
    pub fn current(&self) -> Option<Space> {
        None
    }

    /// Switches this CPU to a space: a context switch (`None`: to a kernel thread, lazily).
    pub fn switch_to(&mut self, space: Option<Space>) {
        let _ = space;
    }

    /// Leaves the loaded space altogether, as before deep idle.
    pub fn leave(&mut self) {}

    /// Maps `pages` pages of this size somewhere, filled on demand.
    pub fn map(&mut self, pages: u64, size: Stride) -> u64 {
        let _ = (pages, size);
        0
    }

    /// Maps `pages` pages of this size at `va`, filled on demand; what was mapped there is unmapped.
    pub fn map_at(&mut self, va: u64, pages: u64, size: Stride) {
        let _ = (va, pages, size);
    }

    /// Unmaps 4 KiB pages. Frames, and page tables that became empty, are freed after the flush.
    pub fn unmap(&mut self, va: u64, pages: u64) {
        let _ = (va, pages);
    }

    /// Makes pages writable or read-only. Only the latter needs a flush.
    pub fn protect(&mut self, va: u64, pages: u64, writable: bool) {
        let _ = (va, pages, writable);
    }

    /// Gives the frames of pages back; they fill again on demand.
    pub fn discard(&mut self, va: u64, pages: u64) {
        let _ = (va, pages);
    }

    /// Write-protects dirty pages one by one, each with a flush of its own, as `msync` does; the next
    /// write faults and makes the page writable again. Returns how many were dirty.
    pub fn clean(&mut self, va: u64, pages: u64) -> u64 {
        let _ = (va, pages);
        0
    }

    /// Flushes without changing anything: for measuring the flush alone.
    pub fn flush(&mut self, va: u64, pages: u64, freed_tables: bool) {
        let _ = (va, pages, freed_tables);
    }

    /// Wakes a CPU with an interrupt.
    pub fn wake(&mut self, cpu: CpuId) {
        let _ = cpu;
    }
}
