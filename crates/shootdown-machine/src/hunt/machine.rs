//! One run: the CPUs as coroutines, and what the machine knows of each.

mod step;
mod turn;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::Ordering;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use shootdown::CpuId;

use super::arena::Arena;
use super::cells::Cells;
use super::choice::{Candidate, Chooser, Footprint};
use super::hw::Change;
use super::io::TablePages;
use super::iommu::Iommu;
use super::memory::{FENCES, Location, MAX_CPUS, SharedMemory, mix};
use super::mmu::Mmu;
use super::powers::Powers;
use super::{Bounds, End, Event, Outcome, Sharing, Work, World};
use crate::hostile::{Descriptor, Word};
use crate::oracle::{Invariant, Violation};

use step::{obey, suspend_for_others};
pub(super) use step::{relax, step, stop};

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
    /// The hypervisor may take it away so many times more.
    pub absences: u8,
    /// The hypervisor has taken it away.
    pub away: bool,
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
            absences: 0,
            away: false,
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
    pub iommu: Iommu,
    /// Where the I/O page tables are, if there are any.
    pub io_tables: Option<TablePages>,
    pub cpus: Vec<CpuState>,
    /// Whose step it is.
    pub current: u8,
    /// Whose coroutine runs: until it is suspended, not always `current`'s.
    executing: u8,
    pub steps: u64,
    pub end: Option<End>,
    pub events: Vec<Event>,
    pub work: Work,
    pub witnesses: Vec<&'static str>,
    world: *const dyn World,
    chooser: *mut dyn Chooser,
    choices: Vec<u16>,
    candidates: Vec<Candidate>,
    pub wants_state: bool,
    /// The CPUs run: before that, nothing is a step.
    pub running: bool,
    /// What is known of words that only one CPU uses, or nobody writes; `None`: every access is a
    /// step.
    pub sharing: Option<Sharing>,
    pub cells: Cells,
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
    // SAFETY: the pointer is set for the length of `run`, whose machine outlives it; borrows are
    // short: `f` neither suspends the CPU nor calls code under test.
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
    run_with(world, powers, bounds, chooser, None)
}

/// The same, where accesses that nobody could notice are no steps; which ones, it learns from run
/// to run. For worlds without interrupts. A run that finds out that it has taken too much for
/// private is abandoned.
///
/// # Panics
/// As [`run`].
pub fn run_sharing(
    world: &dyn World,
    powers: Powers,
    bounds: Bounds,
    chooser: &mut dyn Chooser,
    sharing: &mut Sharing,
) -> Outcome {
    run_with(world, powers, bounds, chooser, Some(sharing))
}

fn run_with(
    world: &dyn World,
    powers: Powers,
    bounds: Bounds,
    chooser: &mut dyn Chooser,
    mut sharing: Option<&mut Sharing>,
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
    // SAFETY: only the lifetimes are erased; both references outlive this function, and nothing
    // that holds these pointers outlives it (`Running`).
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
        iommu: Iommu::new(powers),
        io_tables: None,
        cpus: (0..cpus).map(|_| CpuState::new()).collect(),
        current: 0,
        executing: 0,
        steps: 0,
        end: None,
        events: Vec::new(),
        work: Work::default(),
        witnesses: Vec::new(),
        world,
        chooser,
        choices: Vec::new(),
        candidates: Vec::with_capacity(3 * MAX_CPUS),
        wants_state,
        running: false,
        sharing: sharing.as_deref_mut().map(std::mem::take),
        cells: Cells::default(),
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
    if let (Some(sharing), Some(learnt)) = (sharing, hunt.sharing.take()) {
        *sharing = learnt;
    }
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
        work: Work { steps: hunt.steps, ..hunt.work },
        events: hunt.events,
    }
}

type Cpu = Coroutine<(), (), ()>;

/// The coroutines of a run. Those that are suspended when it ends are abandoned: their frames are
/// never returned to, and what they own leaks.
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
        // Every CPU is about to take its first step; CPU 0 goes first unless someone decides
        // otherwise.
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
    // SAFETY: only the lifetime is erased: the coroutine is reset before `run`, which borrows the
    // world, returns.
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

/// The location that stands for a CPU's pending interrupt.
pub(super) const fn pending_bit(cpu: u8) -> Location {
    FENCES - 1 - cpu as Location
}

impl Hunt {
    /// The code under test.
    pub fn world(&self) -> *const dyn World {
        self.world
    }

    pub fn me(&mut self) -> &mut CpuState {
        &mut self.cpus[self.current as usize]
    }

    /// Adds to what this CPU has seen.
    #[inline]
    pub fn saw(&mut self, what: u64) {
        let me = self.me();
        me.history = mix(me.history ^ what);
    }

    /// Adds to what the machine had to do. What happens while the world boots is no part of it.
    #[inline]
    pub fn works(&mut self, add: impl FnOnce(&mut Work)) {
        if self.running {
            add(&mut self.work);
        }
    }

    /// Tells the story, if it is recorded. What the hardware does while the world boots is no part
    /// of it.
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
        let violation = Violation::new(invariant, CpuId(u32::from(cpu)), details);
        self.end.get_or_insert(End::Violation(Box::new(violation)));
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

    /// Hash of the whole state: what every CPU has seen and done, and what memory and hardware
    /// hold.
    pub fn state(&mut self) -> u64 {
        let mut hash = self.memory.hash() ^ self.mmu.hash() ^ self.iommu.hash();
        hash ^= self.cells.hash();
        // SAFETY: the world outlives the run.
        hash ^= unsafe { &*self.world }.state();
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
