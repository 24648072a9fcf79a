//! A domain without an allocator: its caller chooses the addresses.
//!
//! A hypervisor's guest chooses the addresses at which its devices find memory. A domain for such a
//! guest has nothing to allocate: it maps with [`Domain::map_at`](crate::Domain::map_at), and uses
//! this type as its allocator.

use super::{AllocError, Allocate, FreeError, Want};
use crate::addr::IovaRange;

/// An allocator that hands out no address, and takes none back.
///
/// ```
/// use shootdown_dma::iova::{AllocError, Allocate, Unmanaged, Want};
/// let page = Want::pages(1).expect("not zero");
/// assert_eq!(Unmanaged.alloc(0, &page), Err(AllocError::Exhausted));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unmanaged;

// SAFETY: it hands out no range.
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
