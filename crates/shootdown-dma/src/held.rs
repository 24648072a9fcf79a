//! The number of locks and cells that a thread has: tests check that no call waits with one. In
//! other builds it is empty.

#[cfg(all(test, not(loom)))]
mod imp {
    use core::cell::Cell;

    std::thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    /// One more, until it is dropped.
    pub struct Held(());

    impl Held {
        pub fn one() -> Self {
            COUNT.set(COUNT.get() + 1);
            Self(())
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            COUNT.set(COUNT.get() - 1);
        }
    }

    /// How many there are.
    pub fn count() -> usize {
        COUNT.get()
    }
}

#[cfg(not(all(test, not(loom))))]
mod imp {
    pub struct Held;

    impl Held {
        #[inline]
        pub const fn one() -> Self {
            Self
        }
    }
}

pub use imp::*;
