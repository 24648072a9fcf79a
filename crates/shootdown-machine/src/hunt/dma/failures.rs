//! What a driver does when the hardware does not do what it is told: `faults=`.

use std::cell::RefCell;

use shootdown_dma::invalidate::QueueError;
use shootdown_dma::{PhysAddr, UnmapError};

use super::config::Config;
use super::world::Kernel;
use crate::hunt::hw;
use crate::oracle::Invariant;

/// Memory that is unmapped and perhaps still in reach: its owner keeps it until a flush has
/// succeeded.
#[derive(Debug, Default)]
pub(super) struct Limbo(RefCell<Vec<(PhysAddr, u64)>>);

impl Config {
    /// Is this something that the library may tell of here?
    pub(super) fn may_fail(&self, error: QueueError) -> bool {
        self.faults != 0
            && matches!(error, QueueError::Full | QueueError::Refused | QueueError::DeviceTimeout)
    }
}

impl Kernel {
    /// Polling, or flushing, has come to this end.
    pub fn hear(&self, what: &str, outcome: Result<(), QueueError>) {
        match outcome {
            Err(error) if !self.config.may_fail(error) => {
                hw::violation(Invariant::ErrorsTotal, format!("{what} fails: {error}"))
            }
            Err(_) => hw::witness("error-told"),
            Ok(()) => {}
        }
    }

    /// Is it unmapped, and only not complete?
    pub fn is_incomplete(&self, error: UnmapError) -> bool {
        matches!(error, UnmapError::NotComplete(error) if self.config.may_fail(error))
    }

    /// Memory that must not be used for anything else yet.
    pub fn keep(&self, first: PhysAddr, pages: u64) {
        hw::witness("unmapped-incompletely");
        self.limbo.0.borrow_mut().push((first, pages));
    }

    /// All programs have ended: a device that does not answer is taken out, and nothing is out of
    /// use for its sake any more.
    pub fn recover(&self) {
        self.traveller.enter(|at| self.pull_if_silent(at));
        self.flush();
        for (first, pages) in self.limbo.0.take() {
            self.frames.give(first, pages);
        }
    }
}
