//! What the hardware may do: the manuals' caching rules as plain facts, one preset per
//! architecture.
//!
//! | field | x86-64 | AArch64 | RISC-V | source |
//! |---|---|---|---|---|
//! | [`negative`](Rules::negative) | never | until the CPU's next context synchronization; never with ETS2 | until invalidated; until the fault with Svvptc | SDM 3A 4.10.2.3; Arm ARM D8.14, FEAT_ETS2; Privileged 12.2.1, Svvptc |
//! | [`unaccessed`](Rules::unaccessed) | not cached | not cached | may be cached | SDM 3A 4.10.2.1; Arm ARM D8.14.1; Privileged 12.2.1 |
//! | [`accessed_by_hardware`](Rules::accessed_by_hardware) | yes | with HA | with Svadu | SDM 3A 4.8; FEAT_HAFDBS; Svadu |
//! | [`dirty`](Rules::dirty) | D set by hardware | DBM turns into AP\[2\]=0 with HD, else a fault | D set with Svadu, else a fault | same |
//! | [`fault_forgets`](Rules::fault_forgets) | yes | no | no | SDM 3A 4.10.4.1, last paragraph |
//! | [`translates_ahead`](Rules::translates_ahead) | no | yes: only a context synchronization event drops what this CPU translated early | no | Arm ARM D8.14, herd `V2I-UP-DSB-TLBI-DSB` |
//! | [`late`](Rules::late) | broadcast (INVLPGB until TLBSYNC) | always (TLBI until DSB) | never (Svinval: always) | AMD APM vol. 3; Arm ARM D8.13.5; Svinval |
//! | [`tables_accessed`](Rules::tables_accessed) | yes | no (FEAT_HAFT is not modelled) | no (reserved) | SDM 3A 4.8 |
//! | [`last_level_is_leaf`](Rules::last_level_is_leaf) | yes | yes | no: a fault | SDM 3A 4.5; Arm ARM D8.3; Privileged 12.3.2 |
//! | [`tables_global`](Rules::tables_global) | no | no | yes | Privileged 12.3.1 |
//! | walk caches | by tag | by tag | by tag | SDM 3A 4.10.3; Arm ARM D8.14; Privileged 12.2.1 |
//!
//! Which entries an invalidation removes is the business of [`Invalidation`](super::Invalidation).

use super::Shape;

/// May "nothing there" be cached?
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Negative {
    /// Never.
    Never,
    /// Until the CPU synchronizes its context (an early walk whose result is used late), or an
    /// invalidation on another CPU covers it.
    UntilContextSync,
    /// Until the CPU takes a fault on it: the fault may be spurious, but only once.
    UntilFault,
    /// Until an invalidation covers it.
    UntilInvalidated,
}

/// Who records stores.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dirty {
    /// Hardware sets `DIRTY` in a writable leaf before the first store (x86, Svadu).
    Hardware,
    /// A store through a writable leaf with `DIRTY` clear faults (RISC-V Svade).
    Fault,
    /// There is no dirty bit. With `hardware`, a store turns `DBM` into `WRITE` (Arm); without,
    /// `DBM` means nothing.
    Modifier {
        /// FEAT_HAFDBS is on (TCR.HD).
        hardware: bool,
    },
}

/// What happens to a leaf with `ACCESSED` clear where hardware sets the bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessedUpdates {
    /// The caller performs every update: such a leaf is not cached until the word in memory has the
    /// bit ([`Hostile::early_updates`](super::Hostile::early_updates) lists what hardware may
    /// set now).
    Explicit,
    /// Nobody looks at accessed bits: such a leaf is cached as if the bit were set.
    Assumed,
}

/// When a removal takes effect: when it is issued, or when the issuing CPU syncs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Late {
    /// When issued.
    Never,
    /// Broadcast ones at the sync, local ones when issued.
    Broadcast,
    /// At the sync.
    Always,
}

/// When the hardware caches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fills {
    /// At any moment, everything a walker can reach.
    Anytime,
    /// Only what an access used ([`Hostile::used`](super::Hostile::used)).
    OnAccess,
}

/// How non-leaf entries are cached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WalkCache {
    /// Not at all: a walk reads every level at one moment.
    None,
    /// Under the tag of the walk.
    Tagged,
    /// Under the root of the walk, whatever the tag: invalidations by tag do not find them.
    Untagged,
}

/// Known defects, each a switch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Errata {
    /// An invalidation of single pages spares global entries (Intel Alder Lake and others).
    pub page_spares_globals: bool,
    /// A leaf survives the first invalidation that covers it.
    pub survives_once: bool,
    /// A sync completes one step early: only the second one finds the removal done (Arm 1286807).
    pub early_sync: bool,
}

/// Broken machines: checks must fail on them, or the checks are worth nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Broken {
    /// Nothing is ever retained: every access walks.
    pub forgetful: bool,
    /// Every invalidation drops everything on every CPU.
    pub flushes_all: bool,
}

/// AArch64 options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Aarch64 {
    /// FEAT_ETS2: a fault never comes from a walk that is older than the accesses before it.
    pub ets2: bool,
    /// Hardware sets the accessed flag.
    pub ha: bool,
    /// Hardware manages dirty state.
    pub hd: bool,
}

/// RISC-V options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RiscV {
    /// A new valid entry becomes visible in bounded time without a fence.
    pub svvptc: bool,
    /// Hardware sets accessed and dirty bits; without, they fault.
    pub svadu: bool,
    /// Removals are split into issue and completion.
    pub svinval: bool,
}

/// Everything that is decided about the hardware before it runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rules {
    /// The tables.
    pub shape: Shape,
    /// Caching of absent entries.
    pub negative: Negative,
    /// Leaves with `ACCESSED` clear may be cached as such.
    pub unaccessed: bool,
    /// Hardware sets `ACCESSED`; without, an access through a clear one faults.
    pub accessed_by_hardware: bool,
    /// Who performs those updates.
    pub accessed_updates: AccessedUpdates,
    /// `ACCESSED` counts in table descriptors too.
    pub tables_accessed: bool,
    /// Dirty tracking.
    pub dirty: Dirty,
    /// A page fault drops the faulting page's entries of the CPU.
    pub fault_forgets: bool,
    /// A removed entry stays usable on the CPU that removed it until that CPU synchronizes its
    /// context.
    pub translates_ahead: bool,
    /// When removals take effect.
    pub late: Late,
    /// The `LEAF` bit of the last level is ignored.
    pub last_level_is_leaf: bool,
    /// `GLOBAL` in a table descriptor makes everything below global.
    pub tables_global: bool,
    /// Caching of non-leaf entries.
    pub walk_cache: WalkCache,
    /// When entries are made.
    pub fills: Fills,
    /// Entries remember the versions and the path they were made from. On for an oracle that asks
    /// "is it revoked?"; off where states are compared.
    pub provenance: bool,
    /// Neighbouring CPUs that share entries: 1 for none, 2 for pairs (Arm CnP, RISC-V hart
    /// groups).
    pub sharing: u8,
    /// CPUs (one bit each) that leave accessed bits to software although the machine could set them
    /// (AArch64 TCR_EL1.HA is per CPU).
    pub accessed_by_software: u16,
    /// The same for dirty state (TCR_EL1.HD).
    pub dirty_by_software: u16,
    /// Defects.
    pub errata: Errata,
    /// Deliberate breakage.
    pub broken: Broken,
    /// How many translations (and how many walk-cache entries) one CPU may hold before the run
    /// stops with [`HostileError::Full`](super::HostileError::Full).
    pub capacity: usize,
}

impl Rules {
    /// Enough for any small configuration, small enough that a leak stops the run before it slows
    /// it.
    const CAPACITY: usize = 4096;

    /// An x86-64 CPU (Intel SDM vol. 3A 4.10).
    #[must_use]
    pub const fn x86_64(shape: Shape) -> Self {
        Self {
            shape,
            negative: Negative::Never,
            unaccessed: false,
            accessed_by_hardware: true,
            accessed_updates: AccessedUpdates::Assumed,
            tables_accessed: true,
            dirty: Dirty::Hardware,
            fault_forgets: true,
            translates_ahead: false,
            late: Late::Broadcast,
            last_level_is_leaf: true,
            tables_global: false,
            walk_cache: WalkCache::Tagged,
            fills: Fills::Anytime,
            provenance: false,
            sharing: 1,
            accessed_by_software: 0,
            dirty_by_software: 0,
            errata: Errata { page_spares_globals: false, survives_once: false, early_sync: false },
            broken: Broken { forgetful: false, flushes_all: false },
            capacity: Self::CAPACITY,
        }
    }

    /// An AArch64 CPU, stage 1 (Arm ARM D8).
    #[must_use]
    pub const fn aarch64(shape: Shape, options: Aarch64) -> Self {
        Self {
            negative: if options.ets2 { Negative::Never } else { Negative::UntilContextSync },
            accessed_by_hardware: options.ha,
            accessed_updates: AccessedUpdates::Explicit,
            tables_accessed: false,
            dirty: Dirty::Modifier { hardware: options.hd },
            fault_forgets: false,
            translates_ahead: true,
            late: Late::Always,
            ..Self::x86_64(shape)
        }
    }

    /// A RISC-V hart (Privileged Architecture chapter 12).
    #[must_use]
    pub const fn riscv64(shape: Shape, options: RiscV) -> Self {
        Self {
            negative: if options.svvptc {
                Negative::UntilFault
            } else {
                Negative::UntilInvalidated
            },
            unaccessed: true,
            accessed_by_hardware: options.svadu,
            accessed_updates: AccessedUpdates::Explicit,
            tables_accessed: false,
            dirty: if options.svadu { Dirty::Hardware } else { Dirty::Fault },
            fault_forgets: false,
            late: if options.svinval { Late::Always } else { Late::Never },
            last_level_is_leaf: false,
            tables_global: true,
            ..Self::x86_64(shape)
        }
    }

    /// Does hardware set accessed bits for this CPU?
    pub(super) const fn sets_accessed(&self, cpu: usize) -> bool {
        self.accessed_by_hardware && self.accessed_by_software & 1 << cpu == 0
    }

    /// Who records the stores of this CPU.
    pub(super) const fn dirty_of(&self, cpu: usize) -> Dirty {
        match self.dirty {
            Dirty::Modifier { .. } if self.dirty_by_software & 1 << cpu != 0 => {
                Dirty::Modifier { hardware: false }
            }
            dirty => dirty,
        }
    }

    /// May the word be cached, as far as its accessed bit decides?
    pub(super) const fn cacheable(&self, accessed: bool) -> bool {
        accessed || self.unaccessed || self.assumes_accessed()
    }

    /// Is a clear accessed bit read as a set one?
    pub(super) const fn assumes_accessed(&self) -> bool {
        self.accessed_by_hardware && matches!(self.accessed_updates, AccessedUpdates::Assumed)
    }
}
