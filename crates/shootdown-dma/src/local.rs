//! One of something for each CPU, entered by whoever comes first.
//!
//! # The problem
//! What is kept for each CPU is fast because nobody else uses it. But a kernel may be interrupted or moved between asking
//! where it runs and acting on it, and user space is all the time: so a CPU's number is a hint, and being alone has to be
//! made sure of.
//!
//! # The protocol
//! A flag for each CPU, on the line of what it protects: one atomic swap to enter, one store to leave. Nobody waits: who
//! finds the flag set (another CPU, or what this CPU was doing when it was interrupted) goes elsewhere.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | O1 | swap to enter | Acquire | O2 | sees what the last one did |
//! | O2 | store to leave | Release | O1 | shows what was done |

use core::fmt;

use crate::fixed::{Fixed, NoMemory};
use crate::sync::{AtomicBool, Ordering, UnsafeCell};

/// On lines of its own: two, as processors fetch them in pairs.
#[repr(align(128))]
struct Cell<T> {
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

/// A `T` for each CPU. A number above the last is taken modulo their count.
///
/// ```
/// use shootdown_dma::local::Local;
/// let counts = Local::new(4, |_| 0)?;
/// assert_eq!(counts.enter(5, |count| { *count += 1; *count }), Some(1));
/// let within = counts.enter(1, |_| counts.enter(1, |_| ())); // somebody is in there
/// assert_eq!(within, Some(None));
/// # Ok::<(), shootdown_dma::fixed::NoMemory>(())
/// ```
pub struct Local<T> {
    cells: Fixed<Cell<T>>,
}

// SAFETY: a `T` is used by one at a time (the flag), from any thread.
unsafe impl<T: Send> Sync for Local<T> {}

impl<T> Local<T> {
    /// One for each of `cpus` CPUs, at least for one.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(cpus: usize, mut make: impl FnMut(usize) -> T) -> Result<Self, NoMemory> {
        Self::try_new(cpus, |cpu| Ok(make(cpu)))
    }

    /// The same, where making one can fail.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn try_new(
        cpus: usize,
        mut make: impl FnMut(usize) -> Result<T, NoMemory>,
    ) -> Result<Self, NoMemory> {
        let cells = Fixed::try_new(cpus.max(1), |cpu| {
            let value = UnsafeCell::new(make(cpu)?);
            Ok(Cell { busy: AtomicBool::new(false), value })
        })?;
        Ok(Self { cells })
    }

    /// For how many CPUs.
    #[must_use]
    #[inline]
    pub fn cpus(&self) -> usize {
        self.cells.len()
    }

    /// Does `f` with what `cpu` has; `None` if somebody else is at it. `f` is not to wait for anything.
    #[inline]
    pub fn enter<R>(&self, cpu: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let index = if cpu < self.cells.len() { cpu } else { cpu % self.cells.len() };
        let cell = &self.cells[index];
        // ORDERING [O1]: Acquire, with the Release of whoever left last.
        if cell.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        let _leave = Leave(&cell.busy);
        // SAFETY: the flag was clear and is set now: nobody else is here until it is cleared.
        Some(cell.value.with_mut(|value| f(unsafe { &mut *value })))
    }

    /// The same with what `cpu` has, or else with the next that nobody is at, whose number `f` is told.
    ///
    /// # Errors
    /// `f`, not called: somebody is at each.
    #[inline]
    pub fn enter_near<R, F: FnOnce(usize, &mut T) -> R>(&self, cpu: usize, f: F) -> Result<R, F> {
        let cells = self.cells.len();
        let mut index = if cpu < cells { cpu } else { cpu % cells };
        let mut f = Some(f);
        for _ in 0..cells {
            let entered = self.enter(index, |value| f.take().map(|f| f(index, value)));
            if let Some(Some(result)) = entered {
                return Ok(result);
            }
            index = if index + 1 < cells { index + 1 } else { 0 };
        }
        f.map_or_else(|| unreachable!("called, and yet not returned"), Err)
    }

    /// Without asking: nobody else has it.
    pub fn for_each_mut(&mut self, mut f: impl FnMut(&mut T)) {
        for cpu in 0..self.cells.len() {
            self.enter(cpu, &mut f);
        }
    }
}

impl<T> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("cpus", &self.cells.len()).finish_non_exhaustive()
    }
}

/// Leaves, also by a panic.
struct Leave<'a>(&'a AtomicBool);

impl Drop for Leave<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING [O2]: Release, with the Acquire of whoever enters next.
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn whoever_finds_one_taken_goes_to_the_next() {
        let local = Local::new(2, |cpu| cpu).unwrap();
        let seen = local.enter(0, |_| local.enter_near(0, |_, mine| *mine).ok());
        assert_eq!(seen, Some(Some(1)));
        let none = local.enter(0, |_| local.enter(1, |_| local.enter_near(0, |_, _| ()).is_err()));
        assert_eq!(none, Some(Some(true)));
    }

    #[test]
    fn a_panic_leaves_it_usable() {
        let local = Local::new(1, |_| 7).unwrap();
        let panics = || local.enter(0, |_: &mut i32| panic!("on purpose"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(local.enter(0, |value| *value), Some(7));
    }
}
