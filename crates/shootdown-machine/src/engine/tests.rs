//! The engine against arithmetic: small programs whose times are known in advance.

mod fabric;

use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use shootdown::sync::{AtomicU64, Ordering, fence, prefetch};

use super::run::{Job, run};
use super::*;
use crate::outcome::CpuOutcome;
use crate::profile::Profile;

/// A machine for tests: haswell-ep-48 without mitigations, some shared words, one job per CPU.
struct Bench {
    engine: Box<Engine>,
    jobs: Vec<Option<Job>>,
}

impl Bench {
    fn new(profile: &str, cpus: u32) -> Self {
        let profile = Profile::named(profile).unwrap();
        let engine = Engine::new(profile.topology(cpus), profile.costs(false), 16 << 20, 1);
        Self { engine, jobs: (0..cpus).map(|_| None).collect() }
    }

    /// A word on a line of its own.
    fn word(&mut self) -> &'static AtomicU64 {
        let block = self.engine.alloc(Layout::new::<AtomicU64>());
        // SAFETY: the block is fresh, zeroed and aligned; tests run the engine before they drop it,
        // and use the words in jobs only.
        unsafe { block.cast::<AtomicU64>().as_ref() }
    }

    fn job(&mut self, cpu: u32, job: impl FnOnce() + 'static) {
        self.jobs[cpu as usize] = Some(Box::new(job));
    }

    fn run(mut self) -> Result<Vec<CpuOutcome>, Box<Violation>> {
        run(&mut self.engine, self.jobs)?;
        Ok(self.engine.outcomes())
    }

    fn costs(&self) -> Costs {
        self.engine.costs
    }
}

/// How long `body` took.
fn timed(body: impl FnOnce()) -> u64 {
    let from = now().ps();
    body();
    now().ps() - from
}

fn wait_for(word: &AtomicU64, value: u64) {
    while word.load(Ordering::Acquire) != value {
        relax();
    }
}

#[test]
fn a_line_that_goes_back_and_forth_costs_a_transfer_each_way() {
    const ROUNDS: u64 = 100;
    let mut b = Bench::new("haswell-ep-48", 2);
    let (word, costs) = (b.word(), b.costs());
    for cpu in 0..2u64 {
        b.job(cpu as u32, move || {
            for round in 0..ROUNDS {
                wait_for(word, 2 * round + cpu);
                word.fetch_add(1, Ordering::AcqRel);
            }
        });
    }
    let end = b.run().unwrap().iter().filter_map(|c| c.finished).max().unwrap().ps();
    // Each turn fetches the line once to read it and once more to write it.
    let turn = 2 * costs.line_same.ps() + costs.atomic.ps();
    let expected = 2 * ROUNDS * turn;
    assert!(end.abs_diff(expected) < 3 * turn, "{end} ps, expected about {expected} ps");
}

#[test]
fn contended_atomics_queue_up() {
    const N: u64 = 50;
    let mut b = Bench::new("haswell-ep-48", 8);
    let (word, costs) = (b.word(), b.costs());
    for cpu in 0..8 {
        b.job(cpu, move || {
            for _ in 0..N {
                word.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let end = b.run().unwrap().iter().filter_map(|c| c.finished).max().unwrap().ps();
    let each = costs.line_same.ps() + costs.atomic.ps();
    assert_eq!(word.load(Ordering::Relaxed), 8 * N);
    assert!(
        end <= 8 * N * each && end >= (8 * N - 8) * each,
        "{end} ps for {} of {each} ps",
        8 * N
    );
}

#[test]
fn posted_stores_overlap_and_a_fence_waits_for_them() {
    let mut b = Bench::new("haswell-ep-48", 2);
    let (words, costs) = ([b.word(), b.word(), b.word(), b.word()], b.costs());
    let seen = Rc::new(Cell::new((0, 0)));
    let out = Rc::clone(&seen);
    b.job(1, move || words.iter().for_each(|w| w.store(1, Ordering::Relaxed)));
    b.job(0, move || {
        compute(Time::from_us(1));
        let stores = timed(|| words.iter().for_each(|w| w.store(2, Ordering::Release)));
        let drain = timed(|| fence(Ordering::SeqCst));
        out.set((stores, drain));
    });
    b.run().unwrap();
    let (stores, drain) = seen.get();
    assert_eq!(stores, 4 * costs.line_hit.ps());
    assert_eq!(drain, costs.line_same.ps());
}

#[test]
fn fill_buffers_bound_what_overlaps() {
    let mut b = Bench::new("haswell-ep-48", 2);
    let (n, costs) = (b.costs().fill_buffers as usize, b.costs());
    let words: Vec<_> = (0..=n).map(|_| b.word()).collect();
    let theirs = words.clone();
    let took = Rc::new(Cell::new(0));
    let out = Rc::clone(&took);
    b.job(1, move || theirs.iter().for_each(|w| w.store(1, Ordering::Relaxed)));
    b.job(0, move || {
        compute(Time::from_us(2));
        out.set(timed(|| words.iter().for_each(|w| w.store(2, Ordering::Relaxed))));
    });
    b.run().unwrap();
    // The store that found no buffer waited for the first one to complete.
    let hit = costs.line_hit.ps();
    assert_eq!(took.get(), hit + costs.line_same.ps() + hit);
}

#[test]
fn a_prefetch_overlaps_with_computing() {
    let mut b = Bench::new("haswell-ep-48", 48);
    let (word, costs) = (b.word(), b.costs());
    let seen = Rc::new(Cell::new((0, 0)));
    let out = Rc::clone(&seen);
    b.job(24, move || word.store(1, Ordering::Relaxed));
    b.job(0, move || {
        compute(Time::from_us(1));
        prefetch(word);
        compute(Time::from_ns(100));
        let rest = timed(|| assert_eq!(word.load(Ordering::Acquire), 1));
        let again = timed(|| assert_eq!(word.load(Ordering::Acquire), 1));
        out.set((rest, again));
    });
    b.run().unwrap();
    let hit = costs.line_hit.ps();
    assert_eq!(seen.get(), (costs.line_cross.ps() - 100_000, hit));
}

thread_local! {
    static TAKEN: RefCell<Vec<(u32, u64, u64)>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn interrupts_arrive_when_they_should_and_steal_what_they_cost() {
    let mut b = Bench::new("haswell-ep-48", 48);
    let costs = b.costs();
    b.engine.on_interrupt(|_, _| {
        TAKEN.with_borrow_mut(|t| t.push((cpu(), now().ps(), 0)));
        charge(Time::from_ns(50));
    });
    TAKEN.with_borrow_mut(Vec::clear);
    b.job(0, move || {
        compute(Time::from_us(1));
        send([1, 24].into_iter(), Vector::Kick, false);
    });
    for target in [1, 24] {
        b.job(target, || {
            super::mode(Mode::User);
            compute(Time::from_us(10));
        });
    }
    let cpus = b.run().unwrap();
    let sent = Time::from_us(1).ps() + costs.ipi_send.ps();
    let near = sent + costs.ipi_same.ps() + costs.irq_entry.ps();
    let far = sent + costs.ipi_send.ps() + costs.ipi_cross.ps() + costs.irq_entry.ps();
    assert_eq!(TAKEN.take(), [(1, near, 0), (24, far, 0)]);
    let responder = costs.irq_entry + Time::from_ns(50) + costs.irq_exit;
    for target in [1, 24] {
        let cpu = &cpus[target];
        assert_eq!(cpu.time.responder, responder);
        assert_eq!(cpu.finished, Some(Time::from_us(10) + responder));
        assert_eq!(cpu.interrupts.received, 1);
    }
    assert_eq!((cpus[0].interrupts.sent, cpus[0].interrupts.commands), (2, 2));
}

#[test]
fn interrupts_wait_while_they_are_off_and_merge() {
    let mut b = Bench::new("haswell-ep-48", 3);
    b.engine.on_interrupt(|_, _| TAKEN.with_borrow_mut(|t| t.push((cpu(), now().ps(), 0))));
    TAKEN.with_borrow_mut(Vec::clear);
    for sender in 0..2 {
        b.job(sender, || send([2].into_iter(), Vector::Kick, false));
    }
    b.job(2, || {
        irqs(false);
        compute(Time::from_us(5));
        irqs(true);
    });
    let (costs, cpus) = (b.costs(), b.run().unwrap());
    assert_eq!(TAKEN.take(), [(2, Time::from_us(5).ps() + costs.irq_entry.ps(), 0)]);
    assert_eq!((cpus[2].interrupts.received, cpus[2].interrupts.merged), (1, 1));
}

#[test]
fn a_cpu_without_a_program_takes_interrupts_and_idles_again() {
    let mut b = Bench::new("haswell-ep-48", 2);
    let word = b.word();
    static SERVED: Cell0 = Cell0(std::sync::atomic::AtomicU64::new(0));
    struct Cell0(std::sync::atomic::AtomicU64);
    b.engine.on_interrupt(|_, _| {
        SERVED.0.fetch_add(1, Ordering::Relaxed);
        let word = SERVED.0.load(Ordering::Relaxed);
        assert_eq!(word, 1);
    });
    b.job(0, move || {
        send([1].into_iter(), Vector::Kick, false);
        compute(Time::from_us(100));
        word.store(1, Ordering::Relaxed);
    });
    let cpus = b.run().unwrap();
    assert_eq!((cpus[1].interrupts.received, cpus[1].finished), (1, None));
}

#[test]
fn a_woken_cpu_goes_on_and_an_early_wake_is_not_lost() {
    let mut b = Bench::new("haswell-ep-48", 2);
    b.job(0, || {
        send([1].into_iter(), Vector::Wake, false);
        compute(Time::from_us(20));
        send([1].into_iter(), Vector::Wake, false);
    });
    b.job(1, || {
        compute(Time::from_us(5));
        assert!(idle_until(Time::from_ps(NEVER)));
        assert!(now() < Time::from_us(6));
        assert!(!idle_until(Time::from_us(10)));
        assert_eq!(now(), Time::from_us(10));
        assert!(idle_until(Time::from_ps(NEVER)));
        assert!(now() > Time::from_us(20));
    });
    let cpus = b.run().unwrap();
    assert!(cpus[1].time.idle > Time::from_us(9));
}

#[test]
fn nobody_able_to_go_on_is_a_violation_of_progress() {
    let mut b = Bench::new("haswell-ep-48", 2);
    let word = b.word();
    b.job(0, move || wait_for(word, 1));
    b.job(1, || compute(Time::from_us(1)));
    let violation = b.run().unwrap_err();
    assert_eq!((violation.invariant, violation.seed), ("progress", 1));
    assert!(
        violation.timeline.iter().any(|l| l.contains("cpu0") && l.contains("waits")),
        "{violation}"
    );
}

fn storm(cpus: u32) -> (Vec<CpuOutcome>, u64) {
    let mut b = Bench::new("generic-4096", cpus);
    let words = [b.word(), b.word(), b.word()];
    for cpu in 0..cpus {
        b.job(cpu, move || {
            for round in 0..4u64 {
                compute(Time::from_ns(u64::from(cpu % 7) * 30));
                words[((u64::from(cpu) + round) % 3) as usize].fetch_add(1, Ordering::AcqRel);
                words[0].load(Ordering::Acquire);
            }
        });
    }
    run(&mut b.engine, b.jobs).unwrap();
    (b.engine.outcomes(), b.engine.switches())
}

#[test]
fn four_thousand_cpus_run_and_two_runs_agree() {
    let (first, switches) = storm(4096);
    assert_eq!(storm(4096), (first.clone(), switches));
    assert!(first.iter().all(|c| c.finished.is_some()));
}

/// Debug and release builds, and all hosts, agree on this number. It changes when the model of
/// lines or the profile does, and then it is to be changed here.
#[test]
fn figures_do_not_depend_on_build_or_host() {
    let ends = storm(300).0.iter().filter_map(|c| c.finished).map(Time::ps).sum::<u64>();
    assert_eq!(ends, 9_571_676_000);
}

#[test]
fn a_footprint_counts_distinct_lines() {
    let mut b = Bench::new("haswell-ep-48", 1);
    let (x, y) = (b.word(), b.word());
    b.job(0, move || {
        let ((), f) = probe::footprint(|| {
            x.load(Ordering::Relaxed);
            x.store(1, Ordering::Relaxed);
            y.fetch_or(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        });
        assert_eq!((f.lines, f.written, f.loads, f.stores, f.rmws, f.fences), (2, 2, 1, 1, 1, 1));
    });
    b.run().unwrap();
}
