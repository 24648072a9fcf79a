//! CPUs that are left alone in user mode, under the `loom` model checker: what they missed is gone
//! before they use a kernel address again.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_isolated`
#![cfg(loom)]

mod loom_support;

use std::cell::Cell;
use std::marker::PhantomData;

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use loom_support::holds;
use shootdown_woven::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown_woven::mutant::Mutant;
use shootdown_woven::*;

const CPUS: usize = 2;
const OLD: u64 = 1;
const NEW: u64 = 2;

/// A page of the kernel.
struct World {
    system: System<Model>,
    cpus: [PerCpu<Model>; CPUS],
    kicked: [AtomicBool; CPUS],
    /// Rung when CPU 1 is kicked, and when all is over.
    bell: Notify,
    table: AtomicU64,
    /// What each CPU has cached of it. Private to the CPU's thread.
    tlb: [Cell<Option<u64>>; CPUS],
    flushed: AtomicBool,
    /// The frame that the old entry leads to.
    frame: UnsafeCell<u64>,
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
}

// SAFETY: the TLB below forgets what it is told to.
unsafe impl Regime for Model {
    type Root = usize;

    fn facts() -> &'static Facts {
        &Facts::X86_64_MINIMUM
    }

    unsafe fn load(_: usize, _: Tag, _: bool) {}

    fn load_kernel() {}

    fn publish() {}

    fn invalidate(_: Invalidate, _: Reach) {
        world().tlb[me()].set(None);
    }

    fn sync(_: Reach) {}
}

fn on(cpu: u32) -> Pin {
    CPU.with(|c| c.set(cpu));
    Model::pin()
}

/// Uses the kernel page.
fn access() {
    let over = world().flushed.load(Ordering::Acquire);
    let entry = &world().tlb[me()];
    let seen = entry.get().unwrap_or_else(|| world().table.load(Ordering::Relaxed));
    entry.set(Some(seen));
    assert!(!(over && seen == OLD), "an old entry is used, and the flush has returned");
    if seen == OLD {
        // SAFETY: the frame is this page's until the flush has returned; `loom` watches.
        world().frame.with(|frame| unsafe { *frame });
    }
}

/// The way in from user mode, by an interrupt if one has come.
fn enter() {
    isolated::from_user(off(&Model::pin()));
    serve();
}

fn serve() {
    if world().kicked[me()].swap(false, Ordering::Acquire) {
        assert_eq!(on_kick(off(&Model::pin())), Served::Done);
    }
}

fn leave() {
    goes_to_user(&Model::pin());
}

fn page() -> VaRange {
    VaRange::new(0x1000, 1, Stride::Page4K).unwrap()
}

/// CPU 0 changes the page and flushes it; the old frame is somebody else's then.
fn change(flush: fn(&Pin)) {
    let pin = on(0);
    world().table.store(NEW, Ordering::Relaxed);
    flush(&pin);
    // SAFETY: nobody reaches the frame any more.
    world().frame.with_mut(|frame| unsafe { *frame = 7 });
    world().flushed.store(true, Ordering::Release);
    world().bell.notify();
}

fn kernel_range(pin: &Pin) {
    flush_kernel::<Model>(pin, page()).unwrap();
}

/// Both CPUs are in the kernel, and CPU 1 has used the page.
fn run(model: impl FnOnce()) {
    let world = Box::into_raw(Box::new(World {
        system: System::new(),
        cpus: std::array::from_fn(|_| PerCpu::new()),
        kicked: std::array::from_fn(|_| AtomicBool::new(false)),
        bell: Notify::new(),
        table: AtomicU64::new(OLD),
        tlb: std::array::from_fn(|_| Cell::new(None)),
        flushed: AtomicBool::new(false),
        frame: UnsafeCell::new(0),
    }));
    WORLD.set(world);
    for cpu in 0..CPUS {
        online(off(&on(cpu as u32))).unwrap();
    }
    access();
    model();
    // SAFETY: made by `Box::into_raw` above, and no thread is left that uses it.
    drop(unsafe { Box::from_raw(world) });
}

/// CPU 1 does this while CPU 0 changes the page, and acknowledges until that is over.
fn against_change(flush: fn(&Pin), program: fn()) {
    run(|| {
        let other = thread::spawn(move || {
            on(1);
            program();
            while !world().flushed.load(Ordering::Acquire) {
                world().bell.wait();
                enter();
            }
            enter();
            access();
        });
        change(flush);
        other.join().unwrap();
    });
}

#[test]
fn a_cpu_that_enters_the_kernel_sees_the_change_or_is_seen() {
    use Mutant::*;
    let mutants = [
        IsolatedEntersWithoutFence,
        IsolatedReadsFirst,
        IsolatedTrusts,
        IsolatedCountRelaxed,
        IsolatedCountSeenRelaxed,
        EverywhereWithoutFence,
    ];
    holds("from user mode against a flush", Some(3), &mutants, || {
        against_change(kernel_range, || {
            leave();
            enter();
            access();
            leave();
        });
    });
}

#[test]
fn a_cpu_that_goes_to_user_mode_has_done_with_the_kernel() {
    use Mutant::*;
    let mutants =
        [IsolatedLeavesRelaxed, IsolatedSeenRelaxed, IsolatedCurrentOnLeaving, IsolatedUncounted];
    holds("to user mode against a flush", Some(3), &mutants, || {
        against_change(kernel_range, || {
            access();
            leave();
            enter();
            access();
            leave();
        });
    });
}

#[test]
fn freed_tables_are_not_left_to_cpus_in_user_mode() {
    holds("freed tables", Some(3), &[Mutant::IsolatedTablesDeferred], || {
        against_change(
            |pin| {
                flush_everything::<Model>(pin).unwrap();
                // Its walker runs in user mode too.
                assert_eq!(world().tlb[1].get(), None, "a walker may use a freed table");
            },
            leave,
        );
    });
}
