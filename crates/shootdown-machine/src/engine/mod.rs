//! The engine: CPUs as coroutines in virtual time.
//!
//! # The problem
//! Code that runs on thousands of CPUs at once is to be run on one, such that every step happens at
//! a time the model can account for, and always in the same order.
//!
//! # The protocol
//! Every CPU is a stackful coroutine with a time of its own. A queue orders the CPUs that can go on
//! by (time, number). The CPU that runs goes on until a step would be later than the head of the
//! queue; then it suspends and the head runs. So steps on shared memory happen in the order of
//! their time: the hooks of the library's atomics ([`hooks`]) call [`step`] before anything else.
//!
//! Steps that touch nothing shared (a TLB hit, a computation) may run ahead of the head of the
//! queue by [`LOOKAHEAD`], which saves most of the suspensions. That is sound because nothing
//! reaches another CPU faster: an interrupt takes longer than that to arrive.
//!
//! A step first takes interrupts that are due, then charges what the access costs, and returns; the
//! access itself is made by the caller before any other CPU runs.
//!
//! # Invariants
//! - I1: one CPU runs at a time; engine state is never borrowed across a suspension. Every function
//!   here takes the engine anew through [`with`].
//! - I2: a CPU has at most one queue entry that counts (the one for the time it is to go on).
//! - I3: a CPU that is not in the queue and not running waits for a line or an interrupt; if the
//!   queue is empty while a program has not returned, nobody can go on.

pub(crate) mod agent;
mod arena;
mod cpu;
mod fabric;
pub(crate) mod hooks;
mod host;
mod interrupt;
mod lines;
mod memory;
mod own;
mod park;
mod probe;
mod queue;
mod run;
#[cfg(test)]
mod tests;
mod warm;

use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::{self, NonNull};

use arena::Arena;
use cpu::{CpuState, NEVER};
pub(crate) use cpu::{Mode, Vector};
use fabric::Fabric;
pub(crate) use fabric::{await_broadcast, broadcast, drain};
use host::Turns;
pub(crate) use host::{Demand, force, is_away};
pub(crate) use interrupt::{irqs, irqs_are_on, send, wake_self};
use lines::{Distances, Line, Sharers};
use own::OwnCaches;
pub(crate) use park::{idle_until, relax, spin};
pub use probe::Footprint;
use probe::Probe;
pub(crate) use probe::footprint;
use queue::Queue;
pub(crate) use run::{Job, run};
use shootdown::CpuId;

use crate::oracle::{self, Event, Timelines};
use crate::outcome::CpuOutcome;
use crate::profile::{Costs, Topology};
use crate::time::Time;
use crate::violation::Violation;

/// How far a step that touches nothing shared may run ahead, ps.
const LOOKAHEAD: u64 = 20_000;

/// How far a step may run ahead that touches what only this CPU has ever touched, ps: less than any
/// interrupt takes to arrive.
const PRIVATE_LOOKAHEAD: u64 = 400_000;

/// Places per CPU in [`Engine::will_want`].
pub(crate) const HOT: usize = 3;

/// CPU numbers take this many bits of a queue key; the rest is the time in ps, up to 75 minutes.
const CPU_BITS: u32 = 12;

thread_local! {
    /// The engine whose CPU is running on this thread; null outside of a run and while the machine sets
    /// up, when the library's accesses are free.
    static CURRENT: Cell<*mut Engine> = const { Cell::new(ptr::null_mut()) };
}

/// What an interrupt does; it is told what was interrupted.
pub(crate) type Handler = fn(Vector, Mode);

/// The engine of one machine.
pub(crate) struct Engine {
    pub(crate) costs: Costs,
    distances: Distances,
    arena: Arena,
    lines: Vec<Line>,
    /// By the number in [`Line::extra`]: CPUs registered, with the number of their wait.
    waiters: Vec<Vec<(u32, u32)>>,
    sharers: Sharers,
    /// `None` where they hold everything.
    own: Option<OwnCaches>,
    cpus: Vec<CpuState>,
    /// `None` where no hardware invalidates everywhere.
    fabric: Option<Fabric>,
    /// When each CPU goes on: the time of its queue entry that counts; NEVER while it runs or
    /// waits.
    due: Vec<u64>,
    /// An entry of each CPU that no longer counts but is still in the queue; NEVER when none is
    /// known.
    left_over: Vec<u64>,
    /// Where the stack of each suspended CPU ends; 0 when it never ran. (Both apart from the
    /// rest, to be at hand when the rest is not.)
    stacks: Vec<usize>,
    /// By CPU: what its interrupt handler will want, for [`warm`].
    hot: Vec<[(usize, usize); HOT]>,
    current: u32,
    /// Key of the first entry of the queue that counts.
    head: u64,
    queue: Queue,
    handler: Handler,
    /// `None` where CPUs are real ones.
    turns: Option<Turns>,
    /// What the hypervisor's demands do.
    demand: fn(Demand),
    timelines: Timelines,
    probe: Option<Box<Probe>>,
    violation: Option<Box<Violation>>,
    seed: u64,
    /// Programs that have not returned.
    running: u32,
    /// Suspensions so far.
    switches: u64,
}

impl Engine {
    /// An engine for this many CPUs with `memory` bytes to share.
    pub(crate) fn new(topology: Topology, costs: Costs, memory: usize, seed: u64) -> Box<Self> {
        Box::new(Self {
            distances: Distances::new(topology, &costs),
            fabric: costs.broadcast.map(Fabric::new),
            costs,
            arena: Arena::new(memory),
            lines: Vec::new(),
            waiters: Vec::new(),
            sharers: Sharers::new(topology.cpus),
            own: None,
            cpus: (0..topology.cpus).map(|_| CpuState::new()).collect(),
            due: vec![NEVER; topology.cpus as usize],
            left_over: vec![NEVER; topology.cpus as usize],
            stacks: vec![0; topology.cpus as usize],
            hot: vec![[(0, 0); HOT]; topology.cpus as usize],
            current: 0,
            head: NEVER,
            queue: Queue::default(),
            handler: |_, _| {},
            turns: None,
            demand: |_| {},
            timelines: Timelines::new(topology.cpus as usize),
            probe: None,
            violation: None,
            seed,
            running: 0,
            switches: 0,
        })
    }

    /// The topology.
    pub(crate) fn topology(&self) -> &Topology {
        self.distances.topology()
    }

    /// Says what interrupts do.
    pub(crate) fn on_interrupt(&mut self, handler: Handler) {
        self.handler = handler;
    }

    /// Makes the CPUs virtual ones that share so many physical ones, and says what the hypervisor's
    /// demands do. Nothing where the profile has no hypervisor.
    pub(crate) fn share(&mut self, physical: u32, demand: fn(Demand)) {
        let Some(costs) = self.costs.hypervisor else { return };
        let turns = Turns::new(costs, physical, self.topology().cpus);
        for (cpu, state) in (0..).zip(&mut self.cpus) {
            state.turn_ends = turns.first_ends(cpu);
        }
        self.turns = Some(turns);
        self.demand = demand;
    }

    /// CPUs' own caches hold no more than the profile says.
    pub(crate) fn limit_own_caches(&mut self) {
        if self.costs.own_lines != 0 {
            self.own = Some(OwnCaches::new(self.topology().cpus, self.costs.own_lines));
        }
    }

    /// A block of shared memory, zeroed only when it is new.
    pub(crate) fn alloc(&mut self, layout: Layout) -> NonNull<u8> {
        let (block, used) = self.arena.alloc(layout);
        self.lines.resize(self.arena.lines(), Line::default());
        if used {
            let first = self.arena.line(block.as_ptr() as usize).unwrap_or(0);
            let last = self.arena.line(block.as_ptr() as usize + layout.size().max(1) - 1);
            for line in &mut self.lines[first..=last.unwrap_or(first)] {
                line.renew();
            }
        }
        block
    }

    /// Takes a block of shared memory back.
    pub(crate) fn free(&mut self, block: NonNull<u8>, layout: Layout) {
        self.arena.free(block, layout);
    }

    /// Does this CPU run user code?
    pub(crate) fn is_in_user_mode(&self, cpu: u32) -> bool {
        self.cpus[cpu as usize].mode == Mode::User
    }

    /// Says where a CPU's handler will look (address and bytes): only to be faster.
    pub(crate) fn will_want(&mut self, cpu: u32, hot: [(usize, usize); HOT]) {
        self.hot[cpu as usize] = hot;
    }

    /// What the engine knows of each CPU; the kernel adds the rest.
    pub(crate) fn outcomes(&self) -> Vec<CpuOutcome> {
        self.cpus
            .iter()
            .map(|cpu| CpuOutcome {
                finished: cpu.finished,
                time: cpu.time_split(),
                interrupts: cpu.interrupts,
                lines: cpu.lines,
                fabric: cpu.fabric(),
                ..CpuOutcome::default()
            })
            .collect()
    }

    /// Suspensions so far: what the host flushed.
    #[cfg(test)]
    pub(crate) fn switches(&self) -> u64 {
        self.switches
    }

    #[inline]
    fn me(&mut self) -> &mut CpuState {
        &mut self.cpus[self.current as usize]
    }

    fn note(&mut self, event: Event) {
        let time = self.me().time;
        self.timelines.push(CpuId(self.current), time, event);
    }

    const fn key(time: u64, cpu: u32) -> u64 {
        (time << CPU_BITS) | cpu as u64
    }

    /// May the current CPU make a step at its time?
    #[inline]
    fn in_order(&mut self) -> bool {
        let cpu = self.current;
        Self::key(self.me().time, cpu) <= self.head
    }

    /// Queues a CPU; an earlier entry of it no longer counts.
    ///
    /// A CPU that computes for long and is interrupted often would leave an entry behind each time.
    /// So the first one left is remembered, and stands in for any later time until it comes up.
    fn enqueue(&mut self, cpu: u32, at: u64) {
        assert!(at < 1 << (64 - CPU_BITS), "virtual time ends after 75 minutes");
        self.due[cpu as usize] = at;
        if self.left_over[cpu as usize] <= at {
            return;
        }
        let key = Self::key(at, cpu);
        self.queue.push(key);
        self.head = self.head.min(key);
    }

    /// Makes a suspended CPU go on at `at` at the latest.
    fn wake_by(&mut self, cpu: u32, at: u64) {
        let at = at.max(self.cpus[cpu as usize].time);
        let due = self.due[cpu as usize];
        if due > at {
            let left_over = &mut self.left_over[cpu as usize];
            if *left_over == NEVER {
                *left_over = due;
            }
            self.enqueue(cpu, at);
        }
    }

    /// Removes entries that don't count from the head of the queue, and remembers the head.
    fn refresh_head(&mut self) {
        while let Some(key) = self.queue.peek() {
            let (cpu, time) = (key & ((1 << CPU_BITS) - 1), key >> CPU_BITS);
            let due = self.due[cpu as usize];
            if due == time {
                self.head = key;
                return;
            }
            self.queue.pop();
            if self.left_over[cpu as usize] == time {
                self.left_over[cpu as usize] = NEVER;
                if due != NEVER && due > time {
                    // It stood in for this.
                    self.queue.push(due << CPU_BITS | cpu);
                }
            }
        }
        self.head = NEVER;
    }
}

/// The running engine, if a CPU is running on this thread.
#[inline]
fn current() -> Option<NonNull<Engine>> {
    NonNull::new(CURRENT.get())
}

/// Uses the running engine. `f` must not suspend (I1).
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&mut Engine) -> R) -> R {
    let mut engine = current().expect("a CPU of a machine is running");
    // SAFETY: CURRENT points to the engine of the run in progress, which outlives it; by I1 no
    // other reference to it is alive: the run loop holds none while a coroutine runs, and `f`
    // does not suspend.
    f(unsafe { engine.as_mut() })
}

/// Is a CPU running (rather than the machine setting up)?
pub(crate) fn is_running() -> bool {
    current().is_some()
}

/// The current CPU.
#[inline]
pub(crate) fn cpu() -> u32 {
    with(|e| e.current)
}

/// Its time.
#[inline]
pub(crate) fn now() -> Time {
    with(|e| Time::from_ps(e.me().time))
}

/// What the engine knows of each CPU so far, and the time.
pub(crate) fn outcome_so_far() -> (Time, Vec<CpuOutcome>) {
    with(|e| (Time::from_ps(e.me().time), e.outcomes()))
}

/// Runs `body` such that its accesses cost nothing and let nobody else run.
pub(crate) fn silently<R>(body: impl FnOnce() -> R) -> R {
    let engine = CURRENT.replace(ptr::null_mut());
    let result = body();
    CURRENT.set(engine);
    result
}

/// Leaves the CPU to others until its queue entry is first.
fn suspend() {
    let here = 0u8;
    let yielder = with(|e| {
        e.switches += 1;
        e.stacks[e.current as usize] = &raw const here as usize;
        e.me().yielder.expect("set when the coroutine began")
    });
    // SAFETY: the yielder lives in the frame of the coroutine that is running here.
    unsafe { (*yielder).suspend(()) };
}

/// A step at the current time: takes interrupts that are due and waits for its turn.
#[inline]
pub(crate) fn step() {
    loop {
        let (in_order, due) = with(|e| {
            e.settle();
            (e.in_order(), e.me().is_due())
        });
        if due {
            interrupt::take();
        } else if in_order {
            return;
        } else {
            with(|e| {
                let (cpu, time) = (e.current, e.me().time);
                e.enqueue(cpu, time);
            });
            suspend();
        }
    }
}

/// Takes interrupts that are due. Unlike [`step`], for what touches nothing shared and need not
/// wait.
#[inline]
fn take_due() {
    while with(|e| e.me().is_due()) {
        interrupt::take();
    }
}

/// Time that passes without touching anything shared, and without a chance for interrupts.
#[inline]
pub(crate) fn charge(time: Time) {
    with(|e| {
        e.me().spend(time.ps());
        e.settle();
    });
}

/// As [`charge`], and others and interrupts get their turn once the CPU has run ahead far enough.
#[inline]
pub(crate) fn charge_private(time: Time) {
    let turn = with(|e| {
        let head = e.head >> CPU_BITS;
        e.me().spend(time.ps());
        e.settle();
        let me = e.me();
        me.time > head.saturating_add(LOOKAHEAD) || me.is_due()
    });
    if turn {
        step();
    }
}

/// A computation of this length; interrupts are taken when they arrive, and come on top, and so
/// does what the fabric takes ([`fabric`]).
pub(crate) fn compute(length: Time) {
    let mut left = length.ps();
    take_due();
    while left > 0 {
        let alone = with(|e| {
            let (cpu, head) = (e.current, e.head);
            let me = e.me();
            let stop = me.next_event().max(me.time);
            let end = (me.time + left).min(stop);
            if Engine::key(end, cpu) <= head {
                left -= end - me.time;
                me.spend_until(end);
                left += e.owed();
                return true;
            }
            me.interruptible = true;
            e.enqueue(cpu, end);
            false
        });
        if !alone {
            let before = now().ps();
            suspend();
            with(|e| {
                let me = e.me();
                me.interruptible = false;
                left -= me.time - before;
                left += e.owed();
            });
        }
        take_due();
    }
}

/// Sets where time goes, and says where it went before.
pub(crate) fn mode(mode: Mode) -> Mode {
    with(|e| std::mem::replace(&mut e.me().mode, mode))
}

/// Keeps an event for the timeline.
pub(crate) fn note(event: Event) {
    with(|e| e.note(event));
}

/// Stops the run: a promise is broken. The CPU does not go on.
pub(crate) fn fail(violation: &oracle::Violation) -> ! {
    with(|e| {
        let violation = e.report(violation);
        e.violation.get_or_insert(violation);
    });
    loop {
        suspend();
    }
}
