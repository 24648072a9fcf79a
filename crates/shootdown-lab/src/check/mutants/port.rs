//! The port that the scenes run on: two words of CPU numbers, two tag slots, and a switch for
//! everything a scene may want to be different.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

use shootdown::cpu_set::{AtomicCpuSet, Bits};
use shootdown::facts::{SplitTables, TagScope};
use shootdown::platform::{CpuSetOf, Pinned};
use shootdown::sync::{AtomicU64, Ordering};
use shootdown::tags::broadcast::SharedTags;
use shootdown::tags::generations::Generations;
use shootdown::{
    CpuId, Facts, Invalidate, IrqsOff, KickError, PerCpu, Platform, Policy, Reach, Regime, Slots,
    Stalled, System, Tag, VaRange, layout, online,
};
use shootdown_machine::hostile::TableId;
use shootdown_machine::hunt::hw::{self, Architecture, Target};
use shootdown_machine::hunt::{MAX_CPUS, Memory};

/// When may a CPU wait?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// With interrupts on, outside of handlers.
    WithInterruptsOn,
    /// Outside of handlers.
    InTasks,
    /// Anywhere: the port relies on the library to refuse.
    Anywhere,
    /// Nowhere.
    Nowhere,
}

/// What a scene's machine and port are like.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The library's number of each CPU.
    pub numbers: [u32; MAX_CPUS],
    /// The mechanisms.
    pub policy: &'static Policy,
    /// The hardware.
    pub facts: &'static Facts,
    /// Whose rules the MMU follows.
    pub architecture: Architecture,
    /// How many tags there are for all CPUs, beside slots.
    pub shared_tags: u8,
    /// When the port lets a CPU wait.
    pub waits: Waits,
    /// Waits may be given up at any turn.
    pub gives_up: bool,
    /// Loading the kernel's tables keeps what is cached of them.
    pub keeps: bool,
    /// Notes of what a CPU used and forgot are kept, to be compared with what others know of it.
    pub notes: bool,
}

/// Tags, one table for both halves.
pub static TAGGED: Facts = Facts {
    tag_scope: shootdown::facts::TagScope::PerCpu,
    tag_bits: 12,
    ceiling: 3,
    ..Facts::X86_64_MINIMUM
};

/// The first of the tags for all CPUs, beyond those of the slots.
const FIRST_SHARED: Tag = Tag(7);

impl Rules {
    /// Everything this project has, on a machine with tags.
    pub const USUAL: Self = Self {
        numbers: [0, 1, 2, 3, 4, 5, 6, 7],
        policy: &Policy::SHOOTDOWN,
        facts: &TAGGED,
        architecture: Architecture::X86_64,
        shared_tags: 0,
        waits: Waits::WithInterruptsOn,
        gives_up: false,
        keeps: false,
        notes: false,
    };
}

/// Shared state of the port, in the memory of the hunt.
struct State {
    rules: Rules,
    system: NonNull<System<Rig>>,
    cpus: [Option<NonNull<PerCpu<Rig>>>; MAX_CPUS],
    kernel: TableId,
    tags: Option<NonNull<Generations<1, MAX_CPUS>>>,
    shared_tags: Option<NonNull<SharedTags>>,
    /// A kick came at a bad moment, and must be repeated before user code runs.
    again: [Cell<bool>; MAX_CPUS],
    used: [Note; MAX_CPUS],
    forgot: [Note; MAX_CPUS],
    dummy: AtomicU64,
}

/// How often a CPU has done something: as the others may see it, and in truth. Whoever relies on
/// its being over has to see the truth.
struct Note {
    seen: AtomicU64,
    truth: Cell<u64>,
}

impl Note {
    const fn new() -> Self {
        Self { seen: AtomicU64::new(0), truth: Cell::new(0) }
    }

    fn take(&self) {
        let next = self.truth.get() + 1;
        self.seen.store(next, Ordering::Relaxed);
        self.truth.set(next);
    }

    fn is_known(&self) -> bool {
        self.seen.load(Ordering::Relaxed) == self.truth.get()
    }
}

thread_local! {
    static STATE: Cell<Option<&'static State>> = const { Cell::new(None) };
}

fn state() -> &'static State {
    STATE.get().expect("the port was booted")
}

fn me() -> usize {
    hw::this_cpu().index()
}

/// The library's number of a CPU.
pub fn number(cpu: usize) -> CpuId {
    CpuId(state().rules.numbers[cpu])
}

/// Boots the port. `kernel` is a root without a user half.
pub fn boot(cpus: u8, rules: Rules, kernel: TableId) {
    // The library asks for the policy while it is placed.
    POLICY.set(rules.policy);
    let system = hw::place(System::new());
    let mut slots = [None; MAX_CPUS];
    for (cpu, slot) in slots.iter_mut().enumerate().take(usize::from(cpus)) {
        let placed = hw::place(PerCpu::new());
        for part in layout::per_cpu::<Rig>() {
            // SAFETY: the part lies inside of the object.
            let start = unsafe { placed.cast::<u8>().add(part.offset) };
            hw::name(start, part.len, || format!("cpu{cpu}: {}", part.name));
            if part.own {
                hw::own(start, part.len);
            }
        }
        *slot = Some(placed);
    }
    let facts = rules.facts;
    let tags = (facts.tag_scope == TagScope::System).then(|| {
        let pairs = facts.split_tables != SplitTables::No;
        hw::place(Generations::new(facts.tag_bits, pairs, cpus.into()).expect("enough tags"))
    });
    let shared_tags = (rules.shared_tags != 0).then(|| {
        let tags = SharedTags::with_count(FIRST_SHARED, rules.shared_tags.into(), facts.tag_bits);
        hw::place(tags.expect("the tags fit"))
    });
    let placed = hw::place(State {
        rules,
        system,
        cpus: slots,
        kernel,
        tags,
        shared_tags,
        again: [const { Cell::new(false) }; MAX_CPUS],
        used: [const { Note::new() }; MAX_CPUS],
        forgot: [const { Note::new() }; MAX_CPUS],
        dummy: AtomicU64::new(0),
    });
    // SAFETY: placed for the length of this run; the next run's `boot` replaces the reference
    // first.
    STATE.set(Some(unsafe { placed.as_ref() }));
}

thread_local! {
    static POLICY: Cell<&'static Policy> = const { Cell::new(&Policy::SHOOTDOWN) };
}

/// Interrupts are off, or what comes is not maskable: scenes turn them off, or stay on on purpose.
pub fn irqs_off(pin: &Pin) -> IrqsOff<'_, Rig> {
    // SAFETY: a scene that leaves them on has handlers that keep to what non-maskable ones may do.
    unsafe { IrqsOff::assume(pin) }
}

/// The executing CPU comes online.
pub fn come_online() {
    hw::without_irqs(|| online(irqs_off(&Rig::pin()))).expect("the facts fit");
}

/// Answers a kick. From the handler of an interrupt, and wherever one has to be repeated.
pub fn answer() {
    let again = shootdown::on_kick(irqs_off(&Rig::pin())) == shootdown::Served::Again;
    state().again[me()].set(again);
}

/// Repeats the kicks that came at a bad moment.
pub fn catch_up() {
    while state().again[me()].get() {
        hw::without_irqs(answer);
    }
}

/// This CPU has used user memory.
pub fn note_use() {
    if state().rules.notes {
        state().used[me()].take();
    }
}

fn note_forgotten() {
    if state().rules.notes {
        state().forgot[me()].take();
    }
}

/// Are there tags for all CPUs beside slots?
pub fn has_shared_tags() -> bool {
    state().shared_tags.is_some()
}

/// Does the executing CPU know that what the other used is over?
pub fn uses_are_over(cpu: usize) -> bool {
    state().used[cpu].is_known()
}

/// Does the executing CPU know all that the other forgot?
pub fn forgetting_is_over(cpu: usize) -> bool {
    state().forgot[cpu].is_known()
}

/// The port.
#[derive(Debug)]
pub struct Rig;

/// Proof that code stays on its CPU: a CPU of a hunt runs one program.
#[derive(Debug)]
pub struct Pin(CpuId, PhantomData<*mut ()>);

// SAFETY: a program, and all that it calls, runs on one CPU.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

// SAFETY: (1, 4) Slots, system and policy are set once per run, before any CPU runs. (2, 3) The
// machine keeps an interrupt pending until its CPU takes it, and the handler then knows what the
// sender knew. (5) A kick that came at a bad moment is repeated before user code runs (`catch_up`).
unsafe impl Platform for Rig {
    type Pin = Pin;
    type Regime = Rig;
    type Mask = AtomicCpuSet<2>;
    type Slots = Slots<2>;
    type Tags = Generations<1, MAX_CPUS>;

    fn pin() -> Pin {
        Pin(number(me()), PhantomData)
    }

    fn system() -> &'static System<Self> {
        // SAFETY: placed for the length of the run.
        unsafe { state().system.as_ref() }
    }

    fn tags() -> Option<&'static Self::Tags> {
        // SAFETY: placed for the length of the run.
        state().tags.map(|tags| unsafe { tags.as_ref() })
    }

    fn shared_tags() -> Option<&'static SharedTags> {
        // SAFETY: as above.
        state().shared_tags.map(|tags| unsafe { tags.as_ref() })
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        let at = state().rules.numbers.iter().position(|n| *n == cpu.0)?;
        // SAFETY: placed for the length of the run.
        state().cpus[at].map(|slot| unsafe { slot.as_ref() })
    }

    fn kick(targets: &CpuSetOf<Self>) -> Result<(), KickError> {
        let mut result = Ok(());
        for cpu in targets.iter() {
            let at = state().rules.numbers.iter().position(|n| *n == cpu.0);
            #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
            let at = at.expect("a target is a CPU") as u32;
            if !hw::kick(CpuId(at)) {
                result = Err(KickError::Unreachable(cpu));
            }
        }
        result
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        if state().rules.gives_up && hw::choose(2) == 1 {
            return Err(Stalled);
        }
        if hw::irqs_are_on() {
            hw::relax();
            catch_up();
        } else {
            // A sleep that a masked kick ends is no sleep.
            state().dummy.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn may_wait() -> bool {
        match state().rules.waits {
            Waits::WithInterruptsOn => hw::irqs_are_on(),
            Waits::InTasks => !hw::in_interrupt(),
            Waits::Anywhere => true,
            Waits::Nowhere => false,
        }
    }

    fn policy() -> &'static Policy {
        POLICY.get()
    }
}

fn pages(range: VaRange) -> (u32, u32) {
    #[allow(clippy::cast_possible_truncation)] // sixteen pages
    ((range.start() >> 12) as u32, (range.last() >> 12) as u32)
}

// SAFETY: (1, 2, 5, 7) as the machine does. (3) The facts are constant. (4) Nothing waits. (6) A
// load of a root comes after all loads before it.
unsafe impl Regime for Rig {
    type Root = TableId;

    fn facts() -> &'static Facts {
        state().rules.facts
    }

    unsafe fn load(root: TableId, tag: Tag, keep: bool) {
        hw::load_root(root, tag, keep);
        note_forgotten();
    }

    fn load_kernel() {
        hw::load_kernel(state().kernel, state().rules.keeps);
        note_forgotten();
    }

    fn publish() {
        hw::publish();
    }

    fn invalidate(what: Invalidate, reach: Reach) {
        let target = match what {
            Invalidate::Range { tag, range, leaf_only } => {
                let (first, last) = pages(range);
                Target::Pages { tag, first, last, leaf_only }
            }
            Invalidate::Tag(tag) => Target::Tag(tag),
            Invalidate::Kernel(range) => {
                let (first, last) = pages(range);
                Target::Kernel { first, last }
            }
            Invalidate::Everything => Target::Everything,
        };
        match reach {
            Reach::Local => hw::invalidate(target),
            Reach::Broadcast => hw::broadcast(target),
        }
    }

    fn sync(reach: Reach) {
        match reach {
            Reach::Local => hw::sync(),
            Reach::Broadcast => hw::sync_broadcast(),
        }
        note_forgotten();
    }
}

/// The models of memory under which a scene is played.
pub const MODELS: [Memory; 2] = [Memory::Weak, Memory::Tso];

/// The executing CPU starts on the kernel's tables and caches what it likes of them, as firmware
/// leaves it.
pub fn power_on() {
    hw::load_kernel(state().kernel, false);
}
