//! Errors of a unit that were returned to a call which does not return them to the host.
//!
//! A unit returns an error once, to the next caller that asks for its progress. That caller may
//! only want to know whether a token is complete, or wait for one, or for a device to leave; it
//! goes on. The host must learn of the error nevertheless, so the caller records it here, and
//! [`poll`](super::Engine::poll) returns it.

use crate::sync::{AtomicU32, Ordering};

use super::QueueError;

/// The kinds of errors that a unit has returned and the host has not seen: a bit for each.
///
/// A bit, and no count: a host that polls seldom learns that the error has happened, and does not
/// get it again when it is long over. `Relaxed`: nothing else is read because of what is found
/// here.
#[derive(Debug)]
pub(super) struct Unheard(AtomicU32);

const REFUSED: u32 = 1;
const TIMEOUT: u32 = 2;

impl Unheard {
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Records an error, if it is one that a unit returns once.
    pub fn put(&self, error: QueueError) {
        let kind = match error {
            QueueError::Refused => REFUSED,
            QueueError::DeviceTimeout => TIMEOUT,
            // It lasts: the next caller gets it again.
            QueueError::Stuck => return,
            // Results that concern the caller's own request.
            QueueError::Full | QueueError::NotListed | QueueError::GaveUp => return,
        };
        self.0.fetch_or(kind, Ordering::Relaxed);
    }

    /// Takes one error out, which no other call gets then.
    pub fn take(&self) -> Option<QueueError> {
        let kinds = [(REFUSED, QueueError::Refused), (TIMEOUT, QueueError::DeviceTimeout)];
        // A plain read first: there is hardly ever an error.
        let mut found =
            kinds.into_iter().filter(|(kind, _)| self.0.load(Ordering::Relaxed) & kind != 0);
        found
            .find(|(kind, _)| self.0.fetch_and(!kind, Ordering::Relaxed) & kind != 0)
            .map(|(_, error)| error)
    }
}
