//! The two-CPU cores of the protocol under the `loom` model checker, which explores interleavings
//! *and* what weak memory allows. Each promise comes with mutants that must break it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shootdown-woven --release --test loom`
#![cfg(loom)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use shootdown_woven::cpu_set::{AtomicCpuSet, Bits, CpuSet};
use shootdown_woven::facts::TagScope;
use shootdown_woven::mutant::{self, Mutant};
use shootdown_woven::*;

const CPUS: usize = 3;

static FACTS: Facts =
    Facts { tag_scope: TagScope::PerCpu, tag_bits: 12, kick_all: true, ..Facts::X86_64_MINIMUM };

static TREE: Policy = Policy { tree_above: 1, ..Policy::SHOOTDOWN };

/// Two pages of one space; page *p*'s entry is 1 while mapped.
struct World {
    system: System<Model>,
    cpus: [PerCpu<Model>; CPUS],
    kicked: [AtomicBool; CPUS],
    /// Rung with each kick, for threads that have nothing to do but wait for one.
    bells: [Notify; CPUS],
    tables: [AtomicU64; 2],
    /// What each CPU's TLB holds of each page under the tag of the space, if anything. Private to
    /// the CPU's thread.
    tlb: [[Cell<Option<u64>>; 2]; CPUS],
    in_space: [Cell<bool>; CPUS],
    /// The CPU has invalidated something since it came online. (The checker interleaves only what
    /// it can see, and it can't see `tlb`.)
    invalidated: [AtomicBool; CPUS],
}

std::thread_local! {
    static WORLD: Cell<*const World> = const { Cell::new(std::ptr::null()) };
    static POLICY: Cell<&'static Policy> = const { Cell::new(&Policy::SHOOTDOWN) };
}

loom::thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
}

fn world() -> &'static World {
    // SAFETY: set for the length of one execution by `execute`.
    unsafe { &*WORLD.get() }
}

fn me() -> u32 {
    CPU.with(Cell::get)
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

fn goes_offline(pin: &Pin) {
    // SAFETY: this thread is in no other function of the library, nothing interrupts it, and it
    // uses no page after.
    unsafe { offline::<Model>(pin) };
}

// SAFETY: a kick sets a flag that the target looks at wherever its interrupts are on.
unsafe impl Platform for Model {
    type Pin = Pin;
    type Regime = Model;
    type Mask = AtomicCpuSet<1>;
    type Slots = Slots<2>;
    type Tags = shootdown_woven::NoTags;

    fn pin() -> Pin {
        Pin(CpuId(me()), PhantomData)
    }

    fn system() -> &'static System<Self> {
        &world().system
    }

    fn slot(cpu: CpuId) -> Option<&'static PerCpu<Self>> {
        world().cpus.get(cpu.index())
    }

    fn kick(targets: &CpuSet<1>) -> Result<(), KickError> {
        for cpu in targets.iter() {
            world().kicked[cpu.index()].store(true, Ordering::Release);
            world().bells[cpu.index()].notify();
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
}

// SAFETY: the TLB below forgets what it is told to; the space of these models has tag 1 or 2
// throughout.
unsafe impl Regime for Model {
    type Root = u64;

    fn facts() -> &'static Facts {
        &FACTS
    }

    unsafe fn load(root: u64, _: Tag, keep: bool) {
        world().in_space[me() as usize].set(root == 1);
        if root == 1 && !keep {
            forget(0..2);
        }
    }

    fn load_kernel() {
        world().in_space[me() as usize].set(false);
    }

    fn publish() {}

    fn invalidate(what: Invalidate, _: Reach) {
        world().invalidated[me() as usize].store(true, Ordering::Relaxed);
        match what {
            Invalidate::Range { range, .. } => {
                forget((range.start() >> 12) as usize..(range.last() >> 12) as usize + 1);
            }
            _ => forget(0..2),
        }
    }

    fn sync(_: Reach) {}
}

fn forget(pages: std::ops::Range<usize>) {
    world().tlb[me() as usize][pages].iter().for_each(|e| e.set(None));
}

/// What this CPU reads at a page.
fn access(page: usize) -> u64 {
    let entry = &world().tlb[me() as usize][page];
    let value = entry.get().unwrap_or_else(|| world().tables[page].load(Ordering::Relaxed));
    entry.set(Some(value));
    value
}

/// Takes a pending interrupt.
fn interrupts() {
    if world().kicked[me() as usize].load(Ordering::Relaxed)
        && world().kicked[me() as usize].swap(false, Ordering::Acquire)
    {
        assert_eq!(on_kick(off(&Model::pin())), Served::Done);
    }
}

fn switch(space: &AddressSpace<Model>) {
    // SAFETY: interrupts are taken only in `interrupts`; spaces outlive the threads.
    unsafe { switch_to(&Model::pin(), space) };
}

fn page(page: u64) -> Request {
    Request::pages(VaRange::new(page << 12, 1, Stride::Page4K).unwrap())
}

/// What a model starts with.
struct Start {
    space: AddressSpace<Model>,
    elsewhere: AddressSpace<Model>,
    flushed: AtomicBool,
    over: [AtomicBool; 2],
}

fn on(cpu: u32) -> Pin {
    CPU.with(|c| c.set(cpu));
    Model::pin()
}

/// Explores `model` after `prepare`; returns how many executions there were.
fn explore(
    policy: &'static Policy,
    preemptions: usize,
    model: impl Fn(&'static Start) + Sync + Send + 'static,
) -> usize {
    std::thread_local!(static MINE: Cell<usize> = const { Cell::new(0) });
    MINE.set(0);
    POLICY.set(policy);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        MINE.set(MINE.get() + 1);
        let world = Box::into_raw(Box::new(World {
            system: System::new(),
            cpus: std::array::from_fn(|_| PerCpu::new()),
            kicked: std::array::from_fn(|_| AtomicBool::new(false)),
            bells: std::array::from_fn(|_| Notify::new()),
            tables: std::array::from_fn(|_| AtomicU64::new(1)),
            tlb: std::array::from_fn(|_| std::array::from_fn(|_| Cell::new(None))),
            in_space: std::array::from_fn(|_| Cell::new(false)),
            invalidated: std::array::from_fn(|_| AtomicBool::new(false)),
        }));
        WORLD.set(world);
        let start = Box::into_raw(Box::new(Start {
            space: AddressSpace::new(1),
            elsewhere: AddressSpace::new(2),
            flushed: AtomicBool::new(false),
            over: std::array::from_fn(|_| AtomicBool::new(false)),
        }));
        for cpu in 0..2 {
            online(off(&on(cpu))).unwrap();
        }
        // SAFETY: freed below, after every thread has been joined by the model.
        model(unsafe { &*start });
        // SAFETY: made by `Box::into_raw` above, and no thread is left that uses them.
        unsafe {
            // the spaces are not retired: threads end where they are
            std::mem::forget(Box::from_raw(start));
            drop(Box::from_raw(world));
        }
    });
    MINE.get()
}

/// The model holds, and none of the mutants does.
fn holds(
    name: &str,
    policy: &'static Policy,
    preemptions: usize,
    mutants: &[Mutant],
    model: impl Fn(&'static Start) + Sync + Send + Copy + 'static,
) {
    mutant::set(None);
    let runs = explore(policy, preemptions, model);
    println!("{name}: {runs} executions");
    // A mutant's panic unwinds a coroutine with a small stack; a backtrace would not fit it.
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    for m in mutants {
        mutant::set(Some(*m));
        let outcome = catch_unwind(AssertUnwindSafe(|| explore(policy, preemptions, model)));
        mutant::set(None);
        assert!(outcome.is_err(), "{name}: mutant {m:?} survived {:?} executions", outcome.ok());
        println!("{name}: mutant {m:?} killed");
    }
}

/// CPU 1 gets back to a space while CPU 0 unmaps a page of it.
fn return_against_flush(s: &'static Start, away: fn(&'static Start), back: fn(&'static Start)) {
    on(1);
    switch(&s.space);
    assert_eq!(access(0), 1);
    away(s);
    let other = thread::spawn(move || {
        on(1);
        back(s);
        interrupts();
        let over = s.flushed.load(Ordering::Acquire);
        let read = access(0);
        assert!(!(over && read == 1), "Revocation: stale read after the flush returned");
        while !s.flushed.load(Ordering::Acquire) {
            interrupts();
            thread::yield_now();
        }
    });
    let pin = on(0);
    world().tables[0].store(0, Ordering::Relaxed);
    s.space.flush(&pin, page(0)).unwrap();
    s.flushed.store(true, Ordering::Release);
    other.join().unwrap();
}

#[test]
fn d1_switch_against_flush() {
    use Mutant::*;
    holds(
        "D1, remembered space",
        &Policy::SHOOTDOWN,
        3,
        &[
            SwitchWithoutFence,
            FlushWithoutFence,
            SwitchReadsGenerationFirst,
            FilterSkipsSwitching,
            SlotTrusts,
            NoGenerationBump,
        ],
        |s| return_against_flush(s, |s| switch(&s.elsewhere), |s| switch(&s.space)),
    );
}

#[test]
fn d1_return_from_the_kernels_own_tables() {
    holds(
        "D1, set left and entered again",
        &Policy::SHOOTDOWN,
        3,
        &[Mutant::SwitchReadsGenerationFirst, Mutant::SlotTrusts],
        |s| return_against_flush(s, |_| leaves(&Model::pin()), |s| switch(&s.space)),
    );
}

#[test]
fn an_answer_of_the_space_before_is_not_one_of_this() {
    // The space that CPU 1 comes from has seen more changes than the one it comes to.
    holds("D1, from a space of a higher generation", &Policy::SHOOTDOWN, 3, &[], |s| {
        on(1);
        for _ in 0..2 {
            s.elsewhere.flush(&Model::pin(), page(1)).unwrap();
        }
        return_against_flush(s, |s| switch(&s.elsewhere), |s| switch(&s.space));
    });
}

#[test]
fn d2_lazy_exit_against_flush() {
    use Mutant::*;
    holds(
        "D2, lazy exit",
        &Policy::SHOOTDOWN,
        3,
        &[LazyExitWithoutFence, FlushWithoutFence, LazyExitTrusts],
        |s| return_against_flush(s, |_| turns_lazy(&Model::pin()), |s| switch(&s.space)),
    );
}

#[test]
fn d3_lazy_flag_on_the_private_line() {
    static UNSPLIT: Policy = Policy { split_lazy_line: false, ..Policy::SHOOTDOWN };
    holds("D3", &UNSPLIT, 3, &[], |s| {
        return_against_flush(
            s,
            |_| turns_lazy(&Model::pin()),
            |s| {
                switch(&s.elsewhere);
                switch(&s.space);
            },
        );
    });
}

/// Two CPUs in one space unmap a page each, at each other: both return, and neither sees either
/// page.
fn flush_against_flush(s: &'static Start) {
    let run = move |cpu: u32| {
        let pin = on(cpu);
        world().tables[cpu as usize].store(0, Ordering::Relaxed);
        s.space.flush(&pin, page(u64::from(cpu))).unwrap();
        assert_eq!(access(cpu as usize), 0, "Revocation: own page");
    };
    for cpu in [1, 0] {
        on(cpu);
        switch(&s.space);
        assert_eq!((access(0), access(1)), (1, 1));
    }
    // Each serves until the other is done too.
    let finish = move |cpu: usize| {
        s.over[cpu].store(true, Ordering::Release);
        while !s.over[1 - cpu].load(Ordering::Acquire) {
            interrupts();
            thread::yield_now();
        }
        interrupts();
        assert_eq!(access(1 - cpu), 0, "Revocation: the other's page");
    };
    let other = thread::spawn(move || {
        run(1);
        finish(1);
    });
    run(0);
    finish(0);
    other.join().unwrap();
}

#[test]
fn two_initiators_never_deadlock_and_never_see_stale_pages() {
    use Mutant::*;
    holds(
        "two initiators, pull",
        &Policy::SHOOTDOWN,
        2,
        &[NoLocalWork, FilterLosesOne, RespondWithoutInvalidate, PartialOverMissedStep],
        flush_against_flush,
    );
    holds("two initiators, push", &Policy::LINUX_5_13, 2, &[FilterLosesOne], flush_against_flush);
}

/// CPU 1 uses a frame while CPU 0 unmaps it and flushes. Somebody who knows that the change was
/// counted looks whether it is pending, and if not, takes the frame for unused.
#[test]
fn a_flush_is_pending_until_all_have_answered() {
    use Mutant::*;
    holds(
        "pending flush",
        &Policy::SHOOTDOWN,
        3,
        &[FlushNotPending, DoneRelaxed, DoneSeenRelaxed],
        |s| {
            on(1);
            switch(&s.space);
            let frame = Arc::new(UnsafeCell::new(0));
            let uses = {
                let frame = Arc::clone(&frame);
                thread::spawn(move || {
                    on(1);
                    if access(0) == 1 {
                        // SAFETY: what is checked: nobody writes to the frame while a CPU may use
                        // it.
                        frame.with(|f| unsafe { *f });
                    }
                    interrupts();
                    while !s.flushed.load(Ordering::Acquire) {
                        interrupts();
                        thread::yield_now();
                    }
                })
            };
            let unmaps = thread::spawn(move || {
                let pin = on(0);
                world().tables[0].store(0, Ordering::Relaxed);
                s.space.flush(&pin, page(0)).unwrap();
                s.flushed.store(true, Ordering::Relaxed);
            });
            if s.space.generation().0 != 0 && !s.space.is_pending() {
                // SAFETY: as above.
                frame.with_mut(|f| unsafe { *f = 1 });
            }
            uses.join().unwrap();
            unmaps.join().unwrap();
        },
    );
}

/// CPU 1 acknowledges nobody. CPU 0 begins a flush, and drops the ticket: whoever knows that it was
/// counted finds it pending.
#[test]
fn a_flush_that_is_given_up_is_pending_throughout() {
    use Mutant::*;
    holds("given up", &Policy::SHOOTDOWN, 3, &[BegunNotPending, PendingAfterDone], |s| {
        on(1);
        switch(&s.space);
        let begins = thread::spawn(move || {
            let pin = on(0);
            drop(s.space.begin_flush(&pin, page(0)).unwrap());
        });
        if s.space.generation().0 != 0 {
            assert!(s.space.is_pending(), "Revocation: nobody flushes it, and nobody knows");
        }
        begins.join().unwrap();
        assert!(s.space.is_pending());
    });
}

/// CPU 0 has CPUs 1 (and 2) run a function whose effect it relies on.
fn call(targets: &'static [u32]) {
    let mut set = CpuSet::<1>::EMPTY;
    for cpu in targets {
        online(off(&on(*cpu))).unwrap(); // again, for the first two: nothing changes
        set.insert(CpuId(*cpu));
    }
    let others: Vec<_> = targets
        .iter()
        .map(|cpu| {
            thread::spawn(move || {
                on(*cpu);
                let kicked = &world().kicked[*cpu as usize];
                while !kicked.load(Ordering::Acquire) {
                    world().bells[*cpu as usize].wait(); // may wake for nothing
                }
                interrupts();
            })
        })
        .collect();
    let pin = on(0);
    call_on::<Model, _>(&pin, &set, &|cpu| {
        world().tables[cpu.index() - 1].store(7, Ordering::Relaxed);
    })
    .unwrap();
    for cpu in targets {
        let seen = world().tables[*cpu as usize - 1].load(Ordering::Relaxed);
        assert_eq!(seen, 7, "an acknowledged call has run, and its effect is seen");
    }
    others.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn an_acknowledged_call_has_run() {
    holds("call", &Policy::SHOOTDOWN, 3, &[Mutant::AckBeforeCall], |_| call(&[1]));
}

#[test]
fn a_tree_reports_when_all_have_run() {
    holds("tree call", &TREE, 2, &[Mutant::TreeFirstReports], |_| call(&[1, 2]));
}

#[test]
fn a_cpu_that_goes_offline_is_not_waited_for() {
    holds("offline", &Policy::SHOOTDOWN, 3, &[], |_| {
        let other = thread::spawn(move || goes_offline(&on(1)));
        let pin = on(0);
        let all = Model::system().online();
        call_on::<Model, _>(&pin, &all, &|_| {}).unwrap();
        other.join().unwrap();
    });
}

#[test]
fn freed_tables_are_acknowledged_after_the_invalidation() {
    holds("freed tables", &Policy::SHOOTDOWN, 3, &[Mutant::EarlyAckFreed], |s| {
        on(1);
        switch(&s.space);
        assert_eq!(access(0), 1);
        world().invalidated[1].store(false, Ordering::Relaxed);
        let other = thread::spawn(move || {
            on(1);
            while !world().kicked[1].load(Ordering::Acquire) {
                world().bells[1].wait(); // may wake for nothing
            }
            interrupts();
        });
        let pin = on(0);
        world().tables[0].store(0, Ordering::Relaxed);
        s.space.flush(&pin, Request { freed_tables: true, ..page(0) }).unwrap();
        // The table is about to be reused: nothing may lead to it any more, used or not.
        let gone = world().invalidated[1].load(Ordering::Relaxed);
        assert!(gone, "Reuse: still cached when the flush returned");
        other.join().unwrap();
    });
}

#[test]
fn a_cpu_comes_online_with_nothing_cached() {
    holds("online", &Policy::SHOOTDOWN, 3, &[Mutant::OnlineKeeps], |_| {
        world().tlb[2][0].set(Some(1));
        online(off(&on(2))).unwrap();
        assert_eq!(world().tlb[2][0].get(), None);
    });
}
