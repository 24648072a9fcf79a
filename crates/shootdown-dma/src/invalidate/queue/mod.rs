//! The queue: a ring of commands in memory that many CPUs write and one IOMMU reads. One protocol
//! serves the three formats.
//!
//! # The protocol
//! Positions count slots from the beginning and never wrap; a slot is a position modulo the size of
//! the ring. A [`Ticket`] is the position behind a submission's last slot, which is a wait that
//! makes the unit report that it has reached this position.
//! 1. **Reserve**: a submitter counts its slots, the wait among them, takes that much room, and
//!    moves `reserved` on. Both are additions. With a compare-and-swap only one of several
//!    concurrent submitters would succeed, and the others would fetch the cache line again for
//!    nothing. A submitter that finds no room gives back what it took; completions give room back,
//!    too (`given`: up to where).
//! 2. **Write** the slots, and then store the submission's end to `ends`, at the index of its first
//!    slot.
//! 3. **Publish**: the CPU that gets the lock moves the tail over all submissions that are written,
//!    in order, and writes the tail register. A CPU that does not get the lock marks in the lock
//!    word that there is work; the holder sees the mark when it leaves the lock. No submitter waits
//!    for another, so a submission may be interrupted by another one at any step.
//! 4. **Complete**: the unit stores the position to the status word (low 32 bits; [`widen`] finds
//!    the rest). A slot may be written again only when a wait behind it is complete.
//!
//! Submitters get only three eighths of the ring. As many again belong to [recovery](self#errors),
//! which copies what was lost, and the rest to the waits and barriers that recovery adds: half of
//! that to those between devices that get their commands one by one.
//!
//! # Errors
//! When a queue does not move, a CPU that polls reads the registers, with the publisher's lock:
//! - A slot was **refused**: it is replaced by one that covers it (all of the IOTLB, all of a
//!   device), and the queue goes on. A device whose coarser command is refused too counts as
//!   silent. If any other command is refused twice, the queue ends: [`QueueError::Stuck`], nothing
//!   completes any more.
//! - A **device did not acknowledge**: what the unit has read and not completed is copied behind
//!   everything that is reserved, with a wait of its own. Until the unit has reached that wait
//!   nothing is complete (`gate`), whatever the waits before it report: they do not cover what was
//!   lost. If the unit does not name the device, the devices that it may have been get their
//!   commands one by one (`recover.rs`). A device that fails [`STRIKES`] times is silent: commands
//!   leave it out from then on, and [`Unit::answers`] reports it, before anything completes without
//!   it.
//!
//! - Units that name the device in an **event log** (AMD-Vi) reach the wait all the same. Where
//!   commands for devices are under way, the log is drained after the status was read and before it
//!   is used, with the publisher's lock. A CPU that can't get the lock uses no newer status.
//!
//! # Invariants
//! - **I8** The tail never passes the head; the slots of a submission are written before the tail
//!   passes them.
//! - **I9** What was not completed when an error was found is executed again, or covered, before it
//!   counts as complete.
//!
//! # Orderings
//! | access | ordering | partner | why |
//! |---|---|---|---|
//! | Q1 `ends` of a submission stored | Release | Q2 | its slots are written, its tables changed |
//! | Q2 `ends` read by the publisher | Acquire | Q1 | [`Port::publish`] makes them visible to the unit |
//! | Q3 work left in the lock word | AcqRel | Q4 | the holder finds the submission |
//! | Q4 work taken from the lock word, lock left | AcqRel | Q3 | the next holder finds the tail |
//! | Q5 `done` moved on | AcqRel | Q6 | what the unit has done; it has read the slots |
//! | Q6 `done` read | Acquire | Q5 | slots are written again; a caller that asked may reuse |
//! | Q7 gate closed | Release | Q8 | before the unit goes on, hence before any status that the gate must hold back |
//! | Q8 status read, then the gate | Acquire (of a register: fence) | Q7 | a CPU that reads such a status sees the gate |
//! | Q12 status read, the log drained, then the gate | Acquire (Q8); the publisher's lock | Q7 | an event is logged before the status behind it (contract of `Port`, 6): the CPU that drained it has closed the gate before it left the lock |
//! | Q9 `taken` lowered | Release | Q10 | behind Q6: the unit has read the slots |
//! | Q10 `taken` raised | Acquire | Q9, also through other CPUs' raising | slots are written again |
//! | Q11 `reserved` raised | AcqRel | itself, by other CPUs before | as Q10: taken room is not yet a slot, and the slots that a CPU gets may be those for which other CPUs have found room since |

use crate::addr::DeviceId;
use crate::fixed::{Fixed, NoMemory};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::{BATCH, Command, QueueError, Ticket, Unit};

mod amd;
mod error;
mod format;
mod port;
mod recover;
mod silence;
mod smmu;
mod vtd;

pub use amd::Amd;
pub use error::{ReviveError, RingError};
pub use format::{Format, Instead, MOST, Slot, Trouble, widen};
pub use port::Port;
pub use silence::STRIKES;
use silence::Silence;
pub use smmu::Smmu;
pub use vtd::Vtd;

/// The least slots of a ring: three eighths of it hold [`BATCH`] commands of [`MOST`] slots, a
/// barrier and a wait.
pub const SLOTS: usize = ((BATCH * MOST + 2) * 8 / 3 + 1).next_power_of_two();

/// Polls without progress after which one of them reads the registers: that takes as long as tens
/// of polls.
const PATIENCE: u32 = 16;

/// The same for a CPU that waits, and has seen no progress itself. Many may wait, and reading the
/// registers takes the publisher's lock; so it is done less often the longer the wait lasts, down
/// to once in [`LONG_PATIENCE`] turns.
const WAITERS_PATIENCE: u32 = if cfg!(loom) { PATIENCE } else { 128 };
const LONG_PATIENCE: u32 = 4096;

const LOCKED: u32 = 1;
const WORK: u32 = 2;

/// One IOMMU's queue; see the [module](self).
#[derive(Debug)]
pub struct Queue<P, F> {
    port: P,
    format: F,
    slots: u64,
    ends: Fixed<AtomicU64>,
    /// Slots that must not be written again yet, with those of submitters between steps 1 and 2.
    taken: Line<AtomicU64>,
    /// Room was given back up to this position.
    given: AtomicU64,
    reserved: Line<AtomicU64>,
    /// The publisher's lock word: [`LOCKED`], [`WORK`].
    state: Line<AtomicU32>,
    /// Changed with the lock: the position last written to the tail register.
    tail: Line<AtomicU64>,
    done: Line<AtomicU64>,
    /// Slots before it are read, and will not be copied by another recovery.
    floor: AtomicU64,
    gate: AtomicU64,
    /// Where the newest submission ends that has a command for a device, of units that
    /// [log](Format::logs_timeouts) which devices do not acknowledge.
    asked: AtomicU64,
    /// A device was found in the log, and no call has returned that yet.
    timed_out: AtomicBool,
    silence: Silence,
    patched: AtomicU64,
    stuck: AtomicBool,
    idle: Line<AtomicU32>,
}

/// On cache lines of its own, so that writes of submitters and of the publisher do not delay CPUs
/// that wait.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

impl<T> core::ops::Deref for Line<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<P: Port, F: Format> Queue<P, F> {
    /// Makes a queue that is set up and empty, head and tail at slot 0.
    ///
    /// # Errors
    /// [`RingError::Slots`] if the ring is no power of two, or has less than [`SLOTS`] (twice that
    /// if commands are issued [twice](Format::repeats)); [`RingError::NoMemory`].
    pub fn new(port: P, format: F) -> Result<Self, RingError> {
        let slots = port.ring().len() / 2;
        let least = if format.repeats() { 2 * SLOTS } else { SLOTS };
        if slots < least || !slots.is_power_of_two() {
            return Err(RingError::Slots { slots, least });
        }
        Self::starting_at(port, format, 0).map_err(|NoMemory| RingError::NoMemory)
    }

    fn starting_at(port: P, format: F, start: u64) -> Result<Self, NoMemory> {
        let slots = port.ring().len() / 2;
        let ends = Fixed::new(slots, |_| AtomicU64::new(0))?;
        port.status().store(start, Ordering::Relaxed);
        Ok(Self {
            port,
            format,
            slots: slots as u64,
            ends,
            taken: Line(AtomicU64::new(0)),
            given: AtomicU64::new(start),
            reserved: Line(AtomicU64::new(start)),
            state: Line(AtomicU32::new(0)),
            tail: Line(AtomicU64::new(start)),
            done: Line(AtomicU64::new(start)),
            floor: AtomicU64::new(start),
            gate: AtomicU64::new(start),
            asked: AtomicU64::new(start),
            timed_out: AtomicBool::new(false),
            silence: Silence::new(),
            patched: AtomicU64::new(0),
            idle: Line(AtomicU32::new(0)),
            stuck: AtomicBool::new(false),
        })
    }

    /// The host's side.
    pub const fn port(&self) -> &P {
        &self.port
    }

    /// Slots that submitters may have under way.
    const fn share(&self) -> u64 {
        self.slots / 2 - self.slots / 8
    }

    /// The first slot that is still needed.
    fn base(&self) -> u64 {
        // ORDERING: Acquire [Q6]; of the floor, its partner is the store in `recover.rs`: the unit
        // has read what is before. Without it a slot may be written again before the unit has read
        // it.
        let done = self.done.load(Ordering::Acquire);
        done.max(self.floor.load(Ordering::Acquire))
    }

    fn reserve(&self, count: u64) -> Option<u64> {
        for _ in 0..2 {
            // A plain read first: on a full queue it avoids taking the cache line for writing.
            let has_room = |taken: u64| taken + count <= self.share();
            if has_room(self.taken.load(Ordering::Relaxed)) {
                // [Q10]
                if has_room(self.taken.fetch_add(count, Ordering::Acquire)) {
                    // [Q11]
                    return Some(self.reserved.fetch_add(count, Ordering::AcqRel));
                }
                self.taken.fetch_sub(count, Ordering::Relaxed);
            }
            self.give_room();
        }
        None
    }

    /// Reads the unit's progress, and gives back the room before it.
    fn give_room(&self) {
        self.refresh();
        let base = self.base();
        // ORDERING: AcqRel, with itself: each slot is given back by one CPU, which has seen that it
        // was read.
        let before = self.given.fetch_max(base, Ordering::AcqRel);
        if base > before {
            self.taken.fetch_sub(base - before, Ordering::Release); // [Q9]
        }
    }

    fn write(&self, position: u64, slot: Slot) {
        let at = (position % self.slots) as usize * 2;
        let ring = self.port.ring();
        ring[at].store(slot[0], Ordering::Relaxed);
        ring[at + 1].store(slot[1], Ordering::Relaxed);
    }

    fn read(&self, position: u64) -> Slot {
        let at = (position % self.slots) as usize * 2;
        [0, 1].map(|w| self.port.ring()[at + w].load(Ordering::Relaxed))
    }

    /// Records that the slots from `from` to `end` are written.
    fn written(&self, from: u64, end: u64) {
        let index = (from % self.slots) as usize;
        self.ends[index].store(end, Ordering::Release); // [Q1]
    }

    /// The end of the submission that begins there, if it is written.
    fn end(&self, from: u64) -> Option<u64> {
        let index = (from % self.slots) as usize;
        let end = self.ends[index].load(Ordering::Acquire); // [Q2]
        // A value of the round before is not above.
        (end > from).then_some(end)
    }

    /// Makes some CPU move the tail over what is written.
    fn publish(&self) {
        // [Q3]
        let before = self.state.fetch_or(LOCKED | WORK, Ordering::AcqRel);
        if before & LOCKED == 0 {
            self.publish_held();
        }
    }

    /// The same with the lock, which it leaves.
    fn publish_held(&self) {
        loop {
            self.state.fetch_and(!WORK, Ordering::AcqRel); // [Q4]
            let before = self.tail.load(Ordering::Relaxed);
            let mut tail = before;
            while let Some(end) = self.end(tail) {
                tail = end;
            }
            if tail != before {
                self.port.publish();
                self.tail.store(tail, Ordering::Relaxed);
                self.format.set_tail(&self.port, tail);
            }
            let left = self.state.compare_exchange(LOCKED, 0, Ordering::AcqRel, Ordering::Relaxed);
            if left.is_ok() {
                return;
            }
        }
    }

    /// Reads the unit's progress, and stores it in `done`.
    fn refresh(&self) -> u64 {
        self.look(0)
    }

    /// Reads the unit's progress, and stores it in `done` if it is at least `news` slots further. A
    /// CPU that needs room reads it itself.
    fn look(&self, news: u64) -> u64 {
        let kept = self.done.load(Ordering::Acquire); // [Q6]
        let mut done = kept;
        let position = self.format.position(&self.port, self.base());
        // [Q12] Drains what the unit has logged before it stored the status.
        if position > kept && self.may_log(kept) && !self.drain() {
            return kept;
        }
        let gate = self.gate.load(Ordering::Acquire); // [Q8]
        if position <= done || position < gate {
            return done;
        }
        if self.format.is_coarse() {
            // The gate is the end of a submission, and so is what was done before.
            done = done.max(gate);
            while let Some(end) = self.end(done).filter(|end| *end <= position) {
                done = end;
            }
        } else {
            done = position;
        }
        if done - kept < news {
            return done;
        }
        self.done.fetch_max(done, Ordering::AcqRel).max(done) // [Q5]
    }

    /// Whether the unit may have logged an unacknowledged command behind this position.
    #[inline]
    fn may_log(&self, done: u64) -> bool {
        // ORDERING: a CPU that has read that the unit is beyond a submission sees what was stored
        // before it was published (contract of `Port`, 4 and 5).
        self.format.logs_timeouts() && self.asked.load(Ordering::Relaxed) > done
    }

    /// Records, before it is published, that a submission with a command for a device ends there.
    #[inline]
    fn told_devices(&self, end: u64) {
        if self.format.logs_timeouts() {
            self.asked.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// The error for a device that did not acknowledge, if no call has returned it yet.
    #[inline]
    fn unless_timed_out(&self) -> Result<(), QueueError> {
        let some = self.format.logs_timeouts() && self.timed_out.load(Ordering::Relaxed);
        if some && self.timed_out.swap(false, Ordering::Relaxed) {
            return Err(QueueError::DeviceTimeout);
        }
        Ok(())
    }

    /// The slots of `commands`, in order: the commands for the unit, a barrier, the commands for
    /// devices. The commands of `left_out` (a bit for each) are left out.
    fn slots_of(&self, commands: &[Command], left_out: u64, put: &mut dyn FnMut(Slot)) {
        let own = || commands.iter().filter(|c| !c.is_for_device());
        own().for_each(|c| self.format.encode(c, put));
        if self.format.repeats() && own().next().is_some() {
            put(self.format.barrier(self.port.status_address()));
            own().for_each(|c| self.format.encode(c, put));
        }
        let told = commands
            .iter()
            .enumerate()
            .filter(|(n, c)| c.is_for_device() && left_out & (1 << n) == 0);
        let mut told = told.map(|(_, c)| c).peekable();
        if told.peek().is_some() {
            put(self.format.barrier(self.port.status_address())); // [I6]
        }
        told.for_each(|c| self.format.encode(c, put));
    }

    /// Counts a call that has seen no progress, and reads the registers in every [`PATIENCE`]th.
    fn no_progress(&self) -> Result<(), QueueError> {
        let looks = self.idle.fetch_add(1, Ordering::Relaxed) % PATIENCE == PATIENCE - 1;
        if looks { self.attend() } else { Ok(()) }
    }

    fn unless_stuck(&self, done: u64) -> Result<Ticket, QueueError> {
        let stuck = self.stuck.load(Ordering::Relaxed);
        if stuck { Err(QueueError::Stuck) } else { Ok(Ticket(done)) }
    }

    fn left_out(&self, commands: &[Command]) -> u64 {
        let silent = commands.iter().enumerate().filter(|(_, command)| match command {
            Command::Device { device, .. } => self.silence.is_silent(*device),
            _ => false,
        });
        silent.fold(0, |bits, (n, _)| bits | 1 << n)
    }
}

// SAFETY: (1) What `refresh` returns is a position of a wait that the unit has reached (contract of
// `Port`, 4), or a gate before it. A wait is complete when all before it is, and gates hold back
// those waits that do not cover what was lost (I9), also where that is found in the event log
// (Q12). (2) A barrier stands before the commands for devices, behind everything that was reserved
// before. (3) Positions only grow.
unsafe impl<P: Port, F: Format> Unit for Queue<P, F> {
    /// At most 64 commands; more are [`QueueError::Full`].
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        if self.stuck.load(Ordering::Relaxed) {
            return Err(QueueError::Stuck);
        }
        if commands.len() > 64 {
            return Err(QueueError::Full);
        }
        let left_out = self.left_out(commands);
        let mut count = 1;
        self.slots_of(commands, left_out, &mut |_| count += 1);
        let Some(from) = self.reserve(count) else {
            // A CPU that can't submit does not ask for a ticket, and the unit may have stopped.
            self.no_progress()?;
            return Err(QueueError::Full);
        };
        let mut at = from;
        self.slots_of(commands, left_out, &mut |slot| {
            self.write(at, slot);
            at += 1;
        });
        let end = at + 1;
        if commands.iter().any(Command::is_for_device) {
            self.told_devices(end);
        }
        self.write(at, self.format.wait(self.port.status_address(), end));
        self.written(from, end);
        self.publish();
        Ok(Ticket(end))
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        let before = self.done.load(Ordering::Relaxed);
        let done = self.refresh();
        if done > before || done == self.reserved.load(Ordering::Relaxed) {
            self.idle.store(0, Ordering::Relaxed);
        } else {
            self.no_progress()?;
        }
        self.unless_timed_out()?;
        self.unless_stuck(done)
    }

    /// Writes nothing that other CPUs read unless the unit is much further.
    fn completed_by_turn(&self, turns: u32) -> Result<Ticket, QueueError> {
        let done = self.look(self.share() / 4);
        if turns >= WAITERS_PATIENCE && (turns.is_power_of_two() || turns % LONG_PATIENCE == 0) {
            self.attend()?;
        }
        self.unless_timed_out()?;
        self.unless_stuck(done)
    }

    fn answers(&self, device: DeviceId) -> bool {
        !self.silence.is_silent(device)
    }

    fn granule(&self) -> u32 {
        self.format.granule()
    }

    fn forgets_all(&self) -> bool {
        self.format.forgets_all()
    }

    fn is_crowded(&self) -> bool {
        self.ahead() * 2 > self.share()
    }

    /// Writes nothing, and so does not count what has completed since the last call that stored the
    /// progress.
    fn ahead(&self) -> u64 {
        let reserved = self.reserved.load(Ordering::Relaxed);
        let position = self.format.position(&self.port, self.base());
        reserved.saturating_sub(position.max(self.done.load(Ordering::Relaxed)))
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    #[test]
    pub(crate) fn widening() {
        super::format::tests::widening_finds_the_position_and_never_goes_back();
    }
}
