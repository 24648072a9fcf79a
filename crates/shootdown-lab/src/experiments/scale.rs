//! How the cost of one flush grows with the number of remote CPUs.
//!
//! One CPU flushes 1, 8 or 33 pages of a space in which *n* other CPUs run user code; nothing else
//! happens. Latency is what the initiator sees; responder CPU time is what the targets lose
//! together. Each is also given as ratio to the `omniscient` bound of the same profile (see
//! [`crate::bound`]).

use std::cell::RefCell;
use std::rc::Rc;

use shootdown::policy::Policy;
use shootdown_machine::{Profile, Stride, Time};

use super::run::{Setup, finish, spawn};
use super::{Experiment, Findings, Request, Target};
use crate::names::{Contestant, Named, POLICIES};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, bound, machines};

/// See the module.
pub struct Scale;

const LARGE: &str = "generic-4096";
const SERVER: &str = "haswell-ep-48";
const PAGES: [u64; 3] = [1, 8, 33];
const LATENCY: &str = "latency";
const RESPONDER: &str = "responder CPU time";
const LATENCY_RATIO: &str = "latency over omniscient";
const RESPONDER_RATIO: &str = "responder CPU time over omniscient";

impl Experiment for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn line(&self) -> &'static str {
        "one flush of 1, 8, 33 pages to 1..4095 remote CPUs under every policy, against a bound"
    }

    fn machine(&self) -> &'static str {
        LARGE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        let machines = match request.machine.as_deref() {
            Some(name) => vec![machines::find(name)?],
            None => vec![machines::find(SERVER)?, machines::find(LARGE)?],
        };
        let mut findings = Findings::default();
        for profile in machines {
            let most = profile.topology.cpus.count();
            let cpus = match request.cpus {
                Some(cpus) => machines::check_cpus(cpus, 2)?,
                None => most,
            };
            let policies = request.policies.clone().unwrap_or_else(|| all_for(&profile));
            let document = one_machine(&profile, cpus, &policies, request)?;
            findings.documents.push(document);
        }
        if request.is_own() {
            findings.targets = findings.documents.iter().flat_map(targets).collect();
        }
        Ok(findings)
    }
}

/// Every policy that is one of its own on this machine: where nothing broadcasts, those that differ
/// in how they decide about it are one.
fn all_for(profile: &Profile) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    for named in POLICIES {
        let known = |earlier: &Named| match (earlier.contestant, named.contestant) {
            (Contestant::Policy(a), Contestant::Policy(b)) => {
                profile.broadcast.is_none()
                    && a == Policy { broadcast: a.broadcast, shared: a.shared, ..b }
            }
            _ => false,
        };
        if !all.iter().any(known) {
            all.push(*named);
        }
    }
    all
}

/// Numbers of remote CPUs tried on a machine of this many.
fn steps(cpus: u32, quick: bool) -> Vec<u32> {
    let all: &[u32] = if quick {
        &[1, 8, 24, 4095]
    } else {
        &[1, 2, 4, 8, 16, 24, 32, 47, 64, 80, 96, 128, 256, 512, 1024, 2048, 4095]
    };
    let mut steps: Vec<u32> = all.iter().copied().filter(|n| *n < cpus).collect();
    if steps.last() != Some(&(cpus - 1)) {
        steps.push(cpus - 1);
    }
    steps
}

fn one_machine(
    profile: &Profile,
    cpus: u32,
    policies: &[Named],
    request: &Request,
) -> Result<Document, LabError> {
    let steps = steps(cpus, request.quick);
    let progress = Progress::new("scale", (steps.len() * policies.len()) as u64);
    let mut document = Document::new("scale", &profile.name, request.seed);
    document.lead(&[LATENCY, LATENCY_RATIO]);
    let ceiling = u64::from(profile.facts.ceiling.count());
    let costs = profile.costs(false);
    let topology = profile.topology(cpus);
    for n in steps {
        let bounds = PAGES.map(|pages| bound::flush(&costs, &topology, 0, 1..=n, pages, ceiling));
        for named in policies {
            progress.at(format!("{} to {n} CPUs on {}", named.name, profile.name));
            let seen = match named.contestant {
                Contestant::Policy(policy) => measure(profile, cpus, n, policy, request)?,
                Contestant::Omniscient => bounds
                    .iter()
                    .map(|b| Seen { latency: b.latency, responder: b.responder })
                    .collect(),
            };
            progress.step();
            for ((pages, seen), bound) in PAGES.iter().zip(&seen).zip(&bounds) {
                let workload = workload(*pages);
                let mut row = |metric, unit, value| {
                    document.push(Row::new(named.name, &workload, n, metric, unit, value));
                };
                row(LATENCY, "us", seen.latency.us());
                row(RESPONDER, "us", seen.responder.us());
                if named.contestant != Contestant::Omniscient {
                    row(LATENCY_RATIO, "ratio", seen.latency.us() / bound.latency.us());
                    row(RESPONDER_RATIO, "ratio", seen.responder.us() / bound.responder.us());
                }
            }
        }
    }
    Ok(document)
}

fn workload(pages: u64) -> String {
    match pages {
        1 => "flush of 1 page".to_owned(),
        n => format!("flush of {n} pages"),
    }
}

#[derive(Clone, Copy)]
struct Seen {
    latency: Time,
    responder: Time,
}

/// One flush to warm up (the first one fetches lines that later ones find), then as many measured.
const WARM: u64 = 1;
const MEASURED: u64 = 2;
/// Between two flushes: everything of the last one is over.
const GAP: Time = Time::from_us(5_000);

/// Mean latency and responder time for each of [`PAGES`].
fn measure(
    profile: &Profile,
    cpus: u32,
    n: u32,
    policy: Policy,
    request: &Request,
) -> Result<Vec<Seen>, LabError> {
    PAGES
        .iter()
        .map(|pages| {
            let latency = Rc::new(RefCell::new(Vec::new()));
            let responder = |flushes: u64| -> Result<Time, LabError> {
                latency.borrow_mut().clear();
                let mut machine = Setup::new(profile, policy, request.seed).cpus(cpus).build()?;
                let space = machine.new_space();
                let end = Time::from_us(1_000) + GAP * (flushes + 1);
                let said = Rc::clone(&latency);
                let pages = *pages;
                spawn(&mut machine, 0, move |cpu| {
                    cpu.kernel(|k| k.switch_to(Some(space)));
                    let va = cpu.kernel(|k| k.map(pages, Stride::Page4K));
                    cpu.touch(va, pages, true);
                    for i in 0..flushes {
                        cpu.idle_until(Time::from_us(1_000) + GAP * i);
                        cpu.kernel(|k| {
                            let start = k.now();
                            k.flush(va, pages, false);
                            said.borrow_mut().push(k.now() - start);
                        });
                    }
                })?;
                for target in 1..=n {
                    spawn(&mut machine, target, move |cpu| {
                        cpu.kernel(|k| k.switch_to(Some(space)));
                        let now = cpu.now();
                        cpu.compute(end.since(now));
                    })?;
                }
                let outcome = finish(machine)?;
                Ok(outcome.cpus.iter().skip(1).map(|c| c.time.responder).sum())
            };
            // What the warm-up stole is known from a run that stops after it.
            let warm = responder(WARM)?;
            let all = responder(WARM + MEASURED)?;
            let latency = latency.borrow();
            let measured = latency.iter().skip(usize::try_from(WARM).unwrap_or(0));
            let total: Time = measured.copied().sum();
            Ok(Seen {
                latency: Time::from_ps(total.ps() / MEASURED),
                responder: Time::from_ps(all.since(warm).ps() / MEASURED),
            })
        })
        .collect()
}

fn targets(document: &Document) -> Vec<Target> {
    let mut targets = Vec::new();
    let of = |policy: &str, pages: u64, n: u32, metric: &str| {
        document.value(policy, &workload(pages), n, metric)
    };
    let counts: Vec<u32> = {
        let mut all: Vec<u32> = document.rows.iter().map(|r| r.cpus).collect();
        all.dedup();
        all
    };
    for pages in PAGES {
        let worst = counts
            .iter()
            .filter(|n| **n <= 24)
            .filter_map(|n| of("shootdown", pages, *n, LATENCY_RATIO).map(|r| (r, *n)))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((ratio, n)) = worst {
            targets.push(Target {
                what: format!(
                    "{}, {}: at most 1.3 times omniscient up to 24 CPUs",
                    document.machine,
                    workload(pages)
                ),
                seen: format!("{ratio:.3} times, at {n}"),
                passed: ratio <= 1.3,
            });
        }
        if let (Some(ratio), Some(ours), Some(theirs)) = (
            of("shootdown", pages, 4095, LATENCY_RATIO),
            of("shootdown", pages, 4095, LATENCY),
            of("linux-5.13", pages, 4095, LATENCY),
        ) {
            targets.push(Target {
                what: format!("{}: at most 2 times omniscient at 4095 CPUs", workload(pages)),
                seen: format!("{ratio:.2} times"),
                passed: ratio <= 2.0,
            });
            targets.push(Target {
                what: format!(
                    "{}: at least 5 times below linux-5.13 at 4095 CPUs",
                    workload(pages)
                ),
                seen: format!("{:.1} times", theirs / ours),
                passed: theirs / ours >= 5.0,
            });
        }
    }
    targets
}
