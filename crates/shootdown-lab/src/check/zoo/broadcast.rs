//! Machine-wide tags and broadcasts: who is reached, and what is cached under a tag that comes
//! back.

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::Powers;
use shootdown_machine::oracle::Invariant;

use super::scenario::{Scenario, Step, Whole};

/// An old translation is used.
const STALE: &[Invariant] =
    &[Invariant::Revocation, Invariant::MasterInvariant, Invariant::FrameReuse];

/// Another space's entries are used.
const TAG: &[Invariant] = &[Invariant::TagReuse, Invariant::MasterInvariant, Invariant::FrameReuse];

/// The scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "tag-for-all-misses-slot",
        source: "Linux 6.15, broadcast tags (the rule of asid_transition)",
        year: 2025,
        wrong: "a space got a tag for all CPUs, and flushes were broadcast for that only, while a CPU still ran it under its own",
        kept_out: "until no CPU runs the space under a slot its CPUs are asked as well",
        step: Step::Library(Mutant::MovingCountsAsMoved),
        program: "pages=2 tags=on invlpgb=1 above=0; switch a | protect a0, unmap a0; switch a | user, user",
        breaks: STALE,
        seen: &["stale-elsewhere", "tag-for-all-cpus", "invalidation-broadcast"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "tag-for-all-assigned-during-flush",
        source: "Linux 6.15, broadcast tags (the rule of asid_transition)",
        year: 2025,
        wrong: "a CPU came under the new tag after a flush had looked for one, and was neither interrupted nor reached by a broadcast",
        kept_out: "a flush looks for the tag again when the CPUs that it asked have answered",
        step: Step::Library(Mutant::SharedTagNotLookedAtAgain),
        program: "tags=on invlpgb=1 above=0; switch a, protect a0 | unmap a0; switch a, leave | switch a, user",
        breaks: STALE,
        seen: &["stale-elsewhere", "tag-for-all-cpus", "invalidation-broadcast"],
        whole: Whole::Chance(5_000),
        ..Scenario::USUAL
    },
    Scenario {
        name: "invlpgb-without-tlbsync",
        source: "AMD APM vol. 3, TLBSYNC (the rule)",
        year: 2020,
        wrong: "broadcasts are complete only when the CPU that issued them has executed TLBSYNC, and none was, or elsewhere",
        kept_out: "a flush stays on its CPU (`Pinned`) from the first INVLPGB to the TLBSYNC",
        step: Step::Library(Mutant::SharedBroadcastWithoutSync),
        program: "pages=2 tags=on invlpgb=1 above=0; switch a, protect a0, protect a1 | unmap a0; switch a | user",
        breaks: STALE,
        seen: &["stale-elsewhere", "tag-for-all-cpus", "invalidation-broadcast"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "tag-for-all-reused-dirty",
        source: "Linux 6.15, broadcast tags (the rule of reset_global_asid_space)",
        year: 2025,
        wrong: "the tag of a space that had ended was given to another before everything was invalidated everywhere",
        kept_out: "released tags are free only after an invalidation of everything that began after their release",
        step: Step::Library(Mutant::ResetForgotten),
        program: "spaces=2 tags=on invlpgb=1 above=0; switch a, protect a0, leave, switch a, leave | switch b, user; retire a, switch b | protect b0",
        breaks: TAG,
        seen: &["tag-for-all-cpus", "space-reborn", "broadcast-of-everything"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "rollover-steals-tag",
        source: "Linux arm64 new_context (the rule of reserved_asids)",
        year: 2012,
        wrong: "when tags ran out the one that a CPU was running under was given to another space",
        kept_out: "a rollover reserves the tags that CPUs run under, and those reserved before",
        step: Step::Library(Mutant::ActiveNotReserved),
        program: "arch=arm wide=2 spaces=4 broadcast=always; switch a | user, switch d, user; switch b | switch c, switch d, user",
        powers: Powers::HOSTILE,
        breaks: TAG,
        seen: &["rollover"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "rollover-overlooked",
        source: "Linux arm64 check_and_switch_context (the rule of its cmpxchg)",
        year: 2017,
        wrong: "a switch without the lock published its tag although a rollover had just taken it away",
        kept_out: "the tag is exchanged, and only if no rollover has put 0 in its place",
        step: Step::Library(Mutant::FastPathIgnoresRollover),
        program: "arch=arm wide=2 spaces=4 broadcast=always; switch a, switch b | switch a, user, switch d, user; switch c | switch d, user, switch a, user",
        powers: Powers::HOSTILE,
        breaks: TAG,
        seen: &["rollover"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "new-generation-unflushed",
        source: "Linux arm64 check_and_switch_context (the rule of tlb_flush_pending)",
        year: 2012,
        wrong: "a CPU used a tag of a new generation before it had flushed what the old one had left under it",
        kept_out: "the flush that is pending comes before the root is loaded under the tag",
        step: Step::Library(Mutant::GenerationNotFlushed),
        program: "arch=arm wide=2 spaces=4 broadcast=always; switch a, switch b, switch c | switch d, user; ",
        powers: Powers::HOSTILE,
        breaks: TAG,
        seen: &["rollover"],
        whole: Whole::All,
    },
    Scenario {
        name: "broadcast-by-old-tag",
        source: "Linux arm64 check_and_switch_context and flush_tlb_mm (the rule)",
        year: 2021,
        wrong: "a space got its tag while a flush looked for it, and its walker used the tables from before",
        kept_out: "the fences of P1: the tag is read after the stores are visible, and published before the root is loaded",
        step: Step::Library(Mutant::EnterWithoutFence),
        program: "arch=arm wide=2 broadcast=always; unmap a0; switch a, user",
        powers: Powers::HOSTILE,
        breaks: STALE,
        seen: &["stale-elsewhere", "invalidation-broadcast"],
        whole: Whole::All,
    },
    Scenario {
        name: "sticky-owner-without-barrier",
        source: "Linux RFC 20250829153510.2401161-1 (arm64; the rule)",
        year: 2025,
        wrong: "a second CPU said that a space has two users, and nothing ordered that before its walks",
        kept_out: "the fences of P1 on both sides of the owner word",
        step: Step::Library(Mutant::OwnWithoutFence),
        program: "arch=arm wide=2 broadcast=sticky; switch a | unmap a0; | switch a, user",
        powers: Powers::HOSTILE,
        breaks: STALE,
        seen: &["stale-elsewhere", "invalidation-local", "invalidation-broadcast"],
        whole: Whole::All,
    },
    Scenario {
        name: "stale-set-lost",
        source: "Linux RFC 20200203201745.29986-1 (arm64; the rule)",
        year: 2020,
        wrong: "only CPUs that ran the space were counted, and those that had run it came back to entries that nobody had invalidated",
        kept_out: "a local invalidation notes every CPU that may hold entries as stale, before it counts who is active",
        step: Step::Library(Mutant::StaleNotNoted),
        program: "arch=arm wide=2 broadcast=active; switch a | unmap a0; switch a, leave | switch a, user",
        powers: Powers::HOSTILE,
        breaks: STALE,
        seen: &["stale-elsewhere", "invalidation-local", "stale-tag-flushed"],
        whole: Whole::All,
    },
    Scenario {
        name: "z25-batch-told-one-way",
        source: "Linux 6.15, broadcast tags (series v2 to v5, reclaim)",
        year: 2025,
        wrong: "a batch of reclaim has to wait for broadcasts and to interrupt those without the tag for all CPUs, and did one of the two",
        kept_out: "a batch pays by the space's flush, which broadcasts and asks until no CPU runs the space under a slot",
        step: Step::Library(Mutant::MovingCountsAsMoved),
        program: "pages=2 tags=on invlpgb=1 above=0; switch a | protect a0, reclaim a0 a1; switch a | user, user",
        breaks: STALE,
        seen: &["stale-elsewhere", "batch-flushed", "tag-for-all-cpus", "invalidation-broadcast"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z25-moved-during-batch",
        source: "Linux 6.15, broadcast tags (series v2 to v5, reclaim)",
        year: 2025,
        wrong: "reclaim had noted a space for interrupts, and the space got a tag for all CPUs before they were sent",
        kept_out: "the flush that pays for a batch looks for the tag again when the CPUs that it asked have answered",
        step: Step::Library(Mutant::SharedTagNotLookedAtAgain),
        program: "pages=2 tags=on invlpgb=1 above=0; switch a, protect a0 | reclaim a0 a1; switch a, leave | switch a, user",
        breaks: STALE,
        seen: &["stale-elsewhere", "batch-flushed", "tag-for-all-cpus", "invalidation-broadcast"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z27-rollover-beside-flush",
        source: "the shape of Linux 5e10f9887ed8 (arm64)",
        year: 2021,
        wrong: "a space got a tag of a new generation while a flush was on its way by the old one, and its walker used the entry from before",
        kept_out: "the fences of P1: a flush reads the tag after its stores are visible, and a switch walks after the tag is",
        step: Step::Library(Mutant::EnterWithoutFence),
        program: "arch=arm wide=2 spaces=4 broadcast=always; switch a, switch b, switch c, switch d | unmap a0; | switch a, user",
        powers: Powers::HOSTILE,
        breaks: STALE,
        seen: &["stale-elsewhere", "rollover", "invalidation-broadcast"],
        whole: Whole::Chance(5_000),
    },
    Scenario {
        name: "z28-lazy-under-old-tag",
        source: "Linux 8678c1f04277 (arm); likewise cfbb1426bd76 (ia64)",
        year: 2007,
        wrong: "a lazy CPU went on with a tag of the last generation, and flushes named the new one",
        kept_out: "a rollover reserves the tags that CPUs have loaded, lazy ones too, so a space keeps its number",
        step: Step::Library(Mutant::ActiveNotReserved),
        program: "arch=arm wide=2 spaces=4 broadcast=always; switch a, lazy | switch a, user; switch b | switch c, switch d, switch a, unmap a0",
        powers: Powers::HOSTILE,
        breaks: &[
            Invariant::Revocation,
            Invariant::MasterInvariant,
            Invariant::FrameReuse,
            Invariant::TagReuse,
        ],
        seen: &["stale-elsewhere", "rollover", "switch-same"],
        whole: Whole::All,
    },
];
