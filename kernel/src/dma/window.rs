//! What the drivers of IOMMUs ask of their host: registers, and memory for a unit's structures.

use core::sync::atomic::AtomicU64;

use shootdown_dma::PhysAddr;
use shootdown_iommu::{Bus, Memory};
use spin::Mutex;

use crate::memory::{self, FRAME, LARGE_FRAME};
use crate::port::is_late;
use crate::{arch, memory::at};

/// Registers that are mapped as device memory.
#[derive(Clone, Copy)]
pub struct Window {
    base: u64,
}

impl Window {
    /// Those at a physical address.
    pub const fn new(base: u64) -> Self {
        Self { base }
    }

    const fn register<T>(&self, offset: usize) -> *mut T {
        (arch::PHYSICAL_BASE + self.base + offset as u64) as *mut T
    }
}

// SAFETY: 1. Firmware says that the registers are there; each access is one volatile access. 2.
// `barrier_for_devices` is a barrier of the full system. 3. Device memory is read in order, and
// `dmb ishld`, or x86's order, has loads behind an acquire fence wait for it.
unsafe impl Bus for Window {
    fn read32(&self, offset: usize) -> u32 {
        // SAFETY: a register.
        unsafe { self.register::<u32>(offset).read_volatile() }
    }

    fn write32(&self, offset: usize, value: u32) {
        // SAFETY: a register; what it makes the unit do is the driver's affair.
        unsafe { self.register::<u32>(offset).write_volatile(value) }
    }

    fn read64(&self, offset: usize) -> u64 {
        // SAFETY: as above.
        unsafe { self.register::<u64>(offset).read_volatile() }
    }

    fn write64(&self, offset: usize, value: u64) {
        // SAFETY: as above.
        unsafe { self.register::<u64>(offset).write_volatile(value) }
    }

    fn barrier(&self) {
        arch::barrier_for_devices();
    }

    fn relax(&self, turn: u32) -> bool {
        /// An emulated unit does what it is told at once, or in the next turn of its thread.
        const TURNS: u32 = 100_000;
        arch::relax();
        turn < TURNS && !is_late()
    }
}

/// Memory for units' structures: frames, large frames, and what is between in one large frame, from
/// which nothing is given back.
#[derive(Clone, Copy)]
pub struct Structures;

/// Where the large frame begins, and how much of it is used.
static LARGE: Mutex<Option<(u64, u64)>> = Mutex::new(None);

impl Structures {
    fn many(bytes: u64) -> Option<u64> {
        if bytes == LARGE_FRAME {
            return memory::allocate_large();
        }
        let mut large = LARGE.lock();
        if large.is_none() {
            *large = Some((memory::allocate_large()?, 0));
        }
        let (first, used) = large.as_mut()?;
        let start = used.next_multiple_of(bytes);
        if start + bytes > LARGE_FRAME {
            return None;
        }
        *used = start + bytes;
        Some(*first + start)
    }
}

// SAFETY: 1. Frames of the allocator, or parts of a large one that are handed out once; both lie
// where their addresses say. 2. They stay mapped for ever. 3. `write_back` cleans the lines.
unsafe impl Memory for Structures {
    fn allocate(&self, pages: usize) -> Option<PhysAddr> {
        let bytes = pages as u64 * FRAME;
        let first = if pages == 1 { memory::allocate()? } else { Self::many(bytes)? };
        (0..pages as u64).for_each(|page| memory::fill(first + page * FRAME, 0));
        Some(PhysAddr(first))
    }

    unsafe fn free(&self, first: PhysAddr, pages: usize) {
        match pages as u64 * FRAME {
            FRAME => memory::free(first.0),
            LARGE_FRAME => memory::free_large(first.0),
            _ => {}
        }
    }

    unsafe fn words(&self, first: PhysAddr, count: usize) -> &[AtomicU64] {
        // SAFETY: words of memory that was allocated (the caller's promise), accessed atomically.
        unsafe { core::slice::from_raw_parts(at(first.0).cast(), count) }
    }

    /// Whether a unit looks into caches is known when it is set up; so what it reads is written
    /// back for all of them.
    fn is_coherent(&self) -> bool {
        false
    }

    fn write_back(&self, words: &[AtomicU64]) {
        arch::write_back(words.as_ptr().cast(), size_of_val(words));
    }
}
