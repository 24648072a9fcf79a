//! What a queue needs of its host: registers, memory for the ring, a word for the status.

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::addr::{DeviceId, PhysAddr};
use crate::sync::AtomicU64;

/// One IOMMU, as the host has mapped it. The host sets the queue up (its base, its size, that it is
/// on) before it makes a [`Queue`](super::Queue) of it; head and tail are 0 then.
///
/// # Safety
/// 1. The registers are those of the unit that reads the ring. Offsets and fields are the ones of
///    its specification.
/// 2. [`ring`](Self::ring) is the memory that the unit was told: two words for each slot. Nobody
///    else writes to it.
/// 3. The unit stores to [`status`](Self::status) when it is told
///    [`status_address`](Self::status_address), and nobody else does: words are little-endian, a
///    store of 32 bits goes to the lower half.
/// 4. What is read from the status word was stored by the unit after what it says had happened: who
///    reads it (Acquire) may rely on that.
/// 5. When [`publish`](Self::publish) has returned, the unit sees all that this CPU has stored
///    before, or seen stored by others, to the ring and to page tables, if a register is written
///    after.
/// 6. An event that a device has not answered is in the log before the unit stores that it came to
///    a wait behind the command that the device was told by; who calls
///    [`drain_events`](Self::drain_events) after it has read that status gets it, unless another
///    call has got it before.
/// 7. A register is read from the unit itself, once and in the order of the program, as by a
///    volatile read of memory that is mapped for devices; and an acquire fence behind the read
///    orders what this CPU reads and writes after it. Where the compiler's fence does not reach as
///    far as the unit (on Arm it is a `dmb ishld`), a stronger barrier belongs into the read.
pub unsafe trait Port: Sync {
    /// Reads a register of 32 bits.
    fn read32(&self, offset: usize) -> u32;
    /// Writes a register of 32 bits.
    fn write32(&self, offset: usize, value: u32);
    /// Reads a register of 64 bits.
    fn read64(&self, offset: usize) -> u64;
    /// Writes a register of 64 bits.
    fn write64(&self, offset: usize, value: u64);
    /// The memory of the ring: a power of two of slots, two words each.
    fn ring(&self) -> &[AtomicU64];
    /// The status word, aligned to 8 bytes.
    fn status(&self) -> &AtomicU64;
    /// Where the unit finds the status word.
    fn status_address(&self) -> PhysAddr;
    /// A barrier that the unit is part of; writes the ring back to memory if the unit does not read
    /// the CPU's caches.
    fn publish(&self);
    /// Takes out of the unit's event log all that was there when it was called, and hands on each
    /// device that did not answer an invalidation in time. Only AMD-Vi tells it there; nothing
    /// is to be done for other units.
    ///
    /// The queue calls it between reading the [status](Self::status) and believing it, one at a
    /// time, also from interrupts; it must not wait, nor call the queue. Nobody else takes such
    /// events out of the log: who has an interrupt because of the log calls
    /// [`attend`](super::Queue::attend). What else is found there (faults of translation) the host
    /// keeps for itself.
    fn drain_events(&self, timed_out: &mut dyn FnMut(DeviceId));
}

macro_rules! ports_behind_pointers {
    ($(($($bounds:tt)*) $pointer:ty;)*) => {$(
        // SAFETY: the promises are those of the port that is pointed at.
        unsafe impl<P: Port + ?Sized $($bounds)*> Port for $pointer {
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
            fn ring(&self) -> &[AtomicU64] {
                (**self).ring()
            }
            fn status(&self) -> &AtomicU64 {
                (**self).status()
            }
            fn status_address(&self) -> PhysAddr {
                (**self).status_address()
            }
            fn publish(&self) {
                (**self).publish();
            }
            fn drain_events(&self, timed_out: &mut dyn FnMut(DeviceId)) {
                (**self).drain_events(timed_out);
            }
        }
    )*};
}
ports_behind_pointers! {
    () &P;
    () Box<P>;
    (+ Send) Arc<P>;
}
