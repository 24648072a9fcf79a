//! What unmapping guarantees, and within which bounds.

use core::fmt;

/// What holds when [`unmap`](super::Domain::unmap) returns.
///
/// | | the device reaches the page | the page is recycled | the caller waits |
/// |---|---|---|---|
/// | [`Strict`](Self::Strict) | no more | when the caller says so | for the invalidation |
/// | [`Deferred`](Self::Deferred) | until the invalidation completes | not before that | never, within the bounds |
/// | [`Lazy`](Self::Lazy) | until the invalidation completes | perhaps before that | never, within the bounds |
/// | [`Bypass`](Self::Bypass) | always | perhaps at once | never |
///
/// A domain's policy is the floor: a mapping may be unmapped under a stronger policy, and not under
/// a weaker one ([`UnmapError::Refused`](super::UnmapError::Refused)).
///
/// Under every policy neither the addresses, nor a page of the page table, nor the domain's id is
/// used for anything else before the invalidation that covers them is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Policy {
    /// When `unmap` returns, no access by the device begins through the old entries, and the
    /// accesses that had begun have ended.
    #[default]
    Strict,
    /// *Strict-ish*: `unmap` returns at once. The domain holds a reference to the page from the
    /// time it is mapped until the invalidation that covers its unmapping is complete, so the
    /// device can disturb no one but the page's owner. The policy does not protect the owner: the
    /// owner may read the buffer while the device still writes to it. A driver that takes decisions
    /// on what it read asks for [`Strict`](Self::Strict).
    ///
    /// Source: Ben Serebrin, Dan Tsafrir and others in the discussion of "Utilizing the IOMMU
    /// Scalably" (2015).
    Deferred,
    /// `unmap` returns at once, and the kernel may already have given the page to another user:
    /// within the bounds of [`Limits`] a device can read and write what the page is used for next.
    /// For devices that are trusted as much as the kernel.
    Lazy,
    /// Devices reach the memory through the [window](super::Domain::open_window), which maps all of
    /// it all the time. Mapping is an addition, unmapping does nothing, and there is no protection.
    /// As the policy of a domain this is the static one-to-one mapping; for a single mapping it
    /// serves the rings of trusted devices. It is refused without a window, and only
    /// [trusted](super::Config::trusted) domains have one.
    Bypass,
}

impl Policy {
    /// Whether it guarantees less than `floor` does.
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

    /// The name on command lines.
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

/// Bounds of what is deferred. Where one is reached, unmapping waits, as under [`Policy::Strict`];
/// nothing is ever given back early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Unmappings that each CPU may defer. 256, as Linux has had it since 2008.
    pub entries: usize,
    /// Unmappings after which a CPU submits their invalidation, without waiting for it: half of
    /// `entries`, so that the other half is free while the hardware works.
    pub flush_at: usize,
    /// Pages that each CPU may hold back from being recycled ([`Policy::Deferred`]).
    pub held_pages: u64,
    /// The longest that something may be deferred, in nanoseconds, if [`poll`](super::Domain::poll)
    /// is called at least as often. The bound is this plus the time between two calls. For a CPU of
    /// a [pinned](super::Config::pinned) host that has unmapped much just before it is twice that,
    /// since `poll` does not interrupt that CPU. 10 ms, as Linux has had it since 2008.
    pub window_ns: u64,
}

impl Limits {
    /// The default values; the fields say why.
    pub const DEFAULT: Self =
        Self { entries: 256, flush_at: 128, held_pages: 16 << 10, window_ns: 10_000_000 };

    /// The limits of a cell for interrupts: few interrupts come while their CPU is in its own cell.
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
