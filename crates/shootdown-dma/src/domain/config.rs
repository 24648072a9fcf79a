//! The configuration of a domain.

#[cfg(doc)]
use super::{Domain, Host};
use super::{Limits, Policy};
use crate::invalidate::Promotion;
use crate::iova::identity::Layout;
use crate::pinned::Pinned;
#[cfg(doc)]
use crate::table::Format;

/// The configuration of a domain.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// CPUs that map and unmap at the same time.
    pub cpus: usize,
    /// How many contexts of one CPU may be in a call at once, each having interrupted the one
    /// before: three where a task, a softirq and an interrupt handler all map or unmap. With as
    /// many cells as this needs, and a [pinned](Self::pinned) host, no context waits for a cell
    /// that is held by a context which it has interrupted.
    pub contexts: usize,
    /// What [`unmap`](Domain::unmap) guarantees.
    pub policy: Policy,
    /// The domain holds every page from when it is mapped until its invalidation is complete.
    /// Needed for [`Policy::Deferred`], and harmless with the others.
    pub holds: bool,
    /// The domain's devices are trusted as much as the kernel: they may [bypass](Policy::Bypass).
    pub trusted: bool,
    /// Some unit caches that an address is *not* mapped (VT-d's caching mode, AMD-Vi's NpCache), or
    /// has write buffers in which the absence may linger (VT-d's RWBF). The domain invalidates
    /// after mapping too.
    pub caches_absence: bool,
    /// The last page that the devices can address, as a number of pages of the table's
    /// [granule](Format::GRANULE). Memory whose identity address is above it gets an address
    /// from the allocator.
    pub limit: u64,
    /// The most pages that the domain's page table may have, side tables among them. A caller that
    /// maps for others that are not trusted (a guest) needs a bound: mappings that are far apart
    /// take a table each, and a mapping of 4 GiB whose address is off by a page takes two thousand.
    /// A mapping that would exceed the bound fails as if there were no memory. Where the caller may
    /// wait, the domain takes out empty tables first.
    pub tables: usize,
    /// Bounds of what is deferred.
    pub limits: Limits,
    /// When one wider command replaces many.
    pub promotion: Promotion,
    /// Where a page of memory lies within this layout, its device address follows from its physical
    /// address. The allocator then gives addresses of the layout's [zone](Layout::fallback) only.
    pub identity: Option<Layout<'static>>,
    /// What the host guarantees about [`Host::pin`].
    pub pinned: Option<Pinned>,
}

impl Config {
    /// The default for this many CPUs: strict, untrusted, addresses from the allocator.
    #[must_use]
    pub const fn new(cpus: usize) -> Self {
        Self {
            cpus,
            contexts: 3,
            policy: Policy::Strict,
            holds: false,
            trusted: false,
            caches_absence: false,
            limit: u64::MAX,
            tables: usize::MAX,
            limits: Limits::DEFAULT,
            promotion: Promotion::DEFAULT,
            identity: None,
            pinned: None,
        }
    }

    /// The same with this policy. [`Policy::Deferred`] makes the domain hold its pages.
    #[must_use]
    pub const fn policy(self, policy: Policy) -> Self {
        let holds = self.holds || matches!(policy, Policy::Deferred);
        Self { policy, holds, ..self }
    }

    /// The same for this many contexts of a CPU at once.
    #[must_use]
    pub const fn contexts(self, contexts: usize) -> Self {
        Self { contexts, ..self }
    }

    /// The same for a host that guarantees that no two contexts use a CPU's number at once: a CPU
    /// enters its own cell without a locked operation.
    #[must_use]
    pub const fn pinned(self, pinned: Pinned) -> Self {
        Self { pinned: Some(pinned), ..self }
    }

    /// The same for devices that are trusted as much as the kernel.
    #[must_use]
    pub const fn trusted(self) -> Self {
        Self { trusted: true, ..self }
    }

    /// The same, with device addresses that follow from the physical addresses where they can.
    #[must_use]
    pub const fn identity(self, layout: Layout<'static>) -> Self {
        Self { identity: Some(layout), ..self }
    }

    /// The same, for devices that address no page above this one.
    #[must_use]
    pub const fn limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// The same, with a page table of this many pages at most.
    #[must_use]
    pub const fn tables(self, tables: usize) -> Self {
        Self { tables, ..self }
    }

    /// The same with other bounds.
    #[must_use]
    pub const fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The same, with other costs of the units' commands.
    #[must_use]
    pub const fn promotion(self, promotion: Promotion) -> Self {
        Self { promotion, ..self }
    }

    /// The same, with a unit that caches absent entries.
    #[must_use]
    pub const fn caching_absence(self) -> Self {
        Self { caches_absence: true, ..self }
    }
}
