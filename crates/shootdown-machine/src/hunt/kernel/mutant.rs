//! Steps of the model kernel and of the default port that can be left out: the bugs that callers of
//! the library make, as the core crate's [`shootdown::mutant`] are those that the library itself
//! could make.

/// One step left out, or done in the wrong order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum KernelMutant {
    /// A page is moved, and the lock is dropped before the old place is flushed.
    MoveFlushesLate,
    /// A table is moved without the lock that protects what it holds.
    MoveTableUnlocked,
    /// An area is unlinked before its pages are flushed.
    UnlinkBeforeFlush,
    /// Taking write permission away overlooks that the flush of another CPU is pending.
    ProtectIgnoresPending,
    /// Discarding a page overlooks that the flush of another CPU is pending.
    DiscardIgnoresPending,
    /// Migration copies a page while the flush of another CPU is pending.
    MigrateIgnoresPending,
    /// Writing a page back overlooks that the flush of another CPU is pending.
    CleanIgnoresPending,
    /// A copy for writing is made while the flush of another CPU is pending.
    CowIgnoresPending,
    /// A shared table is unhooked and not flushed.
    UnshareWithoutFlush,
    /// A table is freed without waiting for lockless walkers.
    FreeTableWithoutSync,
    /// A table is freed before the flush.
    FreeTableBeforeFlush,
    /// A table is freed after a flush of leaf entries only.
    FreeTableAsLeaf,
    /// A frame is freed before the flush.
    FreeFrameBeforeFlush,
    /// A replaced frame is freed before the flush.
    ReplaceFreesEarly,
    /// A replaced frame is freed without a flush.
    ReplaceWithoutFlush,
    /// Write permission is taken away without a flush.
    ProtectWithoutFlush,
    /// Whether to flush is decided from the new entry instead of the old one.
    ProtectJudgesNew,
    /// A large page is split without a break.
    SplitWithoutBreak,
    /// Small pages are merged without a flush between.
    MergeWithoutFlush,
    /// What was gathered before the lock was yielded is forgotten.
    YieldForgets,
    /// Of several pages only the first is flushed.
    FlushesFirstOnly,
    /// A kernel page is replaced without a flush.
    KernelPageWithoutFlush,
    /// A kernel table is freed after a flush of its range only.
    KernelTableByRange,
    /// An error of a flush is overlooked.
    IgnoresFlushError,
    /// A space's tables are freed without asking lazy CPUs to leave.
    RetireWithoutAsking,
    /// A CPU that waits for a lock does not serve others.
    DeafSpin,
    /// Interrupts are on during a context switch, and an unanswered kick is forgotten.
    SwitchWithInterrupts,
    /// A non-maskable handler touches user memory without asking.
    UncheckedNmi,
    /// The handler of the kick does not call the library.
    DeafHandler,
    /// An address is mapped again although what was unmapped there lazily is not flushed.
    MapIgnoresPending,
    /// A dirty page counts as never written when it is unmapped lazily.
    LazyUnmapOverlooksDirty,
    /// A fault on a stale "nothing there" is taken for a real one, and nothing is invalidated.
    SpuriousFaultStays,
    /// Port: table stores are not published.
    NoPublish,
    /// Port: an invalidation is not waited for on the CPU that issued it.
    NoSync,
    /// Port: loading a root never empties its tag.
    LoadKeeps,
    /// Port: an invalidation is repeated without waiting for the first.
    SyncOnce,
    /// Port: entries survive one invalidation, and it is not repeated.
    InvalidateOnce,
    /// Port: invalidating a page spares global entries, and nothing is done about it.
    TrustsPage,
    /// Port: kernel ranges are invalidated without global entries.
    SparesGlobals,
}

impl KernelMutant {
    /// All of them.
    pub const ALL: [Self; 39] = [
        Self::MoveFlushesLate,
        Self::MoveTableUnlocked,
        Self::UnlinkBeforeFlush,
        Self::ProtectIgnoresPending,
        Self::DiscardIgnoresPending,
        Self::MigrateIgnoresPending,
        Self::CleanIgnoresPending,
        Self::CowIgnoresPending,
        Self::UnshareWithoutFlush,
        Self::FreeTableWithoutSync,
        Self::FreeTableBeforeFlush,
        Self::FreeTableAsLeaf,
        Self::FreeFrameBeforeFlush,
        Self::ReplaceFreesEarly,
        Self::ReplaceWithoutFlush,
        Self::ProtectWithoutFlush,
        Self::ProtectJudgesNew,
        Self::SplitWithoutBreak,
        Self::MergeWithoutFlush,
        Self::YieldForgets,
        Self::FlushesFirstOnly,
        Self::KernelPageWithoutFlush,
        Self::KernelTableByRange,
        Self::IgnoresFlushError,
        Self::RetireWithoutAsking,
        Self::DeafSpin,
        Self::SwitchWithInterrupts,
        Self::UncheckedNmi,
        Self::DeafHandler,
        Self::MapIgnoresPending,
        Self::LazyUnmapOverlooksDirty,
        Self::SpuriousFaultStays,
        Self::NoPublish,
        Self::NoSync,
        Self::LoadKeeps,
        Self::SyncOnce,
        Self::InvalidateOnce,
        Self::TrustsPage,
        Self::SparesGlobals,
    ];

    /// Its name in the text of a program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MoveFlushesLate => "move-flushes-late",
            Self::MoveTableUnlocked => "move-table-unlocked",
            Self::UnlinkBeforeFlush => "unlink-before-flush",
            Self::ProtectIgnoresPending => "protect-ignores-pending",
            Self::DiscardIgnoresPending => "discard-ignores-pending",
            Self::MigrateIgnoresPending => "migrate-ignores-pending",
            Self::CleanIgnoresPending => "clean-ignores-pending",
            Self::CowIgnoresPending => "cow-ignores-pending",
            Self::UnshareWithoutFlush => "unshare-without-flush",
            Self::FreeTableWithoutSync => "free-table-without-sync",
            Self::FreeTableBeforeFlush => "free-table-before-flush",
            Self::FreeTableAsLeaf => "free-table-as-leaf",
            Self::FreeFrameBeforeFlush => "free-frame-before-flush",
            Self::ReplaceFreesEarly => "replace-frees-early",
            Self::ReplaceWithoutFlush => "replace-without-flush",
            Self::ProtectWithoutFlush => "protect-without-flush",
            Self::ProtectJudgesNew => "protect-judges-new",
            Self::SplitWithoutBreak => "split-without-break",
            Self::MergeWithoutFlush => "merge-without-flush",
            Self::YieldForgets => "yield-forgets",
            Self::FlushesFirstOnly => "flushes-first-only",
            Self::KernelPageWithoutFlush => "kernel-page-without-flush",
            Self::KernelTableByRange => "kernel-table-by-range",
            Self::IgnoresFlushError => "ignores-flush-error",
            Self::RetireWithoutAsking => "retire-without-asking",
            Self::DeafSpin => "deaf-spin",
            Self::SwitchWithInterrupts => "switch-with-interrupts",
            Self::UncheckedNmi => "unchecked-nmi",
            Self::DeafHandler => "deaf-handler",
            Self::MapIgnoresPending => "map-ignores-pending",
            Self::LazyUnmapOverlooksDirty => "lazy-unmap-overlooks-dirty",
            Self::SpuriousFaultStays => "spurious-fault-stays",
            Self::NoPublish => "no-publish",
            Self::NoSync => "no-sync",
            Self::LoadKeeps => "load-keeps",
            Self::SyncOnce => "sync-once",
            Self::InvalidateOnce => "invalidate-once",
            Self::TrustsPage => "trusts-page",
            Self::SparesGlobals => "spares-globals",
        }
    }

    /// The mutant with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|m| m.name() == name)
    }
}
