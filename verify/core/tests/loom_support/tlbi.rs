//! Two CPUs with machine-wide tags and hardware that broadcasts, for the `loom` model checker.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use shootdown_woven::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown_woven::facts::{Broadcast, Errata, SplitTables, TagScope};
use shootdown_woven::tags::generations::Generations;
use shootdown_woven::*;

pub const CPUS: usize = 2;
pub const SPACES: usize = 5;
/// Page 0 is a user page of the space, page 1 one of the kernel.
pub const PAGES: usize = 2;
pub const TAGS: usize = 8;

pub const ARM: Facts = Facts {
    tag_scope: TagScope::System,
    tag_bits: 2,
    broadcast: Broadcast::Tlbi { ranges: true },
    kick_all: true,
    ..Facts::X86_64_MINIMUM
};
pub static SPLIT: Facts =
    Facts { tag_bits: 3, split_tables: SplitTables::Yes { invalidate_other_tag: true }, ..ARM };
pub static PLAIN: Facts = ARM;
/// With a tag to pin.
pub static ROOMY: Facts = Facts { tag_bits: 3, ..ARM };
pub static REPEATS: Facts = Facts { errata: Errata { repeat_sync: true, ..ARM.errata }, ..ARM };
pub static SURVIVES: Facts = Facts { errata: Errata { survives_once: true, ..ARM.errata }, ..ARM };
pub static EARLY: Facts = Facts { errata: Errata { completes_early: true, ..ARM.errata }, ..ARM };

pub const fn by(strategy: Strategy) -> Policy {
    Policy { broadcast: Some(strategy), ..Policy::SHOOTDOWN }
}
pub static ALWAYS: Policy = by(Strategy::Always);
pub static STICKY: Policy = by(Strategy::Sticky);
pub static ACTIVE: Policy = by(Strategy::Active);
pub static TRIM: Policy = by(Strategy::Trim);

/// What one CPU has cached under one tag.
#[derive(Clone, Copy, Default)]
pub struct Cached {
    /// What it read of each page, and whether that has survived an invalidation.
    pub pages: [Option<(u64, bool)>; PAGES],
    /// A step of a walk.
    pub step: bool,
}

pub type Tlb = [Cached; TAGS];

/// Entry *s* of `tables` is the user page of space *s*: *s* + 1 while mapped, 0 afterwards.
pub struct World {
    pub system: System<Model>,
    pub cpus: [PerCpu<Model>; CPUS],
    pub tags: Generations<1, CPUS>,
    pub kicked: [AtomicBool; CPUS],
    pub tables: [AtomicU64; SPACES],
    pub kernel: AtomicU64,
    pub tlbs: [Mutex<Tlb>; CPUS],
    /// The space whose root each CPU has loaded, and the tag.
    pub loaded: [Cell<Option<(u64, Tag)>>; CPUS],
    /// Issued by each CPU and not synced.
    pub issued: [RefCell<Vec<Invalidate>>; CPUS],
    pub syncs: [Cell<u32>; CPUS],
    /// Said to be complete, and not complete on a CPU before it is interrupted.
    pub unfinished: [Mutex<Vec<Invalidate>>; CPUS],
}

std::thread_local! {
    pub static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
    pub static POLICY: Cell<&'static Policy> = const { Cell::new(&Policy::SHOOTDOWN) };
    pub static FACTS: Cell<&'static Facts> = const { Cell::new(&PLAIN) };
    /// One thread plays both CPUs: whoever waits plays the other.
    pub static ALONE: Cell<bool> = const { Cell::new(false) };
    /// What the other does when it is waited for next.
    pub static MEANWHILE: Cell<fn()> = const { Cell::new(interrupts) };
}

loom::thread_local! {
    pub static CPU: Cell<u32> = Cell::new(0);
}

pub fn world() -> &'static World {
    // SAFETY: set for the length of one execution by `begin`.
    unsafe { &*WORLD.get() }
}

pub fn me() -> u32 {
    CPU.with(Cell::get)
}

pub struct Model;
pub struct Pin(CpuId, PhantomData<*mut ()>);

// SAFETY: a CPU is played by one thread at a time.
unsafe impl Pinned for Pin {
    fn cpu(&self) -> CpuId {
        self.0
    }
}

/// What interrupts a CPU of the model comes where the model says so.
pub fn off(pin: &Pin) -> IrqsOff<'_, Model> {
    // SAFETY: a thread of the model runs no handler but in `relax`, and none while one of these is
    // used.
    unsafe { IrqsOff::assume(pin) }
}

fn leaves(pin: &Pin) {
    // SAFETY: this thread is in no other function of the library, and nothing interrupts it.
    unsafe { leave::<Model>(pin) };
}

// SAFETY: a kick sets a flag that the target looks at wherever its interrupts are on.
unsafe impl Platform for Model {
    type Pin = Pin;
    type Regime = Model;
    type Mask = AtomicCpuSet<1>;
    type Slots = Slots<2>;
    type Tags = Generations<1, CPUS>;

    fn pin() -> Pin {
        Pin(CpuId(me()), PhantomData)
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
            let meanwhile = MEANWHILE.replace(interrupts);
            on(1 - me(), meanwhile);
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
        finish();
        world().loaded[me() as usize].set(Some((root, tag)));
        // The walker does not wait to be asked.
        access(0);
        access(1);
    }

    fn load_kernel() {
        finish();
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

pub fn forget(cpu: u32, what: Invalidate) {
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
pub fn access(page: usize) -> u64 {
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

/// This CPU is in the kernel: what was said too early to be complete is complete here.
fn finish() {
    let unfinished = std::mem::take(&mut *world().unfinished[me() as usize].lock().unwrap());
    unfinished.into_iter().for_each(|what| forget(me(), what));
}

/// Takes a pending interrupt.
pub fn interrupts() {
    let kicked = &world().kicked[me() as usize];
    if kicked.load(Ordering::Relaxed) && kicked.swap(false, Ordering::Acquire) {
        finish();
        assert_eq!(on_kick(off(&Model::pin())), Served::Done);
    }
}

/// Plays another CPU.
pub fn on<R>(cpu: u32, f: impl FnOnce() -> R) -> R {
    let back = CPU.with(|c| c.replace(cpu));
    let result = f();
    CPU.with(|c| c.set(back));
    result
}

/// The spaces of one execution.
pub struct Spaces {
    // Before the world, which they use when they are dropped.
    pub spaces: [AddressSpace<Model>; SPACES],
    pub flushed: AtomicBool,
}

pub fn begin(policy: &'static Policy, facts: &'static Facts) -> Arc<Spaces> {
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
        on(cpu, || online(off(&Model::pin())).unwrap());
    }
    Arc::new(Spaces {
        spaces: core::array::from_fn(|s| AddressSpace::new(s as u64)),
        flushed: AtomicBool::new(false),
    })
}

impl Spaces {
    /// This CPU switches.
    pub fn run(&self, space: usize) {
        // SAFETY: interrupts are taken only in `interrupts`; spaces outlive the threads.
        unsafe { switch_to(&Model::pin(), &self.spaces[space]) };
    }

    pub fn runs(&self, cpu: u32, spaces: &[usize]) {
        on(cpu, || spaces.iter().for_each(|s| self.run(*s)));
    }

    /// This CPU unmaps the page of a space.
    pub fn unmap(&self, space: usize, freed_tables: bool) {
        world().tables[space].store(0, Ordering::Relaxed);
        let range = VaRange::new(0, 1, Stride::Page4K).unwrap();
        let request = Request { freed_tables, ..Request::pages(range) };
        self.spaces[space].flush(&Model::pin(), request).unwrap();
        self.flushed.store(true, Ordering::Release);
    }

    /// After the flush nobody reads the page any more.
    pub fn look(&self) {
        if self.flushed.load(Ordering::Acquire) {
            assert_eq!(access(0), 0, "cpu{} reads what was flushed", me());
        }
    }

    pub fn over(&self) {
        for space in &self.spaces {
            for cpu in 0..CPUS as u32 {
                on(cpu, || leaves(&Model::pin()));
            }
            space.retire(&Model::pin()).unwrap();
        }
    }
}

/// One thread plays both CPUs.
pub fn alone(policy: &'static Policy, facts: &'static Facts, f: impl Fn(&Spaces)) {
    ALONE.set(true);
    let spaces = begin(policy, facts);
    f(&spaces);
    spaces.over();
}
