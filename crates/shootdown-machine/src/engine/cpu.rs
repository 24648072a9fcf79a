//! The engine's state of one CPU.

use corosensei::Yielder;

use crate::outcome::{FabricUse, Interrupts, LineCounts, TimeSplit};
use crate::time::Time;

/// Where the time of a CPU goes just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    User = 0,
    Kernel = 1,
    Waiting = 2,
    Stolen = 3,
    Idle = 4,
    Away = 5,
}

/// Interrupts that CPUs send each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Vector {
    /// Serve flush requests.
    Kick = 0,
    /// There is something to run.
    Wake = 1,
}

/// How many vectors there are.
pub const VECTORS: usize = 2;

/// No time: nothing is due.
pub const NEVER: u64 = u64::MAX;

/// Lines remembered for [`super::relax`]; a wait loop that loads more in a turn spins in small
/// steps.
pub const WATCHED: usize = 96;

/// State of one CPU. Times in ps.
pub struct CpuState {
    /// How far this CPU has come.
    pub time: u64,
    /// The earliest pending interrupt.
    pub irq_next: u64,
    /// Arrival of each pending interrupt.
    pub irq: [u64; VECTORS],
    /// Interrupts are taken.
    pub irqs_on: bool,
    /// Suspended such that an interrupt may resume it early.
    pub interruptible: bool,
    pub mode: Mode,
    /// Number of the wait it is in, or will be in next.
    pub wait: u32,
    /// Completion of transfers under way; stores and prefetches.
    pub fills: Vec<u64>,
    /// Completion of the last store under way.
    pub stores_done: u64,
    /// Lines being prefetched, and when they are there.
    pub prefetched: Vec<(u32, u64)>,
    /// Lines loaded since the last turn of a wait loop, with their versions.
    pub watched: Vec<(u32, u32)>,
    /// More lines than were kept.
    pub overflowed: bool,
    /// A wake-up came.
    pub woken: bool,
    /// Its program returned.
    pub finished: Option<Time>,
    /// When its turn on the physical CPU ends.
    pub turn_ends: u64,
    /// When it must leave the guest because the hypervisor wants it to.
    pub forced: u64,
    /// The hypervisor has descheduled it.
    pub away: bool,
    pub split: [u64; 6],
    pub lines: LineCounts,
    pub interrupts: Interrupts,
    /// When what this CPU handed to the fabric is complete.
    pub broadcast_done: u64,
    /// When the fabric is done with the last of it.
    pub broadcast_served: u64,
    pub broadcast_waited: u64,
    pub broadcasts: u64,
    /// Busy time of the fabric that this CPU has flushed, or need not.
    pub fabric_seen: u64,
    /// What it paid.
    pub taxed: u64,
    /// The coroutine's way out; set when it first runs.
    pub yielder: Option<*const Yielder<(), ()>>,
}

impl CpuState {
    pub fn new() -> Self {
        Self {
            time: 0,
            irq_next: NEVER,
            irq: [NEVER; VECTORS],
            irqs_on: true,
            interruptible: false,
            mode: Mode::Kernel,
            wait: 0,
            fills: Vec::new(),
            stores_done: 0,
            prefetched: Vec::new(),
            watched: Vec::new(),
            overflowed: false,
            woken: false,
            finished: None,
            turn_ends: NEVER,
            forced: NEVER,
            away: false,
            split: [0; 6],
            lines: LineCounts::default(),
            interrupts: Interrupts::default(),
            broadcast_done: 0,
            broadcast_served: 0,
            broadcast_waited: 0,
            broadcasts: 0,
            fabric_seen: 0,
            taxed: 0,
            yielder: None,
        }
    }

    /// Lets time pass.
    #[inline]
    pub fn spend(&mut self, ps: u64) {
        self.time += ps;
        self.split[self.mode as usize] += ps;
    }

    /// Lets time pass until `to`, if that is later.
    #[inline]
    pub fn spend_until(&mut self, to: u64) {
        if to > self.time {
            self.spend(to - self.time);
        }
    }

    /// When it does something else than its program, as far as is known.
    #[inline]
    pub fn next_event(&self) -> u64 {
        let irq = if self.irqs_on { self.irq_next } else { NEVER };
        irq.min(self.turn_ends).min(self.forced)
    }

    /// The hypervisor wants the CPU.
    #[inline]
    pub fn is_host_due(&self) -> bool {
        self.turn_ends.min(self.forced) <= self.time
    }

    /// An interrupt is due, or the hypervisor wants the CPU.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.next_event() <= self.time
    }

    /// Takes a fill buffer until `done`; waits for one when all are taken.
    pub fn take_fill(&mut self, limit: usize) {
        let now = self.time;
        self.fills.retain(|done| *done > now);
        if self.fills.len() >= limit {
            let first = self.fills.iter().copied().min().unwrap_or(now);
            self.spend_until(first);
            let now = self.time;
            self.fills.retain(|done| *done > now);
        }
    }

    /// A line is on its way, and there at `done`.
    #[allow(clippy::cast_possible_truncation)] // lines are numbered in 32 bits
    pub fn expect(&mut self, line: usize, done: u64) {
        let now = self.time;
        self.fills.push(done);
        self.prefetched.retain(|(_, ready)| *ready > now);
        self.prefetched.push((line as u32, done));
    }

    /// Waits until every store is complete.
    #[inline]
    pub fn drain(&mut self) {
        self.spend_until(self.stores_done);
    }

    /// Remembers that a line was loaded.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // lines are numbered in 32 bits
    pub fn watch(&mut self, line: usize, version: u32) {
        if self.watched.len() < WATCHED {
            self.watched.push((line as u32, version));
        } else {
            self.overflowed = true;
        }
    }

    /// What this CPU had to do with the fabric.
    pub fn fabric(&self) -> FabricUse {
        FabricUse {
            operations: self.broadcasts,
            waited: Time::from_ps(self.broadcast_waited),
            taxed: Time::from_ps(self.taxed),
        }
    }

    /// The split in the shape the outcome has.
    pub fn time_split(&self) -> TimeSplit {
        let [user, kernel, waiting, responder, idle, away] = self.split.map(Time::from_ps);
        TimeSplit { user, kernel, waiting, responder, idle, away }
    }
}
