//! From a program that fails to a shorter one that breaks the same promise.
//!
//! Operations are left out one after the other, and each shorter program is tried with new
//! schedules: a schedule of the longer one means nothing to it. What is kept has failed in the same
//! way, so nothing here can make a program wrong.

use super::search::Hunter;
use crate::hunt::Outcome;
use crate::hunt::kernel::{Port, Program};
use crate::hunt::schedule::same_promise;

/// Schedules that a shorter program is tried with, half of them by priorities. A bug of the usual
/// depth shows in one of some hundreds.
const SCHEDULES: u64 = 512;

/// Leaves out what is not needed.
pub(super) fn smaller<P: Port>(
    hunter: &Hunter<'_>,
    mut program: Program,
    mut outcome: Outcome,
) -> (Program, Outcome) {
    let same = same_promise(&outcome);
    let fails = |program: &Program| {
        let world = program.clone().on::<P>();
        [false, true].into_iter().find_map(|priorities| {
            let searched = hunter.by_chance(&world, 1, priorities, SCHEDULES / 2, &mut |_| ());
            searched.found.map(|found| found.outcome).filter(&same)
        })
    };
    // Once more from the start as long as something was left out.
    let mut at = 0;
    let mut left_out = false;
    loop {
        let Some(candidate) = candidates(&program).into_iter().nth(at) else {
            if !left_out {
                return (program, outcome);
            }
            (at, left_out) = (0, false);
            continue;
        };
        match fails(&candidate) {
            Some(shorter) => {
                (program, outcome) = (candidate, shorter);
                left_out = true;
            }
            None => at += 1,
        }
    }
}

/// The program without a CPU's whole script, then without one operation.
fn candidates(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let count = program.cpus.len();
    if count > 1 {
        for cpu in (0..count).rev() {
            let mut less = program.clone();
            less.cpus.remove(cpu);
            all.push(less);
        }
    }
    for cpu in (0..count).rev() {
        for op in (0..program.cpus[cpu].run.len()).rev() {
            let mut less = program.clone();
            less.cpus[cpu].run.remove(op);
            all.push(less);
        }
        for op in (0..program.cpus[cpu].boot.len()).rev() {
            let mut less = program.clone();
            less.cpus[cpu].boot.remove(op);
            all.push(less);
        }
    }
    all
}
