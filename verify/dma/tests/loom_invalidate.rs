//! Invalidation under the `loom` model checker: what a token covers, who is told, what completion
//! means to others, and the ring that many write.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-dma-woven --release --test loom_invalidate
//! --target-dir target/loom`
#![cfg(loom)]

#[path = "support/loom.rs"]
mod support;

use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use shootdown_dma_woven::invalidate::queue::{Amd, Port, Queue, Smmu, Vtd};
use shootdown_dma_woven::invalidate::{
    Command, Engine, Promotion, QueueError, Ticket, Token, Unit, amd, smmu, vtd,
};
use shootdown_dma_woven::mutant::Mutant;
use shootdown_dma_woven::{DeviceId, DomainId, IovaRange, PhysAddr};
use support::holds;

fn page(page: u64) -> IovaRange {
    IovaRange::new(page, 1).unwrap()
}

/// A unit that forgets at once, and walks again at once: what it has cached of a page is what it
/// found in the tables (an entry for each page) after it was last told.
struct Walker {
    entries: [AtomicU64; 2],
    cached: [AtomicU64; 2],
    /// Walking and forgetting exclude each other; a walk that is under way when the command comes
    /// is dropped.
    busy: Mutex<()>,
    told: AtomicUsize,
}

impl Walker {
    fn new() -> Self {
        let pages = || core::array::from_fn(|_| AtomicU64::new(1));
        Self { entries: pages(), cached: pages(), busy: Mutex::new(()), told: AtomicUsize::new(0) }
    }

    fn walk(&self, pages: impl Iterator<Item = usize>) {
        let _busy = self.busy.lock().unwrap();
        for n in pages {
            let found = self.entries[n].load(Ordering::Relaxed);
            self.cached[n].store(found, Ordering::Relaxed);
        }
    }
}

#[derive(Clone)]
struct At(Arc<Walker>);

// SAFETY: commands take effect when they are submitted, and tickets are counted.
unsafe impl Unit for At {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        for command in commands {
            match command {
                Command::Pages { range, .. } => {
                    self.0.walk(range.first() as usize - 1..=range.last() as usize - 1);
                }
                _ => self.0.walk(0..2),
            }
        }
        // ORDERING: Release: who sees the ticket complete sees what was forgotten.
        Ok(Ticket(self.0.told.fetch_add(1, Ordering::Release) as u64 + 1))
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        Ok(Ticket(self.0.told.load(Ordering::Acquire) as u64))
    }
}

type Domain = Arc<Engine<At>>;

fn domain(attached: bool) -> (Arc<Walker>, Domain) {
    let unit = Arc::new(Walker::new());
    let engine =
        Engine::new(1, [(At(Arc::clone(&unit)), DomainId(1))], Promotion::DEFAULT).unwrap();
    if attached {
        let _attachment = engine.attach(0, DeviceId(1), false).unwrap();
    }
    (unit, Arc::new(engine))
}

/// Clears an entry, waits for the token, and looks if it is forgotten.
fn unmap(unit: &Walker, engine: &Engine<At>, n: usize, token: impl FnOnce() -> Token) {
    unit.entries[n].store(0, Ordering::Relaxed);
    let token = token();
    let outcome = engine.wait(token, &mut || {
        thread::yield_now();
        true
    });
    assert_eq!(outcome, Ok(()));
    assert_eq!(unit.cached[n].load(Ordering::Relaxed), 0, "I1: page {n} is reached");
}

#[test]
fn the_whole_covers_what_was_cleared() {
    // I4. Mutants: WholeTokenUnfenced, TellUnfenced.
    holds("whole", Some(3), &[Mutant::WholeTokenUnfenced, Mutant::TellUnfenced], || {
        let (unit, engine) = domain(true);
        let other = {
            let engine = Arc::clone(&engine);
            thread::spawn(move || {
                let _ = engine.flush_all();
            })
        };
        unmap(&unit, &engine, 0, || engine.flush_all());
        other.join().unwrap();
    });
}

#[test]
fn who_comes_is_told_or_finds_it_cleared() {
    // M1, M2. Mutants: AttachUnfenced, TellUnfenced.
    holds("attach", Some(3), &[Mutant::AttachUnfenced, Mutant::TellUnfenced], || {
        let (unit, engine) = domain(false);
        unit.cached[0].store(0, Ordering::Relaxed);
        let other = {
            let (unit, engine) = (Arc::clone(&unit), Arc::clone(&engine));
            thread::spawn(move || {
                let _attachment = engine.attach(0, DeviceId(1), false).unwrap();
                unit.walk(0..1);
            })
        };
        unit.entries[0].store(0, Ordering::Relaxed);
        let token = engine.invalidate(0, page(1), true);
        assert!(engine.is_complete(token));
        other.join().unwrap();
        assert_eq!(unit.cached[0].load(Ordering::Relaxed), 0, "I1: the device reaches it");
    });
}

#[test]
fn two_with_the_number_of_one_cpu() {
    // L1, L2, I5. Mutants: LaneLockIgnored, LaneLockRelaxed, LaneUnlockRelaxed.
    let mutants = [Mutant::LaneLockIgnored, Mutant::LaneLockRelaxed, Mutant::LaneUnlockRelaxed];
    holds("one CPU", Some(2), &mutants, || {
        let (unit, engine) = domain(true);
        let other = {
            let (unit, engine) = (Arc::clone(&unit), Arc::clone(&engine));
            thread::spawn(move || unmap(&unit, &engine, 1, || engine.note(0, page(2), true)))
        };
        unmap(&unit, &engine, 0, || engine.note(0, page(1), true));
        other.join().unwrap();
    });
}

#[test]
fn completion_is_seen_by_others() {
    // L4 to L7. Mutants: CloseRelaxed, ClosedReadRelaxed, FinishRelaxed, DoneReadRelaxed.
    let mutants = [
        Mutant::CloseRelaxed,
        Mutant::ClosedReadRelaxed,
        Mutant::FinishRelaxed,
        Mutant::DoneReadRelaxed,
    ];
    holds("completion", Some(4), &mutants, || {
        let (unit, engine) = domain(true);
        unit.entries[0].store(0, Ordering::Relaxed);
        let token = engine.note(0, page(1), true);
        let other = {
            let (unit, engine) = (Arc::clone(&unit), Arc::clone(&engine));
            thread::spawn(move || {
                if engine.is_complete(token) {
                    assert_eq!(unit.cached[0].load(Ordering::Relaxed), 0, "I1");
                }
            })
        };
        engine.flush(0);
        let _ = engine.is_complete(token);
        other.join().unwrap();
    });
}

/// VT-d, which executes what it is told within the write of the tail, as QEMU does, or when a test
/// lets it. Head and flags are touched with the publisher's lock only, or by the test, and so are
/// no atomics of the checker.
struct Inline {
    ring: Vec<AtomicU64>,
    status: AtomicU64,
    /// Of a unit that is let by the test.
    tail: Option<AtomicU64>,
    forgotten: [AtomicU64; 3],
    registers: std::sync::Mutex<Registers>,
}

#[derive(Default)]
struct Registers {
    head: u64,
    /// The device does not answer the next time.
    silent: bool,
    timed_out: bool,
}

impl Inline {
    fn new(slots: usize, apart: bool) -> Self {
        Self {
            ring: (0..2 * slots).map(|_| AtomicU64::new(0)).collect(),
            status: AtomicU64::new(0),
            tail: apart.then(|| AtomicU64::new(0)),
            forgotten: core::array::from_fn(|_| AtomicU64::new(0)),
            registers: Default::default(),
        }
    }

    /// The unit apart: reads what it was told of.
    fn step(&self) {
        // ORDERING: Acquire and Release: what is in memory when a register is written, the unit
        // sees.
        self.run(self.tail.as_ref().unwrap().load(Ordering::Acquire));
    }

    fn run(&self, tail: u64) {
        let slots = self.ring.len() as u64 / 2;
        loop {
            let mut registers = self.registers.lock().unwrap();
            if registers.timed_out || registers.head == tail {
                return;
            }
            let at = registers.head as usize * 2;
            registers.head = (registers.head + 1) % slots;
            // SAFETY: nobody writes what the unit reads: with such a load the checker sees to that,
            // now and later (Q9 to Q11).
            let [low, high] = [0, 1].map(|w| unsafe { self.ring[at + w].unsync_load() });
            // The guard is not held while the checker may switch.
            let lost = low & 0xf == 3 && core::mem::take(&mut registers.silent);
            registers.timed_out = lost;
            drop(registers);
            match low & 0xf {
                _ if lost => {}
                2 => self.forgotten[(low >> 16) as usize & 3].store(1, Ordering::Relaxed),
                3 => self.forgotten[2].store(1, Ordering::Relaxed),
                5 if high == 0x1000 => self.status.store(low >> 32, Ordering::Release),
                5 => {}
                _ => panic!("I8: the tail passed a slot that is not written"),
            }
        }
    }
}

struct Shared(Arc<Inline>);

// SAFETY: as in the trait, but for time-outs of its own making; the ring is executed by whoever
// publishes.
unsafe impl Port for Shared {
    fn read32(&self, _: usize) -> u32 {
        u32::from(self.0.registers.lock().unwrap().timed_out) << 6
    }
    fn write32(&self, _: usize, value: u32) {
        self.0.registers.lock().unwrap().timed_out &= value & 1 << 6 == 0;
    }
    fn read64(&self, offset: usize) -> u64 {
        if offset == 0x80 { self.0.registers.lock().unwrap().head << 4 } else { 0 }
    }
    fn write64(&self, _: usize, value: u64) {
        match &self.0.tail {
            Some(tail) => tail.store(value >> 4, Ordering::Release),
            None => self.0.run(value >> 4),
        }
    }
    fn ring(&self) -> &[AtomicU64] {
        &self.0.ring
    }
    fn status(&self) -> &AtomicU64 {
        &self.0.status
    }
    fn status_address(&self) -> PhysAddr {
        PhysAddr(0x1000)
    }
    fn publish(&self) {}
    fn drain_events(&self, _: &mut dyn FnMut(DeviceId)) {}
}

fn queue(slots: usize) -> (Arc<Inline>, Arc<Queue<Shared, Vtd>>) {
    queue_to(Inline::new(slots, false))
}

fn queue_to(unit: Inline) -> (Arc<Inline>, Arc<Queue<Shared, Vtd>>) {
    let (slots, unit) = (unit.ring.len() / 2, Arc::new(unit));
    let facts = vtd::Facts::from_cap(0);
    let format = Vtd { facts, slots: slots as u64 };
    let queue = Queue::small(Shared(Arc::clone(&unit)), format, 0);
    (unit, Arc::new(queue))
}

#[test]
fn the_tail_passes_only_what_is_written() {
    // I8, Q1 to Q4. Mutants: EndRelaxed, EndReadRelaxed, PublisherIgnored, WorkForgotten.
    let mutants = [
        Mutant::EndRelaxed,
        Mutant::EndReadRelaxed,
        Mutant::PublisherIgnored,
        Mutant::WorkForgotten,
    ];
    holds("tail", Some(3), &mutants, || {
        let (unit, queue) = queue(16);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.submit(&[Command::Domain(DomainId(1))]).unwrap())
        };
        let mine = queue.submit(&[Command::Domain(DomainId(0))]).unwrap();
        let last = other.join().unwrap().max(mine);
        assert_eq!(queue.completed(), Ok(last), "somebody has published all");
        for n in 0..2 {
            assert_eq!(unit.forgotten[n].load(Ordering::Relaxed), 1, "I1");
        }
    });
}

/// A wait alone: one slot.
fn submit_wait(queue: &Queue<Shared, Vtd>) {
    let _ = queue.submit(&[]);
}

#[test]
fn room_is_taken_when_slots_were_read() {
    // I8, Q9, Q10. Mutants: RoomGivenRelaxed, RoomTakenRelaxed.
    let mutants = [Mutant::RoomGivenRelaxed, Mutant::RoomTakenRelaxed];
    holds("room", Some(3), &mutants, || {
        // One of two slots is handed out. The other goes around in room that this one has given
        // back and not got: it never looks how far the unit is.
        let (unit, queue) = queue_to(Inline::new(2, true));
        submit_wait(&queue);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || (0..2).for_each(|_| submit_wait(&queue)))
        };
        for _ in 0..2 {
            unit.step();
            submit_wait(&queue);
        }
        other.join().unwrap();
    });
}

#[test]
fn room_that_was_not_got_is_given_back() {
    holds("refused", Some(3), &[Mutant::QueueRoomLeaks], || {
        // One of two slots is handed out: of two who want it at once, one may find it gone when it
        // has taken it.
        let (unit, queue) = queue_to(Inline::new(2, true));
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || submit_wait(&queue))
        };
        submit_wait(&queue);
        other.join().unwrap();
        unit.step();
        assert!(queue.submit(&[]).is_ok(), "there is room when the unit has read all");
    });
}

#[test]
fn slots_are_reserved_when_they_were_read() {
    // I8, Q11. Mutant: ReservedRelaxed.
    holds("reserved", Some(2), &[Mutant::ReservedRelaxed], || {
        // Two of four slots are handed out. This one has taken room, and the other comes around
        // before it reserves.
        let (_, queue) = queue(4);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || (0..4).for_each(|_| submit_wait(&queue)))
        };
        submit_wait(&queue);
        other.join().unwrap();
    });
}

#[test]
fn who_asks_relies_on_the_answer() {
    // Q5, Q6. Mutants: QueueDoneRelaxed, QueueDoneReadRelaxed.
    let mutants = [Mutant::QueueDoneRelaxed, Mutant::QueueDoneReadRelaxed];
    holds("done", Some(4), &mutants, || {
        let (unit, queue) = queue(16);
        let other = {
            let (unit, queue) = (Arc::clone(&unit), Arc::clone(&queue));
            thread::spawn(move || {
                if queue.completed().unwrap() > Ticket(0) {
                    assert_eq!(unit.forgotten[0].load(Ordering::Relaxed), 1, "I1");
                }
            })
        };
        queue.submit(&[Command::Domain(DomainId(0))]).unwrap();
        let _ = queue.completed();
        other.join().unwrap();
    });
}

#[test]
fn nothing_is_complete_before_what_was_lost() {
    // I9, Q7, Q8. Mutants: GateReadFirst, GateOpen.
    holds("gate", Some(3), &[Mutant::GateReadFirst, Mutant::GateOpen], || {
        let (unit, queue) = queue(16);
        unit.registers.lock().unwrap().silent = true;
        let device = Command::Device { device: DeviceId(5), range: None };
        let ticket = queue.submit(&[device]).unwrap();
        let other = {
            let (unit, queue) = (Arc::clone(&unit), Arc::clone(&queue));
            thread::spawn(move || {
                if queue.completed().unwrap() >= ticket {
                    let forgotten = unit.forgotten[2].load(Ordering::Relaxed);
                    assert_eq!(forgotten, 1, "I9: the device has not");
                }
            })
        };
        assert_eq!(queue.attend(), Err(QueueError::DeviceTimeout));
        other.join().unwrap();
        assert!(queue.completed().unwrap() >= ticket);
        assert_eq!(unit.forgotten[2].load(Ordering::Relaxed), 1);
    });
}

/// An SMMU without stores: that it has come to a wait stands in a register, which is read as
/// registers are.
struct Consumed {
    ring: Vec<AtomicU64>,
    status: AtomicU64,
    consumed: AtomicU64,
    forgotten: AtomicU64,
}

struct Apart(Arc<Consumed>);

// SAFETY: as in the trait: what the unit reads is forgotten before its register says that it was
// read.
unsafe impl Port for Apart {
    fn read32(&self, offset: usize) -> u32 {
        // ORDERING: none: what orders it is behind it.
        if offset == 0x9c { self.0.consumed.load(Ordering::Relaxed) as u32 } else { 0 }
    }
    fn write32(&self, _: usize, value: u32) {
        self.0.forgotten.store(1, Ordering::Relaxed);
        self.0.consumed.store(u64::from(value), Ordering::Release);
    }
    fn read64(&self, _: usize) -> u64 {
        0
    }
    fn write64(&self, _: usize, _: u64) {}
    fn ring(&self) -> &[AtomicU64] {
        &self.0.ring
    }
    fn status(&self) -> &AtomicU64 {
        &self.0.status
    }
    fn status_address(&self) -> PhysAddr {
        PhysAddr(0x1000)
    }
    fn publish(&self) {}
    fn drain_events(&self, _: &mut dyn FnMut(DeviceId)) {}
}

#[test]
fn who_reads_a_register_relies_on_it() {
    // Q5, Q8. Mutant: ConsumedUnfenced.
    holds("register", None, &[Mutant::ConsumedUnfenced], || {
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let (consumed, forgotten) = (AtomicU64::new(0), AtomicU64::new(0));
        let unit = Consumed { ring: words(32), status: AtomicU64::new(0), consumed, forgotten };
        let unit = Arc::new(unit);
        let facts = smmu::Facts::from_idr3(0);
        let format = Smmu { facts, slots: 16, stores: false, survives: false };
        let queue = Arc::new(Queue::small(Apart(Arc::clone(&unit)), format, 0));
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.submit(&[Command::Domain(DomainId(0))]).unwrap())
        };
        if queue.completed().unwrap() > Ticket(0) {
            assert_eq!(unit.forgotten.load(Ordering::Relaxed), 1, "I1");
        }
        other.join().unwrap();
    });
}

/// AMD-Vi, which comes to a wait though a device has not answered, and logs that before.
struct Logging {
    ring: Vec<AtomicU64>,
    status: AtomicU64,
    tail: AtomicU64,
    log: AtomicU64,
}

impl Logging {
    fn new() -> Arc<Self> {
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let [status, tail, log] = [0; 3].map(AtomicU64::new);
        Arc::new(Self { ring: words(32), status, tail, log })
    }

    /// The unit reads it all, and the device does not answer.
    fn time_out(&self, ticket: Ticket) {
        self.log.store(1, Ordering::Relaxed);
        // ORDERING: Release: it is in the log before.
        self.status.store(ticket.0, Ordering::Release);
    }
}

struct Logged(Arc<Logging>);

// SAFETY: as in the trait: what is logged is there before the status behind it.
unsafe impl Port for Logged {
    fn read32(&self, _: usize) -> u32 {
        0
    }
    fn write32(&self, _: usize, _: u32) {}
    fn read64(&self, offset: usize) -> u64 {
        // All was read. And the queue does not stand still.
        if offset == 0x2000 { self.0.tail.load(Ordering::Relaxed) } else { 1 << 4 }
    }
    fn write64(&self, offset: usize, value: u64) {
        if offset == 0x2008 {
            self.0.tail.store(value, Ordering::Relaxed);
        }
    }
    fn ring(&self) -> &[AtomicU64] {
        &self.0.ring
    }
    fn status(&self) -> &AtomicU64 {
        &self.0.status
    }
    fn status_address(&self) -> PhysAddr {
        PhysAddr(0x1000)
    }
    fn publish(&self) {}
    fn drain_events(&self, timed_out: &mut dyn FnMut(DeviceId)) {
        if self.0.log.swap(0, Ordering::Relaxed) != 0 {
            timed_out(DeviceId(5));
        }
    }
}

/// A device was told, and will not answer.
fn logging() -> (Arc<Logging>, Arc<Queue<Logged, Amd>>, Ticket) {
    let unit = Logging::new();
    let format = Amd { slots: 16, facts: amd::Facts { forgets_all: true } };
    let queue = Arc::new(Queue::small(Logged(Arc::clone(&unit)), format, 0));
    let device = Command::Device { device: DeviceId(5), range: None };
    let ticket = queue.submit(&[device]).unwrap();
    (unit, queue, ticket)
}

fn is_believed(queue: &Queue<Logged, Amd>, ticket: Ticket) -> bool {
    queue.completed().is_ok_and(|done| done >= ticket)
}

#[test]
fn what_is_logged_before_is_read_before() {
    // I9, Q12. Mutant: LogReadFirst.
    holds("log", None, &[Mutant::LogReadFirst], || {
        let (unit, queue, ticket) = logging();
        let other = {
            let unit = Arc::clone(&unit);
            thread::spawn(move || unit.time_out(ticket))
        };
        assert!(!is_believed(&queue, ticket), "I9: the device has not answered");
        other.join().unwrap();
        assert!(!is_believed(&queue, ticket), "it is told again first");
    });
}

#[test]
fn what_another_has_read_is_seen_to() {
    // I9, Q12. Mutant: LogOfAnotherIgnored.
    holds("log-of-another", Some(3), &[Mutant::LogOfAnotherIgnored], || {
        let (unit, queue, ticket) = logging();
        unit.time_out(ticket);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || assert!(!is_believed(&queue, ticket), "I9"))
        };
        assert!(!is_believed(&queue, ticket), "I9: the device has not answered");
        other.join().unwrap();
    });
}
