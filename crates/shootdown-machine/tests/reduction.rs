//! What an exhaustive search of the hunt leaves out, it may leave out: random small programs on the
//! real executor, with and without reduction, show the same results. (Not the same final hashes:
//! locations are numbered in the order of their first use, so the executor tells more states apart
//! than there are.) (Rule F9; on toy systems: `hunt::schedule`.)

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use shootdown_machine::CpuId;
use shootdown_machine::hostile::{Descriptor, Frame, TableId, Word};
use shootdown_machine::hunt::hw::{Architecture, Setup, Target};
use shootdown_machine::hunt::schedule::{Ended, Limits, Reduction, Report, Rng, exhaustive};
use shootdown_machine::hunt::{Bounds, Memory, Power, Powers, World, hw, run};
use shootdown_machine::shootdown::Tag;
use shootdown_machine::shootdown::sync::{AtomicU64, fence};

#[derive(Clone, Copy, Debug)]
enum Op {
    Load(usize, Ordering),
    Store(usize, u64, Ordering),
    Add(usize, Ordering),
    Fence(Ordering),
    Kick(u32),
    Irqs(bool),
    Wait(usize),
    /// Writes the page's entry: absent, read-only, or writable.
    Entry(u8),
    /// Swaps it.
    Swap(u8),
    ReadEntry,
    Publish,
    Invalidate(Target),
    Sync,
    /// Loads the root, with the tag's entries kept or not.
    Reload(bool),
    /// A store of user code, which may fault.
    UserStore,
    /// The entry's last change is said to be flushed, whether it is or not.
    Revoke,
    /// Any translation may be used: a violation if a revoked one can be.
    UserCode,
}

const TAG: Tag = Tag(1);
const ROOT: TableId = TableId(0);
const LEAVES: TableId = TableId(1);
const ENTRY: Word = Word::new(LEAVES, 0);
const PAGE: Target = Target::Pages { tag: TAG, first: 0, last: 0, leaf_only: true };

fn entry(choice: u8) -> Descriptor {
    match choice {
        0 => Descriptor::ABSENT,
        1 => Descriptor::user_ro(Frame(0)),
        _ => Descriptor::user_rw(Frame(1)),
    }
}

type Seen = Vec<u64>;

/// Programs over two words; what they read is what they show.
struct Programs {
    architecture: Architecture,
    programs: Vec<Vec<Op>>,
    words: Cell<Option<NonNull<[AtomicU64; 2]>>>,
    seen: RefCell<Vec<Seen>>,
    results: RefCell<BTreeSet<Vec<Seen>>>,
}

impl Programs {
    fn words(&self) -> &[AtomicU64; 2] {
        // SAFETY: placed by `boot` of this run.
        unsafe { self.words.get().expect("booted").as_ref() }
    }

    fn see(&self, cpu: CpuId, value: u64) {
        self.seen.borrow_mut()[cpu.index()].push(value);
    }
}

impl World for Programs {
    fn cpus(&self) -> u8 {
        self.programs.len() as u8
    }

    fn boot(&self) {
        hw::setup(Setup {
            levels: 2,
            index_bits: 1,
            tables: 2,
            frames: 2,
            architecture: self.architecture,
        });
        assert_eq!((hw::new_table(), hw::new_table()), (ROOT, LEAVES));
        assert_eq!((hw::new_frame(), hw::new_frame()), (Frame(0), Frame(1)));
        let _ = hw::write_entry(ENTRY, entry(2));
        let _ = hw::write_entry(Word::new(ROOT, 0), Descriptor::table(LEAVES));
        for cpu in 0..self.programs.len() as u32 {
            hw::boot_as(CpuId(cpu), || hw::load_root(ROOT, TAG, false));
        }
        self.words.set(Some(hw::place([const { AtomicU64::new(0) }; 2])));
        *self.seen.borrow_mut() = vec![Seen::new(); self.programs.len()];
    }

    fn program(&self, cpu: CpuId) {
        for op in &self.programs[cpu.index()] {
            match *op {
                Op::Load(w, order) => {
                    let value = self.words()[w].load(order);
                    self.see(cpu, value);
                }
                Op::Store(w, value, order) => self.words()[w].store(value, order),
                Op::Add(w, order) => {
                    let value = self.words()[w].fetch_add(10, order);
                    self.see(cpu, value);
                }
                Op::Fence(order) => fence(order),
                Op::Kick(to) => {
                    let raised = hw::kick(CpuId(to % self.programs.len() as u32));
                    self.see(cpu, 1000 + u64::from(raised));
                }
                Op::Irqs(on) => {
                    hw::set_irqs(on);
                }
                Op::Entry(to) => {
                    let _ = hw::write_entry(ENTRY, entry(to));
                }
                Op::Swap(to) => {
                    let (old, _) = hw::swap_entry(ENTRY, entry(to));
                    self.see(cpu, old.bits());
                }
                Op::ReadEntry => self.see(cpu, hw::read_entry(ENTRY).bits()),
                Op::Publish => hw::publish(),
                Op::Invalidate(target) => hw::invalidate(target),
                Op::Sync => hw::sync(),
                Op::Reload(keep) => hw::load_root(ROOT, TAG, keep),
                Op::UserStore => {
                    let stored = hw::user_store(0);
                    self.see(cpu, 3000 + u64::from(stored));
                }
                Op::Revoke => hw::revoked(&[hw::latest(ENTRY)]),
                Op::UserCode => hw::user_code(),
                Op::Wait(w) => {
                    while self.words()[w].load(Ordering::Acquire) == 0 {
                        hw::relax();
                    }
                }
            }
        }
        hw::set_irqs(true);
    }

    fn interrupt(&self, cpu: CpuId) {
        let value = self.words()[0].load(Ordering::Relaxed);
        self.see(cpu, 2000 + value);
    }

    fn finish(&self) {
        let mut result = self.seen.borrow().clone();
        result.push(self.words().iter().map(|w| w.load(Ordering::Relaxed)).collect());
        self.results.borrow_mut().insert(result);
    }
}

fn explore(
    world: &Programs,
    powers: Powers,
    reduction: Reduction,
) -> (Report, BTreeSet<Vec<Seen>>) {
    let limits = Limits { first_violation: false, runs: 30_000, ..Limits::default() };
    let bounds = Bounds { steps: 400, ..Bounds::default() };
    world.results.borrow_mut().clear();
    let mut run = |c: &mut dyn shootdown_machine::hunt::Chooser| run(world, powers, bounds, c);
    let report = exhaustive(limits, reduction, &mut run, &mut |_, _| {});
    (report, world.results.take())
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.below(all.len())]
}

fn op(rng: &mut Rng, kinds: &[u8]) -> Op {
    use Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
    let w = rng.below(2);
    match one_of(rng, kinds) {
        0 => Op::Load(w, one_of(rng, &[Relaxed, Acquire, SeqCst])),
        1 => Op::Store(w, 1 + rng.below(2) as u64, one_of(rng, &[Relaxed, Release, SeqCst])),
        2 => Op::Add(w, one_of(rng, &[Relaxed, AcqRel, SeqCst])),
        3 => Op::Fence(one_of(rng, &[Acquire, Release, SeqCst])),
        4 => Op::Kick(rng.below(3) as u32),
        5 => Op::Irqs(rng.below(2) == 0),
        6 => Op::Wait(w),
        7 => Op::Entry(rng.below(3) as u8),
        8 => Op::Swap(rng.below(3) as u8),
        9 => Op::ReadEntry,
        10 => Op::Publish,
        11 => Op::Invalidate(one_of(rng, &[PAGE, Target::Tag(TAG), Target::Everything])),
        12 => Op::Sync,
        13 => Op::Reload(rng.below(2) == 0),
        14 => Op::UserStore,
        15 => Op::Revoke,
        _ => Op::UserCode,
    }
}

/// Entries that wait in store buffers are one CPU's only: kernels write them under a lock.
fn one_writer(mut programs: Vec<Vec<Op>>) -> Vec<Vec<Op>> {
    let plain = |op: &Op| matches!(op, Op::Entry(_));
    if let Some(writer) = programs.iter().position(|p| p.iter().any(plain)) {
        for (_, program) in programs.iter_mut().enumerate().filter(|(cpu, _)| *cpu != writer) {
            for op in program.iter_mut().filter(|op| matches!(op, Op::Entry(_) | Op::Swap(_))) {
                *op = Op::ReadEntry;
            }
        }
    }
    programs
}

/// Programs of these kinds of operations, with these powers.
fn compare(seed: u64, kinds: &[u8], powers: Powers) {
    compare_on(Architecture::X86_64, seed, kinds, powers);
}

fn compare_on(architecture: Architecture, seed: u64, kinds: &[u8], powers: Powers) {
    let mut compared = 0;
    for number in 0..std::env::var("SHOOTDOWN_RUNS").map_or(25, |n| n.parse().unwrap()) {
        let mut rng = Rng::of_run(seed, number);
        let cpus = 2 + rng.below(2);
        let longest = if cpus == 2 { 4 } else { 2 };
        let programs: Vec<Vec<Op>> = (0..cpus)
            .map(|_| (0..1 + rng.below(longest)).map(|_| op(&mut rng, kinds)).collect())
            .collect();
        let programs = one_writer(programs);
        let world = Programs {
            architecture,
            programs,
            words: Cell::new(None),
            seen: RefCell::default(),
            results: RefCell::default(),
        };
        let (all, expected) = explore(&world, powers, Reduction::NONE);
        if all.ended == Ended::Runs {
            continue;
        }
        assert!(all.complete(), "{all}");
        compared += 1;
        for (cache, sleep) in [(true, false), (false, true), (true, true)] {
            let (report, results) = explore(&world, powers, Reduction { cache, sleep });
            let what = format!(
                "program {number}: {:?}\n{powers:?}\ncache {cache}, sleep {sleep}\nwithout: {all}\nwith:    {report}\nlost: {:?}",
                world.programs,
                expected.difference(&results).collect::<Vec<_>>()
            );
            assert!(report.complete(), "{what}");
            assert!(results == expected, "{what}");
            assert_eq!(report.violations > 0, all.violations > 0, "{what}");
        }
    }
    assert!(compared > 5, "{compared}");
}

#[test]
fn plain_accesses() {
    for memory in [Memory::Sc, Memory::Tso, Memory::Weak] {
        compare(1, &[0, 1], Powers::NONE.memory(memory));
    }
}

#[test]
fn swaps_and_fences() {
    for memory in [Memory::Sc, Memory::Tso, Memory::Weak] {
        compare(2, &[0, 1, 2, 3], Powers::NONE.memory(memory));
    }
}

#[test]
fn interrupts() {
    for memory in [Memory::Sc, Memory::Tso, Memory::Weak] {
        for powers in [Powers::NONE.with(Power::LateInterrupts), Powers::NONE] {
            compare(3, &[0, 1, 4, 5], powers.memory(memory));
        }
    }
}

#[test]
fn waits() {
    for memory in [Memory::Sc, Memory::Tso, Memory::Weak] {
        compare(4, &[0, 1, 1, 4, 6], Powers::NONE.memory(memory).with(Power::LateInterrupts));
    }
}

/// What walkers read, what MMUs keep, and what is said about it.
#[test]
fn page_tables() {
    for architecture in [Architecture::X86_64, Architecture::Aarch64, Architecture::RiscV64] {
        for memory in [Memory::Sc, Memory::Tso, Memory::Weak] {
            let powers = Powers::HOSTILE.memory(memory);
            compare_on(architecture, 5, &[7, 8, 9, 10, 11, 12, 14], powers);
            compare_on(architecture, 6, &[0, 1, 7, 8, 10, 11, 12, 13, 14], powers);
            compare_on(architecture, 7, &[8, 8, 11, 11, 12, 15, 15, 16, 16], powers);
        }
    }
}
