//! Interrupts against broadcasts on x86: `tlb_flush2` of will-it-scale, threads of one process.
//!
//! Every thread maps 1 MiB of its own, and for each page writes a byte, gives the page back
//! (`madvise(MADV_DONTNEED)`) and reads it again; then it unmaps the region and begins anew. An
//! iteration is one page. So every iteration has a flush of one page that concerns all CPUs the
//! process runs on, and two faults.
//!
//! Under `linux-6.15` a space that is active on more than three CPUs gets a tag for all of them,
//! and its flushes are INVLPGB and TLBSYNC instead of interrupts. `by broadcasts` is `shootdown`
//! with that rule. `shootdown` itself gives no tag to a space that several CPUs flush at a time
//! (see `threshold`).
//!
//! Nothing here is fitted, and nobody published a figure for this profile: all rows are
//! predictions. What INVLPGB and TLBSYNC cost, and how many the fabric completes at once, is
//! *assumed* in the profile. Not in the model: locks of the kernel other than the library's (of the
//! address space, of page tables), which bound the real benchmark too; the allocation and clearing
//! of pages is part of the profile's fault.

use std::cell::RefCell;
use std::rc::Rc;

use shootdown::policy::Policy;
use shootdown::tags::shared::Threshold;
use shootdown_machine::{Cpu, Outcome, Profile, Stride, Time};

use super::run::{Note, Setup, chance, count, finish, spawn};
use super::{Experiment, Findings, Knob, Request};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Invlpgb;

pub(super) const MACHINE: &str = "zen3-milan-36";
const WORKLOAD: &str = "tlb_flush2, threads";
/// Threads tried, as far as the machine has CPUs; and all of its CPUs.
const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 24, 32];
/// Pages of a region: 1 MiB.
const PAGES: u64 = 256;
const PAGE: u64 = 4096;
/// What an iteration takes besides is chance, up to this: without it the threads, which all do the
/// same, fall into step, and their interrupts merge as they never would.
pub(super) const JITTER_NS: u64 = 200;
/// Measuring begins here, after every thread's first region.
const START: Time = Time::from_us(1_000_000);

impl Experiment for Invlpgb {
    fn name(&self) -> &'static str {
        "invlpgb"
    }

    fn line(&self) -> &'static str {
        "will-it-scale tlb_flush2, 1 to 36 threads: interrupts against tags for all CPUs and broadcasts"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Policies, Knob::Cpus])?;
        let profile = machine_of(request)?;
        let limit = request.cpus.map(|n| machines::check_cpus(n, 1)).transpose()?;
        let all = limit.unwrap_or(profile.topology.cpus.count());
        let variants = match request.runnable(self.name())? {
            Some(chosen) => chosen,
            None => variants().to_vec(),
        };
        let mut threads: Vec<u32> = THREADS.into_iter().filter(|n| *n < all).collect();
        threads.push(all);
        if request.quick {
            threads.retain(|n| [1, 4, all].contains(n));
        }
        let window = if request.quick { Time::from_us(3_000) } else { Time::from_us(30_000) };
        let progress = Progress::new("invlpgb", (threads.len() * variants.len()) as u64);
        let mut document = Document::new("invlpgb", &profile.name, request.seed);
        for n in &threads {
            for (label, policy) in &variants {
                progress.at(format!("{n} threads, {label}"));
                let process = Process { profile: &profile, policy: *policy, threads: *n, window };
                process.rows(request.seed, label, &mut document)?;
                progress.step();
            }
        }
        Ok(Findings { documents: vec![document], ..Findings::default() })
    }
}

/// The policies compared.
fn variants() -> [(&'static str, Policy); 4] {
    [
        ("linux-5.13", Policy::LINUX_5_13),
        ("linux-6.15", Policy::LINUX_6_15),
        ("by broadcasts", Policy { shared: Threshold::LINUX_6_15, ..Policy::SHOOTDOWN }),
        ("shootdown", Policy::SHOOTDOWN),
    ]
}

/// The machine asked for, if it has INVLPGB.
pub(super) fn machine_of(request: &Request) -> Result<Profile, LabError> {
    let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
    if profile.broadcast.as_ref().is_some_and(|b| b.kind == "invlpgb") {
        return Ok(profile);
    }
    Err(LabError::bad(format!("`{}` has no INVLPGB; try {MACHINE}", profile.name)))
}

/// One run: a process with so many threads, one a CPU.
struct Process<'a> {
    profile: &'a Profile,
    policy: Policy,
    threads: u32,
    /// How long iterations are counted.
    window: Time,
}

/// What a run did.
struct Ran {
    /// Iterations within the window.
    counted: u64,
    /// Iterations since it began: the last regions are finished.
    all: u64,
    /// What had been done when it began.
    before: Outcome,
    /// What had been done in the end.
    after: Outcome,
}

impl Process<'_> {
    fn rows(&self, seed: u64, label: &str, document: &mut Document) -> Result<(), LabError> {
        let Ran { counted, all, before, after } = self.run(seed)?;
        let (before, after) = (before.total(), after.total());
        let interrupts = after.interrupts.received - before.interrupts.received;
        let sent = after.interrupts.sent - before.interrupts.sent;
        let broadcasts = after.fabric.operations - before.fabric.operations;
        let (counted, all, threads) = (count(counted), count(all), f64::from(self.threads));
        let row =
            |metric, unit, value| Row::new(label, WORKLOAD, self.threads, metric, unit, value);
        document.push(row("iterations per second", "1/s", counted / (self.window.us() / 1e6)));
        document.push(row("time of an iteration", "us", self.window.us() * threads / counted));
        document.push(row("interrupts sent", "per iteration", count(sent) / all));
        document.push(row("interrupts taken", "per iteration", count(interrupts) / all));
        document.push(row("broadcasts", "per iteration", count(broadcasts) / all));
        Ok(())
    }

    fn run(&self, seed: u64) -> Result<Ran, LabError> {
        let mut machine = Setup::new(self.profile, self.policy, seed).build()?;
        let space = machine.new_space();
        let (counted, all) = (Note::new(0), Note::new(0));
        let before = Rc::new(RefCell::new(Outcome::default()));
        let end = START + self.window;
        for cpu in 0..self.threads {
            let (counted, all, before) = (counted.clone(), all.clone(), before.clone());
            spawn(&mut machine, cpu, move |c| {
                let mut turn = 0;
                let mut jitter = || {
                    turn += 1;
                    Time::from_ns(chance(seed ^ u64::from(cpu) << 32, turn) % JITTER_NS)
                };
                c.kernel(|k| k.switch_to(Some(space)));
                region(c, &mut jitter, |_| ());
                c.idle_until(START);
                if cpu == 0 {
                    before.replace(c.outcome_so_far());
                }
                while c.now() < end {
                    region(c, &mut jitter, |now| {
                        all.set(all.get() + 1);
                        if now < end {
                            counted.set(counted.get() + 1);
                        }
                    });
                }
            })?;
        }
        let after = finish(machine)?;
        Ok(Ran { counted: counted.get(), all: all.get(), before: before.take(), after })
    }
}

/// Maps a region, goes through its pages, unmaps it.
pub(super) fn region(c: &mut Cpu, jitter: &mut impl FnMut() -> Time, mut done: impl FnMut(Time)) {
    let start = c.syscall(|k| k.map(PAGES, Stride::Page4K));
    for page in (0..PAGES).map(|i| start + i * PAGE) {
        c.compute(jitter());
        c.write(page);
        c.syscall(|k| k.discard(page, 1));
        c.read(page);
        done(c.now());
    }
    c.syscall(|k| k.unmap(start, PAGES));
}
