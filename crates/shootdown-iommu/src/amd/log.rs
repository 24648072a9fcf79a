//! AMD-Vi's event log: the host takes faults out of it, and the library's queue searches it for
//! devices that do not acknowledge.
//!
//! The queue uses a completion only when it has searched what was logged before
//! (`Port::drain_events`), so it must see each timeout once. It searches and takes nothing out.
//! `Log::next` takes faults out, and therefore does not go beyond what the queue has searched,
//! unless the event is no timeout.
//!
//! # Positions
//! `head` (register) <= `looked` <= `tail` (register), around the ring; `looked` counts events from
//! the beginning and never wraps, so a value of a round ago is recognized. The unit writes only at
//! `tail`. An entry that was taken out is zero before `head` passes it.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | L1 an event's first word read | Acquire, behind the tail's register | the unit's store | the event is there before the tail |
//! | L2 `looked` moved on by compare-and-swap | AcqRel | itself | either drain or next passes an event, not both; a CPU whose compare-and-swap fails looks again |

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
        // At entry 0 again. No other CPU drains: the log is new, or the queue is paused.
        let looked = self.looked.load(Ordering::Relaxed);
        let count = self.count as u64;
        self.looked.store(looked.next_multiple_of(count), Ordering::Release);
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
        let looked = self.looked.load(Ordering::Acquire);
        let low = self.arrived(head)?;
        let is_timeout = Kind::of(EventLow::from_bits(low).code()) == Kind::InvalidationTimeout;
        let is_next = |looked: u64| looked % self.count as u64 == head;
        if is_next(looked) {
            if is_timeout {
                see_to_timeouts();
            } else {
                // [L2] A failure means that the queue has been faster.
                let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
                let _ = self.looked.compare_exchange(looked, looked + 1, order, failed);
            }
        }
        if is_next(self.looked.load(Ordering::Acquire)) {
            return None; // Another CPU uses the queue: it will see the event.
        }
        let words = self.words(head);
        let record = Record::decode(low, words[1].load(Ordering::Relaxed));
        words[0].store(0, Ordering::Relaxed);
        self.bus.barrier();
        EventHead::new().with_entry(self.after(head)).write(&self.bus);
        Some(record)
    }

    /// An event was lost, and none is logged any more: the log begins again if all was taken out,
    /// when EventLogEn is cleared and set (AMD-Vi 2.5).
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
        // The tail first: `looked` may pass it meanwhile, and then what is behind is zero.
        let tail = self.tail();
        let count = self.count as u64;
        let mut at = self.looked.load(Ordering::Acquire);
        let end = at + (tail + count - at % count) % count;
        while at < end {
            let low = self.arrived(at);
            let now = match low {
                Some(_) => {
                    let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
                    self.looked.compare_exchange(at, at + 1, order, failed) // [L2]
                }
                None => Err(self.looked.load(Ordering::Acquire)),
            };
            at = match (now, low) {
                (Ok(_), Some(low)) => {
                    let low = EventLow::from_bits(low);
                    if Kind::of(low.code()) == Kind::InvalidationTimeout {
                        timed_out(DeviceId(low.device().into()));
                    }
                    at + 1
                }
                // It was no timeout, or it would not have been passed.
                (Err(now), _) if now != at => now,
                // What is not there yet is looked for with the next completion.
                _ => return,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;
    use std::boxed::Box;
    use std::sync::Mutex;
    use std::thread;
    use std::vec::Vec;

    use super::*;

    const COUNT: usize = 256;

    /// Both registers of the log.
    #[derive(Default)]
    struct Registers {
        head: AtomicU64,
        tail: AtomicU64,
    }

    // SAFETY: each access is one of an atomic; SeqCst orders memory as well.
    unsafe impl Bus for &'static Registers {
        fn read32(&self, _: usize) -> u32 {
            unreachable!("registers of 64 bits")
        }
        fn write32(&self, _: usize, _: u32) {
            unreachable!("registers of 64 bits")
        }
        fn read64(&self, offset: usize) -> u64 {
            match offset {
                EventHead::OFFSET => self.head.load(Ordering::SeqCst),
                EventTail::OFFSET => self.tail.load(Ordering::SeqCst),
                other => panic!("{other:#x}"),
            }
        }
        fn write64(&self, offset: usize, value: u64) {
            assert_eq!(offset, EventHead::OFFSET);
            self.head.store(value, Ordering::SeqCst);
        }
        fn barrier(&self) {
            fence(Ordering::SeqCst);
        }
    }

    /// The ring.
    struct Words {
        ring: [AtomicU64; 2 * COUNT],
        /// What happens when an event is looked at, once.
        meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl Words {
        fn new() -> &'static Self {
            let ring = [const { AtomicU64::new(0) }; 2 * COUNT];
            Box::leak(Box::new(Self { ring, meanwhile: Mutex::new(None) }))
        }

        /// The unit logs an event.
        fn log(&self, registers: &Registers, number: u64, code: u64) {
            let (tail, next) = (number % COUNT as u64, (number + 1) % COUNT as u64);
            while registers.head.load(Ordering::SeqCst) == next * 16 {
                thread::yield_now();
            }
            let [low, high] = [0, 1].map(|word| &self.ring[tail as usize * 2 + word]);
            assert_eq!(low.load(Ordering::SeqCst), 0, "taken out");
            high.store(number, Ordering::Relaxed);
            low.store(code << 60 | number & 0xffff, Ordering::Release);
            registers.tail.store(next * 16, Ordering::SeqCst);
        }
    }

    // SAFETY: one page, which is never freed; its address is that of the process.
    unsafe impl Memory for &'static Words {
        fn allocate(&self, _: usize) -> Option<PhysAddr> {
            Some(PhysAddr(1))
        }
        unsafe fn free(&self, _: PhysAddr, _: usize) {}
        unsafe fn words(&self, _: PhysAddr, count: usize) -> &[AtomicU64] {
            let meanwhile = self.meanwhile.lock().unwrap().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile();
            }
            &self.ring[..count]
        }
    }

    type Tested = Log<&'static Registers, &'static Words>;

    fn log() -> (&'static Registers, &'static Words, &'static Tested) {
        let registers: &'static Registers = Box::leak(Box::default());
        let words = Words::new();
        let pages = Pages::of_bytes(words, COUNT * EVENT).unwrap();
        (registers, words, Box::leak(Box::new(Log::new(registers, words, &pages))))
    }

    fn drained(log: &Tested) -> Vec<u32> {
        let mut found = Vec::new();
        log.drain(&mut |device| found.push(device.0));
        found
    }

    /// Two faults are taken out while the log is being drained: the timeout behind them is found by
    /// the same drain.
    #[test]
    fn draining_goes_on_where_somebody_takes_events_out() {
        let (registers, words, log) = log();
        [2, 2, 7]
            .into_iter()
            .enumerate()
            .for_each(|(n, code)| words.log(registers, n as u64, code));
        *words.meanwhile.lock().unwrap() = Some(Box::new(|| {
            let taken: Vec<_> = (0..2).filter_map(|_| log.next(|| {})).collect();
            assert_eq!(taken.len(), 2);
        }));
        assert_eq!(drained(log), [2]);
        assert!(log.next(|| panic!("it was seen to")).is_some());
    }

    /// The log is drained while a fault is being taken out: nothing is found twice.
    #[test]
    fn taking_out_goes_back_behind_nothing_that_was_drained() {
        let (registers, words, log) = log();
        [2, 7, 7]
            .into_iter()
            .enumerate()
            .for_each(|(n, code)| words.log(registers, n as u64, code));
        let found: &'static Mutex<Vec<u32>> = Box::leak(Box::default());
        *words.meanwhile.lock().unwrap() =
            Some(Box::new(|| found.lock().unwrap().extend(drained(log))));
        assert!(log.next(|| panic!("it is no timeout")).is_some());
        assert_eq!(*found.lock().unwrap(), [1, 2]);
        assert_eq!(drained(log), []);
    }

    /// The unit logs; one drains, as the library's queue does, and one takes events out. Each
    /// timeout is found by draining, once and in order; each event is taken out, once and in order.
    #[test]
    fn draining_finds_each_timeout_whoever_takes_events_out() {
        const EVENTS: u64 = 20_000;
        let (registers, words, log) = log();
        // With the publisher's lock. Device ids have 16 bits: events are numbered by them.
        let found = Mutex::new(Vec::new());
        let logged = AtomicU64::new(0);
        let drain = || {
            let there = logged.load(Ordering::SeqCst);
            if let Ok(mut found) = found.try_lock() {
                log.drain(&mut |device| found.push(device.0));
                // A completion that was seen before is believed now (contract of `Port`, 6).
                assert!(log.looked.load(Ordering::SeqCst) >= there, "it has stopped too early");
            }
        };
        let is_timeout = |number: u64| number % 16 == 0;
        let ended = AtomicBool::new(false);
        let taken = thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..EVENTS {
                    words.log(registers, number, if is_timeout(number) { 7 } else { 2 });
                    logged.store(number + 1, Ordering::SeqCst);
                }
                ended.store(true, Ordering::SeqCst);
            });
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    drain();
                }
            });
            let mut taken = 0;
            while taken < EVENTS {
                match log.next(drain) {
                    Some(Record::Event { kind, address, .. }) => {
                        assert_eq!(address, taken);
                        assert_eq!(kind == Kind::InvalidationTimeout, is_timeout(taken));
                        taken += 1;
                    }
                    Some(Record::Lost) => panic!("the log does not say so"),
                    None => thread::yield_now(),
                }
            }
            taken
        });
        assert_eq!(taken, EVENTS);
        let all: Vec<_> =
            (0..EVENTS).filter(|n| is_timeout(*n)).map(|n| n as u32 & 0xffff).collect();
        assert_eq!(found.into_inner().unwrap(), all);
    }
}
