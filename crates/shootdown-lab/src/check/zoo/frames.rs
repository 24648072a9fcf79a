//! Pages that were freed, moved, copied or written back while an old translation lived.

use shootdown::mutant::Mutant;
use shootdown_machine::hunt::Power;
use shootdown_machine::hunt::kernel::KernelMutant;
use shootdown_machine::oracle::Invariant;

use super::scenario::{Scenario, Step, TSO, Whole};

/// The scenarios.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "z01-move-page",
        source: "CVE-2018-18281, Linux eb66ae030829",
        year: 2018,
        wrong: "mremap moved a page and gave up the page-table locks before it flushed the old address, so a truncation freed the page under a flush of the new address only",
        kept_out: "contract: the lock that guards a page is held until `flush` has returned",
        step: Step::Kernel(KernelMutant::MoveFlushesLate),
        program: "; move a0 a1; unmap a1; switch a | user, user",
        ..Scenario::USUAL
    },
    Scenario {
        name: "z02-move-table",
        source: "CVE-2022-41222",
        year: 2022,
        wrong: "mremap moved a whole page table without the lock of what it holds, so reclaim cleared an entry through the old address and flushed only that",
        kept_out: "contract: what a table holds changes under the same lock as the table's place; a flush for it says `freed_tables`",
        step: Step::Kernel(KernelMutant::MoveTableUnlocked),
        program: "bits=2; switch a | move-table a0 a4; switch a | unmap a0, user",
        seen: &["stale-elsewhere", "table-moved"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z03-unlink-before-flush",
        source: "CVE-2022-39188, Linux b67fbebd4cf9",
        year: 2022,
        wrong: "munmap unlinked a driver's area before its batched flush, so the driver found nothing mapped and freed its pages",
        kept_out: "contract: what others decide by (here: the area) changes after the flush, not before",
        step: Step::Kernel(KernelMutant::UnlinkBeforeFlush),
        program: "; munmap a0; driver a0; switch a | user, user",
        seen: &["stale-elsewhere", "driver-finds-no-area"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z03-first-area-only",
        source: "stable backport of the fix of CVE-2022-39188",
        year: 2022,
        wrong: "the backported fix looked at the first area of several and flushed for that one only",
        kept_out: "a `Gather` covers all that was put into it; nobody computes ranges by hand",
        step: Step::Kernel(KernelMutant::FlushesFirstOnly),
        program: "pages=2; unmap-many a0 2; switch a | user, user",
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z04-protect-over-batch",
        source: "Linux 3ea277194daa",
        year: 2017,
        wrong: "mprotect found an entry that reclaim had cleared and not yet flushed, and returned without a flush while a writable translation lived",
        kept_out: "contract: whoever finds an entry changed calls `complete_pending`, which is cheap where nothing is pending",
        step: Step::Kernel(KernelMutant::ProtectIgnoresPending),
        program: "; zap a0; protect a0; switch a | user, user",
        seen: &["stale-elsewhere", "pending-flush-seen"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z05-discard-twice",
        source: "Linux 99baac21e458, 56236a59556c",
        year: 2017,
        wrong: "of two madvise calls on one range the second found the entries gone and returned before the first had flushed",
        kept_out: "contract: an empty entry is no proof of a flush: `complete_pending`; a gather does it by itself",
        step: Step::Kernel(KernelMutant::DiscardIgnoresPending),
        program: "; discard a0; discard a0; switch a | user, user",
        seen: &["stale-elsewhere", "pending-flush-seen"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z06-migrate-under-hint",
        source: "Linux 20841405940e",
        year: 2013,
        wrong: "a page was migrated while the flush was pending that had made it inaccessible, so another CPU wrote the old copy",
        kept_out: "contract: contents are copied after `flush` has returned",
        step: Step::Kernel(KernelMutant::MigrateIgnoresPending),
        program: "; hint a0; migrate a0; switch a | user, user",
        breaks: &[Invariant::CopyIsolation, Invariant::FrameReuse],
        seen: &["stale-elsewhere", "pending-flush-seen", "page-migrated"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z08-clean-before-flush",
        source: "Linux 1cf35d47712d",
        year: 2014,
        wrong: "unmapping marked a page dirty and let go of the lock before it flushed, so the page was cleaned and written back while another CPU still wrote it",
        kept_out: "contract: a page is clean after `flush` has returned, not when its entry is gone",
        step: Step::Kernel(KernelMutant::CleanIgnoresPending),
        program: "; zap a0; clean a0; switch a | user, user",
        breaks: &[Invariant::WriteBack],
        seen: &["stale-elsewhere", "pending-flush-seen", "page-written-back"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z09-copy-under-tracking",
        source: "Linux 6ce64428d620 (userfaultfd)",
        year: 2021,
        wrong: "a page was copied for a writer while the flush was pending that had made it read-only, so another CPU wrote the old copy",
        kept_out: "contract: contents are copied after `flush` has returned",
        step: Step::Kernel(KernelMutant::CowIgnoresPending),
        program: "; track a0; cow a0; switch a | user, user",
        breaks: &[Invariant::CopyIsolation],
        seen: &["stale-elsewhere", "pending-flush-seen", "page-copied"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z37-judges-new-entry",
        source: "CVE-2022-33745, Xen XSA-408; likewise pKVM-IA #18",
        year: 2022,
        wrong: "after code was moved, the need of a flush was computed from a variable that by then held the new entry",
        kept_out: "`Gather::changed` takes the range and decides nothing; the caller judges by the old entry, which the exchange returns",
        step: Step::Kernel(KernelMutant::ProtectJudgesNew),
        program: "; protect a0; switch a | user",
        breaks: &[Invariant::Revocation],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "z38-yield-forgets",
        source: "Linux a835429cda91, 048f49809c52 (KVM)",
        year: 2021,
        wrong: "a long removal yielded its lock, and when it went on it overwrote the note that it still had a flush pending",
        kept_out: "a `Gather` is a value that lives across the yield; it is `#[must_use]` and flushes before it gives anything back",
        step: Step::Kernel(KernelMutant::YieldForgets),
        program: "pages=2; unmap-many a0 2; switch a | user, user",
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "arceos-free-in-cursor",
        source: "ArceOS axmm unmap_alloc; likewise Quark #639",
        year: 2026,
        wrong: "the flush was left to the drop of a temporary that outlived the freeing of the frame",
        kept_out: "frames go into the `Gather` and come out of `finish` only: there is nothing to free before",
        step: Step::Kernel(KernelMutant::FreeFrameBeforeFlush),
        program: "; unmap a0; switch a | user",
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "redox-cow-frees-early",
        source: "Redox 4e392d05",
        year: 2024,
        wrong: "copy-on-write gave the old frame back before the other CPUs had forgotten it",
        kept_out: "the replaced frame goes into the `Gather`",
        step: Step::Kernel(KernelMutant::ReplaceFreesEarly),
        program: "; replace a0; switch a | user",
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "asterinas-protect",
        source: "Asterinas #970",
        year: 2024,
        wrong: "permissions were taken away in the tables and nothing was flushed",
        kept_out: "contract: every change that takes away goes into a `Gather` or a `flush`",
        step: Step::Kernel(KernelMutant::ProtectWithoutFlush),
        program: "; protect a0; switch a | user, user",
        breaks: &[Invariant::Revocation],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "asterinas-remap",
        source: "Asterinas #862",
        year: 2024,
        wrong: "another frame was mapped in a page's place without a flush, so writes went to the old one",
        kept_out: "contract: the entry is absent until the flush has returned, then it names the new frame",
        step: Step::Kernel(KernelMutant::ReplaceWithoutFlush),
        program: "; replace a0; switch a | user, user",
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "asterinas-cannot-wait",
        source: "Asterinas #1961",
        year: 2025,
        wrong: "a fault handler that flushes may run with interrupts off, where it can't wait for other CPUs; it must not go on as if they had answered",
        kept_out: "`flush` returns `WouldWait` instead of waiting, and the gather gives back what is pending; `begin_flush` returns a ticket",
        step: Step::Kernel(KernelMutant::IgnoresFlushError),
        program: "; unmap-atomic a0; switch a | user, user",
        seen: &["stale-elsewhere", "flush-refused", "flush-repeated"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "asterinas-deferred-resource",
        source: "Asterinas #2849",
        year: 2026,
        wrong: "what a pending flush should have kept was dropped without asking whether the flush was done",
        kept_out: "`Deferred::poll` gives the resources out when its ticket says that all have answered",
        step: Step::Library(Mutant::DeferredIgnoresTicket),
        program: "; defer a0; switch a | user",
        seen: &["stale-elsewhere", "deferred-gather-waits", "deferred-gather-done"],
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "litebox-free-unflushed",
        source: "litebox #848",
        year: 2026,
        wrong: "frames were handed back to the allocator first and flushed after",
        kept_out: "`Gather::finish` flushes first, and returns the frames",
        step: Step::Library(Mutant::GatherWithoutFlush),
        program: "; unmap a0; switch a | user",
        whole: Whole::All,
        ..Scenario::USUAL
    },
    Scenario {
        name: "asterinas-wrong-target",
        source: "Asterinas #3920",
        year: 2026,
        wrong: "the interrupt went to another processor than the one to be told, and nobody noticed",
        kept_out: "`Platform::kick` may fail and says so; `flush` returns the error and has freed nothing",
        step: Step::Kernel(KernelMutant::IgnoresFlushError),
        program: "; unmap a0; switch a | user, user",
        powers: TSO.with(Power::FailingKicks),
        seen: &["stale-elsewhere", "flush-refused", "flush-repeated", "quarantined"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "z26-error-dropped",
        source: "the shape of CVE-2018-19965 (Xen)",
        year: 2018,
        wrong: "an invalidation can fail, there on an operand that it does not take and here on its way to the other CPU, and what has failed is not done",
        kept_out: "an error of the flush comes with what is still pending; there is no way to the frames around it",
        step: Step::Library(Mutant::GatherErrorForgotten),
        program: "; unmap a0; switch a | user, user",
        powers: TSO.with(Power::FailingKicks),
        seen: &["stale-elsewhere", "flush-refused", "flush-repeated"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "l20-protect-over-reclaim",
        source: "Linux 3ea277194daa",
        year: 2017,
        wrong: "as `z04-protect-over-batch`, with the library's own batch: what was put off was not remembered by the space, so nobody could flush it",
        kept_out: "`Batch` counts each unmapping at once, and it is pending in the space until every CPU has acknowledged",
        step: Step::Library(Mutant::PutOffForgotten),
        program: "pages=2; reclaim a0 a1; protect a0; switch a | user, user",
        seen: &["stale-elsewhere", "pending-flush-seen", "batch-flushed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "l21-discard-beside-gather",
        source: "Linux 99baac21e458, 56236a59556c",
        year: 2017,
        wrong: "as `z05-discard-twice`, with the library's own gathers: one that was open beside others did not count them",
        kept_out: "open gathers are counted; who finishes, or asks, while others are open flushes the whole space",
        step: Step::Library(Mutant::NestedGatherIgnored),
        program: "; discard a0; discard a0; switch a | user, user",
        seen: &["stale-elsewhere", "pending-flush-seen"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "l22-store-after-collection",
        source: "the shape of Linux 1cf35d47712d",
        year: 2014,
        wrong: "the dirty bit was collected with the entry, and the page written back, while a CPU could still store to it through a stale writable entry",
        kept_out: "`Batch::before_write_back` flushes if anything dirty is pending",
        step: Step::Library(Mutant::DirtyUnmappingForgotten),
        program: "pages=2; reclaim a0 a1; switch a | user, user",
        breaks: &[Invariant::WriteBack],
        seen: &["stale-elsewhere", "page-written-back", "batch-flushed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "l23-map-before-sweep",
        source: "what LATR has to wait for (ASPLOS 2018)",
        year: 2018,
        wrong: "an address that was unmapped lazily was mapped again before every CPU had come by, and one went on with what was there before",
        kept_out: "`LazyUnmapping::make_way` flushes the address first; contract: whoever maps calls it",
        step: Step::Kernel(KernelMutant::MapIgnoresPending),
        program: "lazy=on; lazy-unmap a0, map a0; switch a | user, user",
        breaks: &[Invariant::RangeReuse],
        seen: &["stale-elsewhere", "unmapped-lazily", "address-needed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "l24-contents-behind-a-mapping",
        source: "an objection to Linux's lazy unmap flush (linux-mm)",
        year: 2024,
        wrong: "a page of a file was gone from the tables, and its contents were replaced in the page cache, while a CPU still read the old page through a stale read-only entry",
        kept_out: "contract: whoever relies on an entry that is empty already calls `complete_pending`; what is put off is pending",
        step: Step::Kernel(KernelMutant::DiscardIgnoresPending),
        program: "lazy=on; lazy-unmap a0, unmap a0; switch a | user, user",
        breaks: &[Invariant::Revocation],
        seen: &["stale-elsewhere", "unmapped-lazily", "pending-flush-seen"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "l25-allocated-past-the-check",
        source: "an objection to Linux's lazy unmap flush (linux-mm)",
        year: 2024,
        wrong: "a frame whose flush was pending left the allocator by a way on which nobody looked whether it was",
        kept_out: "frames come out of `LazyUnmapping::redeem` and `poll` only, and those flush first",
        step: Step::Library(Mutant::LazyUnmapFlushesNothing),
        program: "lazy=on; lazy-unmap a0, redeem a; switch a | user, user",
        breaks: &[Invariant::FrameReuse],
        seen: &["stale-elsewhere", "unmapped-lazily", "lazily-flushed"],
        ..Scenario::USUAL
    },
    Scenario {
        name: "l26-dirty-and-lazy",
        source: "the shape of Linux 1cf35d47712d, in a lazy design",
        year: 2014,
        wrong: "the dirty bit that was collected with the entry was overlooked, so the page counted as clean while a CPU could still store to it",
        kept_out: "`LazyUnmapping::unmapped` refuses what may have been written; contract: `Was` says what the entry was",
        step: Step::Kernel(KernelMutant::LazyUnmapOverlooksDirty),
        program: "lazy=on; grant a0 | lazy-unmap a0; switch a | user, user",
        breaks: &[Invariant::WriteBack],
        ..Scenario::USUAL
    },
    Scenario {
        name: "l27-no-tick",
        source: "what LATR assumes (ASPLOS 2018)",
        year: 2018,
        wrong: "CPUs were to forget at their timer, and a CPU that runs one program without a timer never did",
        kept_out: "an isolated CPU forgets when it comes to the kernel (`isolated::from_user`), and nothing is free before",
        step: Step::Library(Mutant::LazyUnmapEntryForgotten),
        program: "lazy=on isolated=on; lazy-unmap a0, expire a; switch a | user, user",
        breaks: &[Invariant::LazyBound],
        seen: &["stale-elsewhere", "unmapped-lazily", "isolated-left-pending"],
        ..Scenario::USUAL
    },
];
