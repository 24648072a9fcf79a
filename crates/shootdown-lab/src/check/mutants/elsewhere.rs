//! Mutants that no hunt sees, because eight CPUs are too few, because the ports that are hunted
//! have no hypervisor, or because the hunted hardware is stricter than the language: the model
//! checker `loom` kills them, on the same code. Its tests run with every change; here is only where
//! they are.

use shootdown::mutant::Mutant::{self, *};

/// A test of the model checker.
#[derive(Debug)]
pub struct Elsewhere {
    /// A file of `verify/core/tests`.
    pub file: &'static str,
    /// The test function.
    pub test: &'static str,
    /// The mutants that it kills and no scene does.
    pub kills: &'static [Mutant],
}

const ALL: &[Elsewhere] = &[
    Elsewhere {
        file: "loom_isolated.rs",
        test: "a_cpu_that_enters_the_kernel_sees_the_change_or_is_seen",
        kills: &[
            IsolatedEntersWithoutFence,
            IsolatedReadsFirst,
            IsolatedTrusts,
            IsolatedCountRelaxed,
            IsolatedCountSeenRelaxed,
        ],
    },
    Elsewhere {
        file: "loom_isolated.rs",
        test: "a_cpu_that_goes_to_user_mode_has_done_with_the_kernel",
        kills: &[
            IsolatedLeavesRelaxed,
            IsolatedSeenRelaxed,
            IsolatedCurrentOnLeaving,
            IsolatedUncounted,
        ],
    },
    Elsewhere {
        file: "loom_isolated.rs",
        test: "freed_tables_are_not_left_to_cpus_in_user_mode",
        kills: &[IsolatedTablesDeferred],
    },
    Elsewhere {
        file: "loom_accessed.rs",
        test: "a_number_that_has_grown_is_seen_by_every_kind_of_switch",
        kills: &[AgeRelaxed, AgeSeenRelaxed],
    },
    Elsewhere {
        file: "loom_accessed.rs",
        test: "a_flag_that_was_raised_is_honoured_for_every_slot",
        kills: &[DueRelaxed],
    },
    Elsewhere {
        file: "loom_accessed.rs",
        test: "entries_under_a_tag_for_all_cpus_are_dropped_by_a_broadcast",
        kills: &[AgeSharedForgotten],
    },
    Elsewhere {
        file: "loom_pending.rs",
        test: "tables_are_free_when_software_has_looked_away",
        kills: &[EpochIgnored],
    },
    Elsewhere {
        file: "loom_pending.rs",
        test: "a_range_pays_for_itself_where_hardware_removes_by_name",
        kills: &[RangeCoversAll, BatchCoversLast, CompletedOutOfTurn],
    },
    Elsewhere {
        file: "loom_pending.rs",
        test: "a_change_that_is_done_hides_no_older_one",
        kills: &[CountedReadFirst],
    },
    Elsewhere {
        file: "loom.rs",
        test: "a_flush_is_pending_until_all_have_answered",
        kills: &[FlushNotPending, DoneRelaxed, DoneSeenRelaxed],
    },
    Elsewhere {
        file: "loom_lazy_unmap.rs",
        test: "who_finds_it_flushed_by_another_relies_on_the_acknowledgements",
        kills: &[CompletedRelaxed, CompletedSeenRelaxed],
    },
    Elsewhere {
        file: "loom.rs",
        test: "a_flush_that_is_given_up_is_pending_throughout",
        kills: &[BegunNotPending, PendingAfterDone],
    },
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
        file: "loom_tree.rs",
        test: "a_kick_is_not_left_to_a_cpu_that_has_just_come_online",
        kills: &[TreeForwardsByCountedOut],
    },
    Elsewhere {
        file: "loom_tlbi.rs",
        test: "what_hardware_does_not_do_is_done_again",
        kills: &[EarlyCompletionTrusted],
    },
    Elsewhere {
        file: "loom_tlbi.rs",
        test: "who_was_interrupted_elsewhere_has_answered",
        kills: &[SwitchAcknowledgesNothing],
    },
    Elsewhere {
        file: "loom_tlbi.rs",
        test: "an_interrupt_answers_for_what_was_complete_before",
        kills: &[KickAcknowledgesAhead],
    },
    Elsewhere {
        file: "loom_tlbi.rs",
        test: "a_kernel_page_is_gone_everywhere",
        kills: &[KernelCompletionTrusted],
    },
    Elsewhere {
        file: "loom_tlbi.rs",
        test: "a_space_gets_a_fresh_tag_while_its_page_is_unmapped",
        kills: &[ResidencyNotRenewed],
    },
    Elsewhere {
        file: "loom_tlbi.rs",
        test: "no_step_of_a_walk_leads_into_freed_tables",
        kills: &[ActiveIgnoresFreed],
    },
    Elsewhere {
        file: "loom_broadcast.rs",
        test: "what_was_done_under_a_slot_is_over_when_the_space_has_moved",
        kills: &[MovedRelaxed],
    },
    Elsewhere {
        file: "loom_residency.rs",
        test: "sticky_owner_with_a_third_cpu_that_needs_no_fence",
        // One layer: a root that is loaded on the hunted hardware comes after all loads before it,
        // so a CPU that has seen the owner word has the tables of before. The language lets
        // it be otherwise.
        kills: &[SharedBeforeFence, SharedRelaxed, OwnerSeenRelaxed, SharingTrusted],
    },
    Elsewhere {
        file: "loom_residency.rs",
        test: "active_nowhere_means_that_no_walk_is_under_way",
        kills: &[LeftRelaxed],
    },
    Elsewhere {
        file: "loom_residency.rs",
        test: "a_device_is_given_the_tag_while_the_page_is_unmapped",
        kills: &[PinUnseen, PinWithoutFence],
    },
    Elsewhere {
        file: "loom_tlbi.rs",
        test: "a_device_keeps_a_tag_until_nothing_is_cached_for_it",
        kills: &[UnpinWithoutFlush, RetireIgnoresPins],
    },
    Elsewhere {
        file: "loom_tags.rs",
        test: "a_space_gets_no_fresh_tag_while_a_cpu_leaves_it",
        kills: &[
            ReplaceActiveRelaxed,
            TakeActiveRelaxed,
            LoadingNotSaid,
            TagLoadedRelaxed,
            LoadedSeenRelaxed,
        ],
    },
    Elsewhere {
        file: "loom_tags.rs",
        test: "a_cpu_that_gives_up_its_tag_notices_a_rollover",
        kills: &[DeactivateOverlooksRollover],
    },
    Elsewhere {
        file: "loom_tags.rs",
        test: "who_runs_under_a_fresh_tag_sees_what_was_reset_for_it",
        kills: &[FreshIdRelaxed, FreshIdSeenRelaxed],
    },
    Elsewhere {
        file: "loom_paravirt.rs",
        test: "a_cpu_is_descheduled_and_resumed_while_its_page_is_unmapped",
        kills: &[
            StoppedRelaxed,
            ResumesRelaxed,
            ResumesInTwoSteps,
            MarkStoredBlindly,
            MarkFailureTrusted,
            MarkRelaxed,
            PreemptedAcknowledges,
        ],
    },
    Elsewhere {
        file: "loom_paravirt.rs",
        test: "a_hypercall_makes_a_running_cpu_forget",
        kills: &[HandedFirstWordOnly, RunsCutShort],
    },
    Elsewhere {
        file: "loom_paravirt.rs",
        test: "a_hypercall_that_fails_is_as_good_as_none",
        kills: &[HypercallFailureTrusted],
    },
    Elsewhere {
        file: "loom_paravirt.rs",
        test: "a_hypervisor_is_told_of_freed_tables",
        kills: &[HandedWithoutTables],
    },
    Elsewhere {
        file: "loom_paravirt.rs",
        test: "a_kernel_page_is_gone_here_too_when_the_hypervisor_sees_to_the_others",
        kills: &[InitiatorDropped],
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
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../verify/core/tests/");
            let source = std::fs::read_to_string(format!("{dir}{file}")).unwrap();
            let text = text(&source, test).unwrap_or_else(|| panic!("{file} has no test {test}"));
            for mutant in *kills {
                assert!(text.contains(&format!("{mutant:?}")), "{test} does not name {mutant:?}");
            }
            assert!(source.contains("#![cfg(loom)]"), "{file}");
        }
    }
}
