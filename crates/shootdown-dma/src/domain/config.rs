//! What a domain is made for.

#[cfg(doc)]
use super::{Domain, Host};
use super::{Limits, Policy};
use crate::invalidate::Promotion;
use crate::iova::identity::Layout;
use crate::pinned::Pinned;
#[cfg(doc)]
use crate::table::Format;

/// What a domain is made for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Config {
    /// CPUs that map and unmap at the same time.
    pub cpus: usize,
    /// How many contexts of one CPU may be in a call at once, each having interrupted the one
    /// before: three where a task, a softirq and an interrupt handler all map or unmap. With so
    /// many, and a [pinned](Self::pinned) host, nobody waits for a CPU that it has interrupted
    /// itself.
    pub contexts: usize,
    /// What [`unmap`](Domain::unmap) promises.
    pub policy: Policy,
    /// Every page is held from when it is mapped until its invalidation is complete. Needed for
    /// [`Policy::Deferred`], and harmless with the others.
    pub holds: bool,
    /// Its devices are trusted as much as the kernel: they may [bypass](Policy::Bypass).
    pub trusted: bool,
    /// Some unit remembers what was *not* mapped (VT-d's caching mode, AMD-Vi's NpCache), or has
    /// write buffers in which that may linger (VT-d's RWBF): it is told after mapping too.
    pub caches_absence: bool,
    /// The last page that the devices can address, as a number of pages of the table's
    /// [granule](Format::GRANULE). Memory whose identity address is above it gets an address
    /// from the allocator.
    pub limit: u64,
    /// Pages that its page table may have, side tables among them. Who maps for others that are
    /// not trusted (a guest) needs a bound: mappings that are far apart take a table each, and
    /// one of 4 GiB that lies off by a page takes two thousand. What would take more
    /// finds no memory, after tables that became empty were looked for where the caller may wait.
    pub tables: usize,
    /// Bounds of what is put off.
    pub limits: Limits,
    /// What to tell units when.
    pub promotion: Promotion,
    /// Pages have addresses that follow from the memory's where this has room for them. The
    /// allocator is asked for what its [zone](Layout::fallback) holds, and nothing else.
    pub identity: Option<Layout<'static>>,
    /// What the host promises of [`Host::pin`].
    pub pinned: Option<Pinned>,
}

impl Config {
    /// For so many CPUs: strict, untrusted, addresses from the allocator.
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

    /// The same for so many contexts of a CPU at once.
    #[must_use]
    pub const fn contexts(self, contexts: usize) -> Self {
        Self { contexts, ..self }
    }

    /// The same for a host that promises that CPUs are alone with their numbers: a CPU enters what
    /// is its own without a locked operation.
    #[must_use]
    pub const fn pinned(self, pinned: Pinned) -> Self {
        Self { pinned: Some(pinned), ..self }
    }

    /// The same for devices that are trusted as much as the kernel.
    #[must_use]
    pub const fn trusted(self) -> Self {
        Self { trusted: true, ..self }
    }

    /// The same, with addresses that follow from the memory's where they can.
    #[must_use]
    pub const fn identity(self, layout: Layout<'static>) -> Self {
        Self { identity: Some(layout), ..self }
    }

    /// The same, for devices that address no page above this.
    #[must_use]
    pub const fn limit(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// The same, with a page table of so many pages at most.
    #[must_use]
    pub const fn tables(self, tables: usize) -> Self {
        Self { tables, ..self }
    }

    /// The same with other bounds.
    #[must_use]
    pub const fn limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The same, with other costs of telling units.
    #[must_use]
    pub const fn promotion(self, promotion: Promotion) -> Self {
        Self { promotion, ..self }
    }

    /// The same, with a unit that remembers what was not mapped.
    #[must_use]
    pub const fn caching_absence(self) -> Self {
        Self { caches_absence: true, ..self }
    }
}
