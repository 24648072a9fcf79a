//! Unmapping where nobody may wait, and knowing later that no device reaches the memory.
//!
//! # The problem
//! A driver that decides on what it reads has to know that the device is out. Unmapping under
//! [`Policy::Strict`] waits for that, which is not for interrupt handlers, nor for anyone else
//! whose interrupts are off: there it ends with [`UnmapError::NotComplete`], always, and nothing
//! says when it is complete.
//!
//! # The protocol
//! [`Domain::lazy_unmap`] unmaps and tells the units, and returns what is awaited. Who is where
//! waiting is allowed waits for it ([`Domain::finish`]); who never is asks
//! ([`Domain::has_forgotten`]), from a timer, or when the IOMMU has interrupted. It ends if
//! [`poll`](Domain::poll) is called now and then. Addresses and references that the domain holds
//! come back by themselves, as under the other policies.

use super::{Domain, Host, Mapping, Policy, Reach, UnmapError};
use crate::addr::IovaRange;
use crate::invalidate::{QueueError, Token};

/// Memory that is unmapped, and that devices may reach still.
#[must_use = "the memory is not to be used for anything else before devices are out"]
#[derive(PartialEq, Eq, Debug)]
pub struct Pending {
    token: Token,
    reach: Reach,
}

impl<H: Host> Domain<H> {
    /// Unmaps, tells the units, and does not wait: for where a driver needs [`Policy::Strict`] and
    /// must not wait. (It waits only where too much is deferred already, and [`Host::relax`] lets
    /// it.)
    ///
    /// # Errors
    /// See [`UnmapError`], and the mapping: nothing has changed. It is never
    /// [`UnmapError::NotComplete`].
    pub fn lazy_unmap(&self, mapping: Mapping) -> Result<Pending, (UnmapError, Option<Mapping>)> {
        // What the domain holds itself is deferred in any case. Who unmaps hears when it is over.
        let policy = if self.config().holds { Policy::Deferred } else { Policy::Lazy };
        let (at, bytes) = (mapping.addr(), mapping.bytes());
        let reach = match self.unmap_if(self.is_ours(&mapping), policy, mapping) {
            Ok(reach) => reach,
            // There was no room, and nobody may wait: it is kept until it is complete.
            Err((UnmapError::NotComplete(_), _)) => Reach::Ended,
            Err(error) => return Err(error),
        };
        let range = Self::pages_of(at.0, bytes).and_then(|(first, n)| IovaRange::new(first, n));
        let token = match range.filter(|_| reach != Reach::Window) {
            // After the entries were cleared, so that it covers them.
            Some(range) => self.engine.note(self.near_cpu(), range, true),
            None => Token::DONE,
        };
        self.engine.submit(token);
        Ok(Pending { token, reach })
    }

    /// Do devices reach it no more (but for what others have mapped, see [`finish`](Self::finish))?
    /// Never waits, and may be called from interrupts.
    #[must_use]
    pub fn has_forgotten(&self, pending: &Pending) -> bool {
        self.engine.is_complete(pending.token)
    }

    /// Waits until devices reach it no more, but for what others have mapped: that is what this
    /// returns.
    ///
    /// # Errors
    /// See [`QueueError`], and what is awaited: it is not complete. [`QueueError::NotListed`]: it
    /// was unmapped in another domain.
    pub fn finish(&self, pending: Pending) -> Result<Reach, (QueueError, Pending)> {
        match self.wait(pending.token) {
            Ok(()) => Ok(pending.reach),
            Err(error) => Err((error, pending)),
        }
    }
}
