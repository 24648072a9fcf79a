//! How many tag slots a CPU needs, and which slot should make room.
//!
//! One CPU switches between spaces as real schedules do; after each switch the program touches 64
//! of its pages, so that a lost tag costs its refill. Four schedules:
//! - `ring of 5`: five processes in turn;
//! - `server and clients`: one process alternates with eight others, as a server on its own CPU
//!   does;
//! - `pipeline with daemons`: three processes in turn, and now and then one of twenty daemons;
//! - `zipf of 16`: sixteen processes, the *k*-th chosen with weight 1/k.
//!
//! Six is the most that fits the line a switch reads anyway. The default of [`Policy::SHOOTDOWN`]
//! is checked against the best up to there: fewer slots, or the other victim rule, must not be
//! better.

use shootdown::policy::{Policy, Victim};
use shootdown_machine::{Profile, Stride, Time};

use super::run::{Note, Setup, chance, count, finish, per, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Slots;

const MACHINE: &str = "skylake-laptop";
/// Pages a process touches each time it runs: a timeslice of a few microseconds.
const TOUCHED: u64 = 64;
/// What the machine's kernel has: as many as share one cache line with the rest of what a switch
/// needs of its CPU. A seventh would put a fourth line into every switch.
const MOST_SLOTS: u8 = 6;

/// A schedule: its name, how many spaces it uses, and which runs at a step.
struct Schedule {
    name: &'static str,
    spaces: usize,
    at: fn(u64, u64) -> u64,
}

const SCHEDULES: [Schedule; 4] = [
    Schedule { name: "ring of 5", spaces: 5, at: |_, step| step % 5 },
    Schedule {
        name: "server and clients",
        spaces: 9,
        at: |seed, step| if step % 2 == 0 { 0 } else { 1 + chance(seed, step) % 8 },
    },
    Schedule {
        name: "pipeline with daemons",
        spaces: 23,
        at: |seed, step| match chance(seed, step) {
            r if r % 10 == 0 => 3 + r / 10 % 20,
            _ => step % 3,
        },
    },
    Schedule { name: "zipf of 16", spaces: 16, at: |seed, step| zipf(chance(seed, step)) },
];

/// One of sixteen with weight 1/k: weights in units of 1/720720, the least common multiple of 1 to
/// 16.
fn zipf(random: u64) -> u64 {
    const UNIT: u64 = 720_720;
    let sum: u64 = (1..=16).map(|k| UNIT / k).sum();
    let mut left = random % sum;
    for k in 1..16 {
        let weight = UNIT / k;
        if left < weight {
            return k - 1;
        }
        left -= weight;
    }
    15
}

const KEPT: &str = "switches that kept their entries";
const COST: &str = "switch and touches";

impl Experiment for Slots {
    fn name(&self) -> &'static str {
        "slots"
    }

    fn line(&self) -> &'static str {
        "tag slots per CPU (1 to 6) and victim rules over four schedules: hit rate and cost"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine])?;
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        let steps = if request.quick { 600 } else { 4_000 };
        let progress = Progress::new("slots", SCHEDULES.len() as u64 * 2 * u64::from(MOST_SLOTS));
        let mut document = Document::new("slots", &profile.name, request.seed);
        for schedule in &SCHEDULES {
            for victim in [Victim::RoundRobin, Victim::LeastRecent] {
                for slots in 1..=MOST_SLOTS {
                    let label = label(slots, victim);
                    progress.at(format!("{label}, {}", schedule.name));
                    let policy = Policy { slots, victim, ..Policy::SHOOTDOWN };
                    let (kept, us) = measure(&profile, policy, schedule, steps, request.seed)?;
                    progress.step();
                    document.push(Row::new(&label, schedule.name, 1, KEPT, "%", kept));
                    document.push(Row::new(&label, schedule.name, 1, COST, "us", us));
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

fn label(slots: u8, victim: Victim) -> String {
    let rule = match victim {
        Victim::RoundRobin => "in turn",
        _ => "least recent",
    };
    format!("{slots} slots, {rule}")
}

/// Percentage of switches that kept entries, and the mean cost of a switch with the touches after
/// it.
fn measure(
    profile: &Profile,
    policy: Policy,
    schedule: &Schedule,
    steps: u64,
    seed: u64,
) -> Result<(f64, f64), LabError> {
    let mut machine = Setup::new(profile, policy, seed).cpus(1).build()?;
    let spaces: Vec<_> = (0..schedule.spaces).map(|_| machine.new_space()).collect();
    let elapsed = Note::new(Time::ZERO);
    let said = elapsed.clone();
    let at = schedule.at;
    spawn(&mut machine, 0, move |cpu| {
        let pages: Vec<u64> = spaces
            .iter()
            .map(|space| {
                let va = cpu.kernel(|k| {
                    k.switch_to(Some(*space));
                    k.map(TOUCHED, Stride::Page4K)
                });
                cpu.touch(va, TOUCHED, true);
                va
            })
            .collect();
        let start = cpu.now();
        for step in 0..steps {
            let next = usize::try_from(at(seed, step)).unwrap_or(0);
            cpu.kernel(|k| k.switch_to(Some(spaces[next])));
            cpu.touch(pages[next], TOUCHED, false);
        }
        said.set(cpu.now() - start);
    })?;
    let spaces = count(schedule.spaces as u64);
    let loads = finish(machine)?.total().invalidations;
    let (kept, flushed) = (count(loads.loads_kept), count(loads.loads_flushed) - spaces);
    Ok((100.0 * kept / (kept + flushed).max(1.0), per(elapsed.get(), steps)))
}

fn targets(document: &Document) -> Vec<Target> {
    let cost = |slots, victim| -> f64 {
        SCHEDULES
            .iter()
            .filter_map(|s| document.value(&label(slots, victim), s.name, 1, COST))
            .sum::<f64>()
            / count(SCHEDULES.len() as u64)
    };
    let default = Policy::SHOOTDOWN;
    let ours = cost(default.slots, default.victim);
    let (slots, victim, best) = (1..=MOST_SLOTS)
        .flat_map(|s| [(s, Victim::RoundRobin), (s, Victim::LeastRecent)])
        .map(|(s, v)| (s, v, cost(s, v)))
        .min_by(|a, b| a.2.total_cmp(&b.2))
        .unwrap_or((default.slots, default.victim, ours));
    let other = match default.victim {
        Victim::RoundRobin => Victim::LeastRecent,
        _ => Victim::RoundRobin,
    };
    vec![
        Target {
            what: format!(
                "the default ({}) within 5 % of the best mean cost",
                label(default.slots, default.victim)
            ),
            seen: format!("{ours:.3} us against {best:.3} us with {}", label(slots, victim)),
            passed: ours <= best * 1.05,
        },
        Target {
            what: "the other victim rule is not better with the default's slots".to_owned(),
            seen: format!("{ours:.3} us against {:.3} us", cost(default.slots, other)),
            passed: ours <= cost(default.slots, other),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_stay_within_their_spaces() {
        for schedule in &SCHEDULES {
            let seen: std::collections::BTreeSet<u64> =
                (0..5_000).map(|step| (schedule.at)(1, step)).collect();
            assert_eq!(seen.len(), schedule.spaces, "{}", schedule.name);
            assert!(seen.iter().all(|s| *s < schedule.spaces as u64), "{}", schedule.name);
        }
    }
}
