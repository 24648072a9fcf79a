//! Entries under a tag that is another space's, or that was used before; the user half of split
//! tables.

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::kernel::KernelMutant;
use shootdown_machine::oracle::Invariant;

use super::scenario::{Scenario, Step, Whole};

/// Entries of other tables, or older than the tag.
const TAG: &[Invariant] = &[
    Invariant::TagReuse,
    Invariant::MasterInvariant,
    Invariant::Revocation,
    Invariant::FrameReuse,
    Invariant::TableReuse,
    Invariant::WalkCacheReuse,
];

/// The scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "z31-two-roots-one-tag",
        source: "Xen XSA-294",
        year: 2019,
        wrong: "another root was loaded under the same tag with the entries kept",
        kept_out: "a slot that gets another space is loaded empty",
        step: Step::Library(Mutant::EvictionKeeps),
        program: "tags=on spaces=2 slots=1; switch a, user, switch b, user; unmap a0",
        breaks: TAG,
        seen: &["stale-elsewhere", "switch-flushed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z32-root-reused-under-name",
        source: "Linux cdca649ff90d (KVM; the rule, kept there)",
        year: 2022,
        wrong: "an address space that is gone without a flush is harmless only if its tag is flushed before somebody else gets it",
        kept_out: "spaces have names that are never used twice, and a slot remembers the name",
        step: Step::Library(Mutant::IdReused),
        program: "tags=on spaces=2; switch a, user, switch b, leave | switch a, user; retire a",
        breaks: TAG,
        seen: &["space-reborn"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "asterinas-keeps-on-switch",
        source: "Asterinas #3672",
        year: 2026,
        wrong: "without tags, loading another root flushed nothing; emulators hid it",
        kept_out: "contract: `Regime::load` without `keep` empties the tag, also where the hardware does not do it by itself",
        step: Step::Kernel(KernelMutant::LoadKeeps),
        program: "arch=riscv spaces=2; switch a, user, switch b, user; unmap a0",
        breaks: TAG,
        seen: &["switch-flushed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "user-half-forgotten",
        source: "Linux user_pcid_flush_mask with broadcast tags; likewise OpenVMM #911",
        year: 2025,
        wrong: "the note that a user half must be flushed had no room for the tag, and user mode was entered with the old entries",
        kept_out: "one bit for each slot, as many as there are slots; it is cleared by whoever makes user entry flush",
        step: Step::Library(Mutant::UserHalfForgotten),
        program: "tags=on split=pending; switch a | unmap a0; switch a | user, user",
        breaks: TAG,
        seen: &["stale-elsewhere", "user-half-flushed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "user-half-of-range",
        source: "Linux 6cff64b86aaa (the rule)",
        year: 2017,
        wrong: "with split tables a page was invalidated under the kernel's tag only",
        kept_out: "a range invalidated in the kernel half is invalidated in the user half too, or noted as pending there",
        step: Step::Library(Mutant::StepLeavesNothingPending),
        program: "tags=on split=pending; switch a | unmap a0; switch a | user, user",
        breaks: TAG,
        seen: &["stale-elsewhere", "user-half-flushed", "interrupted-user-code"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "kernel-range-of-other-tags",
        source: "Linux 6fd166aae78c (the rule)",
        year: 2017,
        wrong: "with split tables kernel entries are not global, and a kernel page was invalidated under the loaded tag only",
        kept_out: "with split tables a kernel flush makes the tags that are not loaded forget",
        step: Step::Library(Mutant::OtherTagsForgotten),
        program: "kernel=1 split=pending tags=on spaces=2; kernel-page 0; switch a, switch b | switch a, kernel",
        breaks: TAG,
        seen: &["switch-kept", "switch-flushed", "kernel-page-flushed"],
        ..Scenario::USUAL
    },
];
