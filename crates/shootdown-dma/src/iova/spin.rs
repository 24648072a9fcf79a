//! The lock of the shared parts: one word, taken by compare-and-swap.
//!
//! Interrupt handlers, too, call allocators, and must not sleep; an allocator holds this lock for a
//! bounded time: a search in a balanced tree, a few words of a bitmap, an exchange of a magazine.
//! Under the lock it calls no code of the host, neither the kernel's memory allocator nor an
//! invalidation.
//!
//! To use the kernel's own lock, every allocator and every type that holds one would need a type
//! parameter, for a lock that is rarely contended: magazines take it once for a hundred operations.
//! It is not fair for the same reason; and a fair lock stops when the next in turn is a virtual CPU
//! that does not run.
//!
//! **Interrupts.** The lock does not disable them. If interrupt handlers allocate or free, all
//! other callers must disable interrupts, or a handler would wait for the task that it has
//! interrupted.
//!
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | S1 compare-and-swap in `take` | Acquire | S2 | what the holder before did under the lock is seen |
//! | S2 store when done | Release | S1 | |

use crate::held::Held;
use crate::sync::{AtomicBool, Ordering, UnsafeCell, spin_loop};

/// A value that one CPU at a time may use.
pub(crate) struct Spin<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` gives `&mut T` to one thread at a time, so that `T` needs to be movable between
// threads only.
unsafe impl<T: Send> Sync for Spin<T> {}
// SAFETY: as for `T` itself.
unsafe impl<T: Send> Send for Spin<T> {}

/// Gives the lock back, also when its holder panics.
struct Taken<'a>(&'a AtomicBool, #[allow(dead_code)] Held); // counted as long as it lives

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release); // [S2]
    }
}

impl<T> Spin<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock and uses the value.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        while !self.take() {
            spin_loop();
            // Waits on a copy of the line. Not under the model checker, which could let a load see
            // the old value for ever.
            while cfg!(not(loom)) && self.taken.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
        self.run(f)
    }

    #[inline]
    fn take(&self) -> bool {
        // ORDERING: acquires what the holder before released [S2].
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() // [S1]
    }

    #[inline]
    fn run<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let _taken = Taken(&self.taken, Held::one());
        // SAFETY: `taken` was false and this thread made it true; no other thread comes here before
        // `_taken` is dropped.
        self.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}
