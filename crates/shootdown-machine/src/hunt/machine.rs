//! One run: the CPUs as coroutines, the step, and who goes next.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::Ordering;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use shootdown::CpuId;

use super::arena::Arena;
use super::choice::{Actor, Candidate, Chooser, Decision, Footprint, Point};
use super::hw::Change;
use super::memory::{Buffered, FENCES, Location, MAX_CPUS, SharedMemory, mix};
use super::mmu::Mmu;
use super::powers::{Memory, Power, Powers};
use super::{Bounds, End, Event, Outcome, World};
use crate::hostile::{Descriptor, Word};
use crate::oracle::{Breach, Invariant};

/// Bytes of stack per CPU.
const STACK: usize = 256 << 10;

/// Can a CPU go on?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// It is about to take a step.
    Ready,
    /// It waits for a location to change, or for an interrupt.
    Waiting,
    /// Its program has ended; it still takes interrupts.
    Ended,
}

/// What a CPU is to do when it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Go {
    /// Its step.
    On,
    /// Take the pending interrupt first.
    Interrupt,
    /// Let another CPU go on.
    Away,
}

/// State of one CPU.
pub(super) struct CpuState {
    status: Status,
    command: Go,
    next: Footprint,
    pub irqs_on: bool,
    pub in_interrupt: bool,
    /// A handler has waited since this CPU's own wait loop turned last, and took its news.
    handler_waited: bool,
    /// An interrupt is pending, and brings what its senders knew.
    pub pending: bool,
    knowledge: Vec<u32>,
    /// Hash of all that this CPU has read and done: its code's state follows from it.
    pub history: u64,
    /// Accesses to memory that is this CPU's own.
    pub own_accesses: u64,
    /// The access announced last.
    pub location: Location,
    pub order: Ordering,
    yielder: *const Yielder<(), ()>,
}

impl CpuState {
    fn new() -> Self {
        Self {
            status: Status::Ready,
            command: Go::On,
            next: Footprint::everything(0),
            irqs_on: true,
            in_interrupt: false,
            handler_waited: false,
            pending: false,
            knowledge: Vec::new(),
            history: 0,
            own_accesses: 0,
            location: 0,
            order: Ordering::Relaxed,
            yielder: std::ptr::null(),
        }
    }
}

/// The machine of one run.
pub(super) struct Hunt {
    pub powers: Powers,
    pub bounds: Bounds,
    pub memory: SharedMemory,
    pub arena: Arena,
    pub mmu: Mmu,
    pub cpus: Vec<CpuState>,
    /// Whose step it is.
    pub current: u8,
    /// Whose coroutine runs: until it is suspended, not always `current`'s.
    executing: u8,
    pub steps: u64,
    pub end: Option<End>,
    pub events: Vec<Event>,
    pub witnesses: Vec<&'static str>,
    world: *const dyn World,
    chooser: *mut dyn Chooser,
    choices: Vec<u16>,
    candidates: Vec<Candidate>,
    wants_state: bool,
    /// The CPUs run: before that, nothing is a step.
    pub running: bool,
}

thread_local! {
    static CURRENT: Cell<*mut Hunt> = const { Cell::new(std::ptr::null_mut()) };
    static KEPT: Cell<Option<Box<Kept>>> = const { Cell::new(None) };
}

/// What one run leaves to the next on the same thread: memory that need not be asked for again.
struct Kept {
    memory: SharedMemory,
    arena: Arena,
    mmu: Mmu,
    stacks: Vec<DefaultStack>,
}

/// Is a hunt going on in this thread?
#[inline]
pub(super) fn is_hunting() -> bool {
    !CURRENT.get().is_null()
}

/// The machine that runs in this thread.
///
/// # Panics
/// When none does.
#[inline]
pub(super) fn with<R>(f: impl FnOnce(&mut Hunt) -> R) -> R {
    let hunt = CURRENT.get();
    assert!(!hunt.is_null(), "no hunt is running in this thread");
    // SAFETY: the pointer is set for the length of `run`, whose machine outlives it; borrows are short:
    // `f` neither suspends the CPU nor calls code under test.
    f(unsafe { &mut *hunt })
}

struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        CURRENT.set(std::ptr::null_mut());
    }
}

/// Panics of code under test are results, and are not printed.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !is_hunting() {
                before(info);
            }
        }));
    });
}

/// Runs one schedule of a world.
///
/// # Panics
/// When the world has no CPU, or too many.
pub fn run(
    world: &dyn World,
    powers: Powers,
    bounds: Bounds,
    chooser: &mut dyn Chooser,
) -> Outcome {
    let cpus = world.cpus();
    assert!((1..=MAX_CPUS).contains(&(cpus as usize)), "a hunt has 1 to {MAX_CPUS} CPUs");
    silence_panics();
    let kept = KEPT.take().unwrap_or_else(|| {
        Box::new(Kept {
            memory: SharedMemory::new(powers.memory),
            arena: Arena::new(),
            mmu: Mmu::new(),
            stacks: Vec::new(),
        })
    });
    let Kept { mut memory, mut arena, mut mmu, mut stacks } = *kept;
    memory.reset(powers.memory);
    arena.reset();
    mmu.reset(powers, cpus);
    let wants_state = chooser.wants_state();
    // SAFETY: only the lifetimes are erased; both references outlive this function, and nothing that holds
    // these pointers outlives it (`Running`).
    let (world, chooser) = unsafe {
        (
            std::mem::transmute::<*const (dyn World + '_), *const (dyn World + 'static)>(world),
            std::mem::transmute::<*mut (dyn Chooser + '_), *mut (dyn Chooser + 'static)>(chooser),
        )
    };
    let mut hunt = Hunt {
        powers,
        bounds,
        memory,
        arena,
        mmu,
        cpus: (0..cpus).map(|_| CpuState::new()).collect(),
        current: 0,
        executing: 0,
        steps: 0,
        end: None,
        events: Vec::new(),
        witnesses: Vec::new(),
        world,
        chooser,
        choices: Vec::new(),
        candidates: Vec::with_capacity(3 * MAX_CPUS),
        wants_state,
        running: false,
    };
    while stacks.len() < cpus as usize {
        stacks.push(DefaultStack::new(STACK).expect("the host has memory for another stack"));
    }
    CURRENT.set(&raw mut hunt);
    {
        let _running = Running;
        let result = catch_unwind(AssertUnwindSafe(|| drive(world, cpus, &mut stacks)));
        if let Err(payload) = result {
            let text = payload
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            with(|h| h.end.get_or_insert(End::Panic(text)).is_failure());
        }
    }
    let state = if wants_state { hunt.state() } else { 0 };
    hunt.witnesses.sort_unstable();
    hunt.witnesses.dedup();
    KEPT.set(Some(Box::new(Kept {
        memory: hunt.memory,
        arena: hunt.arena,
        mmu: hunt.mmu,
        stacks,
    })));
    Outcome {
        end: hunt.end.unwrap_or(End::Finished),
        steps: hunt.steps,
        choices: hunt.choices,
        witnesses: hunt.witnesses,
        state,
        events: hunt.events,
    }
}

type Cpu = Coroutine<(), (), ()>;

/// The coroutines of a run. Those that are suspended when it ends are abandoned: their frames are never
/// returned to, and what they own leaks.
struct Coroutines<'a> {
    cpus: Vec<Option<Cpu>>,
    stacks: &'a mut Vec<DefaultStack>,
}

impl Drop for Coroutines<'_> {
    fn drop(&mut self) {
        for mut coroutine in self.cpus.drain(..).flatten() {
            if coroutine.started() && !coroutine.done() {
                // SAFETY: nothing refers to the frames any more: no CPU runs again in this run, and
                // the machine's pointers to yielders are dropped with it.
                unsafe { coroutine.force_reset() };
            }
            if coroutine.done() {
                self.stacks.push(coroutine.into_stack());
            }
        }
    }
}

fn drive(world: *const dyn World, cpus: u8, stacks: &mut Vec<DefaultStack>) {
    // SAFETY: the world outlives the run.
    let world = unsafe { &*world };
    world.boot();
    let mut coroutines = Coroutines { cpus: (0..cpus).map(|_| None).collect(), stacks };
    with(|h| {
        h.running = true;
        // Every CPU is about to take its first step; CPU 0 goes first unless someone decides otherwise.
        for (cpu, state) in (0..).zip(&mut h.cpus) {
            state.next = Footprint { cpu, location: 0, write: false, everything: false };
        }
        h.schedule();
    });
    while let Some(cpu) = with(|h| {
        let over = h.end.is_some() || h.is_over();
        h.executing = h.current;
        (!over).then_some(h.current)
    }) {
        let coroutine = {
            let Coroutines { cpus, stacks } = &mut coroutines;
            cpus[cpu as usize].get_or_insert_with(|| {
                spawn(world, cpu, stacks.pop().expect("one stack for each CPU"))
            })
        };
        let result = coroutine.resume(());
        debug_assert!(matches!(result, CoroutineResult::Yield(())), "CPUs never return");
    }
    if with(|h| h.end.is_none()) {
        with(|h| h.running = false);
        world.finish();
    }
}

fn spawn(world: &dyn World, cpu: u8, stack: DefaultStack) -> Cpu {
    let world: *const dyn World = world;
    // SAFETY: only the lifetime is erased: the coroutine is reset before `run`, which borrows the world,
    // returns.
    let world = unsafe {
        std::mem::transmute::<*const (dyn World + '_), *const (dyn World + 'static)>(world)
    };
    Coroutine::with_stack(stack, move |yielder, ()| {
        with(|h| h.cpus[cpu as usize].yielder = yielder);
        obey(with(|h| h.cpus[cpu as usize].command));
        // SAFETY: as above.
        unsafe { &*world }.program(CpuId(u32::from(cpu)));
        with(|h| {
            h.note(|| "ends".to_owned());
            // An interrupt taken just before is another state than one taken now.
            h.saw(0x0e4d);
            h.me().irqs_on = true;
        });
        loop {
            with(|h| h.me().status = Status::Ended);
            suspend_for_others();
        }
    })
}

/// Lets the others go on; comes back when this CPU has been chosen, and has taken an interrupt if it was
/// to take one.
fn suspend_for_others() {
    let go = match with(Hunt::schedule) {
        Go::Away => {
            suspend();
            with(|h| h.me().command)
        }
        go => go,
    };
    obey(go);
}

fn suspend() {
    let yielder = with(|h| h.cpus[h.executing as usize].yielder);
    // SAFETY: the yielder lives on the coroutine's stack, and we run on it.
    unsafe { &*yielder }.suspend(());
}

/// The location that stands for a CPU's pending interrupt.
pub(super) const fn pending_bit(cpu: u8) -> Location {
    FENCES - 1 - cpu as Location
}

/// The run is over: this CPU never goes on. Neither does a world that looks at the end of a run, which is
/// no CPU.
pub(super) fn stop() -> ! {
    if with(|h| !h.running) {
        std::panic::resume_unwind(Box::new("the run is over"));
    }
    loop {
        suspend();
    }
}

/// Takes the interrupt, if that is what was decided. Says whether it did.
fn obey(go: Go) -> bool {
    if go != Go::Interrupt {
        return false;
    }
    let (world, cpu) = with(|h| {
        let Hunt { cpus, memory, current, .. } = h;
        let me = &mut cpus[*current as usize];
        me.pending = false;
        me.irqs_on = false;
        me.in_interrupt = true;
        // Where among the accesses to its own memory it comes is part of the CPU's state.
        me.history = mix(me.history ^ 0x1e57 ^ me.own_accesses << 16);
        memory.receive(*current, &me.knowledge);
        me.knowledge.clear();
        h.note(|| "takes the interrupt".to_owned());
        (h.world, h.current)
    });
    // SAFETY: the world outlives the run.
    unsafe { &*world }.interrupt(CpuId(u32::from(cpu)));
    with(|h| {
        h.note(|| "leaves the interrupt".to_owned());
        h.me().irqs_on = true;
        h.me().in_interrupt = false;
    });
    true
}

/// This CPU is about to do something that others can notice, or that interrupts may come before.
pub(super) fn step(location: Location, write: bool, everything: bool) {
    loop {
        let go = with(|h| {
            if !h.running {
                return Go::On;
            }
            let cpu = h.current;
            h.me().next = Footprint { cpu, location, write, everything };
            h.me().status = Status::Ready;
            h.schedule()
        });
        let taken = match go {
            Go::Away => {
                suspend();
                obey(with(|h| h.me().command))
            }
            go => obey(go),
        };
        if !taken {
            return;
        }
    }
}

/// A turn of a wait loop: comes back when something that this CPU loaded since the last turn has changed,
/// or after an interrupt.
pub(super) fn relax() {
    let news = with(|h| {
        let me = h.me();
        let taken = std::mem::replace(&mut me.handler_waited, me.in_interrupt);
        taken && !me.in_interrupt || h.memory.has_news(h.current)
    });
    if news {
        step(0, false, true);
    } else {
        with(|h| {
            let cpu = h.current;
            h.me().next = Footprint::everything(cpu);
            h.me().status = Status::Waiting;
        });
        suspend_for_others();
        with(|h| h.me().status = Status::Ready);
    }
    with(|h| h.memory.catch_up(h.current));
}

impl Hunt {
    pub fn me(&mut self) -> &mut CpuState {
        &mut self.cpus[self.current as usize]
    }

    /// Adds to what this CPU has seen.
    #[inline]
    pub fn saw(&mut self, what: u64) {
        let me = self.me();
        me.history = mix(me.history ^ what);
    }

    /// Tells the story, if it is recorded. What the hardware does while the world boots is no part of it.
    #[inline]
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if self.running {
            self.tell(text);
        }
    }

    /// Tells the story, the boot's too.
    #[inline]
    pub fn tell(&mut self, text: impl FnOnce() -> String) {
        if self.bounds.record {
            let (step, cpu) = (self.steps, self.current);
            self.events.push(Event { step, cpu, text: text() });
        }
    }

    /// A promise was broken. The caller stops the CPU.
    pub fn broken(&mut self, invariant: Invariant, cpu: u8, details: String) {
        let breach = Breach::new(invariant, CpuId(u32::from(cpu)), details);
        self.end.get_or_insert(End::Breach(Box::new(breach)));
    }

    /// Asks the chooser; `None` when the run is over.
    pub fn choose(&mut self, point: &Point<'_>) -> Option<usize> {
        // SAFETY: the chooser outlives the run, and nothing else uses it meanwhile.
        match unsafe { &mut *self.chooser }.choose(point) {
            Decision::Abandon => {
                self.end.get_or_insert(End::Abandoned);
                None
            }
            Decision::Take(option) => {
                // A schedule made for other code may ask for what there is not.
                let option = option.min(point.options() - 1);
                #[allow(clippy::cast_possible_truncation)] // fewer than 2^16 options
                if point.options() > 1 {
                    self.choices.push(option as u16);
                }
                Some(option)
            }
        }
    }

    /// Decides who goes next, and drains buffers on the way. `Away`: not the current CPU; `self.current`
    /// says who, or the run is over.
    fn schedule(&mut self) -> Go {
        loop {
            if self.end.is_some() {
                return Go::Away;
            }
            if self.steps >= self.bounds.steps {
                self.end = Some(End::Limit);
                return Go::Away;
            }
            if self.is_over() {
                return Go::Away;
            }
            self.list_candidates();
            let chosen = match self.candidates.len() {
                0 => {
                    self.stuck();
                    return Go::Away;
                }
                1 if !self.wants_state => 0,
                _ => {
                    let state = if self.wants_state { self.state() } else { 0 };
                    let candidates = std::mem::take(&mut self.candidates);
                    let chosen = self.choose(&Point::Next { candidates: &candidates, state });
                    self.candidates = candidates;
                    match chosen {
                        None => return Go::Away,
                        Some(chosen) => chosen,
                    }
                }
            };
            self.steps += 1;
            let Candidate { actor, .. } = self.candidates[chosen];
            if !matches!(actor, Actor::Drain(_)) {
                // How far the CPU's code has come is part of its state, even where a step shows it nothing.
                let me = &mut self.cpus[actor.cpu() as usize];
                me.history = mix(me.history ^ 0x57e9);
            }
            let (cpu, go) = match actor {
                Actor::Drain(cpu) => {
                    self.drain_one(cpu);
                    continue;
                }
                Actor::Cpu(cpu) => (cpu, Go::On),
                Actor::Interrupt(cpu) => (cpu, Go::Interrupt),
            };
            if cpu == self.current && !self.cpus[cpu as usize].yielder.is_null() {
                return go;
            }
            self.cpus[cpu as usize].command = go;
            self.current = cpu;
            return Go::Away;
        }
    }

    /// All programs have ended, all interrupts were taken, and all stores are visible: what is left to happen
    /// when the last program ends is in no other order for it.
    fn is_over(&self) -> bool {
        let quiet = |c: &CpuState| c.status == Status::Ended && !c.pending;
        self.cpus.iter().all(quiet)
            && (0..).zip(&self.cpus).all(|(cpu, _)| self.memory.buffered(cpu) == 0)
    }

    fn list_candidates(&mut self) {
        let Self { candidates, cpus, memory, mmu, powers, current, .. } = self;
        candidates.clear();
        let now = !powers.has(Power::LateInterrupts);
        let interruptible = |c: &CpuState| c.pending && c.irqs_on;
        let take = |cpu: u8| {
            let location = pending_bit(cpu);
            let footprint = Footprint { cpu, location, write: true, everything: false };
            Candidate { actor: Actor::Interrupt(cpu), footprint }
        };
        if now && let Some((cpu, _)) = (0..).zip(cpus.iter()).find(|(_, c)| interruptible(c)) {
            candidates.push(take(cpu));
            return;
        }
        let ready = |cpu: u8, c: &CpuState| match c.status {
            Status::Ready => true,
            Status::Waiting => memory.has_news(cpu),
            Status::Ended => false,
        };
        let mut add = |cpu: u8, c: &CpuState| {
            if ready(cpu, c) {
                candidates.push(Candidate { actor: Actor::Cpu(cpu), footprint: c.next });
            }
        };
        add(*current, &cpus[*current as usize]);
        for (cpu, state) in (0..).zip(cpus.iter()) {
            if cpu != *current {
                add(cpu, state);
            }
        }
        for (cpu, state) in (0..).zip(cpus.iter()) {
            if interruptible(state) {
                candidates.push(take(cpu));
            }
        }
        if memory.model() == Memory::Tso {
            for (cpu, _) in (0..).zip(cpus.iter()) {
                if let Some(location) = memory.oldest(cpu) {
                    // Walkers of every CPU read tables.
                    let everything = mmu.is_entry(location);
                    let footprint = Footprint { cpu, location, write: true, everything };
                    candidates.push(Candidate { actor: Actor::Drain(cpu), footprint });
                }
            }
        }
    }

    /// Nobody can go on, and not all programs have ended.
    fn stuck(&mut self) {
        let waiting: Vec<String> = (0u32..)
            .zip(&self.cpus)
            .filter(|(_, c)| c.status != Status::Ended)
            .map(|(cpu, c)| {
                format!("{}{}", CpuId(cpu), if c.irqs_on { "" } else { " (interrupts off)" })
            })
            .collect();
        let first = self.cpus.iter().position(|c| c.status != Status::Ended).unwrap_or(0);
        let wait = if waiting.len() == 1 { "waits" } else { "wait" };
        let details = format!("{} {wait} for ever", waiting.join(" and "));
        #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
        self.broken(Invariant::Progress, first as u8, details);
    }

    /// The oldest buffered store of a CPU becomes visible.
    fn drain_one(&mut self, cpu: u8) {
        if let Some(Buffered { location, value, native }) = self.memory.drain_one(cpu) {
            if let Some((at, width)) = native {
                super::hooks::write_native(at, width, value);
            }
            self.mmu.visible(&self.memory, location);
        }
    }

    /// All buffered stores of a CPU become visible.
    pub fn drain(&mut self, cpu: u8) {
        while self.memory.buffered(cpu) != 0 {
            self.drain_one(cpu);
        }
    }

    /// Raises the interrupt of a CPU.
    pub fn raise(&mut self, target: u8) {
        let knowledge = self.memory.knowledge(self.current);
        let target = &mut self.cpus[target as usize];
        target.pending = true;
        if target.knowledge.len() < knowledge.len() {
            target.knowledge.resize(knowledge.len(), 0);
        }
        for (to, from) in target.knowledge.iter_mut().zip(knowledge) {
            *to = (*to).max(from);
        }
    }

    /// An entry was written: walkers may read it, and the write has a name.
    pub fn written(&mut self, word: Word, to: Descriptor, location: Location) -> Change {
        let version = self.memory.version_of_last_store(self.current, location);
        self.mmu.written(word, to, version);
        const STALE: &str = "stale-elsewhere";
        let stale = self.running && !self.witnesses.contains(&STALE);
        if stale && self.mmu.is_cached_elsewhere(self.current, word) {
            self.witnesses.push(STALE);
        }
        if self.memory.buffered(self.current) == 0 {
            self.mmu.visible(&self.memory, location);
        }
        Change { word, version }
    }

    /// Something worth having seen happened.
    pub fn witness(&mut self, name: &'static str) {
        if !self.witnesses.contains(&name) {
            self.witnesses.push(name);
        }
    }

    /// Hash of the whole state: what every CPU has seen and done, and what memory and hardware hold.
    pub fn state(&mut self) -> u64 {
        let mut hash = self.memory.hash() ^ self.mmu.hash();
        for c in &self.cpus {
            let flags = u64::from(c.irqs_on)
                | u64::from(c.in_interrupt) << 1
                | u64::from(c.pending) << 2
                | (c.status as u64) << 3
                | u64::from(c.handler_waited) << 8;
            hash = mix(hash ^ c.history) ^ mix(flags);
            hash = mix(hash);
        }
        hash
    }
}
