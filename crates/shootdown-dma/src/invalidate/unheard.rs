//! Errors that a unit told somebody who had no use for them.
//!
//! A unit tells of an error once, to whoever asks next how far it is. That may be somebody who
//! wants to know whether a token is complete, or waits for one, or for a device to leave: it goes
//! on. The host is to hear of it nevertheless, so the error is put down here, and
//! [`poll`](super::Engine::poll) tells it.

use crate::sync::{AtomicU32, Ordering};

use super::QueueError;

/// Kinds of errors that a unit has told of and the host has not heard of: a bit for each.
///
/// A bit, and no count: who polls seldom hears that it has happened, and does not go on hearing of
/// it when it is long over. `Relaxed`: nobody reads anything because of what it finds here.
#[derive(Debug)]
pub(super) struct Unheard(AtomicU32);

const REFUSED: u32 = 1;
const TIMEOUT: u32 = 2;

impl Unheard {
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Puts an error down, if it is one that is told once.
    pub fn put(&self, error: QueueError) {
        let kind = match error {
            QueueError::Refused => REFUSED,
            QueueError::DeviceTimeout => TIMEOUT,
            // It lasts: who asks is told again.
            QueueError::Stuck => return,
            // Answers to who has asked for something.
            QueueError::Full | QueueError::NotListed | QueueError::GaveUp => return,
        };
        self.0.fetch_or(kind, Ordering::Relaxed);
    }

    /// Takes one out, which nobody else is told then.
    pub fn take(&self) -> Option<QueueError> {
        let kinds = [(REFUSED, QueueError::Refused), (TIMEOUT, QueueError::DeviceTimeout)];
        // A look first: there is hardly ever anything.
        let mut found =
            kinds.into_iter().filter(|(kind, _)| self.0.load(Ordering::Relaxed) & kind != 0);
        found
            .find(|(kind, _)| self.0.fetch_and(!kind, Ordering::Relaxed) & kind != 0)
            .map(|(_, error)| error)
    }
}
