//! A queue that can be replaced: what becomes of it when its unit is reset.
//!
//! A [`Queue`] that is stuck stays so, as it can't know what became of what it held. The host
//! resets the unit, which forgets everything; so everything that was submitted before counts as
//! complete, and a new queue begins. Domains keep the tickets that they have: those of a queue are
//! counted on from the last one of the queue before.
//!
//! # Invariants
//! - I1: while a unit is reset nobody submits to it, nor asks it: the lock.
//! - I2: if the reset fails nothing completes any more: [`QueueError::Stuck`], until another one
//!   succeeds.
//!
//! # Who may call what
//! [`Unit`]'s operations hold the lock as readers, and never wait for one another. They wait while
//! the unit is being reset, which takes as long as [`Bus::relax`] grants; so a handler of
//! interrupts that calls them must not interrupt a reset on its own CPU.
//! [`renew`](crate::RemappingUnit::renew) waits for readers to leave no longer than the host wants
//! it to.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::queue::{Format, Port, Queue, ReviveError};
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use shootdown_dma::sync::AtomicU64;
use spin::{RwLock, RwLockWriteGuard};

use crate::bus::Bus;
use crate::error::Error;

/// The queue of now, and the last ticket of those before it.
struct Current<P, F> {
    queue: Box<Queue<P, F>>,
    before: u64,
    /// A reset has failed (I2).
    dead: bool,
}

/// See the [module](self).
pub struct Renewable<P, F> {
    current: RwLock<Current<P, F>>,
    /// The last ticket that was handed out.
    last: AtomicU64,
}

impl<P: Port, F: Format> Renewable<P, F> {
    /// The first queue on this port, which is set up and empty.
    pub(crate) fn new(port: P, format: F) -> Result<Self, Error> {
        let queue = Box::new(Queue::new(port, format)?);
        let current = RwLock::new(Current { queue, before: 0, dead: false });
        Ok(Self { current, last: AtomicU64::new(0) })
    }

    /// Resets the unit by `reset`, and begins anew.
    ///
    /// # Safety
    /// When `reset` has succeeded the unit, and the caches of devices behind it, have forgotten
    /// everything, accesses that went through it have ended, and its queue is empty, head and tail
    /// at slot 0. The port and the format are this unit's.
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

    /// With nobody at the queue.
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

    /// Does something while nobody is at the queue: what changes registers that the queue changes
    /// as well.
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

    /// Has a look at the unit's registers and its log, and sees to what it finds: see
    /// [`Queue::attend`]. To be called when the unit has interrupted.
    ///
    /// # Errors
    /// As [`Queue::attend`].
    pub fn attend(&self) -> Result<(), QueueError> {
        self.with(|queue, _| queue.attend())
    }

    /// A device that did not answer was reset, and is told again: see [`Queue::revive`].
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

// SAFETY: as the queue of now. Of those before it everything is complete (the contract of `renew`),
// and what their tickets say is below all that are handed out now. Nobody submits to one queue and
// gets a ticket of the next (I1).
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
