//! Pinned tags: devices that walk a space's tables under its tag.
//!
//! # The problem
//! A device that shares a process's addresses (SVA) is told the tag once and keeps it. No rollover
//! may take it away, and no flush may stay on one CPU: nobody switches a device.
//!
//! # The protocol
//! [`AddressSpace::pin_tag`] gives the space a tag that it keeps, makes the device known, and
//! fences; then the device may be told. From then on every flush of the space is broadcast,
//! whatever the strategy ([`residency`](crate::residency), P6). The other way round the device
//! forgets first; then [`AddressSpace::unpin_tag`] broadcasts an invalidation of the tag, which
//! reaches what caches beside the device, and gives it back. Only then may another space get it.
//!
//! What is invalidated reaches the device where hardware broadcasts to it (Arm: an SMMU that takes
//! part in the CPUs' broadcasts). A cache of the device's own (ATC) is invalidated by its driver,
//! after the flush.

use core::fmt;

use crate::base::ids::Tag;
use crate::ops::switch::Everyone;
use crate::port::family::{self, user_tag};
use crate::port::platform::Platform;
use crate::port::regime::{self, Invalidate, Reach};
use crate::state::space::AddressSpace;
use crate::tags::generations::TagsError;
use crate::tags::versioned::Versioned;

/// Why a tag could not be pinned, or unpinned. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PinTagError {
    /// Invalidations are not broadcast by machine-wide tags, so that a device would not learn of
    /// them.
    NoBroadcast,
    /// Tags must be more than CPUs and pinned spaces together, and would not be.
    NoPinLeft,
    /// The space is not pinned.
    NotPinned,
}

impl fmt::Display for PinTagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoBroadcast => {
                "flushes are not broadcast by machine-wide tags; give the device tables of its own, or a driver that invalidates for it"
            }
            Self::NoPinLeft => {
                "no tag can be pinned: the rest is needed for the CPUs; unpin another space"
            }
            Self::NotPinned => "the space has no pinned tag; unpin as often as it was pinned",
        })
    }
}

impl core::error::Error for PinTagError {}

impl<P: Platform> AddressSpace<P> {
    /// Gives the space a tag that it keeps until it was unpinned as often as pinned, and returns
    /// the one for user addresses, to be given to a device. From now on every flush of the space is
    /// broadcast.
    ///
    /// Call it with interrupts off, and not in handlers that may interrupt a function of this
    /// library, which would wait for the lock of what they interrupt. Never in a non-maskable
    /// handler ([`context`](crate::context)).
    ///
    /// # Errors
    /// [`PinTagError::NoBroadcast`], [`PinTagError::NoPinLeft`].
    pub fn pin_tag(&self, pin: &P::Pin) -> Result<Tag, PinTagError> {
        let tags = P::tags().filter(|_| family::strategy::<P>().is_some());
        let tags = tags.ok_or(PinTagError::NoBroadcast)?;
        let wait = || {
            let _ = P::relax(pin);
        };
        // SAFETY: the library's CPUs, in this call as in all.
        match unsafe { tags.pin(self.space_tag(), &Everyone::<P>::new(), wait) } {
            Ok(tag) => {
                self.residency.pin();
                Ok(user_tag::<P>(tag))
            }
            Err(TagsError::NoPinLeft) => Err(PinTagError::NoPinLeft),
            Err(_) => Err(PinTagError::NoBroadcast),
        }
    }

    /// Takes one pin back. From now on flushes of the space need not be broadcast, if it was the
    /// last.
    ///
    /// Call it as [`pin_tag`](Self::pin_tag).
    ///
    /// # Safety
    /// The device that the pin was for makes no access and no walk under the tag any more, and has
    /// forgotten what it had cached itself.
    ///
    /// # Errors
    /// [`PinTagError::NotPinned`].
    pub unsafe fn unpin_tag(&self, pin: &P::Pin) -> Result<(), PinTagError> {
        let tags = P::tags().filter(|_| self.residency.is_pinned());
        let (Some(tags), Some(tag)) = (tags, self.tag()) else {
            return Err(PinTagError::NotPinned);
        };
        let user = user_tag::<P>(tag);
        regime::invalidate::<P::Regime>(Invalidate::Tag(tag), Reach::Broadcast);
        if user != tag {
            regime::invalidate::<P::Regime>(Invalidate::Tag(user), Reach::Broadcast);
        }
        regime::sync_everywhere::<P::Regime>(Invalidate::Tag(user));
        if !self.residency.unpin() {
            return Err(PinTagError::NotPinned);
        }
        let wait = || {
            let _ = P::relax(pin);
        };
        // SAFETY: the device has done (this function's contract), and what was cached beside it is
        // gone.
        unsafe { tags.unpin(self.space_tag(), wait) };
        Ok(())
    }
}
