//! What the hot paths cost on this machine, by its finest count.
//!
//! A line `bench NAME MEDIAN LEAST` for each. On a CPU it counts cycles, or time; on QEMU with `-icount shift=0` one
//! instruction of whichever CPU runs, since CPUs take turns there: the cost of a remote flush is then the instructions of
//! all that take part. The clock is read twice for each figure, and that is not taken off (`clock`).

mod remote;
mod switches;

use crate::arch;
use crate::say;

/// Times each path is run: the median of an odd number is one of them.
const ROUNDS: usize = 33;

/// Runs `path` over and over, and prints its cost. Whatever the path leaves behind, `between` puts right, uncounted.
fn measure(name: core::fmt::Arguments<'_>, mut path: impl FnMut(), mut between: impl FnMut()) {
    let mut ticks = [0; ROUNDS];
    // Once for the caches.
    path();
    between();
    for ticks in &mut ticks {
        let before = arch::count();
        path();
        *ticks = arch::count() - before;
        between();
    }
    ticks.sort_unstable();
    say!("bench {name} {} {}", ticks[ROUNDS / 2], ticks[0]);
}

/// Runs all.
pub fn run(cpus: u32) {
    if !arch::start_counting() {
        say!("bench: this CPU has no counter of cycles");
        return;
    }
    measure(format_args!("clock"), || (), || ());
    switches::run();
    for remotes in [0, 1, 3, 7, 15, 31, 63].into_iter().filter(|remotes| *remotes < cpus) {
        remote::run(remotes);
    }
}
