//! What clearing accessed bits costs whoever clears them, and how long a page in use looks unused.
//!
//! - `clear`: a space is used on 2 to 4096 CPUs. The first one clears the accessed bits of 64 of
//!   its pages, one by one, after all others have switched. Rows: its time for a page, and the
//!   lines that the library writes for all of them. Under `at switch` one of these is each other
//!   CPU's own.
//! - `notice`: one CPU reads 16 pages over and over, and has a tick every 4 ms ([`TICK`], assumed:
//!   250 Hz). Another clears the accessed bit of one of them, and looks until it is set again.
//!
//! Nothing is published to compare with.

use shootdown::accessed::{Accessed, AccessedPolicy};
use shootdown::policy::Policy;
use shootdown_machine::{Profile, Stride, Time};

use super::run::{Note, Setup, chance, count, finish, per, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct AccessedBits;

const MACHINE: &str = "generic-4096";
const CLEAR: &str = "clear";
const NOTICE: &str = "notice";

const COST: &str = "clearing, per page";
const WRITTEN: &str = "lines written for 64 pages";
const FETCHED: &str = "lines fetched for 64 pages";
const MEAN: &str = "noticed after, mean";
const LONGEST: &str = "noticed after, longest";
const MISSED: &str = "not noticed within 5 ticks";

const GENERATION: &str = "generation";
const AT_SWITCH: &str = "at switch";

const POLICIES: [(&str, Accessed); 4] = [
    ("immediate", Accessed::Immediate),
    (AT_SWITCH, Accessed::AtSwitch),
    (GENERATION, Accessed::Generation),
    ("never", Accessed::Never),
];

/// The time between two ticks of a CPU.
pub const TICK: Time = Time::from_us(4_000);

impl Experiment for AccessedBits {
    fn name(&self) -> &'static str {
        "accessed"
    }

    fn line(&self) -> &'static str {
        "clearing accessed bits of a space used on 2 to 4096 CPUs: the cost, and when a page in use is noticed"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Cpus])?;
        let profile = machines::find(request.machine.as_deref().unwrap_or(MACHINE))?;
        let limit = request.cpus.map(|n| machines::check_cpus(n, 2)).transpose()?;
        let sizes: &[u32] =
            if request.quick { &[2, 16, 128, 1024] } else { &[2, 16, 128, 1024, 4096] };
        let sizes: Vec<u32> =
            sizes.iter().copied().filter(|n| limit.is_none_or(|limit| *n <= limit)).collect();
        let rounds = if request.quick { 10 } else { 50 };
        let steps = POLICIES.len() * (sizes.len() + 1);
        let progress = Progress::new("accessed", steps as u64);
        let mut document = Document::new("accessed", &profile.name, request.seed);
        for (label, accessed) in POLICIES {
            let policy = Policy { accessed: AccessedPolicy::all(accessed), ..Policy::SHOOTDOWN };
            for n in &sizes {
                progress.at(format!("{label}, {n} CPUs"));
                let seen = clearing(&profile, policy, *n, request.seed)?;
                progress.step();
                let mut row = |metric, unit, value| {
                    document.push(Row::new(label, CLEAR, *n, metric, unit, value));
                };
                row(COST, "us", per(seen.took, PAGES));
                row(WRITTEN, "lines", count(seen.written));
                row(FETCHED, "lines", count(seen.fetched));
            }
            progress.at(format!("{label}, noticing"));
            let seen = noticing(&profile, policy, rounds, request.seed)?;
            progress.step();
            let mut row = |metric, unit, value| {
                document.push(Row::new(label, NOTICE, 2, metric, unit, value));
            };
            if seen.noticed != 0 {
                row(MEAN, "ms", per(seen.sum, seen.noticed) / 1e3);
                row(LONGEST, "ms", seen.longest.us() / 1e3);
            }
            row(MISSED, "%", 100.0 * count(rounds - seen.noticed) / count(rounds));
        }
        let mut findings = Findings::default();
        if request.is_own() {
            findings.targets = targets(&document, &sizes);
        }
        findings.documents.push(document);
        Ok(findings)
    }
}

/// Where the pages are.
const VA: u64 = 0x4000_0000;
/// Pages whose bits are cleared.
const PAGES: u64 = 64;
/// All CPUs have used the pages by then.
const USED: Time = Time::from_us(200_000);
/// And have switched once more by then.
const SWITCHED: Time = Time::from_us(400_000);
const OVER: Time = Time::from_us(600_000);

#[derive(Clone, Copy, Default)]
struct Cleared {
    took: Time,
    written: u64,
    fetched: u64,
}

fn clearing(profile: &Profile, policy: Policy, cpus: u32, seed: u64) -> Result<Cleared, LabError> {
    let mut machine = Setup::new(profile, policy, seed).cpus(cpus).build()?;
    let space = machine.new_space();
    let seen = Note::new(Cleared::default());
    for cpu in 0..cpus {
        let seen = seen.clone();
        spawn(&mut machine, cpu, move |c| {
            c.kernel(|k| {
                k.load(Some(space));
                if cpu == 0 {
                    k.map_at(VA, PAGES, Stride::Page4K);
                }
            });
            // One after the other, so that they do not queue for the page tables.
            c.compute(Time::from_us(20 * u64::from(cpu) + 100));
            c.touch(VA, PAGES, false);
            let until = |c: &mut shootdown_machine::Cpu, time: Time| {
                let now = c.now();
                if now < time {
                    c.compute(time - now);
                }
            };
            until(c, USED);
            if cpu == 0 {
                // From now on the space is one whose bits are cleared: switches look.
                c.kernel(|k| k.clear_accessed(space, VA, 1));
            }
            until(c, USED + Time::from_us(20 * u64::from(cpu) + 1));
            c.kernel(|k| k.load(Some(space)));
            c.touch(VA, PAGES, false);
            until(c, SWITCHED);
            if cpu == 0 {
                c.kernel(|k| {
                    let start = k.now();
                    let (_, footprint) = k.footprint(|k| k.clear_accessed(space, VA, PAGES));
                    let took = k.now() - start;
                    let (written, fetched) = (footprint.written as u64, footprint.fetched);
                    seen.set(Cleared { took, written, fetched });
                });
            }
            until(c, OVER);
            c.kernel(|k| k.load(Some(space)));
        })?;
    }
    finish(machine)?;
    Ok(seen.get())
}

#[derive(Clone, Copy, Default)]
struct Noticed {
    noticed: u64,
    sum: Time,
    longest: Time,
}

/// Pages that are read over and over.
const HOT: u64 = 16;
/// How exactly it is known when a bit is set again.
const LOOK: Time = Time::from_us(20);

fn noticing(
    profile: &Profile,
    policy: Policy,
    rounds: u64,
    seed: u64,
) -> Result<Noticed, LabError> {
    let mut machine = Setup::new(profile, policy, seed).cpus(2).build()?;
    let space = machine.new_space();
    let (over, seen) = (Note::new(false), Note::new(Noticed::default()));
    let is_over = over.clone();
    spawn(&mut machine, 1, move |c| {
        c.kernel(|k| {
            k.load(Some(space));
            k.map_at(VA, HOT, Stride::Page4K);
        });
        let mut next = TICK;
        while !is_over.get() {
            c.touch(VA, HOT, false);
            c.compute(Time::from_us(5));
            if c.now() >= next {
                c.kernel(|k| k.tick());
                next += TICK;
            }
        }
    })?;
    let said = seen.clone();
    spawn(&mut machine, 0, move |c| {
        c.compute(TICK);
        for round in 0..rounds {
            // At any moment between two ticks.
            c.compute(Time::from_ps(chance(seed, round) % TICK.ps()));
            let page = VA + ((chance(seed ^ 1, round) % HOT) << 12);
            let start = c.kernel(|k| {
                k.clear_accessed(space, page, 1);
                k.now()
            });
            while c.now() - start < TICK * 5 && c.kernel(|k| k.accessed(space, page)) == Some(false)
            {
                c.compute(LOOK);
            }
            let took = c.now() - start;
            if took < TICK * 5 {
                let so_far = said.get();
                said.set(Noticed {
                    noticed: so_far.noticed + 1,
                    sum: so_far.sum + took,
                    longest: so_far.longest.max(took),
                });
            }
        }
        over.set(true);
    })?;
    finish(machine)?;
    Ok(seen.get())
}

fn targets(document: &Document, sizes: &[u32]) -> Vec<Target> {
    let (Some(least), Some(most)) = (sizes.first(), sizes.last()) else { return Vec::new() };
    let of = |label: &str, n: u32, metric: &str| {
        document.value(label, CLEAR, n, metric).unwrap_or(f64::NAN)
    };
    let (few, many) = (of(GENERATION, *least, COST), of(GENERATION, *most, COST));
    let (flag_few, flag_many) = (of(AT_SWITCH, *least, COST), of(AT_SWITCH, *most, COST));
    let longest = document.value(GENERATION, NOTICE, 2, LONGEST).unwrap_or(f64::NAN);
    let missed = document.value(GENERATION, NOTICE, 2, MISSED).unwrap_or(f64::NAN);
    vec![
        Target {
            what: format!("generation: the same cost for {least} and {most} CPUs, within 10 %"),
            seen: format!("{few:.4} and {many:.4} us"),
            passed: (many / few - 1.0).abs() <= 0.1,
        },
        Target {
            what: "at switch: grows with the CPUs".to_owned(),
            seen: format!("{flag_few:.4} and {flag_many:.4} us"),
            passed: flag_many > 2.0 * flag_few,
        },
        Target {
            what: "generation: a page in use is noticed within a tick".to_owned(),
            seen: format!("after at most {longest:.2} ms, {missed} % not at all"),
            passed: longest <= TICK.us() / 1e3 * 1.01 && missed <= 0.0,
        },
    ]
}
