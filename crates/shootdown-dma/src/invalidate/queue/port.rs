//! What a queue needs from its host: registers, memory for the ring, a word for the status.

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
/// 2. [`ring`](Self::ring) is the memory that the unit's base register names: two words for each
///    slot. No other code writes to it.
/// 3. The unit stores to [`status`](Self::status) when a command names
///    [`status_address`](Self::status_address), and nothing else does: words are little-endian, a
///    store of 32 bits goes to the lower half.
/// 4. The unit stores a status after the events that it reports: a CPU that reads it (Acquire) may
///    rely on them.
/// 5. When [`publish`](Self::publish) has returned and a register is written afterwards, the unit
///    sees all that this CPU has stored before, or seen stored by others, to the ring and to page
///    tables.
/// 6. If a device has not acknowledged a command, the event is in the log before the unit stores
///    that it reached a wait behind the command. A call of [`drain_events`](Self::drain_events)
///    after that status was read gets the event, unless another call has got it before.
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
    /// The address of the status word for the unit.
    fn status_address(&self) -> PhysAddr;
    /// A barrier that the unit takes part in; writes the ring back to memory if the unit does not
    /// read the CPU's caches.
    fn publish(&self);
    /// Takes out of the unit's event log all that was there when it was called, and hands on each
    /// device that did not acknowledge an invalidation in time. Only AMD-Vi logs that; for other
    /// units there is nothing to do.
    ///
    /// The queue calls it between reading the [status](Self::status) and using it, one call at a
    /// time, also from interrupts; it must not wait, nor call the queue. No other code takes such
    /// events out of the log: a handler of the log's interrupt calls
    /// [`attend`](super::Queue::attend). The host keeps the other events that it finds (faults of
    /// translation) for itself.
    fn drain_events(&self, timed_out: &mut dyn FnMut(DeviceId));
}

macro_rules! ports_behind_pointers {
    ($(($($bounds:tt)*) $pointer:ty;)*) => {$(
        // SAFETY: the port that is pointed at gives the guarantees.
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
