//! Lazy unmapping under the `loom` model checker: a frame whose unmapping nobody was notified of is
//! somebody else's only when every CPU has come by or was asked, whoever flushed.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_lazy_unmap`
#![cfg(loom)]

mod loom_support;

use std::cell::Cell;
use std::marker::PhantomData;

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use loom_support::holds;
use shootdown_woven::accessed::tick;
use shootdown_woven::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown_woven::facts::TagScope;
use shootdown_woven::gather::Array;
use shootdown_woven::lazy_unmap::{LazyUnmap, LazyUnmapping, Was};
use shootdown_woven::mutant::Mutant;
use shootdown_woven::*;

const CPUS: usize = 3;
/// Spaces, by their roots; 0 is the kernel's own tables. The page is the first one's.
const SPACES: usize = 2;
const NOTHING: u64 = 0;
const OLD: u64 = 1;
const NEW: u64 = 2;

static FACTS: Facts = Facts { tag_scope: TagScope::PerCpu, tag_bits: 12, ..Facts::X86_64_MINIMUM };
static LAZY: Policy = Policy {
    lazy_unmap: Some(LazyUnmap { max_age: 1, max_pages: 8 }),
    accessed: accessed::AccessedPolicy::all(accessed::Accessed::Never),
    ..Policy::SHOOTDOWN
};

struct World {
    system: System<Model>,
    cpus: [PerCpu<Model>; CPUS],
    kicked: [AtomicBool; CPUS],
    /// Rung when CPU 1 is kicked, and when all is over.
    bell: Notify,
    /// The page's entry.
    table: AtomicU64,
    /// What each CPU has cached of it, by tag. Private to the CPU's thread.
    tlb: [[Cell<u64>; 4]; CPUS],
    loaded: [Cell<(usize, Tag)>; CPUS],
    /// The page was unmapped, and the library was notified.
    notified: AtomicBool,
    /// The frame or the address is somebody else's.
    reused: AtomicBool,
    frame: UnsafeCell<u64>,
    /// All is over.
    over: AtomicBool,
}

std::thread_local! {
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
}

loom::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
}

fn world() -> &'static World {
    // SAFETY: set for the length of one execution by `run`.
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

fn goes_to_user(pin: &Pin) {
    // SAFETY: nothing interrupts this thread, and it uses no page of the kernel before it comes
    // back.
    unsafe { isolated::to_user::<Model>(pin) };
}

// SAFETY: a kick sets a flag that the target looks at wherever its interrupts are on.
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

    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        for cpu in targets.iter() {
            // A read-modify-write, so that the checker orders it with the one that takes it.
            world().kicked[cpu.index()].swap(true, Ordering::AcqRel);
            world().bell.notify();
        }
        Ok(())
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        thread::yield_now();
        Ok(())
    }

    fn may_wait() -> bool {
        true
    }

    fn policy() -> &'static Policy {
        &LAZY
    }
}

fn forget(tag: Tag) {
    world().tlb[me()][tag.0 as usize].set(NOTHING);
}

// SAFETY: the TLB above forgets what it is told to.
unsafe impl Regime for Model {
    type Root = usize;

    fn facts() -> &'static Facts {
        &FACTS
    }

    unsafe fn load(root: usize, tag: Tag, keep: bool) {
        world().loaded[me()].set((root, tag));
        if !keep {
            forget(tag);
        }
    }

    fn load_kernel() {
        world().loaded[me()].set((0, Tag(0)));
    }

    fn publish() {}

    fn invalidate(what: Invalidate, _: Reach) {
        match what {
            Invalidate::Range { tag, .. } | Invalidate::Tag(tag) => forget(tag),
            Invalidate::Kernel(_) => {}
            Invalidate::Everything => world().tlb[me()].iter().for_each(|e| e.set(NOTHING)),
        }
    }

    fn sync(_: Reach) {}
}

fn on(cpu: u32) -> Pin {
    CPU.with(|c| c.set(cpu));
    Model::pin()
}

/// Uses the page, if its space is loaded; says what it is.
fn access() -> u64 {
    let reused = world().reused.load(Ordering::Acquire);
    let (root, tag) = world().loaded[me()].get();
    if root != 1 {
        return NOTHING;
    }
    let entry = &world().tlb[me()][tag.0 as usize];
    if entry.get() == NOTHING {
        entry.set(world().table.load(Ordering::Relaxed));
    }
    let seen = entry.get();
    assert!(!(reused && seen == OLD), "an old entry is used, and its frame or address is reused");
    if seen == OLD {
        // SAFETY: the frame is this page's until it is reused; `loom` watches.
        world().frame.with(|frame| unsafe { *frame });
    }
    seen
}

fn serve() {
    if world().kicked[me()].swap(false, Ordering::Acquire) {
        assert_eq!(on_kick(off(&Model::pin())), Served::Done);
    }
}

/// Something by which a CPU forgets what it has heard of.
fn comes_by(way: impl FnOnce()) {
    let notified = world().notified.load(Ordering::Acquire);
    way();
    assert!(!(access() == OLD && notified), "an old entry is used after the CPU has come by");
}

type Spaces = [AddressSpace<Model>; SPACES];
type Lazy = LazyUnmapping<'static, Model, Array<(), 1>>;

fn switch(space: &AddressSpace<Model>) {
    // SAFETY: nothing interrupts; spaces outlive the threads.
    unsafe { switch_to(&Model::pin(), space) };
}

fn page(page: u64) -> VaRange {
    VaRange::new(page << 12, 1, Stride::Page4K).unwrap()
}

/// CPU 0 unmaps the page lazily.
fn unmaps(spaces: &'static Spaces) -> Lazy {
    let mut later = Lazy::new(&spaces[0]);
    world().table.store(NOTHING, Ordering::Relaxed);
    later.unmapped(&Model::pin(), 0, page(0), Was::ReadOnly, ()).unwrap();
    world().notified.store(true, Ordering::Release);
    later
}

fn reuse_frame() {
    // SAFETY: nobody reaches the frame any more.
    world().frame.with_mut(|frame| unsafe { *frame = 7 });
    world().reused.store(true, Ordering::Release);
}

fn ends() {
    world().over.store(true, Ordering::Release);
    world().bell.notify();
}

/// CPU 1 has used the page; `program` is what it does while CPU 0 does the `other`, and it
/// acknowledges until that is over.
fn against(
    other: impl FnOnce(&'static Spaces),
    program: impl FnOnce(&'static Spaces) + Send + 'static,
) {
    against_after(|_| {}, other, program);
}

/// As [`against`], and CPU 1 has done something `before`.
fn against_after(
    before: impl FnOnce(&'static Spaces),
    other: impl FnOnce(&'static Spaces),
    program: impl FnOnce(&'static Spaces) + Send + 'static,
) {
    let world = Box::into_raw(Box::new(World {
        system: System::new(),
        cpus: std::array::from_fn(|_| PerCpu::new()),
        kicked: std::array::from_fn(|_| AtomicBool::new(false)),
        bell: Notify::new(),
        table: AtomicU64::new(OLD),
        tlb: std::array::from_fn(|_| std::array::from_fn(|_| Cell::new(NOTHING))),
        loaded: std::array::from_fn(|_| Cell::new((0, Tag(0)))),
        notified: AtomicBool::new(false),
        reused: AtomicBool::new(false),
        frame: UnsafeCell::new(0),
        over: AtomicBool::new(false),
    }));
    WORLD.set(world);
    let made = Box::into_raw(Box::new(std::array::from_fn(|i| AddressSpace::new(i + 1))));
    // SAFETY: freed below, after every thread was joined.
    let spaces: &'static Spaces = unsafe { &*made };
    for cpu in 0..CPUS {
        online(off(&on(cpu as u32))).unwrap();
    }
    on(1);
    switch(&spaces[0]);
    assert_eq!(access(), OLD);
    before(spaces);
    let one = thread::spawn(move || {
        on(1);
        program(spaces);
        // SAFETY: as `world()`: the world lives until this thread was joined.
        while !self::world().over.load(Ordering::Acquire) {
            self::world().bell.wait();
            serve();
        }
        serve();
        access();
    });
    on(0);
    other(spaces);
    ends();
    one.join().unwrap();
    // SAFETY: made by `Box::into_raw` above, and no thread is left that uses them.
    unsafe {
        // The spaces are not retired: threads end where they are.
        std::mem::forget(Box::from_raw(made));
        drop(Box::from_raw(world));
    }
}

fn redeems(spaces: &'static Spaces) {
    let _ = unmaps(spaces).redeem(&Model::pin()).unwrap();
    reuse_frame();
}

#[test]
fn a_cpu_comes_back_while_a_frame_is_redeemed() {
    use Mutant::*;
    let mutants = [LazyUnmapFlushesNothing, SwitchWithoutFence, FlushWithoutFence, SlotTrusts];
    holds("comes back", Some(2), &mutants, || {
        let elsewhere = |spaces: &'static Spaces| switch(&spaces[1]);
        against_after(elsewhere, redeems, |spaces| comes_by(|| switch(&spaces[0])));
    });
}

#[test]
fn a_cpu_comes_by_while_a_frame_is_redeemed() {
    use Mutant::*;
    holds(
        "ticks",
        Some(3),
        &[LazyUnmapFlushesNothing, LazyUnmapTickForgotten, FilterSkipsActive],
        || {
            against(redeems, |_| {
                comes_by(|| tick(off(&Model::pin())));
            });
        },
    );
    holds("switches to where it is", Some(3), &[LazyUnmapSwitchForgotten], || {
        against(redeems, |spaces| {
            comes_by(|| switch(&spaces[0]));
        });
    });
}

#[test]
fn an_address_is_mapped_again_while_a_cpu_comes_by() {
    use Mutant::*;
    holds("mapped again", Some(3), &[LazyUnmapStaysInTheWay], || {
        against(
            |spaces| {
                let mut later = unmaps(spaces);
                later.make_way(&Model::pin(), page(0)).unwrap();
                world().table.store(NEW, Ordering::Relaxed);
                world().reused.store(true, Ordering::Release);
                std::mem::forget(later); // with some mutants it is pending still
            },
            |_| {
                access();
                comes_by(|| tick(off(&Model::pin())));
            },
        );
    });
}

#[test]
fn an_isolated_cpu_is_left_alone_until_the_frame_is_needed() {
    use Mutant::*;
    holds("quiet", Some(2), &[LazyUnmapIsolatedCounted, LazyUnmapEntryForgotten], || {
        against(
            |spaces| {
                let mut later = unmaps(spaces);
                if later.poll(&Model::pin(), 9).unwrap().is_none() {
                    let _ = later.redeem(&Model::pin()).unwrap();
                }
                reuse_frame();
            },
            |_| {
                goes_to_user(&Model::pin());
                access();
                comes_by(|| {
                    isolated::from_user(off(&Model::pin()));
                });
                serve();
            },
        );
    });
}

#[test]
fn who_finds_it_flushed_by_another_relies_on_the_acknowledgements() {
    use Mutant::*;
    holds("completed by another", Some(2), &[CompletedRelaxed, CompletedSeenRelaxed], || {
        against(
            |spaces| {
                let mut later = unmaps(spaces);
                let flushes = thread::spawn(move || {
                    let request = Request::pages(page(1));
                    spaces[0].flush(&on(2), request).unwrap();
                });
                for _ in 0..4 {
                    if later.poll(&Model::pin(), 0).unwrap().is_some() {
                        reuse_frame();
                        break;
                    }
                    thread::yield_now();
                }
                flushes.join().unwrap();
                let _ = later.redeem(&Model::pin()).unwrap();
            },
            |_| {
                access();
            },
        );
    });
}
