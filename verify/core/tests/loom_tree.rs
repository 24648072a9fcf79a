//! Large calls whose kicks are passed on, under the `loom` model checker. (There, the first CPU of
//! a word passes kicks on however few words there are.)
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_tree`
#![cfg(loom)]

mod loom_support;

use std::cell::Cell;
use std::marker::PhantomData;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use loom_support::holds;
use shootdown_woven::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown_woven::facts::TagScope;
use shootdown_woven::mutant::Mutant;
use shootdown_woven::*;

static FACTS: Facts = Facts { tag_scope: TagScope::PerCpu, tag_bits: 12, ..Facts::X86_64_MINIMUM };
static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

/// The CPUs' numbers: a caller, and two CPUs of another word.
const NUMBERS: [u32; 3] = [0, 64, 65];

struct World {
    system: System<Model>,
    cpus: [PerCpu<Model>; 3],
    kicked: [AtomicBool; 3],
    bells: [Notify; 3],
    ran: [AtomicU64; 3],
}

std::thread_local! {
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
    /// CPU 1 comes online when its state is looked up next.
    static COMES: Cell<bool> = const { Cell::new(false) };
}

loom::thread_local! {
    static ME: Cell<usize> = Cell::new(0);
}

fn world() -> &'static World {
    // SAFETY: set for the length of one execution by `execution`.
    unsafe { &*WORLD.get() }
}

fn me() -> usize {
    ME.with(Cell::get)
}

fn index(cpu: CpuId) -> Option<usize> {
    NUMBERS.iter().position(|n| *n == cpu.0)
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

fn goes_offline(pin: &Pin) {
    // SAFETY: this thread is in no other function of the library, nothing interrupts it, and it
    // uses no page after.
    unsafe { offline::<Model>(pin) };
}

// SAFETY: a kick sets a flag that the target looks at when its bell rings.
unsafe impl Platform for Model {
    type Pin = Pin;
    type Regime = Model;
    type Mask = AtomicCpuSet<2>;
    type Slots = Slots<2>;
    type Tags = shootdown_woven::NoTags;

    fn pin() -> Pin {
        Pin(CpuId(NUMBERS[me()]), PhantomData)
    }

    fn system() -> &'static System<Self> {
        &world().system
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        if index(cpu) == Some(1) && COMES.replace(false) {
            let me = me();
            online(off(&on(1))).unwrap();
            on(me);
        }
        index(cpu).map(|i| &world().cpus[i])
    }

    fn kick(targets: &CpuSet<2>) -> Result<(), KickError> {
        for i in targets.iter().filter_map(index) {
            world().kicked[i].store(true, Ordering::Release);
            world().bells[i].notify();
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
        &TREE
    }
}

// SAFETY: there is no TLB, and no space.
unsafe impl Regime for Model {
    type Root = ();

    fn facts() -> &'static Facts {
        &FACTS
    }

    unsafe fn load((): (), _: Tag, _: bool) {}

    fn load_kernel() {}

    fn publish() {}

    fn invalidate(_: Invalidate, _: Reach) {}

    fn sync(_: Reach) {}
}

fn on(cpu: usize) -> Pin {
    ME.with(|m| m.set(cpu));
    Model::pin()
}

/// Words of stack of the thread that has the world made on it: the sets of a system are large, and
/// more so with loom's atomics.
const STACK: usize = 0x8000;

/// Runs `model` in a world of its own, with all CPUs online.
fn execution(model: impl FnOnce() + Send + 'static) {
    let body = move || {
        let world = Box::into_raw(Box::new(World {
            system: System::new(),
            cpus: std::array::from_fn(|_| PerCpu::new()),
            kicked: std::array::from_fn(|_| AtomicBool::new(false)),
            bells: std::array::from_fn(|_| Notify::new()),
            ran: std::array::from_fn(|_| AtomicU64::new(0)),
        }));
        WORLD.set(world);
        for cpu in 0..3 {
            online(off(&on(cpu))).unwrap();
        }
        model();
        // SAFETY: made by `Box::into_raw` above; the model has joined every thread that uses it.
        drop(unsafe { Box::from_raw(world) });
    };
    thread::Builder::new().stack_size(STACK).spawn(body).unwrap().join().unwrap();
}

/// A CPU that does nothing but wait for one kick.
fn waits_for_a_kick(cpu: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let pin = on(cpu);
        while !world().kicked[cpu].load(Ordering::Acquire) {
            world().bells[cpu].wait(); // may wake for nothing
        }
        assert_eq!(on_kick(off(&pin)), Served::Done);
    })
}

/// CPU 0 calls the two others, of which these are there, and relies on what the function did on
/// them.
fn call(there: &[usize]) {
    let threads: Vec<_> = there.iter().map(|cpu| waits_for_a_kick(*cpu)).collect();
    let pin = on(0);
    let mut targets = CpuSet::<2>::EMPTY;
    NUMBERS[1..].iter().for_each(|n| targets.insert(CpuId(*n)));
    call_on::<Model, _>(&pin, &targets, &|cpu| {
        world().ran[index(cpu).unwrap()].store(7, Ordering::Relaxed);
    })
    .unwrap();
    for cpu in there {
        assert_eq!(world().ran[*cpu].load(Ordering::Relaxed), 7, "calls: it has run, and is seen");
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn the_first_cpu_of_a_word_passes_the_kick_on() {
    holds("kick passed on", Some(2), &[Mutant::TreeForwardsNothing], || {
        execution(|| call(&[1, 2]));
    });
}

#[test]
fn a_kick_is_not_left_to_a_cpu_that_has_gone_offline() {
    holds("first CPU gone", Some(2), &[Mutant::TreeForwardsByAbsent], || {
        execution(|| {
            goes_offline(&on(1));
            call(&[2]);
        });
    });
}

/// The first CPU of the word comes online when the initiator has just found it offline.
#[test]
fn a_kick_is_not_left_to_a_cpu_that_has_just_come_online() {
    holds("first CPU comes", Some(2), &[Mutant::TreeForwardsByCountedOut], || {
        execution(|| {
            goes_offline(&on(1));
            COMES.set(true);
            call(&[2]);
            assert!(!COMES.get(), "it has come online meanwhile");
        });
    });
}
