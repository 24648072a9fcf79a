//! What the hot paths cost on this machine, by its finest count.
//!
//! A line `bench NAME MEDIAN LEAST` for each, and `bench NAME MEDIAN LEAST MISSES` where the CPU
//! counts TLB misses. On a CPU it counts cycles, or time; on QEMU with `-icount shift=0` one
//! instruction of whichever CPU runs, since CPUs take turns there: the cost of a remote flush is
//! then the instructions of all that take part. The clock is read twice for each figure, and that
//! is not taken off (`clock`). Misses are those of the CPU that begins, the median of runs of their
//! own.

mod remote;
mod switches;

use crate::arch::{self, pmu};
use crate::say;

/// Times each path is run: the median of an odd number is one of them.
const ROUNDS: usize = 33;

/// Runs `path` over and over, and prints its cost. Whatever the path leaves behind, `between` puts
/// right, uncounted.
fn measure(name: core::fmt::Arguments<'_>, mut path: impl FnMut(), mut between: impl FnMut()) {
    // Once for the caches.
    path();
    between();
    let mut rounds = |count: fn() -> u64| {
        let mut counts = [0; ROUNDS];
        for counted in &mut counts {
            let before = count();
            path();
            *counted = count() - before;
            between();
        }
        counts.sort_unstable();
        (counts[ROUNDS / 2], counts[0])
    };
    let (median, least) = rounds(arch::count);
    if pmu::is_counting() {
        let (misses, _) = rounds(pmu::count);
        say!("bench {name} {median} {least} {misses}");
    } else {
        say!("bench {name} {median} {least}");
    }
}

/// How many CPUs are told: each number up to this, and then numbers that double, so that a large
/// machine is not measured for minutes.
const EACH: u32 = 8;

/// Runs all.
pub fn run(cpus: u32) {
    if !arch::start_counting() {
        say!("bench: this CPU has no counter of cycles");
        return;
    }
    match pmu::start() {
        Ok(event) => say!("pmu: TLB misses are {event}"),
        Err(why) => say!("pmu: no PMU event here: {why}"),
    }
    measure(format_args!("clock"), || (), || ());
    switches::run();
    let more = [15, 31, 63].into_iter().filter(|remotes| *remotes < cpus);
    for remotes in (0..cpus.min(EACH)).chain(more) {
        remote::run(remotes);
    }
}
