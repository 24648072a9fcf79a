//! A queue that is replaced when its unit is reset.
//!
//! A [`Queue`] that is stuck stays stuck, since it can't know which of its commands were executed.
//! The host resets the unit, which invalidates everything. So everything that was submitted before
//! counts as complete, and a new queue begins. Domains keep their tickets: the tickets of a queue
//! continue from the last one of the queue before.
//!
//! # Invariants
//! - I1: while a unit is reset no CPU submits to it, nor asks it: the lock.
//! - I2: if the reset fails nothing completes any more: [`QueueError::Stuck`], until another one
//!   succeeds.
//!
//! # Which calls wait
//! [`Unit`]'s operations hold the lock as readers, and never wait for one another. They wait while
//! the unit is being reset, which takes as long as [`Bus::relax`] grants. So an interrupt handler
//! that calls them must not interrupt a reset on its own CPU.
//! [`renew`](crate::RemappingUnit::renew) waits for readers to leave, at most as long as the host
//! grants.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::queue::{Format, Port, Queue, ReviveError};
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma::sync::AtomicU64;
use spin::{RwLock, RwLockWriteGuard};

use crate::bus::Bus;
use crate::error::Error;

/// The current queue, and the last ticket of those before it.
struct Current<P, F> {
    queue: Box<Queue<P, F>>,
    before: u64,
    /// A reset has failed (I2).
    dead: bool,
}

/// A queue that is replaced when its unit is reset; see the [module](self).
pub struct Renewable<P, F> {
    current: RwLock<Current<P, F>>,
    /// The last ticket that was handed out.
    last: AtomicU64,
}

impl<P: Port, F: Format> Renewable<P, F> {
    /// Makes the first queue on this port, which is set up and empty.
    pub(crate) fn new(port: P, format: F) -> Result<Self, Error> {
        let queue = Box::new(Queue::new(port, format)?);
        let current = RwLock::new(Current { queue, before: 0, dead: false });
        Ok(Self { current, last: AtomicU64::new(0) })
    }

    /// Resets the unit by `reset`, and begins a new queue.
    ///
    /// # Safety
    /// When `reset` has succeeded the unit, and the caches of devices behind it, have invalidated
    /// everything, accesses that went through them have ended, and the queue is empty, head and
    /// tail at slot 0. The port and the format are this unit's.
    pub(crate) unsafe fn renew<B: Bus>(
        &self,
        bus: &B,
        port: P,
        format: F,
        reset: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut current = self.alone(bus)?;
        current.dead = true; // [I2]
        reset()?;
        let queue = Box::new(Queue::new(port, format)?);
        // The lock orders it after all submissions.
        let before = self.last.load(Ordering::Relaxed);
        *current = Current { queue, before, dead: false };
        Ok(())
    }

    /// Takes the lock with no reader left.
    fn alone<B: Bus>(&self, bus: &B) -> Result<RwLockWriteGuard<'_, Current<P, F>>, Error> {
        let mut turn = 0;
        loop {
            match self.current.try_write() {
                Some(current) => return Ok(current),
                None if bus.relax(turn) => turn += 1,
                None => return Err(Error::Busy),
            }
        }
    }

    /// Calls `f` while no other CPU uses the queue: for changes of registers that the queue changes
    /// too.
    pub(crate) fn paused<B: Bus, R>(
        &self,
        bus: &B,
        f: impl FnOnce() -> Result<R, Error>,
    ) -> Result<R, Error> {
        let _current = self.alone(bus)?;
        f()
    }

    fn with<R>(
        &self,
        f: impl FnOnce(&Queue<P, F>, u64) -> Result<R, QueueError>,
    ) -> Result<R, QueueError> {
        let current = self.current.read(); // [I1]
        if current.dead {
            return Err(QueueError::Stuck);
        }
        f(&current.queue, current.before)
    }

    /// Reads the unit's registers and its log, and handles what it finds: see [`Queue::attend`].
    /// Call it when the unit has interrupted.
    ///
    /// # Errors
    /// As [`Queue::attend`].
    pub fn attend(&self) -> Result<(), QueueError> {
        self.with(|queue, _| queue.attend())
    }

    /// A device that did not acknowledge was reset, and gets commands again: see [`Queue::revive`].
    ///
    /// # Errors
    /// As [`Queue::revive`].
    pub fn revive(&self, device: DeviceId) -> Result<(), ReviveError> {
        self.current.read().queue.revive(device)
    }

    /// The same for all devices: see [`Queue::revive_all`].
    ///
    /// # Errors
    /// As [`Queue::revive_all`].
    pub fn revive_all(&self) -> Result<(), ReviveError> {
        self.current.read().queue.revive_all()
    }
}

// SAFETY: as the current queue. Everything of the queues before it is complete (the contract of
// `renew`), and their tickets are below all that are handed out now. No CPU submits to one queue
// and gets a ticket of the next (I1).
unsafe impl<P: Port, F: Format> Unit for Renewable<P, F>
where
    P: Send,
    F: Send,
{
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        self.with(|queue, before| {
            let Ticket(own) = queue.submit(commands)?;
            let ticket = before + own;
            self.last.fetch_max(ticket, Ordering::Relaxed);
            Ok(Ticket(ticket))
        })
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        self.with(|queue, before| queue.completed().map(|Ticket(own)| Ticket(before + own)))
    }

    fn completed_by_turn(&self, turns: u32) -> Result<Ticket, QueueError> {
        self.with(|queue, before| {
            queue.completed_by_turn(turns).map(|Ticket(own)| Ticket(before + own))
        })
    }

    fn answers(&self, device: DeviceId) -> bool {
        self.current.read().queue.answers(device)
    }

    fn granule(&self) -> u32 {
        self.current.read().queue.granule()
    }

    fn forgets_all(&self) -> bool {
        self.current.read().queue.forgets_all()
    }

    fn is_crowded(&self) -> bool {
        self.current.read().queue.is_crowded()
    }

    fn ahead(&self) -> u64 {
        self.current.read().queue.ahead()
    }
}
