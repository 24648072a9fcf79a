//! What CPUs that broadcast take from one that has nothing to do with it.
//!
//! One CPU runs a job: it computes and reads pages that its TLB holds. On others, processes of
//! their own loop over the `mprotect` calls of `bench broadcast`. How much longer the job takes
//! than alone is the slowdown.
//!
//! On ThunderX2 a job of 39 ms took 49 ms beside one looping CPU (1.26 times; Indoh 2019). That is
//! another machine: the figure is printed for comparison, and the profile's `broadcast.tax`, which
//! says what a busy fabric takes, is assumed from the same reports. Predicted is how busy the
//! fabric is, and what the strategies make of it.

use shootdown::policy::Policy;
use shootdown_machine::{Profile, Stride, Time};

use super::broadcast::{
    ALWAYS, MACHINE, PAGE, Process, Reached, Variant, begin, iteration, machine_of, reached,
    variants,
};
use super::run::{Note, Setup, finish, spawn};
use super::{Experiment, Findings, Knob, Request, Target};
use crate::output::{Document, Row};
use crate::progress::Progress;
use crate::{LabError, machines};

/// See the module.
pub struct Bystander;

const SOURCE: &str = "Indoh 2019, 39 ms became 49 ms on ThunderX2, another machine";
const SLOWDOWN: &str = "slowdown of the bystander";
const WORKLOAD: &str = "a job beside mprotect loops";
/// Pages that the job reads: all of them stay in the TLB.
const PAGES: u64 = 32;
/// The job's own work between two rounds over its pages.
const WORK: Time = Time::from_us(1);

impl Experiment for Bystander {
    fn name(&self) -> &'static str {
        "bystander"
    }

    fn line(&self) -> &'static str {
        "a CPU that computes and touches memory, beside 1 to 31 that loop mprotect: how much slower it gets"
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn run(&self, request: &Request) -> Result<Findings, LabError> {
        request.takes(self.name(), &[Knob::Machine, Knob::Policies, Knob::Cpus])?;
        let profile = machine_of(request)?;
        let limit = request.cpus.map(|n| machines::check_cpus(n, 2)).transpose()?;
        let all = limit.unwrap_or(profile.topology.cpus.count());
        let variants = match request.runnable(self.name())? {
            Some(chosen) => chosen,
            None => own_variants(),
        };
        let mut loopers: Vec<u32> = [1, 4].into_iter().filter(|n| *n < all).collect();
        if !loopers.contains(&(all - 1)) {
            loopers.push(all - 1);
        }
        let rounds = if request.quick { 1_000 } else { 20_000 };
        let progress = Progress::new("bystander", (loopers.len() * variants.len()) as u64);
        let mut document = Document::new("bystander", &profile.name, request.seed);
        for (label, policy) in &variants {
            let job = Job { profile: &profile, policy: *policy, rounds, seed: request.seed };
            let (alone, _) = job.beside(0)?;
            for n in &loopers {
                progress.at(format!("{label}, {n} loops"));
                let (time, flushes) = job.beside(*n)?;
                progress.step();
                let row = Row::new(label, WORKLOAD, *n, SLOWDOWN, "ratio", time / alone);
                document.push(if *n == 1 && *label == ALWAYS {
                    row.published(49.0 / 39.0, SOURCE)
                } else {
                    row
                });
                for (metric, value) in flushes {
                    document.push(Row::new(label, WORKLOAD, *n, metric, "per ms", value));
                }
            }
        }
        let mut findings = Findings::default();
        if request.is_own() {
            findings.targets = targets(&document, &loopers);
        }
        findings.documents.push(document);
        Ok(findings)
    }
}

/// The strategies, and interrupts instead of broadcasts.
fn own_variants() -> Vec<Variant> {
    let mut all = variants().to_vec();
    all.push(("interrupts", Policy { broadcast: None, ..Policy::SHOOTDOWN }));
    all
}

struct Job<'a> {
    profile: &'a Profile,
    policy: Policy,
    rounds: u64,
    seed: u64,
}

impl Job<'_> {
    /// How long the job takes beside so many loops, in microseconds, and what those reached per
    /// millisecond.
    fn beside(&self, loopers: u32) -> Result<(f64, Reached), LabError> {
        let cpus = self.profile.topology.cpus.count().max(loopers + 1);
        let mut machine = Setup::new(self.profile, self.policy, self.seed).cpus(cpus).build()?;
        let (over, took) = (Note::new(false), Note::new(Time::ZERO));
        for cpu in 1..=loopers {
            let process = Process { space: machine.new_space(), page: PAGE };
            let over = over.clone();
            spawn(&mut machine, cpu, move |c| {
                begin(c, process);
                while !over.get() {
                    iteration(c, process.page);
                }
            })?;
        }
        let space = machine.new_space();
        let (rounds, said) = (self.rounds, took.clone());
        spawn(&mut machine, 0, move |c| {
            c.kernel(|k| {
                k.switch_to(Some(space));
                k.map_at(PAGE, PAGES, Stride::Page4K);
            });
            c.touch(PAGE, PAGES, true);
            let start = c.now();
            for _ in 0..rounds {
                c.compute(WORK);
                c.touch(PAGE, PAGES, false);
            }
            said.set(c.now() - start);
            over.set(true);
        })?;
        let outcome = finish(machine)?;
        let ms = outcome.end.us() / 1e3;
        Ok((took.get().us(), reached(&outcome).map(|(what, n)| (what, n / ms))))
    }
}

fn targets(document: &Document, loopers: &[u32]) -> Vec<Target> {
    let slowdown = |label: &str, n: u32| document.value(label, WORKLOAD, n, SLOWDOWN);
    let mut targets = Vec::new();
    for n in loopers {
        let Some(always) = slowdown(ALWAYS, *n) else { continue };
        for label in ["sticky", "active", "trim"] {
            let Some(other) = slowdown(label, *n) else { continue };
            targets.push(Target {
                what: format!("{label} beside {n} loops: within 1 % of the job alone"),
                seen: format!("{other:.4} times; {always:.3} when always broadcasting"),
                passed: other <= 1.01,
            });
        }
    }
    targets
}
