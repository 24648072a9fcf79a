//! The interface that the kernel implements for a domain.

use crate::addr::PhysAddr;
use crate::invalidate::Unit;
use crate::iova::Allocate;
use crate::table::{Format, TableMemory};

/// Proof of the CPU on which code is executed, as long as it lives: what [`Host::pin`] returns.
pub trait Pin {
    /// The number of the CPU.
    fn cpu(&self) -> usize;
}

/// A number alone, which may be out of date a moment later: for hosts that guarantee nothing about
/// it, and for code that never moves to another CPU.
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
/// [`pin`](Self::pin) has returned until its result is dropped, no other context has the same
/// number, except interrupt handlers, which end before the interrupted code goes on.
///
/// From [`hold`](Self::hold) until [`release`](Self::release) of the same pages, the host gives
/// these pages to no other user: their owner may free them, but they are not recycled before they
/// are released as often as they were held.
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
    /// where the number is a hint: a wrong number costs speed only.
    type Pin: Pin;

    /// Stays on this CPU until the result is dropped, which is soon: a domain neither waits for
    /// hardware while it has the result, nor calls the host except for pages of tables.
    fn pin(&self) -> Self::Pin;

    /// One turn of a loop that waits for the hardware, or for other CPUs to leave a cell; false to
    /// give up waiting for the hardware. No lock is held.
    fn relax(&self) -> bool {
        crate::sync::spin_loop();
        true
    }

    /// Takes one more reference to each of `pages` pages (of the format's granule) from `first` on.
    /// False: some page is not memory that can be held; then no reference was taken.
    fn hold(&self, first: PhysAddr, pages: u64) -> bool;

    /// Drops one reference to each; it may be the last. Called by the context that unmaps or polls,
    /// with no locks held.
    fn release(&self, first: PhysAddr, pages: u64);
}
