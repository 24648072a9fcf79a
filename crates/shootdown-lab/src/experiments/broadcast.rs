//! Broadcasting every invalidation, or not: the `mprotect` loops of the patch series "arm64: tlb:
//! skip tlbi broadcast".
//!
//! As many processes as CPUs, each with one running thread and one that sleeps. The running one
//! makes a page read-only, reads it, makes it writable again, writes it, 10,000 times. The arm64
//! kernel of 2020 flushed the page in both calls (a flush for more rights is not needed, and later
//! kernels left it out); so does this workload.
//!
//! Calibrated, and named so in the profile: the service time of the fabric, from the stock row of
//! the *first* series (2.121353 s, 32 processes with one thread each: in a queue that is never
//! empty an iteration takes 32 times two service times), and what a memory call costs besides
//! (`kernel.area`), from the patched row of the second (0.13941 s). Predicted: the stock row of the
//! second series (2.1696 s), fewer processes, and everything about threads that move.
//!
//! A thread that *moves every n iterations* goes on to the next CPU then, and so do all others.
//! *The sleeper began elsewhere*: it ran on another CPU for a moment before it fell asleep, as a
//! new thread may.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use shootdown::policy::Policy;
use shootdown::residency::Strategy;
use shootdown_machine::{Cpu, CpuId, Outcome, Profile, Space, Stride, Time};

use super::run::{Setup, count, finish, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::names::broadcasting;
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Broadcast;

pub(super) const MACHINE: &str = "ampere-emag-32";
const SOURCE: &str =
    "Arcangeli 2020, \"arm64: tlb: skip tlbi broadcast\" v2, patch 3, Ampere, 32 CPUs";
/// Seconds: always broadcasting, and with the series, whose idea is the strategy `active`.
const PUBLISHED: [f64; 2] = [2.1696, 0.13941];
/// Iterations of the published run.
const ITERATIONS: u64 = 10_000;

const TIME: &str = "time of 10,000 iterations";

/// A policy and what it is called.
pub(super) type Variant = (&'static str, Policy);

pub(super) const ALWAYS: &str = "arm64-mainline";

/// Every way to decide, weakest first.
pub(super) fn variants() -> [Variant; 4] {
    [
        (ALWAYS, Policy::ARM64_MAINLINE),
        ("sticky", broadcasting(Strategy::Sticky)),
        ("active", broadcasting(Strategy::Active)),
        ("trim", broadcasting(Strategy::Trim)),
    ]
}

/// What the threads do besides calling `mprotect`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moves {
    /// Nothing.
    Stay,
    /// The sleeper of each process was on the next CPU before it fell asleep.
    SleeperElsewhere,
    /// To the next CPU every so many iterations.
    Every(u64),
}

impl Moves {
    fn workload(self) -> String {
        match self {
            Self::Stay => "mprotect loops, threads stay".to_owned(),
            Self::SleeperElsewhere => "mprotect loops, the sleeper began elsewhere".to_owned(),
            Self::Every(1) => "mprotect loops, moving every iteration".to_owned(),
            Self::Every(n) => format!("mprotect loops, moving every {n} iterations"),
        }
    }
}

impl Experiment for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }

    fn line(&self) -> &'static str {
        "32 processes loop mprotect: always broadcasting against three ways not to, threads staying and moving"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Policies, Knob::Cpus])?;
        let profile = machine_of(request)?;
        let own = request.is_own();
        let limit = request.cpus.map(|n| machines::check_cpus(n, 1)).transpose()?;
        let all = limit.unwrap_or(profile.topology.cpus.count());
        let variants = match request.runnable(self.name())? {
            Some(chosen) => chosen,
            None => variants().to_vec(),
        };
        let runs = runs(all, request.quick);
        let progress = Progress::new("broadcast", (runs.len() * variants.len()) as u64);
        let mut document = Document::new("broadcast", &profile.name, request.seed);
        for (processes, moves, iterations) in runs {
            let workload = moves.workload();
            for (label, policy) in &variants {
                progress.at(format!("{processes} processes, {workload}, {label}"));
                let loops = Loops { profile: &profile, policy: *policy, processes, moves };
                let outcome = loops.run(iterations, request.seed)?;
                progress.step();
                let published = (own && moves == Moves::Stay && processes == all)
                    .then(|| PUBLISHED[usize::from(*label != ALWAYS)]);
                rows(&mut document, label, &workload, processes, iterations, &outcome, published);
            }
        }
        let mut findings = Findings::default();
        if own {
            findings.targets = targets(&document, all);
        }
        findings.documents.push(document);
        Ok(findings)
    }
}

/// The machine asked for, if its hardware broadcasts by machine-wide tags.
pub(super) fn machine_of(request: &Request) -> Result<Profile, LabError> {
    let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
    if profile.has_system_tags() && profile.broadcast.is_some() {
        return Ok(profile);
    }
    Err(LabError::bad(format!(
        "`{}` does not broadcast by machine-wide tags; try ampere-emag-32 or altra-80",
        profile.name
    )))
}

/// Processes, what their threads do, and iterations.
fn runs(all: u32, quick: bool) -> Vec<(u32, Moves, u64)> {
    let iterations = if quick { 200 } else { ITERATIONS };
    let mut runs = vec![(all, Moves::Stay, iterations)];
    if !quick {
        let fewer = [1, 2, 4, 8, 16].into_iter().filter(|n| *n < all);
        runs.extend(fewer.map(|n| (n, Moves::Stay, iterations)));
    }
    runs.push((all, Moves::SleeperElsewhere, iterations));
    let every: &[u64] = if quick { &[1, 10, 100] } else { &[1, 10, 100, 1_000] };
    runs.extend(every.iter().map(|n| (all, Moves::Every(*n), iterations)));
    runs
}

/// The loops of some processes.
struct Loops<'a> {
    profile: &'a Profile,
    policy: Policy,
    processes: u32,
    moves: Moves,
}

/// A process: its space and the page that its running thread works on.
#[derive(Clone, Copy)]
pub(super) struct Process {
    pub(super) space: Space,
    pub(super) page: u64,
}

/// Where the page of every process is.
pub(super) const PAGE: u64 = 0x10_0000;

/// Processes that are to run next on a CPU: the laboratory's notebook, free of charge.
type Inbox = Rc<RefCell<VecDeque<Process>>>;

impl Loops<'_> {
    fn run(&self, iterations: u64, seed: u64) -> Result<Outcome, LabError> {
        let cpus = self.profile.topology.cpus.count().max(self.processes);
        let mut machine = Setup::new(self.profile, self.policy, seed).cpus(cpus).build()?;
        let processes: Vec<Process> = (0..self.processes)
            .map(|_| Process { space: machine.new_space(), page: PAGE })
            .collect();
        let inboxes: Vec<Inbox> = (0..self.processes).map(|_| Inbox::default()).collect();
        let (rounds, each) = match self.moves {
            Moves::Every(n) => (iterations / n, n),
            _ => (1, iterations),
        };
        for (cpu, process) in (0..self.processes).zip(&processes) {
            let next = (cpu + 1) % self.processes;
            let before = (cpu + self.processes - 1) % self.processes;
            let (mine, theirs) =
                (Rc::clone(&inboxes[cpu as usize]), Rc::clone(&inboxes[next as usize]));
            let own = *process;
            mine.borrow_mut().push_back(own);
            let guest = (self.moves == Moves::SleeperElsewhere).then(|| processes[before as usize]);
            spawn(&mut machine, cpu, move |c| {
                begin(c, own);
                if let Some(guest) = guest {
                    c.idle_until(BEGUN);
                    c.kernel(|k| k.switch_to(Some(guest.space)));
                    c.read(guest.page);
                }
                for _ in 0..rounds {
                    let process = take(c, &mine);
                    c.kernel(|k| k.switch_to(Some(process.space)));
                    for _ in 0..each {
                        iteration(c, process.page);
                    }
                    if rounds > 1 {
                        theirs.borrow_mut().push_back(process);
                        c.kernel(|k| k.switch_to(None));
                        c.wake(CpuId(next));
                    }
                }
            })?;
        }
        finish(machine)
    }
}

/// All processes have begun: sleepers run after this.
const BEGUN: Time = Time::from_us(50);

/// A process begins on a CPU: it has its page.
pub(super) fn begin(c: &mut Cpu, process: Process) {
    c.kernel(|k| {
        k.switch_to(Some(process.space));
        k.map_at(process.page, 1, Stride::Page4K);
    });
    c.write(process.page);
}

/// The next process to run here; sleeps until there is one.
fn take(c: &mut Cpu, inbox: &Inbox) -> Process {
    loop {
        let next = inbox.borrow_mut().pop_front();
        match next {
            Some(process) => return process,
            None => {
                c.idle();
            }
        }
    }
}

/// Two calls, and an access after each.
pub(super) fn iteration(c: &mut Cpu, page: u64) {
    c.syscall(|k| k.protect(page, 1, false));
    c.read(page);
    c.syscall(|k| {
        k.protect(page, 1, true);
        k.flush(page, 1, false);
    });
    c.write(page);
}

fn rows(
    document: &mut Document,
    label: &str,
    workload: &str,
    processes: u32,
    iterations: u64,
    outcome: &Outcome,
    published: Option<f64>,
) {
    let scale = count(ITERATIONS) / count(iterations);
    let row = Row::new(label, workload, processes, TIME, "s", outcome.end.us() / 1e6 * scale);
    document.push(match published {
        Some(figure) => row.published(figure, SOURCE),
        None => row,
    });
    let all = count(iterations * u64::from(processes));
    for (metric, value) in reached(outcome) {
        document.push(Row::new(label, workload, processes, metric, "per iteration", value / all));
    }
}

/// How many flushes reached how far, by name.
pub(super) type Reached = [(&'static str, f64); 3];

/// How far invalidations reached.
pub(super) fn reached(outcome: &Outcome) -> Reached {
    let library = outcome.total().library;
    [
        ("flushes that needed nothing", count(library.invalidations_none)),
        ("flushes that stayed local", count(library.invalidations_local)),
        ("flushes that were broadcast", count(library.invalidations_broadcast)),
    ]
}

fn targets(document: &Document, all: u32) -> Vec<Target> {
    let time = |label: &str, moves: Moves| document.value(label, &moves.workload(), all, TIME);
    let mut targets: Vec<Target> = document
        .rows
        .iter()
        .filter_map(|r| r.deviation().map(|d| (r, d)))
        .map(|(r, d)| Target {
            what: format!("{}, {}: within 10 % of the published time", r.policy, r.workload),
            seen: format!("{d:+.1} %"),
            passed: d.abs() <= 10.0,
        })
        .collect();
    // Once every process has run everywhere, who remembers that for good broadcasts for good.
    let moving = Moves::Every(100);
    if let (Some(always), Some(sticky)) = (time(ALWAYS, moving), time("sticky", moving)) {
        for (label, times) in [("active", 5.0), ("trim", 2.0)] {
            let Some(other) = time(label, moving) else { continue };
            targets.push(Target {
                what: format!("{}: {label} at least {times} times below sticky", moving.workload()),
                seen: format!("{:.1} times; always {always:.3} s", sticky / other),
                passed: sticky >= times * other,
            });
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_move_has_a_name_of_its_own() {
        let runs = runs(32, false);
        let names: std::collections::BTreeSet<_> =
            runs.iter().map(|(n, moves, _)| (*n, moves.workload())).collect();
        assert_eq!(names.len(), runs.len());
        for (_, moves, iterations) in runs {
            if let Moves::Every(n) = moves {
                assert_eq!(iterations % n, 0);
            }
        }
    }
}
