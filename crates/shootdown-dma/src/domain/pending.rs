//! Unmapping where the caller must not wait, with a token to ask about later.
//!
//! # The problem
//! A driver that takes decisions on what it reads must know that the device has no more access.
//! Unmapping under [`Policy::Strict`] waits for that. An interrupt handler, and any other caller
//! with its interrupts off, can't wait: there the call always ends with
//! [`UnmapError::NotComplete`], and the caller does not learn when the invalidation is complete.
//!
//! # The protocol
//! [`Domain::lazy_unmap`] unmaps, submits the invalidation, and returns a [`Pending`]. A caller
//! that may wait later calls [`Domain::finish`]. A caller that may never wait asks
//! [`Domain::has_forgotten`] from a timer, or when the IOMMU has interrupted. The invalidation
//! completes if [`poll`](Domain::poll) is called now and then. The domain gives back addresses and
//! references that it holds itself, as under the other policies.

use super::{Domain, Host, Mapping, Policy, Reach, UnmapError};
use crate::addr::IovaRange;
use crate::invalidate::{QueueError, Token};

/// Memory that is unmapped, and that devices may still reach.
#[must_use = "the memory is not to be used for anything else before devices are out"]
#[derive(PartialEq, Eq, Debug)]
pub struct Pending {
    token: Token,
    reach: Reach,
}

impl<H: Host> Domain<H> {
    /// Unmaps, submits the invalidation, and does not wait. For drivers that need
    /// [`Policy::Strict`] and must not wait. (It waits only where too much is deferred already, and
    /// [`Host::relax`] allows it.)
    ///
    /// # Errors
    /// See [`UnmapError`], and the mapping: nothing has changed. It is never
    /// [`UnmapError::NotComplete`].
    pub fn lazy_unmap(&self, mapping: Mapping) -> Result<Pending, (UnmapError, Option<Mapping>)> {
        // What the domain holds itself is deferred in any case; the caller learns from the
        // [`Pending`] when the invalidation is complete.
        let policy = if self.config().holds { Policy::Deferred } else { Policy::Lazy };
        let (at, bytes) = (mapping.addr(), mapping.bytes());
        let reach = match self.unmap_if(self.is_ours(&mapping), policy, mapping) {
            Ok(reach) => reach,
            // There was no room and the caller must not wait: the domain keeps it until it is
            // complete.
            Err((UnmapError::NotComplete(_), _)) => Reach::Ended,
            Err(error) => return Err(error),
        };
        let range = Self::pages_of(at.0, bytes).and_then(|(first, n)| IovaRange::new(first, n));
        let token = match range.filter(|_| reach != Reach::Window) {
            // Noted after the entries were cleared, so the token covers them.
            Some(range) => self.engine.note(self.near_cpu(), range, true),
            None => Token::DONE,
        };
        self.engine.submit(token);
        Ok(Pending { token, reach })
    }

    /// Whether devices reach the memory no more (except through other callers' mappings of it, see
    /// [`finish`](Self::finish)). Never waits, and may be called from interrupts.
    #[must_use]
    pub fn has_forgotten(&self, pending: &Pending) -> bool {
        self.engine.is_complete(pending.token)
    }

    /// Waits until devices reach the memory no more. The returned value says whether other callers'
    /// mappings of it remain.
    ///
    /// # Errors
    /// See [`QueueError`], and the `Pending`: the invalidation is not complete.
    /// [`QueueError::NotListed`]: the memory was unmapped in another domain.
    pub fn finish(&self, pending: Pending) -> Result<Reach, (QueueError, Pending)> {
        match self.wait(pending.token) {
            Ok(()) => Ok(pending.reach),
            Err(error) => Err((error, pending)),
        }
    }
}
