//! The machine itself: steps, memory models, interrupts, waits.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use shootdown::CpuId;
use shootdown::sync::{AtomicU64, fence};

use super::{
    Bounds, Chooser, Decision, End, Memory, Outcome, Point, Power, Powers, World, hw, run,
};
use crate::oracle::Invariant;

/// Tries every list of choices, depth first.
#[derive(Default)]
struct All {
    /// Option taken and number of options at each point of the current run.
    path: Vec<(usize, usize)>,
    at: usize,
}

impl All {
    /// The next list; `false` when there is none.
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((option, count)) = self.path.pop() {
            if option + 1 < count {
                self.path.push((option + 1, count));
                return true;
            }
        }
        false
    }
}

impl Chooser for All {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        if self.at == self.path.len() {
            self.path.push((0, point.options()));
        }
        let (option, count) = self.path[self.at];
        assert_eq!(count, point.options(), "a run is determined by its choices");
        self.at += 1;
        Decision::Take(option)
    }
}

fn all(world: &dyn World, powers: Powers, mut see: impl FnMut(&Outcome)) -> u64 {
    let mut chooser = All::default();
    let mut runs = 0;
    loop {
        see(&run(world, powers, Bounds::default(), &mut chooser));
        runs += 1;
        if !chooser.advance() {
            return runs;
        }
    }
}

/// Two CPUs store to one word each and read the other's.
struct Dekker {
    fences: bool,
    words: Cell<Option<NonNull<[AtomicU64; 4]>>>,
    both_missed: Cell<bool>,
}

impl Dekker {
    fn new(fences: bool) -> Self {
        Self { fences, words: Cell::new(None), both_missed: Cell::new(false) }
    }

    fn words(&self) -> &[AtomicU64; 4] {
        // SAFETY: placed by `boot` of this run.
        unsafe { self.words.get().expect("booted").as_ref() }
    }
}

impl World for Dekker {
    fn cpus(&self) -> u8 {
        2
    }

    fn boot(&self) {
        self.words.set(Some(hw::place([const { AtomicU64::new(0) }; 4])));
    }

    fn program(&self, cpu: CpuId) {
        let words = self.words();
        let (mine, other) = (cpu.index(), 1 - cpu.index());
        words[mine].store(1, Ordering::Relaxed);
        if self.fences {
            fence(Ordering::SeqCst);
        }
        let seen = words[other].load(Ordering::Relaxed);
        words[2 + mine].store(seen + 1, Ordering::Relaxed);
    }

    fn interrupt(&self, _: CpuId) {}

    fn finish(&self) {
        let seen = |i: usize| self.words()[i].load(Ordering::Relaxed);
        if seen(2) == 1 && seen(3) == 1 {
            self.both_missed.set(true);
        }
    }
}

#[test]
fn store_buffering_is_seen_where_the_memory_model_allows_it() {
    for (memory, fences, expected) in [
        (Memory::Sc, false, false),
        (Memory::Tso, false, true),
        (Memory::Tso, true, false),
        (Memory::Weak, false, true),
        (Memory::Weak, true, false),
    ] {
        let world = Dekker::new(fences);
        let runs = all(&world, Powers::NONE.memory(memory), |o| assert_eq!(o.end, End::Finished));
        assert!(runs > 1);
        assert_eq!(world.both_missed.get(), expected, "{memory:?}, fences {fences}");
    }
}

/// CPU 0 interrupts CPU 1 and waits for its answer.
struct Ping {
    deaf: bool,
    word: Cell<Option<NonNull<AtomicU64>>>,
    handled: Cell<u32>,
}

impl Ping {
    fn word(&self) -> &AtomicU64 {
        // SAFETY: placed by `boot` of this run.
        unsafe { self.word.get().expect("booted").as_ref() }
    }
}

impl World for Ping {
    fn cpus(&self) -> u8 {
        2
    }

    fn boot(&self) {
        self.word.set(Some(hw::place(AtomicU64::new(0))));
    }

    fn program(&self, cpu: CpuId) {
        if cpu.0 == 0 {
            assert!(hw::kick(CpuId(1)));
            while self.word().load(Ordering::Acquire) == 0 {
                hw::relax();
            }
        } else if self.deaf {
            hw::set_irqs(false);
            while self.word().load(Ordering::Acquire) == 0 {
                hw::relax();
            }
        }
    }

    fn interrupt(&self, cpu: CpuId) {
        assert_eq!((cpu, hw::irqs_are_on(), hw::in_interrupt()), (CpuId(1), false, true));
        self.handled.set(self.handled.get() + 1);
        self.word().store(1, Ordering::Release);
    }
}

#[test]
fn an_interrupt_is_taken_once_and_its_answer_seen() {
    for memory in [Memory::Sc, Memory::Tso, Memory::Weak] {
        let world = Ping { deaf: false, word: Cell::new(None), handled: Cell::new(0) };
        let powers = Powers::NONE.memory(memory).with(Power::LateInterrupts);
        let runs = all(&world, powers, |o| assert_eq!(o.end, End::Finished));
        assert_eq!(u64::from(world.handled.get()), runs);
    }
}

#[test]
fn a_wait_that_can_not_end_is_a_violation() {
    let world = Ping { deaf: true, word: Cell::new(None), handled: Cell::new(0) };
    let mut stuck = 0;
    let runs = all(&world, Powers::HOSTILE, |o| match &o.end {
        End::Violation(b) => {
            assert_eq!(b.invariant, Invariant::Progress);
            stuck += 1;
        }
        end => assert_eq!(*end, End::Finished),
    });
    assert!(stuck > 0 && stuck < runs, "{stuck} of {runs}: only if interrupts went off first");
}

/// Many steps, for a look at the speed: `cargo test --release hunt::tests::speed -- --nocapture`.
struct Busy(Cell<Option<NonNull<[AtomicU64; 4]>>>);

impl World for Busy {
    fn cpus(&self) -> u8 {
        3
    }

    fn boot(&self) {
        self.0.set(Some(hw::place([const { AtomicU64::new(0) }; 4])));
    }

    fn program(&self, cpu: CpuId) {
        // SAFETY: placed by `boot` of this run.
        let words: &[AtomicU64; 4] = unsafe { self.0.get().expect("booted").as_ref() };
        for i in 0..40 {
            words[i % 4].store(1, Ordering::Release);
            words[(i + cpu.index()) % 4].load(Ordering::Acquire);
        }
    }

    fn interrupt(&self, _: CpuId) {}
}

struct Random(u64);

impl Chooser for Random {
    fn choose(&mut self, point: &Point<'_>) -> Decision {
        self.0 = super::memory::mix(self.0);
        #[allow(clippy::cast_possible_truncation)] // an index
        Decision::Take((self.0 >> 33) as usize % point.options())
    }
}

#[test]
fn steps_are_counted_and_repeat() {
    for memory in [Memory::Sc, Memory::Tso, Memory::Weak] {
        let world = Busy(Cell::new(None));
        let started = std::time::Instant::now();
        let total = |seed| -> u64 {
            (0..200u64)
                .map(|i| {
                    let mut chooser = Random(seed + i);
                    run(&world, Powers::HOSTILE.memory(memory), Bounds::default(), &mut chooser)
                        .steps
                })
                .sum()
        };
        let (a, b) = (total(1), total(1));
        assert!(a >= 200 * 240);
        assert_eq!(a, b);
        #[allow(clippy::cast_precision_loss)] // a report
        let rate = (a + b) as f64 / started.elapsed().as_secs_f64() / 1e6;
        println!("{memory:?}: {rate:.2} million steps a second");
    }
}
