//! Commands to IOMMUs, and the knowledge of when they have executed them.
//!
//! # The problem
//! An entry of an I/O page table was cleared. The IOMMU may still have it in its IOTLB, and the
//! path to it in its walk caches; a device may have it in a cache of its own (ATC). Commands in a
//! queue in memory invalidate these caches, and the unit executes the commands some time later.
//! Until it has done so, neither the page nor the address may be used for anything else. One
//! command costs several hundred nanoseconds (690 on VT-d: rIOMMU, ASPLOS'15, table 1), so a driver
//! should not wait for each.
//!
//! # The parts
//! | file | does |
//! |---|---|
//! | [`engine`] | one per domain: collects what was unmapped, submits commands to all units, tracks what is complete |
//! | [`promotion`] | chooses the commands: pages, covering blocks, the whole domain, or everything |
//! | [`cover`] | aligned power-of-two blocks around a range |
//! | [`vtd`], [`smmu`], [`amd`] | descriptors of Intel VT-d, Arm SMMUv3 and AMD-Vi, as pure functions |
//! | [`queue`] | the rings from which units take their commands, and the recovery when one stops |
//! | [`model`] | an IOMMU in software that behaves as badly as the manuals allow |
//!
//! The engine uses a unit through the trait [`Unit`] only.
//!
//! # Invariants
//! - **I1** A [`Token`] that [is complete](Engine::is_complete): no cache of any unit of the
//!   domain, nor of any device in it, holds what was cleared before the token was taken, and
//!   accesses that began through it have ended.
//! - **I4** The token is taken after the entry was cleared, and the commands that complete it are
//!   submitted after the token was taken.
//! - **I5** A command is left out as "pending already" only if it is pending in a batch that has
//!   not been submitted.
//! - **I6** A device's cache is invalidated after the IOMMU's caches. Otherwise the device could
//!   ask the IOMMU again and refill its cache with the old translation.
//! - **I7** The submitted commands cover what was noted, on every unit of the domain.
//! - **I9** What a unit loses by an error is submitted again, or never becomes complete.
//! - **I13** No call waits with a lock held; no step on the way to completion allocates, or needs
//!   interrupts to be on.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

use crate::addr::{DeviceId, DomainId, IovaRange};

pub mod amd;
mod attach;
mod complete;
pub mod cover;
pub mod engine;
mod lane;
mod members;
pub mod model;
mod pending;
pub mod promotion;
pub mod queue;
#[cfg(all(test, not(loom)))]
pub(crate) mod scenes;
pub mod smmu;
mod unheard;
pub mod vtd;

pub use engine::{Engine, Token};
pub use members::{AttachError, Attachment};
pub use promotion::Promotion;

/// An invalidation command. Ranges are in pages of the domain's granule ([`Unit::granule`]). Each
/// unit encodes it in its own format, in one or several descriptors, which may invalidate more than
/// the command names, never less.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Translations of these pages. `leaf_only`: no table page goes away, or was added, so the walk
    /// caches may stay.
    Pages {
        /// The domain of the pages.
        domain: DomainId,
        /// The pages.
        range: IovaRange,
        /// Only leaf entries have changed.
        leaf_only: bool,
    },
    /// All translations of a domain, with its walk caches.
    Domain(DomainId),
    /// All translations of all domains. Only for a unit that [has the command](Unit::forgets_all).
    All,
    /// A device's own cache of translations (ATC): these pages, or all. It is executed after the
    /// IOMMU itself has invalidated them; otherwise the device could ask the IOMMU and get the old
    /// translation again.
    Device {
        /// The device.
        device: DeviceId,
        /// The pages; `None`: all.
        range: Option<IovaRange>,
    },
    /// The cached configuration of a device (context entry, STE and CD, DTE).
    Config {
        /// The device.
        device: DeviceId,
        /// The domain that the entry named before the change: VT-d selects what it has cached by
        /// both.
        domain: DomainId,
    },
}

impl Command {
    /// Whether it invalidates a device's cache, and not the IOMMU's.
    #[must_use]
    pub const fn is_for_device(&self) -> bool {
        matches!(self, Self::Device { .. })
    }
}

/// A point in the work of one IOMMU: it covers the submission that returned it, and all submissions
/// before that. Grows and never wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

/// Why commands were not submitted to an IOMMU, or can't be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QueueError {
    /// There is no room; the commands have not been submitted. Poll, or wait, and submit again.
    Full,
    /// A device did not acknowledge an invalidation in time. What was in the queue is submitted
    /// again. If the device has failed too often, it is left out; then nothing that it may have
    /// cached is reused until it was reset or removed, and taken out of its domain
    /// ([`Unit::answers`]).
    DeviceTimeout,
    /// The IOMMU refused a descriptor. What had not completed is submitted again.
    Refused,
    /// The IOMMU does not make progress.
    Stuck,
    /// The device is listed in another domain, or the token is another domain's. Nothing has
    /// changed.
    NotListed,
    /// The caller's `relax` has given up. The invalidation goes on, and may complete later.
    GaveUp,
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
            Self::NotListed => "the device or the token is another domain's; ask that one",
            Self::GaveUp => "the wait was given up; ask again whether the token is complete",
        })
    }
}

impl core::error::Error for QueueError {}

impl QueueError {
    /// Whether waiting any longer is useless.
    const fn is_final(self) -> bool {
        matches!(self, Self::Stuck)
    }
}

/// Commands that every unit takes in one [`submit`](Unit::submit) when its queue is empty.
pub const BATCH: usize = 16;

/// One IOMMU, which takes commands from any number of CPUs at once.
///
/// # Safety
/// 1. When [`completed`](Self::completed) has returned a ticket, everything submitted up to it has
///    taken effect: no cache of the unit (or of a device that a command named, and that
///    [answers](Self::answers)) holds what the commands invalidate if the page tables did not hold
///    it when they were submitted, and accesses that began through it have ended.
/// 2. A [`Command::Device`] takes effect after all commands for the IOMMU in the same submission,
///    and in every submission that returned before (I6).
/// 3. Tickets and completions never go backwards: `submit` returns a ticket above the tickets of
///    all submissions that had returned before.
pub unsafe trait Unit: Sync {
    /// Submits all of `commands`, in an order that respects devices' caches, and returns the ticket
    /// that covers them. Never waits; may be called from interrupts, also from an interrupt during
    /// another submission. Stores to page tables before the call are visible to the unit when it
    /// takes a command. An empty unit takes at least [`BATCH`] commands.
    ///
    /// # Errors
    /// [`QueueError::Full`], and the errors of [`completed`](Self::completed): none of the commands
    /// was submitted.
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError>;

    /// The last ticket that is complete. Never waits, may be called from interrupts; handles errors
    /// of the queue that it finds.
    ///
    /// # Errors
    /// See [`QueueError`]. Each error is returned once, to the first caller. [`QueueError::Stuck`]
    /// is returned by every call as long as it lasts. After an error the next call returns the
    /// progress.
    fn completed(&self) -> Result<Ticket, QueueError>;

    /// The same for a caller in a loop that has got the same result for `turns` calls in a row.
    /// Where many CPUs wait, what one of them writes or locks delays the others, so a unit need not
    /// look for errors in each turn.
    ///
    /// # Errors
    /// As [`completed`](Self::completed).
    fn completed_by_turn(&self, turns: u32) -> Result<Ticket, QueueError> {
        let _ = turns;
        self.completed()
    }

    /// Whether this device acknowledges invalidations. It does not after it has left some
    /// unacknowledged. Then tickets complete without it, so that other domains make progress, and a
    /// domain that it is in takes nothing as complete until the device was reset or removed. Call
    /// it *after* [`completed`](Self::completed).
    ///
    /// If the result becomes `true` again (a queue's [`revive`](queue::Queue::revive)), it is valid
    /// for what is submitted from then on. What was submitted before may complete without the
    /// device; so the host enables the device's cache again only when an invalidation of its domain
    /// that began later is complete.
    fn answers(&self, device: DeviceId) -> bool {
        let _ = device;
        true
    }

    /// The logarithm of the bytes of a page, as the unit counts them in [commands](Command): that
    /// of the tables which it walks. 12 by default.
    fn granule(&self) -> u32 {
        12
    }

    /// Whether it has the command [`Command::All`].
    fn forgets_all(&self) -> bool {
        false
    }

    /// Whether the queue is more than half full. A hint: fewer and coarser commands are better
    /// then.
    fn is_crowded(&self) -> bool {
        false
    }

    /// How many commands are before one that would be submitted now. Also a hint.
    fn ahead(&self) -> u64 {
        0
    }
}

macro_rules! units_behind_pointers {
    ($($(#[$doc:meta])* ($($bounds:tt)*) $pointer:ty;)*) => {$(
        // SAFETY: the unit that is pointed at gives the guarantees.
        unsafe impl<U: Unit + ?Sized $($bounds)*> Unit for $pointer {
            fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
                (**self).submit(commands)
            }
            fn completed(&self) -> Result<Ticket, QueueError> {
                (**self).completed()
            }
            fn completed_by_turn(&self, turns: u32) -> Result<Ticket, QueueError> {
                (**self).completed_by_turn(turns)
            }
            fn answers(&self, device: DeviceId) -> bool {
                (**self).answers(device)
            }
            fn granule(&self) -> u32 {
                (**self).granule()
            }
            fn forgets_all(&self) -> bool {
                (**self).forgets_all()
            }
            fn is_crowded(&self) -> bool {
                (**self).is_crowded()
            }
            fn ahead(&self) -> u64 {
                (**self).ahead()
            }
        }
    )*};
}
units_behind_pointers! {
    () &U;
    () Box<U>;
    (+ Send) Arc<U>;
}
