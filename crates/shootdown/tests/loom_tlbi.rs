//! Machine-wide tags and hardware that broadcasts, under the `loom` model checker: a CPU that comes to a space,
//! perhaps under a fresh tag, against a flush of it, by each strategy; and, one step after the other, what
//! the hardware must be told.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown --release --test loom_tlbi`
#![cfg(loom)]

mod loom_support;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use loom_support::holds;
use shootdown::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown::facts::{Broadcast, Errata, SplitTables, TagScope};
use shootdown::mutant::Mutant;
use shootdown::tags::generations::Generations;
use shootdown::*;

const CPUS: usize = 2;
const SPACES: usize = 5;
/// Page 0 is a user page of the space, page 1 one of the kernel.
const PAGES: usize = 2;
const TAGS: usize = 8;

const ARM: Facts = Facts {
    tag_scope: TagScope::System,
    tag_bits: 2,
    broadcast: Broadcast::Tlbi { ranges: true },
    kick_all: true,
    ..Facts::X86_64_MINIMUM
};
static SPLIT: Facts =
    Facts { tag_bits: 3, split_tables: SplitTables::Yes { invalidate_other_tag: true }, ..ARM };
static PLAIN: Facts = ARM;
/// With a tag to pin.
static ROOMY: Facts = Facts { tag_bits: 3, ..ARM };
static REPEATS: Facts = Facts { errata: Errata { repeat_sync: true, ..ARM.errata }, ..ARM };
static SURVIVES: Facts = Facts { errata: Errata { survives_once: true, ..ARM.errata }, ..ARM };
static EARLY: Facts = Facts { errata: Errata { completes_early: true, ..ARM.errata }, ..ARM };

const fn by(strategy: Strategy) -> Policy {
    Policy { broadcast: Some(strategy), ..Policy::SHOOTDOWN }
}
static ALWAYS: Policy = by(Strategy::Always);
static STICKY: Policy = by(Strategy::Sticky);
static ACTIVE: Policy = by(Strategy::Active);
static TRIM: Policy = by(Strategy::Trim);

/// What one CPU has cached under one tag.
#[derive(Clone, Copy, Default)]
struct Cached {
    /// What it read of each page, and whether that has survived an invalidation.
    pages: [Option<(u64, bool)>; PAGES],
    /// A step of a walk.
    step: bool,
}

type Tlb = [Cached; TAGS];

/// Entry *s* of `tables` is the user page of space *s*: *s* + 1 while mapped, 0 afterwards.
struct World {
    system: System<Model>,
    cpus: [PerCpu<Model>; CPUS],
    tags: Generations<1, CPUS>,
    kicked: [AtomicBool; CPUS],
    tables: [AtomicU64; SPACES],
    kernel: AtomicU64,
    tlbs: [Mutex<Tlb>; CPUS],
    /// The space whose root each CPU has loaded, and the tag.
    loaded: [Cell<Option<(u64, Tag)>>; CPUS],
    /// Issued by each CPU and not synced.
    issued: [RefCell<Vec<Invalidate>>; CPUS],
    syncs: [Cell<u32>; CPUS],
    /// Said to be complete, and not complete on a CPU before it is interrupted.
    unfinished: [Mutex<Vec<Invalidate>>; CPUS],
}

std::thread_local! {
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
    static POLICY: Cell<&'static Policy> = const { Cell::new(&Policy::SHOOTDOWN) };
    static FACTS: Cell<&'static Facts> = const { Cell::new(&PLAIN) };
    /// One thread plays both CPUs: whoever waits plays the other.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

loom::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
}

fn world() -> &'static World {
    // SAFETY: set for the length of one execution by `begin`.
    unsafe { &*WORLD.get() }
}

fn me() -> u32 {
    CPU.with(Cell::get)
}

struct Model;
struct Pin(CpuId);

// SAFETY: a CPU is played by one thread at a time.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

// SAFETY: a kick sets a flag that the target looks at wherever its interrupts are on.
unsafe impl Platform for Model {
    type Pin = Pin;
    type Regime = Model;
    type Mask = AtomicCpuSet<1>;
    type Slots = Slots<2>;
    type Tags = Generations<1, CPUS>;

    fn pin() -> Pin {
        Pin(CpuId(me()))
    }

    fn system() -> &'static System<Self> {
        &world().system
    }

    fn tags() -> Option<&'static Self::Tags> {
        Some(&world().tags)
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        world().cpus.get(cpu.index())
    }

    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        for cpu in targets.iter() {
            world().kicked[cpu.index()].store(true, Ordering::Release);
        }
        Ok(())
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        if ALONE.get() {
            on(1 - me(), interrupts);
        } else {
            interrupts();
            thread::yield_now();
        }
        Ok(())
    }

    fn may_wait() -> bool {
        true
    }

    fn policy() -> &'static Policy {
        POLICY.get()
    }
}

// SAFETY: the TLBs below forget what they are told to, when they are told that it must be done.
unsafe impl Regime for Model {
    type Root = u64;

    fn facts() -> &'static Facts {
        FACTS.get()
    }

    unsafe fn load(root: u64, tag: Tag, keep: bool) {
        assert!(keep, "where hardware broadcasts, a switch flushes no tag that is not stale");
        world().loaded[me() as usize].set(Some((root, tag)));
        // The walker does not wait to be asked.
        access(0);
        access(1);
    }

    fn load_kernel() {
        world().loaded[me() as usize].set(None);
    }

    fn publish() {}

    fn invalidate(what: Invalidate, reach: Reach) {
        match reach {
            Reach::Local => forget(me(), what),
            Reach::Broadcast => world().issued[me() as usize].borrow_mut().push(what),
        }
    }

    fn sync(reach: Reach) {
        let me = me();
        let syncs = &world().syncs[me as usize];
        if reach == Reach::Local {
            return;
        }
        syncs.set(syncs.get() + 1);
        if FACTS.get().errata.repeat_sync && syncs.get() % 2 == 1 {
            return;
        }
        for what in world().issued[me as usize].take() {
            for cpu in 0..CPUS as u32 {
                if cpu != me && FACTS.get().errata.completes_early {
                    world().unfinished[cpu as usize].lock().unwrap().push(what);
                } else {
                    forget(cpu, what);
                }
            }
        }
    }
}

fn forget(cpu: u32, what: Invalidate) {
    let survives = FACTS.get().errata.survives_once;
    let mut tlb = world().tlbs[cpu as usize].lock().unwrap();
    for (tag, cached) in tlb.iter_mut().enumerate() {
        let (pages, step) = match what {
            Invalidate::Range { tag: t, range, leaf_only } if t.0 as usize == tag => {
                (0..usize::from(range.start() == 0), !leaf_only)
            }
            Invalidate::Tag(t) if t.0 as usize == tag => (0..PAGES, true),
            Invalidate::Kernel(_) => (1..2, false),
            Invalidate::Everything => (0..PAGES, true),
            _ => continue,
        };
        for page in &mut cached.pages[pages] {
            *page = page.filter(|(_, survived)| survives && !survived).map(|(v, _)| (v, true));
        }
        cached.step &= !step;
    }
}

/// What this CPU reads at a page; under the user half's tag it caches the same.
fn access(page: usize) -> u64 {
    let (root, tag) = world().loaded[me() as usize].get().expect("a root is loaded");
    let mut tlb = world().tlbs[me() as usize].lock().unwrap();
    let entry = if page == 0 { &world().tables[root as usize] } else { &world().kernel };
    let split = FACTS.get().split_tables != SplitTables::No;
    let mut read = 0;
    for tag in [tag.0, tag.0 | u16::from(split)] {
        let cached = &mut tlb[tag as usize];
        let (value, _) = *cached.pages[page].get_or_insert((entry.load(Ordering::Relaxed), false));
        if value == 0 {
            cached.pages[page] = None; // what is not there is not cached
        }
        cached.step = true;
        read |= value;
    }
    let whose = if page == 0 { root + 1 } else { 100 };
    assert!(read == 0 || read == whose, "cpu{}: {read} in space {root}", me());
    read
}

/// Takes a pending interrupt.
fn interrupts() {
    let kicked = &world().kicked[me() as usize];
    if kicked.load(Ordering::Relaxed) && kicked.swap(false, Ordering::Acquire) {
        let unfinished = std::mem::take(&mut *world().unfinished[me() as usize].lock().unwrap());
        unfinished.into_iter().for_each(|what| forget(me(), what));
        assert_eq!(on_kick::<Model>(&Model::pin()), Served::Done);
    }
}

/// Plays another CPU.
fn on<R>(cpu: u32, f: impl FnOnce() -> R) -> R {
    let back = CPU.with(|c| c.replace(cpu));
    let result = f();
    CPU.with(|c| c.set(back));
    result
}

/// The spaces of one execution.
struct Spaces {
    // Before the world, which they use when they are dropped.
    spaces: [AddressSpace<Model>; SPACES],
    flushed: AtomicBool,
}

fn begin(policy: &'static Policy, facts: &'static Facts) -> Arc<Spaces> {
    POLICY.set(policy);
    FACTS.set(facts);
    let split = facts.split_tables != SplitTables::No;
    let world = Box::leak(Box::new(World {
        system: System::new(),
        cpus: core::array::from_fn(|_| PerCpu::new()),
        tags: Generations::new(facts.tag_bits, split, CPUS as u32).expect("three tags"),
        kicked: core::array::from_fn(|_| AtomicBool::new(false)),
        tables: core::array::from_fn(|s| AtomicU64::new(s as u64 + 1)),
        kernel: AtomicU64::new(100),
        tlbs: core::array::from_fn(|_| Mutex::new(Tlb::default())),
        loaded: core::array::from_fn(|_| Cell::new(None)),
        issued: core::array::from_fn(|_| RefCell::default()),
        syncs: core::array::from_fn(|_| Cell::new(0)),
        unfinished: core::array::from_fn(|_| Mutex::new(Vec::new())),
    }));
    WORLD.set(world);
    for cpu in 0..CPUS as u32 {
        on(cpu, || online::<Model>(&Model::pin()).unwrap());
    }
    Arc::new(Spaces {
        spaces: core::array::from_fn(|s| AddressSpace::new(s as u64)),
        flushed: AtomicBool::new(false),
    })
}

impl Spaces {
    /// This CPU switches.
    fn run(&self, space: usize) {
        // SAFETY: interrupts are taken only in `interrupts`; spaces outlive the threads.
        unsafe { switch_to(&Model::pin(), &self.spaces[space]) };
    }

    fn runs(&self, cpu: u32, spaces: &[usize]) {
        on(cpu, || spaces.iter().for_each(|s| self.run(*s)));
    }

    /// This CPU unmaps the page of a space.
    fn unmap(&self, space: usize, freed_tables: bool) {
        world().tables[space].store(0, Ordering::Relaxed);
        let range = VaRange::new(0, 1, Stride::Page4K).unwrap();
        let request = Request { freed_tables, ..Request::pages(range) };
        self.spaces[space].flush(&Model::pin(), request).unwrap();
        self.flushed.store(true, Ordering::Release);
    }

    /// After the flush nobody reads the page any more.
    fn look(&self) {
        if self.flushed.load(Ordering::Acquire) {
            assert_eq!(access(0), 0, "cpu{} reads what was flushed", me());
        }
    }

    fn over(&self) {
        for space in &self.spaces {
            for cpu in 0..CPUS as u32 {
                on(cpu, || leave::<Model>(&Model::pin()));
            }
            space.retire(&Model::pin()).unwrap();
        }
    }
}

/// CPU 1 comes to space 0 while CPU 0 unmaps its page. Before, each CPU runs through these spaces.
fn comes(policy: &'static Policy, before: [&[usize]; 2]) {
    ALONE.set(false);
    let spaces = begin(policy, &PLAIN);
    for (cpu, visited) in (0..).zip(before) {
        spaces.runs(cpu, visited);
    }
    let here = before[0].last() == Some(&0);
    let other = {
        let spaces = Arc::clone(&spaces);
        thread::spawn(move || {
            CPU.with(|c| c.set(1));
            spaces.run(0);
            spaces.look();
        })
    };
    spaces.unmap(0, false);
    if here {
        spaces.look();
    }
    other.join().unwrap();
    spaces.over();
}

#[test]
fn a_cpu_comes_while_the_page_is_unmapped_from_another() {
    use Mutant::*;
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || comes(policy, [&[0], &[1]]));
    };
    holds("comes, always", &ALWAYS, &[BroadcastStaysLocal, BroadcastWithoutSync]);
    holds("comes, sticky", &STICKY, &[OwnerNeverShared, OwnWithoutFence, PresenceWithoutFence]);
    holds("comes, active", &ACTIVE, &[ActiveNotCounted, ActiveWithoutFence]);
    holds("comes, trim", &TRIM, &[JoinWithoutFence]);
}

#[test]
fn a_cpu_comes_back_while_the_page_is_unmapped_from_another() {
    use Mutant::*;
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || comes(policy, [&[0], &[0, 1]]));
    };
    holds("comes back, always", &ALWAYS, &[BroadcastStaysLocal]);
    holds("comes back, sticky", &STICKY, &[OwnerNeverShared]);
    holds("comes back, active", &ACTIVE, &[StaleTagTrusted, StaleNotNoted, ActiveWithoutFence]);
    holds("comes back, trim", &TRIM, &[BroadcastStaysLocal]);
}

#[test]
fn a_space_gets_its_first_tag_while_its_page_is_unmapped() {
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || comes(policy, [&[2], &[1]]));
    };
    holds("first tag, always", &ALWAYS, &[Mutant::EnterWithoutFence]);
    holds("first tag, sticky", &STICKY, &[Mutant::OwnWithoutFence]);
    holds("first tag, active", &ACTIVE, &[]);
    holds("first tag, trim", &TRIM, &[Mutant::JoinWithoutFence]);
}

#[test]
fn a_space_gets_a_fresh_tag_while_its_page_is_unmapped() {
    // CPU 1 has run it in the generation before.
    let holds = |name, policy, mutants: &[Mutant]| {
        holds(name, Some(2), mutants, move || comes(policy, [&[], &[0, 1, 2, 3]]));
    };
    holds("fresh tag, always", &ALWAYS, &[Mutant::EnterWithoutFence]);
    holds("fresh tag, sticky", &STICKY, &[Mutant::PresenceNotRenewed]);
    holds("fresh tag, active", &ACTIVE, &[]);
    holds("fresh tag, trim", &TRIM, &[Mutant::PresenceNotRenewed]);
}

/// One thread plays both CPUs.
fn alone(policy: &'static Policy, facts: &'static Facts, f: impl Fn(&Spaces)) {
    ALONE.set(true);
    let spaces = begin(policy, facts);
    f(&spaces);
    spaces.over();
}

#[test]
fn a_cpu_flushes_before_it_uses_a_tag_of_a_new_generation() {
    let check = |policy| {
        holds("new generation", None, &[Mutant::GenerationNotFlushed], move || {
            alone(policy, &PLAIN, |spaces| {
                spaces.runs(0, &[0, 1, 2, 3]);
                spaces.runs(1, &[3, 2, 1]);
                spaces.runs(0, &[0, 1]);
            });
        });
    };
    [&ALWAYS, &STICKY, &ACTIVE, &TRIM].into_iter().for_each(check);
}

#[test]
fn no_step_of_a_walk_leads_into_freed_tables() {
    let mutants = [Mutant::BroadcastLeafOnly, Mutant::ActiveIgnoresFreed];
    for mutant in mutants {
        let policies = [&ALWAYS, &STICKY, &ACTIVE, &TRIM];
        holds("freed tables", None, &[mutant], move || {
            for policy in policies {
                alone(policy, &PLAIN, |spaces| {
                    spaces.runs(1, &[0, 1]);
                    spaces.runs(0, &[0]);
                    let tag = usize::from(spaces.spaces[0].tag().unwrap().0);
                    spaces.unmap(0, true);
                    for tlb in &world().tlbs {
                        assert!(!tlb.lock().unwrap()[tag].step, "a step into a freed table");
                    }
                });
            }
        });
    }
}

#[test]
fn both_halves_of_a_pair_are_invalidated() {
    holds("pairs", None, &[Mutant::BroadcastUserHalfForgotten], || {
        for policy in [&ALWAYS, &STICKY, &ACTIVE, &TRIM] {
            alone(policy, &SPLIT, |spaces| {
                spaces.runs(1, &[0]);
                spaces.runs(0, &[0]);
                spaces.unmap(0, false);
                on(1, || spaces.look());
                spaces.look();
            });
        }
    });
}

#[test]
fn a_cpu_that_leaves_the_set_flushes_first() {
    holds("trim", None, &[Mutant::TrimWithoutFlush], || {
        alone(&TRIM, &PLAIN, |spaces| {
            spaces.runs(1, &[0, 1]);
            spaces.runs(0, &[0]);
            let space = &spaces.spaces[0];
            let elsewhere = VaRange::new(0x5000, 1, Stride::Page4K).unwrap();
            // The page stays mapped, and cached on CPU 1: only the flush of the tag takes it away.
            let flush = || space.flush(&Model::pin(), Request::pages(elsewhere)).unwrap();
            let mut flushes = 0;
            while space.cpus().len() == 2 {
                flush();
                flushes += 1;
                assert!(flushes < 200, "nobody is asked to leave");
            }
            spaces.unmap(0, false);
            spaces.runs(1, &[0]);
            on(1, || spaces.look());
        });
    });
}

#[test]
fn what_hardware_does_not_do_is_done_again() {
    let check = |name, facts: &'static Facts, mutant| {
        holds(name, None, &[mutant], move || {
            for policy in [&ALWAYS, &STICKY, &ACTIVE, &TRIM] {
                alone(policy, facts, |spaces| {
                    spaces.runs(1, &[0]);
                    spaces.runs(0, &[0]);
                    spaces.unmap(0, false);
                    on(1, || spaces.look());
                    spaces.look();
                });
            }
        });
    };
    check("repeated sync", &REPEATS, Mutant::SyncNotRepeated);
    check("repeated invalidation", &SURVIVES, Mutant::SurvivorForgotten);
    check("early completion", &EARLY, Mutant::EarlyCompletionTrusted);
}

#[test]
fn a_kernel_page_is_gone_everywhere() {
    let check = |facts: &'static Facts, mutant| {
        holds("kernel page", None, &[mutant], move || {
            alone(&STICKY, facts, |spaces| {
                spaces.runs(1, &[1]);
                spaces.runs(0, &[0]);
                world().kernel.store(0, Ordering::Relaxed);
                let page = VaRange::new(0x1000, 1, Stride::Page4K).unwrap();
                flush_kernel::<Model>(&Model::pin(), page).unwrap();
                for cpu in 0..2 {
                    on(cpu, || assert_eq!(access(1), 0, "cpu{cpu} reads what was flushed"));
                }
            });
        });
    };
    check(&PLAIN, Mutant::KernelBroadcastWithoutSync);
    check(&EARLY, Mutant::KernelCompletionTrusted);
}

#[test]
fn a_device_keeps_a_tag_until_nothing_is_cached_for_it() {
    let mutants = [Mutant::UnpinWithoutFlush, Mutant::RetireIgnoresPins];
    for mutant in mutants {
        holds("pinned tag", None, &[mutant], || {
            alone(&STICKY, &ROOMY, |spaces| {
                // CPU 1 stands for the device, which nobody switches and no rollover flushes.
                let space = &spaces.spaces[4];
                let tag = space.pin_tag(&Model::pin()).unwrap();
                on(1, || {
                    world().loaded[1].set(Some((4, tag)));
                    access(0);
                    world().loaded[1].set(None);
                });
                assert_eq!(space.retire(&Model::pin()), Err(RetireError::Pinned));
                space.unpin_tag(&Model::pin()).unwrap();
                let cached = world().tlbs[1].lock().unwrap()[usize::from(tag.0)];
                assert_eq!(cached.pages[0], None, "the next owner's device would use it");
            });
        });
    }
}
