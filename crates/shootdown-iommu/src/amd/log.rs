//! AMD-Vi's event log: read by whoever wants to know of faults, and looked through by the library's
//! queue for devices that do not answer.
//!
//! The queue believes a completion only when it has looked through what was logged before
//! (`Port::drain_events`), so that it must see each timeout once. It looks and takes nothing out;
//! faults are taken out by `Log::next`, which therefore does not go beyond what the queue has
//! looked at, unless it is no timeout.
//!
//! # Positions
//! `head` (register) <= `looked` <= `tail` (register), around the ring. The unit writes at `tail`
//! alone.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | L1 an event's first word read | Acquire, behind the read of the tail's register | the unit's store | the event is there before the tail |
//! | L2 `looked` moved on by compare-and-swap | AcqRel | itself | one of drain and next passes an event; a drain that has failed looks again |

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use shootdown_dma::sync::{AtomicU64, fence};
use shootdown_dma::{DeviceId, PhysAddr};

use crate::bus::{Bus, Register, wait};
use crate::error::{Error, Step};
use crate::memory::{Memory, Pages};
use crate::ring::Timeouts;

use super::fault::{EVENT, EventLow, Kind, Record};
use super::registers::{Control, EventHead, EventLog, EventTail, Status};

/// Some units move the tail before the event is there (Linux looks again as well): so often the
/// event is looked for.
const GLANCES: usize = 1000;

/// The log. A copy is the same log.
#[derive(Clone, Debug)]
pub struct Log<B, M> {
    bus: B,
    memory: M,
    events: PhysAddr,
    count: usize,
    looked: Arc<AtomicU64>,
}

impl<B: Bus, M: Memory> Log<B, M> {
    /// The log in these pages, all of them, which are zero, and stay allocated as long as this is
    /// used.
    pub(super) fn new(bus: B, memory: M, pages: &Pages<M>) -> Self {
        let count = pages.words().len() * 8 / EVENT;
        let looked = Arc::new(AtomicU64::new(0));
        Self { bus, memory, events: pages.address(), count, looked }
    }

    /// Tells the unit where it is: empty, and off.
    pub(super) fn place(&self) {
        EventLog::new()
            .with_page(self.events.0 >> 12)
            .with_length(self.count.ilog2())
            .write(&self.bus);
        EventHead::new().write(&self.bus);
        EventTail::new().write(&self.bus);
        self.looked.store(0, Ordering::Release);
    }

    fn words(&self, entry: u64) -> &[AtomicU64] {
        // SAFETY: the log, which stays allocated while this is used (`new`).
        let words = unsafe { self.memory.words(self.events, self.count * EVENT / 8) };
        let at = entry as usize % self.count * 2;
        &words[at..at + 2]
    }

    const fn after(&self, entry: u64) -> u64 {
        (entry + 1) % self.count as u64
    }

    fn tail(&self) -> u64 {
        let tail = EventTail::read(&self.bus).entry();
        // ORDERING: [L1] a register is no atomic; its partner is the unit, which has written events
        // before it moved the tail.
        fence(Ordering::Acquire);
        tail % self.count as u64
    }

    /// The first word of an event that the tail says is there; `None`: it is not there yet.
    fn arrived(&self, entry: u64) -> Option<u64> {
        let word = &self.words(entry)[0];
        (0..GLANCES).find_map(|_| Some(word.load(Ordering::Acquire)).filter(|low| *low != 0)) // [L1]
    }

    /// Takes the oldest event out. `see_to_timeouts` makes the library's queue look through the
    /// log.
    pub(super) fn next(&self, see_to_timeouts: impl FnOnce()) -> Option<Record> {
        let head = EventHead::read(&self.bus).entry() % self.count as u64;
        if head == self.tail() {
            return None;
        }
        let low = self.arrived(head)?;
        let is_timeout = Kind::of(EventLow::from_bits(low).code()) == Kind::InvalidationTimeout;
        let looked = || self.looked.load(Ordering::Acquire);
        if looked() == head {
            if is_timeout {
                see_to_timeouts();
            } else {
                let next = self.after(head);
                // Whoever fails here has been overtaken by the queue.
                let _ =
                    self.looked.compare_exchange(head, next, Ordering::AcqRel, Ordering::Acquire); // [L2]
            }
        }
        if looked() == head {
            return None; // Somebody else is at the queue: they will see it.
        }
        let words = self.words(head);
        let record = Record::decode(low, words[1].load(Ordering::Relaxed));
        words[0].store(0, Ordering::Relaxed);
        self.bus.barrier();
        EventHead::new().with_entry(self.after(head)).write(&self.bus);
        Some(record)
    }

    /// An event was lost, and none is logged any more: the log begins again if all was taken out.
    /// AMD-Vi 2.5: "EventLogEn must be cleared and set".
    pub(super) fn restart(&self) -> Result<bool, Error> {
        let (head, status) = (EventHead::read(&self.bus).entry(), Status::read(&self.bus));
        if !status.event_overflow() || head % self.count as u64 != self.tail() {
            return Ok(false);
        }
        let control = Control::read(&self.bus);
        control.with_events(false).write(&self.bus);
        wait(&self.bus, Step::Events, || !Status::read(&self.bus).events_run())?;
        self.place();
        Status::new().with_event_overflow(true).write(&self.bus);
        control.with_events(true).write(&self.bus);
        wait(&self.bus, Step::Events, || Status::read(&self.bus).events_run())?;
        Ok(true)
    }
}

impl<B: Bus + Send, M: Memory + Send> Timeouts for Log<B, M> {
    fn drain(&self, timed_out: &mut dyn FnMut(DeviceId)) {
        let tail = self.tail();
        loop {
            let at = self.looked.load(Ordering::Acquire);
            if at == tail {
                return;
            }
            // What is not there yet is looked for with the next completion.
            let Some(low) = self.arrived(at) else { return };
            let moved = self.looked.compare_exchange(
                at,
                self.after(at),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            let low = EventLow::from_bits(low);
            if moved.is_ok() && Kind::of(low.code()) == Kind::InvalidationTimeout {
                timed_out(DeviceId(low.device().into()));
            }
        }
    }
}
