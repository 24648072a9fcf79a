//! A queue that can be replaced: what a host does when the library says that a unit is stuck.
//!
//! A [`Queue`] that is stuck stays so, as it can't know what became of what it held. The host resets the unit, which forgets
//! everything; so everything that was submitted before counts as complete, and a new queue begins. Domains keep the tickets that
//! they have: those of a queue are counted on from the last one of the queue before.

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::boxed::Box;
use shootdown_dma::DeviceId;
use shootdown_dma::invalidate::queue::{Format, Queue};
use shootdown_dma::invalidate::{Command, QueueError, Ticket, Unit};
use spin::RwLock;

use super::marred::Marred;
use super::registers::Registers;

/// The queue of now, and the last ticket of those before it.
struct Current<F> {
    queue: Box<Queue<Registers, Marred<F>>>,
    before: u64,
}

/// See the [module](self).
pub struct Renewable<F> {
    /// Written while the unit is reset. Who submits or asks meanwhile waits for that, and nobody does so in a handler.
    current: RwLock<Current<F>>,
    /// The last ticket that was handed out.
    last: AtomicU64,
}

impl<F: Format> Renewable<F> {
    /// The first queue on these registers, which is set up and empty.
    pub fn new(registers: Registers, format: F) -> Self {
        let current = Current { queue: Self::queue(registers, format), before: 0 };
        Self { current: RwLock::new(current), last: AtomicU64::new(0) }
    }

    fn queue(registers: Registers, format: F) -> Box<Queue<Registers, Marred<F>>> {
        Box::new(Queue::new(registers, Marred(format)).expect("a page has room for 256 slots"))
    }

    /// Resets the unit by `reset`, and begins anew.
    ///
    /// # Errors
    /// Those of `reset`. The old queue stays, and nothing may be expected of it.
    ///
    /// # Safety
    /// When `reset` has succeeded the unit, and the caches of devices behind it, have forgotten everything, accesses that went
    /// through it have ended, and its queue is empty, head and tail at slot 0.
    pub unsafe fn renew<E>(
        &self,
        registers: Registers,
        format: F,
        reset: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut current = self.current.write();
        reset()?;
        // The lock orders it after all submissions.
        let before = self.last.load(Ordering::Relaxed);
        *current = Current { queue: Self::queue(registers, format), before };
        Ok(())
    }

    /// A device that did not answer was reset: it is told again.
    pub fn revive(&self, device: DeviceId) -> bool {
        self.current.read().queue.revive(device).is_ok()
    }
}

// SAFETY: as the queue of now. Of those before it everything is complete (the contract of `renew`), and what their tickets say
// is below all that are handed out now. Nobody submits to one queue and gets a ticket of the next: the lock.
unsafe impl<F: Format + Send> Unit for Renewable<F> {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        let current = self.current.read();
        let Ticket(own) = current.queue.submit(commands)?;
        let ticket = current.before + own;
        self.last.fetch_max(ticket, Ordering::Relaxed);
        Ok(Ticket(ticket))
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        let current = self.current.read();
        current.queue.completed().map(|Ticket(own)| Ticket(current.before + own))
    }

    fn completed_by_turn(&self, turns: u32) -> Result<Ticket, QueueError> {
        let current = self.current.read();
        current.queue.completed_by_turn(turns).map(|Ticket(own)| Ticket(current.before + own))
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
}
