//! When has everyone forgotten it? Commands to IOMMUs, and knowing when they are done.

use core::fmt;

use crate::addr::{DeviceId, DomainId, IovaRange};

/// What an IOMMU is told to forget. Each unit encodes it in its own format, in one or several descriptors; it may forget
/// more than it is told to, never less.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Translations of these pages. `leaf_only`: no table page goes away, so that what is cached of the walk may stay.
    Pages {
        /// Whose.
        domain: DomainId,
        /// Which.
        range: IovaRange,
        /// Only leaf entries have changed.
        leaf_only: bool,
    },
    /// All translations of a domain, with what is cached of the walk.
    Domain(DomainId),
    /// All translations of all domains.
    All,
    /// A device's own cache of translations (ATC): these pages, or all. It is told after the IOMMU itself has forgotten
    /// them, or it would ask and get the old answer again.
    Device {
        /// Which device.
        device: DeviceId,
        /// Which pages; `None`: all.
        range: Option<IovaRange>,
    },
    /// What is cached of a device's configuration (context entry, STE and CD, DTE).
    Config(DeviceId),
}

/// A moment in the work of one IOMMU: all that was submitted before it, and the submission that returned it. Grows and
/// never wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

/// Why an IOMMU could not be told, or can't be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QueueError {
    /// There is no room; what was asked for has not been submitted. Poll, or wait, and submit again.
    Full,
    /// A device did not answer in time. What was in the queue is submitted again without it; nothing that it may have
    /// cached is reused until it is reset or removed.
    DeviceTimeout,
    /// The IOMMU refused a descriptor. What had not completed is submitted again.
    Refused,
    /// The IOMMU does not make progress.
    Stuck,
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the invalidation queue is full; poll it and submit again",
            Self::DeviceTimeout => "a device did not answer an invalidation; reset or remove it",
            Self::Refused => {
                "the IOMMU refused a descriptor; what had not completed was submitted again"
            }
            Self::Stuck => "the IOMMU makes no progress; reset it",
        })
    }
}

impl core::error::Error for QueueError {}

/// One IOMMU, which takes commands from any number of CPUs at once.
///
/// # Safety
/// When [`completed`](Self::completed) has returned a ticket, everything submitted up to it has taken effect: no cache
/// of the unit (or of a device that was told) holds what it was told to forget if the page tables did not
/// hold it when it was submitted, and accesses that began through it have ended.
pub unsafe trait Unit: Sync {
    /// Tells it all of `commands`, in an order that respects devices' caches, and returns the ticket that covers them. Never
    /// waits. What was stored to page tables before is visible to the unit when it takes a command.
    ///
    /// # Errors
    /// [`QueueError::Full`]: none of them was submitted.
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError>;

    /// The last ticket that is complete. Never waits; sees to errors of the queue that it finds.
    ///
    /// # Errors
    /// See [`QueueError`].
    fn completed(&self) -> Result<Ticket, QueueError>;
}
