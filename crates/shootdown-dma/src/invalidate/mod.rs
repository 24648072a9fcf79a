//! When has everyone forgotten it? Commands to IOMMUs, and knowing when they are done.
//!
//! # The problem
//! An entry of an I/O page table was cleared. The IOMMU may still have it in its IOTLB, what led to
//! it in its walk caches, and a device may have it in a cache of its own (ATC). They forget when
//! they are told, by commands in a queue in memory, some time after; and until they have, neither
//! the page nor the address may be anybody else's. Telling costs several hundred nanoseconds (690
//! on VT-d: rIOMMU, ASPLOS'15, table 1), so nobody wants to wait for each.
//!
//! # The parts
//! | file | does |
//! |---|---|
//! | [`engine`] | one per domain: collects what was unmapped, tells all units, knows what is complete |
//! | [`promotion`] | what to tell: pages, covering blocks, the whole domain, or everything |
//! | [`cover`] | aligned power-of-two blocks around a range |
//! | [`vtd`], [`smmu`], [`amd`] | descriptors of Intel VT-d, Arm SMMUv3 and AMD-Vi, as pure functions |
//! | [`queue`] | the rings in which units take their commands, and what is done when one stands still |
//! | [`model`] | an IOMMU in software that is as hostile as the manuals allow |
//!
//! The engine knows a unit by the trait [`Unit`] alone.
//!
//! # What is promised
//! - **I1** A [`Token`] that [is complete](Engine::is_complete): no cache of any unit of the
//!   domain, nor of any device in it, holds what was cleared before the token was taken, and
//!   accesses that began through it have ended.
//! - **I4** The token is taken after the entry was cleared, and the commands that complete it are
//!   submitted after the token was taken.
//! - **I5** Nothing is left out because "it is pending already", unless it is pending in a batch
//!   that has not been submitted.
//! - **I6** A device is told after the IOMMU has forgotten, or it would ask again and get the old
//!   answer.
//! - **I7** What is told covers what was noted, on every unit of the domain.
//! - **I9** What a unit loses by an error is submitted again, or never becomes complete.
//! - **I13** Nobody waits with a lock held; nothing on the way to completion allocates, or needs
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

/// What an IOMMU is told to forget. Ranges are in pages of the domain's granule
/// ([`Unit::granule`]). Each unit encodes it in its own format, in one or several descriptors; it
/// may forget more than it is told to, never less.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Command {
    /// Translations of these pages. `leaf_only`: no table page goes away, or has come, so that what
    /// is cached of the walk may stay.
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
    /// All translations of all domains. Only for a unit that [can be told](Unit::forgets_all).
    All,
    /// A device's own cache of translations (ATC): these pages, or all. It is told after the IOMMU
    /// itself has forgotten them, or it would ask and get the old answer again.
    Device {
        /// Which device.
        device: DeviceId,
        /// Which pages; `None`: all.
        range: Option<IovaRange>,
    },
    /// What is cached of a device's configuration (context entry, STE and CD, DTE).
    Config {
        /// Which device.
        device: DeviceId,
        /// The domain that the entry named before the change: VT-d finds what it has cached by
        /// both.
        domain: DomainId,
    },
}

impl Command {
    /// Does it tell a device, and not the IOMMU?
    #[must_use]
    pub const fn is_for_device(&self) -> bool {
        matches!(self, Self::Device { .. })
    }
}

/// A moment in the work of one IOMMU: all that was submitted before it, and the submission that
/// returned it. Grows and never wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

/// Why an IOMMU could not be told, or can't be relied on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum QueueError {
    /// There is no room; what was asked for has not been submitted. Poll, or wait, and submit
    /// again.
    Full,
    /// A device did not answer in time. What was in the queue is submitted again, without it if
    /// that was once too often; nothing that it may have cached is reused then until it was
    /// reset or removed, and taken out of its domain ([`Unit::answers`]).
    DeviceTimeout,
    /// The IOMMU refused a descriptor. What had not completed is submitted again.
    Refused,
    /// The IOMMU does not make progress.
    Stuck,
    /// The device is listed in another domain, or the token is another one's. Nothing has changed.
    NotListed,
    /// The caller's `relax` has given up. What it waited for goes on, and may complete later.
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
    /// Is there no use in waiting any longer?
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
///    taken effect: no cache of the unit (or of a device that was told, and
///    [answers](Self::answers)) holds what it was told to forget if the page tables did not hold it
///    when it was submitted, and accesses that began through it have ended.
/// 2. A [`Command::Device`] takes effect after all commands for the IOMMU in the same submission,
///    and in every submission that returned before (I6).
/// 3. Tickets and completions never go backwards: what `submit` returns is above what every
///    submission that had returned before got.
pub unsafe trait Unit: Sync {
    /// Tells it all of `commands`, in an order that respects devices' caches, and returns the
    /// ticket that covers them. Never waits; may be called from interrupts, also such as
    /// interrupt another submission. What was stored to page tables before is visible to the
    /// unit when it takes a command. Takes at least [`BATCH`] commands when it is empty.
    ///
    /// # Errors
    /// [`QueueError::Full`], and what [`completed`](Self::completed) would have told: none of them
    /// was submitted.
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError>;

    /// The last ticket that is complete. Never waits, may be called from interrupts; sees to errors
    /// of the queue that it finds.
    ///
    /// # Errors
    /// See [`QueueError`]. Each is told once, to whoever asks first, but [`QueueError::Stuck`],
    /// which lasts; the next call tells of progress.
    fn completed(&self) -> Result<Ticket, QueueError>;

    /// The same for who asks in a loop, and has got the same answer so many `turns` in a row. Where
    /// many wait, what one of them writes or locks is in the way of the others: errors need not
    /// be looked for in each turn.
    ///
    /// # Errors
    /// As [`completed`](Self::completed).
    fn completed_by_turn(&self, turns: u32) -> Result<Ticket, QueueError> {
        let _ = turns;
        self.completed()
    }

    /// Can this device be relied on to forget? Not if it has left invalidations unanswered. Then
    /// tickets complete without it, so that others' work goes on; and a domain that it is in
    /// takes nothing for complete until it was reset or removed. To be asked *after*
    /// [`completed`](Self::completed).
    ///
    /// If the answer becomes `true` again (a queue's [`revive`](queue::Queue::revive)), it holds of
    /// what is submitted from then on. What was submitted before may complete without the
    /// device; so the host lets it have a cache again only when an invalidation of its domain
    /// that began after is complete.
    fn answers(&self, device: DeviceId) -> bool {
        let _ = device;
        true
    }

    /// The logarithm of the bytes of a page, as it counts in [commands](Command): that of the
    /// tables which it walks. 12, unless it says otherwise.
    fn granule(&self) -> u32 {
        12
    }

    /// Can it be told [`Command::All`]?
    fn forgets_all(&self) -> bool {
        false
    }

    /// Is the queue more than half full? A hint: fewer and coarser commands are better then.
    fn is_crowded(&self) -> bool {
        false
    }

    /// How many commands are before one that would be submitted now. A hint, as the other.
    fn ahead(&self) -> u64 {
        0
    }
}

macro_rules! units_behind_pointers {
    ($($(#[$doc:meta])* ($($bounds:tt)*) $pointer:ty;)*) => {$(
        // SAFETY: the promises are those of the unit that is pointed at.
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
