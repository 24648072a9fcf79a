//! An SMMUv3's registers (Arm IHI 0070, chapter 6), as the library's queue sees them and as this kernel does.

use core::sync::atomic::AtomicU64;

use shootdown_dma::PhysAddr;
use shootdown_dma::invalidate::queue::Port;

use crate::{arch, memory};

/// Page 0.
pub const IDR0: usize = 0x00;
pub const IDR3: usize = 0x0c;
pub const CR0: usize = 0x20;
pub const CR0ACK: usize = 0x24;
pub const CR1: usize = 0x28;
pub const GERROR: usize = 0x60;
pub const GERRORN: usize = 0x64;
pub const STRTAB_BASE: usize = 0x80;
pub const STRTAB_BASE_CFG: usize = 0x88;
pub const CMDQ_BASE: usize = 0x90;
pub const CMDQ_PROD: usize = 0x98;
pub const CMDQ_CONS: usize = 0x9c;
pub const EVENTQ_BASE: usize = 0xa0;
/// Page 1.
pub const EVENTQ_PROD: usize = 0x1_00a8;
pub const EVENTQ_CONS: usize = 0x1_00ac;

/// CR0: translation, event queue, command queue.
pub const TRANSLATION: u32 = 1 << 0;
pub const EVENTQ: u32 = 1 << 2;
pub const CMDQ: u32 = 1 << 3;

/// log2 of the slots of the command queue: one page of them.
pub const LOG_SLOTS: u32 = 8;
pub const SLOTS: usize = 1 << LOG_SLOTS;

/// The unit's registers, with the memory of its ring and its status word.
pub struct Registers {
    base: u64,
    ring: u64,
    status: u64,
}

/// A word of memory that hardware reads or writes as well.
pub fn word(physical: u64) -> &'static AtomicU64 {
    // SAFETY: frames of the allocator stay mapped for ever; these words are accessed atomically.
    unsafe { &*memory::at(physical).cast::<AtomicU64>() }
}

impl Registers {
    /// Those at a physical address; `ring` and `status` are frames that are theirs alone.
    pub const fn new(base: u64, ring: u64, status: u64) -> Self {
        Self { base, ring, status }
    }

    /// The physical address of the ring.
    pub const fn ring_address(&self) -> u64 {
        self.ring
    }

    fn at(&self, offset: usize) -> u64 {
        arch::PHYSICAL_BASE + self.base + offset as u64
    }

    /// Writes CR0, and waits until CR0ACK shows it; `false`: it does not.
    #[must_use]
    pub fn turn_on(&self, what: u32) -> bool {
        const TURNS: u32 = 100_000;
        self.write32(CR0, what);
        (0..TURNS).any(|_| {
            arch::relax();
            self.read32(CR0ACK) == what
        })
    }
}

// SAFETY: 1. `base` is the unit's, and mapped; offsets are those of the specification. 2. `ring` is the frame that CMDQ_BASE names,
// and nobody else writes there. 3. The status word is in a frame of its own; the unit stores to it only if IDR0.MSI says so. 4. What
// it stores comes after what it says; whoever reads it acquires. 5. The unit reads the CPUs' caches (IDR0.COHACC, looked at when it
// was set up), and `publish` is a barrier of the full system.
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
        arch::barrier_for_devices();
    }
}
