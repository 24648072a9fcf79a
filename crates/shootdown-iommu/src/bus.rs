//! The interface to the host: a unit's registers, and the barrier between memory and registers.
//!
//! A kernel implements [`Bus`] for the window that it has mapped; tests implement it for a model of
//! the registers.
//!
//! ```
//! use core::ptr::NonNull;
//! use shootdown_iommu::Bus;
//!
//! /// A window that is mapped as device memory.
//! #[derive(Clone, Copy)]
//! struct Window(NonNull<u8>);
//!
//! // SAFETY: registers are read and written from any CPU, each by one access.
//! unsafe impl Sync for Window {}
//! // SAFETY: as above.
//! unsafe impl Send for Window {}
//!
//! // SAFETY: (1) each access is one volatile access to the unit; (2) on x86-64 a full fence
//! // orders stores to memory before stores to uncached memory. Elsewhere it takes more: `dsb sy`
//! // on AArch64.
//! unsafe impl Bus for Window {
//!     fn read32(&self, offset: usize) -> u32 {
//!         // SAFETY: within the window.
//!         unsafe { self.0.byte_add(offset).cast().read_volatile() }
//!     }
//!     fn write32(&self, offset: usize, value: u32) {
//!         // SAFETY: as above.
//!         unsafe { self.0.byte_add(offset).cast().write_volatile(value) }
//!     }
//!     fn read64(&self, offset: usize) -> u64 {
//!         // SAFETY: as above.
//!         unsafe { self.0.byte_add(offset).cast().read_volatile() }
//!     }
//!     fn write64(&self, offset: usize, value: u64) {
//!         // SAFETY: as above.
//!         unsafe { self.0.byte_add(offset).cast().write_volatile(value) }
//!     }
//!     fn barrier(&self) {
//!         core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
//!     }
//! }
//! ```

use alloc::sync::Arc;

use crate::error::{Error, Step};

/// Turns of a wait that [`Bus::relax`] grants by default. A read of a register takes at least some
/// tenths of a microsecond, so this is a good part of a second; Linux waits one second for an
/// SMMUv3 and ten for VT-d.
pub const TURNS: u32 = 2_000_000;

/// The registers of one unit, as the host has mapped them.
///
/// # Safety
/// 1. Each method is one access of that width to the register at that offset of the unit, in the
///    order of the program.
/// 2. When [`barrier`](Self::barrier) has returned and a register is written afterwards, the unit
///    sees all that this CPU has stored to memory before, or has seen stored by others, before it
///    sees that write. For a unit that does not read the CPU's caches, this holds for words that
///    [`Memory::write_back`](crate::Memory::write_back) was called for.
/// 3. An acquire fence behind a read of a register orders what this CPU reads of memory after it,
///    as the seventh point of the contract of [`Port`](shootdown_dma::invalidate::queue::Port)
///    requires.
pub unsafe trait Bus: Sync {
    /// Reads a register of 32 bits.
    fn read32(&self, offset: usize) -> u32;
    /// Writes a register of 32 bits.
    fn write32(&self, offset: usize, value: u32);
    /// Reads a register of 64 bits.
    fn read64(&self, offset: usize) -> u64;
    /// Writes a register of 64 bits.
    fn write64(&self, offset: usize, value: u64);
    /// See the contract, 2.
    fn barrier(&self);

    /// One turn of a wait for a register that the unit changes soon, or never; `turn` counts from 0
    /// in each wait. `false` gives up, and the operation ends with [`Error::Timeout`]. A host with
    /// a clock should use that instead of the count.
    fn relax(&self, turn: u32) -> bool {
        core::hint::spin_loop();
        turn < TURNS
    }
}

macro_rules! buses_behind_pointers {
    ($(($($bounds:tt)*) $pointer:ty;)*) => {$(
        // SAFETY: the bus that is pointed at gives the guarantees.
        unsafe impl<B: Bus + ?Sized $($bounds)*> Bus for $pointer {
            fn read32(&self, offset: usize) -> u32 {
                (**self).read32(offset)
            }
            fn write32(&self, offset: usize, value: u32) {
                (**self).write32(offset, value);
            }
            fn read64(&self, offset: usize) -> u64 {
                (**self).read64(offset)
            }
            fn write64(&self, offset: usize, value: u64) {
                (**self).write64(offset, value);
            }
            fn barrier(&self) {
                (**self).barrier();
            }
            fn relax(&self, turn: u32) -> bool {
                (**self).relax(turn)
            }
        }
    )*};
}
buses_behind_pointers! {
    () &B;
    (+ Send) Arc<B>;
}

/// A register with a type of its own.
pub trait Register: Copy {
    /// Its offset.
    const OFFSET: usize;

    /// Reads it.
    fn read<B: Bus + ?Sized>(bus: &B) -> Self;

    /// Writes it.
    fn write<B: Bus + ?Sized>(self, bus: &B);
}

/// Gives typed registers their offsets.
macro_rules! registers {
    ($($register:ident: $word:ident at $offset:literal;)*) => {$(
        impl $crate::bus::Register for $register {
            const OFFSET: usize = $offset;

            fn read<B: $crate::bus::Bus + ?Sized>(bus: &B) -> Self {
                Self::from($crate::bus::registers!(@read bus $word $offset))
            }

            fn write<B: $crate::bus::Bus + ?Sized>(self, bus: &B) {
                $crate::bus::registers!(@write bus $word $offset self)
            }
        }
    )*};
    (@read $bus:ident u32 $offset:literal) => { $bus.read32($offset) };
    (@read $bus:ident u64 $offset:literal) => { $bus.read64($offset) };
    (@write $bus:ident u32 $offset:literal $value:ident) => { $bus.write32($offset, $value.into()) };
    (@write $bus:ident u64 $offset:literal $value:ident) => { $bus.write64($offset, $value.into()) };
}
pub(crate) use registers;

/// Waits for a condition that the unit makes true soon, or never.
pub(crate) fn wait<B: Bus + ?Sized>(
    bus: &B,
    step: Step,
    mut holds: impl FnMut() -> bool,
) -> Result<(), Error> {
    for turn in 0.. {
        if holds() {
            return Ok(());
        }
        if !bus.relax(turn) {
            break;
        }
    }
    Err(Error::Timeout(step))
}
