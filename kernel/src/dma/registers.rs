//! A unit's registers in memory, with a ring of one page and a status word: what the library's queue asks for.

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown_dma::invalidate::queue::Port;
use shootdown_dma::{DeviceId, PhysAddr};

use crate::{arch, memory};

/// Slots of the ring: one page of them, 16 bytes each.
pub const SLOTS: usize = 256;

/// In the frame of the status word: up to where the event log was looked through.
const LOOKED: u64 = 64;

/// One unit's registers, with the memory of its ring and its status word.
#[derive(Clone, Copy)]
pub struct Registers {
    base: u64,
    ring: u64,
    status: u64,
    coherent: bool,
    /// The event log, where devices that do not answer are found in one; 0: elsewhere.
    events: u64,
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
        Self { base, ring, status, coherent: false, events: 0 }
    }

    /// The same, for a unit that reads the CPUs' caches, or doesn't.
    pub const fn coherent(self, coherent: bool) -> Self {
        Self { coherent, ..self }
    }

    /// The same, for AMD-Vi, which logs in this frame which devices do not answer.
    #[cfg(target_arch = "x86_64")]
    pub const fn logging(self, events: u64) -> Self {
        Self { events, ..self }
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
// may not look into caches (tables are written back by `Tables`). 6. The log is written in order, and its tail moved, before a wait that
// comes later is stored; each entry is looked at once, with the publisher's lock of the one queue. 7. Registers are read by volatile reads.
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

    fn drain_events(&self, timed_out: &mut dyn FnMut(DeviceId)) {
        const TAIL: usize = 0x2018;
        const IOTLB_INV_TIMEOUT: u64 = 5;
        if self.events == 0 {
            return;
        }
        // How far the queue has looked, beside the status; faults are read, and taken out, by `Amd::fault`.
        let looked = word(self.status + LOOKED);
        let tail = self.read64(TAIL);
        let mut at = looked.load(Ordering::Relaxed);
        while at != tail {
            // ORDERING: Acquire: read after the tail said that it is there.
            let low = word(self.events + at).load(Ordering::Acquire);
            if low >> 60 == IOTLB_INV_TIMEOUT {
                timed_out(DeviceId(low as u32 & 0xffff));
            }
            at = (at + 16) % (SLOTS as u64 * 16);
        }
        looked.store(at, Ordering::Relaxed);
    }
}
