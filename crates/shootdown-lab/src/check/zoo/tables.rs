//! Table pages that were freed or reused too early, and entries of the wrong depth or size.

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::kernel::KernelMutant;
use shootdown_machine::oracle::Invariant;

use super::scenario::{Scenario, Step, Whole};

/// A walker reaches a table page that was freed, or what its entries led to.
const TABLES: &[Invariant] = &[
    Invariant::TableReuse,
    Invariant::WalkCacheReuse,
    Invariant::Revocation,
    Invariant::FrameReuse,
];

/// The scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "z10-unshare",
        source: "CVE-2021-4002, Linux a4a118f2eead",
        year: 2021,
        wrong: "a page table that processes share was unhooked without being put into the range to flush",
        kept_out: "contract: `Request::freed_tables` for a table that is unhooked, whoever else uses it",
        step: Step::Kernel(KernelMutant::UnshareWithoutFlush),
        program: "bits=2 shared=on spaces=2; unshare a; unshare b; switch a | user, user",
        breaks: TABLES,
        seen: &["stale-elsewhere", "shared-table-freed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z13-lazy-walks-freed-table",
        source: "Linux 2ff6ddf19c0e, 706a1ea65e",
        year: 2018,
        wrong: "CPUs in lazy mode were not told of freed page tables, and walked them by speculation",
        kept_out: "the filter tells lazy CPUs of freed tables, and they leave the space",
        step: Step::Library(Mutant::FilterSkipsLazyFreed),
        program: "; free-table a0; switch a, lazy | switch a, user",
        breaks: TABLES,
        seen: &["stale-elsewhere", "table-page-freed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z14-collapse-as-leaf",
        source: "CVE-2025-22045, Linux 3ef938c35035",
        year: 2025,
        wrong: "a flush for a page table that was taken away said that only leaf entries had changed",
        kept_out: "`Gather::table_freed` is how a table is handed over; it makes the flush one for tables",
        step: Step::Kernel(KernelMutant::FreeTableAsLeaf),
        program: "; free-table a0; switch a | user, user",
        breaks: TABLES,
        seen: &["stale-elsewhere", "table-page-freed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z14-gather-forgets-tables",
        source: "CVE-2025-22045, Linux 3ef938c35035",
        year: 2025,
        wrong: "the same for a lazy CPU: a flush that does not say that tables were freed leaves it alone",
        kept_out: "the gather remembers that one of its parts was a table",
        step: Step::Library(Mutant::GatherForgetsTables),
        program: "; free-table a0; switch a, lazy | kernel",
        breaks: TABLES,
        seen: &["stale-elsewhere", "table-page-freed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z15-lockless-walker",
        source: "Linux 2ba99c5e0881, 70cbc3cc78a9",
        year: 2022,
        wrong: "a page table was freed without waiting for software that walks tables without a lock, with interrupts off",
        kept_out: "contract: lockless walkers run with interrupts off, and `call_on` waits for them before a table is freed",
        step: Step::Kernel(KernelMutant::FreeTableWithoutSync),
        program: "; free-table a0; walk a0",
        breaks: TABLES,
        seen: &["table-page-freed", "lockless-walk"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z16-free-inside-deferral",
        source: "CVE-2026-23554 (Xen)",
        year: 2026,
        wrong: "flushes were put off to the end of a locked section, but table pages were freed inside of it",
        kept_out: "tables go into the `Gather` like frames, and come out after the flush",
        step: Step::Kernel(KernelMutant::FreeTableBeforeFlush),
        program: "; free-table a0; switch a | user, user",
        breaks: TABLES,
        seen: &["stale-elsewhere", "table-page-freed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z34-split-without-break",
        source: "Linux ad5ca55f6bdb",
        year: 2008,
        wrong: "a large page was split and changed in parts with no flush between, so both sizes were cached for one address",
        kept_out: "contract: an entry changes its size by way of absent, with a flush between",
        step: Step::Kernel(KernelMutant::SplitWithoutBreak),
        program: "bits=2 large=on; split a4; switch a | user, user",
        breaks: &[Invariant::OneSize],
        seen: &["stale-elsewhere", "large-page-split"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "multihit-size-change",
        source: "CVE-2018-12207",
        year: 2019,
        wrong: "small pages became a large one with no flush between, and a processor with both sizes cached halted with a machine check",
        kept_out: "contract: an entry changes its size by way of absent, with a flush between",
        step: Step::Kernel(KernelMutant::MergeWithoutFlush),
        program: "bits=2 large=on; split a4 | merge a4; switch a | user, user",
        breaks: &[Invariant::OneSize],
        seen: &["stale-elsewhere", "pages-merged"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "kernel-table-by-range",
        source: "Linux 5e0fb5df2ee8",
        year: 2018,
        wrong: "a kernel page table made way for a large page and was freed, although CPUs had its upper entries cached",
        kept_out: "contract: kernel tables are freed after `flush_everything`",
        step: Step::Kernel(KernelMutant::KernelTableByRange),
        program: "levels=3 kernel=1 tags=on spaces=2; kernel-table; switch a, switch b | kernel, switch a, kernel",
        breaks: TABLES,
        seen: &["stale-elsewhere", "kernel-table-freed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "nanvix-cached-uppers",
        source: "nanvix #2244",
        year: 2026,
        wrong: "the entry that led to a page table was cleared, and a cached copy of it still led walks into the freed page",
        kept_out: "a step that freed tables is invalidated with its non-leaf entries",
        step: Step::Library(Mutant::LeafOnlyFreed),
        program: "; free-table a0; switch a | user, user",
        breaks: TABLES,
        seen: &["stale-elsewhere", "table-page-freed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "s390-tables-still-loaded",
        source: "Linux 02a8f3abb708 (s390)",
        year: 2014,
        wrong: "a CPU that did not use a space at the moment still had its tables loaded, which is all that speculation needs, and counted as done with them",
        kept_out: "a lazy CPU has answered for freed tables when it has loaded others",
        step: Step::Library(Mutant::LazyAcknowledgesFreed),
        program: "; free-table a0; switch a, lazy | kernel",
        breaks: TABLES,
        seen: &["stale-elsewhere", "table-page-freed"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
];
