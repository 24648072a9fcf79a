//! For models of single mechanisms: the model holds, and none of its mutants does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shootdown_woven::mutant::{self, Mutant};

/// Threads of a model that wait for each other for good are noticed after so many choices.
const BRANCHES: usize = 5_000;

fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) -> u64 {
    let executions = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&executions);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = BRANCHES;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    executions.load(Ordering::Relaxed)
}

/// Explores every execution of `model` (with at most so many preemptions); then, for each mutant,
/// expects one that breaks it.
pub fn holds(
    name: &str,
    preemptions: Option<usize>,
    mutants: &[Mutant],
    model: impl Fn() + Sync + Send + Copy + 'static,
) {
    mutant::set(None);
    println!("{name}: {} executions", explore(preemptions, model));
    // A mutant's panic unwinds a coroutine with a small stack; a backtrace would not fit it.
    std::panic::set_hook(Box::new(|info| {
        // The threads that a failed execution leaves behind are unwound too: of no interest.
        if !info.location().is_some_and(|l| l.file().contains("generator")) {
            eprintln!("{info}");
        }
    }));
    for m in mutants {
        mutant::set(Some(*m));
        let outcome = catch_unwind(AssertUnwindSafe(|| explore(preemptions, model)));
        mutant::set(None);
        assert!(outcome.is_err(), "{name}: mutant {m:?} survived {:?} executions", outcome.ok());
        println!("{name}: mutant {m:?} killed");
    }
}
