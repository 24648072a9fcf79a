//! What the kernel gives a domain: the seam.

use crate::addr::PhysAddr;
use crate::invalidate::Unit;
use crate::iova::Allocate;
use crate::table::{Format, TableMemory};

/// Where code is executed, as long as this lives: what [`Host::pin`] returns.
pub trait Pin {
    /// The number of the CPU.
    fn cpu(&self) -> usize;
}

/// A number alone, which may be wrong a moment later: for hosts that promise nothing, and where
/// nothing is ever moved.
impl Pin for usize {
    #[inline]
    fn cpu(&self) -> usize {
        *self
    }
}

/// The kernel, as a domain sees it.
///
/// # Safety
/// If the domain is made for a host that is [`Pinned`](crate::pinned::Pinned): from when
/// [`pin`](Self::pin) has returned until its result is dropped nobody else has the same number, but
/// interrupts, which are over before what they interrupt goes on.
///
/// From [`hold`](Self::hold) until [`release`](Self::release) of the same pages nobody else gets
/// them: whoever owns them may free them, but they are not recycled before they are released as
/// often as they were held.
pub unsafe trait Host: Sync {
    /// Where addresses come from.
    type Addresses: Allocate;
    /// What the page table looks like.
    type Format: Format;
    /// Where its pages come from.
    type Tables: TableMemory;
    /// An IOMMU.
    type Unit: Unit;

    /// The proof that code stays on its CPU: usually a guard that turns preemption off. A `usize`
    /// where the number is a hint: a wrong one costs speed only.
    type Pin: Pin;

    /// Stays on this CPU until the result is dropped, which is soon: nobody waits for hardware with
    /// it, nor calls the host but for pages of tables.
    fn pin(&self) -> Self::Pin;

    /// One turn of a loop that waits for the hardware, or for other CPUs to leave what they hold
    /// for a moment; false to give up on the hardware. No lock is held.
    fn relax(&self) -> bool {
        crate::sync::spin_loop();
        true
    }

    /// One reference more to each of `pages` pages (of the format's granule) from `first` on.
    /// False: something there is no memory that can be held; then none is.
    fn hold(&self, first: PhysAddr, pages: u64) -> bool;

    /// One reference less to each: it may have been the last. Called from whoever unmaps or polls,
    /// without locks.
    fn release(&self, first: PhysAddr, pages: u64);
}
