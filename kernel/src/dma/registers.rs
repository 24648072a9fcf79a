//! A unit's registers in memory, with a ring of one page and a status word: what the library's queue asks for.

use core::sync::atomic::AtomicU64;

use shootdown_dma::PhysAddr;
use shootdown_dma::invalidate::queue::Port;

use crate::{arch, memory};

/// Slots of the ring: one page of them, 16 bytes each.
pub const SLOTS: usize = 256;

/// One unit's registers, with the memory of its ring and its status word.
#[derive(Clone, Copy)]
pub struct Registers {
    base: u64,
    ring: u64,
    status: u64,
    coherent: bool,
}

/// A word of memory that hardware reads or writes as well.
pub fn word(physical: u64) -> &'static AtomicU64 {
    // SAFETY: frames of the allocator stay mapped for ever; these words are accessed atomically.
    unsafe { &*memory::at(physical).cast::<AtomicU64>() }
}

/// Waits until something holds that hardware does soon, or never.
pub fn soon(mut holds: impl FnMut() -> bool) -> bool {
    const TURNS: u32 = 100_000;
    (0..TURNS).any(|_| {
        arch::relax();
        holds()
    })
}

impl Registers {
    /// Those at a physical address; `ring` and `status` are frames that are theirs alone.
    pub const fn new(base: u64, ring: u64, status: u64) -> Self {
        Self { base, ring, status, coherent: false }
    }

    /// The same, for a unit that reads the CPUs' caches, or doesn't.
    pub const fn coherent(self, coherent: bool) -> Self {
        Self { coherent, ..self }
    }

    /// The physical address of the ring.
    pub const fn ring_address(&self) -> u64 {
        self.ring
    }

    fn at(&self, offset: usize) -> u64 {
        arch::PHYSICAL_BASE + self.base + offset as u64
    }
}

// SAFETY: 1. `base` is the unit's, as firmware says, and mapped; offsets are those of the specification. 2. `ring` is the frame
// that the unit is told, and of the queues on it only the last one is used. 3. The status word is in a frame of its own; CPUs are
// little-endian; an SMMU stores to it only if IDR0.MSI says that it can. 4. The unit stores it when it comes to a wait, in order;
// whoever reads it acquires. 5. `publish` is a barrier of the full system, after the ring was written back where the unit
// may not look into caches (tables are written back by `Tables`).
unsafe impl Port for Registers {
    fn read32(&self, offset: usize) -> u32 {
        // SAFETY: a register.
        unsafe { (self.at(offset) as *const u32).read_volatile() }
    }

    fn write32(&self, offset: usize, value: u32) {
        // SAFETY: a register; what it makes the unit do is the kernel's, or the library's, affair.
        unsafe { (self.at(offset) as *mut u32).write_volatile(value) }
    }

    fn read64(&self, offset: usize) -> u64 {
        // SAFETY: as above.
        unsafe { (self.at(offset) as *const u64).read_volatile() }
    }

    fn write64(&self, offset: usize, value: u64) {
        // SAFETY: as above.
        unsafe { (self.at(offset) as *mut u64).write_volatile(value) }
    }

    fn ring(&self) -> &[AtomicU64] {
        // SAFETY: one frame of the allocator, the ring's alone, accessed atomically.
        unsafe { core::slice::from_raw_parts(memory::at(self.ring).cast(), SLOTS * 2) }
    }

    fn status(&self) -> &AtomicU64 {
        word(self.status)
    }

    fn status_address(&self) -> PhysAddr {
        PhysAddr(self.status)
    }

    fn publish(&self) {
        if !self.coherent {
            arch::write_back(memory::at(self.ring), memory::FRAME as usize);
        }
        arch::barrier_for_devices();
    }
}
