//! Mistakes of the kernel around the library: steps that are wrong or missing, each of which
//! somebody has made.

/// Something that the kernel or its port does wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Mistake {
    /// A page is freed first, and unmapped then.
    FreesFirst,
    /// A page is freed when its unmapping has failed to complete, or was lazy, as if it had been
    /// strict.
    LazyTrusted,
    /// References to pages are not taken.
    HoldsNothing,
    /// The library is told that units do not remember what was not mapped.
    AbsenceDenied,
    /// Entries are not written back to where a walker finds them.
    NotWrittenBack,
    /// The library is told that devices have no caches of their own.
    CachesDenied,
    /// The library is told of the first unit only.
    OneUnitNamed,
    /// What was submitted counts as complete.
    QueuedIsComplete,
    /// What was carried out counts as complete, though accesses that began before may still be
    /// under way.
    NotDrained,
    /// Devices are told to forget before the unit has forgotten.
    DevicesFirst,
    /// Every command says that only leaf entries have changed.
    HintAlways,
    /// A command for pages is for the first of them.
    FirstPageOnly,
    /// What may survive one command is told once.
    ToldOnce,
    /// The valid word of a device's entry is written before the other.
    EntryBackwards,
    /// A device is given to another domain by overwriting its entry.
    EntryOverwritten,
    /// All words of a device's entry are cleared, and what was read of it is forgotten then.
    EntryClearedAtOnce,
    /// A device's entry is cleared, and nobody is told to forget what was read of it.
    DetachUntold,
    /// A device's entry is made valid before the device is listed.
    ListedLate,
    /// What a unit remembers of a device's entry from before it was valid is not seen to.
    EntryUnannounced,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::FreesFirst,
        Self::LazyTrusted,
        Self::HoldsNothing,
        Self::AbsenceDenied,
        Self::NotWrittenBack,
        Self::CachesDenied,
        Self::OneUnitNamed,
        Self::QueuedIsComplete,
        Self::NotDrained,
        Self::DevicesFirst,
        Self::HintAlways,
        Self::FirstPageOnly,
        Self::ToldOnce,
        Self::EntryBackwards,
        Self::EntryOverwritten,
        Self::EntryClearedAtOnce,
        Self::DetachUntold,
        Self::ListedLate,
        Self::EntryUnannounced,
    ];

    /// Its name in print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FreesFirst => "frees-first",
            Self::LazyTrusted => "lazy-trusted",
            Self::HoldsNothing => "holds-nothing",
            Self::AbsenceDenied => "absence-denied",
            Self::NotWrittenBack => "not-written-back",
            Self::CachesDenied => "caches-denied",
            Self::OneUnitNamed => "one-unit-named",
            Self::QueuedIsComplete => "queued-is-complete",
            Self::NotDrained => "not-drained",
            Self::DevicesFirst => "devices-first",
            Self::HintAlways => "hint-always",
            Self::FirstPageOnly => "first-page-only",
            Self::ToldOnce => "told-once",
            Self::EntryBackwards => "entry-backwards",
            Self::EntryOverwritten => "entry-overwritten",
            Self::EntryClearedAtOnce => "entry-cleared-at-once",
            Self::DetachUntold => "detach-untold",
            Self::ListedLate => "listed-late",
            Self::EntryUnannounced => "entry-unannounced",
        }
    }

    /// The mistake of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mistake| mistake.name() == name)
    }
}
