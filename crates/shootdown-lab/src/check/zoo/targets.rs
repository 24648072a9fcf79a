//! Who must be told of a change, and who counts as having answered.

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::Powers;
use shootdown_machine::hunt::kernel::KernelMutant;
use shootdown_machine::oracle::Invariant;

use super::scenario::{Scenario, Step, Whole};

/// An old translation is used: after the flush, by a CPU that kept its tag, or of a frame that was
/// freed.
const STALE: &[Invariant] =
    &[Invariant::Revocation, Invariant::MasterInvariant, Invariant::FrameReuse];

/// The scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "z18-mask-without-barrier",
        source: "CVE-2016-2069, Linux 71b3c126e611",
        year: 2016,
        wrong: "between the change of an entry and the look at who uses the space there was no full barrier, so a CPU that was just coming was missed and missed the change",
        kept_out: "the fence of D1 on the flusher's side",
        step: Step::Library(Mutant::FlushWithoutFence),
        program: "tags=on; unmap a0; switch a, leave | switch a, user",
        powers: Powers::HOSTILE,
        breaks: STALE,
        seen: &["switch-kept"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z18-joins-late",
        source: "CVE-2016-2069, Linux 71b3c126e611",
        year: 2016,
        wrong: "the other side of the same race: a CPU said that it uses a space after it had looked whether the space has changed",
        kept_out: "the order of D1: join, fence, look at the generation",
        step: Step::Library(Mutant::SwitchJoinsLate),
        program: "tags=on; unmap a0; switch a, leave | switch a, user",
        breaks: STALE,
        seen: &["switch-kept"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z19-skips-switching",
        source: "CVE-2025-37964, Linux fea4e317f9e7",
        year: 2025,
        wrong: "a CPU in the middle of a switch had published neither the old space nor the new one, and counted as using none",
        kept_out: "a CPU between two spaces is told",
        step: Step::Library(Mutant::FilterSkipsSwitching),
        program: "tags=on; unmap a0; switch a, leave | switch a, user",
        breaks: STALE,
        seen: &["switch-kept"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "switch-without-barrier",
        source: "CVE-2025-40174, Linux 83b0177a6c48",
        year: 2025,
        wrong: "where a CPU was in the set of the space already, nothing ordered its announcement of a switch before its look at the generation",
        kept_out: "the fence of D1 is its own instruction, not a by-product of joining",
        step: Step::Library(Mutant::SwitchWithoutFence),
        program: "tags=on spaces=2; unmap a0; switch a, switch b | switch a, user",
        breaks: STALE,
        seen: &["switch-kept", "switch-replayed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "switch-reads-first",
        source: "stable backports of Linux fea4e317f9e7 (6.1, 6.6, 6.12)",
        year: 2025,
        wrong: "a backport put the announcement of the switch behind the look at the generation",
        kept_out: "the order of D1",
        step: Step::Library(Mutant::SwitchReadsGenerationFirst),
        program: "tags=on spaces=2; unmap a0; switch a, switch b | switch a, user",
        breaks: STALE,
        seen: &["switch-kept", "switch-replayed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z20-borrows-space",
        source: "Linux 38cf307c1f20",
        year: 2020,
        wrong: "a kernel thread took a space over with interrupts on, and a flush that came between naming the space and loading it was lost",
        kept_out: "contract: `switch_to` runs with interrupts off, and `Served::Again` means that the kick is raised again",
        step: Step::Kernel(KernelMutant::SwitchWithInterrupts),
        program: "tags=on spaces=2; unmap a0; switch a, switch b | switch a, user",
        breaks: &[
            Invariant::Revocation,
            Invariant::MasterInvariant,
            Invariant::FrameReuse,
            Invariant::Progress,
        ],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z21-bump-too-late",
        source: "FreeBSD-EN-22:04.pcid, FreeBSD 3fd989da9118",
        year: 2022,
        wrong: "the interrupts were sent before the other CPUs' generations were cleared, so a CPU that came in between kept its old entries",
        kept_out: "the change is counted before anyone is looked at or told",
        step: Step::Library(Mutant::NoGenerationBump),
        program: "tags=on spaces=2; unmap a0; switch a, switch b | switch a, user",
        breaks: STALE,
        seen: &["switch-kept", "switch-replayed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "zeroos-trusts-old-tag",
        source: "Zero-OS R74-1",
        year: 2026,
        wrong: "a CPU left the space's mask when it switched away, its tagged entries stayed, and on its return it kept them unasked",
        kept_out: "a tag that comes back is kept only if its generation is the space's",
        step: Step::Library(Mutant::SlotTrusts),
        program: "tags=on spaces=2 policy=linux-4.14; unmap a0; switch a, switch b | switch a, user",
        breaks: STALE,
        seen: &["switch-kept", "switch-flushed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "redox-counts-acks",
        source: "Redox tlb_ack (review)",
        year: 2026,
        wrong: "acknowledgements were counted without saying whose they were, so one CPU that answered twice stood for another that had not",
        kept_out: "an answer is a CPU's own generation, which never goes back; answers are not counted",
        step: Step::Library(Mutant::WaitsForLastOnly),
        program: "; switch a | unmap a0; switch a | user; switch a | user",
        breaks: STALE,
        ..Scenario::USUAL
    },
    Scenario {
        name: "hermit-never-waits",
        source: "Hermit",
        year: 2024,
        wrong: "other CPUs were interrupted, and the frame was reused without waiting for them",
        kept_out: "`flush` returns when every CPU has answered",
        step: Step::Library(Mutant::NoWait),
        program: "; switch a | unmap a0; switch a | user",
        breaks: STALE,
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "mushroom-forgets-cpus",
        source: "mushroom 05cb8ec4, 4fea2002",
        year: 2025,
        wrong: "CPUs that had begun to use a space were missing from the set of those to be told",
        kept_out: "a switch joins the space's set before it loads the tables",
        step: Step::Library(Mutant::SwitchDoesNotJoin),
        program: "; unmap a0; | switch a, user",
        breaks: STALE,
        ..Scenario::USUAL
    },
    Scenario {
        name: "mushroom-idle-wake",
        source: "mushroom 8d006f6b",
        year: 2024,
        wrong: "a CPU that woke up and a CPU that flushed each wrote and then read what the other had written, without a barrier",
        kept_out: "the fences of D2 on both sides",
        step: Step::Library(Mutant::LazyExitWithoutFence),
        program: "; unmap a0; switch a, lazy | switch a, user",
        breaks: STALE,
        seen: &["stale-elsewhere", "lazy-caught-up"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z43-early-answer",
        source: "Asterinas before e1c5f6c3d",
        year: 2026,
        wrong: "the handler acknowledged before it invalidated, also for tables that were freed on the acknowledgement",
        kept_out: "early acknowledgement is for leaf changes in the kick's handler only",
        step: Step::Library(Mutant::EarlyAckFreed),
        program: "; free-table a0; switch a | kernel",
        breaks: &[Invariant::TableReuse, Invariant::WalkCacheReuse],
        seen: &["stale-elsewhere", "table-page-freed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "tgoskits-unpublished",
        source: "tgoskits #2008",
        year: 2026,
        wrong: "nothing made the table stores visible to walkers before the invalidation (no `dsb ishst`), so the old entry was cached again",
        kept_out: "`publish`, `invalidate`, `sync` is one fixed order in the library; the port fills in the instructions",
        step: Step::Kernel(KernelMutant::NoPublish),
        program: "; unmap a0; switch a | user, user",
        powers: Powers::HOSTILE,
        breaks: STALE,
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "part-over-missed-whole",
        source: "Zero-OS/Nilix (review)",
        year: 2026,
        wrong: "a handler invalidated only the range of the request at hand, and acknowledged all requests up to it",
        kept_out: "a request's range stands for one step; who misses more invalidates more (row 7)",
        step: Step::Library(Mutant::PartialOverMissedStep),
        program: "pages=2 policy=linux-5.13; discard a0; discard a1; switch a | user, user",
        breaks: STALE,
        ..Scenario::USUAL
    },
    Scenario {
        name: "replays-newest-only",
        source: "OpenVMM #990",
        year: 2025,
        wrong: "requests were taken from a shared list in a race, and what lay between the last one done and the newest was lost",
        kept_out: "all steps between are replayed from the log, or the tag goes (row 8)",
        step: Step::Library(Mutant::ReplayOnlyNewest),
        program: "pages=2; discard a0; discard a1; switch a | user, user",
        breaks: STALE,
        ..Scenario::USUAL
    },
    Scenario {
        name: "sel4-skips-without-tags",
        source: "seL4 #107",
        year: 2018,
        wrong: "on processors without tags the flush of an unmapped page skipped the other cores",
        kept_out: "who has the space in use and is behind is told, tags or not",
        step: Step::Library(Mutant::FilterSkipsActive),
        program: "; unmap a0; switch a | user",
        breaks: STALE,
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "serenity-kernel-page",
        source: "SerenityOS #3902",
        year: 2020,
        wrong: "a kernel mapping was changed by one CPU, and another went on with what it had cached of it",
        kept_out: "`flush_kernel` has every online CPU invalidate, the caller too",
        step: Step::Library(Mutant::EverywhereInvalidatesNothing),
        program: "kernel=1; kernel-page 0; switch a | kernel, kernel",
        breaks: STALE,
        seen: &["stale-elsewhere", "kernel-page-flushed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "kvm-mark-missed",
        source: "CVE-2019-3016 (KVM, steal time)",
        year: 2020,
        wrong: "the hypervisor looked whether a virtual CPU has to flush, and said in another step that it runs again, so a mark that was left in between was taken for done and lost",
        kept_out: "contract: the word is swapped in one step before the CPU runs, as `PreemptedWord::resumes` does",
        step: Step::Library(Mutant::ResumesInTwoSteps),
        program: "guest=marks; unmap a0; switch a | user, user",
        breaks: STALE,
        seen: &["stale-elsewhere", "forgets-before-it-runs"],
        ..Scenario::USUAL
    },
];
