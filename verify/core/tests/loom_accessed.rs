//! Accessed bits under the `loom` model checker: a CPU that switches or ticks after bits were
//! cleared uses no entry from before, whatever it did in between.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_accessed`
#![cfg(loom)]

mod loom_support;

use std::cell::Cell;
use std::marker::PhantomData;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use loom_support::holds;
use shootdown_woven::accessed::{self, Accessed, AccessedPolicy, Aged};
use shootdown_woven::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown_woven::facts::{Broadcast, TagScope};
use shootdown_woven::mutant::Mutant;
use shootdown_woven::tags::broadcast::SharedTags;
use shootdown_woven::tags::shared::Threshold;
use shootdown_woven::*;

const CPUS: usize = 2;
/// Spaces, by their roots; 0 is the kernel's own tables.
const SPACES: usize = 3;

static PLAIN: Facts = Facts { tag_scope: TagScope::PerCpu, tag_bits: 12, ..Facts::X86_64_MINIMUM };

static BY_NUMBER: Policy =
    Policy { accessed: AccessedPolicy::all(Accessed::Generation), ..Policy::SHOOTDOWN };
static BY_FLAG: Policy =
    Policy { accessed: AccessedPolicy::all(Accessed::AtSwitch), ..Policy::SHOOTDOWN };
/// One slot: spaces take it from each other.
static ONE_SLOT: Policy = Policy { slots: 1, ..BY_NUMBER };

/// Hardware that invalidates on all CPUs by a tag, which every space gets that runs on two of them.
static BROADCASTS: Facts = Facts { broadcast: Broadcast::Invlpgb { max_pages: 8 }, ..PLAIN };
static SHARED: Policy = Policy { shared: Threshold { above: 1, every: 1, alone: 0 }, ..BY_NUMBER };

/// Spaces of one page each.
struct World {
    system: System<Model>,
    cpus: [PerCpu<Model>; CPUS],
    /// How often the accessed bit of each space's page was cleared: what a walker sees.
    tables: [AtomicU64; SPACES],
    /// What each CPU has cached, by tag: how often the bit had been cleared then. Private to the
    /// CPU's thread.
    tlb: [[Cell<Option<u64>>; 8]; CPUS],
    loaded: [Cell<(usize, Tag)>; CPUS],
    shared: Option<SharedTags>,
    /// The checker interleaves only what it can see, and it can't see `tlb`.
    step: AtomicU64,
}

std::thread_local! {
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
    static POLICY: Cell<&'static Policy> = const { Cell::new(&Policy::SHOOTDOWN) };
}

loom::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
}

fn world() -> &'static World {
    // SAFETY: set for the length of one execution by `explore`.
    unsafe { &*WORLD.get() }
}

fn me() -> usize {
    CPU.with(Cell::get) as usize
}

struct Model;
struct Pin(CpuId, PhantomData<*mut ()>);

// SAFETY: one thread per CPU.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

/// What interrupts a CPU of the model comes where the model says so.
fn off(pin: &Pin) -> IrqsOff<'_, Model> {
    // SAFETY: a thread of the model runs no handler but in `relax`, and none while one of these is
    // used.
    unsafe { IrqsOff::assume(pin) }
}

fn leaves(pin: &Pin) {
    // SAFETY: this thread is in no other function of the library, and nothing interrupts it.
    unsafe { leave::<Model>(pin) };
}

fn turns_lazy(pin: &Pin) {
    // SAFETY: this thread is in no other function of the library, nothing interrupts it, and it
    // reads no page before it switches.
    unsafe { enter_lazy::<Model>(pin) };
}

// SAFETY: a kick calls the handler of the other CPU.
unsafe impl Platform for Model {
    type Pin = Pin;
    type Regime = Model;
    type Mask = AtomicCpuSet<1>;
    type Slots = Slots<2>;
    type Tags = NoTags;

    fn pin() -> Pin {
        Pin(CpuId(me() as u32), PhantomData)
    }

    fn system() -> &'static System<Self> {
        &world().system
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        world().cpus.get(cpu.index())
    }

    /// Only where nothing runs beside: at once, then.
    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        let before = CPU.with(Cell::get);
        for cpu in targets.iter() {
            assert_eq!(on_kick(off(&on(cpu.0))), Served::Done);
        }
        CPU.with(|c| c.set(before));
        Ok(())
    }

    fn shared_tags() -> Option<&'static SharedTags> {
        world().shared.as_ref()
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        unreachable!("nothing waits for another CPU")
    }

    fn may_wait() -> bool {
        true
    }

    fn policy() -> &'static Policy {
        POLICY.get()
    }
}

fn forget(tag: Tag, reach: Reach) {
    for cpu in (0..CPUS).filter(|cpu| reach == Reach::Broadcast || *cpu == me()) {
        world().tlb[cpu][tag.0 as usize].set(None);
    }
}

// SAFETY: the TLB above forgets what it is told to.
unsafe impl Regime for Model {
    type Root = usize;

    fn facts() -> &'static Facts {
        if world().shared.is_some() { &BROADCASTS } else { &PLAIN }
    }

    unsafe fn load(root: usize, tag: Tag, keep: bool) {
        world().loaded[me()].set((root, tag));
        if !keep {
            forget(tag, Reach::Local);
        }
    }

    fn load_kernel() {
        world().loaded[me()].set((0, Tag(0)));
    }

    fn publish() {}

    fn invalidate(what: Invalidate, reach: Reach) {
        match what {
            Invalidate::Range { tag, .. } | Invalidate::Tag(tag) => forget(tag, reach),
            Invalidate::Kernel(_) => {}
            Invalidate::Everything => world().tlb[me()].iter().for_each(|e| e.set(None)),
        }
    }

    fn sync(_: Reach) {}
}

/// Uses the page of the loaded space; returns how often its bit had been cleared when the entry was
/// made.
fn access() -> u64 {
    let (root, tag) = world().loaded[me()].get();
    let entry = &world().tlb[me()][tag.0 as usize];
    world().step.fetch_add(1, Ordering::Relaxed);
    let made = entry.get().unwrap_or_else(|| world().tables[root - 1].load(Ordering::Relaxed));
    entry.set(Some(made));
    made
}

struct Start {
    spaces: [AddressSpace<Model>; SPACES],
    notified: AtomicBool,
}

fn on(cpu: u32) -> Pin {
    CPU.with(|c| c.set(cpu));
    Model::pin()
}

fn switch(space: &AddressSpace<Model>) {
    // SAFETY: nothing interrupts; spaces outlive the threads.
    unsafe { switch_to(&Model::pin(), space) };
}

/// One execution of a model.
fn run(policy: &'static Policy, model: impl FnOnce(&'static Start)) {
    POLICY.set(policy);
    let world = Box::into_raw(Box::new(World {
        system: System::new(),
        cpus: std::array::from_fn(|_| PerCpu::new()),
        tables: std::array::from_fn(|_| AtomicU64::new(0)),
        tlb: std::array::from_fn(|_| std::array::from_fn(|_| Cell::new(None))),
        loaded: std::array::from_fn(|_| Cell::new((0, Tag(0)))),
        shared: std::ptr::eq(policy, &SHARED).then(|| SharedTags::new(Tag(4), 3).unwrap()),
        step: AtomicU64::new(0),
    }));
    WORLD.set(world);
    let start = Box::into_raw(Box::new(Start {
        spaces: std::array::from_fn(|i| AddressSpace::new(i + 1)),
        notified: AtomicBool::new(false),
    }));
    for cpu in 0..CPUS {
        online(off(&on(cpu as u32))).unwrap();
    }
    // SAFETY: freed below, after every thread has been joined by the model.
    model(unsafe { &*start });
    // SAFETY: made by `Box::into_raw` above, and no thread is left that uses them.
    unsafe {
        // The spaces are not retired: threads end where they are.
        std::mem::forget(Box::from_raw(start));
        drop(Box::from_raw(world));
    }
}

fn clear(s: &Start, space: usize) {
    world().step.fetch_add(1, Ordering::Relaxed);
    let cleared = world().tables[space].load(Ordering::Relaxed) + 1;
    world().tables[space].store(cleared, Ordering::Relaxed);
    let page = VaRange::new(0x1000, 1, Stride::Page4K).unwrap();
    let aged = s.spaces[space].accessed_cleared(&Model::pin(), page).unwrap();
    assert_eq!(aged, Aged::Pending);
}

/// CPU 0 clears the bit while CPU 1 does `meanwhile` and uses the page. A switch or tick after that
/// sees to it.
fn clear_against(s: &'static Start, meanwhile: fn(&Start), after: fn(&Start)) {
    on(1);
    switch(&s.spaces[0]);
    assert_eq!(access(), 0);
    let other = thread::spawn(move || {
        on(1);
        meanwhile(s);
        access();
        if s.notified.load(Ordering::Acquire) {
            after(s);
            assert_eq!(access(), 1, "an entry from before the bit was cleared is used");
        }
    });
    on(0);
    clear(s, 0);
    s.notified.store(true, Ordering::Release);
    other.join().unwrap();
    on(1);
    after(s);
    assert_eq!(access(), 1, "an entry from before the bit was cleared is used");
}

fn same(s: &Start) {
    switch(&s.spaces[0]);
}

fn away_and_back(s: &Start) {
    switch(&s.spaces[1]);
    switch(&s.spaces[0]);
}

fn tick(_: &Start) {
    accessed::tick(off(&Model::pin()));
}

fn lazily_and_back(s: &Start) {
    turns_lazy(&Model::pin());
    switch(&s.spaces[0]);
}

fn out_and_back(s: &Start) {
    leaves(&Model::pin());
    world().step.fetch_add(1, Ordering::Relaxed);
    switch(&s.spaces[0]);
}

#[test]
fn a_number_that_has_grown_is_seen_by_every_kind_of_switch() {
    use Mutant::*;
    let both = [AgeNotCounted, AgeIgnored, AgeRelaxed, AgeSeenRelaxed];
    for (name, way) in [("the same space", same as fn(&Start)), ("away and back", away_and_back)] {
        holds(name, Some(3), &both, move || run(&BY_NUMBER, |s| clear_against(s, way, way)));
    }
    holds("a tick", Some(3), &[TickForgotten, AgeIgnored], || {
        run(&BY_NUMBER, |s| clear_against(s, tick, tick));
    });
    for (name, way) in
        [("out of lazy mode", lazily_and_back as fn(&Start)), ("from nowhere", out_and_back)]
    {
        holds(name, Some(3), &[AgeIgnored], move || {
            run(&BY_NUMBER, |s| clear_against(s, same, way))
        });
    }
}

#[test]
fn a_slot_that_changes_hands_starts_with_the_number_of_its_new_space() {
    holds("one slot", None, &[Mutant::AgeOfSlotKept], || {
        run(&ONE_SLOT, |s| {
            on(0);
            switch(&s.spaces[0]);
            clear(s, 0);
            switch(&s.spaces[0]);
            switch(&s.spaces[1]);
            assert_eq!(access(), 0);
            clear(s, 1);
            switch(&s.spaces[1]);
            assert_eq!(access(), 1, "an entry from before the bit was cleared is used");
        });
    });
}

#[test]
fn a_flag_that_was_raised_is_honoured_for_every_slot() {
    use Mutant::*;
    let mutants = [DueNotRaised, DueIgnored, DueRelaxed];
    for (name, way) in [("flag, the same space", same as fn(&Start)), ("flag, a tick", tick)] {
        holds(name, Some(3), &mutants, move || run(&BY_FLAG, |s| clear_against(s, way, way)));
    }
    holds("flag, another space meanwhile", Some(3), &[DueIgnored, DueNotRaised], || {
        run(&BY_FLAG, |s| clear_against(s, same, away_and_back));
    });
}

#[test]
fn a_cpu_that_joins_the_set_needs_no_flag() {
    use Mutant::*;
    holds("flag against joining", None, &[AgeWithoutFence, JoinerTrusts], || {
        run(&BY_FLAG, |s| {
            on(1);
            switch(&s.spaces[0]);
            assert_eq!(access(), 0);
            leaves(&Model::pin());
            clear_against(s, out_and_back, same);
        });
    });
}

#[test]
fn entries_under_a_tag_for_all_cpus_are_dropped_by_a_broadcast() {
    holds("a tag for all CPUs", None, &[Mutant::AgeSharedForgotten], || {
        run(&SHARED, |s| {
            for cpu in 0..2 {
                on(cpu);
                switch(&s.spaces[0]);
            }
            let page = VaRange::new(0x1000, 1, Stride::Page4K).unwrap();
            for _ in 0..2 {
                s.spaces[0].flush(&Model::pin(), Request::pages(page)).unwrap();
            }
            assert_eq!(world().loaded.each_ref().map(Cell::get), [(1, Tag(4)); 2]);
            on(0);
            assert_eq!(access(), 0);
            on(1);
            world().tables[0].store(1, Ordering::Relaxed);
            let aged = s.spaces[0].accessed_cleared(&Model::pin(), page).unwrap();
            on(0);
            assert_eq!(access(), 1, "an entry from before the bit was cleared is used");
            assert_eq!(aged, Aged::Issued);
        });
    });
}
