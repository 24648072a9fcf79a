//! How long a flush waits for virtual CPUs that do not run, and what a hypervisor can do about it.
//!
//! A guest of twelve CPUs runs on twelve, eight, six and three physical ones. One virtual CPU takes
//! write permission from a page and gives it back, over and over; the others use the page. A flush
//! that interrupts them has to wait until each has had its turn. With *marking*, those that are
//! preempted are left a mark instead, and forget before they run again. With the *hypercall*, the
//! hypervisor makes all of them forget.
//!
//! Reported is what a call took less what its own CPU was away for, as nobody can flush who does
//! not run; and once with that. There are no
//! published figures for this workload, and the hypervisor's costs are assumed: what matters is the
//! order of magnitude.

use shootdown::policy::Policy;
use shootdown_machine::{Host, Outcome, Profile, Stride, Time};

use super::run::{Note, Setup, chance, count, finish, per, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Paravirt;

const MACHINE: &str = "zen4-vm";
/// Virtual CPUs, unless asked for others.
const CPUS: u32 = 12;
const PAGE: u64 = 0x10_0000;
const MEAN: &str = "call, mean";
const MEDIAN: &str = "call, median";
const WORST: &str = "call, 99th percentile";
const ELAPSED: &str = "call and own absence, mean";

/// Virtual CPUs for each physical one, in quarters.
const QUARTERS: [u32; 4] = [4, 6, 8, 16];

/// What the hypervisor does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Way {
    name: &'static str,
    marks: bool,
    hypercall_from: u16,
}

const INTERRUPTS: Way = Way { name: "interrupts", marks: false, hypercall_from: 0 };
const MARKING: Way = Way { name: "marking", marks: true, hypercall_from: 0 };
const HYPERCALL: Way = Way { name: "hypercall", marks: false, hypercall_from: 1 };
const WAYS: [Way; 3] = [INTERRUPTS, MARKING, HYPERCALL];

impl Experiment for Paravirt {
    fn name(&self) -> &'static str {
        "paravirt"
    }

    fn line(&self) -> &'static str {
        "a guest's CPUs on as many, two thirds, half, a quarter physical ones: how long a flush waits, and what marking and hypercalls save"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Cpus])?;
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        let cpus = request.cpus.map_or(Ok(CPUS), |n| machines::check_cpus(n, 4))?;
        let progress = Progress::new("paravirt", (QUARTERS.len() * WAYS.len()) as u64);
        let mut document = Document::new("paravirt", &profile.name, request.seed);
        for quarters in QUARTERS {
            let physical = (cpus * 4 / quarters).max(1);
            for way in WAYS {
                progress.at(format!("{}, {cpus} CPUs on {physical}", way.name));
                let calls = if request.quick { 60 } else { 600 };
                let guest = Guest { profile: &profile, cpus, physical, way, calls };
                let seen = guest.run(request.seed)?;
                progress.step();
                let workload = workload(quarters);
                for (metric, unit, value) in seen {
                    document.push(Row::new(way.name, &workload, cpus, metric, unit, value));
                }
            }
        }
        let mut findings = Findings::default();
        if request.is_own() {
            findings.targets = targets(&document);
        }
        findings.documents.push(document);
        Ok(findings)
    }
}

fn workload(quarters: u32) -> String {
    match quarters {
        4 => "every CPU its own".to_owned(),
        6 => "1.5 CPUs on each".to_owned(),
        n => format!("{} CPUs on each", n / 4),
    }
}

struct Guest<'a> {
    profile: &'a Profile,
    cpus: u32,
    physical: u32,
    way: Way,
    calls: u64,
}

type Seen = Vec<(&'static str, &'static str, f64)>;

impl Guest<'_> {
    fn run(&self, seed: u64) -> Result<Seen, LabError> {
        let policy = Policy { hypercall_from: self.way.hypercall_from, ..Policy::SHOOTDOWN };
        let mut setup = Setup::new(self.profile, policy, seed).cpus(self.cpus);
        setup.config.host = Some(Host { physical: self.physical, marks: self.way.marks });
        let mut machine = setup.build()?;
        let space = machine.new_space();
        let over = Note::new(false);
        for cpu in 1..self.cpus {
            let over = over.clone();
            spawn(&mut machine, cpu, move |c| {
                c.kernel(|k| k.switch_to(Some(space)));
                while !over.get() {
                    c.read(PAGE);
                    c.compute(Time::from_us(20));
                }
            })?;
        }
        let calls = self.calls;
        let took = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let said = std::rc::Rc::clone(&took);
        spawn(&mut machine, 0, move |c| {
            c.kernel(|k| {
                k.switch_to(Some(space));
                k.map_at(PAGE, 1, Stride::Page4K);
            });
            c.write(PAGE);
            let away = |outcome: &Outcome| outcome.cpus[0].time.away;
            for call in 0..calls {
                // At any moment of anybody's turn.
                c.compute(Time::from_us(50 + chance(seed, call) % 400));
                c.syscall(|k| k.protect(PAGE, 1, true));
                let (begun, before) = (c.now(), away(&c.outcome_so_far()));
                c.syscall(|k| k.protect(PAGE, 1, false));
                let absent = away(&c.outcome_so_far()).since(before);
                let elapsed = c.now() - begun;
                said.borrow_mut().push((elapsed.since(absent), elapsed));
            }
            over.set(true);
        })?;
        let outcome = finish(machine)?;
        let mut took = took.take();
        took.sort_unstable();
        let at = |part: usize| took[(took.len() - 1) * part / 100].0.us();
        let library = outcome.cpus[0].library;
        let each = |n: u64| count(n) / count(calls);
        Ok(vec![
            (MEAN, "us", per(took.iter().map(|call| call.0).sum(), calls)),
            (MEDIAN, "us", at(50)),
            (WORST, "us", at(99)),
            (ELAPSED, "us", per(took.iter().map(|call| call.1).sum(), calls)),
            ("interrupts per call", "", each(library.kicks_sent)),
            ("marks per call", "", each(library.marked_preempted)),
            ("handed over per call", "", each(library.handed_to_hypervisor)),
        ])
    }
}

fn targets(document: &Document) -> Vec<Target> {
    let mean = |way: Way, quarters| document.value(way.name, &workload(quarters), CPUS, MEAN);
    let mut targets = Vec::new();
    for way in [MARKING, HYPERCALL] {
        for quarters in &QUARTERS[1..] {
            let (Some(alone), Some(shared)) = (mean(way, 4), mean(way, *quarters)) else {
                continue;
            };
            targets.push(Target {
                what: format!(
                    "{}, {}: at most twice as long as alone",
                    way.name,
                    workload(*quarters)
                ),
                seen: format!("{shared:.1} us; {alone:.1} us alone"),
                passed: shared <= 2.0 * alone,
            });
        }
    }
    targets
}
