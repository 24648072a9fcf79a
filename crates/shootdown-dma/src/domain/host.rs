//! What the kernel gives a domain: the seam.

use crate::addr::PhysAddr;
use crate::invalidate::Unit;
use crate::iova::Allocate;
use crate::table::{Format, TableMemory};

/// The kernel, as a domain sees it.
///
/// # Safety
/// From [`hold`](Self::hold) until [`release`](Self::release) of the same pages nobody else gets them: whoever owns
/// them may free them, but they are not recycled before they are released as often as they were held.
pub unsafe trait Host: Sync {
    /// Where addresses come from.
    type Addresses: Allocate;
    /// What the page table looks like.
    type Format: Format;
    /// Where its pages come from.
    type Tables: TableMemory;
    /// An IOMMU.
    type Unit: Unit;

    /// The CPU that executes this. A hint: a wrong number costs speed only. Unless the domain is made for a host that is
    /// [`Pinned`](crate::pinned::Pinned): then the caller has this number for itself until it returns from the domain.
    fn cpu(&self) -> usize;

    /// One turn of a loop that waits for the hardware; false to give up. No lock is held.
    fn relax(&self) -> bool {
        crate::sync::spin_loop();
        true
    }

    /// One reference more to each of `pages` pages (of the format's granule) from `first` on. False: something there is no memory that can be held;
    /// then none is.
    fn hold(&self, first: PhysAddr, pages: u64) -> bool;

    /// One reference less to each: it may have been the last. Called from whoever unmaps or polls, without locks.
    fn release(&self, first: PhysAddr, pages: u64);
}
