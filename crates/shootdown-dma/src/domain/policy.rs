//! What unmapping promises, and within which bounds.

use core::fmt;

/// What is promised when [`unmap`](super::Domain::unmap) returns.
///
/// | | the device reaches the page | the page is recycled | the caller waits |
/// |---|---|---|---|
/// | [`Strict`](Self::Strict) | no more | when the caller says so | for the invalidation |
/// | [`Deferred`](Self::Deferred) | until the invalidation completes | not before that | never, within the bounds |
/// | [`Lazy`](Self::Lazy) | until the invalidation completes | perhaps before that | never, within the bounds |
/// | [`Bypass`](Self::Bypass) | always | perhaps at once | never |
///
/// A domain's policy is the floor: what is mapped there may be unmapped under a stronger policy,
/// and not under a weaker one ([`UnmapError::Refused`](super::UnmapError::Refused)).
///
/// Under every one of them neither the addresses, nor a page of the page table, nor the domain's id
/// is used for anything else before the invalidation that covers them is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Policy {
    /// When it returns, no access by the device begins through what was unmapped, and those that
    /// had begun have ended.
    #[default]
    Strict,
    /// *Strict-ish*: it returns at once. The domain holds a reference to the page from the time it
    /// is mapped until the invalidation that covers its unmapping is complete, so that whoever
    /// owned the page is the only one whom the device can still disturb. What it does not give:
    /// the owner may read the buffer while the device still writes to it; a driver that has to
    /// decide on what it read asks for [`Strict`](Self::Strict) then.
    ///
    /// Source: Ben Serebrin, Dan Tsafrir and others in the discussion of "Utilizing the IOMMU
    /// Scalably" (2015).
    Deferred,
    /// It returns at once, and the page may be anybody's: within the bounds of [`Limits`] a device
    /// can read and write what it is used for next. For devices that are trusted as much as the
    /// kernel.
    Lazy,
    /// The memory is reached through the [window](super::Domain::open_window), which maps all of
    /// it, always: mapping is an addition, unmapping is nothing, and protection is none. As the
    /// policy of a domain this is the static one-to-one mapping; for a single mapping it is the
    /// way out for trusted devices' rings. Refused without a window, and that only
    /// [trusted](super::Config::trusted) domains have.
    Bypass,
}

impl Policy {
    /// Does it promise less than `floor` does?
    #[must_use]
    #[inline]
    pub const fn is_weaker_than(self, floor: Self) -> bool {
        self.strength() < floor.strength()
    }

    const fn strength(self) -> u8 {
        match self {
            Self::Strict => 3,
            Self::Deferred => 2,
            Self::Lazy => 1,
            Self::Bypass => 0,
        }
    }

    /// As it is written on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Deferred => "strict-ish",
            Self::Lazy => "lazy",
            Self::Bypass => "bypass",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bounds of what is put off. Where one is reached, unmapping waits, as under [`Policy::Strict`];
/// nothing is ever given back early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Unmappings that each CPU may defer. 256, as Linux has had it since 2008.
    pub entries: usize,
    /// Unmappings after which a CPU has them invalidated, without waiting for it: half of them, so
    /// that the other half goes on while the hardware works.
    pub flush_at: usize,
    /// Pages that each CPU may hold back from being recycled ([`Policy::Deferred`]).
    pub held_pages: u64,
    /// The longest that something may be deferred, in nanoseconds, if
    /// [`poll`](super::Domain::poll) is called at least as often. It is at most this and the
    /// time between two calls; twice that what a CPU of a [pinned](super::Config::pinned) host has
    /// deferred that has unmapped much just before, and is left alone. 10 ms, as Linux has had it
    /// since 2008.
    pub window_ns: u64,
}

impl Limits {
    /// See the fields.
    pub const DEFAULT: Self =
        Self { entries: 256, flush_at: 128, held_pages: 16 << 10, window_ns: 10_000_000 };

    /// Those of a cell that is for interrupts: few come while their CPU is in its own.
    pub(super) fn spare(self) -> Self {
        Self { entries: self.entries.min(SPARE), flush_at: self.flush_at.min(SPARE / 2), ..self }
    }
}

/// Unmappings that a cell for interrupts may defer: as many as one step unmaps, and as many again.
const SPARE: usize = 32;

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
