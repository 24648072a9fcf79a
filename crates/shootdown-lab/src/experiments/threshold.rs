//! When a tag for all CPUs pays on x86.
//!
//! A process with one thread on each of *n* CPUs, which all run. Its threads do what `invlpgb` has
//! them do, a page given back an iteration; either all of them, or only one while the others
//! compute. What an iteration costs is the time of the threads that iterate, and what the others
//! lose of theirs, over the iterations.
//!
//! By interrupts, by broadcasts from the first look on, and under `shootdown`'s own threshold.
//! Broadcasts take as long as the fabric takes for one (*assumed*, nobody published it), so that is
//! varied.

use shootdown::policy::Policy;
use shootdown::tags::shared::Threshold;
use shootdown_machine::{Profile, Time};

use super::invlpgb::{JITTER_NS, MACHINE, machine_of, region};
use super::run::{Note, Setup, chance, count, finish, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Sharing;

/// CPUs tried, as far as the machine has them; and all of its own.
const CPUS: [u32; 9] = [2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Service times tried besides the profile's, in nanoseconds.
const SERVICES: [f64; 3] = [250.0, 500.0, 1000.0];
/// Until then the threshold may make up its mind.
const START: Time = Time::from_us(10_000);
/// What a thread that computes does at a time.
const STEP: Time = Time::from_ns(500);
const COST: &str = "CPU time of an iteration";
const PAYS: &str = "broadcasts pay from";
/// How much worse than the better of interrupts and broadcasts the policy may be.
const SLACK: f64 = 1.15;

/// Who iterates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    One,
    All,
}

impl Who {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "one thread flushes, the others compute",
            Self::All => "all threads flush",
        }
    }
}

const INTERRUPTS: &str = "by interrupts";
const OWN: &str = "shootdown";

impl Experiment for Sharing {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn line(&self) -> &'static str {
        "from how many CPUs on a tag for all of them and broadcasts pay on x86, by what a broadcast is assumed to take"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Cpus])?;
        let profile = machine_of(request)?;
        let limit = request.cpus.map(|n| machines::check_cpus(n, 2)).transpose()?;
        let all = limit.unwrap_or(profile.topology.cpus.count());
        let mut cpus: Vec<u32> = CPUS.into_iter().filter(|n| *n < all).collect();
        cpus.push(all);
        let mut variants = vec![
            (INTERRUPTS.to_owned(), profile.clone(), Threshold::NEVER),
            (OWN.to_owned(), profile.clone(), Policy::SHOOTDOWN.shared),
        ];
        for service in SERVICES {
            let eager = Threshold { above: 0, every: 1, alone: 0 };
            variants.push((by_broadcasts(service), serving(&profile, service), eager));
        }
        if request.quick {
            cpus.retain(|n| [2, 8, all].contains(n));
            variants.truncate(4);
        }
        let window = if request.quick { Time::from_us(2_000) } else { Time::from_us(5_000) };
        let progress = Progress::new("threshold", (2 * cpus.len() * variants.len()) as u64);
        let mut document = Document::new("threshold", &profile.name, request.seed);
        for who in [Who::One, Who::All] {
            for n in &cpus {
                for (label, profile, shared) in &variants {
                    progress.at(format!("{}, {n} CPUs, {label}", who.name()));
                    let policy = Policy { shared: *shared, ..Policy::SHOOTDOWN };
                    let run = Run { profile, policy, who, cpus: *n, window };
                    let cost = run.cost(request.seed)?;
                    document.push(Row::new(label, who.name(), *n, COST, "us", cost));
                    progress.step();
                }
            }
            for (label, ..) in variants.iter().skip(2) {
                if let Some(n) = pays_from(&document, label, who, &cpus) {
                    let row = Row::new(label, who.name(), all, PAYS, "CPUs", f64::from(n));
                    document.push(row);
                }
            }
        }
        let targets =
            if request.is_own() { vec![target(&document, &profile, &cpus)] } else { Vec::new() };
        Ok(Findings { documents: vec![document], targets })
    }
}

fn by_broadcasts(service: f64) -> String {
    format!("by broadcasts of {service} ns")
}

/// The machine with another service time.
fn serving(profile: &Profile, service: f64) -> Profile {
    let mut profile = profile.clone();
    if let Some(costs) = &mut profile.broadcast {
        costs.service = shootdown_machine::Number::assumed(service, "varied");
    }
    profile
}

/// From how many CPUs on broadcasts are cheaper than interrupts, up to all of them.
fn pays_from(document: &Document, label: &str, who: Who, cpus: &[u32]) -> Option<u32> {
    let cost = |label: &str, n| document.value(label, who.name(), n, COST);
    let pays = |n: &&u32| cost(label, **n) < cost(INTERRUPTS, **n);
    cpus.iter().rev().take_while(pays).last().copied()
}

/// The threshold in force is never much worse than the better choice.
fn target(document: &Document, profile: &Profile, cpus: &[u32]) -> Target {
    let service = profile.broadcast.as_ref().map_or(0.0, |costs| costs.service.plain());
    let broadcasts = by_broadcasts(service);
    let mut worst = (0.0, String::new());
    for who in [Who::One, Who::All] {
        for n in cpus {
            let cost = |label: &str| document.value(label, who.name(), *n, COST);
            let (Some(own), Some(a), Some(b)) = (cost(OWN), cost(INTERRUPTS), cost(&broadcasts))
            else {
                continue;
            };
            let ratio = own / a.min(b);
            if ratio > worst.0 {
                worst = (ratio, format!("{ratio:.2} times, {n} CPUs, {}", who.name()));
            }
        }
    }
    Target {
        what: format!(
            "the threshold costs at most {SLACK} times the better of interrupts and broadcasts"
        ),
        passed: worst.0 > 0.0 && worst.0 <= SLACK,
        seen: worst.1,
    }
}

struct Run<'a> {
    profile: &'a Profile,
    policy: Policy,
    who: Who,
    cpus: u32,
    window: Time,
}

impl Run<'_> {
    /// What an iteration costs, in microseconds of CPU time.
    fn cost(&self, seed: u64) -> Result<f64, LabError> {
        let mut machine = Setup::new(self.profile, self.policy, seed).build()?;
        let space = machine.new_space();
        let (iterations, steps) = (Note::new(0), Note::new(0));
        let end = START + self.window;
        let within = move |now| START < now && now <= end;
        let flushers = if self.who == Who::One { 1 } else { self.cpus };
        for cpu in 0..self.cpus {
            let (iterations, steps) = (iterations.clone(), steps.clone());
            spawn(&mut machine, cpu, move |c| {
                c.kernel(|k| k.switch_to(Some(space)));
                let mut turn = 0;
                let mut jitter = || {
                    turn += 1;
                    Time::from_ns(chance(seed ^ u64::from(cpu) << 32, turn) % JITTER_NS)
                };
                while c.now() < end {
                    if cpu < flushers {
                        region(c, &mut jitter, |now| {
                            iterations.set(iterations.get() + u64::from(within(now)));
                        });
                    } else {
                        c.compute(STEP);
                        steps.set(steps.get() + u64::from(within(c.now())));
                    }
                }
            })?;
        }
        finish(machine)?;
        let computing = f64::from(self.cpus - flushers) * self.window.us();
        let lost = computing - count(steps.get()) * STEP.us();
        let spent = f64::from(flushers) * self.window.us();
        Ok((spent + lost) / count(iterations.get()))
    }
}
