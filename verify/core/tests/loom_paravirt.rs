//! What a hypervisor does of a flush, under the `loom` model checker: a virtual CPU that is
//! descheduled and resumed while others flush, and hypercalls that make virtual CPUs exit.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom_paravirt`
#![cfg(loom)]

mod loom_support;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::thread;
use loom_support::holds;
use shootdown_woven::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown_woven::facts::TagScope;
use shootdown_woven::mutant::Mutant::*;
use shootdown_woven::paravirt::{HypercallError, Of, PreemptedWord, RemoteFlush};
use shootdown_woven::*;

const CPUS: usize = 2;

/// The library's numbers of the CPUs: the second one is in another word of a set.
const NUMBERS: [u32; CPUS] = [0, 64];

static FACTS: Facts = Facts { tag_scope: TagScope::PerCpu, tag_bits: 12, ..Facts::X86_64_MINIMUM };

/// Preempted CPUs are marked.
static MARKS: Policy = Policy::SHOOTDOWN;
/// Everything else goes to the hypervisor.
static CALLS: Policy = Policy { hypercall_from: 1, ..Policy::SHOOTDOWN };

/// What a CPU's hardware holds. Private to the CPU's thread.
#[derive(Default)]
struct Hw {
    tlb: [Cell<Option<u64>>; 2],
    /// A cached non-leaf entry.
    walk_cache: Cell<bool>,
    /// It wrote to the frame, and nobody may have seen it yet.
    wrote: Cell<bool>,
}

struct World {
    system: System<Model>,
    cpus: [PerCpu<Model>; CPUS],
    words: [PreemptedWord; CPUS],
    kicked: [AtomicBool; CPUS],
    /// What the hypervisor makes a CPU forget: pages, one bit each, and walk caches.
    exits: [AtomicU32; CPUS],
    tables: [AtomicU64; 2],
    /// The frame behind page 0.
    frame: AtomicU64,
    hw: [Hw; CPUS],
    space: Option<AddressSpace<Model>>,
    over: AtomicU32,
}

const TABLES: u32 = 1 << 8;
const FIRST: u32 = 1;

std::thread_local! {
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
    static POLICY: Cell<&'static Policy> = const { Cell::new(&MARKS) };
    static HYPERVISOR_FAILS: Cell<bool> = const { Cell::new(false) };
}

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

fn world() -> &'static World {
    // SAFETY: set by `boot` for the length of one execution.
    unsafe { &*WORLD.get() }
}

fn space() -> &'static AddressSpace<Model> {
    world().space.as_ref().expect("booted")
}

fn me() -> usize {
    CPU.with(Cell::get)
}

fn hw() -> &'static Hw {
    &world().hw[me()]
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

// SAFETY: a kick sets a flag that the target looks at wherever its interrupts are on; threads that
// play a hypervisor keep to its half of the word; a hypercall is over when each CPU of the set has
// forgotten at an exit.
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
        world().cpus.get(index(cpu)?)
    }

    fn kick(targets: &CpuSet<2>) -> Result<(), KickError> {
        for cpu in targets.iter().filter_map(index) {
            world().kicked[cpu].store(true, Ordering::Release);
        }
        Ok(())
    }

    fn relax(_: &Pin) -> Result<(), Stalled> {
        interrupts();
        thread::yield_now();
        Ok(())
    }

    fn may_wait() -> bool {
        true
    }

    fn policy() -> &'static Policy {
        POLICY.get()
    }

    fn preempted(cpu: CpuId) -> Option<&'static PreemptedWord> {
        world().words.get(index(cpu)?)
    }

    fn flush_remote(flush: &RemoteFlush<'_, Self>) -> Result<(), HypercallError> {
        assert!(!flush.cpus.contains(CpuId(NUMBERS[me()])), "never the one that asks");
        if HYPERVISOR_FAILS.get() {
            return Err(HypercallError::Status(1));
        }
        assert!(matches!(flush.of, Of::All | Of::Space(1)));
        let runs = flush.pages.as_ref().map(|runs| runs.as_slice());
        let pages = runs.map_or(0b11, |runs| {
            runs.iter().fold(0, |bits, run| bits | ((1 << run.pages) - 1) << (run.start >> 12))
        });
        let what = pages | if flush.freed_tables { TABLES } else { 0 };
        for cpu in flush.cpus.iter().filter_map(index) {
            world().exits[cpu].store(what | 1 << 9, Ordering::Release);
        }
        for cpu in flush.cpus.iter().filter_map(index) {
            while world().exits[cpu].load(Ordering::Acquire) != 0 {
                exits();
                thread::yield_now();
            }
        }
        Ok(())
    }
}

// SAFETY: the TLB below forgets what it is told to; there is one space.
unsafe impl Regime for Model {
    type Root = u64;

    fn facts() -> &'static Facts {
        &FACTS
    }

    unsafe fn load(_: u64, _: Tag, keep: bool) {
        if !keep {
            forget_all();
        }
    }

    fn load_kernel() {}

    fn publish() {}

    fn invalidate(what: Invalidate, _: Reach) {
        let (range, tables) = match what {
            Invalidate::Range { range, leaf_only, .. } => (range, !leaf_only),
            Invalidate::Kernel(range) => (range, false),
            _ => return forget_all(),
        };
        let pages = (range.start() >> 12) as usize..(range.last() >> 12) as usize + 1;
        hw().tlb[pages].iter().for_each(|entry| entry.set(None));
        if tables {
            hw().walk_cache.set(false);
        }
    }

    fn sync(_: Reach) {}
}

fn forget_all() {
    hw().tlb.iter().for_each(|entry| entry.set(None));
    hw().walk_cache.set(false);
}

/// What this CPU reads at a page. Through the old translation of page 0 CPU 1 writes to the frame
/// too.
fn access(page: usize) -> u64 {
    let entry = &hw().tlb[page];
    let value = entry.get().unwrap_or_else(|| world().tables[page].load(Ordering::Relaxed));
    entry.set(Some(value));
    hw().walk_cache.set(true);
    if page == 0 && value == 1 && me() == 1 {
        world().frame.store(1, Ordering::Relaxed);
        hw().wrote.set(true);
    }
    value
}

/// Takes a pending interrupt, and exits to the hypervisor if that wants it.
fn interrupts() {
    exits();
    let kicked = &world().kicked[me()];
    if kicked.load(Ordering::Relaxed) && kicked.swap(false, Ordering::Acquire) {
        assert_eq!(on_kick(off(&Model::pin())), Served::Done);
    }
}

/// The hypervisor makes this CPU forget.
fn exits() {
    let what = world().exits[me()].load(Ordering::Acquire);
    if what == 0 {
        return;
    }
    for (page, entry) in hw().tlb.iter().enumerate().filter(|(page, _)| what & 1 << page != 0) {
        assert!(page < 2);
        entry.set(None);
    }
    if what & TABLES != 0 {
        hw().walk_cache.set(false);
    }
    world().exits[me()].store(0, Ordering::Release);
}

/// The hypervisor deschedules this CPU, and lets it run again.
fn deschedule() {
    // SAFETY: the thread makes no access before `resumes`.
    unsafe { world().words[me()].stopped() };
    resume();
}

fn resume() {
    // SAFETY: it forgets below.
    if unsafe { world().words[me()].resumes() } {
        forget_all();
    }
}

fn on(cpu: usize) -> Pin {
    CPU.with(|c| c.set(cpu));
    Model::pin()
}

/// Two CPUs run in the space and have cached both of its pages.
fn boot(policy: &'static Policy) {
    POLICY.set(policy);
    WORLD.set(Box::into_raw(Box::new(World {
        system: System::new(),
        cpus: std::array::from_fn(|_| PerCpu::new()),
        words: std::array::from_fn(|_| PreemptedWord::new()),
        kicked: std::array::from_fn(|_| AtomicBool::new(false)),
        exits: std::array::from_fn(|_| AtomicU32::new(0)),
        tables: std::array::from_fn(|_| AtomicU64::new(1)),
        frame: AtomicU64::new(0),
        hw: Default::default(),
        space: None,
        over: AtomicU32::new(0),
    })));
    let made = AddressSpace::new(1);
    // SAFETY: nobody else knows of the world yet.
    unsafe { (*WORLD.get().cast_mut()).space = Some(made) };
    for cpu in 0..CPUS {
        let pin = on(cpu);
        online(off(&pin)).unwrap();
        // SAFETY: interrupts are taken only in `interrupts`; the space outlives the threads.
        unsafe { switch_to(&pin, space()) };
        assert_eq!((access(0), access(1)), (1, 1));
        hw().wrote.set(false);
    }
    on(1);
    world().frame.store(0, Ordering::Relaxed);
}

fn request(first: u64, count: u64) -> Request {
    Request::pages(VaRange::new(first << 12, count, Stride::Page4K).unwrap())
}

/// Of pages whose flushes are over this CPU sees nothing. Serves until these are.
fn finish(pages: u32) {
    interrupts();
    let over = world().over.load(Ordering::Acquire);
    let read = [access(0), access(1)];
    for (page, read) in read.into_iter().enumerate() {
        assert!(over & 1 << page == 0 || read == 0, "Revocation: page {page} after its flush");
    }
    while world().over.load(Ordering::Acquire) & pages != pages {
        interrupts();
        thread::yield_now();
    }
}

/// Unmaps the first page.
fn unmap_first() {
    world().tables[0].store(0, Ordering::Relaxed);
    space().flush(&Model::pin(), request(0, 1)).unwrap();
    let seen = world().frame.load(Ordering::Relaxed) != 0;
    assert!(seen || !world().hw[1].wrote.get(), "Reuse: a write is not over yet");
    world().over.store(FIRST, Ordering::Release);
}

#[test]
fn a_cpu_is_descheduled_and_resumed_while_its_page_is_unmapped() {
    let kills = [
        StoppedRelaxed,
        ResumesRelaxed,
        ResumesInTwoSteps,
        MarkStoredBlindly,
        MarkFailureTrusted,
        MarkRelaxed,
        PreemptedAcknowledges,
    ];
    holds("one initiator", Some(3), &kills, || {
        boot(&MARKS);
        let other = thread::spawn(|| {
            on(1);
            access(0);
            deschedule();
            access(0);
            finish(FIRST);
        });
        on(0);
        unmap_first();
        other.join().unwrap();
    });
}

#[test]
fn two_initiators_mark_one_cpu() {
    holds("two marks", None, &[MarkStoredBlindly, MarkFailureTrusted], || {
        let word = Arc::new(PreemptedWord::new());
        let tables: Arc<[AtomicU64; 2]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(1)));
        let over: Arc<[AtomicBool; 2]> = Arc::new(std::array::from_fn(|_| AtomicBool::new(false)));
        // SAFETY: nothing runs on this CPU but the model's own accesses, between the two.
        unsafe { word.stopped() };
        let initiators = [0, 1].map(|page| {
            let (word, tables, over) = (word.clone(), tables.clone(), over.clone());
            thread::spawn(move || {
                tables[page].store(0, Ordering::Relaxed);
                if word.mark() {
                    over[page].store(true, Ordering::Release);
                }
            })
        });
        // Two entries from before; the CPU walks again if it was made to forget.
        // SAFETY: as above.
        let forgets = unsafe { word.resumes() };
        for page in 0..2 {
            let old = !forgets || tables[page].load(Ordering::Relaxed) == 1;
            assert!(!(over[page].load(Ordering::Acquire) && old), "Revocation: page {page}");
        }
        initiators.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: as above.
        assert!(!unsafe { word.resumes() }, "a CPU that runs has no mark");
    });
}

/// CPU 1, which runs, while CPU 0 flushes both pages and their table by a hypercall.
fn handed() {
    boot(&CALLS);
    let other = thread::spawn(|| {
        on(1);
        finish(0b11);
    });
    let pin = on(0);
    world().tables.iter().for_each(|page| page.store(0, Ordering::Relaxed));
    space().flush(&pin, Request { freed_tables: true, ..request(0, 2) }).unwrap();
    assert!(hw().tlb.iter().all(|entry| entry.get().is_none()), "its own part is done too");
    let cached = world().hw[1].walk_cache.get() && world().hw[1].tlb[0].get() == Some(1);
    assert!(!cached, "Revocation");
    world().over.store(0b11, Ordering::Release);
    other.join().unwrap();
}

#[test]
fn a_hypercall_makes_a_running_cpu_forget() {
    HYPERVISOR_FAILS.set(false);
    holds("hypercall", Some(2), &[HandedFirstWordOnly, RunsCutShort], handed);
}

#[test]
fn a_hypercall_that_fails_is_as_good_as_none() {
    HYPERVISOR_FAILS.set(true);
    holds("failed hypercall", Some(2), &[HypercallFailureTrusted], handed);
}

#[test]
fn a_hypervisor_is_told_of_freed_tables() {
    HYPERVISOR_FAILS.set(false);
    holds("freed tables", Some(2), &[HandedWithoutTables], || {
        boot(&CALLS);
        let other = thread::spawn(|| {
            on(1);
            while world().exits[1].load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            exits();
        });
        let pin = on(0);
        space().flush(&pin, Request { freed_tables: true, ..request(0, 2) }).unwrap();
        // The table is about to be reused: nothing may lead to it any more, used or not.
        assert!(!world().hw[1].walk_cache.get(), "Reuse: still cached when the flush returned");
        other.join().unwrap();
    });
}

#[test]
fn a_kernel_page_is_gone_here_too_when_the_hypervisor_sees_to_the_others() {
    HYPERVISOR_FAILS.set(false);
    holds("kernel range", Some(2), &[InitiatorDropped], || {
        boot(&CALLS);
        let other = thread::spawn(|| {
            on(1);
            finish(0b01);
        });
        let pin = on(0);
        world().tables[0].store(0, Ordering::Relaxed);
        flush_kernel::<Model>(&pin, VaRange::new(0, 1, Stride::Page4K).unwrap()).unwrap();
        assert_eq!(access(0), 0, "Revocation: on the CPU that asked");
        world().over.store(FIRST, Ordering::Release);
        other.join().unwrap();
    });
}
