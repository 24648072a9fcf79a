//! Mutants that no hunt can see, and who sees them: the model checker on the same code, or the measuring
//! machine, which has room for many CPUs.

use shootdown::mutant::Mutant;

use crate::check::{CheckResult, Verdict};

/// Who kills what.
const LOOM: &[(Mutant, &str)] = &[];

/// The answer for a mutant without a scene.
#[must_use]
pub fn killed(mutant: Mutant) -> CheckResult {
    let expected = format!("{} broken", mutant.promise().name());
    match LOOM.iter().find(|(m, _)| *m == mutant) {
        Some((_, test)) => {
            CheckResult::new(expected, format!("by the model checker: `{test}`"), Verdict::Pass)
        }
        None => CheckResult::new(expected, "nobody looks for it", Verdict::Fail),
    }
}
