//! Addresses that somebody else hands out.
//!
//! A hypervisor's guest says itself at which addresses its devices are to find memory. A domain for
//! such a guest has nothing to allocate: it maps with [`Domain::map_at`](crate::Domain::map_at),
//! and this stands where an allocator would.

use super::{AllocError, Allocate, FreeError, Want};
use crate::addr::IovaRange;

/// No address is handed out here, and none taken back.
///
/// ```
/// use shootdown_dma::iova::{AllocError, Allocate, Unmanaged, Want};
/// let page = Want::pages(1).expect("not zero");
/// assert_eq!(Unmanaged.alloc(0, &page), Err(AllocError::Exhausted));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unmanaged;

// SAFETY: what is never handed out is disjoint from everything.
unsafe impl Allocate for Unmanaged {
    fn alloc(&self, _: usize, _: &Want) -> Result<IovaRange, AllocError> {
        Err(AllocError::Exhausted)
    }

    fn free(&self, _: usize, _: IovaRange) -> Result<(), FreeError> {
        Err(FreeError::NotAllocated)
    }

    fn may_keep(&self) -> bool {
        false
    }
}
