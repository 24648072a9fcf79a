//! The scenes, by what they are about.

mod accessed;
mod calls;
mod clean;
mod elide;
mod failed;
mod flush;
mod handlers;
mod lazy_unmap;
mod leaving;
mod moving;
mod newest;
mod pending;
mod reclaim;
mod residency;
mod switch;
mod tags;
mod trees;
mod unwind;

use shootdown::sync::Ordering;
use shootdown_machine::hunt::hw;

use super::kit::kit;
use super::scene::Scene;

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Scene> {
    [
        switch::SCENES,
        leaving::SCENES,
        flush::SCENES,
        failed::SCENES,
        newest::SCENES,
        pending::SCENES,
        reclaim::SCENES,
        calls::SCENES,
        trees::SCENES,
        unwind::SCENES,
        handlers::SCENES,
        tags::SCENES,
        elide::SCENES,
        accessed::SCENES,
        lazy_unmap::SCENES,
        clean::SCENES,
        moving::SCENES,
        residency::SCENES,
    ]
    .into_iter()
    .flatten()
}

/// A called function has run on this CPU.
fn ran_here() {
    let ran = &kit().flags[hw::this_cpu().index()];
    ran.store(ran.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The call has succeeded: the function has run on each of these CPUs, and its effect is seen.
fn all_ran(cpus: &[usize]) {
    all_ran_times(cpus, 1);
}

/// As [`all_ran`], for the last of so many calls.
fn all_ran_times(cpus: &[usize], times: u64) {
    for cpu in cpus {
        let seen = kit().flags[*cpu].load(Ordering::Relaxed);
        assert!(seen >= times, "calls: cpu{cpu} has acknowledged, and its effect is not seen");
    }
}
