//! Ports that can be hunted: what the model kernel asks of one, and the default.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use shootdown::cpu_set::{AtomicCpuSet, Bits};
use shootdown::facts::Facts;
use shootdown::paravirt::{HypercallError, PreemptedWord, RemoteFlush};
use shootdown::platform::{CpuSetOf, KickError, Pinned, Platform, Stalled};
use shootdown::policy::Policy;
use shootdown::regime::{Invalidate, Reach, Regime};
use shootdown::tags::broadcast::SharedTags;
use shootdown::tags::generations::Generations;
use shootdown::{
    AddressSpace, CpuId, IrqsOff, PerCpu, Served, Slots, Stride, System, Tag, VaRange,
    user_access_ok,
};

use super::{Config, Guest, KernelMutant, Library, Split};
use crate::hostile::TableId;
use crate::hunt::MAX_CPUS;
use crate::hunt::hw::{self, Forget, Target};

/// A port of the library that the model kernel can run on: a [`Platform`] and a [`Regime`] written
/// with [`hw`]. Pages are the addresses' bits above 12; roots are tables of the hunt.
pub trait Port: Platform<Regime: Regime<Root = TableId>> {
    /// Places what the port needs in the memory that the CPUs share ([`Library::place`],
    /// [`hw::place`]). Called once for every run, before anything else; `kernel` is a root
    /// without a user half.
    fn boot(cpus: u8, config: &Config, kernel: TableId);

    /// What the handler of the interrupt does that [`Platform::kick`] raises.
    fn interrupt(irqs: IrqsOff<'_, Self>) -> Served {
        shootdown::on_kick(irqs)
    }

    /// The program of the executing CPU belongs to this space from now on; `None`: to none.
    fn task(space: Option<&'static AddressSpace<Self>>) {
        let _ = space;
    }

    /// Which CPU of the machine has this number.
    #[must_use]
    fn place_of(cpu: CpuId) -> usize {
        cpu.index()
    }

    /// What the hypervisor does when it takes the executing CPU away and brings it back, where the
    /// port asked for that ([`hw::virtual_cpus`]).
    fn absent() {}
}

/// The default port: does what the contracts of [`Platform`] and [`Regime`] say, under the facts
/// and the policy of the [`Config`], and nothing more. Its sets of CPUs have `W` words.
#[derive(Debug)]
pub struct HuntPort<const W: usize = 1>;

struct State<const W: usize> {
    library: Cell<Option<Library<HuntPort<W>>>>,
    tags: Option<NonNull<Generations<4, MAX_CPUS>>>,
    shared_tags: Option<NonNull<SharedTags>>,
    tasks: [Cell<Option<&'static AddressSpace<HuntPort<W>>>>; MAX_CPUS],
    shared: Shared,
}

/// What does not depend on the width of sets.
struct Shared {
    config: Config,
    facts: Facts,
    kernel: TableId,
    /// Which CPUs the hypervisor has taken away.
    words: [PreemptedWord; MAX_CPUS],
    policy: Policy,
}

/// Times that a hypervisor takes each CPU away in a run, at most.
const ABSENCES: u8 = 2;

thread_local! {
    static STATE: Cell<*const ()> = const { Cell::new(ptr::null()) };
    static SHARED: Cell<Option<&'static Shared>> = const { Cell::new(None) };
}

fn state<const W: usize>() -> &'static State<W> {
    let state = STATE.get();
    assert!(!state.is_null(), "the kernel boots the port first");
    // SAFETY: `boot` of this run stored it, with the same width: a world has one port.
    unsafe { &*state.cast() }
}

fn shared() -> &'static Shared {
    SHARED.get().expect("the kernel boots the port first")
}

fn breaks(mutant: KernelMutant) -> bool {
    shared().config.breaks(mutant)
}

impl<const W: usize> Port for HuntPort<W> {
    fn boot(cpus: u8, config: &Config, kernel: TableId) {
        let pairs = config.split != Split::Off;
        let tags = (config.wide != 0).then(|| {
            let tags = Generations::new(config.wide, pairs, cpus.into());
            hw::place(tags.unwrap_or_else(|e| panic!("{e}")))
        });
        let facts = config.facts();
        let shared_tags = (config.invlpgb != 0).then(|| {
            let (first, count) = (Config::FIRST_SHARED, config.invlpgb.into());
            let tags = SharedTags::with_count(first, count, facts.tag_bits);
            hw::place(tags.unwrap_or_else(|e| panic!("{e}")))
        });
        let placed = hw::place(State::<W> {
            library: Cell::new(None),
            tags,
            shared_tags,
            tasks: [const { Cell::new(None) }; MAX_CPUS],
            shared: Shared {
                config: *config,
                facts,
                kernel,
                words: [const { PreemptedWord::new() }; MAX_CPUS],
                policy: Policy { hypercall_from: u16::from(config.guest.calls()), ..config.policy },
            },
        });
        if config.guest != Guest::Off {
            hw::virtual_cpus(ABSENCES);
        }
        // SAFETY: placed just now; it stays for the whole run, and `boot` of the next run replaces
        // the reference before anything uses it.
        let state: &'static State<W> = unsafe { placed.as_ref() };
        STATE.set(ptr::from_ref(state).cast());
        SHARED.set(Some(&state.shared));
        state.library.set(Some(Library::place(cpus)));
    }

    fn place_of(cpu: CpuId) -> usize {
        let numbers = &shared().config.numbers;
        numbers.iter().position(|n| u32::from(*n) == cpu.0).unwrap_or(MAX_CPUS)
    }

    fn interrupt(irqs: IrqsOff<'_, Self>) -> Served {
        if breaks(KernelMutant::DeafHandler) { Served::Done } else { shootdown::on_kick(irqs) }
    }

    fn absent() {
        let word = &shared().words[hw::this_cpu().index()];
        let loaded = hw::leave_guest();
        // SAFETY: this CPU does nothing between the two.
        unsafe { word.stopped() };
        // SAFETY: what it is to forget it forgets on its way in, before its next step.
        hw::enter_guest(loaded, unsafe { word.resumes() });
    }

    fn task(space: Option<&'static AddressSpace<Self>>) {
        state::<W>().tasks[hw::this_cpu().index()].set(space);
    }
}

/// Proof that code stays on its CPU: a CPU of a hunt runs one program.
#[derive(Debug)]
pub struct HuntPin(CpuId, PhantomData<*mut ()>);

// SAFETY: a program, and all that it calls, runs on the coroutine of one CPU.
unsafe impl Pinned for HuntPin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

// SAFETY: (1) slots are placed once per run, before any CPU runs. (2, 3) The machine keeps a
// pending interrupt until the CPU takes it, with interrupts off, and the handler then knows what
// the sender knew. (4) Both live as long as the run. (5) The interrupt is maskable. (6, 7) `absent`
// keeps to the hypervisor's half of the word, and `hw::forget_on` lets both CPUs know of each other
// what they did.
unsafe impl<const W: usize> Platform for HuntPort<W> {
    type Pin = HuntPin;
    type Regime = HuntRegime<W>;
    type Mask = AtomicCpuSet<W>;
    type Slots = Slots<6>;
    type Tags = Generations<4, MAX_CPUS>;

    fn pin() -> HuntPin {
        let number = shared().config.numbers[hw::this_cpu().index()];
        HuntPin(CpuId(number.into()), PhantomData)
    }

    fn system() -> &'static System<Self> {
        state::<W>().library.get().expect("placed by `boot`").system()
    }

    fn tags() -> Option<&'static Self::Tags> {
        // SAFETY: placed by `boot` of this run, and there until the run is over.
        state::<W>().tags.map(|tags| unsafe { tags.as_ref() })
    }

    fn shared_tags() -> Option<&'static SharedTags> {
        // SAFETY: as in `tags`.
        state::<W>().shared_tags.map(|tags| unsafe { tags.as_ref() })
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        state::<W>().library.get().expect("placed by `boot`").slot(machine::<W>(cpu))
    }

    fn kick(targets: &CpuSetOf<Self>) -> Result<(), KickError> {
        let mut result = Ok(());
        for cpu in targets.iter() {
            if !hw::kick(machine::<W>(cpu)) {
                result = Err(KickError::Unreachable(cpu));
            }
        }
        result
    }

    fn relax(_: &HuntPin) -> Result<(), Stalled> {
        hw::relax();
        Ok(())
    }

    fn may_wait() -> bool {
        hw::irqs_are_on()
    }

    fn policy() -> &'static Policy {
        &shared().policy
    }

    fn preempted(cpu: CpuId) -> Option<&'static PreemptedWord> {
        shared().words.get(Self::place_of(cpu)).filter(|_| shared().config.guest.marks())
    }

    fn flush_remote(flush: &RemoteFlush<'_, Self>) -> Result<(), HypercallError> {
        if !shared().config.guest.calls() {
            return Err(HypercallError::NotOffered);
        }
        if hw::choose(4) == 3 {
            hw::witness("hypercall-fails");
            return Err(HypercallError::Status(1));
        }
        for cpu in flush.cpus.iter().map(machine::<W>) {
            match &flush.pages {
                Some(runs) if !flush.freed_tables => {
                    for run in runs.as_slice() {
                        let range = VaRange::new(run.start, run.pages.into(), Stride::Page4K);
                        let (first, last) = pages(range.expect("a part of a range"));
                        hw::forget_on(cpu, Forget::Pages { first, last });
                    }
                }
                _ => hw::forget_on(cpu, Forget::Everything),
            }
        }
        hw::witness("hypercall");
        Ok(())
    }
}

/// The CPU of the machine that has this number.
fn machine<const W: usize>(cpu: CpuId) -> CpuId {
    #[allow(clippy::cast_possible_truncation)] // at most MAX_CPUS
    CpuId(HuntPort::<W>::place_of(cpu) as u32)
}

/// The MMU of the executing CPU, as [`HuntPort`] uses it.
#[derive(Debug)]
pub struct HuntRegime<const W: usize = 1>;

/// A non-maskable interrupt may come now: its handler reads user memory of the task it has
/// interrupted, if the library lets it.
fn nmi<const W: usize>() {
    if !shared().config.nmi || hw::choose(2) == 0 {
        return;
    }
    let Some(space) = state::<W>().tasks[hw::this_cpu().index()].get() else { return };
    if breaks(KernelMutant::UncheckedNmi) || user_access_ok(&HuntPort::<W>::pin(), space) {
        hw::witness("nmi-reads-user-memory");
        hw::user_code();
    } else {
        hw::witness("nmi-refused");
    }
}

/// Does `f`; twice where the hardware has defects that the port knows of.
fn thoroughly(once: KernelMutant, f: impl Fn()) {
    f();
    if shared().config.defects && !breaks(once) {
        f();
    }
}

fn pages(range: VaRange) -> (u32, u32) {
    #[allow(clippy::cast_possible_truncation)] // the kernel has fewer than 2^32 pages
    ((range.start() >> 12) as u32, (range.last() >> 12) as u32)
}

// SAFETY: (1, 2, 5) as the hardware does; where it has defects that are declared, everything is
// done twice. (3) The facts are the configuration's. (4) Nothing waits for another CPU. (6) A load
// of a root orders all loads before it. (7) The hardware takes a tag.
unsafe impl<const W: usize> Regime for HuntRegime<W> {
    type Root = TableId;

    fn facts() -> &'static Facts {
        &shared().facts
    }

    unsafe fn load(root: TableId, tag: Tag, keep: bool) {
        nmi::<W>();
        let keep = keep || breaks(KernelMutant::LoadKeeps);
        if shared().config.invlpgb != 0 && tag >= Config::FIRST_SHARED {
            hw::witness("tag-for-all-cpus");
        }
        hw::load_root(root, tag, keep);
        if !keep && shared().config.defects {
            hw::load_root(root, tag, keep);
        }
        nmi::<W>();
    }

    fn load_kernel() {
        thoroughly(KernelMutant::InvalidateOnce, || {
            let keep = shared().config.keeps && shared().policy.tags;
            hw::load_kernel(shared().kernel, keep);
        });
    }

    fn publish() {
        if !breaks(KernelMutant::NoPublish) {
            hw::publish();
        }
    }

    fn invalidate(what: Invalidate, reach: Reach) {
        nmi::<W>();
        let invalidate = |target| match reach {
            Reach::Local => hw::invalidate(target),
            Reach::Broadcast => hw::broadcast(target),
        };
        let target = match what {
            Invalidate::Range { tag, range, leaf_only } => {
                let (first, last) = pages(range);
                Target::Pages { tag, first, last, leaf_only }
            }
            Invalidate::Kernel(range) if breaks(KernelMutant::SparesGlobals) => {
                let (first, last) = pages(range);
                let tag = hw::loaded().map_or(Tag(0), |(_, tag)| tag);
                Target::Pages { tag, first, last, leaf_only: true }
            }
            Invalidate::Kernel(range)
                if !shared().config.defects || breaks(KernelMutant::TrustsPage) =>
            {
                let (first, last) = pages(range);
                Target::Kernel { first, last }
            }
            Invalidate::Tag(tag) => Target::Tag(tag),
            Invalidate::Kernel(_) | Invalidate::Everything => Target::Everything,
        };
        if (target, reach) == (Target::Everything, Reach::Broadcast) {
            hw::witness("broadcast-of-everything");
        }
        invalidate(target);
        if shared().config.defects && !breaks(KernelMutant::InvalidateOnce) {
            // The first must be over before the second can do better.
            if !breaks(KernelMutant::SyncOnce) {
                hw::sync();
            }
            invalidate(target);
        }
        nmi::<W>();
    }

    fn sync(reach: Reach) {
        match reach {
            _ if breaks(KernelMutant::NoSync) => {}
            Reach::Local => hw::sync(),
            Reach::Broadcast => hw::sync_broadcast(),
        }
    }
}
