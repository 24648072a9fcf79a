//! The run: one coroutine per CPU that has something to do, resumed in the order of time.

use corosensei::stack::{DefaultStack, Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult};
use shootdown::CpuId;

use super::cpu::NEVER;
use super::{CPU_BITS, CURRENT, Engine, idle_until, warm, with};
use crate::oracle::{self, Invariant, Stamp};
use crate::time::Time;
use crate::violation::Violation;

/// Bytes of stack per CPU; the host commits what is used. Debug builds need several times the stack
/// of release builds.
const STACK: usize = 256 << 10;

/// What a CPU runs.
pub(crate) type Job = Box<dyn FnOnce()>;

type Cpu = Coroutine<(), (), (), Staggered>;

/// A stack that begins somewhere in its last page: were all to begin at the page's end, the hot
/// ends of thousands of stacks would fight over a few sets of the host's caches.
struct Staggered {
    stack: DefaultStack,
    skip: usize,
}

// SAFETY: a shorter part of a valid stack, with the same guard page; the base stays aligned, as
// `skip` is a multiple of 64.
unsafe impl Stack for Staggered {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.stack.base().get() - self.skip).expect("far from zero")
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }
}

impl Staggered {
    fn new(cpu: u32) -> Self {
        let stack = DefaultStack::new(STACK).expect("the host has memory for another stack");
        Self { stack, skip: cpu as usize * 5 % 64 * 64 }
    }
}

/// Makes CURRENT null again, whatever happens.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        CURRENT.set(std::ptr::null_mut());
    }
}

/// The coroutines of a run. Those that are suspended when the run ends are abandoned: their frames
/// are never returned to, and what they own leaks.
struct Coroutines(Vec<Option<Cpu>>);

impl Drop for Coroutines {
    fn drop(&mut self) {
        for coroutine in self.0.iter_mut().flatten() {
            if coroutine.started() && !coroutine.done() {
                // SAFETY: nothing refers to the frames any more: the engine is not running, and its
                // yielder pointers are not used again (`run` takes the engine once).
                unsafe { coroutine.force_reset() };
            }
        }
    }
}

/// Runs `jobs`, by CPU, until all have returned.
///
/// # Errors
/// The promise that was broken; `progress` when no CPU could go on.
pub(crate) fn run(engine: &mut Engine, jobs: Vec<Option<Job>>) -> Result<(), Box<Violation>> {
    let mut coroutines = Coroutines(jobs.iter().map(|_| None).collect());
    let mut jobs = jobs;
    for (cpu, job) in (0..).zip(&jobs) {
        if job.is_some() {
            engine.running += 1;
            engine.enqueue(cpu, 0);
        } else {
            engine.cpus[cpu as usize].interruptible = true;
            engine.cpus[cpu as usize].mode = super::Mode::Idle;
        }
    }
    let engine: *mut Engine = engine;
    let _running = Running;
    loop {
        // SAFETY: `engine` comes from a unique reference that outlives this function; no coroutine
        // runs here, so none of its short borrows (`with`) is alive.
        let e = unsafe { &mut *engine };
        if let Some(violation) = e.violation.take() {
            return Err(violation);
        }
        if e.running == 0 {
            return Ok(());
        }
        let Some(cpu) = e.next() else {
            return Err(e.stuck());
        };
        let coroutine =
            coroutines.0[cpu as usize].get_or_insert_with(|| spawn(cpu, jobs[cpu as usize].take()));
        CURRENT.set(engine);
        let result = coroutine.resume(());
        CURRENT.set(std::ptr::null_mut());
        debug_assert!(matches!(result, CoroutineResult::Yield(())), "CPUs never return");
    }
}

/// A CPU: its job, then idleness for ever.
fn spawn(cpu: u32, job: Option<Job>) -> Cpu {
    Coroutine::with_stack(Staggered::new(cpu), move |yielder, ()| {
        with(|e| {
            e.me().yielder = Some(yielder);
            e.me().interruptible = false;
            e.forgive();
        });
        if let Some(job) = job {
            job();
            with(|e| {
                let me = e.me();
                me.finished = Some(Time::from_ps(me.time));
                e.running -= 1;
            });
        }
        loop {
            idle_until(Time::from_ps(NEVER));
        }
    })
}

impl Engine {
    /// Takes the CPU that goes on next out of the queue, and sets its time.
    fn next(&mut self) -> Option<u32> {
        self.refresh_head();
        let key = self.queue.pop()?;
        let cpu = u32::try_from(key & ((1 << CPU_BITS) - 1)).expect("twelve bits");
        self.current = cpu;
        if self.left_over[cpu as usize] == self.due[cpu as usize] {
            self.left_over[cpu as usize] = NEVER;
        }
        self.due[cpu as usize] = NEVER;
        let me = self.me();
        me.spend_until(key >> CPU_BITS);
        self.refresh_head();
        if self.head != NEVER {
            let next = (self.head & ((1 << CPU_BITS) - 1)) as usize;
            warm::stack(self.stacks[next]);
            warm::value(&self.cpus[next]);
        }
        Some(cpu)
    }

    /// Nobody can go on.
    fn stuck(&mut self) -> Box<Violation> {
        let waiting: Vec<CpuId> = (0u32..)
            .zip(&self.cpus)
            .filter(|(_, c)| c.finished.is_none() && c.yielder.is_some())
            .map(|(cpu, _)| CpuId(cpu))
            .collect();
        let what = format!("{} CPUs wait, and nothing is due that could wake one", waiting.len());
        let mut violation = oracle::Violation::new(Invariant::Progress, CpuId(self.current), what);
        let now = self.me().time;
        violation.culprits = waiting.into_iter().map(|cpu| Stamp { cpu, at: now }).collect();
        self.report(&violation)
    }

    /// A violation at the current time with the events around it.
    pub(super) fn report(&mut self, violation: &oracle::Violation) -> Box<Violation> {
        let at = self.me().time;
        Box::new(Violation::new(violation, self.seed, Time::from_ps(at), &self.timelines))
    }
}
