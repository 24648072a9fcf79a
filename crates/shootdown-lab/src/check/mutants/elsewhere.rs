//! Mutants that no hunt can see, because eight CPUs are too few: the model checker `loom` kills them, on the
//! same code. Its tests run with every change; here is only where they are.

use shootdown::mutant::Mutant;

use crate::check::{CheckResult, Verdict};

/// Mutant, file, and test.
const LOOM: &[(Mutant, &str, &str)] = &[
    (Mutant::TreeForwardsNothing, "loom_tree.rs", "the_first_cpu_of_a_word_passes_the_kick_on"),
    (
        Mutant::TreeForwardsByAbsent,
        "loom_tree.rs",
        "a_kick_is_not_left_to_a_cpu_that_has_gone_offline",
    ),
];

/// The answer for a mutant without a scene.
#[must_use]
pub fn killed(mutant: Mutant) -> CheckResult {
    let expected = format!("{} broken", mutant.promise().name());
    match LOOM.iter().find(|(m, ..)| *m == mutant) {
        Some((_, file, test)) => {
            let observed = format!("by the model checker, in `{test}` (tests/{file})");
            CheckResult::new(expected, observed, Verdict::Pass)
        }
        None => {
            let observed = format!("nobody looks for it: {}", mutant.sentence());
            CheckResult::new(expected, observed, Verdict::Fail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body of a test function, up to the next one.
    fn body<'a>(source: &'a str, test: &str) -> Option<&'a str> {
        let from = source.find(&format!("#[test]\nfn {test}()"))? + "#[test]".len();
        Some(source[from..].split("#[test]").next().unwrap())
    }

    #[test]
    fn tests_elsewhere_exist_and_name_their_mutants() {
        for (mutant, file, test) in LOOM {
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../shootdown/tests/");
            let source = std::fs::read_to_string(format!("{dir}{file}")).unwrap();
            let body = body(&source, test).unwrap_or_else(|| panic!("{file} has no test {test}"));
            assert!(body.contains(&format!("{mutant:?}")), "{test} does not name {mutant:?}");
            assert!(source.contains("#![cfg(loom)]"), "{file}");
            assert!(mutant.equivalent().is_none(), "{mutant:?}");
        }
    }
}
