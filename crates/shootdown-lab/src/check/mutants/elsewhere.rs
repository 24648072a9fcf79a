//! Mutants that no hunt can see, because eight CPUs are too few, or because the ports that are hunted have no
//! machine-wide tags beside slots: the model checker `loom` kills them, on the same code. Its tests run with every
//! change; here is only where they are.

use shootdown::mutant::Mutant::{self, *};

/// A test of the model checker.
#[derive(Debug)]
pub struct Elsewhere {
    /// A file of the library's tests.
    pub file: &'static str,
    /// The test function.
    pub test: &'static str,
    /// The mutants that it kills and no scene does.
    pub kills: &'static [Mutant],
}

const ALL: &[Elsewhere] = &[
    Elsewhere {
        file: "loom_tree.rs",
        test: "the_first_cpu_of_a_word_passes_the_kick_on",
        kills: &[TreeForwardsNothing],
    },
    Elsewhere {
        file: "loom_tree.rs",
        test: "a_kick_is_not_left_to_a_cpu_that_has_gone_offline",
        kills: &[TreeForwardsByAbsent],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "no_tag_has_two_owners_when_the_tail_is_held",
        kills: &[
            NotFoundClaimed,
            ReleasedIsFree,
            ResetForgotten,
            AssignedNotTaken,
            ResetFreesOwned,
            ReleasedKept,
        ],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "a_tag_that_is_released_during_a_reset_is_not_clean_after_it",
        kills: &[ReleasedNotedLate, TagReleaseRelaxed, TagReleaseSeenRelaxed],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "two_cpus_that_assign_at_once_get_different_clean_tags",
        kills: &[BroadcastTagsLockIgnored, BroadcastTagsLockRelaxed, BroadcastTagsUnlockRelaxed],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "a_cpu_that_comes_back_to_its_slot_is_seen_or_sees_the_tag",
        kills: &[SettleWithoutSharedFence, SettleIgnoresSwitching],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "a_cpu_that_stays_under_its_slot_is_asked",
        kills: &[SettleIgnoresSlots, MovingCountsAsMoved],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "a_tag_that_comes_during_a_flush_is_broadcast_for",
        kills: &[SharedTagNotLookedAtAgain],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "two_cpus_that_assign_agree_on_one_tag",
        kills: &[SharedTagOverwritten],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "what_was_done_under_a_slot_is_over_when_the_space_has_moved",
        kills: &[MovedRelaxed, SharedTagRelaxed],
    },
];

/// Who kills this mutant, if it is the model checker.
#[must_use]
pub fn of(mutant: Mutant) -> Option<&'static Elsewhere> {
    ALL.iter().find(|e| e.kills.contains(&mutant))
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
        for Elsewhere { file, test, kills } in ALL {
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../shootdown/tests/");
            let source = std::fs::read_to_string(format!("{dir}{file}")).unwrap();
            let text = text(&source, test).unwrap_or_else(|| panic!("{file} has no test {test}"));
            for mutant in *kills {
                assert!(text.contains(&format!("{mutant:?}")), "{test} does not name {mutant:?}");
            }
            assert!(source.contains("#![cfg(loom)]"), "{file}");
        }
    }
}
