//! VT-d's registers (VT-d specification, chapter 11), as the library's queue sees them and as this kernel does.

use core::sync::atomic::AtomicU64;

use shootdown_dma::PhysAddr;
use shootdown_dma::invalidate::queue::Port;

use crate::{arch, memory};

pub const VERSION: usize = 0x00;
pub const CAP: usize = 0x08;
pub const ECAP: usize = 0x10;
pub const GCMD: usize = 0x18;
pub const GSTS: usize = 0x1c;
pub const RTADDR: usize = 0x20;
pub const CCMD: usize = 0x28;
pub const FSTS: usize = 0x34;
pub const FECTL: usize = 0x38;
pub const IQT: usize = 0x88;
pub const IQA: usize = 0x90;

/// GCMD and GSTS: translation, root table, queue.
pub const TRANSLATION: u32 = 1 << 31;
pub const ROOT: u32 = 1 << 30;
pub const QUEUE: u32 = 1 << 26;
/// GCMD's bits that are commands, and not states.
const ONE_SHOT: u32 = !0x96ff_ffff;

/// Slots of the ring: one page of them.
pub const SLOTS: usize = 256;

/// One unit's registers, with the memory of its ring and its status word.
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

    /// Gives a command to GCMD, and waits until GSTS shows it; `false`: it does not.
    #[must_use]
    pub fn command(&self, bit: u32) -> bool {
        self.write32(GCMD, self.read32(GSTS) & !ONE_SHOT | bit);
        soon(|| self.read32(GSTS) & bit != 0)
    }

    /// By registers, as nothing else is up yet: forgets all device entries, and all translations.
    #[must_use]
    pub fn forget_all(&self) -> bool {
        const GO: u64 = 1 << 63;
        const ALL_ENTRIES: u64 = 1 << 61;
        const ALL_TRANSLATIONS: u64 = 1 << 60;
        self.write64(CCMD, GO | ALL_ENTRIES);
        let entries = soon(|| self.read64(CCMD) & GO == 0);
        // ECAP.IRO, in 16 bytes; behind the address register is the command.
        let iotlb = ((self.read64(ECAP) >> 8) as usize & 0x3ff) * 16 + 8;
        self.write64(iotlb, GO | ALL_TRANSLATIONS);
        entries && soon(|| self.read64(iotlb) & GO == 0)
    }
}

/// Waits until something holds that hardware does soon, or never.
fn soon(mut holds: impl FnMut() -> bool) -> bool {
    const TURNS: u32 = 100_000;
    (0..TURNS).any(|_| {
        arch::relax();
        holds()
    })
}

// SAFETY: 1. `base` is the unit's, from ACPI, and mapped; offsets are those of the specification. 2. `ring` is the frame that IQA
// names, and nobody else writes there. 3. The status word is in a frame of its own; x86 is little-endian. 4. The unit stores
// it by a wait descriptor, in order; x86 loads acquire. 5. `publish` is a full fence, after the ring was written back where the
// unit may not look into caches (tables are written back by `Tables`).
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
