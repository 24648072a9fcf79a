//! For tests that hold as the library is, and not without a step of it.

use std::panic::catch_unwind;

use shootdown_dma_woven::mutant::{self, Mutant};

/// The test fails without the step, and comes by it. That it passes with the step is seen where it
/// runs by itself.
pub fn is_missed(step: Mutant, test: fn()) {
    mutant::set(Some(step));
    let outcome = catch_unwind(test);
    let reached = mutant::reached();
    mutant::set(None);
    assert!(reached, "{step:?} is not come by");
    assert!(outcome.is_err(), "nobody misses {step:?}");
}
