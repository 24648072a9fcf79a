//! Pinned tags: devices that walk a space's tables under its tag.
//!
//! # The problem
//! A device that shares a process's addresses (SVA) is given the tag once and keeps it. A rollover
//! must not take the tag away, and no flush may stay local to one CPU, because a device does not
//! switch spaces as a CPU does.
//!
//! # The protocol
//! [`AddressSpace::pin_tag`] gives the space a tag that it keeps, makes the device known, and
//! executes a fence; then the driver may give the tag to the device. From then on every flush of
//! the space is broadcast, whatever the strategy ([`residency`](crate::residency), P6). To end
//! this, the device first drops what it has cached. Then [`AddressSpace::unpin_tag`] broadcasts an
//! invalidation of the tag, which reaches the caches beside the device, and gives the tag back.
//! Only then may another space get it.
//!
//! An invalidation reaches the device where hardware broadcasts to it (Arm: an SMMU that takes part
//! in the CPUs' broadcasts). The driver invalidates a cache of the device's own (ATC), after the
//! flush.

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
    /// Invalidations are not broadcast by machine-wide tags, so they would not reach a device.
    NoBroadcast,
    /// There must be more tags than CPUs and pinned spaces together; with one more pin there would
    /// not be.
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
    /// Gives the space a tag that it keeps until it was unpinned as often as pinned. Returns the
    /// tag for user addresses, which the caller gives to a device. From now on every flush of the
    /// space is broadcast.
    ///
    /// Call it with interrupts off, and not in handlers that may interrupt a function of this
    /// library: they would wait for a lock that the interrupted function holds. Never in a
    /// non-maskable handler ([`context`](crate::context)).
    ///
    /// # Errors
    /// [`PinTagError::NoBroadcast`], [`PinTagError::NoPinLeft`].
    pub fn pin_tag(&self, pin: &P::Pin) -> Result<Tag, PinTagError> {
        let tags = P::tags().filter(|_| family::strategy::<P>().is_some());
        let tags = tags.ok_or(PinTagError::NoBroadcast)?;
        let wait = || {
            let _ = P::relax(pin);
        };
        // SAFETY: this call names the same CPUs as every other.
        match unsafe { tags.pin(self.space_tag(), &Everyone::<P>::new(), wait) } {
            Ok(tag) => {
                self.residency.pin();
                Ok(user_tag::<P>(tag))
            }
            Err(TagsError::NoPinLeft) => Err(PinTagError::NoPinLeft),
            Err(_) => Err(PinTagError::NoBroadcast),
        }
    }

    /// Takes one pin back. If it was the last, flushes of the space need not be broadcast from now
    /// on.
    ///
    /// Call it in the same contexts as [`pin_tag`](Self::pin_tag).
    ///
    /// # Safety
    /// The device that the pin was for makes no access and no walk under the tag any more, and has
    /// dropped what it had cached itself.
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
        // SAFETY: the device no longer uses the tag (this function's contract), and what was cached
        // beside it was invalidated above.
        unsafe { tags.unpin(self.space_tag(), wait) };
        Ok(())
    }
}
