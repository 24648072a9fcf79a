//! Mutants that no hunt can see, because eight CPUs are too few: the model checker `loom` kills them, on the
//! same code. Its tests run with every change; here is only where they are.

use shootdown::mutant::Mutant;

/// Who kills a mutant.
#[derive(Debug)]
pub struct Elsewhere {
    /// The mutant.
    pub mutant: Mutant,
    /// A file of the library's tests.
    pub file: &'static str,
    /// The test function.
    pub test: &'static str,
}

const ALL: &[Elsewhere] = &[
    Elsewhere {
        mutant: Mutant::TreeForwardsNothing,
        file: "loom_tree.rs",
        test: "the_first_cpu_of_a_word_passes_the_kick_on",
    },
    Elsewhere {
        mutant: Mutant::TreeForwardsByAbsent,
        file: "loom_tree.rs",
        test: "a_kick_is_not_left_to_a_cpu_that_has_gone_offline",
    },
];

/// Who kills this mutant, if it is the model checker.
#[must_use]
pub fn of(mutant: Mutant) -> Option<&'static Elsewhere> {
    ALL.iter().find(|e| e.mutant == mutant)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a test function, up to the next test.
    fn text<'a>(source: &'a str, test: &str) -> Option<&'a str> {
        let from = source.find(&format!("#[test]\nfn {test}()"))? + "#[test]".len();
        source[from..].split("#[test]").next()
    }

    #[test]
    fn tests_elsewhere_exist_and_name_their_mutants() {
        for Elsewhere { mutant, file, test } in ALL {
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../shootdown/tests/");
            let source = std::fs::read_to_string(format!("{dir}{file}")).unwrap();
            let text = text(&source, test).unwrap_or_else(|| panic!("{file} has no test {test}"));
            assert!(text.contains(&format!("{mutant:?}")), "{test} does not name {mutant:?}");
            assert!(source.contains("#![cfg(loom)]"), "{file}");
        }
    }
}
