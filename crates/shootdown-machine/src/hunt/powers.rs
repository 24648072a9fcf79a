//! The adversary's powers: what the hostile machine may do to the software. Each is a switch.

use std::fmt;
use std::str::FromStr;

/// How stores become visible to others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Memory {
    /// At once (sequential consistency).
    Sc,
    /// From a first-in first-out buffer per CPU, at any later step (x86: total store order).
    Tso,
    /// As the language allows: a load may return any value that this CPU does not know to be
    /// overwritten, unless release and acquire, or fences, say otherwise. Unfenced stores of
    /// one CPU become visible in any order.
    #[default]
    Weak,
}

impl Memory {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sc, Self::Tso, Self::Weak];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sc => "sc",
            Self::Tso => "tso",
            Self::Weak => "weak",
        }
    }
}

/// A power that is on or off.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Power {
    /// Translations are cached at any step, for everything a walker can reach, and never evicted
    /// unless invalidated. Without it only what is accessed is cached.
    Speculation,
    /// Non-leaf entries are cached at every level, and lead into table pages that were freed since.
    WalkCaches,
    /// Interrupts are delivered at any later step. Without it, at the next step that allows them.
    LateInterrupts,
    /// An interrupt can't be delivered: raising it fails, and says so.
    FailingKicks,
    /// What an invalidation removes stays in use until the invalidation is waited for.
    LateInvalidation,
    /// A virtual CPU may stand still for a long time, interrupts and all.
    Preemption,
    /// An IOMMU that remembers what was not mapped goes on doing so until it is told.
    RemembersAbsence,
    /// Accesses of devices that have begun with a translation go on after an IOMMU has forgotten
    /// it, until the invalidation is complete.
    InFlight,
    /// An IOMMU that does not look into CPUs' caches may read what was in memory before, until
    /// lines are written back.
    StaleLines,
    /// An IOMMU reads the words of a device's entry at different times.
    TornEntries,
    /// What an IOMMU has read of a device's entry is kept until it is told.
    CachedEntries,
    /// A large page is cached in pieces, and a piece may be forgotten alone.
    Fracture,
    /// An IOMMU that can't be told something now says so; what it refused is told again; and a
    /// device with a cache of its own may stop answering.
    QueueErrors,
    /// Defect: a leaf may survive one invalidation of its page.
    SurvivesOnce,
    /// Defect: a wait for an invalidation may end before the invalidation is complete.
    EarlySync,
    /// Defect: invalidating a page spares global entries.
    PageSparesGlobals,
}

impl Power {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Speculation,
        Self::WalkCaches,
        Self::LateInterrupts,
        Self::FailingKicks,
        Self::LateInvalidation,
        Self::Preemption,
        Self::RemembersAbsence,
        Self::InFlight,
        Self::StaleLines,
        Self::TornEntries,
        Self::CachedEntries,
        Self::Fracture,
        Self::QueueErrors,
        Self::SurvivesOnce,
        Self::EarlySync,
        Self::PageSparesGlobals,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Speculation => "speculation",
            Self::WalkCaches => "walk-caches",
            Self::LateInterrupts => "late-interrupts",
            Self::FailingKicks => "failing-kicks",
            Self::LateInvalidation => "late-invalidation",
            Self::Preemption => "preemption",
            Self::RemembersAbsence => "remembers-absence",
            Self::InFlight => "in-flight",
            Self::StaleLines => "stale-lines",
            Self::TornEntries => "torn-entries",
            Self::CachedEntries => "cached-entries",
            Self::Fracture => "fracture",
            Self::QueueErrors => "queue-errors",
            Self::SurvivesOnce => "survives-once",
            Self::EarlySync => "early-sync",
            Self::PageSparesGlobals => "page-spares-globals",
        }
    }

    /// The power with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }

    /// Is it a defect of the hardware, which software must be told of, rather than a liberty?
    #[must_use]
    pub const fn is_defect(self) -> bool {
        matches!(self, Self::SurvivesOnce | Self::EarlySync | Self::PageSparesGlobals)
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which powers the adversary has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Powers {
    /// The memory model.
    pub memory: Memory,
    on: u32,
}

impl Powers {
    /// A machine that does what it is told, at once.
    pub const NONE: Self = Self { memory: Memory::Sc, on: 0 };

    /// Everything the manuals allow; no defects, and no interrupts that fail.
    pub const HOSTILE: Self = Self::NONE
        .memory(Memory::Weak)
        .with(Power::Speculation)
        .with(Power::WalkCaches)
        .with(Power::LateInterrupts)
        .with(Power::LateInvalidation);

    /// The same of IOMMUs and devices. (What takes a model of hardware of its own is up to the
    /// world: see [`io::Model`](super::io::Model).)
    pub const HOSTILE_DEVICES: Self = Self::HOSTILE
        .with(Power::RemembersAbsence)
        .with(Power::InFlight)
        .with(Power::StaleLines)
        .with(Power::TornEntries)
        .with(Power::CachedEntries)
        .with(Power::Fracture)
        .with(Power::QueueErrors)
        .with(Power::SurvivesOnce);

    /// With another memory model.
    #[must_use]
    pub const fn memory(self, memory: Memory) -> Self {
        Self { memory, ..self }
    }

    /// With this power as well.
    #[must_use]
    pub const fn with(self, power: Power) -> Self {
        Self { on: self.on | 1 << power as u8, ..self }
    }

    /// Without this power.
    #[must_use]
    pub const fn without(self, power: Power) -> Self {
        Self { on: self.on & !(1 << power as u8), ..self }
    }

    /// Is the power on?
    #[must_use]
    pub const fn has(self, power: Power) -> bool {
        self.on & 1 << power as u8 != 0
    }

    /// Those that are on.
    pub fn iter(self) -> impl Iterator<Item = Power> {
        Power::ALL.into_iter().filter(move |p| self.has(*p))
    }
}

/// The memory model and the powers as one word, `tso+speculation+walk-caches`; it reads back.
impl fmt::Display for Powers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.memory.name())?;
        self.iter().try_for_each(|power| write!(f, "+{power}"))
    }
}

impl FromStr for Powers {
    type Err = String;

    /// Reads such a word. The error is a sentence.
    fn from_str(word: &str) -> Result<Self, String> {
        let mut names = word.split('+');
        let model = names.next().unwrap_or_default();
        let memory = Memory::ALL.into_iter().find(|m| m.name() == model);
        let memory = memory.ok_or_else(|| format!("`{model}` is not sc, tso or weak"))?;
        names.try_fold(Self::NONE.memory(memory), |powers, name| {
            let power = Power::from_name(name);
            Ok(powers.with(power.ok_or_else(|| format!("there is no power `{name}`"))?))
        })
    }
}

impl Default for Powers {
    fn default() -> Self {
        Self::HOSTILE
    }
}
