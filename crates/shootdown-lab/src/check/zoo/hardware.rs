//! Defects of processors that a port must know of, and what a port owes to the hardware.

use shootdown_machine::hunt::kernel::KernelMutant;
use shootdown_machine::hunt::{Power, Powers};
use shootdown_machine::oracle::Invariant;

use super::scenario::{Scenario, Step, TSO, Whole};

/// An old translation is used.
const STALE: &[Invariant] =
    &[Invariant::Revocation, Invariant::FrameReuse, Invariant::MasterInvariant];

/// The scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "z36-page-spares-globals",
        source: "Intel Alder Lake and Raptor Lake, Linux ce0b15d11ad8",
        year: 2023,
        wrong: "with tags on, the instruction that invalidates a page left global entries in place",
        kept_out: "contract: a port that has this defect flushes everything for kernel pages; the fact `page_spares_globals` forbids tags",
        step: Step::Kernel(KernelMutant::TrustsPage),
        program: "kernel=1 defects=on; kernel-page 0; kernel, kernel",
        powers: TSO.with(Power::PageSparesGlobals),
        breaks: STALE,
        seen: &["stale-elsewhere", "kernel-page-flushed"],
        whole: Whole::All,
    },
    Scenario {
        name: "broadcast-ends-early",
        source: "Arm CVE-2025-10263",
        year: 2025,
        wrong: "the same for broadcasts; to repeat the invalidation helps only behind the barrier of the first",
        kept_out: "contract: the repeated invalidation comes after the first one's sync",
        step: Step::Kernel(KernelMutant::SyncOnce),
        program: "defects=on; unmap a0; switch a | user, user",
        powers: Powers::HOSTILE.with(Power::EarlySync),
        breaks: STALE,
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "entry-survives-once",
        source: "Arm Cortex-A57 erratum 813419; likewise NVIDIA T264-SMMU-3",
        year: 2017,
        wrong: "an invalidation did not always have its effect, unless it was repeated",
        kept_out: "contract: a port that has this defect repeats the invalidation",
        step: Step::Kernel(KernelMutant::InvalidateOnce),
        program: "defects=on; unmap a0; switch a | user, user",
        powers: TSO.with(Power::SurvivesOnce),
        breaks: STALE,
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z41-negative-caching",
        source: "Linux 503638e0babf (riscv)",
        year: 2024,
        wrong: "a page was mapped without a fence, and harts that had cached its absence faulted again and again",
        kept_out: "contract: a fault on an access that the tables allow invalidates the page on its CPU, and tries again",
        step: Step::Kernel(KernelMutant::SpuriousFaultStays),
        program: "arch=riscv; map a1; switch a | write a1, write a1",
        powers: Powers::HOSTILE,
        breaks: &[Invariant::UpgradeSoundness],
        seen: &["spurious-fault"],
        whole: Whole::All,
    },
    Scenario {
        name: "svsm-page-dropped",
        source: "SVSM #1188",
        year: 2026,
        wrong: "a kernel page changed its use when its owner was dropped, and nothing was flushed",
        kept_out: "contract: kernel pages change with `flush_kernel`",
        step: Step::Kernel(KernelMutant::KernelPageWithoutFlush),
        program: "kernel=1; kernel-page 0; kernel, kernel",
        breaks: STALE,
        seen: &["stale-elsewhere", "kernel-page-flushed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "globals-outlive-trampoline",
        source: "Linux f154f290855b",
        year: 2021,
        wrong: "global entries were left in the TLB because only entries of the loaded root were flushed",
        kept_out: "contract: `Invalidate::Kernel` and `Invalidate::Everything` mean global entries too",
        step: Step::Kernel(KernelMutant::SparesGlobals),
        program: "kernel=1; kernel-page 0; switch a | kernel, kernel",
        breaks: STALE,
        seen: &["stale-elsewhere", "kernel-page-flushed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z23-sync-elsewhere",
        source: "FreeBSD D22622 (arm64)",
        year: 2019,
        wrong: "a thread moved to another CPU between the invalidation and the barrier, which completed nothing there",
        kept_out: "`Pinned`: the proof that code stays on its CPU lives from the invalidation to the `sync`",
        step: Step::Kernel(KernelMutant::NoSync),
        program: "; switch a | unmap a0, user; switch a | user, user",
        powers: Powers::HOSTILE,
        breaks: STALE,
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z44-sync-ends-early",
        source: "Arm Cortex-A76 and Neoverse-N1 erratum 1286807",
        year: 2018,
        wrong: "the barrier behind an invalidation ended before all accesses through the old entry had, unless both were repeated",
        kept_out: "contract: a port that has this defect repeats the invalidation and the sync",
        step: Step::Kernel(KernelMutant::InvalidateOnce),
        program: "defects=on; unmap a0; switch a | user, user",
        powers: Powers::HOSTILE.with(Power::EarlySync),
        breaks: STALE,
        whole: Whole::All,
        ..Scenario::USUAL
    },
];
