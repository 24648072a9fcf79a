//! Who dirties whose cache lines: false sharing on the paths of switches and flushes, counted by
//! the machine at the addresses the code touches.
//!
//! - `switches`: eight CPUs of one socket switch back and forth between two spaces they all run;
//!   nobody flushes. Nothing needs to move.
//! - `flushes`: one CPU flushes a page of a space that seven others run.
//! - `flushes, lazy peers`: the same while the seven run kernel threads and come back now and then:
//!   the lazy flag is written often and read by every flush.
//! - `crossed flushes`: all eight flush the same space at the same time.
//!
//! Rows are per switch or per flush, over all CPUs: lines fetched from another CPU, and lines
//! written while another CPU held a copy (which that CPU must fetch again).

use shootdown::policy::{Delivery, Leave, Policy};
use shootdown_machine::{CpuOutcome, Profile, Space, Stride, Time};

use super::run::{Note, Setup, count, finish, spawn};
use super::{Experiment, Findings, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Lines;

const MACHINE: &str = "haswell-ep-48";
const CPUS: u32 = 8;

/// What runs, and what a row is divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Workload {
    Switches,
    Flushes,
    LazyPeers,
    Crossed,
}

const WORKLOADS: [(Workload, &str, &str); 4] = [
    (Workload::Switches, "switches", "switch"),
    (Workload::Flushes, "flushes", "flush"),
    (Workload::LazyPeers, "flushes, lazy peers", "flush"),
    (Workload::Crossed, "crossed flushes", "flush"),
];

const DIRTIED: &str = "lines dirtied remotely";
const TRANSFERS: &str = "lines transferred";
const INTERRUPTS: &str = "interrupts taken";

fn variants() -> Vec<(&'static str, Policy)> {
    let ours = Policy::SHOOTDOWN;
    vec![
        ("linux-4.14", Policy::LINUX_4_14),
        ("linux-5.13, one lazy line", Policy { split_lazy_line: false, ..Policy::LINUX_5_13 }),
        ("linux-5.13", Policy::LINUX_5_13),
        ("shootdown, one lazy line", Policy { split_lazy_line: false, ..ours }),
        ("shootdown, leave at switch", Policy { leave: Leave::AtSwitch, ..ours }),
        ("shootdown, push", Policy { delivery: Delivery::Push, ..ours }),
        ("shootdown", ours),
    ]
}

impl Experiment for Lines {
    fn name(&self) -> &'static str {
        "lines"
    }

    fn line(&self) -> &'static str {
        "false sharing: lines dirtied remotely and fetched per switch and per flush, eight CPUs"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        let cpus = request.cpus.map_or(Ok(CPUS), |n| machines::check_cpus(n, 2))?;
        let variants = request.runnable(self.name())?.unwrap_or_else(variants);
        let rounds = if request.quick { 50 } else { 400 };
        let progress = Progress::new("lines", WORKLOADS.len() as u64 * variants.len() as u64);
        let mut document = Document::new("lines", &profile.name, request.seed);
        for (workload, name, unit) in WORKLOADS {
            for (label, policy) in &variants {
                progress.at(format!("{name}, {label}"));
                let seen = measure(&profile, *policy, workload, cpus, rounds, request.seed)?;
                progress.step();
                let per = format!("per {unit}");
                let mut row = |metric, value| {
                    document.push(Row::new(label, name, cpus, metric, &per, value));
                };
                row(DIRTIED, seen.dirtied);
                row(TRANSFERS, seen.transfers);
                row(INTERRUPTS, seen.interrupts);
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

struct Seen {
    dirtied: f64,
    transfers: f64,
    interrupts: f64,
}

/// The difference of two runs, one with twice the rounds of the other: what boot and warm-up cost
/// falls out, per operation.
fn measure(
    profile: &Profile,
    policy: Policy,
    workload: Workload,
    cpus: u32,
    rounds: u64,
    seed: u64,
) -> Result<Seen, LabError> {
    let short = one_run(profile, policy, workload, cpus, rounds, seed)?;
    let long = one_run(profile, policy, workload, cpus, rounds * 2, seed)?;
    let operations = match workload {
        Workload::Switches => rounds * 2 * u64::from(cpus),
        Workload::Flushes | Workload::LazyPeers => rounds,
        Workload::Crossed => rounds * u64::from(cpus),
    };
    let per = |of: fn(&CpuOutcome) -> u64| {
        count(of(&long).saturating_sub(of(&short))) / count(operations)
    };
    Ok(Seen {
        dirtied: per(|o| o.lines.remote_dirtied),
        transfers: per(|o| o.lines.transfers),
        interrupts: per(|o| o.interrupts.received),
    })
}

/// Operations begin here, when every CPU has loaded its space and touched its pages.
const START: Time = Time::from_us(1_000);
/// Time between two flushes of one CPU.
const PACE: Time = Time::from_us(20);

fn one_run(
    profile: &Profile,
    policy: Policy,
    workload: Workload,
    cpus: u32,
    rounds: u64,
    seed: u64,
) -> Result<CpuOutcome, LabError> {
    let mut machine = Setup::new(profile, policy, seed).cpus(cpus).build()?;
    let spaces = [machine.new_space(), machine.new_space()];
    let page = Note::new(0);
    for cpu in 0..cpus {
        let page = page.clone();
        spawn(&mut machine, cpu, move |cpu| {
            for space in spaces {
                cpu.kernel(|k| k.switch_to(Some(space)));
                if cpu.id().0 == 0 {
                    page.set(cpu.kernel(|k| k.map(1, Stride::Page4K)));
                    cpu.touch(page.get(), 1, true);
                }
            }
            cpu.idle_until(START);
            program(cpu, workload, spaces, page.get(), rounds);
        })?;
    }
    Ok(finish(machine)?.total())
}

fn program(
    cpu: &mut shootdown_machine::Cpu,
    workload: Workload,
    spaces: [Space; 2],
    page: u64,
    rounds: u64,
) {
    let first = cpu.id().0 == 0;
    // CPUs are a little out of step, as they are in life.
    let shift = Time::from_ns(137 * u64::from(cpu.id().0));
    let end = START + PACE * (rounds + 1);
    match workload {
        Workload::Switches => {
            for _ in 0..rounds {
                for space in spaces {
                    cpu.kernel(|k| k.switch_to(Some(space)));
                    cpu.compute(Time::from_us(1));
                }
            }
        }
        Workload::Crossed => {
            for round in 0..rounds {
                cpu.idle_until(START + PACE * round + shift);
                cpu.kernel(|k| k.flush(page, 1, false));
            }
        }
        Workload::Flushes | Workload::LazyPeers if first => {
            for round in 0..rounds {
                cpu.idle_until(START + PACE * round);
                cpu.kernel(|k| k.flush(page, 1, false));
            }
        }
        Workload::Flushes => {
            let now = cpu.now();
            cpu.compute(end.since(now));
        }
        Workload::LazyPeers => {
            cpu.idle_until(START + shift);
            while cpu.now() < end {
                cpu.kernel(|k| {
                    k.switch_to(None);
                    k.compute(Time::from_us(35));
                    k.switch_to(Some(spaces[1]));
                });
                cpu.compute(Time::from_us(8));
            }
        }
    }
}

fn targets(document: &Document) -> Vec<Target> {
    let of = |policy: &str, workload: &str, metric: &str| {
        document.value(policy, workload, CPUS, metric).unwrap_or(f64::NAN)
    };
    let mut targets = Vec::new();
    let idle = of("shootdown", "switches", TRANSFERS);
    targets.push(Target {
        what: "switches between shared spaces move no line when nobody flushes".to_owned(),
        seen: format!("{idle:.3} per switch"),
        passed: idle <= 0.001,
    });
    let flushes = |policy: &str| of(policy, "flushes", TRANSFERS);
    targets.push(Target {
        what: "a flush moves fewer lines than under linux-4.14".to_owned(),
        seen: format!("{:.1} against {:.1}", flushes("shootdown"), flushes("linux-4.14")),
        passed: flushes("shootdown") < flushes("linux-4.14"),
    });
    targets
}
