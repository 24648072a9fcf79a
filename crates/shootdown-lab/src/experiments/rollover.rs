//! What machine-wide tags cost as the machine grows.
//!
//! Machine-wide tags run out: then a new generation begins, which looks at every CPU (a
//! *rollover*). A switch must not: neither the usual one, to a space whose tag is of the current
//! generation, nor the first one to a space that has none yet.
//!
//! - `8-bit tags`: 512 spaces, dealt out to 4 to 128 CPUs, each of which switches between its own
//!   in turn, every millisecond or two. 255 tags are too few for them, so generations pass. The
//!   longest switch is one that began a generation, or that waited for one.
//! - `16-bit tags`: every one of 4 to 4096 CPUs switches between two spaces of its own; nothing
//!   runs out. The last switches of the first CPU are looked at, line by line.
//!
//! Nothing is published to compare with. The price of the scheduler is left out: rows are the
//! library's part of a switch, and the load of the root.

use std::cell::RefCell;
use std::rc::Rc;

use shootdown::policy::Policy;
use shootdown_machine::{Footprint, Profile, Time};

use super::run::{Note, Setup, chance, count, finish, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Rollover;

const MACHINE: &str = "altra-80";
const LABEL: &str = "shootdown";

const NARROW: &str = "8-bit tags, 512 spaces";
const WIDE: &str = "16-bit tags, 2 spaces per CPU";

const MEAN: &str = "switch, mean";
const LONGEST: &str = "longest switch";
const ROLLOVERS: &str = "rollovers";
const USUAL: &str = "switch to a space with a tag";
const FIRST: &str = "switch to a space without";
const LINES: &str = "lines touched by a switch";
const FENCES: &str = "fences of a switch";
const FIRST_LINES: &str = "lines touched by a first switch";

impl Experiment for Rollover {
    fn name(&self) -> &'static str {
        "rollover"
    }

    fn line(&self) -> &'static str {
        "machine-wide tags: rollovers of 8-bit tags on 4 to 128 CPUs, switches of 16-bit tags on 4 to 4096"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Cpus])?;
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        if !profile.has_system_tags() {
            return Err(LabError::bad(format!(
                "`{}` has no machine-wide tags; try altra-80 or riscv-64",
                profile.name
            )));
        }
        let limit = request.cpus.map(|n| machines::check_cpus(n, 4)).transpose()?;
        let up_to = |all: &[u32]| -> Vec<u32> {
            all.iter().copied().filter(|n| limit.is_none_or(|limit| *n <= limit)).collect()
        };
        let narrow = up_to(if request.quick { &[4, 32, 128] } else { &[4, 8, 16, 32, 64, 128] });
        let wide = up_to(if request.quick { &[4, 64, 512] } else { &[4, 64, 512, 4096] });
        let progress = Progress::new("rollover", (narrow.len() + wide.len()) as u64);
        let mut document = Document::new("rollover", &profile.name, request.seed);
        for n in &narrow {
            progress.at(format!("{NARROW}, {n} CPUs"));
            let turns = if request.quick { 3 } else { 10 };
            let seen = generations(&profile, *n, turns, request.seed)?;
            progress.step();
            let mut row = |metric, unit, value| {
                document.push(Row::new(LABEL, NARROW, *n, metric, unit, value));
            };
            row(MEAN, "us", seen.mean.us());
            row(LONGEST, "us", seen.longest.us());
            row(ROLLOVERS, "per 1000 switches", seen.rollovers);
        }
        for n in &wide {
            progress.at(format!("{WIDE}, {n} CPUs"));
            let seen = switches(&profile, *n, request.seed)?;
            progress.step();
            let mut row = |metric, unit, value| {
                document.push(Row::new(LABEL, WIDE, *n, metric, unit, value));
            };
            row(USUAL, "us", seen.usual.us());
            row(LINES, "lines", count(seen.footprint.lines as u64));
            row(FENCES, "fences", count(seen.footprint.fences + seen.footprint.rmws));
            row(FIRST, "us", seen.first.us());
            row(FIRST_LINES, "lines", count(seen.first_footprint.lines as u64));
        }
        let mut findings = Findings::default();
        if request.is_own() {
            findings.targets = targets(&document, &narrow, &wide);
        }
        findings.documents.push(document);
        Ok(findings)
    }
}

/// Spaces of the first part, whatever the number of CPUs.
const SPACES: u32 = 512;
/// A CPU switches every one to two milliseconds.
const SLICE_NS: u64 = 1_000_000;

struct Narrow {
    mean: Time,
    longest: Time,
    rollovers: f64,
}

fn generations(profile: &Profile, cpus: u32, turns: u32, seed: u64) -> Result<Narrow, LabError> {
    let mut setup = Setup::new(profile, Policy::SHOOTDOWN, seed).cpus(cpus);
    setup.config.tag_bits = Some(8);
    let mut machine = setup.build()?;
    let (sum, longest) = (Note::new(Time::ZERO), Note::new(Time::ZERO));
    for cpu in 0..cpus {
        let spaces: Vec<_> = (0..SPACES / cpus).map(|_| machine.new_space()).collect();
        let (sum, longest) = (sum.clone(), longest.clone());
        spawn(&mut machine, cpu, move |c| {
            for turn in 0..u64::from(turns) {
                for (i, space) in (0u64..).zip(&spaces) {
                    let random = chance(seed ^ u64::from(cpu) << 32, turn << 16 | i);
                    c.compute(Time::from_ns(SLICE_NS + random % SLICE_NS));
                    let took = c.kernel(|k| {
                        let start = k.now();
                        k.load(Some(*space));
                        k.now() - start
                    });
                    sum.set(sum.get() + took);
                    longest.set(longest.get().max(took));
                }
            }
        })?;
    }
    let rollovers = finish(machine)?.total().library.rollovers;
    let switches = u64::from(SPACES / cpus * cpus * turns);
    Ok(Narrow {
        mean: Time::from_ps(sum.get().ps() / switches),
        longest: longest.get(),
        rollovers: 1e3 * count(rollovers) / count(switches),
    })
}

struct Wide {
    usual: Time,
    first: Time,
    footprint: Footprint,
    first_footprint: Footprint,
}

/// Switches of each CPU before the first one's are looked at, and how many of those there are.
const WARM: u64 = 6;
const LOOKED_AT: u64 = 4;
/// Every space has its tag by then; what is looked at begins here.
const START: Time = Time::from_us(2_000_000);

fn switches(profile: &Profile, cpus: u32, seed: u64) -> Result<Wide, LabError> {
    let mut setup = Setup::new(profile, Policy::SHOOTDOWN, seed).cpus(cpus);
    setup.config.tag_bits = Some(16);
    let mut machine = setup.build()?;
    let seen = Rc::new(RefCell::new(None));
    for cpu in 0..cpus {
        let spaces = [machine.new_space(), machine.new_space()];
        let fresh = (cpu == 0).then(|| machine.new_space());
        let seen = Rc::clone(&seen);
        spawn(&mut machine, cpu, move |c| {
            let pause = Time::from_ns(1_000 + chance(seed, u64::from(cpu)) % 1_000);
            for i in 0..WARM {
                c.kernel(|k| k.load(Some(spaces[usize::from(i % 2 == 1)])));
                c.compute(pause);
            }
            c.idle_until(START);
            // Lines that others wrote since come back once.
            c.kernel(|k| k.load(Some(spaces[1])));
            let mut usual = Time::ZERO;
            let mut footprint = Footprint::default();
            for i in 0..LOOKED_AT {
                c.kernel(|k| {
                    let start = k.now();
                    let space = spaces[usize::from(i % 2 == 1)];
                    if cpu == 0 {
                        ((), footprint) = k.footprint(|k| {
                            k.load(Some(space));
                        });
                    } else {
                        k.load(Some(space));
                    }
                    usual += k.now() - start;
                });
                c.compute(pause);
            }
            let Some(fresh) = fresh else { return };
            let (first, first_footprint) = c.kernel(|k| {
                let start = k.now();
                let ((), footprint) = k.footprint(|k| {
                    k.load(Some(fresh));
                });
                (k.now() - start, footprint)
            });
            let usual = Time::from_ps(usual.ps() / LOOKED_AT);
            *seen.borrow_mut() = Some(Wide { usual, first, footprint, first_footprint });
        })?;
    }
    finish(machine)?;
    let seen = seen.borrow_mut().take();
    seen.ok_or_else(|| LabError::broken("the first CPU did not come to its end".to_owned()))
}

fn targets(document: &Document, narrow: &[u32], wide: &[u32]) -> Vec<Target> {
    let of = |workload: &str, n: u32, metric: &str| {
        document.value(LABEL, workload, n, metric).unwrap_or(f64::NAN)
    };
    let mut targets = Vec::new();
    let (Some(least), Some(most)) = (wide.first(), wide.last()) else { return targets };
    for metric in [LINES, FENCES, FIRST_LINES] {
        let (few, many) = (of(WIDE, *least, metric), of(WIDE, *most, metric));
        targets.push(Target {
            what: format!("{metric}: the same with {least} and {most} CPUs"),
            seen: format!("{few} and {many}"),
            passed: few.total_cmp(&many).is_eq(),
        });
    }
    let (few, many) = (of(WIDE, *least, USUAL), of(WIDE, *most, USUAL));
    targets.push(Target {
        what: format!("{USUAL}: within 5 % with {least} and {most} CPUs"),
        seen: format!("{few:.4} and {many:.4} us"),
        passed: (many / few - 1.0).abs() <= 0.05,
    });
    if let Some(most) = narrow.last() {
        let rollovers = of(NARROW, *most, ROLLOVERS);
        targets.push(Target {
            what: format!("8-bit tags roll over on {most} CPUs"),
            seen: format!("{rollovers:.1} in 1000 switches"),
            passed: rollovers > 0.0,
        });
    }
    targets
}
