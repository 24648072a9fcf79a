//! A heap, for what needs one: the DMA library keeps its queues and its allocator of addresses
//! there.
//!
//! It is a large frame, taken when a suite that needs it begins; an allocation before that fails,
//! and so does one for which there is no room.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use linked_list_allocator::Heap;
use spin::Mutex;

use crate::memory;

/// The heap behind Rust's `alloc`. Handlers of interrupts don't allocate, so a spinning lock is
/// enough.
struct Locked(Mutex<Heap>);

#[global_allocator]
static HEAP: Locked = Locked(Mutex::new(Heap::empty()));

// SAFETY: `linked_list_allocator` keeps the contract, one call at a time.
unsafe impl GlobalAlloc for Locked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.lock().allocate_first_fit(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if let Some(at) = NonNull::new(at) {
            // SAFETY: the caller got it from `alloc`, with this layout.
            unsafe { self.0.lock().deallocate(at, layout) };
        }
    }
}

/// Makes the heap, once; later calls do nothing. `false`: memory has no large frame left.
#[must_use]
pub fn init() -> bool {
    let mut heap = HEAP.0.lock();
    if heap.size() > 0 {
        return true;
    }
    let Some(frame) = memory::allocate_large() else { return false };
    // SAFETY: the frame is the heap's from now on, for ever.
    unsafe { heap.init(memory::at(frame), memory::LARGE_FRAME as usize) };
    true
}
