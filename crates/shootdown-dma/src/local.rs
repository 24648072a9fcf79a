//! One value for each CPU, entered by one context at a time.
//!
//! # The problem
//! Per-CPU data is fast because no other CPU uses it. But a kernel may be interrupted or moved to
//! another CPU between reading its CPU's number and acting on it, and in user space that happens
//! all the time. So a CPU's number is only a hint, and exclusive access has to be ensured. A
//! compare-and-swap does that, and costs more than the work inside.
//!
//! # The protocol
//! **A hint.** Each cell has a flag, on the line of the data that it protects: one compare-and-swap
//! to enter, one store to leave. No caller waits: a caller that finds the flag set (by another CPU,
//! or by the code on this CPU that it has interrupted) takes another cell.
//!
//! **A guarantee.** A host that is [`Pinned`] guarantees more, and its CPUs enter their own cells
//! by plain accesses:
//!
//! ```text
//! owner:    busy = 1 --> (light fence) --> claimed? then out again --> inside --> busy = 0
//! claimer:  claimed from 0 to 1 --> heavy barrier of the owner --> busy? then wait a little --> inside --> claimed = 0
//! ```
//!
//! At the barrier the owner executes a full fence, whatever it runs. If it had set `busy` before,
//! the claimer sees it. If not, it reads `claimed` after the fence, sees the claim, and takes
//! another cell. An interrupt on the owner's CPU ends before the owner goes on, so `busy` needs no
//! atomic exchange: a context that reads 0 is alone until an interrupt on top of it has entered and
//! left. Cells beyond the CPUs' own are always entered by compare-and-swap: they are for interrupts
//! that find their CPU's cell taken.
//!
//! # Invariants
//! - **I1** One context at a time is in a cell.
//! - **I2** A claimer waits for an owner only, a bounded number of turns; an owner waits for no
//!   other context.
//!
//! # Orderings
//! | # | access | ordering | partner | why |
//! |---|---|---|---|---|
//! | O1 | compare-and-swap to enter | Acquire | O2 | sees what the last context in the cell did |
//! | O2 | store to leave | Release | O1, C2 | shows what was done |
//! | P1 | owner: store of `busy`, light fence, load of `claimed` | Acquire | C1, C3 | of P1 and C1 one sees the other; and the owner sees what the last claimer did |
//! | C1 | claimer: compare-and-swap of `claimed`, heavy barrier | Acquire | P1, C3 | as above; and it sees what the claimer before did |
//! | C2 | claimer: load of `busy` | Acquire | O2 | sees what the owner did |
//! | C3 | claimer: store of `claimed` to leave | Release | P1, C1 | shows what was done |
//!
//! This holds on weakly ordered machines too: the owner's store of `busy` may become visible late,
//! and its load of `claimed` may be early, but neither crosses the barrier. If both lie before it,
//! the claimer sees the store (C2). If both lie after it, the owner sees the claim. If the store
//! lies before and the load after it, each sees the other. The load is an Acquire, so the accesses
//! inside stay behind it.

use core::fmt;

use crate::fixed::{Fixed, NoMemory};
use crate::held::Held;
use crate::pinned::{Pinned, light_fence};
use crate::sync::{AtomicBool, Ordering, UnsafeCell, spin_loop};

/// One cell, on lines of its own: two, as processors fetch them in pairs.
#[repr(align(128))]
struct Cell<T> {
    busy: AtomicBool,
    /// Another context than the owner wants the cell, or is inside.
    claimed: AtomicBool,
    /// The owner has entered since the cell was [calmed](Local::calm).
    stirred: AtomicBool,
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
    /// The number of cells, from 0 on, that have owners.
    owned: usize,
    pinned: Option<Pinned>,
}

// SAFETY: one context at a time uses a `T` (I1), from any thread.
unsafe impl<T: Send> Sync for Local<T> {}

impl<T> Local<T> {
    /// Makes one for each of `cpus` CPUs, at least one.
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
            let [busy, claimed, stirred] = [(); 3].map(|()| AtomicBool::new(false));
            Ok(Cell { busy, claimed, stirred, value })
        })?;
        Ok(Self { cells, owned: 0, pinned: None })
    }

    /// The same; if the host is pinned, each of the first `cpus` cells belongs to the CPU of its
    /// number.
    #[must_use]
    pub fn pinned(self, pinned: Option<Pinned>, cpus: usize) -> Self {
        let owned = if pinned.is_some() { cpus.min(self.cells.len()) } else { 0 };
        Self { owned, pinned, ..self }
    }

    /// The number of CPUs that it has cells for.
    #[must_use]
    #[inline]
    pub fn cpus(&self) -> usize {
        self.cells.len()
    }

    /// Calls `f` with the value of `cpu`; `None` if another context is in the cell. `f` must not
    /// wait for anything. Code that runs on that CPU should [enter the cell as its
    /// own](Self::enter_own).
    #[inline]
    pub fn enter<R>(&self, cpu: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.enter_within(cpu, 1, f)
    }

    /// The same; waits up to `turns` turns for the owner to leave.
    pub fn enter_within<R>(
        &self,
        cpu: usize,
        turns: usize,
        f: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let index = self.index(cpu);
        let cell = &self.cells[index];
        let inside = match self.pinned.filter(|_| index < self.owned) {
            Some(pinned) => cell.claim(pinned, index, turns),
            None => {
                let mut swapped = cell.swap();
                for _ in 1..turns {
                    if swapped.is_some() {
                        break;
                    }
                    spin_loop();
                    swapped = cell.swap();
                }
                swapped
            }
        };
        inside.map(|inside| inside.run(f))
    }

    /// Calls `f` with the value of `cpu`, on which the caller runs (guaranteed by the host, if it
    /// is [`Pinned`]).
    #[inline]
    pub fn enter_own<R>(&self, cpu: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let inside = match self.cells.get(cpu) {
            Some(cell) if cpu < self.owned => cell.own(),
            _ => self.swap(cpu),
        };
        inside.map(|inside| inside.run(f))
    }

    /// The same with the value of `cpu`, or else with that of the next free cell, whose number `f`
    /// gets. A cell that another CPU owns is not entered.
    ///
    /// # Errors
    /// `f`, not called: all cells are taken.
    #[inline]
    pub fn enter_near<R, F: FnOnce(usize, &mut T) -> R>(&self, cpu: usize, f: F) -> Result<R, F> {
        let own = match self.cells.get(cpu) {
            Some(cell) if cpu < self.owned => cell.own().map(|inside| (cpu, inside)),
            _ => None,
        };
        match own.or_else(|| self.swap_near(cpu)) {
            Some((index, inside)) => Ok(inside.run(|value| f(index, value))),
            None => Err(f),
        }
    }

    /// Whether the owner has entered this cell since it was [calmed](Self::calm). A hint that may
    /// be late by a moment. Always true where entering the cell costs no more than this check.
    pub fn is_stirred(&self, cpu: usize) -> bool {
        let index = self.index(cpu);
        index >= self.owned || self.cells[index].stirred.load(Ordering::Relaxed)
    }

    /// Whether this cell has an owner, which alone enters it without a claim.
    pub fn is_owned(&self, cpu: usize) -> bool {
        self.index(cpu) < self.owned
    }

    /// Called from inside: the cell has nothing for other CPUs until its owner enters again.
    pub fn calm(&self, cpu: usize) {
        self.cells[self.index(cpu)].stirred.store(false, Ordering::Relaxed);
    }

    /// Calls `f` with all values, without claims: `&mut self` excludes all others.
    pub fn for_each_mut(&mut self, mut f: impl FnMut(&mut T)) {
        for cell in self.cells.iter() {
            // SAFETY: no other borrow of the cells exists.
            cell.value.with_mut(|value| f(unsafe { &mut *value }));
        }
    }

    #[inline]
    fn index(&self, cpu: usize) -> usize {
        if cpu < self.cells.len() { cpu } else { cpu % self.cells.len() }
    }

    /// Enters a cell without an owner, by a swap.
    #[inline]
    fn swap(&self, cpu: usize) -> Option<Inside<'_, T>> {
        let index = self.index(cpu);
        if index < self.owned { None } else { self.cells[index].swap() }
    }

    /// Enters the next free cell without an owner, by a swap.
    #[inline]
    fn swap_near(&self, cpu: usize) -> Option<(usize, Inside<'_, T>)> {
        let first = self.index(cpu);
        if first >= self.owned {
            if let Some(inside) = self.cells[first].swap() {
                return Some((first, inside));
            }
        }
        self.swap_next(first)
    }

    #[cold]
    fn swap_next(&self, first: usize) -> Option<(usize, Inside<'_, T>)> {
        let others = (first + 1..self.cells.len()).chain(0..first);
        let mut free = others.filter(|index| *index >= self.owned);
        free.find_map(|index| self.cells[index].swap().map(|inside| (index, inside)))
    }
}

/// Sets a flag, if it is clear.
#[inline]
fn take(flag: &AtomicBool) -> bool {
    flag.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

impl<T> Cell<T> {
    #[inline]
    fn swap(&self) -> Option<Inside<'_, T>> {
        // ORDERING [O1]: Acquire, with the Release of the last context that left.
        if !take(&self.busy) {
            return None;
        }
        Some(Inside { flag: &self.busy, cell: self })
    }

    /// Enters as the owner.
    #[inline]
    fn own(&self) -> Option<Inside<'_, T>> {
        // Only the owner's CPU writes it: an interrupt finds it set if its CPU was inside.
        if self.busy.load(Ordering::Relaxed) {
            return None;
        }
        // ORDERING [P1].
        self.busy.store(true, Ordering::Relaxed);
        light_fence();
        let inside = Inside { flag: &self.busy, cell: self };
        if self.claimed.load(Ordering::Acquire) {
            return None;
        }
        self.stirred.store(true, Ordering::Relaxed);
        Some(inside)
    }

    /// Enters as any other context.
    #[cold]
    fn claim(&self, pinned: Pinned, cpu: usize, turns: usize) -> Option<Inside<'_, T>> {
        // ORDERING [C1].
        if !take(&self.claimed) {
            return None;
        }
        let inside = Inside { flag: &self.claimed, cell: self };
        if !pinned.barrier(cpu) {
            return None;
        }
        for _ in 0..turns {
            // ORDERING [C2].
            if !self.busy.load(Ordering::Acquire) {
                return Some(inside);
            }
            spin_loop();
        }
        None
    }
}

impl<T> fmt::Debug for Local<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("cpus", &self.cells.len()).finish_non_exhaustive()
    }
}

/// A context in a cell; dropping it leaves the cell, also in a panic.
struct Inside<'a, T> {
    flag: &'a AtomicBool,
    cell: &'a Cell<T>,
}

impl<T> Inside<'_, T> {
    #[inline]
    fn run<R>(self, f: impl FnOnce(&mut T) -> R) -> R {
        let _held = Held::one();
        // SAFETY: I1: no other context is here until `self` is dropped.
        self.cell.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING [O2] [C3]: Release, with the Acquire of the context that enters next.
        self.flag.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn barrier(_: usize) -> bool {
        crate::sync::fence(Ordering::SeqCst);
        true
    }

    /// For tests of one thread, which is every CPU.
    fn promise() -> Pinned {
        // SAFETY: there is one thread.
        unsafe { Pinned::new(barrier) }
    }

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
        for pinned in [None, Some(promise())] {
            let local = Local::new(2, |_| 7).unwrap().pinned(pinned, 1);
            let panics = || local.enter_own(0, |_: &mut i32| panic!("on purpose"));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
            assert_eq!(local.enter_own(0, |value| *value), Some(7));
            assert_eq!(local.enter(0, |value| *value), Some(7));
        }
    }

    #[test]
    fn what_has_an_owner_is_entered_by_it_or_claimed() {
        let local = Local::new(4, |cpu| cpu).unwrap().pinned(Some(promise()), 2);
        // An interrupt on CPU 0 takes a cell without an owner, and leaves that of CPU 1 alone.
        let seen = local.enter_own(0, |_| {
            let first = local.enter_near(0, |at, _| {
                let second = local.enter_near(0, |at, _| at).ok();
                (at, second, local.enter_near(0, |_, _| local.enter_near(0, |_, _| ()).is_err()))
            });
            (local.enter(0, |_| ()), local.enter_own(0, |_| ()), first.ok())
        });
        let Some((None, None, Some((2, Some(3), Ok(true))))) = seen.map(|(a, b, f)| {
            (a, b, f.map(|(at, second, third)| (at, second, third.map_err(|_| ()))))
        }) else {
            panic!("not as it should be");
        };
        // A claimer keeps the owner out.
        assert_eq!(local.enter(1, |_| local.enter_own(1, |_| ())), Some(None));
        assert_eq!(local.enter(1, |_| local.enter(1, |_| ())), Some(None));
        assert_eq!(local.enter(1, |_| local.enter_near(1, |at, _| at).ok()), Some(Some(2)));
        // A number that no CPU has.
        assert_eq!(local.enter_near(9, |at, _| at).ok(), Some(2));
        assert_eq!(local.enter_own(9, |_| ()), None);
    }

    #[test]
    fn a_barrier_that_is_refused_leaves_the_cell_to_its_owner() {
        // SAFETY: there is one thread.
        let pinned = unsafe { Pinned::new(|_| false) };
        let local = Local::new(2, |cpu| cpu).unwrap().pinned(Some(pinned), 1);
        assert_eq!(local.enter_within(0, 9, |_| ()), None);
        assert_eq!(local.enter_own(0, |at| *at), Some(0));
        assert_eq!(local.enter(1, |at| *at), Some(1));
    }

    #[test]
    fn owners_stir() {
        let local = Local::new(2, |cpu| cpu).unwrap().pinned(Some(promise()), 1);
        assert!(!local.is_stirred(0) && local.is_stirred(1));
        local.enter_own(0, |_| ());
        assert!(local.is_stirred(0));
        local.calm(0);
        local.enter(0, |_| ());
        assert!(!local.is_stirred(0));
    }
}
